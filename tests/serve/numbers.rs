//! That the figures are the engine's own, to the last bit.

use std::path::Path;

use serde_json::{Value, json};
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;
use xcheck::engine::{Generation, Request, RunInput, Sampling, StopReason};
use xcheck::model::LoadedModel;
use xcheck::numerics::{F32, KvType, LlamaCpp, Numerics};
use xcheck::ops::log_probabilities::Picks;
use xcheck::tensor::Tensor;

use super::server::Server;
use crate::common::{record, variant};

/// More than the rows of logits that are computed at once.
const LONG: usize = 150;

fn ids(count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| 3 + (index * 37) % 500).collect()
}

fn numbers(list: &Value) -> Vec<Option<u32>> {
    let list = list.as_array().expect("a list");
    list.iter().map(|number| number.as_f64().map(|number| (number as f32).to_bits())).collect()
}

/// The log-probabilities of tokens by the logits that our own dump of them holds.
fn of_our_dump(loaded: &LoadedModel, numerics: &dyn Numerics, tokens: &[u32]) -> Vec<Option<u32>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("dump");
    record(&*loaded.model, numerics, &RunInput::greedy(tokens, 0), &path);
    let logits = logits(&path);
    let (rows, next) = (tokens.len() - 1, tokens[1..].to_vec());
    let logprobs = numerics.log_probabilities(&logits, &Picks::new(&[rows], next), 1.0);
    std::iter::once(None).chain(logprobs.data().iter().map(|number| Some(number.to_bits()))).collect()
}

fn logits(path: &Path) -> Tensor {
    let dump = Dump::open(path).expect("it is sound");
    let site = Site { point: Point::Logits, layer: None, pass: Some(0) };
    let view = dump.view(site).expect("it can be read").expect("it holds logits");
    let values = view.to_vec().into_iter().map(|value: f64| value as f32).collect();
    Tensor::new(view.shape(), values)
}

#[test]
fn the_logprobs_of_an_echo_are_those_of_our_dump() {
    let server = Server::tiny(&[]);
    let loaded = variant("tiny-llama2-hf").load().expect("it loads");
    for tokens in [ids(5), ids(64), ids(LONG)] {
        let body = json!({"prompt": tokens, "echo": true, "logprobs": 1, "max_tokens": 0});
        let answer = server.ask("/v1/completions", &body);
        let found = numbers(&answer["choices"][0]["logprobs"]["token_logprobs"]);
        assert_eq!(found, of_our_dump(&loaded, &F32, &tokens));
        assert_eq!(
            answer["usage"],
            json!({"prompt_tokens": tokens.len(), "completion_tokens": 0, "total_tokens": tokens.len()})
        );
    }
}

/// The check above can fail: other numerics give other bits.
#[test]
fn a_server_that_computes_otherwise_is_seen() {
    let loaded = variant("tiny-llama2-q8_0").load().expect("it loads");
    let server = Server::start(&["--model", "tiny-llama2-q8_0", "--numerics", "llama.cpp"]);
    for tokens in [ids(12), ids(LONG)] {
        let body = json!({"prompt": tokens, "echo": true, "logprobs": 0, "max_tokens": 0});
        let answer = server.ask("/v1/completions", &body);
        let found = numbers(&answer["choices"][0]["logprobs"]["token_logprobs"]);
        assert_eq!(found, of_our_dump(&loaded, &LlamaCpp { kv: KvType::F16 }, &tokens));
        let otherwise = of_our_dump(&loaded, &F32, &tokens);
        let differ = found.iter().zip(&otherwise).filter(|(one, other)| one != other).count();
        assert!(differ > tokens.len() / 2, "{differ} of {}", tokens.len());
    }
}

#[test]
fn vllm_s_prompt_logprobs_are_the_same_numbers_by_id() {
    let server = Server::tiny(&[]);
    let tokens = ids(9);
    let body = json!({"prompt": tokens, "echo": true, "logprobs": 3, "prompt_logprobs": 3, "max_tokens": 1});
    let choice = &server.ask("/v1/completions", &body)["choices"][0];
    let by_id = choice["prompt_logprobs"].as_array().expect("a list");
    assert_eq!((by_id.len(), &by_id[0]), (9, &Value::Null));
    for (position, (entry, token)) in by_id.iter().zip(&tokens).enumerate().skip(1) {
        let own = &entry[token.to_string()];
        assert_eq!(own["logprob"], choice["logprobs"]["token_logprobs"][position]);
        let entries = entry.as_object().expect("an object");
        let rank = own["rank"].as_u64().expect("a rank");
        assert_eq!(entries.len(), if rank <= 3 { 3 } else { 4 });
        let better =
            entries.values().filter(|other| other["logprob"].as_f64() > own["logprob"].as_f64()).count();
        assert_eq!(better as u64, (rank - 1).min(3));
    }
}

#[test]
fn what_is_generated_is_what_generate_generates() {
    let server = Server::tiny(&[]);
    let loaded = variant("tiny-llama2-hf").load().expect("it loads");
    let sampling = Sampling { temperature: 0.8, top_k: Some(40), top_p: Some(0.9), min_p: None, seed: 7 };
    for (asked, sampling) in [
        (json!({"temperature": 0}), Sampling::GREEDY),
        (json!({"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 7}), sampling),
    ] {
        let mut body = json!({"prompt": ids(8), "max_tokens": 40, "return_token_ids": true, "logprobs": 2});
        body.as_object_mut().expect("an object").extend(asked.as_object().expect("an object").clone());
        let choice = &server.ask("/v1/completions", &body)["choices"][0];
        let request = Request {
            prompt: ids(8),
            max_tokens: 40,
            stop: loaded.end_tokens.clone(),
            context: 64,
            forgets: false,
            sampling,
        };
        let mut generation = Generation::new(&*loaded.model, &F32, request).expect("sound");
        let mut logprobs = Vec::new();
        while let Some(token) = generation.advance().expect("it computes") {
            let logits = Tensor::new(&[1, 512], generation.logits().to_vec());
            let own = F32.log_probabilities(&logits, &Picks::new(&[1], vec![token]), 1.0);
            logprobs.push(Some(own.data()[0].to_bits()));
        }
        let mut generated = generation.generated().to_vec();
        if let Some(StopReason::Stop(id)) = generation.ending() {
            let logits = Tensor::new(&[1, 512], generation.logits().to_vec());
            let own = F32.log_probabilities(&logits, &Picks::new(&[1], vec![id]), 1.0);
            logprobs.push(Some(own.data()[0].to_bits()));
            generated.push(id);
        }
        assert_eq!(choice["token_ids"], json!(generated));
        assert_eq!(choice["prompt_token_ids"], json!(ids(8)));
        assert_eq!(numbers(&choice["logprobs"]["token_logprobs"]), logprobs);
    }
}

/// lm-evaluation-harness asks for one token behind a text and takes it off again: without it the last of the text is lost.
#[test]
fn the_eos_token_is_reported_without_text() {
    let server = Server::tiny(&[]);
    let body = json!({
        "prompt": "The cat sat on the mat and was happy.", "add_special_tokens": false, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true,
        "return_token_ids": true,
    });
    let answer = server.ask("/v1/completions", &body);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["token_ids"], &choice["finish_reason"]), (&json!([2]), &json!("stop")));
    let prompt = choice["prompt_token_ids"].as_array().expect("ids").len();
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    let lists = &choice["logprobs"];
    assert_eq!(lists["tokens"].as_array().map(Vec::len), Some(prompt + 1));
    assert_eq!(lists["tokens"][prompt], "</s>");
    assert!(lists["token_logprobs"][prompt].as_f64().expect("a number") < 0.0);
    assert!(choice["text"].as_str().expect("a text").ends_with("happy."));
}

#[test]
fn numbers_are_as_short_as_they_can_be() {
    let body = json!({"prompt": ids(4), "echo": true, "logprobs": 0, "max_tokens": 0});
    let answer = Server::tiny(&[]).post("/v1/completions", &body);
    let list = answer.body.split("\"token_logprobs\":[null,").nth(1).expect("a list");
    for written in list.split(']').next().expect("its end").split(',') {
        let number: f32 = written.parse().expect("a number");
        assert_eq!(written, number.to_string());
    }
}
