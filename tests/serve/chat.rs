//! Conversations.

use std::fs;

use serde_json::{Value, json};

use super::server::Server;
use crate::common::variant;

const ROUTE: &str = "/v1/chat/completions";

const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}\n{{ message['role'] }}: {{ message['content'] | trim }}\n\
{% endfor %}\n{% if add_generation_prompt %}\nassistant:{% endif %}\n";

struct Chat {
    server: Server,
    _folder: tempfile::TempDir,
}

fn chat() -> Chat {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("chat.jinja");
    fs::write(&file, TEMPLATE).expect("it is written");
    let server = Server::tiny(&["--chat-template", file.to_str().expect("a path")]);
    Chat { server, _folder: folder }
}

fn ids(text: &str) -> Vec<u32> {
    let tokenizer = variant("tiny-llama2-hf").tokenizer().expect("it is sound").expect("it has one");
    tokenizer.encode(text, false).expect("it encodes")
}

#[test]
fn a_conversation_is_the_completion_of_its_chat_template_text() {
    let Chat { server, .. } = &chat();
    let messages = json!([
        {"role": "system", "content": "Tell."},
        {"role": "user", "content": [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]},
    ]);
    let prompt = ids("<s>system: Tell.\nuser: Once\nupon\nassistant:");
    let tokenized = server.ask("/tokenize", &json!({"messages": messages}));
    assert_eq!(tokenized["tokens"], json!(prompt));
    let asked = json!({"messages": messages, "max_completion_tokens": 12, "temperature": 0, "logprobs": true, "top_logprobs": 2});
    let answer = server.ask(ROUTE, &asked);
    assert_eq!(answer["object"], "chat.completion");
    let completion = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 2});
    let completion = server.ask("/v1/completions", &completion);
    let (choice, expected) = (&answer["choices"][0], &completion["choices"][0]);
    assert_eq!(choice["message"], json!({"role": "assistant", "content": expected["text"], "refusal": null}));
    assert_eq!(answer["usage"], completion["usage"]);
    let content = choice["logprobs"]["content"].as_array().expect("a list");
    for (index, entry) in content.iter().enumerate() {
        assert_eq!(entry["token"], expected["logprobs"]["tokens"][index]);
        assert_eq!(entry["logprob"], expected["logprobs"]["token_logprobs"][index]);
        assert_eq!(entry["bytes"], json!(entry["token"].as_str().expect("a text").as_bytes()));
        assert_eq!(entry["top_logprobs"].as_array().map(Vec::len), Some(2));
        assert_eq!(entry["top_logprobs"][0]["logprob"], entry["logprob"]);
    }
    assert_eq!(content.len(), 12);
}

#[test]
fn a_conversation_is_streamed_as_the_client_expects() {
    let Chat { server, .. } = &chat();
    let mut asked =
        json!({"messages": [{"role": "user", "content": "Once upon"}], "max_tokens": 20, "temperature": 0});
    let whole = server.ask(ROUTE, &asked);
    asked["stream"] = true.into();
    let chunks = server.stream(ROUTE, &asked);
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], text);
    let last = &chunks[chunks.len() - 1]["choices"][0];
    assert_eq!(last["finish_reason"], whole["choices"][0]["finish_reason"]);
}

#[test]
fn the_last_message_can_go_on() {
    let Chat { server, .. } = &chat();
    let messages =
        json!([{"role": "user", "content": "Go."}, {"role": "assistant", "content": "Once upon "}]);
    let body = json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": false});
    assert_eq!(server.ask("/tokenize", &body)["tokens"], json!(ids("<s>user: Go.\nassistant: Once upon")));
    let both = json!({"messages": messages, "continue_final_message": true});
    server.post("/tokenize", &both).refused(400, Some("continue_final_message"), &["cannot both be true"]);
}

#[test]
fn what_is_no_conversation_of_texts_is_refused() {
    let Chat { server, .. } = &chat();
    let refused = |messages: Value, words: &[&str]| {
        server.post(ROUTE, &json!({"messages": messages})).refused(400, Some("messages"), words);
    };
    refused(json!([]), &["empty"]);
    refused(json!(["hi"]), &["not an object"]);
    refused(json!([{"content": "hi"}]), &["no role"]);
    refused(json!([{"role": "user"}]), &["no content"]);
    refused(json!([{"role": "user", "content": [{"type": "image_url"}]}]), &["not text"]);
    refused(json!([{"role": "assistant", "content": "x", "tool_calls": [1]}]), &["tool_calls"]);
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]});
    server.post(ROUTE, &body).refused(400, Some("tools"), &["tools"]);
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "top_logprobs": 2});
    server.post(ROUTE, &body).refused(400, Some("top_logprobs"), &["top_logprobs needs"]);
}
