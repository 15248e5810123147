//! Faults in YaRN's settings: factor, original context, betas and magnitude, in the syntax of
//! `--suppose rope_scaling`.

use crate::ops::rope::yarn::Yarn;
use crate::ops::rope::{Rope, RopeScaling};

/// Returns YaRN settings from a list of numbers: factor and original context, optionally both betas, then
/// optionally the magnitude. Settings that are not in the list are the model's own. `None` if the settings are
/// invalid.
pub(super) fn yarn(rope: &Rope, numbers: &[f32]) -> Option<Yarn> {
    let (&[factor, original_context], others) = numbers.split_first_chunk()?;
    let new = Yarn::new(factor, original_context);
    let own = if let RopeScaling::Yarn(own) = rope.scaling { own } else { new };
    let own = Yarn { factor, original_context, ..own };
    let yarn = match *others {
        [] => own,
        [beta_fast, beta_slow] => Yarn { beta_fast, beta_slow, ..own },
        [beta_fast, beta_slow, magnitude] => Yarn { beta_fast, beta_slow, ..own.with_magnitude(magnitude) },
        _ => return None,
    };
    (yarn.bad_setting().is_none() && yarn.has_ramp(rope.theta, rope.width)).then_some(yarn)
}

/// Returns YaRN's settings that a port might use instead of the model's: another factor, the extended context or a usual
/// one as the original context, and the default betas.
pub(super) fn usual_yarns(rope: &Rope) -> Vec<String> {
    let RopeScaling::Yarn(own) = rope.scaling else { return Vec::new() };
    let Yarn { factor, original_context: context, .. } = own;
    let others =
        [(factor, context * factor), (factor, context / factor), (2.0 * factor, context), (factor, 4096.0)];
    let others = others.into_iter().chain([(factor, 8192.0), (factor, 32_768.0)]);
    let default = Yarn::new(factor, context);
    let betas = format!("yarn:{factor}:{context}:{}:{}", default.beta_fast, default.beta_slow);
    others.map(|(factor, context)| format!("yarn:{factor}:{context}")).chain([betas]).collect()
}

/// Returns YaRN settings to try, for the factor that an engine's frequencies show. The original contexts to try are
/// the model's own, the model's own times its factor, and powers of two.
pub(super) fn yarn_of_ratio(rope: &Rope, factor: f64) -> Vec<String> {
    let own = match rope.scaling {
        RopeScaling::Yarn(own) => vec![own.original_context, own.original_context * own.factor],
        _ => Vec::new(),
    };
    let powers = (6..=18).map(|power| (1_u32 << power) as f32);
    own.into_iter().chain(powers).map(|context| format!("yarn:{factor}:{context}")).collect()
}

/// Returns YaRN magnitudes (factors of cosines and sines) that ports use: 1, the paper's, and the paper's squared.
pub(super) fn usual_magnitudes(scaling: &RopeScaling) -> Vec<f64> {
    let RopeScaling::Yarn(own) = scaling else { return vec![1.0] };
    let paper = 1.0 + 0.1 * f64::from(own.factor).ln();
    vec![1.0, paper, paper * paper]
}
