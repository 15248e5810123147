//! What the judge says: of honest runs however their dumps are cut, stored and thinned out, and of wrong ones.

pub mod clay;
mod command;
mod devices;
mod eight_bit_cache;
mod engines;
mod fused;
mod half_precision;
mod holes;
mod layerwise;
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
