//! Quantisation of activations before products with quantised weights.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::model::json::Config;
use crate::quant::{ActivationCodeType, ActivationCodes, CodeGroup};

/// Quantisation of a module's input, as the configuration states it.
#[derive(Clone, Debug)]
pub(crate) enum ActivationScheme {
    /// 8-bit codes whose scales are computed from the values.
    Dynamic(ActivationCodes),
    /// A quantisation that is not supported.
    Unsupported {
        /// Configuration file.
        file: PathBuf,
        /// Key that asks for it.
        key: String,
        /// Its value.
        found: String,
        /// Supported values.
        expected: &'static str,
    },
}

impl ActivationScheme {
    /// Returns a scheme that is not supported.
    pub(super) fn unsupported(settings: &Config, key: &str, found: impl ToString) -> Self {
        const EXPECTED: &str = "whole activations, or symmetric 8-bit ones with scales computed from their values \
                                (other quantised activations are not supported)";
        Self::unsupported_for(settings, key, found, EXPECTED)
    }

    /// Returns a scheme that is not supported, with the supported values.
    pub(super) fn unsupported_for(
        settings: &Config,
        key: &str,
        found: impl ToString,
        expected: &'static str,
    ) -> Self {
        let (file, key) = (settings.path().to_owned(), settings.path_of(key));
        ActivationScheme::Unsupported { file, key, found: found.to_string(), expected }
    }

    /// Reads compressed-tensors' `input_activations`.
    ///
    /// # Errors
    /// If a value has another type than the key.
    pub(super) fn compressed_tensors(arguments: &Config) -> Result<Self> {
        if arguments.optional_usize("num_bits")?.unwrap_or(8) != 8 {
            return Ok(Self::unsupported(arguments, "num_bits", arguments.require_usize("num_bits")?));
        }
        let dynamic = arguments.get("dynamic").map_or("false".to_owned(), ToString::to_string);
        if dynamic != "true" {
            return Ok(Self::unsupported(arguments, "dynamic", dynamic));
        }
        let codes = match arguments.optional_str("type")?.unwrap_or("int") {
            "int" => ActivationCodeType::Int8,
            "float" => ActivationCodeType::F8E4m3,
            other => return Ok(Self::unsupported(arguments, "type", other)),
        };
        let size = arguments.optional_usize("group_size")?;
        let group = match (arguments.optional_str("strategy")?, size) {
            (Some("token"), _) => CodeGroup::Token,
            (Some("tensor") | None, None) => CodeGroup::Pass,
            (Some("group"), Some(size)) if size > 0 => CodeGroup::Values(size),
            (other, _) => return Ok(Self::unsupported(arguments, "strategy", format!("{other:?}"))),
        };
        let asymmetric = !arguments.optional_bool("symmetric")?.unwrap_or(true);
        if asymmetric {
            return Ok(Self::unsupported(arguments, "symmetric", false));
        }
        Ok(ActivationScheme::Dynamic(ActivationCodes { group, codes, ..ActivationCodes::default() }))
    }

    /// Returns the scheme of transformers' `fp8`: groups of as many values as a block of weights has inputs.
    pub(super) fn fine_grained(settings: &Config, scheme: &str, inputs: Option<usize>) -> Self {
        let group = inputs.map_or(CodeGroup::Pass, CodeGroup::Values);
        match scheme {
            "dynamic" => {
                let codes = ActivationCodeType::F8E4m3;
                ActivationScheme::Dynamic(ActivationCodes { group, codes, ..ActivationCodes::default() })
            }
            other => Self::unsupported(settings, "activation_scheme", format!("{other:?}")),
        }
    }

    /// Checks that the scheme is supported.
    ///
    /// # Errors
    /// Names the key that asks for another scheme.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            ActivationScheme::Dynamic(_) => Ok(()),
            ActivationScheme::Unsupported { file, key, found, expected } => {
                Err(Error::bad_key(file, key, found, expected))
            }
        }
    }
}
