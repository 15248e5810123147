//! Text to text: what is generated, when it ends, and what is refused.

use crate::common;
use std::fs;
use std::path::Path;

use crate::common::terminal::Terminal;
use crate::common::{reference, variant};
use assert_cmd::Command;
use serde_json::Value;
use xcheck::engine::{Engine, Generation, Request, Sampling, generate_all};
use xcheck::error::{Error, RunError, TokenizerError};
use xcheck::model::LoadedModel;
use xcheck::numerics::{F32, LlamaCpp, Numerics};

fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens,
        stop: Vec::new(),
        context: 64,
        forgets: false,
        sampling: Sampling::GREEDY,
    }
}

fn load(name: &str) -> LoadedModel {
    variant(name).load().expect("it loads")
}

fn generate(loaded: &LoadedModel, numerics: &dyn Numerics, request: Request) -> Vec<u32> {
    let mut all = [Generation::new(&*loaded.model, numerics, request).expect("sound")];
    generate_all(&mut all, |_, _| true).expect("it generates");
    all[0].generated().to_vec()
}

// ---- what is generated ----------------------------------------------------------------------------------

#[test]
fn greedy_generation_is_what_transformers_generated() {
    let dump = reference("transformers-f32");
    let manifest = &dump.manifest;
    let generated = manifest.generated.clone().expect("the dump holds it");
    let found = generate(&load("tiny-llama2-hf"), &F32, request(&manifest.input.tokens, generated.len()));
    assert_eq!(found, generated);
}

#[test]
fn the_trained_model_goes_on_in_sentences() {
    let finished = Terminal::new().run(&["generate", "--model", "tiny-llama2", "--prompt", "Once"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(finished.stdout.starts_with("Once upon a time"), "{}", finished.stdout);
    assert!(finished.stdout.contains(". "), "{}", finished.stdout);
    for figure in ["tokens/s", "first token after", "peak memory", "KV cache", "numerics f32"] {
        assert!(finished.stderr.contains(figure), "{}", finished.stderr);
    }
}

#[test]
fn the_same_sampling_seed_gives_the_same_text_and_another_one_another() {
    let text = |seed: &str| {
        let arguments = ["generate", "--model", "tiny-llama2", "--prompt", "Once", "-n", "20"];
        let sampling = ["--temperature", "1", "--top-k", "50", "--top-p", "0.95", "--min-p", "0.01"];
        let finished = Terminal::new().run(&[&arguments[..], &sampling, &["--seed", seed]].concat());
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        finished.stdout
    };
    assert_eq!(text("1"), text("1"));
    assert_ne!(text("1"), text("2"));
}

/// Items are sampled independently: the first by the seed that was given, each further one by the next.
#[test]
fn samples_of_one_prompt_differ_and_each_has_its_own_sampling_seed() {
    let sampled = |seed: &str, samples: &str| -> Vec<Value> {
        let arguments = ["generate", "--model", "tiny-llama2", "--prompt", "Once", "-n", "24"];
        let sampling = ["--temperature", "1.5", "--seed", seed, "--n", samples];
        let (code, document) = Terminal::new().json(&[&arguments[..], &sampling].concat());
        assert_eq!(code, 0, "{document:#}");
        let sequences = document["sequences"].as_array().expect("a list");
        sequences.iter().map(|sequence| sequence["tokens"].clone()).collect()
    };
    let three = sampled("5", "3");
    assert!(three.len() == 3 && three[0] != three[1] && three[1] != three[2], "{three:?}");
    let alone: Vec<_> = ["5", "6", "7"].iter().flat_map(|seed| sampled(seed, "1")).collect();
    assert_eq!(three, alone);
    let two = ["generate", "--model", "tiny-llama2", "--prompt", "Once", "--prompt", "Once", "-n", "24"];
    let (_, document) = Terminal::new().json(&[&two[..], &["--temperature", "1.5", "--seed", "5"]].concat());
    let tokens: Vec<_> = (0..2).map(|item| document["sequences"][item]["tokens"].clone()).collect();
    assert_eq!(tokens, alone[..2]);
    Terminal::new().assert_refused(&[&two[..], &["--samples", "0"]].concat(), "expected 1 to 1024");
}

#[test]
fn an_empty_prompt_begins_with_bos() {
    let prompt = |model: &str| {
        let (_, document) = Terminal::new().json(&["generate", "--model", model, "--prompt", "", "-n", "2"]);
        document["sequences"][0]["prompt_tokens"].clone()
    };
    assert_eq!(prompt("tiny-llama2"), serde_json::json!([1]), "its tokenizer adds it");
    assert_eq!(prompt("tiny-gpt2"), serde_json::json!([511]), "its config.json names it");
}

#[test]
fn nothing_to_generate_has_no_speed() {
    let nothing = ["generate", "--model", "tiny-llama2", "--prompt", "Once", "-n", "0"];
    let finished = Terminal::new().run(&nothing);
    assert!(finished.code == 0 && !finished.stderr.contains("inf"), "{}", finished.stderr);
    assert_eq!(Terminal::new().json(&nothing).1["prompt_tokens_per_second"], Value::Null);
}

/// Quantised weights are computed with as they are stored, by the engine that the file is for; f32 decodes them where it is asked for.
#[test]
fn quantised_weights_are_computed_with_as_they_are_stored() {
    let cases = [
        ("tiny-llama2-q8_0", "llama.cpp"),
        ("tiny-bitnet-i2_s", "bitnet.cpp"),
        ("tiny-llama2-f16", "f32"),
        ("tiny-llama2-hf", "f32"),
    ];
    let numerics = |model: &str, options: &[&str]| {
        let run = ["generate", "--model", model, "--tokens", "1,5,9", "-n", "3"];
        let (code, document) = Terminal::new().json(&[&run[..], options].concat());
        assert_eq!(code, 0, "{document:#}");
        (
            document["numerics"].as_str().expect("a name").to_owned(),
            document["sequences"][0]["tokens"].clone(),
        )
    };
    for (model, expected) in cases {
        let stored = numerics(model, &[]);
        assert_eq!(stored, numerics(model, &["--numerics", expected]), "{model}");
        assert_eq!(stored.0, expected);
    }
    assert_eq!(numerics("tiny-bitnet-i2_s", &["--numerics", "f32"]).0, "f32");
    let terminal = Terminal::new();
    let dump = ["dump", "--model", "tiny-llama2-q8_0", "--tokens", "1,5", "--out", "d.safetensors"];
    assert_eq!(terminal.run(&dump).code, 0);
    let inspected = terminal.run(&["inspect", "d.safetensors"]).stdout;
    assert!(inspected.contains("llama.cpp"), "{inspected}");
}

#[test]
fn sequences_in_a_batch_have_the_bits_of_each_alone() {
    let numerics: [&dyn Numerics; 2] = [&F32, &LlamaCpp::default()];
    for (name, numerics) in ["tiny-llama2-f16", "tiny-gemma3-q8_0"].into_iter().zip(numerics) {
        let loaded = load(name);
        let requests =
            [&[1u32, 393, 395, 260, 394, 7, 8, 9, 10][..], &[1], &[5, 6, 7]].map(|prompt| Request {
                sampling: Sampling { temperature: 0.9, seed: 3, ..Sampling::GREEDY },
                ..request(prompt, prompt.len() + 4)
            });
        let start =
            |request: &Request| Generation::new(&*loaded.model, numerics, request.clone()).expect("sound");
        let mut together = requests.each_ref().map(start);
        generate_all(&mut together, |_, _| true).expect("it generates");
        for (one, request) in together.iter().zip(&requests) {
            let mut alone = [start(request)];
            generate_all(&mut alone, |_, _| true).expect("it generates");
            assert_eq!(one.generated(), alone[0].generated());
            let bits =
                |one: &Generation| one.logits().iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(one), bits(&alone[0]));
            assert_eq!(one.generated().len(), request.max_tokens);
        }
    }
}

#[test]
fn several_prompts_print_what_each_prints_alone() {
    let terminal = Terminal::new();
    fs::write(terminal.path().join("prompts"), "Once\nThe dog\n").expect("it is written");
    let with = |arguments: &[&str]| {
        let base = ["generate", "--model", "tiny-llama2", "-n", "12"];
        let finished = terminal.run(&[&base[..], arguments].concat());
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        finished.stdout
    };
    let alone = with(&["--prompt", "Once"]) + &with(&["--prompt", "The dog"]);
    assert_eq!(with(&["--prompts-file", "prompts"]), alone);
    assert_eq!(with(&["--prompt", "Once", "--prompt", "The dog"]), alone);
}

#[test]
fn json_holds_the_text_the_ids_and_why_it_ended() {
    let arguments = ["generate", "--model", "tiny-llama2", "--prompt", "Once", "-n", "5"];
    let (code, report) = Terminal::new().json(&arguments);
    assert_eq!(code, 0);
    let sequence = &report["sequences"][0];
    assert_eq!(sequence["tokens"].as_array().expect("ids").len(), 5);
    assert_eq!((&sequence["ended_by"], &sequence["stop_id"]), (&"length".into(), &Value::Null));
    let text = |key: &str| sequence[key].as_str().expect("a text").to_owned();
    let printed = Terminal::new().run(&arguments).stdout;
    assert_eq!(printed, text("prompt") + &text("text") + "\n");
    let without = Terminal::new().run(&[&arguments[..], &["--no-echo"]].concat()).stdout;
    assert_eq!(without, text("text") + "\n");
    assert!(report["decode_tokens_per_second"].as_f64().expect("a rate") > 0.0);
}

#[test]
fn a_prompt_comes_from_standard_input_and_only_the_text_goes_to_standard_output() {
    let mut command = Command::cargo_bin("xcheck").expect("it is built");
    let run = command.args(["generate", "--model", "tiny-llama2", "--prompt", "-", "-n", "3"]);
    let output = run.write_stdin("Once").output().expect("it starts");
    let piped = Terminal::new().run(&["generate", "--model", "tiny-llama2", "--prompt", "Once", "-n", "3"]);
    assert_eq!(String::from_utf8(output.stdout).expect("UTF-8"), piped.stdout);
}

/// A copy of the shipped model beside a tokenizer that nobody can use.
fn without_tokenizer() -> (Terminal, String) {
    let terminal = Terminal::new();
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints/tiny-llama2/hf");
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(original.join(name), terminal.path().join(name)).expect("it is there");
    }
    fs::write(terminal.path().join("tokenizer.json"), r#"{"version": "1.0"}"#).expect("it is written");
    let folder = terminal.path().display().to_string();
    (terminal, folder)
}

#[test]
fn ids_go_on_in_ids_where_the_tokenizer_cannot_be_used() {
    let (terminal, folder) = without_tokenizer();
    let arguments = ["generate", "--model", &folder, "--tokens", "1,393", "-n", "3"];
    let ids = generate(&load("tiny-llama2-hf"), &F32, request(&[1, 393], 3));
    let expected = [&[1, 393], ids.as_slice()].concat();
    let finished = terminal.run(&arguments);
    let printed: Vec<u32> = finished.stdout.split_whitespace().map(|id| id.parse().expect("an id")).collect();
    assert_eq!((finished.code, printed), (0, expected), "{}", finished.stderr);
    assert!(finished.stderr.starts_with("printing token ids"), "{}", finished.stderr);
    fs::remove_file(terminal.path().join("tokenizer.json")).expect("it was there");
    let without = terminal.run(&arguments);
    assert_eq!((without.code, without.stdout), (0, finished.stdout));
}

#[test]
fn a_text_goes_nowhere_where_the_tokenizer_cannot_be_used() {
    let (terminal, folder) = without_tokenizer();
    terminal.assert_refused(&["generate", "--model", &folder, "--prompt", "Once"], "tokenizer.json");
}

// ---- when it ends ---------------------------------------------------------------------------------------

#[test]
fn a_stop_token_ends_the_text_and_is_no_part_of_it() {
    let loaded = load("tiny-llama2-hf");
    let whole = generate(&loaded, &F32, request(&[1, 393], 10));
    let place = whole.iter().position(|id| *id == whole[4]).expect("it is there");
    let mut stopped = [Generation::new(
        &*loaded.model,
        &F32,
        Request { stop: vec![511, whole[4]], ..request(&[1, 393], 10) },
    )
    .expect("sound")];
    generate_all(&mut stopped, |_, _| true).expect("it generates");
    assert_eq!(stopped[0].generated(), &whole[..place]);
    assert_eq!(stopped[0].ending(), Some(xcheck::engine::StopReason::Stop(whole[4])));

    let stop = whole[4].to_string();
    let arguments =
        ["generate", "--model", "tiny-llama2", "--tokens", "1,393", "--stop-id", &stop, "-n", "10"];
    let (_, report) = Terminal::new().json(&arguments);
    assert_eq!(report["sequences"][0]["ended_by"], "stop");
    assert_eq!(report["sequences"][0]["stop_id"], whole[4]);
}

#[test]
fn nothing_is_generated_where_nothing_is_asked_for() {
    assert_eq!(generate(&load("tiny-llama2-hf"), &F32, request(&[1, 393], 0)), [0u32; 0]);
}

// ---- the cache ------------------------------------------------------------------------------------------

#[test]
fn the_kv_cache_grows_with_the_tokens_read_and_not_with_the_context() {
    let loaded = load("tiny-llama2-hf");
    let mut engine = Engine::new(&*loaded.model, &F32, 256).expect("it fits");
    assert_eq!(engine.cache_bytes(), 0);
    engine.read(&[1, 2, 3], &mut ()).expect("it reads");
    let some = engine.cache_bytes();
    // 4 layers, keys and values, 128 numbers of 4 bytes, in chunks of 256 tokens.
    assert_eq!(some, 4 * 2 * 128 * 4 * 256);
}

#[test]
fn a_kv_cache_of_the_sliding_window_alone_gives_the_same_tokens() {
    let loaded = load("tiny-gemma3-hf");
    let with = |forgets| {
        let request = Request { forgets, ..request(&[1, 2, 3, 4, 5, 6, 7], 50) };
        generate(&loaded, &F32, request)
    };
    assert_eq!(with(true), with(false));
    let mut engine = Engine::new(&*loaded.model, &F32, 64).expect("it fits").forgetting();
    assert!(!engine.has_forgotten());
    engine.read(&[7; 40], &mut ()).expect("it reads");
    assert!(engine.has_forgotten());
}

// ---- what is refused ------------------------------------------------------------------------------------

#[test]
fn a_prompt_and_generation_beyond_the_context_are_refused_before_anything_is_computed() {
    let loaded = load("tiny-llama2-hf");
    let refused =
        |request| Generation::new(&*loaded.model, &F32, request).err().expect("it is refused").to_string();
    let message = refused(Request { context: 8, ..request(&[1, 2, 3], 6) });
    assert!(
        message.contains("3 prompt tokens and 6 tokens to generate do not fit a context of 8"),
        "{message}"
    );
    let message = refused(Request { context: 257, ..request(&[1], 1) });
    assert!(message.contains("257 tokens are more than the 256 that the model was trained for"), "{message}");
    assert!(refused(request(&[], 1)).contains("no tokens"));
    assert!(refused(request(&[1], usize::MAX)).contains("do not fit"));
    assert!(matches!(
        Generation::new(&*loaded.model, &F32, request(&[512], 1)).err(),
        Some(Error::Tokenizer(TokenizerError::BadToken { id: 512, .. }))
    ));
}

#[test]
fn the_context_may_be_filled_to_its_last_token() {
    assert_eq!(
        generate(&load("tiny-llama2-hf"), &F32, Request { context: 8, ..request(&[1, 2, 3], 5) }).len(),
        5
    );
}

#[test]
fn invalid_context_token_and_sampling_options_are_refused_with_one_message() {
    let terminal = Terminal::new();
    let refused = |arguments: &[&str], expected: &str| {
        terminal.assert_refused(&[&["generate", "--model", "tiny-llama2"], arguments].concat(), expected);
    };
    refused(&["--tokens", "1,2", "--context", "4", "-n", "3"], "do not fit a context of 4");
    refused(&["--tokens", "1,2", "--context", "2"], "do not fit a context of 2");
    refused(&["--tokens", "1,2", "--context", "300"], "more than the 256");
    refused(&["--tokens", "1,900"], "token id 900 at position 1");
    refused(&["--tokens", "1", "--temperature", "1", "--top-k", "0"], "top-k is 0");
    refused(&["--tokens", "1", "--temperature", "nan"], "the temperature is NaN");
    refused(&["--tokens", "1", "--temperature", "1", "--top-p", "2"], "top-p is 2");
    refused(&["--prompts-file", "absent"], "cannot open absent");
    refused(&["--tokens", "1", "--top-k", "3"], "--temperature");
    refused(&[], "--prompt");
}

#[test]
fn nan_logits_end_the_generation_with_an_error() {
    use crate::common::faulty::Faulty;
    let linear = |x: &xcheck::tensor::Tensor, w: &_| common::LLAMA_CPP_F32.linear(x, w).map(|_| f32::NAN);
    let numerics = Faulty { linear: Some(linear), ..Faulty::default() };
    let model = common::tiny_llama2();
    let mut generation = Generation::new(&model, &numerics, request(&[1, 2], 3)).expect("sound");
    assert!(matches!(generation.advance(), Err(Error::Run(RunError::BadLogits { .. }))));
}
