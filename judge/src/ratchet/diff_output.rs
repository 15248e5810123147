//! Output of `xcheck diff`: terminal table, Markdown for a pull request, JSON.

use serde_json::{Value, json as object};

use crate::ratchet::blocks::SiteBlock;
use crate::ratchet::diff::{Change, Class, Diff};
use crate::report::text::clean;
use crate::verdict::Verdict;

/// Sites of one tap with the same change.
struct DiffLine<'d> {
    first: &'d Change,
    places: String,
    count: usize,
}

/// Returns the changes of a class, in order, with similar changes merged into one line.
fn lines(diff: &Diff, class: Class) -> Vec<DiffLine<'_>> {
    let mut groups: Vec<Vec<&Change>> = Vec::new();
    for change in diff.changes.iter().filter(|change| change.class == class) {
        let is_alike = |other: &Change| {
            let key = |change: &Change| {
                let said = ["verdict", "coverage", "bits", "cause"]
                    .contains(&change.what)
                    .then(|| change.said.clone());
                (change.dump.clone(), change.site.map(|site| site.point), change.what, said)
            };
            key(other) == key(change)
        };
        match groups.iter_mut().find(|group| is_alike(group[0])) {
            Some(group) => group.push(change),
            None => groups.push(vec![change]),
        }
    }
    groups.iter().map(|group| line(group)).collect()
}

fn line<'d>(group: &[&'d Change]) -> DiffLine<'d> {
    let sites = group.iter().filter_map(|change| change.site);
    let places: Vec<String> = SiteBlock::of(sites).iter().map(SiteBlock::to_string).collect();
    let places = if places.is_empty() { "the whole comparison".to_owned() } else { places.join("; ") };
    DiffLine { first: group[0], places, count: group.len() }
}

impl DiffLine<'_> {
    /// Returns the change as text, such as "pass → fail". If several sites have different figures, returns those of the
    /// first.
    fn said(&self) -> String {
        let said = match &self.first.said {
            [then, now] if self.first.what == "check" => {
                let word =
                    |said: &String| if said.is_empty() { "not asked".to_owned() } else { said.clone() };
                format!("{} → {}", word(then), word(now))
            }
            [then, now] if then.is_empty() => format!("not compared before, {now}"),
            [then, now] if now.is_empty() => format!("{then}, not compared now"),
            [then, now] => format!("{then} → {now}"),
        };
        let first =
            if self.count > 1 && ["size", "bound_ratio"].contains(&self.first.what) { "first: " } else { "" };
        format!("{}: {first}{said}", self.first.what)
    }

    fn reason(&self) -> String {
        let more = self.count - 1;
        let told = self.first.reason.iter().map(|reason| clean(reason)).collect::<String>();
        let more = if more > 0 && !told.is_empty() { format!(" (and {more} more)") } else { String::new() };
        told + &more
    }
}

const CLASSES: [Class; 4] = [Class::Worse, Class::Better, Class::New, Class::Changed];

/// Returns the summary line, such as "1 worse, 0 better, 3 new, 2 changed, of 411 values in both reports".
fn counts(diff: &Diff) -> String {
    let count = |class| diff.changes.iter().filter(|change| change.class == class).count();
    let told: Vec<String> =
        CLASSES.iter().map(|&class| format!("{} {}", count(class), class.name())).collect();
    format!("{}, of {} values in both reports", told.join(", "), diff.compared)
}

fn word(diff: &Diff) -> &'static str {
    match diff.verdict() {
        Verdict::Fail => "worse",
        Verdict::Inconclusive => "nothing could be compared",
        _ => "no worse",
    }
}

/// Returns the text for a terminal of 80 columns.
pub fn table(diff: &Diff) -> String {
    let mut told: Vec<String> = Vec::new();
    let wrapped = |head: &str, text: &str| -> Vec<String> {
        let options = textwrap::Options::new(80).initial_indent(head).subsequent_indent("            ");
        textwrap::wrap(text, options.word_splitter(textwrap::WordSplitter::NoHyphenation))
            .into_iter()
            .map(Into::into)
            .collect()
    };
    for class in CLASSES {
        for line in lines(diff, class) {
            let head = format!("{:<8}", class.name());
            let dump = clean(&line.first.dump);
            told.extend(wrapped(&head, &format!("{dump}: {}: {}", line.places, clean(&line.said()))));
            if !line.reason().is_empty() {
                told.extend(wrapped("          ", &line.reason()));
            }
        }
    }
    told.extend(diff.notes.iter().flat_map(|note| wrapped("note    ", &clean(note))));
    let [(_, then), (_, now)] = &diff.of;
    let end = format!("{} (verdict {then} → {now})", counts(diff));
    told.extend(wrapped(&format!("{}: ", word(diff)), &end));
    told.join("\n")
}

/// Returns the Markdown for a comment on a pull request.
pub fn markdown(diff: &Diff) -> String {
    let escape = |text: &str| -> String {
        clean(text)
            .chars()
            .flat_map(|c| [r"\`*[]<>|".contains(c).then_some('\\'), Some(c)])
            .flatten()
            .collect()
    };
    let [(_, then), (_, now)] = &diff.of;
    let mut text = format!("# xcheck diff: {}\n\n{}; verdict {then} → {now}\n", word(diff), counts(diff));
    let rows: Vec<String> = CLASSES
        .iter()
        .flat_map(|&class| lines(diff, class))
        .map(|line| {
            let cells =
                [line.first.class.name(), &line.first.dump, &line.places, &line.said(), &line.reason()]
                    .map(escape);
            format!("| {} |\n", cells.join(" | "))
        })
        .collect();
    if !rows.is_empty() {
        text += &format!("\n| | dump | place | change | why |\n|---|---|---|---|---|\n{}", rows.concat());
    }
    diff.notes.iter().for_each(|note| text += &format!("\nNote: {}\n", escape(note)));
    text
}

/// Returns the JSON for other programs. docs/how-to/gates.md describes the fields.
pub fn json(diff: &Diff) -> String {
    let side = |(told, verdict): &([String; 2], Verdict)| object!({"xcheck": told[0], "command": told[1], "verdict": verdict.name()});
    let change = |change: &Change| {
        let Change { class, what, dump, site, said: [before, now], reason } = change;
        let said = |text: &String| if text.is_empty() { Value::Null } else { text.clone().into() };
        object!({
            "class": class.name(), "what": what, "reference": dump,
            "tap": site.map(|site| site.point), "layer": site.and_then(|site| site.layer),
            "pass": site.and_then(|site| site.pass),
            "before": said(before), "now": said(now), "reason": reason,
        })
    };
    let changes: Vec<Value> = diff.changes.iter().map(change).collect();
    let file = object!({
        "schema": "xcheck-diff", "version": 2, "verdict": diff.verdict().name(),
        "old": side(&diff.of[0]), "new": side(&diff.of[1]),
        "compared": diff.compared, "changes": changes, "notes": diff.notes,
    });
    serde_json::to_string_pretty(&file).expect("every key is a string")
}
