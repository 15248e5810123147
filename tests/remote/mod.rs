//! Models and dumps behind URLs: what is read of them, how often, and everything that can go wrong on the way.
#![cfg(feature = "hub")]

#[cfg(feature = "cloud")]
mod cloud;
mod files;
mod layer;
mod machine;
mod range_requests;
mod refusals;
mod server;
