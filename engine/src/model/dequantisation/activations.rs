//! Quantisation of activations before products with quantised weights.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::model::json::Config;

/// Quantisation of a module's input, as the configuration states it.
#[derive(Clone, Debug)]
pub(crate) enum ActivationScheme {
    /// 8-bit codes whose scales are computed from the values.
    Dynamic,
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
        match arguments.optional_str("type")?.unwrap_or("int") {
            "int" | "float" => (),
            other => return Ok(Self::unsupported(arguments, "type", other)),
        }
        match (arguments.optional_str("strategy")?, arguments.optional_usize("group_size")?) {
            (Some("token"), _) | (Some("tensor") | None, None) => (),
            (Some("group"), Some(size)) if size > 0 => (),
            (other, _) => return Ok(Self::unsupported(arguments, "strategy", format!("{other:?}"))),
        }
        let asymmetric = !arguments.optional_bool("symmetric")?.unwrap_or(true);
        if asymmetric {
            return Ok(Self::unsupported(arguments, "symmetric", false));
        }
        Ok(ActivationScheme::Dynamic)
    }

    /// Returns the scheme of transformers' `fp8`: groups of as many values as a block of weights has inputs.
    pub(super) fn fine_grained(settings: &Config, scheme: &str) -> Self {
        match scheme {
            "dynamic" => ActivationScheme::Dynamic,
            other => Self::unsupported(settings, "activation_scheme", format!("{other:?}")),
        }
    }

    /// Checks that the scheme is supported.
    ///
    /// # Errors
    /// Names the key that asks for another scheme.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            ActivationScheme::Dynamic => Ok(()),
            ActivationScheme::Unsupported { file, key, found, expected } => {
                Err(Error::bad_key(file, key, found, expected))
            }
        }
    }
}
