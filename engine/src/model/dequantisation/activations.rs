//! Quantisation of activations before products with quantised weights.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::json::Config;
use crate::weight::{DType, InputScale};

/// Quantisation of a module's input, as the configuration states it.
#[derive(Clone, Debug)]
pub(crate) enum ActivationScheme {
    /// 8-bit codes whose scales are computed from the values.
    Dynamic,
    /// 8-bit codes whose scale is stored with the module.
    Static {
        /// Type of the codes.
        codes: DType,
        /// Name of the scale, after the module's name.
        scale: &'static str,
        /// False if a zero point is stored, too.
        is_symmetric: bool,
    },
    /// 8-bit integers with a scale for each token, except columns with a value of at least this size (LLM.int8()); 0
    /// for none.
    Outliers(f32),
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
        const EXPECTED: &str = "unquantised activations, 8-bit ones with one stored scale (dynamic: false, strategy: \
                                tensor), or symmetric 8-bit ones with scales computed from their values (other \
                                quantised activations are not supported)";
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
        let codes = match arguments.optional_str("type")?.unwrap_or("int") {
            "int" => DType::I8,
            "float" => DType::F8_E4M3,
            other => return Ok(Self::unsupported(arguments, "type", other)),
        };
        let is_symmetric = arguments.optional_bool("symmetric")?.unwrap_or(true);
        let strategy = (arguments.optional_str("strategy")?, arguments.optional_usize("group_size")?);
        match arguments.get("dynamic").map_or("false".to_owned(), ToString::to_string).as_str() {
            "true" => (),
            "false" if matches!(strategy, (Some("tensor") | None, None)) => {
                return Ok(Self::Static { codes, scale: "input_scale", is_symmetric });
            }
            "false" => return Ok(Self::unsupported(arguments, "strategy", format!("{strategy:?}"))),
            dynamic => return Ok(Self::unsupported(arguments, "dynamic", dynamic)),
        }
        match strategy {
            (Some("token"), _) | (Some("tensor") | None, None) => (),
            (Some("group"), Some(size)) if size > 0 => (),
            (other, _) => return Ok(Self::unsupported(arguments, "strategy", format!("{other:?}"))),
        }
        if !is_symmetric {
            return Ok(Self::unsupported(arguments, "symmetric", false));
        }
        Ok(ActivationScheme::Dynamic)
    }

    /// Returns the stored scale of a module's activations; `None` for other schemes.
    ///
    /// # Errors
    /// If the scale or the zero point is missing or not a valid number.
    pub(super) fn stored(&self, module: &ModuleTensors) -> Result<Option<InputScale>> {
        const ZERO: &str = "input_zero_point";
        let ActivationScheme::Static { codes, scale, is_symmetric } = *self else { return Ok(None) };
        let step = module.number(scale, FLOATS)?;
        if step <= 0.0 {
            let problem =
                format!("'{}' is {step}, expected more than 0; the file is damaged", module.name(scale));
            return Err(module.bad(problem));
        }
        let zero = match (module.get(ZERO), is_symmetric) {
            (None, true) => 0.0,
            _ => module.number(ZERO, &[&[DType::I8, DType::I32], &InputScale::CODES, FLOATS].concat())?,
        };
        let stored = InputScale { codes, step, zero };
        match stored.is_sound() && (zero == 0.0 || !is_symmetric) {
            true => Ok(Some(stored)),
            false => {
                let expected =
                    if is_symmetric { "0 (symmetric: true)" } else { "an integer from -128 to 127" };
                Err(module.bad(format!("'{}' is {zero}, expected {expected}", module.name(ZERO))))
            }
        }
    }

    /// Checks that the scheme is supported.
    ///
    /// # Errors
    /// Names the key that asks for another scheme.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            ActivationScheme::Dynamic | ActivationScheme::Static { .. } | ActivationScheme::Outliers(_) => {
                Ok(())
            }
            ActivationScheme::Unsupported { file, key, found, expected } => {
                Err(Error::bad_key(file, key, found, expected))
            }
        }
    }
}
