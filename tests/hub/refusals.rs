//! What the hub, the network or the settings forbid: one message each, that says what to do.

use std::fs;
use std::io::{ErrorKind, Read};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use xcheck::network::PacedBody;

use super::machine::{Machine, TINY, weights};
use super::server::{Faults, Files, Hub, listing};
use crate::common::hash::sha256;

#[test]
fn a_gated_model_asks_for_the_licence_and_a_token() {
    let machine = Machine::new();
    machine.hub.misbehave(Faults { gated: Some("hf_good"), ..Faults::default() });
    let page = format!("{}/{TINY}", machine.hub.endpoint());
    let expected = ["401", "gated", "accept the licence", &page, "HF_TOKEN"];
    machine.refuses(&["run", "--model", TINY, "--download"], &expected);
    let machine = machine.with("HF_TOKEN", "hf_of_another");
    machine.refuses(&["run", "--model", TINY, "--download"], &["403", "the token has no access yet", &page]);
    machine.with("HF_TOKEN", "hf_good").passes(TINY, &["--download"]);
}

#[test]
fn the_hub_token_goes_to_the_hub_and_to_nobody_else() {
    let machine = Machine::new();
    fs::create_dir_all(machine.home()).expect("made");
    fs::write(machine.home().join("token"), "hf_good\n").expect("written");
    machine.hub.misbehave(Faults { gated: Some("hf_good"), ..Faults::default() });
    let said = machine.succeeds(&["models", "--download", TINY]);
    assert!(!said.contains("hf_good"), "{said}");
    for request in machine.hub.seen() {
        let expected = request.host.starts_with("127.0.0.1").then(|| "Bearer hf_good".to_owned());
        assert_eq!(request.authorization, expected, "{request:?}");
    }
}

#[test]
fn the_hub_token_does_not_go_to_another_port_of_the_hubs_host() {
    let machine = Machine::new().with("HF_TOKEN", "hf_good");
    let beside = Hub::new();
    beside.serve(TINY, &["tiny-llama2/hf"]);
    machine.hub.misbehave(Faults { beside: Some(beside.port()), ..Faults::default() });
    machine.succeeds(&["models", "--download", TINY]);
    assert!(machine.hub.seen().iter().all(|request| request.authorization.is_some()));
    let seen = beside.seen();
    assert!(!seen.is_empty(), "large files came from there");
    assert!(seen.iter().all(|request| request.authorization.is_none()), "{seen:?}");
}

#[test]
fn an_invalid_hub_token_is_refused_and_not_shown() {
    for token in ["hf_one two", "hf_\u{fc}mlaut", "hf_a\nhf_b"] {
        let said = Machine::new().with("HF_TOKEN", token).refuses(
            &["models", "--download", TINY],
            &["HF_TOKEN", "a space or an invalid character", "the hub's token page"],
        );
        assert!(!said.contains("hf_one") && !said.contains("hf_a") && !said.contains("mlaut"), "{said}");
    }
}

#[test]
fn a_file_for_which_no_disk_has_room_is_not_begun() {
    let machine = Machine::new();
    let mut files = listing(&Files::from([("config.json".to_owned(), b"{}".to_vec())]));
    files["siblings"][0]["size"] = json!(u64::MAX);
    for name in ["model.safetensors", "tokenizer.json"] {
        let mut more = files["siblings"][0].clone();
        more["rfilename"] = json!(name);
        files["siblings"].as_array_mut().expect("a list").push(more);
    }
    machine.hub.misbehave(Faults { listing: Some(files), ..Faults::default() });
    let expected = ["config.json has 18446744073709551615 bytes", "bytes are free"];
    machine.refuses(&["models", "--download", TINY], &expected);
}

#[test]
fn bytes_that_come_one_by_one_are_not_waited_for() {
    /// A byte at a time.
    struct Slow;
    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            thread::sleep(Duration::from_millis(10));
            buffer[0] = 1;
            Ok(1)
        }
    }
    let (started, mut all) = (Instant::now(), Vec::new());
    let slow = PacedBody::at(Slow.take(10_000), Duration::from_millis(200), 1000).read_to_end(&mut all);
    assert_eq!(slow.expect_err("it is slower than that").kind(), ErrorKind::TimedOut);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let quick = PacedBody::at(Slow.take(100), Duration::from_millis(200), 5).read_to_end(&mut all);
    assert_eq!(quick.expect("it is quick enough"), 100);
}

#[test]
fn a_model_that_is_not_there_is_said_to_be_missing_or_private() {
    let machine = Machine::new();
    machine.refuses(
        &["run", "--model", "no/such", "--download"],
        &["401", "no/such does not exist or is private"],
    );
}

#[test]
fn without_a_network_there_is_one_message() {
    let machine = Machine::new().with("HF_ENDPOINT", "http://127.0.0.1:9");
    machine.refuses(&["models", "--download", TINY], &["cannot reach http://127.0.0.1:9", "try again"]);
    let machine = Machine::new();
    machine.hub.misbehave(Faults { broken: Some(503), ..Faults::default() });
    machine.refuses(&["models", "--download", TINY], &["HTTP 503", "try again later"]);
    machine.hub.misbehave(Faults { broken: Some(204), ..Faults::default() });
    machine.refuses(&["models", "--download", TINY], &["not a valid response from a hub"]);
}

#[test]
fn offline_nothing_is_asked_and_the_cache_is_used() {
    let machine = Machine::new().with("HF_HUB_OFFLINE", "1");
    machine.refuses(&["models", "--download", TINY], &["HF_HUB_OFFLINE is set"]);
    machine.refuses(&["run", "--model", TINY, "--download"], &["HF_HUB_OFFLINE is set"]);
    assert_eq!(machine.requests(), Vec::<String>::new());
    let machine = machine.with("HF_HUB_OFFLINE", "0");
    machine.succeeds(&["models", "--download", TINY]);
    machine.hub.seen();
    let machine = machine.with("HF_HUB_OFFLINE", "1");
    machine.passes(TINY, &["--download"]);
    assert_eq!(machine.requests(), Vec::<String>::new());
}

#[test]
fn a_mistyped_name_lists_the_nearest() {
    let machine = Machine::new();
    machine.refuses(&["run", "--model", "qwen3-1.7"], &["did you mean qwen3-1.7b", "tiny-llama2"]);
    machine.refuses(&["models", "--download", "gpt3"], &["did you mean gpt2"]);
    machine.refuses(&["run", "--model", "dir/model.gguf"], &["no such file"]);
}

#[test]
fn a_hostile_list_of_files_leads_nowhere() {
    let machine = Machine::new();
    let files: Files =
        [("config.json".to_owned(), b"{}".to_vec()), ("model.safetensors".to_owned(), vec![1; 9])].into();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut listing = listing(&files);
        change(&mut listing);
        machine.hub.misbehave(Faults { listing: Some(listing), ..Faults::default() });
        machine.refuses(&["models", "--download", TINY], &["cannot download"])
    };
    assert!(with(&|listing| listing["sha"] = json!("../../../../x")).contains("the commit is"));
    with(&|listing| listing["siblings"][0]["blobId"] = json!("../../../../x"));
    with(&|listing| listing["siblings"][1]["lfs"] = json!({"sha256": "/etc/x"}));
    with(&|listing| listing["siblings"][0]["size"] = Value::Null);
    with(&|listing| listing["siblings"][1]["rfilename"] = json!("../model.safetensors"));
    with(&|listing| listing["siblings"] = json!("none"));
    let index = json!({"weight_map": {"a": "../../../x.safetensors"}}).to_string();
    machine.hub.misbehave(Faults::default());
    machine.hub.put("tiny-org/hostile", "config.json", "{}");
    machine.hub.put("tiny-org/hostile", "model.safetensors.index.json", index);
    machine.refuses(&["models", "--download", "tiny-org/hostile"], &["weight_map"]);
    let written: Vec<_> = fs::read_dir(machine.folder.path()).expect("listed").flatten().collect();
    assert!(written.iter().all(|entry| entry.file_name() == "hf"), "{written:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said_to_be_full() {
    let machine = Machine::new();
    let unfinished = machine.repo(TINY).join("blobs").join(format!("{}.incomplete", sha256(&weights())));
    fs::create_dir_all(unfinished.parent().expect("a folder")).expect("made");
    std::os::unix::fs::symlink("/dev/full", &unfinished).expect("linked");
    machine.refuses(&["models", "--download", TINY], &["the disk is full", "the download resumes"]);
}
