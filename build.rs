//! Models and references are embedded: the crate is built again when they change.

fn main() {
    println!("cargo:rerun-if-changed=checkpoints");
}
