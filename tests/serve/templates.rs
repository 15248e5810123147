//! Chat templates: what transformers makes of them, and what is refused.

use std::fs;

use serde_json::Value;
use xcheck::tokenizer::{ChatTemplate, Conversation};

/// Made by reference-scripts/vectors/make_template_vectors.py.
fn vectors() -> Vec<Value> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/serve/templates.json");
    let text = fs::read_to_string(file).expect("it is there");
    serde_json::from_str(&text).expect("it is JSON")
}

fn template(source: &str) -> xcheck::Result<ChatTemplate> {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let tokens = tokens.map(|(name, text)| (name.to_owned(), text.to_owned()));
    ChatTemplate::new(source.to_owned(), &tokens.into())
}

fn conversation(case: &Value) -> Conversation {
    Conversation {
        messages: case["messages"].as_array().expect("messages").clone(),
        adds_prompt: case["add_generation_prompt"] == true,
        continues: case["continue_final_message"] == true,
        told: case["kwargs"].as_object().cloned().unwrap_or_default(),
        adds_special: false,
    }
}

#[test]
fn chat_templates_render_as_in_transformers() {
    let vectors = vectors();
    assert!(vectors.len() >= 20, "{}", vectors.len());
    for case in &vectors {
        let name = &case["name"];
        let rendered = template(case["template"].as_str().expect("a template"))
            .and_then(|template| template.render(&conversation(case)));
        match case["expected"].as_str() {
            Some(expected) => assert_eq!(rendered.expect("it renders"), expected, "{name}"),
            None => {
                let message = rendered.expect_err("transformers refuses it").to_string();
                assert!(message.contains(case["error"].as_str().expect("a message")), "{name}: {message}");
            }
        }
    }
}

#[test]
fn a_chat_template_that_never_ends_or_is_invalid_is_refused() {
    let case = serde_json::json!({"messages": [{"role": "user", "content": "hi"}]});
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}";
    let refused = template(endless).expect("it is Jinja").render(&conversation(&case)).expect_err("too long");
    assert!(refused.to_string().contains("the chat template rejects the messages"), "{refused}");
    let long = "{% for a in range(99999) %}{{ messages[0].content }}{% endfor %}";
    let case = serde_json::json!({"messages": [{"role": "user", "content": "x".repeat(1 << 16)}]});
    let refused = template(long).expect("it is Jinja").render(&conversation(&case)).expect_err("too long");
    assert!(refused.to_string().contains("its output has more than"), "{refused}");
    let refused = template("{% for %}").err().expect("it is no Jinja");
    assert!(refused.to_string().contains("the model's chat template cannot be read"), "{refused}");
}
