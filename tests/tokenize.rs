//! `xcheck tokenize` as a person or a program runs it.

use std::path::Path;

use crate::common::terminal::Terminal;
use assert_cmd::Command;
use serde_json::{Value, json};

fn data(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizers").join(path).display().to_string()
}

fn ids(arguments: &[&str]) -> Value {
    let (code, ids) = Terminal::new().json(&[&["tokenize", "--model"], arguments].concat());
    assert_eq!(code, 0);
    ids
}

fn with_stdin(stdin: &[u8], arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::cargo_bin("xcheck").unwrap();
    let output = command.args(["tokenize"]).args(arguments).write_stdin(stdin).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn ids_and_pieces_are_shown_side_by_side() {
    let shown = Terminal::new().run(&["tokenize", "-m", "tiny-llama2", "Lily 🙂"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let lines: Vec<Vec<&str>> = shown.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["position", "id", "piece", "text"]);
    assert_eq!(lines[1], ["0", "1", "<s>"]);
    assert_eq!(lines[2], ["1", "296", "▁Lily", "\"Lily\""]);
    assert_eq!(lines[7][2..], ["<0x82>", "\"🙂\""], "{}", shown.stdout);
    assert!(
        shown.stdout.trim_end().ends_with("7 tokens by tiny-llama2: 1,296,468,243,162,156,133"),
        "{}",
        shown.stdout
    );
}

#[test]
fn json_is_the_list_of_ids() {
    assert_eq!(ids(&["tiny-llama2", "Lily"]), json!([1, 296]));
    assert_eq!(ids(&["tiny-llama2-q8_0", "--no-bos", "Lily"]), json!([296]));
    assert_eq!(ids(&["tiny-llama2", ""]), json!([1]));
}

#[test]
fn names_of_special_tokens_are_text_unless_they_are_to_be_parsed() {
    for model in ["tiny-llama2-hf", "tiny-llama2-q8_0"] {
        assert_eq!(ids(&[model, "--parse-special", "--no-bos", "</s>"]), json!([2]), "{model}");
        assert_ne!(ids(&[model, "--no-bos", "</s>"]), json!([2]), "{model}");
    }
    let vocabulary = data("gpt2/vocabulary.gguf");
    let parsed = ids(&[&vocabulary, "--parse-special", "<|endoftext|>"]);
    assert_eq!(parsed.as_array().unwrap().len(), 1);
    assert!(ids(&[&vocabulary, "<|endoftext|>"]).as_array().unwrap().len() > 5);
}

#[test]
fn standard_input_is_read_to_its_end_and_not_trimmed() {
    let (code, stdout, _) = with_stdin(b" Lily\n\n", &["-m", "tiny-llama2", "--format", "json", "-"]);
    let read: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &read), (0, &ids(&["tiny-llama2", " Lily\n\n"])));
    assert_ne!(read, ids(&["tiny-llama2", "Lily"]));
}

#[test]
fn what_is_not_utf_8_is_refused_with_the_place() {
    let (code, stdout, stderr) = with_stdin(b"Lily \xFFwent", &["-m", "tiny-llama2", "-"]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("standard input: byte 5 (0xFF) is not valid UTF-8"), "{stderr}");
}

#[test]
fn every_kind_of_file_is_a_model() {
    let checkpoints = |path: &str| data(&format!("../../../checkpoints/{path}"));
    let lily = json!([1, 296]);
    for path in ["tiny-llama2/hf", "tiny-llama2/hf/tokenizer.json", "tiny-llama2/hf/tokenizer.model"] {
        assert_eq!(ids(&[&checkpoints(path), "Lily"]), lily, "{path}");
    }
    assert_eq!(ids(&[&data("llama2c/tokenizer.bin"), "Lily"]), lily);
    assert_eq!(ids(&[&checkpoints("tiny-gpt2/hf/vocab.json"), "Lily"]), ids(&["tiny-gpt2", "Lily"]));
}

#[test]
fn two_tokenizers_that_agree_are_a_pass() {
    let arguments = ["tokenize", "-m", "tiny-llama2-q8_0", "--compare", "tiny-llama2-hf", "Lily went home."];
    let same = Terminal::new().run(&arguments);
    assert_eq!(same.code, 0, "{}", same.stdout);
    assert!(same.stdout.starts_with("the same "), "{}", same.stdout);
}

#[test]
fn two_tokenizers_that_part_are_a_divergence_at_the_first_position() {
    let (llama3, qwen2) = (data("llama3/vocabulary.gguf"), data("qwen2/vocabulary.gguf"));
    let arguments = ["tokenize", "-m", &llama3, "--compare", &qwen2, "--no-bos", "ab 2020"];
    let parted = Terminal::new().run(&arguments);
    assert_eq!(parted.code, 1, "{}", parted.stderr);
    assert!(parted.stdout.contains("FAIL  the token ids differ from position"), "{}", parted.stdout);
    assert_eq!(parted.stdout.lines().filter(|line| line.trim_start().starts_with('>')).count(), 1);
    let (code, both) = Terminal::new().json(&arguments);
    let position = both["first_difference"].as_u64().unwrap() as usize;
    assert_eq!(code, 1);
    assert_ne!(both["this"][position], both["other"][position]);
    assert_eq!(both["this"].as_array().unwrap()[..position], both["other"].as_array().unwrap()[..position]);
}

/// Two vocabularies that number their pieces differently cut a text alike as long as their pieces are the same.
#[test]
fn where_pieces_part_is_told_apart_from_where_ids_do() {
    let (gpt2, llama3) = (data("gpt2/vocabulary.gguf"), data("llama3/vocabulary.gguf"));
    let shown = |text: &str| {
        let arguments = ["tokenize", "-m", &gpt2, "--compare", &llama3, "--no-bos", text];
        Terminal::new().run(&arguments).stdout
    };
    assert!(shown("friend").contains("the pieces are the same"), "{}", shown("friend"));
    assert!(shown("friend 202099").contains("the pieces differ from position"), "{}", shown("friend 202099"));
}

/// A list that is the beginning of the other parts at its end.
#[test]
fn a_token_more_is_a_divergence() {
    let terminal = Terminal::new();
    let arguments = ["tokenize", "-m", "tiny-llama2", "--compare", "tiny-llama2-pt", "x"];
    assert_eq!(terminal.run(&arguments).code, 2, "there is no such model");
    let gpt2 = data("gpt2/vocabulary.gguf");
    let parted = terminal.run(&["tokenize", "-m", "tiny-llama2", "--compare", &gpt2, ""]);
    assert_eq!(parted.code, 1, "BOS against nothing");
    assert!(parted.stdout.contains("end"), "{}", parted.stdout);
}

#[test]
fn a_model_without_a_tokenizer_is_refused() {
    Terminal::new().assert_refused(&["tokenize", "-m", "tiny-qwen3-hf", "x"], "no tokenizer found");
    Terminal::new().assert_refused(&["tokenize", "-m", "nowhere.gguf", "x"], "nowhere.gguf");
}
