//! Causes are named where they can be told, and never wrongly: a sample of the whole table, planted; what is right or
//! only rounded otherwise has none.

mod coarse;
mod command;
mod effort;
mod heads;
mod key_rotation;
mod linear_readers;
mod misread;
mod passes;
mod penalties;
pub mod planted;
mod provenance;
mod read;
mod real;
mod several;
mod value_readers;
