//! Constant factors inside of a block, as in Falcon-H1. In GGUF files, the weights already contain them.

use crate::error::Result;
use crate::model::decoder::ForwardContext;
use crate::model::json::Config;
use crate::ops::scaling::Multiplier;
use crate::tensor::Tensor;

/// Factors inside of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BranchMultipliers {
    /// Factor of attention's input.
    pub(crate) attention_in: f32,
    /// Factor of attention's output.
    pub(crate) attention_out: f32,
    /// Factor of keys before RoPE.
    pub(crate) key: f32,
    /// Factor of Mamba-2's input.
    pub(crate) recurrence_in: f32,
    /// Factor of Mamba-2's output.
    pub(crate) recurrence_out: f32,
    /// Factors of the gate, x, B, C and steps in the input projection of Mamba-2.
    pub(crate) projected: [f32; 5],
    /// Factors of the gate and of the output of the feed-forward block.
    pub(crate) ffn: [f32; 2],
}

impl BranchMultipliers {
    /// Reads the factors of a `config.json`.
    pub(super) fn in_json(file: &Config) -> Result<Self> {
        let one = |key: &str| numbers::<1>(file, key).map(|[number]| number);
        Ok(Self {
            attention_in: one("attention_in_multiplier")?,
            attention_out: one("attention_out_multiplier")?,
            key: one("key_multiplier")?,
            recurrence_in: one("ssm_in_multiplier")?,
            recurrence_out: one("ssm_out_multiplier")?,
            projected: numbers(file, "ssm_multipliers")?,
            ffn: numbers(file, "mlp_multipliers")?,
        })
    }
}

/// Reads N factors. All are 1 if the key is absent.
fn numbers<const N: usize>(file: &Config, key: &str) -> Result<[f32; N]> {
    let Some(stated) = file.get(key) else { return Ok([1.0; N]) };
    let number =
        |value: &serde_json::Value| Some(value.as_f64()? as f32).filter(|x| x.is_finite() && *x != 0.0);
    let found: Option<Vec<f32>> = match stated.as_array() {
        Some(all) => all.iter().map(number).collect(),
        None => number(stated).map(|number| vec![number]),
    };
    let found = found.and_then(|found| <[f32; N]>::try_from(found).ok());
    found.ok_or_else(|| file.bad_key(key, stated, format!("{N} numbers other than 0")))
}

impl ForwardContext<'_> {
    /// Multiplies a value by one of the model's factors; `None` if the model does not have this factor.
    pub(crate) fn times(&self, x: &Tensor, of: impl Fn(&BranchMultipliers) -> f32) -> Option<Tensor> {
        let factor = self.c.multipliers.as_ref().map(of).filter(|factor| *factor != 1.0)?;
        Some(self.n.scale(x, Multiplier::Number(factor)))
    }
}
