//! The reference engine behind the OpenAI API: that it answers what the engine computes, to any number of clients, and
//! nothing that it does not compute.
#![cfg(all(feature = "serve", feature = "hub"))]

mod chat;
mod hostile;
mod limits;
mod numbers;
mod refusals;
mod routes;
mod server;
mod several;
mod streams;
mod templates;
