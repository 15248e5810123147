//! Parts of a comparison: planned, judged by many, put together again. What is put together is what one would have found.

#[path = "../common/mod.rs"]
mod common;

mod adapters;
mod bed;
mod command;
mod plans;
mod property;
mod refusals;
