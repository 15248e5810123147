//! BitNet's linear layers in Hugging Face checkpoints: `quantization_config`, and ternary weights that transformers
//! packs or quantises from master weights.

use crate::error::Result;
use crate::model::json::Config;
use crate::parallel;
use crate::quant::{decode_matrix_row, ternary};
use crate::weight::{DType, Factor, Matrix, StoredTensor};

/// Key in `config.json`.
pub(super) const KEY: &str = "quantization_config";

/// Kind of BitNet's linear layers in transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinearClass {
    /// `AutoBitLinear`, offline mode: products are multiplied by `weight_scale`.
    Multiplying,
    /// `BitLinear`: products are divided by `weight_scale`.
    Dividing,
    /// `AutoBitLinear`, online mode: the file stores master weights, which are quantised at run time.
    Online,
}

impl LinearClass {
    /// Reads `quantization_config`; `None` for ordinary linear layers.
    pub(super) fn read(file: &Config) -> Result<Option<Self>> {
        let Some(asked) = file.object(KEY)? else { return Ok(None) };
        asked.require_str("quant_method")?;
        asked.only(
            "quant_method",
            &["bitnet".into()],
            "\"bitnet\" (other quantised checkpoints are not supported)",
        )?;
        asked.only("use_rms_norm", &[false.into()], "false (a norm in linear layers is not supported)")?;
        asked.only(
            "modules_to_not_convert",
            &[],
            "absent (all linear layers except the head must be ternary)",
        )?;
        asked.only_keys(&[
            "quant_method",
            "linear_class",
            "quantization_mode",
            "use_rms_norm",
            "rms_norm_eps",
            "modules_to_not_convert",
        ])?;
        let class = asked.optional_str("linear_class")?.unwrap_or("bitlinear");
        let mode = asked.optional_str("quantization_mode")?.unwrap_or("offline");
        match (class, mode) {
            ("bitlinear", "offline" | "online") => Ok(Some(LinearClass::Dividing)),
            ("autobitlinear", "offline") => Ok(Some(LinearClass::Multiplying)),
            ("autobitlinear", "online") => Ok(Some(LinearClass::Online)),
            ("bitlinear" | "autobitlinear", _) => {
                Err(asked.bad_key("quantization_mode", mode, "\"offline\" or \"online\""))
            }
            _ => Err(asked.bad_key("linear_class", class, "\"bitlinear\" or \"autobitlinear\"")),
        }
    }

    /// Returns the factor for a matrix's `weight_scale`; `None` if the file has no scale.
    pub(super) fn factor(self, weight_scale: f32) -> Option<Factor> {
        match self {
            LinearClass::Multiplying => Some(Factor::Multiplies(weight_scale)),
            LinearClass::Dividing => Some(Factor::Divides(weight_scale)),
            LinearClass::Online => None,
        }
    }
}

/// Unpacks codes packed by transformers, `[rows / 4, cols]`: bits `2j` and `2j + 1` of the byte in row `r` are the
/// weight of row `r + j · rows / 4`, plus one. Returns I2_S rows of any length; `None` if there are no rows.
pub(super) fn unpacked(packed: &StoredTensor, rows: usize, cols: usize) -> Option<Matrix> {
    let quarter = rows / 4;
    let row = |row: usize| {
        let bytes = packed.data[row % quarter * cols..][..cols].iter();
        bytes.map(move |byte| (byte >> (2 * (row / quarter)) & 3) as i8 - 1)
    };
    matrix(rows, cols, |index, out| ternary::encode_row(row(index), out))
}

/// Returns the offset of the first byte with the invalid code 3.
pub(super) fn first_bad_code(packed: &StoredTensor) -> Option<usize> {
    ternary::first_bad_code(&packed.data)
}

/// Quantises master weights as transformers does online: `round(w / mean|w|)`, clamped to −1, 0 and 1. Returns the
/// matrix and the factor of all its weights; `None` if there are no rows.
pub(super) fn quantised(masters: &Matrix) -> Option<(Matrix, Factor)> {
    let row = |row: usize| {
        let mut values = vec![0.0; masters.cols];
        decode_matrix_row(masters, row, &mut values);
        values
    };
    let sums = parallel::map(masters.rows, masters.cols, |index| -> f64 {
        row(index).iter().map(|value| f64::from(value.abs())).sum()
    });
    let mean = (sums.iter().sum::<f64>() / (masters.rows as f64 * masters.cols as f64)) as f32;
    let scale = 1.0 / mean.max(1e-5);
    let code = |value: f32| (value * scale).round_ties_even().clamp(-1.0, 1.0) as i8;
    let codes = matrix(masters.rows, masters.cols, |index, out| {
        ternary::encode_row(row(index).into_iter().map(code), out)
    });
    Some((codes?, Factor::InWeights(1.0 / scale)))
}

/// Creates a matrix of I2_S rows with a scale of 1.
fn matrix(rows: usize, cols: usize, encode: impl Fn(usize, &mut [u8]) + Sync) -> Option<Matrix> {
    let row_bytes = DType::I2_S.row_bytes(cols)?;
    let mut data = vec![0; rows * row_bytes];
    parallel::chunks(&mut data, row_bytes, 4 * cols, encode);
    data.extend_from_slice(&1.0f32.to_le_bytes());
    data.resize(rows * row_bytes + DType::I2_S.tail_bytes(), 0);
    Matrix::from_stored(&StoredTensor { dtype: DType::I2_S, shape: vec![rows, cols], data: data.into() })
}
