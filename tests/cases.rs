//! Known end-to-end cases: they run where their model is given, and fail where a token is another.

use std::fs;

use crate::common::reference_of;
use crate::common::terminal::Terminal;
use serde_json::Value;
use xcheck::cases::Cases;
use xcheck::model::Dimensions;

/// A case as a real engine has seen it: transformers' own prompt, tokens and continuation of a shipped model.
struct Seen {
    prompt: String,
    tokens: Vec<u32>,
    generated: Vec<u32>,
}

impl Seen {
    fn of(model: &str) -> Self {
        let manifest = reference_of(model, "transformers-f32").manifest;
        let generated = manifest.generated.expect("it has generated");
        Self { prompt: manifest.input.prompt, tokens: manifest.input.tokens, generated }
    }

    /// Writes it as the only case of a file.
    fn write(&self, terminal: &Terminal, models: &str) {
        let Self { prompt, tokens, generated } = self;
        let text = format!(
            "[[case]]\nname = \"mine\"\nmodels = [{models:?}]\nprompt = {prompt:?}\ntokens = {tokens:?}\n\
             generated = {generated:?}\nsource = \"transformers\"\n"
        );
        fs::write(terminal.path().join("cases.toml"), text).expect("it is written");
    }
}

const BY_NAME: &[&str] = &["run", "-m", "tiny-llama2", "--cases", "cases.toml", "--case", "mine"];

/// The report's only reference.
fn only(report: &Value) -> &Value {
    let references = report["references"].as_array().expect("references");
    assert_eq!(references.len(), 1, "a case that is named is run alone");
    &references[0]
}

#[test]
fn a_case_is_run_beside_the_references_where_its_model_is_given_and_not_elsewhere() {
    let terminal = Terminal::new();
    let names = |models: &str, arguments: &[&str]| {
        Seen::of("tiny-llama2").write(&terminal, models);
        let run = [&["run", "-m", "tiny-llama2", "--cases", "cases.toml"][..], arguments].concat();
        let (code, report) = terminal.json(&run);
        assert_eq!((code, &report["verdict"]), (0, &"pass".into()));
        let references = report["references"].as_array().expect("references").clone();
        references
            .iter()
            .map(|reference| reference["name"].as_str().expect("a name").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("tiny-llama2", &["--checkpoint", "all"]).last().map(String::as_str), Some("mine"));
    assert!(!names("gpt2-medium", &[]).contains(&"mine".to_owned()), "it is of another model");
    for other in
        [&["--checkpoint", "1-7"][..], &["--isolate"], &["--from-reference"], &["-r", "llama.cpp-f32"]]
    {
        assert!(
            !names("tiny-llama2", other).contains(&"mine".to_owned()),
            "{other:?} asks for something else"
        );
    }
}

#[test]
fn a_right_case_passes_in_its_tokens_and_in_its_continuation() {
    let terminal = Terminal::new();
    Seen::of("tiny-llama2").write(&terminal, "x");
    let (code, report) = terminal.json(BY_NAME);
    assert_eq!(code, 0);
    let rows = only(&report)["results"].as_array().expect("results");
    let taps: Vec<_> = rows.iter().map(|row| row["tap"].as_str().expect("a tap")).collect();
    assert_eq!(taps, ["tokens", "generated"]);
    assert!(
        rows.iter().all(|row| row["verdict"] == "pass"
            && row["accumulated"]["identical"] == row["accumulated"]["elements"])
    );
    assert_eq!(only(&report)["producer"]["settings"]["source"], "transformers");
    assert_eq!(only(&report)["checkpoints"].as_array().map(Vec::len), Some(2), "it knows of no others");
    assert_eq!(only(&report)["notes"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_wrong_token_fails_at_its_step() {
    let terminal = Terminal::new();
    for step in [0, 2, 4] {
        let mut seen = Seen::of("tiny-llama2");
        let right = seen.generated[step];
        seen.generated[step] = right ^ 1;
        seen.write(&terminal, "x");
        let (code, report) = terminal.json(BY_NAME);
        let first = &only(&report)["first_divergence"];
        assert_eq!((code, &first["tap"], &first["worst_index"][0]), (1, &"generated".into(), &step.into()));
        assert_eq!(first["candidate"].as_f64(), Some(right.into()));
    }
    let finished = terminal.run(BY_NAME);
    assert!(finished.stdout.contains("generated, index [4]"), "{}", finished.stdout);
    assert!(
        finished.stdout.contains("--case mine --cases cases.toml --checkpoint 12"),
        "{}",
        finished.stdout
    );
    assert!(!finished.stdout.contains("xcheck inspect"), "a case is no dump: {}", finished.stdout);
}

#[test]
fn a_prompt_that_is_encoded_otherwise_fails() {
    let terminal = Terminal::new();
    let again = "xcheck run --model tiny-llama2 --case mine --cases cases.toml --checkpoint input";
    for edit in [|tokens: &mut Vec<u32>| tokens[2] ^= 1, |tokens: &mut Vec<u32>| tokens.truncate(3)] {
        let mut seen = Seen::of("tiny-llama2");
        edit(&mut seen.tokens);
        seen.write(&terminal, "x");
        let (code, report) = terminal.json(BY_NAME);
        let first = &only(&report)["first_divergence"];
        assert_eq!((code, &first["tap"]), (1, &"tokens".into()));
        assert!(first["reason"].as_str().expect("a reason").contains("the prompt is tokenized as [1, "));
        assert!(terminal.run(BY_NAME).stdout.contains(again));
        assert_eq!(terminal.run(&[BY_NAME, &["--checkpoint", "input"]].concat()).code, 1);
    }
}

#[test]
fn without_a_tokenizer_the_continuation_is_compared_and_the_rest_is_said_not_to_be_covered() {
    let terminal = Terminal::new();
    Seen::of("tiny-llama3").write(&terminal, "tiny-llama3");
    let bare = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama3/hf");
    let (code, report) = terminal.json(&["run", "-m", bare, "--cases", "cases.toml", "--case", "mine"]);
    let reference = only(&report);
    assert_eq!((code, reference["results"].as_array().map(Vec::len)), (0, Some(1)));
    assert!(reference["notes"][0].as_str().expect("a note").starts_with("tokens: "));
}

#[test]
fn a_case_without_a_continuation_is_of_the_tokenizer_alone_and_no_pass_of_the_model() {
    let terminal = Terminal::new();
    let mut seen = Seen::of("tiny-llama2");
    seen.generated.clear();
    seen.write(&terminal, "x");
    let (code, report) = terminal.json(BY_NAME);
    assert_eq!(
        (code, &report["verdict"], &only(&report)["verdict"]),
        (3, &"inconclusive".into(), &"pass".into())
    );
    seen.tokens[1] ^= 1;
    seen.write(&terminal, "x");
    assert_eq!(terminal.json(BY_NAME).0, 1);
}

/// Sizes of a model without grouped queries: vocabulary, context, layers, hidden size, heads.
fn sizes([vocab_size, context_length, n_layers, hidden_size, n_heads]: [usize; 5]) -> Dimensions {
    Dimensions {
        vocab_size,
        context_length,
        n_layers,
        hidden_size,
        n_heads,
        head_dim: hidden_size / n_heads,
        kv_width: hidden_size,
        rope_pairing: None,
        experts: 0,
        expert_groups: None,
        value_width: hidden_size,
    }
}

const LLAMA2_7B: [usize; 5] = [32000, 4096, 32, 4096, 32];
const GPT2_MEDIUM: [usize; 5] = [50257, 1024, 24, 1024, 16];

#[test]
fn a_specified_model_is_recognised_by_its_sizes_whatever_it_is_called() {
    let shipped = Cases::shipped();
    let names = |name: &str, architecture: &str, known: [usize; 5]| {
        let cases = shipped.of_model(name, architecture, sizes(known));
        cases.into_iter().map(|case| (case.name, case.generated.len())).collect::<Vec<_>>()
    };
    let hello = vec![("llama2-hello".to_owned(), 0)];
    for name in
        ["llama2-7b:Q8_0", "meta-llama/Llama-2-7b-hf", "TheBloke/Llama-2-7B-GGUF:llama-2-7b.Q8_0.gguf", "m"]
    {
        assert_eq!(names(name, "llama", LLAMA2_7B), hello, "{name}");
    }
    let [world, life] = ["gpt2-hello-world", "gpt2-medium-answer-to-life"].map(str::to_owned);
    for name in
        ["openai-community/gpt2-medium", "GPT2 Medium", "gpt2-medium-q8_0.gguf", "x/gpt2-medium-hf:f16"]
    {
        assert_eq!(names(name, "gpt2", GPT2_MEDIUM), [(world.clone(), 0), (life.clone(), 10)], "{name}");
    }
    for name in [
        "gpt2-medium-persona-chat",
        "gpt2-mediums",
        "my/finetuned-gpt2-medium",
        "gpt2-medium/finetuned",
        "f16:q8_0",
    ] {
        assert_eq!(names(name, "gpt2", GPT2_MEDIUM), [(world.clone(), 0), (life.clone(), 0)], "{name}");
    }
    // Another model of these sizes has the tokenizer, and not the continuation.
    assert_eq!(names("DialoGPT-medium", "gpt2", GPT2_MEDIUM), [(world, 0), (life, 0)]);
    let trained_further = shipped.of_model("DialoGPT-medium", "gpt2", sizes(GPT2_MEDIUM));
    assert!(
        trained_further[1]
            .note
            .as_ref()
            .is_some_and(|note| note.contains("--case gpt2-medium-answer-to-life"))
    );
    for other in 0..5 {
        let mut known = LLAMA2_7B;
        known[other] *= 2;
        assert_eq!(names("m", "llama", known), [], "{known:?}");
    }
    assert_eq!(names("m", "qwen2", LLAMA2_7B), []);
}

#[test]
fn cases_that_ship_are_sound_and_others_are_checked() {
    let shipped = Cases::shipped();
    let tiny = sizes([512, 256, 4, 128, 4]);
    let of_model = |name: &str| shipped.of_model(name, "llama", tiny);
    let life = of_model("gpt2-medium").into_iter().find(|case| !case.generated.is_empty()).expect("it ships");
    assert_eq!((life.tokens.len(), life.generated.len()), (13, 10));
    assert_eq!(of_model("llama2-7b")[0].tokens, [1, 15043]);
    assert_eq!(of_model("tiny-llama2"), []);

    let terminal = Terminal::new();
    let listed = terminal.run(&["models"]).stdout;
    let has_a_line = |name: &str| listed.lines().any(|line| line.split_whitespace().next() == Some(name));
    for name in ["llama2-7b", "llama2-7b-chat", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"] {
        assert!(!of_model(name).is_empty() && has_a_line(name), "{name} is no name of a model: {listed}");
    }
    terminal.assert_refused(&["run", "-m", "tiny-llama2", "--case", "nope"], "gpt2-medium-answer-to-life");
    let file = terminal.path().join("cases.toml");
    let case = |name: &str, tokens: &str| {
        format!("[[case]]\nname = \"{name}\"\nmodels = []\nprompt = \"\"\n{tokens}\nsource = \"\"\n")
    };
    for (text, expected) in [
        (case("mine", "tokens = []"), "has no tokens"),
        (case("mine", ""), "tokens"),
        (case("mine", "tokens = [1]\ntoken = 1"), "token"),
        (case("llama2-hello", "tokens = [1]"), "duplicate case name 'llama2-hello'"),
        ("not toml".into(), "cases.toml"),
    ] {
        fs::write(&file, text).expect("it is written");
        terminal.assert_refused(BY_NAME, expected);
    }
    fs::write(&file, case("mine", "tokens = [1, 99999]")).expect("it is written");
    assert_eq!(terminal.run(BY_NAME).code, 1, "ids outside the vocabulary are other tokens");
}
