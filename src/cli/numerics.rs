//! Which numerics reproduce a reference.

use clap::{Args, ValueEnum};

use crate::dump::Producer;
use crate::engine;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::numerics::{BitnetCpp, F32, KvType, Llama2C, LlamaCpp, Numerics, Transformers};

/// How to compute.
#[derive(Debug, Args)]
pub struct NumericsOptions {
    /// How to compute; auto is what reproduces the reference, and f32 without one
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    numerics: Choice,
    /// Refuse to decode a quantised weight and compute with it in floating point
    #[arg(long)]
    strict: bool,
}

impl NumericsOptions {
    /// The numerics to run a model with against a reference; `None` for a run without one.
    ///
    /// # Errors
    /// If the reference was made with a setting that cannot be reproduced, or a weight would be decoded that may
    /// not be.
    pub fn of(&self, model: &dyn Model, producer: Option<&Producer>) -> Result<Box<dyn Numerics>> {
        let numerics = self.numerics.resolve(producer)?;
        if self.strict {
            engine::check_native(model, &*numerics)?;
        }
        Ok(numerics)
    }

    /// Whether a way of computing was asked for.
    pub fn is_named(&self) -> bool {
        self.numerics != Choice::Auto
    }

    /// The arguments that compute the same way again.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.numerics != Choice::Auto {
            words.extend(["--numerics", self.numerics.name()].map(str::to_owned));
        }
        words.extend(self.strict.then(|| "--strict".to_owned()));
        words
    }
}

/// A way of computing, or the one that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Choice {
    /// What reproduces the reference's producer and settings
    Auto,
    /// Decoded weights, f32 activations
    F32,
    /// As llama.cpp on x86-64: activations rounded as ggml rounds them
    #[value(name = "llama.cpp")]
    LlamaCpp,
    /// As bitnet.cpp on x86-64: activations of 8 bits a token for ternary weights
    #[value(name = "bitnet.cpp")]
    BitnetCpp,
    /// As transformers' eager models: rounded where torch rounds, in the reference's dtype
    Transformers,
    /// As llama2.c's run.c and runq.c: f32 sums in the order of the columns, groups of int8
    #[value(name = "llama2.c")]
    Llama2C,
}

impl Choice {
    /// The word on the command line.
    fn name(self) -> &'static str {
        match self {
            Choice::Auto => "auto",
            Choice::F32 => "f32",
            Choice::LlamaCpp => "llama.cpp",
            Choice::BitnetCpp => "bitnet.cpp",
            Choice::Transformers => "transformers",
            Choice::Llama2C => "llama2.c",
        }
    }

    /// The numerics to run against a reference; `None` for a run without one.
    ///
    /// # Errors
    /// If the reference was made with a setting that cannot be reproduced.
    fn resolve(self, producer: Option<&Producer>) -> Result<Box<dyn Numerics>> {
        match (self, producer.map(|producer| producer.name.as_str())) {
            (Choice::LlamaCpp, _) | (Choice::Auto, Some("llama.cpp")) => {
                Ok(Box::new(LlamaCpp { kv: kv_type(producer)? }))
            }
            (Choice::BitnetCpp, _) | (Choice::Auto, Some("bitnet.cpp")) => {
                Ok(Box::new(BitnetCpp { kv: kv_type(producer)? }))
            }
            (Choice::Auto, Some("xcheck"))
                if producer.and_then(|p| p.setting("numerics")) == Some("bitnet.cpp") =>
            {
                Choice::BitnetCpp.resolve(producer)
            }
            (Choice::Auto, Some("xcheck"))
                if producer.and_then(|p| p.setting("numerics")) == Some("llama.cpp") =>
            {
                Choice::LlamaCpp.resolve(producer)
            }
            (Choice::Transformers, _) | (Choice::Auto, Some("transformers")) => {
                Ok(Box::new(dtype(producer)?))
            }
            (Choice::Auto, Some("xcheck"))
                if producer.and_then(|p| p.setting("numerics")) == Some("llama2.c") =>
            {
                Ok(Box::new(Llama2C))
            }
            (Choice::Llama2C, _) | (Choice::Auto, Some("llama2.c")) => Ok(Box::new(Llama2C)),
            _ => Ok(Box::new(F32)),
        }
    }
}

/// The dtype as the reference's settings give it; f32 where they do not.
fn dtype(producer: Option<&Producer>) -> Result<Transformers> {
    match producer.and_then(|producer| producer.setting("dtype")) {
        None | Some("f32") => Ok(Transformers::F32),
        Some("bf16") => Ok(Transformers::Bf16),
        Some("f16") => Ok(Transformers::F16),
        Some(other) => Err(Error::Usage(format!(
            "the reference is of dtype {other}; f32, bf16 and f16 can be reproduced"
        ))),
    }
}

/// The KV cache's type as the reference's settings give it; llama.cpp's default where they do not.
fn kv_type(producer: Option<&Producer>) -> Result<KvType> {
    match producer.and_then(|producer| producer.setting("kv_cache")) {
        None => Ok(KvType::default()),
        Some("f16") => Ok(KvType::F16),
        Some("f32") => Ok(KvType::F32),
        Some(other) => {
            Err(Error::Usage(format!("the reference has a {other} KV cache; f16 and f32 can be reproduced")))
        }
    }
}
