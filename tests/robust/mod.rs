//! What nobody should be able to do to the program: fill the memory, hang it, end it without a word, write to a terminal
//! through it, or leave something behind that the next run falls over. Each test runs the command as somebody would.
#![cfg(target_os = "linux")]

mod fuzz;
mod interruptions;
mod machine;
mod memory_limits;
mod messages;
mod output;
