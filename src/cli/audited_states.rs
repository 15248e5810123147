//! States in which a server may serve a model, for `xcheck probe --audit`.

use crate::cli::options::{ModelOptions, RequestedModelOptions};
use crate::cli::requested_model::RequestedModel;
use crate::error::{Error, Result};
use crate::model::{LoadedModel, Model, WeightScheme};
use crate::numerics::{CacheOverride, F32, LlamaCppFlash, Numerics, PLAIN, QuantisedWeights};
use crate::probe::state::{Arithmetic, last_odds};
use crate::quant::ActivationCodeType;
use crate::weight::DType;

/// Function that creates the numerics of a state. Quantised weights are in memory only while the numerics exist.
type MakeNumerics<'m> = Box<dyn Fn() -> Box<dyn Numerics> + 'm>;

/// A state that the server may be in.
pub(super) struct ServingState<'m> {
    /// Name in reports.
    pub name: String,
    /// Description in one line.
    pub meaning: String,
    pub model: &'m dyn Model,
    pub arithmetic: Arithmetic,
    numerics: MakeNumerics<'m>,
}

impl<'m> ServingState<'m> {
    fn new(
        (name, meaning): (impl Into<String>, impl Into<String>),
        model: &'m dyn Model,
        arithmetic: Arithmetic,
        numerics: impl Fn() -> Box<dyn Numerics> + 'm,
    ) -> Self {
        let (name, meaning) = (name.into(), meaning.into());
        Self { name, meaning, model, arithmetic, numerics: Box::new(numerics) }
    }

    /// Returns the log-odds of tokens after each prompt.
    pub(super) fn odds<'p>(
        &self,
        prompts: impl Iterator<Item = (&'p [u32], &'p [u32])>,
    ) -> Result<Vec<Vec<f64>>> {
        let numerics = (self.numerics)();
        let of = |(prompt, ids)| last_odds(self.model, &*numerics, prompt, Some(ids), 0);
        prompts.map(|one| of(one).map(|found| found.odds)).collect()
    }
}

/// Claimed model and alternatives of an audit.
pub(super) struct AuditedModels {
    pub target: RequestedModel,
    own: LoadedModel,
    others: Vec<(String, LoadedModel)>,
}

impl AuditedModels {
    /// Loads the claimed model and the alternatives.
    pub(super) fn load(
        model: &RequestedModelOptions,
        against: &[String],
        options: &ModelOptions,
    ) -> Result<Self> {
        let target = model.find()?;
        let own = options.load(&target.variants[0])?;
        let vocabulary = own.model.dimensions().vocab_size;
        let mut others = Vec::new();
        for name in against {
            let other = options.load(&RequestedModelOptions::of(name).find()?.variants[0])?;
            let found = other.model.dimensions().vocab_size;
            if found != vocabulary {
                return Err(Error::Usage(format!(
                    "--against {name}: it has {found} tokens, expected {vocabulary} as in the model"
                )));
            }
            others.push((name.clone(), other));
        }
        Ok(Self { target, own, others })
    }

    /// Returns all states, the claimed one first.
    pub(super) fn states(&self) -> Vec<ServingState<'_>> {
        let model = &*self.own.model;
        let own = arithmetic_of(&self.own);
        let stored = self.own.precision;
        let claimed = ("model", format!("this model with the weights of the file ({stored})"));
        let plain = || Box::new(F32) as Box<dyn Numerics>;
        let mut states = vec![ServingState::new(claimed, model, own, plain)];
        let quantised = move |scheme: WeightScheme| {
            Box::new(QuantisedWeights::over(plain(), scheme.roundings(model))) as Box<dyn Numerics>
        };
        states.extend(WeightScheme::ALL.map(|scheme| {
            let arithmetic = if scheme.is_of_ggml() { Arithmetic::Blocks } else { Arithmetic::Float };
            ServingState::new((scheme.name(), scheme.meaning()), model, arithmetic, move || quantised(scheme))
        }));
        let with_activations = [
            (WeightScheme::Fp8Channel, ActivationCodeType::F8E4m3, "w8a8-fp8"),
            (WeightScheme::Int8Channel, ActivationCodeType::Int8, "w8a8-int8"),
        ];
        states.extend(with_activations.map(|(scheme, codes, name)| {
            let meaning = format!("{}, and activations with a scale for each token", scheme.meaning());
            ServingState::new((name, meaning), model, Arithmetic::Codes(codes), move || {
                Arithmetic::with_codes(quantised(scheme), codes, model)
            })
        }));
        states.extend(cache_states(model, own));
        states.extend(self.others.iter().map(|(name, other)| {
            let named = (format!("against:{name}"), "the model of --against");
            ServingState::new(named, &*other.model, arithmetic_of(other), plain)
        }));
        states
    }
}

/// Returns the states with a shorter KV cache.
fn cache_states(model: &dyn Model, own: Arithmetic) -> Vec<ServingState<'_>> {
    let floats = [(DType::F8_E4M3, "kv-fp8"), (DType::I8, "kv-int8")].map(|(cache, name)| {
        ServingState::new((name, format!("KV cache in {cache}")), model, own, move || {
            CacheOverride::over(Box::new(F32), cache).unwrap_or_else(|| Box::new(F32))
        })
    });
    let kinds = [
        (false, "kv-q4_0", "KV cache of llama.cpp in q4_0"),
        (true, "kv-q4_0-rotated", "KV cache of llama.cpp in q4_0, rotated by a Hadamard matrix"),
    ];
    let blocks = kinds.map(|(is_rotated, name, meaning)| {
        ServingState::new((name, meaning), model, own, move || {
            let flash = LlamaCppFlash::of(DType::Q4_0).unwrap_or(LlamaCppFlash::NEW);
            Box::new(flash.rotated(is_rotated))
        })
    });
    let fits = model.dimensions().head_dim.is_multiple_of(DType::Q4_0.block_len());
    floats.into_iter().chain(blocks.into_iter().filter(|_| fits)).collect()
}

/// Returns the arithmetic in which engines compute weights of a file's type.
fn arithmetic_of(loaded: &LoadedModel) -> Arithmetic {
    match (PLAIN.contains(&loaded.precision), loaded.format) {
        (true, _) => Arithmetic::Float,
        (false, "gguf") => Arithmetic::Blocks,
        (false, _) => Arithmetic::EightBit,
    }
}
