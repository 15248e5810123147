//! `--baseline` and `xcheck diff` as a CI job uses them.

use std::fs;

use serde_json::Value;

use crate::common::terminal::Terminal;

const RUN: [&str; 5] = ["run", "--model", "tiny-llama2", "--reference", "llama.cpp-q8_0"];
/// Decoded weights, which is not what the reference computes: it fails.
const WRONG: [&str; 2] = ["--numerics", "f32"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let narrow: [&str; 4] = ["--layer", "0", "--pass", "0"];
    [&RUN[..], &narrow, more].concat()
}

/// In one line.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_team_writes_a_baseline_reviews_it_and_is_held_to_it() {
    let terminal = Terminal::new();
    let file = terminal.path().join("gate.toml");
    let gate = ["--baseline", "gate.toml"];
    terminal.assert_refused(&with(&gate), "gate.toml");
    let wrong = with(&[&WRONG[..], &gate, &["--report", "r"]].concat());
    let first = terminal.run(&[&wrong[..], &["--update-baseline"]].concat());
    assert_eq!(first.code, 1, "nobody has said why: {}", first.stdout);
    let text = fs::read_to_string(&file).expect("it was written");
    assert!(text.contains("reason = \"TODO\""), "{text}");
    assert_eq!(terminal.run(&wrong).code, 1);
    let reviewed =
        text.replace("\"TODO\"", "\"weights are decoded\"").replace("link = \"\"", "link = \"bugs/7\"");
    let today =
        reviewed.lines().find(|line| line.starts_with("expires")).expect("there is a date").to_owned();
    fs::write(&file, reviewed.replace(&today, "expires = 2999-12-31")).expect("it can be written");
    let known = terminal.run(&wrong);
    assert_eq!(known.code, 0, "{}", known.stdout);
    assert!(
        unwrapped(&known.stdout).contains("weights are decoded (bugs/7, until 2999-12-31)"),
        "{}",
        known.stdout
    );
    let report = fs::read_to_string(terminal.path().join("r/report.json")).expect("it was written");
    let report: Value = serde_json::from_str(&report).expect("it is JSON");
    let rows = report["references"][0]["results"].as_array().expect("rows");
    assert!(
        rows.iter().any(|row| row["verdict"] == "known" && row["known"]["reason"] == "weights are decoded")
    );
    fs::write(&file, reviewed.replace(&today, "expires = 2020-12-31")).expect("it can be written");
    let expired = terminal.run(&wrong);
    assert_eq!(expired.code, 1);
    assert!(unwrapped(&expired.stdout).contains("expired on 2020-12-31"), "{}", expired.stdout);
    let right = terminal.run(&with(&gate));
    assert_eq!(right.code, 0, "{}", right.stdout);
    assert!(unwrapped(&right.stdout).contains("stale baseline entry"), "{}", right.stdout);
}

#[test]
fn what_is_wrong_with_a_baseline_is_in_the_report_too() {
    let terminal = Terminal::new();
    fs::write(terminal.path().join("gate.toml"), "").expect("it can be written");
    terminal.assert_refused(&with(&["--baseline", "gate.toml", "--report", "r"]), "the file is empty");
    let report = fs::read_to_string(terminal.path().join("r/report.json")).expect("it was written");
    assert!(report.contains("the file is empty"), "{report}");
    terminal.assert_refused(&with(&["--update-baseline"]), "--baseline");
    terminal
        .assert_refused(&with(&["--baseline", "gate.toml", "--shard", "1/2"]), "use it with xcheck merge");
}

#[test]
fn reports_of_two_commits_are_held_against_each_other() {
    let terminal = Terminal::new();
    let at = |folder: &'static str| ["--report", folder];
    terminal.run(&with(&at("good")));
    terminal.run(&with(&[&WRONG[..], &at("bad")].concat()));
    let same = terminal.run(&["diff", "good", "good/report.json"]);
    assert_eq!(same.code, 0, "{}", same.stdout);
    let worse = terminal.run(&["diff", "good", "bad"]);
    assert_eq!(worse.code, 1, "{}", worse.stdout);
    assert!(worse.stdout.contains("pass → fail"), "{}", worse.stdout);
    assert!(worse.stdout.lines().all(|line| line.chars().count() <= 80), "{}", worse.stdout);
    let (code, json) = terminal.json(&["diff", "bad", "good"]);
    assert_eq!((code, &json["schema"], &json["verdict"]), (0, &"xcheck-diff".into(), &"pass".into()));
    assert!(json["changes"].as_array().expect("changes").iter().all(|change| change["class"] != "worse"));
    let markdown = terminal.run(&["diff", "good", "bad", "--format", "markdown"]);
    assert!(markdown.stdout.starts_with("# xcheck diff: worse\n"), "{}", markdown.stdout);
}

#[test]
fn a_report_of_another_build_is_read_and_one_of_another_schema_is_not() {
    let terminal = Terminal::new();
    terminal.run(&with(&["--report", "new"]));
    let path = terminal.path().join("new/report.json");
    let text = fs::read_to_string(path).expect("it was written");
    let old = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut report: Value = serde_json::from_str(&text).expect("it is JSON");
        change(&mut report);
        fs::write(terminal.path().join(name), report.to_string()).expect("it can be written");
    };
    old("older.json", &|report| {
        report["xcheck"]["version"] = "0.0.9".into();
        // Fields that were added since, and one that is not known.
        for row in report["references"][0]["results"].as_array_mut().expect("rows") {
            let row = row.as_object_mut().expect("a row");
            ["known", "spread", "noise_floor"].iter().for_each(|field| drop(row.remove(*field)));
            row.insert("colour".to_owned(), "blue".into());
        }
    });
    let finished = terminal.run(&["diff", "older.json", "new"]);
    assert_eq!(finished.code, 0, "{}{}", finished.stdout, finished.stderr);
    old("unjudged.json", &|report| {
        report["references"][0]["results"][0].as_object_mut().expect("a row").remove("judged");
    });
    terminal.assert_refused(&["diff", "unjudged.json", "new"], "missing field `judged`");
    old("stated.json", &|report| report["verdict"] = "fail".into());
    terminal.assert_refused(&["diff", "stated.json", "new"], "stated as fail, but the results give pass");
    old("schema.json", &|report| report["version"] = 2.into());
    terminal.assert_refused(&["diff", "schema.json", "new"], "version 2, expected xcheck-report 3");
    old("error.json", &|report| (report["verdict"], report["error"]) = ("error".into(), "no model".into()));
    terminal.assert_refused(&["diff", "error.json", "new"], "the run ended without a verdict: no model");
    terminal.assert_refused(&["diff", "nothing.json", "new"], "nothing.json");
    fs::write(terminal.path().join("text.json"), "{").expect("it can be written");
    terminal.assert_refused(&["diff", "text.json", "new"], "text.json");
}
