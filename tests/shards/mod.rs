//! Parts of a comparison: planned, judged by many, put together again. What is put together is what one would have found.

mod adapters;
mod bed;
mod command;
mod content;
mod plans;
mod property;
mod refusals;
