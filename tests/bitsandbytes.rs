//! bitsandbytes: dumps of its kernels for CPUs pass, and engines that quantise outliers, or read codes or scales differently, fail.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde_json::Value;
use tempfile::TempDir;
use xcheck::numerics::Transformers;
use xcheck::quant::decode_matrix_row;
use xcheck::tensor::Tensor;
use xcheck::weight::Matrix;

use crate::quantised_models::{checked, dumped, folder};

fn check(name: &str, dump: &Path) -> (i32, Value) {
    checked(&folder(name), dump, &[])
}

/// The library multiplies decoded weights, or its kernel for CPUs with AVX512-BF16 multiplies codes.
#[test]
fn both_ways_to_multiply_weights_of_4_bits_pass() {
    for name in ["nf4-model", "fp4-model"] {
        let (code, report) = check(name, &folder(name).join("dump.safetensors"));
        assert_eq!(code, 0, "{name}: {report:#}");
        assert!(!report["notes"].to_string().contains("the library's kernel"), "{name}: {report:#}");
        let (code, report) = check(name, &folder(name).join("dump-avx512-bf16.safetensors"));
        assert_eq!(code, 0, "{name}: {report:#}");
        let note = "decoded weights are those of a kernel";
        assert!(report["notes"].to_string().contains(note), "{name}: {report:#}");
    }
}

#[test]
fn a_dump_of_int8_products_with_outliers_passes() {
    let (code, report) = check("int8-model", &folder("int8-model").join("dump.safetensors"));
    assert_eq!(code, 0, "{report:#}");
    let note = "except in columns with a value of 2.5 or more";
    assert!(report["notes"].to_string().contains(note), "{report:#}");
}

/// LLM.int8(): columns with values from a threshold on are multiplied in bf16.
fn int8_product(x: &Tensor, w: &Matrix, threshold: f32) -> Tensor {
    let mut row = vec![0.0f32; w.cols];
    let short = |value: f64| bf16::from_f64(value).to_f64();
    let is_whole = w.outliers().is_none();
    let is_outlier = |col: usize| x.data().chunks(w.cols).any(|row| row[col].abs() >= threshold);
    let columns: Vec<bool> = (0..w.cols).map(|col| is_whole || is_outlier(col)).collect();
    let codes = |x: &[f32]| -> Vec<f64> {
        let inside = x.iter().filter(|x| x.abs() < threshold);
        let largest = inside.fold(0.0f32, |most, x| most.max(x.abs()));
        let code = |x: f32| f64::from((f16::from_f32(x).to_f32() * (127.0 / largest)).round_ties_even());
        x.iter().map(|&x| code(x) * f64::from(largest) / 127.0).collect()
    };
    let coded: Vec<Vec<f64>> = x.data().chunks(w.cols).map(codes).collect();
    let mut data = vec![0.0f32; x.rows() * w.rows];
    for output in 0..w.rows {
        decode_matrix_row(w, output, &mut row);
        for (token, x) in x.data().chunks(w.cols).enumerate() {
            let (mut sum, mut whole) = (0.0, 0.0);
            for col in 0..w.cols {
                match columns[col] {
                    true => whole += f64::from(x[col]) * short(row[col].into()),
                    false => sum += coded[token][col] * f64::from(row[col]),
                }
            }
            data[token * w.rows + output] = short(short(sum) + whole) as f32;
        }
    }
    Tensor::new(&[x.rows(), w.rows], data)
}

fn int8_dump(linear: fn(&Tensor, &Matrix) -> Tensor) -> (TempDir, PathBuf) {
    dumped(&folder("int8-model"), (&Transformers::Bf16, "bf16"), linear)
}

#[test]
fn quantised_outliers_are_named_and_whole_ones_pass() {
    let (_place, file) = int8_dump(|x, w| int8_product(x, w, 2.5));
    let (code, report) = check("int8-model", &file);
    assert_eq!(code, 0, "{report:#}");
    let (_place, file) = int8_dump(|x, w| int8_product(x, w, f32::MAX));
    let (code, report) = check("int8-model", &file);
    assert_eq!(code, 1, "{report:#}");
    let findings = report["findings"].as_array().expect("findings");
    let is_named = |finding: &Value| finding["kind"] == "input_scale" && finding["candidate"] == "token";
    assert!(findings.iter().any(is_named), "{findings:#?}");
}
