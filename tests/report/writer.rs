//! A directory of reports is complete or empty.

use std::fs;
use std::path::Path;

use insta::assert_snapshot;
use serde_json::Value;
use tempfile::tempdir;
use xcheck::Error;
use xcheck::report::{Report, ReportDir, RunFailure, html, json, junit, markdown};

use super::fixture::{everything, passing, report, timing};

const NAMES: [&str; 4] = ["junit.xml", "report.html", "report.json", "report.md"];

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it exists");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("it is readable").file_name();
    let mut names: Vec<String> = entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_report_is_four_files() {
    let parent = tempdir().unwrap();
    let directory = parent.path().join("a/b");
    ReportDir::create(&directory).unwrap().write(&everything()).unwrap();
    assert_eq!(names(&directory), NAMES);
    let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
    assert_eq!(read("report.json"), json(&everything()));
    assert_eq!(read("report.md"), markdown(&everything()));
    assert_eq!(read("report.html"), html(&everything()));
    assert_eq!(read("junit.xml"), junit(&everything()));
}

#[test]
fn a_run_that_breaks_off_leaves_no_report_not_even_an_old_one() {
    let directory = tempdir().unwrap();
    ReportDir::create(directory.path()).unwrap().write(&everything()).unwrap();
    let started = ReportDir::create(directory.path()).unwrap();
    assert!(NAMES.iter().all(|name| !directory.path().join(name).exists()));
    drop(started);
    assert!(names(directory.path()).is_empty());
}

fn refusal() -> RunFailure {
    let command = ["run", "--model", "mine.gguf"].map(String::from).to_vec();
    let error = "mine.gguf: <truncated>: at byte 8".to_owned();
    RunFailure { command, error, timing: timing() }
}

#[test]
fn an_error_is_in_every_file() {
    let directory = tempdir().unwrap();
    ReportDir::create(directory.path()).unwrap().refuse(&refusal()).unwrap();
    assert_eq!(names(directory.path()), NAMES);
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let report: Value = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!((&report["verdict"], &report["error"]), (&"error".into(), &refusal().error.into()));
    assert_eq!(report["references"], Value::Array(Vec::new()));
    assert_snapshot!(read("junit.xml") + "\n" + &read("report.md"));
}

fn named(model: &str) -> Report {
    let mut report = report([passing()]);
    report.results[0].model.name = model.to_owned();
    report
}

#[test]
fn files_of_two_runs_at_the_same_time_are_never_mixed() {
    let directory = tempdir().unwrap();
    let write = |model: &str| ReportDir::create(directory.path()).unwrap().write(&named(model)).unwrap();
    for _ in 0..60 {
        std::thread::scope(|scope| {
            scope.spawn(|| write("first-run"));
            scope.spawn(|| write("second-run"));
        });
        let texts = NAMES.map(|name| fs::read_to_string(directory.path().join(name)).unwrap());
        let of_the_first = texts.iter().filter(|text| text.contains("first-run")).count();
        assert!([0, 4].contains(&of_the_first), "{of_the_first} of 4 files are of the first run");
    }
}

#[test]
fn when_one_file_cannot_be_written_none_is() {
    let directory = tempdir().unwrap();
    let started = ReportDir::create(directory.path()).unwrap();
    // No file can take the name of a folder with something in it.
    let obstacle = directory.path().join("junit.xml");
    fs::create_dir_all(obstacle.join("folder")).unwrap();
    let refused = started.write(&everything()).unwrap_err();
    assert!(matches!(&refused, Error::Io { path, .. } if *path == obstacle), "{refused}");
    assert_eq!(names(directory.path()), ["junit.xml"]);
}

#[test]
fn a_place_that_cannot_be_written_is_known_before_there_is_a_report() {
    let directory = tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        assert!(matches!(ReportDir::create(&path).unwrap_err(), Error::Io { .. }));
    }
    fs::create_dir(directory.path().join("report.md")).unwrap();
    let refused = ReportDir::create(directory.path()).unwrap_err();
    assert!(matches!(refused, Error::Io { path, .. } if path.ends_with("report.md")));
}

#[cfg(unix)]
#[test]
fn a_report_is_readable_for_whom_the_umask_allows() {
    use std::os::unix::fs::PermissionsExt;

    let directory = tempdir().unwrap();
    ReportDir::create(directory.path()).unwrap().write(&everything()).unwrap();
    let plain = directory.path().join("plain");
    fs::write(&plain, "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&directory.path().join("report.json")), mode(&plain));
}
