//! Shards as a person or a scheduler runs them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::terminal::Terminal;

const RUN: [&str; 5] = ["run", "--model", "tiny-llama3", "--reference", "transformers-f32"];

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("it is JSON")
}

/// Returns a report as text, without its command. Shards do not run the model again to confirm causes, so the results
/// and commands of such runs are removed, too.
fn told(path: &Path) -> String {
    let mut report = read(path);
    report.as_object_mut().expect("an object").remove("command");
    for result in report["references"].as_array_mut().expect("a list") {
        result.as_object_mut().expect("an object").remove("sentence").expect("it is there");
        for finding in result["findings"].as_array_mut().expect("a list") {
            let finding = finding.as_object_mut().expect("an object");
            ["confirmed", "confirm"].iter().for_each(|key| drop(finding.remove(*key).expect("it is there")));
        }
    }
    report.to_string()
}

/// For each dump with a cause: true if the sentence says that no run has confirmed it, and the verdict of that run.
fn confirmed(path: &Path) -> Vec<(bool, Option<String>)> {
    let report = read(path);
    let results = report["references"].as_array().expect("a list").iter();
    let with_cause = results.filter(|result| result["findings"][0]["supposed"].is_string());
    let told = with_cause.map(|result| {
        let sentence = result["sentence"].as_str().expect("a sentence");
        let verdict = result["findings"][0]["confirmed"].as_str();
        (sentence.contains("has not been confirmed by a run"), verdict.map(str::to_owned))
    });
    told.collect()
}

/// All shards of a command, put together; against the whole of it.
fn assert_shards_are_the_whole(asked: &[&str], mode: &[&str], code: i32) {
    let terminal = Terminal::new();
    let whole = terminal.run(&[asked, mode, &["--report", "whole"]].concat());
    assert_eq!(whole.code, code, "{}{}", whole.stdout, whole.stderr);
    for of in [1, 3] {
        let folders: Vec<String> = (1..=of).map(|index| format!("s{of}/{index}")).collect();
        for (index, folder) in folders.iter().enumerate() {
            let shard = format!("{}/{of}", index + 1);
            let finished = terminal.run(&[asked, mode, &["--shard", &shard, "--report", folder]].concat());
            assert_ne!(finished.code, 2, "{shard}: {}", finished.stderr);
        }
        let into = format!("merged{of}");
        let mut merge = vec!["merge"];
        merge.extend(folders.iter().map(String::as_str));
        merge.extend(["--report", &into]);
        let merged = terminal.run(&merge);
        assert_eq!(merged.code, code, "{}{}", merged.stdout, merged.stderr);
        let path = |folder: &str| terminal.path().join(folder).join("report.json");
        assert_eq!(told(&path(&into)), told(&path("whole")), "{asked:?} in {of}");
        let (of_parts, of_whole) = (confirmed(&path(&into)), confirmed(&path("whole")));
        assert!(
            of_whole.len() == code as usize
                && of_whole.iter().all(|(is_guess, verdict)| !is_guess && verdict.is_some())
        );
        assert!(
            of_parts.len() == code as usize
                && of_parts.iter().all(|(is_guess, verdict)| *is_guess && verdict.is_none())
        );
    }
}

#[test]
fn the_shards_of_a_run_are_the_run() {
    assert_shards_are_the_whole(&RUN, &["--introduced"], 0);
    assert_shards_are_the_whole(&RUN, &["--from-reference"], 0);
}

#[test]
fn the_shards_of_a_wrong_engine_are_its_check_or_its_audit() {
    let dump = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/engines/tiny-llama3/mlx-lm-f32.safetensors");
    let check = ["check", "--model", "tiny-llama3", "--candidate", dump];
    assert_shards_are_the_whole(&check, &["--introduced"], 1);
    // Two causes, one of them in the layers with a sliding window alone.
    let terminal = Terminal::new();
    let dump = terminal.path().join("wrong.safetensors").display().to_string();
    let wrong = ["--suppose", "mask_window=6", "--suppose", "activation=silu"];
    let tokens = "1,393,395,260,394,486,263,305,315,17,200,77";
    let made = ["dump", "--model", "tiny-gemma3", "--tokens", tokens, "--out", &dump];
    assert_eq!(terminal.run(&[&made[..], &wrong].concat()).code, 0);
    assert_shards_are_the_whole(&["audit", &dump, "--model", "tiny-gemma3"], &[], 1);
}

/// Which numerics explain a dump best shows in the whole alone.
#[test]
fn a_dump_that_does_not_say_how_it_was_computed_is_refused_with_what_to_say() {
    let dump =
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/engines/tiny-llama2/candle-gguf-q8_0.safetensors");
    let terminal = Terminal::new();
    let check = ["check", "--model", "tiny-llama2", "--candidate", dump, "--shard", "1/2"];
    terminal.assert_refused(&check, "give --numerics f32 or --numerics llama.cpp");
    let stated = ["--numerics", "llama.cpp", "--no-causes"];
    assert_ne!(terminal.run(&[&check[..], &stated].concat()).code, 2);
}

/// What a shard is asked alone, and what it cannot be.
#[test]
fn what_a_part_cannot_judge_is_refused() {
    let terminal = Terminal::new();
    let with = |more: &[&'static str]| [&RUN[..], more].concat();
    terminal.assert_refused(
        &with(&["--shard", "1/2", "--total"]),
        "accumulated errors need a run of the whole model",
    );
    terminal.assert_refused(&["run", "--model", "tiny-llama3", "--shard", "1/2"], "expected a single dump");
    terminal.assert_refused(&with(&["--shard", "auto"]), "no scheduler found");
    for wrong in ["0/2", "3/2", "half"] {
        let finished = terminal.run(&with(&["--shard", wrong]));
        assert_eq!(finished.code, 2);
        assert!(finished.stderr.contains("counted from 1"), "{}", finished.stderr);
    }
    assert_eq!(terminal.run(&with(&["--resume"])).code, 2);
}

#[test]
fn a_merge_without_a_unit_is_inconclusive_and_says_which() {
    let terminal = Terminal::new();
    for shard in ["1/3", "3/3"] {
        let report = format!("s{}", &shard[..1]);
        assert_eq!(terminal.run(&[&RUN[..], &["--shard", shard, "--report", &report]].concat()).code, 0);
    }
    // A shard that was stopped before anything was finished, and one that ended with an error.
    std::fs::create_dir(terminal.path().join("s2")).expect("a folder");
    let failed = terminal.run(&[
        "run",
        "--model",
        "no-such-model",
        "--reference",
        "x",
        "--shard",
        "2/3",
        "--report",
        "s4",
    ]);
    assert_eq!(failed.code, 2);
    let merged = terminal.run(&["merge", "s1", "s2", "s3", "s4", "--report", "all"]);
    assert_eq!(merged.code, 3, "{}{}", merged.stdout, merged.stderr);
    for part in ["unit 3 (layer 1): not examined", "s2: the run ended without a verdict", "no-such-model"] {
        assert!(merged.stdout.replace("\n              ", " ").contains(part), "{part}: {}", merged.stdout);
    }
    terminal.assert_refused(&["merge", "s1", "no-such-folder", "--report", "all"], "no-such-folder");
}

/// Units that an earlier run has finished are not judged again: what was found of them stands, whatever it is.
#[test]
fn a_shard_goes_on_from_what_was_finished() {
    let terminal = Terminal::new();
    let first = [&RUN[..], &["--shard", "1/2", "--report", "a"]].concat();
    assert_eq!(terminal.run(&first).code, 0);
    let file = terminal.path().join("a/finished.json");
    let mut kept: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("it is kept")).expect("it is JSON");
    kept["references"][0]["results"][0]["accumulated"] = kept["references"][0]["results"][0]["local"].clone();
    kept["references"][0]["results"][0]["reason"] = "as it was found before".into();
    std::fs::write(&file, kept.to_string()).expect("it can be written");
    // All of it, after a part of it: the rest is judged, and what was known is taken.
    let all = [&RUN[..], &["--shard", "1/1", "--report", "a"]].concat();
    assert_eq!(terminal.run(&[&all[..], &["--resume"]].concat()).code, 0);
    let report = told(&terminal.path().join("a/report.json"));
    assert!(report.contains("as it was found before"), "it was judged again");
    // Of another comparison it is nothing; nor is it without --resume.
    let other = [&all[..], &["--resume", "--gate", "tolerance"]].concat();
    assert_eq!(terminal.run(&other).code, 0);
    assert!(!told(&terminal.path().join("a/report.json")).contains("as it was found before"));
    std::fs::write(&file, kept.to_string()).expect("it can be written");
    assert_eq!(terminal.run(&all).code, 0);
    assert!(!told(&terminal.path().join("a/report.json")).contains("as it was found before"));
}

/// Killed at any time, a shard leaves nothing that looks like a verdict, and what is finished is not lost.
#[test]
fn a_shard_that_is_killed_is_finished_by_the_next() {
    let terminal = Terminal::new();
    assert_eq!(terminal.run(&[&RUN[..], &["--shard", "1/1", "--report", "whole"]].concat()).code, 0);
    let whole = told(&terminal.path().join("whole/report.json"));
    let arguments = [&RUN[..], &["--shard", "1/1", "--resume", "--report", "killed"]].concat();
    let folder = terminal.path().join("killed");
    for milliseconds in [1, 5, 10, 20, 30, 40, 60, 80, 120, 200] {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin("xcheck"))
            .current_dir(terminal.path())
            .args(&arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.kill().expect("it can be killed");
        let ended = child.wait().expect("it ends");
        let report = folder.join("report.json");
        assert!(!report.exists() || ended.success() || told(&report) == whole, "{milliseconds} ms");
        let finished = folder.join("finished.json");
        if finished.exists() {
            let text = std::fs::read_to_string(&finished).expect("it can be read");
            assert!(xcheck::report::parse(&text).is_ok(), "{milliseconds} ms: it is whole");
        }
    }
    assert_eq!(terminal.run(&arguments).code, 0);
    assert_eq!(told(&folder.join("report.json")), whole);
}

#[test]
fn a_plan_is_told_for_schedulers() {
    let terminal = Terminal::new();
    let plan = |more: &[&'static str]| {
        let asked = ["plan", "--model", "tiny-llama3", "--reference", "transformers-f32"];
        let finished = terminal.run(&[&asked[..], more].concat());
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        finished.stdout
    };
    let lines = |text: String| -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    };
    let units = lines(plan(&[]));
    assert_eq!(units.len(), 5);
    assert_eq!((&units[2]["part"], &units[2]["layers"]), (&"layer 1".into(), &serde_json::json!([1, 1])));
    let shards = lines(plan(&["--per-shard", "500kB"]));
    let bytes =
        |entry: &Value| entry["weights_bytes"].as_u64().zip(entry["dump_bytes"].as_u64()).map(|(a, b)| a + b);
    assert!(shards.len() > 1 && shards.iter().all(|shard| bytes(shard) <= Some(500_000)), "{shards:?}");
    assert_eq!(
        plan(&["--shards", "16", "--format", "slurm"]).trim(),
        "--array=0-15 --export=ALL,XCHECK_SHARDS=16"
    );
    let matrix: Value =
        serde_json::from_str(&plan(&["--shards", "3", "--format", "github"])).expect("it is JSON");
    assert_eq!(matrix["include"][2]["shard"], "3/3");
    let many =
        ["plan", "--model", "tiny-llama3", "-r", "transformers-f32", "--shards", "257", "--format", "github"];
    terminal.assert_refused(&many, "exceed the limit of 256 jobs");
}

/// The place of a report is emptied before anything is read: what was found would be gone.
#[test]
fn a_merged_report_does_not_go_where_a_part_lies() {
    let terminal = Terminal::new();
    for shard in ["1/2", "2/2"] {
        let folder = format!("s{}", &shard[..1]);
        let shard = ["--introduced", "--shard", shard, "--report", &folder];
        assert_ne!(terminal.run(&[&RUN[..], &shard].concat()).code, 2);
    }
    terminal.assert_refused(
        &["merge", "s1", "s2", "--report", "./s1"],
        "the merged report would overwrite this input",
    );
    terminal.assert_refused(
        &["merge", "s1/report.json", "s2", "--report", "s1"],
        "the merged report would overwrite this input",
    );
    assert_eq!(terminal.run(&["merge", "s1", "s2", "--report", "whole"]).code, 0);
}
