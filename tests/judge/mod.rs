//! What the judge says: of honest runs however their dumps are cut, stored and thinned out, and of wrong ones.

mod blind;
mod cases;
mod claims;
pub mod clay;
mod command;
mod coverage;
mod devices;
mod distribution;
mod eight_bit_cache;
mod engines;
mod fused;
mod half_precision;
mod holes;
mod layerwise;
mod longrope;
mod mutations;
mod nonfinite;
mod pairing;
mod precisions;
mod recut;
mod scale;
pub mod scene;
mod storage;
mod tokens;
mod windows;
