//! Which numerics reproduce a reference.

use clap::ValueEnum;

use crate::dump::Producer;
use crate::error::{Error, Result};
use crate::numerics::{F32, KvType, LlamaCpp, Numerics};

/// How to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// What reproduces the reference's producer and settings
    Auto,
    /// Decoded weights, f32 activations
    F32,
    /// As llama.cpp on x86-64: activations rounded as ggml rounds them
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

impl Choice {
    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Choice::Auto => "auto",
            Choice::F32 => "f32",
            Choice::LlamaCpp => "llama.cpp",
        }
    }

    /// The numerics to run against a reference; `None` for a run without one.
    ///
    /// # Errors
    /// If the reference was made with a setting that cannot be reproduced.
    pub fn resolve(self, producer: Option<&Producer>) -> Result<Box<dyn Numerics>> {
        match (self, producer.map(|producer| producer.name.as_str())) {
            (Choice::LlamaCpp, _) | (Choice::Auto, Some("llama.cpp")) => {
                Ok(Box::new(LlamaCpp { kv: kv_type(producer)? }))
            }
            (Choice::Auto, Some("xcheck"))
                if producer.and_then(|p| p.setting("numerics")) == Some("llama.cpp") =>
            {
                Choice::LlamaCpp.resolve(producer)
            }
            _ => Ok(Box::new(F32)),
        }
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
