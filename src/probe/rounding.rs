//! How far rounding moves the log-probabilities of a model on a text, by our own engine: it runs again and again, its stages
//! moved within their own rounding, and once in other numerics.

use crate::checkpoint::{Point, Site};
use crate::engine::{self, Script, Step};
use crate::error::Result;
use crate::model::Model;
use crate::numerics::{F32, Noisy, Numerics, Resummed};
use crate::ops::sampling::log_probabilities;
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::weight::DType;

/// As many as where dumps are judged: the largest of so many is a quarter of what is called far from rounding.
const RUNS: u64 = 4;

/// The largest difference of a log-probability of the `top` likeliest tokens after each of these, between a run and those that
/// are moved; `is_stated` tells whether it is known how the server computes, or 8 bits may do what they do.
///
/// # Errors
/// If the model cannot read these tokens, or these numerics cannot compute with it.
pub fn floor(
    model: &dyn Model,
    numerics: &dyn Numerics,
    is_stated: bool,
    tokens: &[u32],
    top: usize,
) -> Result<f64> {
    let script = Script { passes: vec![Step::given(tokens)], prompt_len: tokens.len() };
    let logits = |numerics: &dyn Numerics| -> Result<Vec<Vec<f32>>> {
        let mut watch = Logits::default();
        engine::run(model, numerics, &script, &mut watch)?;
        Ok(watch.0)
    };
    let still = logits(numerics)?;
    let likeliest: Vec<Vec<u32>> = still.iter().map(|row| likeliest(row, top)).collect();
    let of = |rows: &[Vec<f32>]| -> Vec<f64> {
        let each = rows.iter().zip(&likeliest);
        each.flat_map(|(row, ids)| log_probabilities(row, ids, false, 1.0)).collect()
    };
    let known = of(&still);
    let mut runs = Vec::new();
    for seed in 1..=RUNS {
        let resummed = Resummed::new(numerics, seed);
        let wide = numerics.activation_type() == DType::F32;
        let noisy = Noisy::new(if wide { &resummed } else { numerics }, seed);
        runs.push(logits(&if is_stated { noisy } else { noisy.with_eight_bits() })?);
    }
    // What is declared to round is that far from what does not.
    if engine::check(model, &F32, &script).is_ok() {
        runs.push(logits(&F32)?);
    }
    let moved = runs
        .iter()
        .flat_map(|run| of(run).into_iter().zip(&known).map(|(a, b)| (a - b).abs()).collect::<Vec<_>>());
    Ok(moved.fold(0.0, f64::max))
}

fn likeliest(row: &[f32], top: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
    order.truncate(top.max(1));
    order
}

#[derive(Default)]
struct Logits(Vec<Vec<f32>>);

impl Tap for Logits {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point == Point::Logits {
            let rows = value.shape()[0];
            self.0.extend((0..rows).map(|row| value.row(row).to_vec()));
        }
        value
    }

    fn wants(&self, site: Site) -> bool {
        site.point == Point::Logits
    }
}
