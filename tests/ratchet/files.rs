//! Files of baselines: what one holds is read again, and whatever is wrong with one is one message.

use xcheck::ratchet::{Baseline, gate};

use super::bed::{LLAMA_CPP, audit, baseline, gated, with};

const SOUND: &str = r#"version = 2

[[dump]]
name = "engine"
model = "tiny-llama2, llama, gguf, q8_0"
compared = [
  {taps = "q k", layers = "0-3", passes = "0,2"},
  {taps = "generated"},
]

[[known]]
reason = "why"
link = "bugs/7"
expires = 2026-12-31
rows = [
  {dump = "engine", taps = "q", layers = "1", passes = "0", cause = "rope_theta 1e6", bound_ratio = 2.1e3, over = 12, sigmas = 9e0},
]
"#;

#[test]
fn what_is_written_is_read_again() {
    let read = Baseline::parse(SOUND).expect("it is a baseline");
    assert!(read.text().ends_with(SOUND), "{}", read.text());
    assert_eq!(Baseline::parse(&read.text()), Ok(read));
    let named = SOUND.replace("engine", "an \\\"engine\\\"\\n\\\\ [[known]]");
    let read = Baseline::parse(&named).expect("names are what they are");
    assert_eq!(Baseline::parse(&read.text()), Ok(read));
}

#[test]
fn a_baseline_of_version_1_is_read() {
    let judged = "model = \"tiny-llama2, llama, gguf, q8_0\"\njudged = \"rounding, local\"";
    let sound = SOUND.replace("model = \"tiny-llama2, llama, gguf, q8_0\"", judged);
    let first = [
        ("version = 2", "version = 1"),
        ("local", "introduced"),
        ("bound_ratio", "headroom"),
        ("over", "beyond"),
    ];
    let first = first.iter().fold(sound.clone(), |text, (new, old)| text.replace(new, old));
    assert_eq!(Baseline::parse(&first), Baseline::parse(&sound));
    assert!(Baseline::parse(&first).is_ok_and(|read| read.text().ends_with(&sound)), "{first}");
}

#[test]
fn whatever_is_wrong_is_one_line_that_says_what() {
    for (from, to, expected) in [
        (SOUND, "", "the file is empty; write a baseline with --update-baseline"),
        (SOUND, "version = 2\n", "missing field `dump`"),
        ("version = 2", "version = 3", "unsupported version 3, expected 1 or 2"),
        ("reason = \"why\"\n", "", "missing field `reason`"),
        ("link = \"bugs/7\"\n", "", "missing field `link`"),
        ("expires = 2026-12-31\n", "", "missing field `expires`"),
        ("expires = 2026-12-31", "expires = 2026-02-31", "line 14"),
        ("expires = 2026-12-31", "expires = 12:00:00", "expected a date such as 2026-12-31"),
        ("reason = \"why\"", "reason = \"why\"\nowner = \"me\"", "unknown field `owner`"),
        ("over = 12", "over = -12", "line 16"),
        ("bound_ratio", "head_room", "unknown field `head_room`"),
        ("bound_ratio = 2.1e3", "bound_ratio = nan", "invalid figure NaN"),
        ("taps = \"q\"", "taps = \"queries\"", "unknown tap 'queries'"),
        ("taps = \"q\"", "taps = \"\"", "missing tap name"),
        ("layers = \"1\"", "layers = \"3-\"", "invalid value '3-', expected a number or a range"),
        ("layers = \"1\"", "layers = \"0-18446744073709551615\"", "exceed the limit"),
        ("dump = \"engine\"", "dump = \"other\"", "unknown dump 'other'"),
        ("  {taps = \"generated\"},\n", "  {taps = \"generated\"},\n  7,\n", "line 9"),
        (
            "  {taps = \"q k\", layers = \"0-3\", passes = \"0,2\"},\n  {taps = \"generated\"},\n",
            "",
            "`compared` is empty",
        ),
    ] {
        let problem = Baseline::parse(&SOUND.replace(from, to)).expect_err(to);
        assert!(problem.contains(expected) && problem.lines().count() == 1, "{to}: {problem}");
    }
}

#[test]
fn a_baseline_of_something_else_is_refused() {
    let report = audit(&with(|_| ()), &LLAMA_CPP);
    let known = baseline(&report);
    gated(&report, &known);
    for (from, to, expected) in [
        (
            "sha256 = \"ea85\"",
            "sha256 = \"0123456789\"",
            "for another model: tiny-llama2, llama, gguf, q8_0 (SHA-256 01234567)",
        ),
        (
            "name = \"engine\"",
            "name = \"another\"",
            "the dump 'another', which is not compared in this run (compared: engine)",
        ),
    ] {
        let other = Baseline::parse(&known.text().replace(from, to)).expect("it is a baseline");
        let error = gate(&mut report.clone(), &other, "2026-06-01").expect_err(to).to_string();
        assert!(error.contains(expected), "{error}");
    }
}
