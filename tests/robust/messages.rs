//! What is wrong is said with its file, and nothing is waited for that may never come.

use serde_json::json;

use super::machine::Machine;

/// Every way to name a file that is read as text.
const TEXTS: [&[&str]; 9] = [
    &["run", "--model", "tiny-llama2", "--no-report", "--tolerance", "odd"],
    &["run", "--model", "tiny-llama2", "--no-report", "--cases", "odd"],
    &["run", "--model", "tiny-llama2", "--no-report", "--baseline", "odd"],
    &["generate", "--model", "tiny-llama2", "--prompts-file", "odd"],
    &["diff", "odd", "odd"],
    &["matrix", "odd"],
    &["selftest", "--figures", "odd"],
    &["dump", "--model", "tiny-llama2", "--kld", "k", "--text", "odd"],
    &["kld", "odd", "odd"],
];

#[test]
fn a_pipe_or_a_device_is_not_waited_for() {
    let machine = Machine::new();
    let made = machine.shell("mkfifo odd && mkdir dump && mkfifo dump/manifest.json").status();
    assert!(made.expect("it runs").success());
    let mut commands: Vec<Vec<&str>> = TEXTS.map(<[&str]>::to_vec).into();
    commands.push(vec!["inspect", "odd"]);
    if cfg!(feature = "serve") {
        commands.push(vec!["serve", "--model", "tiny-llama2", "--chat-template", "odd"]);
    }
    commands.push(vec!["check", "--model", "tiny-llama2", "--candidate", "dump", "--no-report"]);
    for command in &commands {
        let ended = machine.bounded(command);
        assert_eq!(ended.code, 2, "{command:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("not a regular file"), "{command:?}: {}", ended.stderr);
    }
    for command in TEXTS {
        let command: Vec<&str> =
            command.iter().map(|word| if *word == "odd" { "/dev/zero" } else { word }).collect();
        let ended = machine.bounded(&command);
        assert_eq!(ended.code, 2, "{command:?}: {}", ended.stderr);
    }
}

#[test]
fn a_token_outside_the_vocabulary_is_said_with_its_dump() {
    let machine = Machine::new();
    let file = machine.dump("d").join("manifest.json");
    let text = std::fs::read_to_string(&file).expect("it is there");
    let mut manifest: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    manifest["passes"][1]["tokens"] = json!([999_999]);
    machine.put("d/manifest.json", manifest.to_string());
    let run = ["run", "--model", "tiny-llama2", "--reference", "d", "--no-report"];
    machine.refuses(&run, &["d: ", "token 999999", "vocabulary of 512"]);
}

#[test]
fn an_empty_rope_scaling_turns_nothing_off() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama3/hf");
    let machine = Machine::new();
    for file in std::fs::read_dir(root).expect("it ships").flatten() {
        let bytes = std::fs::read(file.path()).expect("it is there");
        machine.put(&format!("m/{}", file.file_name().to_string_lossy()), bytes);
    }
    let text = std::fs::read_to_string(machine.path("m/config.json")).expect("it is there");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(config["rope_parameters"]["rope_type"], "llama3", "the words of transformers 5");
    config["rope_scaling"] = json!({});
    machine.put("m/config.json", config.to_string());
    let dump =
        concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama3/dumps/transformers-f32.safetensors");
    let run = ["run", "--model", "m", "--reference", dump, "--no-report", "--checkpoint", "all"];
    machine.run(&run).succeeded();
}

/// Before anything is asked: nobody is at that address.
#[test]
fn a_recording_that_is_there_is_not_overwritten() {
    let machine = Machine::new();
    machine.put("answers.safetensors", "precious");
    let probe = ["probe", "http://127.0.0.1:9", "--model", "tiny-llama2", "--record", "answers.safetensors"];
    machine.refuses(&probe, &["answers.safetensors", "already exists"]);
    let kept = std::fs::read_to_string(machine.path("answers.safetensors")).expect("it is there");
    assert_eq!(kept, "precious");
}
