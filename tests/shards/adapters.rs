//! What contrib/ gives schedulers, run by a scheduler that is none: a loop which sets the variables.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::terminal::Terminal;

const SHARDS: usize = 4;
const RUN: [&str; 5] = ["run", "--model", "tiny-llama3", "--reference", "transformers-f32"];

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(contrib(name)).expect("it is there")
}

/// A shell in which `xcheck` is the one that was built.
fn shell(terminal: &Terminal, script: &str, variables: &[(&str, &str)]) -> Output {
    let binary = assert_cmd::cargo::cargo_bin("xcheck");
    let folder = binary.parent().expect("it lies in a folder").display().to_string();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.current_dir(terminal.path()).args(["-c", script]).env("PATH", path);
    command.envs(variables.iter().copied()).output().expect("bash starts")
}

/// The reports of all jobs are those of one run.
fn assert_is_the_whole(terminal: &Terminal, reports: &str) {
    let merged = shell(terminal, &format!("xcheck merge {reports}/* --report all"), &[]);
    assert!(merged.status.success(), "{merged:?}");
    let whole = terminal.run(&[&RUN[..], &["--introduced", "--report", "whole"]].concat());
    assert_eq!(whole.code, 0);
    let told = |folder: &str| {
        let text =
            std::fs::read_to_string(terminal.path().join(folder).join("report.json")).expect("it is there");
        let mut report: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        report.as_object_mut().expect("an object").remove("command");
        report.to_string()
    };
    assert_eq!(told("all"), told("whole"));
}

#[test]
fn slurm() {
    let terminal = Terminal::new();
    let options = shell(
        &terminal,
        &format!(
            "xcheck plan --model tiny-llama3 --reference transformers-f32 --shards {SHARDS} --format slurm"
        ),
        &[],
    );
    let options = String::from_utf8(options.stdout).expect("it is text");
    assert_eq!(options.trim(), format!("--array=0-{} --export=ALL,XCHECK_SHARDS={SHARDS}", SHARDS - 1));
    let script = format!("{} {}", contrib("slurm.sh").display(), RUN.join(" "));
    for task in 0..SHARDS {
        let (task, count, last) = (task.to_string(), SHARDS.to_string(), (SHARDS - 1).to_string());
        let variables = [
            ("SLURM_ARRAY_TASK_ID", task.as_str()),
            ("SLURM_ARRAY_TASK_COUNT", &count),
            ("SLURM_ARRAY_TASK_MIN", "0"),
            ("SLURM_ARRAY_TASK_MAX", &last),
            ("XCHECK_SHARDS", &count),
            ("XCHECK_REPORTS", "reports/shards"),
        ];
        let done = shell(&terminal, &script, &variables);
        assert!(done.status.success(), "{done:?}");
    }
    assert_is_the_whole(&terminal, "reports/shards");
    // An error is none of the verdicts: the task fails, and is run again.
    let failed = shell(
        &terminal,
        &script.replace("tiny-llama3", "no-such-model"),
        &[("SLURM_ARRAY_TASK_ID", "0"), ("XCHECK_SHARDS", "1")],
    );
    assert_eq!(failed.status.code(), Some(2));
}

#[test]
fn kubernetes() {
    let yaml = text("k8s-indexed-job.yaml");
    let script: Vec<&str> = yaml
        .lines()
        .skip_while(|line| line.trim() != "- |")
        .skip(1)
        .take_while(|line| line.starts_with("              "))
        .map(str::trim)
        .collect();
    assert_eq!(script.len(), 3, "{script:?}");
    let completions =
        yaml.lines().find_map(|line| line.trim().strip_prefix("completions: ")).expect("they are told");
    assert!(
        yaml.contains(&format!("name: XCHECK_SHARDS, value: \"{completions}\"")),
        "the two numbers are the same"
    );
    let terminal = Terminal::new();
    for index in 0..SHARDS {
        let (index, count) = (index.to_string(), SHARDS.to_string());
        let variables = [
            ("JOB_COMPLETION_INDEX", index.as_str()),
            ("XCHECK_SHARDS", &count),
            ("MODEL", "tiny-llama3"),
            ("DUMP", "transformers-f32"),
            ("REPORTS", "reports"),
        ];
        let done = shell(&terminal, &script.join("\n"), &variables);
        assert!(done.status.success(), "{done:?}");
    }
    assert_is_the_whole(&terminal, "reports");
}

#[test]
fn github_actions() {
    let workflow = text("github-actions.yml");
    let runs: Vec<&str> = workflow
        .lines()
        .filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("run: "))
        .collect();
    let [plan, shard, merge] = runs[..] else { panic!("three commands: {runs:?}") };
    let terminal = Terminal::new();
    let variables = [("MODEL", "tiny-llama3"), ("DUMP", "transformers-f32"), ("GITHUB_OUTPUT", "output")];
    assert!(shell(&terminal, &plan.replace("5m", "500kB"), &variables).status.success());
    let output = std::fs::read_to_string(terminal.path().join("output")).expect("the plan has an output");
    let matrix = output.trim().strip_prefix("matrix=").expect("it is the matrix");
    let matrix: serde_json::Value = serde_json::from_str(matrix).expect("it is JSON");
    let jobs = matrix["include"].as_array().expect("a list of jobs");
    assert!(jobs.len() > 1, "{matrix}");
    for job in jobs {
        let told = |field: &str| job[field].to_string().trim_matches('"').to_owned();
        let command = shard
            .replace("${{ matrix.shard }}", &told("shard"))
            .replace("${{ matrix.index }}", &told("index"));
        let done = shell(&terminal, &command, &variables);
        assert!(done.status.success(), "{done:?}");
    }
    assert!(shell(&terminal, merge, &variables).status.success());
    assert_is_the_whole(&terminal, "reports");
}
