//! Checks of a running server by its tokens and log-probabilities.
//!
//! [`Client`] asks within limits; each protocol is a file behind [`ServerApi`], whose methods may refuse in words; a server is held
//! against itself here ([`self_consistency`]), and what it says of a model becomes a dump, which is judged as any other is (`recorded`).

mod answer;
mod check;
mod client;
mod difference;
mod llama_server;
mod noise_floor;
mod ollama;
mod openai;
mod recording;
pub mod self_consistency;
mod server;
mod server_identity;
mod sglang;
mod tgi;
mod tokens;
mod vllm;

pub use answer::{
    ContinuationRequest, GreedyContinuation, MissingAnswer, ProbePrompt, ServerAnswer, TokenLogprob,
    TokenPosition,
};
pub use check::{ProbeCheck, ProbeSubject};
pub use client::{Client, ClientLimits, is_here};
pub use difference::{AnswerDifference, DivergentTokens, LogprobDifference, TokenMargin, decimals};
pub use noise_floor::{distance, floor};
pub use recording::{Recording, TokenTextIds};
pub use server::{ConversationMessage, RenderedConversation, ServerApi};
pub use server_identity::{ServerIdentity, ServerProtocol, identify, speak};
pub use tokens::{CONVERSATION, ModelTemplate, TEXTS, of_prompt, template, tokenization};
