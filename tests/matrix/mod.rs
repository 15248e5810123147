//! `xcheck matrix`: which cells there are, what is run again, what is told of it.
#![cfg(unix)]

mod bed;
mod cache;
mod cells;
mod made;
mod page;
mod refusals;
