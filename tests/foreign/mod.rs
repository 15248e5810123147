//! Files of activations that are no dumps: read by maps, and told by their values.

mod disguised;
mod hooks;
mod identify;
mod maps;
mod saved_activations;
mod saved_tensors;
