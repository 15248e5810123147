//! Dumps that come through a pipe, message by message. What is found of a stream is what is found of the file.

mod bed;
mod command;
mod pressure;
#[cfg(feature = "live-references")]
mod producer;
mod property;
mod refusals;
