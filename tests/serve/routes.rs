//! Each route by itself.

use serde_json::{Value, json};

use super::server::Server;
use crate::common::variant;

#[test]
fn the_model_is_listed_with_its_context() {
    let server = Server::tiny(&["--context", "100"]);
    let models = server.get("/v1/models").document();
    assert_eq!(models["object"], "list");
    let model = &models["data"][0];
    assert_eq!((&model["id"], &model["max_model_len"]), (&json!("tiny-llama2-hf"), &json!(100)));
    assert_eq!(model["numerics"], "f32");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn tokens_are_those_of_the_tokenizer() {
    let server = Server::tiny(&[]);
    let tokenizer = variant("tiny-llama2-hf").tokenizer().expect("it is sound").expect("it has one");
    for (text, adds) in
        [("Once upon a time", true), ("Once upon a time", false), ("<s>é🙂", true), ("", true)]
    {
        let ids = tokenizer.encode(text, adds).expect("it encodes");
        let body = json!({"prompt": text, "add_special_tokens": adds, "return_token_strs": true});
        let answer = server.ask("/tokenize", &body);
        assert_eq!(answer["tokens"], json!(ids));
        assert_eq!(answer["count"], ids.len());
        assert_eq!(answer["max_model_len"], 256);
        let pieces: Vec<_> = ids.iter().map(|&id| tokenizer.piece(id)).collect();
        assert_eq!(answer["token_strs"], json!(pieces));
        let back = server.ask("/detokenize", &json!({"tokens": ids}));
        assert_eq!(back["prompt"], tokenizer.decode_lossy(&ids).expect("it decodes"));
    }
    server.post("/tokenize", &json!({})).refused(400, Some("messages"), &["missing"]);
    server.post("/detokenize", &json!({})).refused(400, Some("tokens"), &["missing"]);
    server.post("/detokenize", &json!({"tokens": [99999]})).refused(400, None, &["99999", "vocabulary"]);
}

#[test]
fn special_tokens_are_named_for_clients_without_a_tokenizer() {
    let told = Server::tiny(&[]).get("/tokenizer_info").document();
    assert_eq!((&told["bos_token"], &told["eos_token"]), (&json!("<s>"), &json!("</s>")));
    assert_eq!(told["chat_template"], Value::Null);
}

#[test]
fn a_completion_has_openai_s_shape() {
    let server = Server::tiny(&[]);
    let body = json!({"prompt": "Once upon", "max_tokens": 5, "temperature": 0, "logprobs": 2, "echo": true});
    let answer = server.ask("/v1/completions", &body);
    assert_eq!(answer["object"], "text_completion");
    assert!(answer["id"].as_str().expect("an id").starts_with("cmpl-"));
    assert_eq!(answer["model"], "tiny-llama2-hf");
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    let text = choice["text"].as_str().expect("a text");
    assert!(text.starts_with("Once upon a time"), "{text}");
    let lists = &choice["logprobs"];
    let lists: Vec<&Vec<Value>> = ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
        .map(|list| lists[list].as_array().expect("a list"))
        .to_vec();
    let count = answer["usage"]["total_tokens"].as_u64().expect("a number") as usize;
    assert!(lists.iter().all(|list| list.len() == count));
    assert_eq!((&lists[0][0], &lists[1][0], &lists[2][0]), (&json!("<s>"), &Value::Null, &Value::Null));
    // The token at each offset is the text there.
    for (token, offset) in lists[0].iter().zip(lists[3]).skip(2) {
        let (token, offset) = (token.as_str().expect("a text"), offset.as_u64().expect("a number") as usize);
        let there: String = text.chars().skip(offset).collect();
        assert!(there.starts_with(token), "'{token}' at {offset} of '{text}'");
    }
    // The token that was chosen greedily is the likeliest that is listed.
    let (chosen, top) = (&lists[0][count - 1], lists[2][count - 1].as_object().expect("an object"));
    let best = top.values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
    assert_eq!((top.len(), top[chosen.as_str().expect("a text")].as_f64()), (2, Some(best)));
    let named = server.ask("/v1/completions", &json!({
        "prompt": "Once", "max_tokens": 1, "temperature": 0, "logprobs": 0, "return_tokens_as_token_ids": true,
        "return_token_ids": true,
    }));
    let id = &named["choices"][0]["token_ids"][0];
    assert_eq!(named["choices"][0]["logprobs"]["tokens"][0], format!("token_id:{id}"));
}

#[test]
fn what_happens_is_counted() {
    let server = Server::tiny(&[]);
    server.ask("/v1/completions", &json!({"prompt": [1, 5, 6], "max_tokens": 4, "ignore_eos": true}));
    server.post("/v1/completions", &json!({"prompt": 7}));
    server.get("/no-such-route");
    for (figure, expected) in [
        ("xcheck_requests_total{route=\"/v1/completions\",status=\"200\"}", 1.0),
        ("xcheck_requests_total{route=\"/v1/completions\",status=\"400\"}", 1.0),
        ("xcheck_requests_total{route=\"other\",status=\"404\"}", 1.0),
        ("xcheck_request_seconds_count{route=\"/v1/completions\"}", 2.0),
        ("xcheck_prompt_tokens_total", 3.0),
        ("xcheck_generated_tokens_total", 4.0),
        ("xcheck_sequences_total{outcome=\"finished\"}", 1.0),
        ("xcheck_requests_in_flight", 1.0), // this very one
        ("xcheck_sequences_waiting", 0.0),
    ] {
        server.wait_for(figure, |found| found == expected);
    }
    let text = server.get("/metrics").body;
    assert!(text.contains("model=\"tiny-llama2-hf\"") && text.contains("numerics=\"f32\""), "{text}");
    assert!(text.ends_with("# EOF\n"));
}
