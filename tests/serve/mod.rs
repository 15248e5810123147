//! The reference engine behind the OpenAI API: that it answers what the engine computes, to any number of clients, and
//! nothing that it does not compute.
#![cfg(all(feature = "serve", feature = "hub"))]

mod chat;
mod concurrency;
mod hostile;
mod limits;
mod numbers;
mod quantised;
mod refusals;
mod routes;
mod server;
mod sse_streams;
mod templates;
