//! Checks of a running server by its tokens and log-probabilities.
//!
//! [`Client`] asks within limits; each protocol is a file behind [`Server`], whose methods may refuse in words; a server is held
//! against itself here ([`own`]), and what it says of a model becomes a dump, which is judged as any other is (`recorded`).

mod answer;
mod check;
mod client;
mod difference;
mod kind;
mod llama_server;
mod ollama;
mod openai;
pub mod own;
mod recorded;
mod rounding;
mod server;
mod sglang;
mod tgi;
mod tokens;
mod vllm;

pub use answer::{Answer, Ask, Generated, Named, Place, Prompt, Refusal};
pub use check::{Check, Subject};
pub use client::{Client, Limits, is_here};
pub use difference::{Difference, Margin, Moves, Parting, decimals};
pub use kind::{Identity, Kind, identify, speak};
pub use recorded::{Recording, Vocabulary};
pub use rounding::{distance, floor};
pub use server::{Message, Rendered, Server};
pub use tokens::{CONVERSATION, OwnTemplate, TEXTS, of_prompt, template, tokenization};
