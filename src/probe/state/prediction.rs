//! Predicted log-odds of the next token, and arithmetics in which a server may compute.

use crate::checkpoint::{Point, Site};
use crate::engine::{self, PassInput, RunInput};
use crate::error::Result;
use crate::model::Model;
use crate::numerics::{ActivationQuantisation, F32, Numerics, QuantisedWeights, Transformers};
use crate::ops::log_probabilities::log_probabilities;
use crate::ops::sampling::likeliest;
use crate::quant::{ActivationCodeType, ActivationCodes, CodeGroup, WeightRounding};
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::weight::DType;

/// Log-odds of some tokens after a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TokenOdds {
    /// Token ids.
    pub ids: Vec<u32>,
    /// log(p / (1 − p)) of each.
    pub odds: Vec<f64>,
}

impl TokenOdds {
    /// Returns log(p / (1 − p)) of a log-probability.
    pub(crate) fn of(logprob: f64) -> f64 {
        logprob - (-logprob.exp()).ln_1p()
    }
}

/// Computes the log-odds of tokens after a prompt: of `ids`, or of the `top` likeliest tokens.
///
/// # Errors
/// If the model cannot read these tokens, or the numerics cannot compute the model.
pub(crate) fn last_odds(
    model: &dyn Model,
    numerics: &dyn Numerics,
    prompt: &[u32],
    ids: Option<&[u32]>,
    top: usize,
) -> Result<TokenOdds> {
    let script = RunInput { passes: vec![PassInput::given(prompt)], prompt_len: prompt.len() };
    let mut tap = LastLogitsTap { ids, top, found: TokenOdds::default() };
    engine::run(model, numerics, &script, &mut tap)?;
    Ok(tap.found)
}

/// A tap that reads the logits after a prompt, `[V]`.
struct LastLogitsTap<'i> {
    ids: Option<&'i [u32]>,
    top: usize,
    found: TokenOdds,
}

impl Tap for LastLogitsTap<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if self.wants(site) {
            let row = value.data();
            let ids = self.ids.map_or_else(|| likeliest(row, self.top), <[u32]>::to_vec);
            let odds = log_probabilities(row, &ids, false, 1.0).into_iter().map(TokenOdds::of).collect();
            self.found = TokenOdds { ids, odds };
        }
        value
    }

    fn wants(&self, site: Site) -> bool {
        site.point == Point::LastLogits
    }
}

/// Arithmetic in which servers compute with weights of one kind. Its rounding determines the noise of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Activations in f32, f16 or bf16.
    Float,
    /// Activations in f32, f16 or bf16, or in 8-bit integers with one scale for each 32 values, as in ggml's products.
    Blocks,
    /// Activations in f32, f16 or bf16, or in 8 bits with a scale for each token.
    EightBit,
    /// Activations in these codes, with one scale per token.
    Codes(ActivationCodeType),
}

/// Numerics, and the same numerics with more rounding. The difference between their results is noise.
pub(crate) type NoisePair = (Box<dyn Numerics>, Box<dyn Numerics>);

impl Arithmetic {
    /// Returns pairs of numerics, one for each kind of noise.
    pub(crate) fn noise(self, model: &dyn Model) -> Vec<NoisePair> {
        let plain = || Box::new(F32) as Box<dyn Numerics>;
        let floats = || (plain(), in_bf16(model));
        let blocks = || Box::new(ActivationQuantisation::over(plain(), ActivationCodes::default()));
        let codes = |codes| Self::with_codes(plain(), codes, model);
        let [fp8, int8] = [ActivationCodeType::F8E4m3, ActivationCodeType::Int8];
        match self {
            Arithmetic::Float => vec![floats()],
            Arithmetic::Blocks => vec![floats(), (plain(), blocks())],
            Arithmetic::EightBit => vec![floats(), (plain(), codes(fp8)), (plain(), codes(int8))],
            Arithmetic::Codes(own) => vec![(codes(own), Self::with_codes(in_bf16(model), own, model))],
        }
    }

    /// Wraps numerics, so that products inside layers quantise activations to 8-bit codes with one scale per token.
    pub(crate) fn with_codes(
        inner: Box<dyn Numerics>,
        codes: ActivationCodeType,
        model: &dyn Model,
    ) -> Box<dyn Numerics> {
        let whole_for = model.dimensions().vocab_size;
        let codes =
            ActivationCodes { group: CodeGroup::Token, codes, whole_for, ..ActivationCodes::default() };
        Box::new(ActivationQuantisation::over(inner, codes))
    }
}

/// Returns bf16 arithmetic, even for weights of a quantised file.
fn in_bf16(model: &dyn Model) -> Box<dyn Numerics> {
    let matrices = model.matrices();
    let rounded = matrices.iter().map(|(_, w)| (*w, WeightRounding::Float(DType::BF16)));
    Box::new(QuantisedWeights::over(Box::new(Transformers::Bf16), rounded))
}
