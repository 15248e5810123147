//! What is no request, or asks for what is not computed here: one message each, in OpenAI's shape.

use serde_json::{Value, json};

use super::server::Server;

#[test]
fn what_would_change_the_answer_is_refused_and_not_ignored() {
    let server = Server::tiny(&[]);
    let asked = [
        ("n", json!(2)),
        ("best_of", json!(2)),
        ("suffix", json!("end")),
        ("presence_penalty", json!(0.1)),
        ("frequency_penalty", json!(-1)),
        ("repetition_penalty", json!(1.1)),
        ("logit_bias", json!({"5": 100})),
        ("response_format", json!({"type": "json_object"})),
        ("tools", json!([{"type": "function"}])),
        ("guided_json", json!({})),
        ("min_tokens", json!(3)),
    ];
    for (field, value) in asked {
        let mut body = json!({"prompt": [1, 5], "max_tokens": 1});
        body[field] = value;
        server.post("/v1/completions", &body).refused(400, Some(field), &[field]);
    }
}

#[test]
fn what_changes_nothing_is_let_pass() {
    let server = Server::tiny(&[]);
    let plain = json!({"prompt": [1, 5], "max_tokens": 3, "temperature": 0});
    let mut body = plain.clone();
    body.as_object_mut().expect("an object").extend(
        json!({
            "n": 1, "best_of": 1.0, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "tools": [],
            "response_format": {"type": "text"}, "user": "me", "suffix": null, "stop": null, "anything": null,
            "model": "tiny-llama2-hf", "seed": 1234,
        })
        .as_object()
        .expect("an object")
        .clone(),
    );
    let (one, other) = (server.ask("/v1/completions", &plain), server.ask("/v1/completions", &body));
    assert_eq!(one["choices"], other["choices"]);
}

#[test]
fn malformed_bodies_have_one_message_each() {
    let server = Server::tiny(&[]);
    let refused = |body: &str, param: Option<&str>, words: &[&str]| {
        server.post_text("/v1/completions", body).refused(400, param, words);
    };
    refused("", None, &["not a JSON object"]);
    refused("[1, 2]", None, &["not a JSON object", "[1,2]"]);
    refused("{\"prompt\": [1", None, &["not a JSON object", "line 1"]);
    refused(&("[".repeat(100_000)), None, &["not a JSON object"]);
    refused("{}", Some("prompt"), &["missing"]);
    let field = |name: &str, value: Value, words: &[&str]| {
        let mut body = json!({"prompt": [1, 5], "max_tokens": 1});
        body[name] = value;
        refused(&body.to_string(), Some(name), words);
    };
    field("prompt", json!({"a": 1}), &["a list of token ids"]);
    field("prompt", json!([1, "a"]), &["a list of token ids"]);
    field("prompt", json!([]), &["no tokens"]);
    field("prompt", json!([-1]), &["a list of token ids"]);
    field("max_tokens", json!("many"), &["many", "a number of tokens"]);
    field("max_tokens", json!(-1), &["-1"]);
    field("temperature", json!("hot"), &["hot", "a number"]);
    field("stream", json!(1), &["true or false"]);
    field("stream_options", json!({"usage": true}), &["include_usage"]);
    field("stop", json!([""]), &["empty"]);
    field("stop", json!(7), &["a string"]);
    field("logprobs", json!(-1), &["0 to 20"]);
    field("seed", json!("x"), &["64-bit integer"]);
    for (name, value) in [("temperature", json!(-1)), ("top_p", json!(2)), ("min_p", json!(-0.5))] {
        let mut body = json!({"prompt": [1, 5]});
        body[name] = value;
        refused(&body.to_string(), None, &["expected"]);
    }
}

#[test]
fn another_model_route_method_or_type_is_refused() {
    let server = Server::tiny(&["--name", "reference"]);
    let body = json!({"prompt": [1, 5], "max_tokens": 1, "model": "gpt-4"});
    server.post("/v1/completions", &body).refused(404, Some("model"), &["gpt-4", "reference"]);
    assert_eq!(server.post("/v1/completions", &json!({"prompt": [1, 5], "model": "reference"})).status, 200);
    server.post("/v1/embeddings", &body).refused(404, None, &["/v1/completions"]);
    server.get("/v1/completions").refused(405, None, &["does not support the HTTP method"]);
    let typed = ureq::post(format!("{}/v1/completions", server.url))
        .config()
        .http_status_as_error(false)
        .build()
        .header("content-type", "text/plain")
        .send("{}");
    assert_eq!(typed.expect("it answers").status().as_u16(), 415);
}

#[test]
fn a_model_without_a_tokenizer_takes_ids_and_says_what_it_lacks() {
    let server = Server::start(&["--model", "tiny-llama3-hf"]);
    let body = json!({"prompt": [1, 5], "max_tokens": 3, "temperature": 0, "logprobs": 2});
    let choice = server.ask("/v1/completions", &body)["choices"][0].take();
    assert_eq!(choice["text"], "");
    assert!(choice["logprobs"]["tokens"][0].as_str().expect("a name").starts_with("token_id:"));
    server.post("/v1/completions", &json!({"prompt": "text"})).refused(
        400,
        Some("prompt"),
        &["no tokenizer"],
    );
    server.post("/tokenize", &json!({"prompt": "text"})).refused(400, Some("prompt"), &["no tokenizer"]);
    server.post("/detokenize", &json!({"tokens": [1]})).refused(400, Some("prompt"), &["no tokenizer"]);
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    server.post("/v1/chat/completions", &chat).refused(
        400,
        Some("messages"),
        &["no chat template", "--chat-template"],
    );
}
