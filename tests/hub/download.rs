//! Downloads from a hub on this machine, whole, interrupted and damaged.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::machine::{Machine, TINY, TINY_GGUF, shipped, weights};
use super::server::{COMMIT, Faults, git_blob};
use crate::common::hash::sha256;

// ---- the main job ---------------------------------------------------------------------------------------

#[test]
fn a_model_of_the_hub_is_downloaded_and_passes_and_needs_no_network_again() {
    let machine = Machine::new();
    let report = machine.passes(TINY, &["--download"]);
    assert_eq!(report["model"]["name"], TINY);
    assert_eq!(report["model"]["sha256"], sha256(&weights()));
    assert!(!machine.requests().is_empty());
    machine.passes(TINY, &[]);
    machine.passes(TINY, &["--download"]);
    assert_eq!(machine.requests(), Vec::<String>::new());
}

#[test]
fn the_cache_is_laid_out_as_the_python_library_lays_it_out() {
    let machine = Machine::new();
    machine.succeeds(&["models", "--download", TINY]);
    let repo = machine.repo(TINY);
    assert_eq!(fs::read_to_string(repo.join("refs/main")).expect("a reference"), COMMIT);
    let (large, small) = (weights(), fs::read(shipped("tiny-llama2/hf/config.json")).expect("it ships"));
    for (name, content, blob) in
        [("model.safetensors", &large, sha256(&large)), ("config.json", &small, git_blob(&small))]
    {
        let link = fs::read_link(machine.snapshot(TINY).join(name)).expect("a link");
        assert_eq!(link, Path::new("../../blobs").join(&blob));
        assert_eq!(&fs::read(repo.join("blobs").join(blob)).expect("a blob"), content);
    }
    let blobs = fs::read_dir(repo.join("blobs")).expect("blobs").flatten();
    assert!(blobs.into_iter().all(|blob| blob.path().extension().is_none()), "nothing unfinished is left");
}

#[test]
fn a_small_file_is_named_as_git_names_it() {
    // git hash-object checkpoints/tiny-llama2/hf/config.json
    let config = fs::read(shipped("tiny-llama2/hf/config.json")).expect("it ships");
    assert_eq!(git_blob(&config), "f48b901f3a9d9561a9ceb1c1ed98efa14821cc91");
}

#[test]
fn a_gguf_file_is_found_by_quantisation_or_by_name() {
    let machine = Machine::new();
    let by_tag = format!("{TINY_GGUF}:Q8_0");
    let stdout = machine.succeeds(&["models", "--download", &by_tag]);
    assert!(stdout.contains("tiny-llama2-q8_0.gguf"), "{stdout}");
    let names = machine.requests();
    assert!(names.iter().all(|path| !path.contains("f16") && !path.contains("f32")), "{names:?}");
    machine.succeeds(&["dump", "--model", &by_tag, "--tokens", "1,2", "--out", "by-tag"]);
    let by_name = format!("{TINY_GGUF}:tiny-llama2-q8_0.gguf");
    machine.succeeds(&["dump", "--model", &by_name, "--tokens", "1,2", "--out", "by-name"]);
    let known = ["tiny-llama2-f16.gguf", "tiny-llama2-f32.gguf"];
    machine.refuses(&["models", "--download", &format!("{TINY_GGUF}:Q4_K_M")], &known);
}

#[test]
fn shards_are_downloaded_and_nothing_that_the_model_does_not_need() {
    let machine = Machine::new();
    machine.hub.serve("tiny-org/tiny-llama3", &["tiny-llama3/hf"]);
    for name in ["README.md", "pytorch_model.bin", "original/consolidated.00.pth", "model.onnx"] {
        machine.hub.put("tiny-org/tiny-llama3", name, vec![b'x'; 30_000]);
    }
    machine.succeeds(&[
        "dump",
        "--model",
        "tiny-org/tiny-llama3",
        "--download",
        "--tokens",
        "1,2",
        "--out",
        "d",
    ]);
    let requests = machine.requests();
    for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        assert!(requests.iter().any(|path| path.ends_with(shard)), "{requests:?}");
    }
    for unneeded in ["README", "pytorch", "original", "onnx"] {
        assert!(!requests.iter().any(|path| path.contains(unneeded)), "{requests:?}");
    }
}

#[test]
fn a_repository_without_safetensors_gives_its_pytorch_weights() {
    let machine = Machine::new();
    machine.hub.put("tiny-org/old", "config.json", "{}");
    machine.hub.put("tiny-org/old", "pytorch_model.bin", vec![7; 30_000]);
    machine.succeeds(&["models", "--download", "tiny-org/old"]);
    assert!(machine.snapshot("tiny-org/old").join("pytorch_model.bin").is_file());
}

#[test]
fn a_known_name_is_found_in_the_cache_and_the_list_says_so() {
    let machine = Machine::new();
    machine.hub.serve("Qwen/Qwen3-1.7B", &["tiny-qwen3/hf"]);
    machine.hub.serve("openai-community/gpt2", &["tiny-llama2/hf/config.json"]);
    machine.refuses(
        &["run", "--model", "qwen3-1.7b"],
        &["qwen3-1.7b (Qwen/Qwen3-1.7B)", "xcheck models --download qwen3-1.7b"],
    );
    let reference = shipped("tiny-qwen3/dumps/transformers-f32.safetensors");
    let reference = reference.to_str().expect("plain");
    machine.succeeds(&["run", "--model", "Qwen3-1.7B", "--download", "--reference", reference]);
    machine.refuses(&["models", "--download", "gpt2"], &["gpt2", "has no model.safetensors"]);
    let cut = Faults { cut: Some(10), ..Faults::default() };
    machine.hub.serve("openai-community/gpt2-medium", &["tiny-llama2/hf"]).misbehave(cut);
    machine.refuses(&["models", "--download", "gpt2-medium"], &["after 10 of"]);
    let list = machine.succeeds(&["models"]);
    let cached = |name: &str| {
        let line = list.lines().find(|line| line.split_whitespace().next() == Some(name)).expect("listed");
        ["yes", "partly", "no"]
            .into_iter()
            .find(|word| line.contains(&format!(" {word} ")))
            .map(|_| line.to_owned())
    };
    assert!(cached("qwen3-1.7b").is_some_and(|line| line.contains("qwen3  ") && line.contains(" yes ")));
    assert!(cached("gpt2-medium").is_some_and(|line| line.contains(" partly ")), "{list}");
    assert!(list.contains("meta-llama/Llama-2-7b-hf") && list.contains("ggml-model-i2_s.gguf"), "{list}");
}

#[test]
fn a_repository_that_moved_is_followed() {
    let machine = Machine::new().with("HF_TOKEN", "hf_mine");
    machine.hub.misbehave(Faults { gated: Some("hf_mine"), ..Faults::default() });
    machine.passes("old-org/tiny-llama2", &["--download"]);
}

// ---- interrupted and damaged ----------------------------------------------------------------------------

#[test]
fn an_interrupted_download_resumes_where_it_stopped() {
    let machine = Machine::new();
    machine.hub.misbehave(Faults { cut: Some(1_000_000), ..Faults::default() });
    machine.refuses(&["models", "--download", TINY], &["after 1000000 of 3154456 bytes", "try again"]);
    machine.refuses(&["run", "--model", TINY], &["not in the Hugging Face cache", "interrupted"]);
    machine.hub.seen();
    machine.hub.misbehave(Faults::default());
    machine.succeeds(&["models", "--download", TINY]);
    let ranges: Vec<_> = machine.hub.seen().into_iter().filter_map(|request| request.range).collect();
    assert_eq!(ranges, ["bytes=1000000-", "bytes=1000000-"], "from the hub and from its network");
    let got = fs::read(machine.snapshot(TINY).join("model.safetensors")).expect("it is there");
    assert_eq!(sha256(&got), sha256(&weights()));
    machine.passes(TINY, &[]);
}

#[test]
fn a_connection_that_breaks_is_made_again_as_long_as_it_brings_something() {
    let machine = Machine::new();
    machine.hub.misbehave(Faults { trickle: Some(1_600_000), ..Faults::default() });
    machine.passes(TINY, &["--download"]);
}

#[test]
fn a_server_without_ranges_sends_the_file_anew() {
    let machine = Machine::new();
    machine.hub.misbehave(Faults { cut: Some(1_000_000), ..Faults::default() });
    machine.refuses(&["models", "--download", TINY], &["after 1000000 of"]);
    machine.hub.misbehave(Faults { no_ranges: true, ..Faults::default() });
    machine.passes(TINY, &["--download"]);
}

#[test]
fn content_that_was_damaged_on_its_way_is_thrown_away() {
    let machine = Machine::new();
    machine.hub.misbehave(Faults { corrupt: true, ..Faults::default() });
    machine.refuses(
        &["run", "--model", TINY, "--download"],
        &["hash", &sha256(&weights()), "it was corrupted and has been deleted"],
    );
    machine.refuses(&["run", "--model", TINY], &["not in the Hugging Face cache"]);
    machine.hub.misbehave(Faults::default());
    machine.passes(TINY, &["--download"]);
}

#[test]
fn content_that_was_damaged_in_the_cache_is_refused_and_can_be_got_again() {
    let machine = Machine::new();
    machine.succeeds(&["models", "--download", TINY]);
    for (name, length) in [("model.safetensors", 3_000_000), ("config.json", 700)] {
        let blob = fs::canonicalize(machine.snapshot(TINY).join(name)).expect("a blob");
        let whole = fs::read(&blob).expect("it is there");
        fs::write(&blob, &whole[..length]).expect("written");
        machine.refuses(&["run", "--model", TINY], &[name, "hash", "xcheck models --download"]);
        machine.passes(TINY, &["--download"]);
    }
}

#[test]
fn what_another_process_is_downloading_is_left_to_it() {
    let machine = Machine::new();
    let unfinished = machine.repo(TINY).join("blobs").join(format!("{}.incomplete", sha256(&weights())));
    fs::create_dir_all(unfinished.parent().expect("a folder")).expect("made");
    let file = fs::File::create(&unfinished).expect("created");
    file.lock().expect("locked");
    machine.refuses(&["models", "--download", TINY], &["another process is downloading it"]);
}

#[test]
fn a_shard_that_the_cache_lacks_is_named() {
    let machine = Machine::new();
    machine.hub.serve("tiny-org/tiny-llama3", &["tiny-llama3/hf"]);
    machine.succeeds(&["models", "--download", "tiny-org/tiny-llama3"]);
    let shard = "model-00002-of-00002.safetensors";
    fs::remove_file(machine.snapshot("tiny-org/tiny-llama3").join(shard)).expect("removed");
    let missing = format!("missing {shard}; get it with: xcheck models --download tiny-org/tiny-llama3");
    machine.refuses(&["run", "--model", "tiny-org/tiny-llama3"], &[&missing]);
}

// ---- together with huggingface_hub ----------------------------------------------------------------------

/// `XCHECK_PYTHON=.venv/bin/python cargo test --features live-references hub::`
#[cfg(feature = "live-references")]
#[test]
fn the_cache_is_shared_with_the_python_library() {
    let python = std::env::var("XCHECK_PYTHON").expect("XCHECK_PYTHON names a Python with huggingface_hub");
    let script = |machine: &Machine, code: &str| {
        let output = machine.command(&python).args(["-c", code]).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    let ours = Machine::new();
    ours.succeeds(&["models", "--download", TINY]);
    ours.hub.seen();
    for name in ["config.json", "model.safetensors", "tokenizer.model"] {
        let code = format!(
            "from huggingface_hub import hf_hub_download\n\
             print(hf_hub_download({TINY:?}, {name:?}, local_files_only=True))"
        );
        assert_eq!(Path::new(&script(&ours, &code)), ours.snapshot(TINY).join(name));
    }
    let code = format!("from huggingface_hub import snapshot_download\nprint(snapshot_download({TINY:?}))");
    script(&ours, &code);
    assert!(!ours.requests().iter().any(|path| path.contains("/cdn/")), "nothing is downloaded again");
    let theirs = Machine::new();
    assert_eq!(Path::new(&script(&theirs, &code)), theirs.snapshot(TINY));
    theirs.hub.misbehave(Faults { broken: Some(503), ..Faults::default() });
    theirs.passes(TINY, &[]);
}

/// One that is listed and cannot be run is a reason to support it, and then this test.
#[test]
fn every_known_model_can_be_run_and_one_of_llama2_c_is() {
    let machine = Machine::new();
    let list: Value =
        serde_json::from_str(&machine.succeeds(&["models", "--format", "json"])).expect("a list");
    let public = list["public"].as_array().expect("a list");
    let lacking: Vec<_> = public.iter().filter(|model| !model["lacks"].is_null()).collect();
    assert!(public.len() > 30 && lacking.is_empty(), "{lacking:?}");
    let file = fs::read(shipped("tiny-llama2c/tiny-llama2c-v0.bin")).expect("it ships");
    machine.hub.put("karpathy/tinyllamas", "stories15M.bin", file);
    machine.succeeds(&["dump", "--model", "stories15M", "--download", "--tokens", "1,2", "--out", "d"]);
}
