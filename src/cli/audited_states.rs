//! States in which a server may serve a model, for `xcheck probe --audit`.

use crate::cli::options::{ModelOptions, RequestedModelOptions};
use crate::cli::requested_model::RequestedModel;
use crate::error::{Error, Result};
use crate::model::{LoadedModel, Model, WeightScheme};
use crate::numerics::{CacheOverride, F32, LlamaCppFlash, Numerics, PLAIN, QuantisedWeights};
use crate::probe::state::{Arithmetic, last_odds};
use crate::quant::ActivationCodeType;
use crate::weight::DType;

/// A state that the server may be in.
pub(super) struct ServingState<'m> {
    /// Name in reports.
    pub name: String,
    /// Description in one line.
    pub meaning: String,
    pub model: &'m dyn Model,
    pub numerics: Box<dyn Numerics>,
    pub arithmetic: Arithmetic,
}

impl<'m> ServingState<'m> {
    fn new(
        (name, meaning): (impl Into<String>, impl Into<String>),
        model: &'m dyn Model,
        numerics: impl Numerics + 'static,
        arithmetic: Arithmetic,
    ) -> Self {
        Self { name: name.into(), meaning: meaning.into(), model, numerics: Box::new(numerics), arithmetic }
    }

    /// Returns the log-odds of tokens after a prompt.
    pub(super) fn odds(&self, prompt: &[u32], ids: &[u32]) -> Result<Vec<f64>> {
        last_odds(self.model, &*self.numerics, prompt, Some(ids), 0).map(|found| found.odds)
    }
}

/// Models of an audit.
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
        let mut states = vec![ServingState::new(claimed, model, F32, own)];
        states.extend(WeightScheme::ALL.map(|scheme| {
            let numerics = QuantisedWeights::over(Box::new(F32), scheme.roundings(model));
            let arithmetic = if scheme.is_of_ggml() { Arithmetic::Blocks } else { Arithmetic::Float };
            ServingState::new((scheme.name(), scheme.meaning()), model, numerics, arithmetic)
        }));
        let with_activations = [
            (WeightScheme::Fp8Channel, ActivationCodeType::F8E4m3, "w8a8-fp8"),
            (WeightScheme::Int8Channel, ActivationCodeType::Int8, "w8a8-int8"),
        ];
        states.extend(with_activations.map(|(scheme, codes, name)| {
            let weights = QuantisedWeights::over(Box::new(F32), scheme.roundings(model));
            let numerics = Arithmetic::with_codes(Box::new(weights), codes, model);
            let meaning = format!("{}, and activations with a scale for each token", scheme.meaning());
            let arithmetic = Arithmetic::Codes(codes);
            ServingState { name: name.to_owned(), meaning, model, numerics, arithmetic }
        }));
        let caches = [(DType::F8_E4M3, "kv-fp8"), (DType::I8, "kv-int8")];
        for (cache, name) in caches {
            if let Some(numerics) = CacheOverride::over(Box::new(F32), cache) {
                let meaning = format!("KV cache in {cache}");
                let (name, meaning) = (name.to_owned(), meaning);
                states.push(ServingState { name, meaning, model, numerics, arithmetic: own });
            }
        }
        if model.dimensions().head_dim.is_multiple_of(DType::Q4_0.block_len()) {
            for (is_rotated, name) in [(false, "kv-q4_0"), (true, "kv-q4_0-rotated")] {
                let numerics = LlamaCppFlash::of(DType::Q4_0).map(|numerics| numerics.rotated(is_rotated));
                let meaning = "KV cache of llama.cpp in q4_0";
                states.extend(
                    numerics.map(|numerics| ServingState::new((name, meaning), model, numerics, own)),
                );
            }
        }
        states.extend(self.others.iter().map(|(name, other)| {
            let named = (format!("against:{name}"), "the model of --against");
            ServingState::new(named, &*other.model, F32, arithmetic_of(other))
        }));
        states
    }
}

/// Returns the arithmetic in which engines compute weights of a file's type.
fn arithmetic_of(loaded: &LoadedModel) -> Arithmetic {
    match (PLAIN.contains(&loaded.precision), loaded.format) {
        (true, _) => Arithmetic::Float,
        (false, "gguf") => Arithmetic::Blocks,
        (false, _) => Arithmetic::EightBit,
    }
}
