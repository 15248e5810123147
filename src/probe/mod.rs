//! Checks of a running server by its tokens and log-probabilities.
//!
//! `Client` limits the requests. Each protocol is a module that implements [`ServerApi`], whose methods may
//! return a reason instead of an answer. [`self_consistency`] compares a server with itself. Answers about a
//! model become a dump (`recorded`), which is judged like any other dump.

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
pub mod state;
mod tgi;
mod tokens;
mod vllm;

pub use answer::{
    ContinuationRequest, GreedyContinuation, MissingAnswer, ProbePrompt, ServerAnswer, TokenLogprob,
    TokenPosition,
};
pub(crate) use check::{ProbeCheck, ProbeSubject};
pub(crate) use client::{Client, ClientLimits, is_here};
pub(crate) use difference::coarseness;
pub use difference::{AnswerDifference, LogprobDifference, decimals};
pub(crate) use noise_floor::{distance, floor};
pub(crate) use recording::{Recording, TokenTextIds};
pub use server::{ConversationMessage, RenderedConversation, ServerApi};
pub(crate) use server_identity::{ServerIdentity, speak};
pub use server_identity::{ServerProtocol, identify};
pub(crate) use tokens::{CONVERSATION, tokenization};
pub use tokens::{ModelTemplate, TEXTS, of_prompt, template};
