//! Version 2 of the contract: several sequences, some rows, parts of arrays, files by layer.

pub mod bed;
mod fp8;
mod parts;
mod property;
mod refusals;
mod rows;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::terminal::Terminal;

/// What `make_batch_dumps.sh` has made with transformers.
fn real(name: &str) -> String {
    let file =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/sequences/{name}.safetensors"));
    file.display().to_string()
}

fn check(model: &str, dump: &str) -> (i32, Value) {
    Terminal::new().json(&["check", "--model", model, "--candidate", dump])
}

/// Verdict and kinds of findings, sequence by sequence.
fn told(report: &Value) -> Vec<(String, Vec<String>)> {
    let results = report["references"].as_array().expect("results");
    let kinds = |result: &Value| {
        let findings = result["findings"].as_array().expect("findings").iter();
        findings.map(|finding| finding["kind"].as_str().expect("a kind").to_owned()).collect()
    };
    results
        .iter()
        .map(|result| (result["verdict"].as_str().expect("one").to_owned(), kinds(result)))
        .collect()
}

#[test]
fn each_sequence_of_a_batch_passes() {
    for (model, name) in [
        ("tiny-llama3", "llama3-padded"),
        ("tiny-llama3", "llama3-padded-bf16"),
        ("tiny-gpt2", "gpt2-packed"),
    ] {
        let (code, report) = check(model, &real(name));
        assert_eq!(code, 0, "{name}");
        let none: Vec<String> = Vec::new();
        assert_eq!(told(&report), vec![("pass".to_owned(), none); 4], "{name}");
        for result in report["references"].as_array().expect("results") {
            let coverage = &result["coverage"];
            assert_eq!(coverage["taps_compared"], coverage["taps_expected"], "{name}: {coverage}");
        }
    }
}

#[test]
fn a_causal_mask_across_sequences_of_a_batch_is_named() {
    for (model, name, right) in
        [("tiny-llama3", "llama3-padded-mistake", 2), ("tiny-gpt2", "gpt2-packed-mistake", 0)]
    {
        let (code, report) = check(model, &real(name));
        assert_eq!(code, 1, "{name}");
        // The longest is not padded, and the first of a pack has nobody before it.
        for (sequence, (verdict, kinds)) in told(&report).iter().enumerate() {
            match sequence == right {
                true => assert_eq!((verdict.as_str(), kinds.len()), ("pass", 0), "{name}#{sequence}"),
                false => {
                    assert_eq!(verdict, "fail", "{name}#{sequence}");
                    assert!(kinds.contains(&"mask_sequences".to_owned()), "{name}#{sequence}: {kinds:?}");
                    let first = &report["references"][sequence]["first_divergence"];
                    assert_eq!(first["tap"], "attn_weights", "{name}#{sequence}: {first}");
                }
            }
        }
    }
}

#[test]
fn one_sequence_can_be_named() {
    let one = format!("{}#2", real("gpt2-packed"));
    let (code, report) = check("tiny-gpt2", &one);
    assert_eq!((code, told(&report).len()), (0, 1));
    let shown = Terminal::new().run(&["inspect", &one, "--tap", "logits"]).succeeded();
    assert!(shown.contains("[1, 305, 315, 17, 200, 77, 21]") && shown.contains("[7, 512]"), "{shown}");
    let missing = format!("{}#4", real("gpt2-packed"));
    let refused = "has no sequence '4'; it has 0, 1, 2, 3";
    Terminal::new().assert_refused(&["check", "--model", "tiny-gpt2", "--candidate", &missing], refused);
    Terminal::new().assert_refused(&["inspect", &missing], refused);
}

#[test]
fn two_dumps_of_several_sequences_are_compared_one_by_one() {
    let (padded, short) = (real("llama3-padded"), real("llama3-padded-bf16"));
    let (code, report) = Terminal::new().json(&["compare", &padded, &padded]);
    assert_eq!((code, told(&report).len()), (0, 4));
    // Two precisions are not the same values; what matters is that each meets its own.
    let (_, report) = Terminal::new().json(&["compare", &short, &padded]);
    for result in report["references"].as_array().expect("results") {
        let rows = result["results"].as_array().expect("rows");
        let embed = rows.iter().find(|row| row["tap"] == "embed").expect("it is compared");
        assert!(embed["accumulated"]["rel_l2"].as_f64().expect("a number") < 0.01, "{embed}");
    }
    let one = format!("{padded}#1");
    Terminal::new().assert_refused(&["compare", &one, &padded], "the numbers of sequences differ");
}

#[test]
fn a_model_is_run_against_each_sequence() {
    let (code, report) =
        Terminal::new().json(&["run", "--model", "tiny-llama3", "--reference", &real("llama3-padded")]);
    assert_eq!(code, 0);
    assert_eq!(told(&report).len(), 4);
}

/// `dump_transformers.py --rows 0,3-4,7`: scores, weights and logits of four tokens of eight.
#[test]
fn some_rows_by_a_real_engine_pass_and_a_fault_in_one_is_found() {
    let file = real("llama3-rows");
    let run = |file: &str| {
        Terminal::new().json(&["run", "--model", "tiny-llama3", "--checkpoint", "all", "--reference", file])
    };
    let (code, report) = run(&file);
    assert_eq!(code, 0, "{report}");
    let rows = report["references"][0]["results"].as_array().expect("rows");
    let elements = |tap: &str| {
        let row = rows.iter().find(|row| row["tap"] == tap && row["pass"] == 0).expect("it is judged");
        row["accumulated"]["elements"].as_u64().expect("a number")
    };
    assert_eq!((elements("q"), elements("logits")), (8 * 96, 4 * 512), "all tokens, and four");

    for (key, tap, layer) in [("p0/l01/attn_scores", "attn_scores", Some(1)), ("p0/logits", "logits", None)] {
        let folder = tempfile::TempDir::new().expect("a temporary folder");
        let wrong = folder.path().join("wrong.safetensors");
        fs::write(&wrong, with_a_fault(&file, key)).expect("it is written");
        let (code, report) = run(wrong.to_str().expect("plain"));
        let first = &report["references"][0]["first_divergence"];
        assert_eq!((code, &first["tap"], first["layer"].as_u64()), (1, &tap.into(), layer), "{first}");
    }
}

/// A dump whose first value of one array is another.
fn with_a_fault(file: &str, key: &str) -> Vec<u8> {
    let mut bytes = fs::read(file).expect("it ships");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let at = 8 + length + header[key]["data_offsets"][0].as_u64().expect("it is there") as usize;
    let value = f32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
    bytes[at..at + 4].copy_from_slice(&(value * 1.01 + 0.01).to_le_bytes());
    bytes
}
