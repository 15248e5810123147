//! What the judge says: of honest runs however their dumps are cut, stored and thinned out, and of wrong ones.

mod cases;
mod chunked_prefill;
pub mod clay;
mod command;
mod coverage;
mod engines;
mod fused_norms;
mod greedy_tokens;
mod half_precision;
mod int8_kv_cache;
mod layerwise;
mod logit_distribution;
mod longrope;
mod missing_taps;
mod mutations;
mod nonfinite;
mod precisions;
mod rope_pairing;
mod rounding_choices;
pub mod scene;
mod sliding_window;
mod small_values;
mod stated_rounding;
mod storage_dtypes;
mod tensor_parallel;
mod uniform_probabilities;
