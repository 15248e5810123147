//! What the judge says: of honest runs however their dumps are cut, stored and thinned out, and of wrong ones.

mod clay;
mod command;
#[path = "../common/mod.rs"]
mod common;
mod engines;
mod fused;
mod holes;
mod layerwise;
mod mutations;
mod nonfinite;
mod pairing;
mod precisions;
mod recut;
mod scale;
mod scene;
mod storage;
mod tokens;
mod windows;
