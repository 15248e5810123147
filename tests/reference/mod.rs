//! References made by the tool itself: what is run, installed, asked and left behind. The other programs are shell scripts
//! that write down what they were told; nothing needs a network.
#![cfg(unix)]

mod environments;
mod evaluator;
mod machine;
mod making;
mod refusals;
mod safety;
mod scripts;
