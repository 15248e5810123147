//! No worse than before: what a baseline lets pass and what not, and what two reports say of each other.

mod bed;
mod command;
mod diff;
mod files;
mod gate;
mod seeds;
