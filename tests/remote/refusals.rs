//! What a server, the network or the cache forbids: one message each, that says what to do and tells no secret.

use std::fs;

use serde_json::Value;
use xcheck::format::{FileBytes, Gguf, Safetensors};

use super::machine::Machine;
use super::server::Faults;
use crate::common::hash::sha256;

const MODEL: &str = "tiny-llama2/hf";
const GGUF: &str = "tiny-llama2/tiny-llama2-q8_0.gguf";
const DUMP: &str = "tiny-llama2/dumps/transformers-f32.safetensors";

#[test]
fn a_file_that_changes_while_it_is_read_ends_the_run_and_the_report_says_so() {
    let machine = Machine::new(&["tiny-llama2"]);
    let (model, dump) = (machine.url(GGUF), machine.url(DUMP));
    machine.server.misbehave(Faults { change_after: Some(6), ..Faults::default() });
    let run = ["run", "--model", &model, "--reference", &dump, "--report", "r"];
    let refused =
        machine.refuses(&run, &["the file changed while it was being read", "-0\"", "-1\"", "run again"]);
    let report = fs::read_to_string(machine.folder.path().join("r/report.json")).expect("a report");
    assert!(report.contains("\"error\"") && report.contains("changed while it was being read"), "{report}");
    assert!(refused.contains(&model) || refused.contains(&dump), "{refused}");
    // The next run finds another file, and takes nothing of the first for it.
    assert_eq!(
        machine.report(&model, &machine.url("tiny-llama2/dumps/llama.cpp-q8_0.safetensors"), &[])["verdict"],
        "pass"
    );
}

#[test]
fn a_server_that_stays_busy_is_given_up() {
    let machine = Machine::new(&["tiny-llama2"]);
    machine.server.misbehave(Faults { refuse: Some((usize::MAX, 503)), ..Faults::default() });
    machine.refuses(&["inspect", &machine.url(GGUF)], &[GGUF, "HTTP 503"]);
}

#[test]
fn what_is_not_there_or_not_for_us_is_said() {
    let machine = Machine::new(&["tiny-llama2"]);
    machine.refuses(
        &["inspect", &machine.url("tiny-llama2/none.gguf")],
        &["none.gguf", "HTTP 404", "no such file"],
    );
    machine.refuses(&["run", "--model", &machine.url("tiny-llama2")], &["config.json", "HTTP 404"]);
    machine.server.misbehave(Faults { signature: Some("valid"), ..Faults::default() });
    let refused = machine.refuses(
        &["inspect", &format!("{}?X-Amz-Signature=expired", machine.url(GGUF))],
        &["HTTP 403", "may have expired", "use a new one"],
    );
    assert!(!refused.contains("X-Amz"), "{refused}");
}

#[test]
fn what_cannot_be_pinned_is_refused() {
    let machine = Machine::new(&["tiny-llama2"]);
    machine.server.misbehave(Faults { no_pin: true, ..Faults::default() });
    machine.refuses(
        &["inspect", &machine.url(GGUF)],
        &["neither an ETag nor a Last-Modified date", "download the file"],
    );
}

#[test]
fn a_model_without_a_reference_is_not_said_to_be_another_engines_to_read() {
    let machine = Machine::new(&["tiny-llama2"]);
    let finished = machine.run(&["run", "--model", &machine.url(GGUF)]);
    let said = &finished.stderr;
    assert_eq!(finished.code, 3, "{said}");
    assert!(said.contains("--reference, or download the model"), "{said}");
    assert!(!said.contains("xcheck reference") && !said.contains("--make-references"), "{said}");
}

#[test]
fn no_host_no_network_and_no_url_are_one_message_each() {
    let machine = Machine::new(&[]);
    machine.refuses(
        &["inspect", "http://no-such-host.invalid/m.gguf"],
        &["http://no-such-host.invalid/m.gguf: "],
    );
    let offline = Machine::new(&["tiny-llama2"]).with("HF_HUB_OFFLINE", "1");
    offline.refuses(&["inspect", &offline.url(GGUF)], &["HF_HUB_OFFLINE is set"]);
    let odd = Machine::new(&["tiny-llama2"]).with("XCHECK_CACHE_LIMIT", "much");
    odd.refuses(&["inspect", &odd.url(GGUF)], &["XCHECK_CACHE_LIMIT", "much", "20GB"]);
}

#[test]
fn a_run_that_needs_more_than_may_be_kept_is_refused_before_the_disk_is_full() {
    let machine = || Machine::new(&["tiny-llama2"]).with("XCHECK_CACHE_LIMIT", "500KB");
    for machine in [machine(), machine().with("XCHECK_CACHE", "off")] {
        let (model, dump) = (machine.url(GGUF), machine.url(DUMP));
        machine.refuses(
            &["run", "--model", &model, "--reference", &dump],
            &["XCHECK_CACHE_LIMIT", "the cache is full", "--layer"],
        );
    }
}

#[test]
fn a_nan_scale_is_found_when_its_weights_are_downloaded() {
    let machine = Machine::new(&["tiny-llama2"]);
    let source = FileBytes::open(&super::machine::shipped(GGUF)).expect("it ships");
    let file = Gguf::read(&source).expect("sound");
    let tensor = file.tensors.get("blk.2.ffn_up.weight").expect("a matrix");
    let at = tensor.data.as_ptr() as usize - source.data.as_ptr() as usize;
    let mut damaged = source.data.to_vec();
    damaged[at..at + 2].copy_from_slice(&[0, 0x7c]); // infinity in f16
    machine.server.put("damaged.gguf", damaged);
    let model = machine.url("damaged.gguf");
    machine.refuses(
        &["dump", "--model", &model, "--tokens", "1,2", "--out", "d"],
        &["ffn_up of layer 2", "a scale of block 0 is not a finite number", "the file is damaged"],
    );
}

#[test]
fn presigned_url_signatures_and_passwords_are_in_no_output_no_report_and_no_file() {
    let machine = Machine::new(&["tiny-llama2"]);
    let secret = |path: &str| {
        let url = machine.url(path).replace("http://", "http://me:pa55word@");
        format!("{url}?X-Amz-Signature=s3cret&X-Amz-Credential=AKIA/x#f")
    };
    let (model, dump) = (secret(MODEL), secret(DUMP));
    let mut said = String::new();
    for arguments in [
        vec!["run", "--model", &model, "--reference", &dump],
        vec!["run", "--model", &model, "--reference", &dump, "--suppose", "rope_theta=5000"],
        vec!["check", "--model", &model, "--candidate", &dump, "--format", "json"],
        vec!["compare", &dump, &dump],
        vec!["inspect", &dump],
        vec!["inspect", &model],
        vec!["run", &format!("--model={model}"), "--reference", "no-such-dump"],
        vec!["dump", "--model", &model, "--tokens", "1,2", "--out", "own"],
    ] {
        let finished = machine.run(&arguments);
        said += &format!("{}{}", finished.stdout, finished.stderr);
    }
    assert!(said.contains("/tiny-llama2/hf"), "{said}");
    let files = machine.files();
    assert!(files.iter().any(|file| file.ends_with("report.json")), "{files:?}");
    let text = |file| String::from_utf8_lossy(&fs::read(file).expect("readable")).into_owned();
    let kept: String = files.iter().filter(|file| !file.ends_with("data")).map(text).collect();
    let paths = format!("{files:?}");
    for secret in ["s3cret", "X-Amz", "pa55word", "AKIA"] {
        for place in [&said, &kept, &paths] {
            let at = place.find(secret).map(|at| &place[at.saturating_sub(200)..(at + 50).min(place.len())]);
            assert_eq!(at, None, "{secret}");
        }
    }
}

#[test]
fn the_hub_token_goes_to_the_hub_and_to_nobody_else() {
    let machine = Machine::new(&["tiny-llama2"]);
    let hub = machine.url("").trim_end_matches('/').to_owned();
    let machine = machine.with("HF_TOKEN", "hf_secret");
    machine.succeeds(&["inspect", &machine.url(GGUF)]);
    assert!(machine.server.given().iter().all(|given| given.authorization.is_none()));
    let machine = machine.with("HF_ENDPOINT", &hub);
    machine.succeeds(&["inspect", &machine.url(GGUF)]);
    let sent = machine.server.given();
    assert!(sent.iter().all(|given| given.authorization.as_deref() == Some("Bearer hf_secret")), "{sent:?}");
}

#[test]
fn tensors_are_compared_with_their_sha256() {
    let machine = Machine::new(&["tiny-llama3"]);
    let folder = "tiny-llama3/hf";
    let index = |of_q: Option<&str>| {
        let file = format!("{folder}/model.safetensors.index.json");
        let mut index: Value = serde_json::from_slice(&machine.server.file(&file)).expect("JSON");
        let map = index["weight_map"].as_object().expect("a map").clone();
        for (name, shard) in &map {
            let shard = machine.server.file(&format!("{folder}/{}", shard.as_str().expect("a name")));
            let source = FileBytes { path: "shard".into(), data: shard.into() };
            let tensors = Safetensors::read(&source).expect("sound").tensors;
            index["tensor_sha256"][name] = sha256(&tensors.get(name).expect("it is in there").data).into();
        }
        if let Some(sha256) = of_q {
            index["tensor_sha256"]["model.layers.1.self_attn.q_proj.weight"] = sha256.into();
        }
        machine.server.put(&file, index.to_string().into());
    };
    let dump = machine.url("tiny-llama3/dumps/transformers-f32.safetensors");
    index(None);
    let report = machine.report(&machine.url(folder), &dump, &[]);
    assert_eq!(report["verdict"], "pass", "{report}");
    assert!(report.to_string().contains("tensors are checked by SHA-256"), "{report}");
    index(Some(&"0".repeat(64)));
    std::fs::remove_dir_all(machine.cache()).expect("it was there"); // the server's ETags know no content
    machine.refuses(
        &["run", "--model", &machine.url(folder), "--reference", &dump],
        &["model-0000", "tensor 'model.layers.1.self_attn.q_proj.weight'", "SHA-256", "expected 0000"],
    );
}

#[test]
fn arrays_are_compared_with_their_sha256() {
    let machine = Machine::new(&["tiny-llama2"]);
    let model = machine.url(GGUF);
    machine.succeeds(&["dump", "--model", &model, "--tokens", "1,2", "--decode", "1", "--out", "own"]);
    let file = |name: &str| machine.folder.path().join("own").join(name);
    let mut manifest: Value =
        serde_json::from_slice(&fs::read(file("manifest.json")).expect("written")).expect("JSON");
    for row in manifest["tensors"].as_array_mut().expect("rows") {
        let array = fs::read(file(row["file"].as_str().expect("a name"))).expect("written");
        let header = 10 + usize::from(u16::from_le_bytes([array[8], array[9]]));
        row["sha256"] = sha256(&array[header..]).into();
    }
    fs::write(file("manifest.json"), manifest.to_string()).expect("written");
    machine.server.put("own.npz", machine.npz("own"));
    let report = machine.report(&model, &machine.url("own.npz"), &[]);
    assert_eq!(report["verdict"], "pass", "{report}");
    assert!(report.to_string().contains("arrays are checked by SHA-256"), "{report}");

    let mut array = fs::read(file("p0/l01/q.npy")).expect("written");
    *array.last_mut().expect("it has elements") ^= 1;
    fs::write(file("p0/l01/q.npy"), array).expect("written");
    machine.server.put("damaged.npz", machine.npz("own"));
    machine.refuses(
        &["run", "--model", &model, "--reference", &machine.url("damaged.npz")],
        &["damaged.npz", "p0/l01/q.npy", "damaged data: SHA-256 is"],
    );
}

#[test]
fn a_dump_that_is_a_folder_is_refused_and_what_to_do_is_said() {
    let machine = Machine::new(&["tiny-llama2"]);
    machine.server.put("loose/manifest.json", b"{}".to_vec());
    let (model, dump) = (machine.url(GGUF), machine.url("loose"));
    for arguments in [
        &["run", "--model", &model, "--reference", &dump][..],
        &["compare", "tiny-llama2/transformers-f32", &format!("{dump}/manifest.json")],
        &["inspect", &dump],
    ] {
        machine.refuses(arguments, &[&dump, "a dump in a folder", ".safetensors", "pack_dump.py"]);
    }
}

#[test]
fn other_kinds_of_addresses_are_refused_with_a_way_out_and_tell_no_secret() {
    let machine = Machine::new(&[]);
    let way_out = match cfg!(feature = "cloud") {
        true => "set credentials in the environment",
        false => "build it with `--features cloud`, or give an https URL, for example a presigned one",
    };
    for (arguments, way_out) in [
        (&["inspect", "s3://key:s3cret@bucket/m.gguf"][..], way_out),
        (&["run", "--model", "gs://bucket/m.gguf?token=s3cret"], way_out),
        (&["compare", "az://container/d.safetensors?sig=s3cret", "other"], way_out),
        (&["inspect", "ftp://me:s3cret@host/m.gguf"], "expected http or https"),
    ] {
        let refused = machine.refuses(arguments, &[way_out]);
        assert!(!refused.contains("s3cret"), "{refused}");
    }
    use xcheck::remote::redacted;
    for (argument, shown) in [
        ("--model=https://me:pw@host/a/b.gguf?sig=x#y", "--model=https://host/a/b.gguf"),
        ("HTTP://host/a?q", "http://host/a"),
        ("s3://key:pw@bucket/a", "s3://bucket/a"),
        ("abfss://container@me.dfs.core.windows.net/a?sig", "abfss://container@me.dfs.core.windows.net/a"),
        ("plain/path?not=url", "plain/path?not=url"),
        ("rope_theta=10000", "rope_theta=10000"),
    ] {
        assert_eq!(redacted(argument), shown);
    }
}
