//! Downloads from a hub on this machine, by the command as a person runs it.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{COMMIT, Faults, Files, Hub, git_blob, listing, sha256};

/// The smallest shipped model, as a folder of the hub and as GGUF files.
const TINY: &str = "tiny-org/tiny-llama2";
const TINY_GGUF: &str = "tiny-org/tiny-llama2-GGUF";

/// A person's machine: an empty directory, an empty cache, a hub.
struct Machine {
    folder: TempDir,
    hub: Hub,
    variables: Vec<(&'static str, String)>,
}

struct Finished {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Machine {
    fn new() -> Self {
        let hub = Hub::new();
        hub.serve(TINY, &["tiny-llama2/hf"]);
        let gguf = ["f32", "f16", "q8_0"].map(|tag| format!("tiny-llama2/tiny-llama2-{tag}.gguf"));
        hub.serve(TINY_GGUF, &gguf.each_ref().map(String::as_str));
        Self { folder: TempDir::new().expect("a folder"), hub, variables: Vec::new() }
    }

    /// With a variable of the environment more.
    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("hf")
    }

    fn repo(&self, repo: &str) -> PathBuf {
        self.home().join("hub").join(format!("models--{}", repo.replace('/', "--")))
    }

    fn snapshot(&self, repo: &str) -> PathBuf {
        self.repo(repo).join("snapshots").join(COMMIT)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars().filter(|(name, _)| is_about_the_hub(name)) {
            command.env_remove(name);
        }
        command.current_dir(self.folder.path()).env("HF_HOME", self.home());
        command.env("HF_ENDPOINT", self.hub.endpoint()).env("NO_PROXY", "*");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        let program = assert_cmd::cargo::cargo_bin!("xcheck").to_str().expect("plain");
        let output = self.command(program).args(arguments).output().expect("it starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints UTF-8");
        Finished {
            code: output.status.code().expect("no signal ended it"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    #[track_caller]
    fn succeeds(&self, arguments: &[&str]) -> String {
        let finished = self.run(arguments);
        assert_eq!(finished.code, 0, "{}{}", finished.stdout, finished.stderr);
        finished.stdout
    }

    /// One message on stderr that holds each of `expected`, nothing on stdout, exit code 2.
    #[track_caller]
    fn refuses(&self, arguments: &[&str], expected: &[&str]) -> String {
        let Finished { code, stdout, stderr } = self.run(arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{stderr}");
        for expected in expected {
            assert!(stderr.contains(expected), "'{expected}' is not in: {stderr}");
        }
        stderr
    }

    /// Runs a model against the dump by transformers that ships.
    #[track_caller]
    fn passes(&self, model: &str, more: &[&str]) {
        let reference = shipped("tiny-llama2/dumps/transformers-f32.safetensors");
        let reference = reference.to_str().expect("plain");
        let run =
            ["run", "--model", model, "--reference", reference, "--checkpoint", "all", "--format", "json"];
        let report: Value = serde_json::from_str(&self.succeeds(&[&run, more].concat())).expect("a report");
        let checkpoints = report["references"][0]["checkpoints"].as_array().expect("checkpoints");
        assert_eq!(checkpoints.len(), 13, "the input and twelve checkpoints");
        assert!(checkpoints.iter().all(|checkpoint| checkpoint["verdict"] == "pass"));
    }

    fn requests(&self) -> Vec<String> {
        self.hub.seen().into_iter().map(|request| request.path).collect()
    }
}

fn is_about_the_hub(name: &str) -> bool {
    let name = name.to_uppercase();
    ["HF_", "HUGGING", "TRANSFORMERS_"].iter().any(|prefix| name.starts_with(prefix))
        || name.ends_with("_PROXY")
}

fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints").join(path)
}

fn weights() -> Vec<u8> {
    fs::read(shipped("tiny-llama2/hf/model.safetensors")).expect("it ships")
}

// ---- the main job ---------------------------------------------------------------------------------------

#[test]
fn a_model_of_the_hub_is_downloaded_and_passes_and_needs_no_network_again() {
    let machine = Machine::new();
    machine.passes(TINY, &["--download"]);
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
fn an_interrupted_download_goes_on_where_it_stopped() {
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
        &["hash", &sha256(&weights()), "damaged on its way"],
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

// ---- refusals -------------------------------------------------------------------------------------------

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
fn the_token_goes_to_the_hub_and_to_nobody_else() {
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
fn a_model_that_is_not_there_is_said_to_be_missing_or_private() {
    let machine = Machine::new();
    machine.refuses(
        &["run", "--model", "no/such", "--download"],
        &["401", "there is no no/such, or it is private"],
    );
}

#[test]
fn without_a_network_there_is_one_message() {
    let machine = Machine::new().with("HF_ENDPOINT", "http://127.0.0.1:9");
    machine.refuses(&["models", "--download", TINY], &["http://127.0.0.1:9 cannot be reached", "try again"]);
    let machine = Machine::new();
    machine.hub.misbehave(Faults { broken: Some(503), ..Faults::default() });
    machine.refuses(&["models", "--download", TINY], &["HTTP 503", "try again later"]);
    machine.hub.misbehave(Faults { broken: Some(204), ..Faults::default() });
    machine.refuses(&["models", "--download", TINY], &["not what a hub answers"]);
}

#[test]
fn offline_nothing_is_asked_and_the_cache_is_used() {
    let machine = Machine::new().with("HF_HUB_OFFLINE", "1");
    machine.refuses(&["models", "--download", TINY], &["HF_HUB_OFFLINE forbids it"]);
    machine.refuses(&["run", "--model", TINY, "--download"], &["HF_HUB_OFFLINE forbids it"]);
    assert_eq!(machine.requests(), Vec::<String>::new());
    machine.with("HF_HUB_OFFLINE", "0").passes_offline_after_a_download();
}

impl Machine {
    fn passes_offline_after_a_download(self) {
        self.succeeds(&["models", "--download", TINY]);
        self.hub.seen();
        let offline = self.with("HF_HUB_OFFLINE", "1");
        offline.passes(TINY, &["--download"]);
        assert_eq!(offline.requests(), Vec::<String>::new());
    }
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
    assert!(with(&|listing| listing["sha"] = json!("../../../../x")).contains("its commit is"));
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

// ---- together with huggingface_hub ----------------------------------------------------------------------

/// `XCHECK_PYTHON=.venv/bin/python cargo test --test hub -- --ignored`
#[test]
#[ignore = "needs a Python with huggingface_hub, named by XCHECK_PYTHON"]
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
