//! Causes are named where they can be told, and never wrongly: a sample of the whole table, planted; what is right or
//! only rounded otherwise has none.

#[path = "../common/mod.rs"]
mod common;

mod coarse;
mod command;
mod misread;
mod planted;
mod real;
mod several;
