//! Quantisation of activations before products with quantised weights.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::model::dequantisation::FormatGroup;
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::json::Config;
use crate::weight::{DType, InputCodes, InputScale};

/// Quantisation of a module's input, as the configuration states it.
#[derive(Clone, Debug)]
pub(crate) enum ActivationScheme {
    /// 8-bit codes whose scales are computed from the values, with the groups that the configuration states. `None` for
    /// groups that are not supported.
    Dynamic(Option<InputScale>),
    /// Codes that the configuration determines, without a stored scale.
    Fixed(InputScale),
    /// Codes whose scale is stored with the module. For NVFP4: 4-bit codes in groups of 16, whose scales are computed
    /// from the values, relative to the stored number.
    Static {
        /// Format of the codes.
        codes: InputCodes,
        /// Name of the scale, after the module's name.
        scale: &'static str,
        /// True if the file stores the inverse of the scale.
        is_inverse: bool,
        /// False if a zero point is also stored.
        is_symmetric: bool,
    },
    /// 8-bit integers with one scale per token, except in columns with a value of at least this size (LLM.int8()). 0
    /// for no such columns.
    Outliers(f32),
    /// A quantisation that is not supported.
    Unsupported {
        /// Configuration file.
        file: PathBuf,
        /// Key that requests this quantisation.
        key: String,
        /// Its value.
        found: String,
        /// Supported values.
        expected: &'static str,
    },
}

impl ActivationScheme {
    /// Returns codes without zero points, whose scale is stored under this name.
    pub(super) fn symmetric(codes: InputCodes, scale: &'static str) -> Self {
        Self::Static { codes, scale, is_inverse: false, is_symmetric: true }
    }

    /// Returns codes in groups of 32 whose scales are powers of two: MXFP4 and MXFP8.
    pub(super) fn powers(codes: InputCodes) -> Self {
        Self::Fixed(InputScale { codes, number: 1.0, zero: 0.0 })
    }

    /// Returns a scheme that is not supported.
    pub(super) fn unsupported(settings: &Config, key: &str, found: impl ToString) -> Self {
        const EXPECTED: &str = "unquantised activations, 8-bit ones with one stored scale (dynamic: false, strategy: \
                                tensor), symmetric 8-bit ones with scales computed from their values, or NVFP4, \
                                MXFP4 or MXFP8 (other quantised activations are not supported)";
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
        match arguments.optional_usize("num_bits")?.unwrap_or(8) {
            8 => (),
            4 if arguments.optional_str("type")? == Some("float") => return Self::four_bits(arguments),
            bits => return Ok(Self::unsupported(arguments, "num_bits", bits)),
        }
        let codes = match arguments.optional_str("type")?.unwrap_or("int") {
            "int" => InputCodes::Int8,
            "float" => InputCodes::Float8,
            other => return Ok(Self::unsupported(arguments, "type", other)),
        };
        let is_symmetric = arguments.optional_bool("symmetric")?.unwrap_or(true);
        let strategy = (arguments.optional_str("strategy")?, arguments.optional_usize("group_size")?);
        match arguments.get("dynamic").map_or("false".to_owned(), ToString::to_string).as_str() {
            "true" => (),
            "false" if matches!(strategy, (Some("tensor") | None, None)) => {
                return Ok(Self::Static { codes, scale: "input_scale", is_inverse: false, is_symmetric });
            }
            "false" => return Ok(Self::unsupported(arguments, "strategy", format!("{strategy:?}"))),
            dynamic => return Ok(Self::unsupported(arguments, "dynamic", dynamic)),
        }
        let groups = match codes {
            InputCodes::Int8 => InputCodes::Int8Groups,
            _ => InputCodes::Float8Groups,
        };
        let groups = match strategy {
            (Some("token"), _) => Some(InputScale::of_groups(groups, 0)),
            (Some("tensor") | None, None) => None,
            (Some("group"), Some(size)) if size > 0 => Some(InputScale::of_groups(groups, size)),
            (other, _) => return Ok(Self::unsupported(arguments, "strategy", format!("{other:?}"))),
        };
        if !is_symmetric {
            return Ok(Self::unsupported(arguments, "symmetric", false));
        }
        let is_mxfp8 = codes == InputCodes::Float8 && strategy == (Some("group"), Some(32));
        Ok(match is_mxfp8 && arguments.optional_str("scale_dtype")? == Some("torch.uint8") {
            true => ActivationScheme::powers(InputCodes::Mxfp8),
            false => ActivationScheme::Dynamic(groups),
        })
    }

    /// Reads compressed-tensors' `input_activations` of 4-bit floats: NVFP4 and MXFP4.
    fn four_bits(arguments: &Config) -> Result<Self> {
        let (nvfp4, mxfp4) = (("tensor_group", 16, "\"local\""), ("group", 32, "true"));
        let strategy = arguments.optional_str("strategy")?.unwrap_or("group");
        let dynamic = arguments.get("dynamic").map_or("false".to_owned(), ToString::to_string);
        let found = (strategy, arguments.optional_usize("group_size")?.unwrap_or(0), dynamic.as_str());
        let scales = arguments.optional_str("scale_dtype")?;
        let known = if found == nvfp4 { "torch.float8_e4m3fn" } else { "torch.uint8" };
        if found != nvfp4 && found != mxfp4 {
            return Ok(Self::unsupported(arguments, "strategy", format!("{found:?}")));
        }
        if scales.is_some_and(|scales| scales != known) || (scales.is_none() && found == mxfp4) {
            return Ok(Self::unsupported(arguments, "scale_dtype", format!("{scales:?}")));
        }
        if !arguments.optional_bool("symmetric")?.unwrap_or(true) {
            return Ok(Self::unsupported(arguments, "symmetric", false));
        }
        Ok(match found == nvfp4 {
            true => Self::symmetric(InputCodes::Nvfp4, "input_global_scale"),
            false => Self::powers(InputCodes::Mxfp4),
        })
    }

    /// Returns the stored scale of a module's activations; `None` for other schemes.
    ///
    /// # Errors
    /// If the scale or the zero point is missing or not a valid number.
    pub(super) fn stored(&self, module: &ModuleTensors) -> Result<Option<InputScale>> {
        const ZERO: &str = "input_zero_point";
        let (codes, scale, is_inverse, is_symmetric) = match *self {
            ActivationScheme::Static { codes, scale, is_inverse, is_symmetric } => {
                (codes, scale, is_inverse, is_symmetric)
            }
            ActivationScheme::Fixed(input) => return Ok(Some(input)),
            _ => return Ok(None),
        };
        let number = module.number(scale, FLOATS)?;
        let used = if is_inverse { number.recip() } else { number };
        if !(used > 0.0 && used.is_finite()) {
            let problem =
                format!("'{}' is {number}, expected more than 0; the file is damaged", module.name(scale));
            return Err(module.bad(problem));
        }
        let zero = match (module.get(ZERO), is_symmetric) {
            (None, true) => 0.0,
            _ => module.number(ZERO, &[&[DType::I8, DType::I32, DType::F8_E4M3], FLOATS].concat())?,
        };
        let stored = InputScale { codes, number: used, zero };
        match stored.is_sound() && (zero == 0.0 || !is_symmetric) {
            true => Ok(Some(stored)),
            false => {
                let expected =
                    if is_symmetric { "0 (symmetric: true)" } else { "an integer from -128 to 127" };
                Err(module.bad(format!("'{}' is {zero}, expected {expected}", module.name(ZERO))))
            }
        }
    }

    /// Returns true if the file of a matrix states everything that determines the codes of its activations.
    pub(super) fn is_stated(&self) -> bool {
        matches!(self, ActivationScheme::Static { .. } | ActivationScheme::Fixed(_))
    }

    /// Checks that the scheme is supported.
    ///
    /// # Errors
    /// Names the key that asks for another scheme.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            ActivationScheme::Unsupported { file, key, found, expected } => {
                Err(Error::bad_key(file, key, found, expected))
            }
            _ => Ok(()),
        }
    }
}

/// Lets the file determine the codes of all format groups if it determines those of one, because a dump is judged
/// by codes from the file or by codes from its values, never by both. Returns the index of a group whose codes the
/// file determines, and of each group whose codes stay open.
pub(super) fn state_all(groups: &mut [FormatGroup]) -> Option<(usize, Vec<usize>)> {
    let states = |group: &FormatGroup| group.activations.as_ref().is_some_and(ActivationScheme::is_stated);
    let stated = groups.iter().position(states)?;
    let mut unknown = Vec::new();
    for (index, group) in groups.iter_mut().enumerate() {
        match group.activations {
            Some(ActivationScheme::Dynamic(Some(input))) => {
                group.activations = Some(ActivationScheme::Fixed(input));
            }
            Some(ActivationScheme::Dynamic(None)) => unknown.push(index),
            _ => {}
        }
    }
    Some((stated, unknown))
}
