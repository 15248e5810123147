//! Answers token by token: what they come to together is the whole answer.

use serde_json::{Value, json};

use super::server::Server;

fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

/// The texts of a stream's chunks.
fn texts(chunks: &[Value]) -> Vec<String> {
    let of = |chunk: &Value| {
        let choice = &chunk["choices"][0];
        choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str()).map(str::to_owned)
    };
    chunks.iter().filter_map(of).collect()
}

#[track_caller]
fn assert_same(server: &Server, body: &Value) -> Vec<String> {
    let whole = server.ask("/v1/completions", body);
    let streaming = json!({"stream": true, "stream_options": {"include_usage": true}});
    let mut chunks = server.stream("/v1/completions", &with(body, &streaming));
    let last = chunks.pop().expect("a last one");
    assert_eq!((&last["usage"], &last["choices"]), (&whole["usage"], &json!([])));
    let choice = &whole["choices"][0];
    let texts = texts(&chunks);
    assert_eq!(texts.concat(), choice["text"].as_str().expect("a text"));
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let parts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"][list].as_array());
        let joined: Vec<Value> = parts.flatten().cloned().collect();
        assert_eq!(json!(joined), choice["logprobs"][list], "{list}");
    }
    let reasons: Vec<_> = chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
    assert_eq!(reasons.last(), Some(&&choice["finish_reason"]));
    assert!(reasons[..reasons.len() - 1].iter().all(|reason| reason.is_null()));
    texts
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let server = Server::tiny(&[]);
    let body = json!({"prompt": "Once upon", "max_tokens": 60, "temperature": 0, "logprobs": 3});
    assert!(assert_same(&server, &body).len() > 10);
    assert_same(&server, &with(&body, &json!({"echo": true})));
}

#[test]
fn a_stop_string_is_found_across_tokens_and_never_shown() {
    let server = Server::tiny(&[]);
    let body = json!({"prompt": "Once upon", "max_tokens": 60, "temperature": 0, "logprobs": 0});
    let all = server.ask("/v1/completions", &body)["choices"][0]["text"].as_str().expect("a text").to_owned();
    for (start, end) in [(20, 31), (7, 9), (0, 3)] {
        let stop = all.get(start..end).expect("it is ASCII").to_owned();
        let stopping = with(&body, &json!({"stop": ["no such text", stop]}));
        let choice = server.ask("/v1/completions", &stopping)["choices"][0].take();
        let until = all.find(&stop).expect("it is there");
        assert_eq!(choice["text"], all[..until]);
        assert_eq!(choice["finish_reason"], "stop");
        assert_same(&server, &stopping);
    }
    // What begins like such a text and goes on otherwise is given out after all.
    let nearly = all[..12].to_owned() + "#";
    assert_eq!(assert_same(&server, &with(&body, &json!({"stop": nearly}))).concat(), all);
}

#[test]
fn a_character_cut_across_tokens_is_held_back_until_it_is_whole() {
    // Its decoder gives bytes; that of tokenizer.json makes all of a run of bytes U+FFFD where the last is no character.
    let server = Server::start(&["--model", "tiny-llama2-f32"]);
    let (mut whole_characters, mut broken) = (0, 0);
    for seed in 0..12 {
        // So hot that nearly every token is as likely, half of which are single bytes.
        let body = json!({
            "prompt": [1, 5], "max_tokens": 200, "temperature": 10000, "seed": seed, "logprobs": 0,
            "ignore_eos": true, "return_token_ids": true,
        });
        let texts = assert_same(&server, &body);
        let text = texts.concat();
        whole_characters += text.chars().filter(|c| !c.is_ascii() && *c != '\u{fffd}').count();
        broken += text.chars().filter(|c| *c == '\u{fffd}').count();
        let ids = server.ask("/v1/completions", &body)["choices"][0]["token_ids"].take();
        let all: Vec<Value> =
            [json!(1), json!(5)].into_iter().chain(ids.as_array().expect("ids").clone()).collect();
        let decoded = server.ask("/detokenize", &json!({"tokens": all}));
        assert!(decoded["prompt"].as_str().expect("a text").ends_with(&text), "seed {seed}");
    }
    assert!(
        whole_characters > 5 && broken > 20,
        "{whole_characters} characters of several bytes, {broken} broken"
    );
}

#[test]
fn an_answer_to_several_prompts_is_streamed_by_their_numbers() {
    let server = Server::tiny(&[]);
    let body = json!({"prompt": [[1, 5], [1, 6], [1, 7]], "max_tokens": 20, "temperature": 0});
    let whole = server.ask("/v1/completions", &body);
    let chunks = server.stream("/v1/completions", &with(&body, &json!({"stream": true})));
    for index in 0..3 {
        let own: Vec<Value> =
            chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index).cloned().collect();
        assert_eq!(texts(&own).concat(), whole["choices"][index]["text"].as_str().expect("a text"));
        assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
    }
}
