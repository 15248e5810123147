//! Models and dumps by the addresses that clouds give them: read as by any other URL, and no key is told.

use std::fs;

use super::files::is_judged_alike;
use super::machine::{BLOCK, Machine};
use super::server::{BUCKET, Faults};

const KEY: &str = "AKIAEXAMPLE";
const SECRET: &str = "pl4inly/s3cret";
const MODEL: &str = "tiny-llama2/hf";
const WEIGHTS: &str = "tiny-llama2/hf/model.safetensors";
const GGUF: &str = "tiny-llama2/tiny-llama2-q8_0.gguf";
const DUMP: &str = "tiny-llama2/dumps/transformers-f32.safetensors";

/// A machine whose environment leads to the server as a store that speaks as Amazon's does.
fn amazon(models: &[&str]) -> Machine {
    let machine = Machine::new(models);
    let endpoint = machine.url("").trim_end_matches('/').to_owned();
    machine
        .with("AWS_ENDPOINT_URL", &endpoint)
        .with("AWS_ALLOW_HTTP", "true")
        .with("AWS_REGION", "eu-central-1")
        .with("AWS_ACCESS_KEY_ID", KEY)
        .with("AWS_SECRET_ACCESS_KEY", SECRET)
        .in_bucket(&format!("s3://{BUCKET}"))
}

#[test]
fn a_model_and_a_dump_in_a_bucket_are_judged_as_they_are_here() {
    let machine = amazon(&["tiny-llama2"]);
    let report = is_judged_alike(&machine, MODEL, DUMP);
    let notes = report["references"][0]["notes"].to_string();
    for expected in [
        "the weights were read in parts from s3://bucket/tiny-llama2/hf/model.safetensors",
        r#"(ETag \"tiny-llama2/hf/model.safetensors-0\")"#,
        "the dump was read in parts from s3://bucket",
    ] {
        assert!(notes.contains(expected), "{expected}: {notes}");
    }
    let given = machine.server.given();
    let is_signed = |signature: &String| {
        signature.starts_with("AWS4-HMAC-SHA256")
            && signature.contains(KEY)
            && signature.contains("eu-central-1")
    };
    assert!(given.iter().all(|given| given.authorization.as_ref().is_some_and(is_signed)), "{given:?}");
    is_judged_alike(&machine, GGUF, "tiny-llama2/dumps/llama.cpp-q8_0.safetensors");
}

#[test]
fn a_dump_in_a_bucket_can_be_inspected_audited_and_compared() {
    let machine = amazon(&["tiny-llama2"]);
    let (model, dump) = (machine.url(MODEL), machine.url(DUMP));
    let said = machine.succeeds(&["inspect", &dump, "--tap", "q", "--layer", "1"]);
    assert!(said.contains("read in parts, ETag") && said.contains("dump made by transformers"), "{said}");
    machine.succeeds(&["compare", "tiny-llama2/transformers-f32", &dump]);
    machine.succeeds(&["audit", &dump, "--model", &model, "--layer", "1"]);
    machine.succeeds(&["check", "--model", &model, "--candidate", &dump, "--layer", "1"]);
}

#[test]
fn what_is_here_is_not_asked_for_again_and_another_store_is_another_place() {
    let machine = amazon(&["tiny-llama2"]);
    let (model, dump) = (machine.url(MODEL), machine.url(DUMP));
    let first = machine.report(&model, &dump, &[]);
    machine.server.given();
    assert_eq!(first["references"], machine.report(&model, &dump, &[])["references"]);
    let again = machine.server.given();
    assert!(again.iter().all(|given| given.range.start == 0 && given.range.len() <= BLOCK), "{again:?}");
    // The same server by another name, as far as anybody knows.
    let elsewhere = machine.server.url("").replace("127.0.0.1", "localhost");
    let machine = machine.with("AWS_ENDPOINT_URL", elsewhere.trim_end_matches('/'));
    machine.report(&model, &dump, &[]);
    assert!(machine.server.given().iter().any(|given| given.range.start > 0), "it may hold something else");
}

#[test]
fn an_object_that_changes_while_it_is_read_ends_the_run_and_the_report_says_so() {
    let machine = amazon(&["tiny-llama2"]);
    machine.server.misbehave(Faults { change_after: Some(6), ..Faults::default() });
    let (model, dump) = (machine.url(GGUF), machine.url(DUMP));
    let run = ["run", "--model", &model, "--reference", &dump, "--report", "r"];
    machine.refuses(&run, &["s3://bucket/", "changed while it was being read", "-0\"", "run again"]);
    let report = fs::read_to_string(machine.folder.path().join("r/report.json")).expect("a report");
    assert!(report.contains("\"error\"") && report.contains("changed while it was being read"), "{report}");
}

#[test]
fn a_block_that_was_damaged_on_the_disk_is_brought_again() {
    let machine = amazon(&["tiny-llama2"]);
    let (model, dump) = (machine.url(MODEL), machine.url(DUMP));
    let first = machine.report(&model, &dump, &[]);
    let len = machine.server.file(WEIGHTS).len() as u64;
    let is_kept = |path: &&std::path::PathBuf| {
        path.file_name().is_some_and(|name| name == "data") && fs::metadata(path).expect("there").len() == len
    };
    let files = machine.files();
    let data = files.iter().find(is_kept).expect("the weights are kept");
    let mut bytes = fs::read(data).expect("readable");
    bytes[2_000_000] ^= 1;
    fs::write(data, bytes).expect("written");
    machine.server.given();
    assert_eq!(first["references"], machine.report(&model, &dump, &[])["references"]);
    let given = machine.server.given();
    let is_that = |path: &str| path == WEIGHTS;
    assert!(given.iter().any(|given| is_that(&given.path) && given.range.contains(&2_000_000)), "{given:?}");
}

#[test]
fn connections_that_break_and_stores_that_are_busy_are_asked_again() {
    let machine = amazon(&["tiny-llama2"]);
    let (model, dump) = (machine.url(MODEL), machine.url(DUMP));
    machine.server.misbehave(Faults { cut: Some(3 * BLOCK), refuse: Some((2, 503)), ..Faults::default() });
    assert_eq!(machine.report(&model, &dump, &[])["verdict"], "pass");
    machine.server.misbehave(Faults { refuse: Some((usize::MAX, 503)), ..Faults::default() });
    machine.refuses(&["inspect", &model], &["s3://bucket/", "HTTP 503 (SlowDown)"]);
}

#[test]
fn what_is_not_there_or_not_for_us_is_said_and_no_key_is_told() {
    let machine = amazon(&["tiny-llama2"]);
    let mut said = String::new();
    said += &machine.refuses(
        &["inspect", &machine.url("tiny-llama2/none.gguf")],
        &["s3://bucket/tiny-llama2/none.gguf", "HTTP 404 (NoSuchKey)", "no such object"],
    );
    said += &machine.refuses(&["run", "--model", &machine.url("tiny-llama2")], &["config.json"]);
    said += &machine.refuses(&["inspect", &machine.url("a//b.gguf")], &["invalid object key"]);
    machine.server.misbehave(Faults { key: Some("AKIAOTHER"), ..Faults::default() });
    let (model, dump) = (machine.url(MODEL), machine.url(DUMP));
    let expected =
        ["HTTP 403 (InvalidAccessKeyId)", "access denied", "AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE"];
    said += &machine.refuses(&["inspect", &dump], &expected);
    said += &machine.refuses(&["run", "--model", &model, "--reference", &dump], &expected);
    let text =
        |file: &std::path::PathBuf| String::from_utf8_lossy(&fs::read(file).expect("readable")).into_owned();
    let files: String = machine.files().iter().map(text).collect();
    for secret in [KEY, SECRET, "Signature=", "Credential="] {
        assert!(!said.contains(secret) && !files.contains(secret), "{secret}: {said}");
    }
}

#[test]
fn an_environment_that_does_not_lead_there_is_one_message() {
    let machine = amazon(&["tiny-llama2"]).with("AWS_ALLOW_HTTP", "false");
    machine.refuses(&["inspect", &machine.url(GGUF)], &["plain HTTP", "AWS_ALLOW_HTTP=true"]);
    let machine = Machine::new(&[]);
    machine.refuses(
        &["inspect", "az://container/m.gguf"],
        &["az://container/m.gguf", "cannot configure access from the environment", "ccount"],
    );
    let none = machine.with("GOOGLE_APPLICATION_CREDENTIALS", "no-such-file.json");
    none.refuses(
        &["inspect", "gs://bucket/m.gguf"],
        &["cannot configure access from the environment", "no-such-file.json"],
    );
}

#[test]
fn where_no_credentials_are_to_be_had_it_is_said_what_to_set() {
    let machine = Machine::new(&["tiny-llama2"]);
    machine.server.misbehave(Faults { key: Some("AKIAOTHER"), ..Faults::default() });
    let metadata = machine.url("").trim_end_matches('/').to_owned();
    let machine = machine.with("AWS_METADATA_ENDPOINT", &metadata);
    let refused = machine.refuses(
        &["inspect", "s3://bucket/m.gguf"],
        &["no credentials: ", "403", "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY", "presigned https URL"],
    );
    assert!(
        !refused.contains("InvalidAccessKeyId"),
        "what a server says of credentials is not shown: {refused}"
    );
}

#[test]
fn what_cannot_be_pinned_or_read_in_parts_is_refused() {
    let machine = amazon(&["tiny-llama2"]);
    machine.server.misbehave(Faults { no_pin: true, ..Faults::default() });
    machine.refuses(&["inspect", &machine.url(GGUF)], &["no ETag", "download the object"]);
    machine.server.misbehave(Faults { no_ranges: true, ..Faults::default() });
    machine.refuses(&["inspect", &machine.url(GGUF)], &["does not support range requests", "https URL"]);
}

#[test]
fn googles_and_azures_stores_are_read_too() {
    let machine = Machine::new(&["tiny-llama2"]);
    let endpoint = machine.url("").trim_end_matches('/').to_owned();
    let google = machine.with("GOOGLE_BASE_URL", &endpoint).with("GOOGLE_SKIP_SIGNATURE", "true");
    let google = google.with("GOOGLE_ALLOW_HTTP", "true").in_bucket(&format!("gs://{BUCKET}"));
    is_judged_alike(&google, GGUF, "tiny-llama2/dumps/llama.cpp-q8_0.safetensors");
    let azure = google
        .with("AZURE_STORAGE_ENDPOINT", &endpoint)
        .with("AZURE_STORAGE_ACCOUNT_NAME", "me")
        .with("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
        .with("AZURE_ALLOW_HTTP", "true")
        .in_bucket(&format!("az://{BUCKET}"));
    azure.server.given();
    is_judged_alike(&azure, GGUF, "tiny-llama2/dumps/llama.cpp-q8_0.safetensors");
    let given = azure.server.given();
    let is_signed = |signature: &String| signature.starts_with("SharedKey me:");
    assert!(given.iter().all(|given| given.authorization.as_ref().is_some_and(is_signed)), "{given:?}");
}
