//! A template that a server shows as ids: its control tokens have no text, and are compared nevertheless.

use xcheck::probe::{
    ContinuationRequest, ConversationMessage, GreedyContinuation, MissingAnswer, ModelTemplate, ProbePrompt,
    RenderedConversation, ServerAnswer, ServerApi, TokenPosition, template,
};
use xcheck::verdict::Verdict;

use crate::common::variant;

/// A server that has nothing but a template.
struct Templated(Vec<u32>);

impl ServerApi for Templated {
    fn tokenize(&self, _: &str, _: bool) -> ServerAnswer<Vec<u32>> {
        Err(MissingAnswer::cannot("not here"))
    }

    fn template(&self, _: &[ConversationMessage]) -> ServerAnswer<RenderedConversation> {
        Ok(RenderedConversation::Ids(self.0.clone()))
    }

    fn forced(&self, _: &ProbePrompt, _: usize) -> ServerAnswer<Vec<Option<TokenPosition>>> {
        Err(MissingAnswer::cannot("not here"))
    }

    fn generate(&self, _: &ContinuationRequest) -> ServerAnswer<GreedyContinuation> {
        Err(MissingAnswer::cannot("not here"))
    }
}

/// What is found where the server writes one text and the model another, each by the model's own tokenizer.
fn found(theirs: &str, ours: &str) -> (Option<Verdict>, String) {
    let own = variant("tiny-llama2-hf").tokenizer().expect("it can be read").expect("it has one");
    let server = Templated(own.encode(theirs, false).expect("it is text"));
    let known = ModelTemplate {
        words: Some(ours.to_owned()),
        beginning: "<s>".to_owned(),
        ..ModelTemplate::default()
    };
    let check = template(&server, Some(&*own), &known, "").expect("nothing breaks");
    (check.verdict, check.found)
}

const OWN: &str = "<s>Name the 3 colours.</s><s>Red, green, blue.</s><s>And in German?</s>";

#[test]
fn control_tokens_are_compared_by_their_ids() {
    assert_eq!(found(OWN, OWN).0, Some(Verdict::Pass), "{}", found(OWN, OWN).1);
}

#[test]
fn other_control_tokens_fail() {
    let (verdict, told) = found(&OWN.replacen("</s><s>", "</s>", 1), OWN);
    assert_eq!(verdict, Some(Verdict::Fail));
    assert!(told.starts_with("token ids: token 16 is 85, expected 1: it writes \"Red"), "{told}");
    let (verdict, told) = found(&format!("<s>{OWN}"), OWN);
    assert_eq!(verdict, Some(Verdict::Fail));
    assert!(told.contains("appears twice"), "{told}");
}

#[test]
fn marks_and_words_of_another_chat_template_are_told_first() {
    let (verdict, told) = found(&OWN.replace("<s>", "<|user|>"), OWN);
    assert_eq!(verdict, Some(Verdict::Fail));
    assert!(told.contains("<|user|>, which is not a token of this model"), "{told}");
    let (verdict, told) = found(&OWN.replace("Red, green, blue.", ""), OWN);
    assert_eq!(verdict, Some(Verdict::Fail));
    assert!(told.starts_with("it omits or moves the message \"Red, green, blue.\""), "{told}");
}
