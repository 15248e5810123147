//! report.md as a comment of a pull request: small whatever was found, and text from files means nothing in it.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use xcheck::change::CauseKind;
use xcheck::checkpoint::{Point, TapScope};
use xcheck::report::{Report, RunFailure, html, markdown};
use xcheck::verdict::{Finding, Outcome};

use super::fixture::{failing, failing_candidate, measurement, outcome, passing, report, row, site, timing};

/// What a comment may have.
const COMMENT: usize = 65_536;
const HOSTILE: &str = "x](y) [z](http://a.b) https://evil.example <img src=x> @someone #123 GH-7 www.evil.example a@b.example ![i](j) `c` **d** _e_ ~~f~~ | g \
    &lt; $h$ <!-- i\n\n# j\n- k\n```\n</details>\u{1b}[31m";

/// A model of so many layers in which everything fails, in so many passes.
fn everything_fails(name: &str, layers: usize, passes: usize) -> Outcome {
    let far = || Some(measurement(&[3, 1, 17], 1e9, 0.5));
    let mut rows = Vec::new();
    for pass in 0..passes {
        for &point in Point::ALL.iter().filter(|point| point.scope() != TapScope::Run) {
            let layers = if point.scope() == TapScope::Layer { layers } else { 1 };
            rows.extend((0..layers).map(|layer| row(site(point, layer, pass), far(), far())));
        }
    }
    rows.sort_by_key(|row| row.site.flow_order());
    outcome(name, rows)
}

fn finding(what: &str) -> Finding {
    let site = site(Point::V, 1, 0);
    Finding {
        kind: CauseKind::Activation,
        site,
        points: vec![Point::V],
        layers: vec![1],
        key: None,
        reference: None,
        candidate: None,
        what: what.to_owned(),
        sites: vec![site],
        supposed: None,
        confirm: None,
        confirmed: None,
        verified_on: Vec::new(),
        remaining: Vec::new(),
        excluded: Vec::new(),
    }
}

/// The report of a pull request on which much is wrong.
fn large(references: usize) -> Report {
    let long = |number: usize| format!("{number}: {}", "long words of a name that somebody gave ".repeat(40));
    let outcomes = (0..references).map(|number| {
        let mut outcome = everything_fails(&long(number), 80, 3);
        outcome.notes = (0..200).map(long).collect();
        outcome.coverage.skipped = (0..200).map(long).collect();
        outcome.findings = (0..50).map(|number| finding(&long(number))).collect();
        outcome
    });
    report(outcomes.collect::<Vec<_>>())
}

fn events(text: &str) -> Vec<Event<'_>> {
    Parser::new_ext(text, Options::all()).collect()
}

/// What a page shows as text, apart from code: where GitHub looks for what it links by itself.
fn shown(text: &str) -> String {
    let mut shown = String::new();
    let mut in_code = false;
    for event in events(text) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => in_code = true,
            Event::End(TagEnd::CodeBlock) => in_code = false,
            Event::Text(text) if !in_code => shown += &text,
            _ => shown.push('\n'),
        }
    }
    shown
}

/// What of a page is more than text, lists, tables and our own folds.
fn meaning(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for event in events(text) {
        match event {
            Event::Html(html) | Event::InlineHtml(html) => {
                let ours =
                    ["<details><summary>What was compared, checkpoint by checkpoint</summary>", "</details>"];
                let ours = html.trim().is_empty()
                    || ours.contains(&html.trim())
                    || html.contains("<summary>Map of taps");
                found.extend((!ours).then(|| format!("HTML {html}")));
            }
            Event::Start(
                tag @ (Tag::Link { .. }
                | Tag::Image { .. }
                | Tag::Emphasis
                | Tag::Strikethrough
                | Tag::BlockQuote(_)),
            ) => found.push(format!("{tag:?}")),
            Event::InlineMath(math) | Event::DisplayMath(math) => found.push(format!("math {math}")),
            Event::FootnoteReference(note) => found.push(format!("note {note}")),
            _ => {}
        }
    }
    let shown = shown(text);
    let linked = regex::Regex::new(r"(?i)@\w|#\d|gh-\d|://|www\.").expect("a pattern");
    found.extend(linked.find_iter(&shown).map(|link| format!("link {}", link.as_str())));
    found
}

fn hostile(mut outcome: Outcome) -> Outcome {
    outcome.subject.name = HOSTILE.into();
    outcome.subject.producer.name = HOSTILE.into();
    outcome.subject.producer.settings.insert(HOSTILE.into(), HOSTILE.into());
    outcome.subject.numerics = HOSTILE.into();
    outcome.notes = vec![HOSTILE.into()];
    outcome.reason = Some(HOSTILE.into());
    outcome.coverage.skipped = vec![HOSTILE.into()];
    outcome.findings = vec![finding(HOSTILE)];
    outcome.rows.iter_mut().for_each(|row| row.tolerance.source = HOSTILE.into());
    outcome
}

#[test]
fn a_reader_of_markdown_sees_what_is_hostile_where_it_is_not_escaped() {
    let found = meaning(HOSTILE);
    for expected in [
        "Link",
        "Image",
        "HTML <img",
        "link @s",
        "link #1",
        "link ://",
        "link www.",
        "Emphasis",
        "Strike",
        "math",
    ] {
        assert!(found.iter().any(|found| found.contains(expected)), "{expected} is not in {found:?}");
    }
}

#[test]
fn text_from_files_means_nothing() {
    let mut uncovered = hostile(passing());
    uncovered.verdict = xcheck::verdict::Verdict::Inconclusive;
    let mut report =
        report([hostile(passing()), hostile(failing()), hostile(failing_candidate()), uncovered]);
    report.results.iter_mut().for_each(|result| result.model.name = HOSTILE.into());
    report.command.push(HOSTILE.into());
    let text = markdown(&report);
    assert_eq!(meaning(&text), Vec::<String>::new(), "{text}");
    // Nothing of it begins a line either: the headings are ours.
    let headings =
        events(&text).iter().filter(|event| matches!(event, Event::Start(Tag::Heading { .. }))).count();
    assert_eq!(headings, 1 + 4, "{text}");
    let blocks =
        events(&text).iter().filter(|event| matches!(event, Event::Start(Tag::CodeBlock(_)))).count();
    assert_eq!(blocks, 1 + 3 + 3, "{text}");
}

#[test]
fn a_name_begins_no_heading_list_or_rule() {
    let blocks = |text: &str| {
        let is_block = |event: &&Event| {
            matches!(
                event,
                Event::Start(Tag::Heading { .. } | Tag::List(_) | Tag::CodeBlock(_)) | Event::Rule
            )
        };
        events(text).iter().filter(is_block).count()
    };
    let of = |name: &str| {
        let named = |mut outcome: Outcome| {
            outcome.subject.name = name.into();
            outcome.notes = vec![name.into()];
            outcome
        };
        markdown(&report([named(passing()), named(failing())]))
    };
    let plain = blocks(&of("plain"));
    for name in [
        "# big",
        "#",
        "- x",
        "+ x",
        "1. x",
        "12) x",
        "---",
        "- - -",
        "     indented",
        "=== x",
        "* x",
        "1.",
        "-",
    ] {
        let text = of(name);
        assert_eq!(blocks(&text), plain, "{name}: {text}");
        // A reader with typographic dashes shows others.
        let is_shown = shown(&text).replace('\u{200b}', "").contains(name.trim_start());
        assert!(is_shown || name.contains("--"), "{name}: {text}");
    }
    assert!(
        of("v1.2-rc+1").contains("v1.2-rc+1") && of("3.5 x").contains("3.5 x"),
        "what means nothing stays"
    );
}

#[test]
fn an_error_means_nothing_and_is_cut() {
    let refusal =
        |error: &str| RunFailure { command: vec!["run".into()], error: error.to_owned(), timing: timing() };
    let folder = tempfile::tempdir().expect("a folder");
    let written = |error: &str| {
        let place = xcheck::report::ReportDir::create(folder.path()).expect("it is made");
        place.refuse(&refusal(error)).expect("it is written");
        std::fs::read_to_string(folder.path().join("report.md")).expect("it is there")
    };
    assert_eq!(meaning(&written(HOSTILE)), Vec::<String>::new());
    assert!(written(&HOSTILE.repeat(2000)).len() < COMMENT);
}

#[test]
fn a_comment_has_room_for_everything_that_fails() {
    let many = report((0..500).map(|_| failing()));
    for report in [large(1), large(5), many] {
        let references = report.results.len();
        let text = markdown(&report);
        assert!(text.len() < 60_000, "{references}: {}", text.len());
        assert!(text.starts_with("# xcheck: FAIL\n"));
        // Where it starts is told of the first, whatever else there is.
        assert!(
            text.contains("**fail** at embed, pass 0") || text.contains("**fail** at v, layer 1"),
            "{text}"
        );
        assert!(text.contains("`report.json` and `report.html`"), "{}", &text[text.len() - 500..]);
        assert_eq!(text.matches("<details>").count(), text.matches("</details>").count());
    }
}

#[test]
fn what_is_left_out_is_said_and_nothing_is_where_there_is_room() {
    let small = markdown(&report([passing(), failing()]));
    assert!(!small.contains("Omitted here") && !small.contains("more, in"));
    let text = markdown(&report((0..60).map(|_| failing())));
    let told = text.lines().rev().find(|line| line.starts_with("Omitted here")).expect("it is said");
    let count = |what: &str| -> usize {
        let before = told.split(&format!("{what} ")).nth(1).expect("it is said of it");
        before.split(' ').next().expect("a number").parse().expect("a number")
    };
    assert_eq!(text.matches("\n## ").count() + count("the findings of"), 60);
    assert_eq!(text.matches("<summary>What").count() + count("the details of"), 60);
}

#[test]
fn the_map_shows_where_it_fails_and_is_in_no_page_of_a_pass() {
    let text = markdown(&report([failing()]));
    let map = text.split("```text\n").nth(1).expect("there is a map").split("```").next().expect("it ends");
    let line = |tap: &str| {
        map.lines().find(|line| line.split(' ').next() == Some(tap)).expect("it has a line").to_owned()
    };
    assert_eq!(line("layer").split_whitespace().collect::<Vec<_>>(), ["layer", "0"]);
    assert!(line("v").ends_with(".x") && line("q").ends_with(".."), "{map}");
    assert!(!markdown(&report([passing()])).contains("```text"));
    assert!(html(&report([failing()])).len() > text.len());
}
