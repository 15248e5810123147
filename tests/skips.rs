//! A test that cannot run here is listed, and fails where everything is required.

use std::process::Command;

use crate::common::finished::Finished;

/// Runs one test of this program, in an environment without any other program.
fn run_without_programs(test: &str, required: bool) -> (i32, String) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test]).env("PATH", "").env_remove("XCHECK_REQUIRE_ALL");
    if required {
        command.env("XCHECK_REQUIRE_ALL", "1");
    }
    let Finished { code, stdout, .. } = Finished::of(command.output().expect("it starts"));
    (code, stdout)
}

const NEEDS_A_COMPILER: &str = "writers::the_header_is_also_cpp";

#[test]
fn a_skipped_test_is_listed_after_the_results_with_its_reason() {
    let (code, stdout) = run_without_programs(NEEDS_A_COMPILER, false);
    let (results, list) = stdout.split_once("\nskipped: 1 (").expect("a list");
    assert!(code == 0 && results.contains("test result: ok. 1 passed"), "{stdout}");
    assert!(list.contains(&format!("\nSKIPPED {NEEDS_A_COMPILER}: no compiler")), "{stdout}");
}

#[test]
fn a_skipped_test_fails_if_all_tests_are_required() {
    let (code, stdout) = run_without_programs(NEEDS_A_COMPILER, true);
    assert_eq!(code, 101, "{stdout}");
    assert!(stdout.contains("skipped although XCHECK_REQUIRE_ALL is set: no compiler"), "{stdout}");
}

#[test]
fn without_skipped_tests_there_is_no_list() {
    let (code, stdout) = run_without_programs("writers::halves_are_written_by_their_bits", true);
    assert!(code == 0 && stdout.contains("1 passed") && !stdout.contains("SKIPPED"), "{stdout}");
}
