//! `--suppose`, as a person types it.

use xcheck::checkpoint::Point;

use crate::common::terminal::Terminal;
use crate::judge::clay::Clay;

const PROMPT: [&str; 6] = ["--model", "tiny-llama3", "--tokens", "1,9,17,200,77,301", "--decode", "1"];

/// A terminal where `d` is the dump of an engine with mistakes, joined by " and ".
fn dumped(supposed: &str) -> Terminal {
    let terminal = Terminal::new();
    let changes: Vec<&str> = supposed.split(" and ").flat_map(|change| ["--suppose", change]).collect();
    let told = terminal.run(&[&["dump", "--out", "d"], &changes[..], &PROMPT[..]].concat());
    assert_eq!(told.code, 0, "{}", told.stderr);
    terminal
}

#[test]
fn a_dump_of_a_supposed_mistake_is_told_by_its_name() {
    let terminal = dumped("rope_theta=10000");
    let check = ["check", "--model", "tiny-llama3", "--candidate", "d", "--no-report"];
    let finished = terminal.run(&check);
    assert_eq!(finished.code, 1, "{}", finished.stderr);
    let told = "cause     rope_theta: the candidate computes with 10000, the model says";
    assert!(finished.stdout.contains(told), "{}", finished.stdout);
    // Supposed of our engine, too, the two are one.
    let supposed = terminal.run(&[&check[..], &["--suppose", "rope_theta=10000"]].concat());
    assert_eq!(supposed.code, 0, "{}", supposed.stdout);
    assert!(supposed.stdout.contains("our engine computes with rope_theta=10000"), "{}", supposed.stdout);
    // In another layer than those that were asked for, it is not supposed.
    let elsewhere = [&check[..], &["--suppose", "rope_theta=20000", "--layer", "1"]].concat();
    assert_eq!(terminal.run(&elsewhere).code, 1);
}

#[test]
fn a_mistake_of_one_layer_is_confirmed_in_this_layer_alone() {
    for planted in
        ["weight_scale@ffn_out=0.77@layer-2", "norm_eps@attn_norm=0.01@layer-1", "rope_theta=10000@layer-0+2"]
    {
        let terminal = dumped(planted);
        let (code, report) =
            terminal.json(&["check", "--model", "tiny-llama3", "--candidate", "d", "--no-report"]);
        let finding = &report["references"][0]["findings"][0];
        assert_eq!((code, &finding["supposed"]), (1, &planted.into()), "{finding:#}");
        assert_eq!(finding["confirmed"], "pass", "{finding:#}");
    }
    let refused =
        ["check", "--model", "tiny-llama3", "--candidate", "d", "--suppose", "rope_theta=1e4@layer-x"];
    Terminal::new().assert_refused(&refused, "invalid layers 'x', expected e.g. @layer-2");
}

/// Who wants the verdict alone has it sooner.
#[test]
fn causes_are_not_looked_for_where_nobody_wants_them() {
    let terminal = dumped("rope_theta=10000");
    let check = ["check", "--model", "tiny-llama3", "--candidate", "d", "--no-report"];
    let (code, with) = terminal.json(&check);
    let (without_code, without) = terminal.json(&[&check[..], &["--no-causes"]].concat());
    assert_eq!((code, without_code), (1, 1));
    let [with, without] = [with, without].map(|report| report["references"][0].clone());
    assert_eq!(
        [&with["findings"], &without["findings"]].map(|found| found.as_array().map(Vec::len)),
        [Some(1), Some(0)]
    );
    assert_eq!(with["rows"], without["rows"]);
    let notes = without["notes"].as_array().expect("notes");
    let says_so = |note: &serde_json::Value| note == "causes were not searched: --no-causes";
    assert_eq!(notes.iter().filter(|note| says_so(note)).count(), 1, "{notes:?}");
    assert!(!with["notes"].as_array().expect("notes").iter().any(says_so));
    // What is known of a failure is its cause, too.
    let gated = [&check[..], &["--no-causes", "--baseline", "known.toml"]].concat();
    terminal.assert_refused(&gated, "cannot be used with");
}

#[test]
fn a_search_that_its_limit_ends_says_so_and_claims_nothing() {
    let terminal = dumped("rope_theta=10000");
    for command in [&["check", "--candidate", "d"][..], &["audit", "d"]] {
        let command = [command, &["--model", "tiny-llama3", "--no-report"]].concat();
        let ended = [&command[..], &["--causes-limit", "0"]].concat();
        let told = terminal.run(&ended).stdout;
        assert_eq!(terminal.run_with(&command, &[("XCHECK_CAUSES_LIMIT", "0")]).stdout, told);
        assert!(told.contains("The search for causes reached its") && !told.contains("nown cause"), "{told}");
        let (code, report) = terminal.json(&ended);
        let findings = report["references"][0]["findings"].as_array().expect("a list");
        let [finding] = findings.as_slice() else { panic!("one finding, not {findings:?}") };
        let what = "the search for causes ended after 0 s; --causes-limit none lifts the limit";
        assert_eq!((code, &finding["kind"], &finding["what"]), (1, &"unfinished".into(), &what.into()));
        let (code, report) = terminal.json(&[&command[..], &["--causes-limit", "none"]].concat());
        let finding = &report["references"][0]["findings"][0];
        assert_eq!((code, &finding["kind"]), (1, &"rope_theta".into()));
    }
    terminal.assert_refused(&["check", "--causes-limit=-1"], "expected a number of seconds, or none");
}

#[test]
fn one_layer_and_one_tap_can_be_supposed() {
    let terminal = dumped("norm_eps@ffn_norm=1e-3");
    let (_, report) = terminal.json(&["check", "--model", "tiny-llama3", "--candidate", "d", "--no-report"]);
    let finding = &report["references"][0]["findings"][0];
    assert_eq!((finding["kind"].as_str(), finding["candidate"].as_str()), (Some("norm_eps"), Some("0.001")));
    assert_eq!(
        (finding["key"].as_str(), finding["reference"].as_str()),
        (Some("rms_norm_eps"), Some("1e-5"))
    );
    assert_eq!(finding["taps"], serde_json::json!(["ffn_norm"]));
    assert_eq!(finding["layers"], serde_json::json!([0, 1, 2]));
    assert_eq!(finding["remaining"], serde_json::json!([]));
}

#[test]
fn what_cannot_be_supposed_is_refused_with_what_can() {
    let terminal = Terminal::new();
    let run = |supposed: &str| {
        let finished = terminal.run(&["run", "--model", "tiny-llama3", "--no-report", "--suppose", supposed]);
        assert_eq!(finished.code, 2, "{}", finished.stdout);
        finished.stderr
    };
    assert!(run("rope_tetha=1").contains("xcheck causes"));
    assert!(run("rope_theta").contains("rope_theta takes a value: rope_theta=10000"));
    assert!(run("rope_missing=1").contains("rope_missing takes no value"));
    assert!(run("norm_scope=all-heads").contains("no effect: "));
}

#[test]
fn the_causes_are_listed() {
    let finished = Terminal::new().run(&["causes"]);
    assert_eq!(finished.code, 0);
    for part in ["rope_theta", "--suppose norm_eps=1e-6", "dump_axes"] {
        assert!(finished.stdout.contains(part), "{part}: {}", finished.stdout);
    }
}

/// The sentence before the table: the cause, its extent, the command that confirms it with its verdict, and the page.
#[test]
fn the_first_lines_say_what_is_wrong_where_and_how_to_confirm_it() {
    let terminal = dumped("rope_theta=10000");
    let check = ["check", "--model", "tiny-llama3", "--candidate", "d"];
    let finished = terminal.run(&check);
    let first: Vec<&str> = finished.stdout.lines().take_while(|line| !line.is_empty()).collect();
    let head = first.join("\n");
    assert!(head.starts_with("FAIL  d computes with the wrong RoPE base."), "{head}");
    assert!(head.contains("rope_theta: the candidate computes with 10000, the model says 500000"), "{head}");
    assert!(head.contains("in all 3 layers, prompt and decode"), "{head}");
    let confirm =
        "confirm:  xcheck check --model tiny-llama3 --candidate d --suppose rope_theta=10000   (pass)";
    assert!(
        head.contains(confirm) && head.contains("report:   reports/check-tiny-llama3-d/report.html"),
        "{head}"
    );
    // A pass says how much was compared, and a dump of a right engine has no cause to confirm.
    let right = terminal.run(&["dump", "--out", "right", "--model", "tiny-llama3", "--tokens", "1,9,17"]);
    assert_eq!(right.code, 0, "{}", right.stderr);
    let passed = terminal.run(&["check", "--model", "tiny-llama3", "--candidate", "right"]).stdout;
    assert!(passed.starts_with("PASS  1 dump: ") && !passed.contains("confirm:"), "{passed}");
}

/// `report.json` has the command and the verdict of the first lines, for one cause, and for several that only together explain everything.
#[test]
fn the_report_has_the_command_that_confirms_the_causes_and_its_verdict() {
    for faults in ["rope_theta=10000", "rope_theta=10000 and attn_scale=0.2"] {
        let terminal = dumped(faults);
        let (found, sentence, stdout) = findings(&terminal, "d");
        assert_eq!(found.len(), faults.split(" and ").count(), "{found:#?}");
        assert!(found.iter().all(|finding| finding["confirmed"] == "pass"), "{found:#?}");
        assert!(sentence.contains("RoPE base"), "{sentence}");
        assert_eq!(
            sentence.contains(", and computes with the wrong attention scale."),
            found.len() == 2,
            "{sentence}"
        );
        for finding in &found {
            let confirm = finding["confirm"].as_str().expect("a command");
            assert!(stdout.contains(&format!("confirm:  {confirm}   (pass)\n")), "{stdout}");
            assert_eq!(run_again(&terminal, confirm), 0, "{confirm}");
        }
    }
}

/// Causes that together do not explain everything are not asserted.
#[test]
fn a_cause_beside_an_unknown_fault_is_refuted() {
    let terminal = dumped("rope_theta=10000");
    let path = terminal.path().join("d");
    let dump = xcheck::dump::Dump::open(&path).expect("a sound dump");
    let wrong =
        dump.sites().find(|site| site.point == Point::AttnOut && site.layer == Some(1)).expect("a site");
    let edited = terminal.path().join("e.safetensors");
    Clay::of(&dump)
        .edit(wrong, |values| values.iter_mut().step_by(3).for_each(|x| *x = x.sin() + 0.1))
        .save(&edited);
    let (found, sentence, stdout) = findings(&terminal, "e.safetensors");
    assert_eq!(
        (&found[0]["kind"], &found[0]["confirmed"]),
        (&"rope_theta".into(), &"fail".into()),
        "{found:#?}"
    );
    assert!(sentence.contains("explains only some of the failures"), "{sentence}");
    assert!(!stdout.contains("confirm:"), "{stdout}");
    assert_eq!(run_again(&terminal, found[0]["confirm"].as_str().expect("a command")), 1);
}

/// The findings on the dump, the sentence, and what the terminal shows.
fn findings(terminal: &Terminal, candidate: &str) -> (Vec<serde_json::Value>, String, String) {
    let finished =
        terminal.run(&["check", "--model", "tiny-llama3", "--candidate", candidate, "--report", "r"]);
    let report = std::fs::read_to_string(terminal.path().join("r/report.json")).expect("it is written");
    let report: serde_json::Value = serde_json::from_str(&report).expect("it is JSON");
    let reference = &report["references"][0];
    let found = reference["findings"].as_array().expect("a list").clone();
    (found, reference["sentence"].as_str().expect("a sentence").to_owned(), finished.stdout)
}

fn run_again(terminal: &Terminal, command: &str) -> i32 {
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    terminal.run(&words).code
}

#[test]
fn a_fault_of_some_passes_or_layers_alone_says_so() {
    let head = |supposed: &str| {
        let finished =
            dumped(supposed).run(&["check", "--model", "tiny-llama3", "--candidate", "d", "--no-report"]);
        let head = finished.stdout.split("\n\n").next().unwrap_or_default().to_owned();
        head.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let decode = head("cache_stale=past-lost");
    assert!(decode.contains("only while decoding"), "{decode}");
    let both = head("attn_scale=0.2");
    assert!(both.contains("prompt and decode") && !both.contains("only"), "{both}");
}
