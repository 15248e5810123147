//! Dumps that come through a pipe, message by message. What is found of a stream is what is found of the file.

#[path = "../common/mod.rs"]
mod common;

mod bed;
mod command;
mod pressure;
#[cfg(feature = "live-references")]
mod producer;
mod property;
mod refusals;
