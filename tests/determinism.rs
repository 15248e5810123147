//! The same bits in every run, with one thread and with several, whatever the numerics: nothing is summed by more than
//! one thread.

use std::collections::BTreeMap;

use crate::common::faulty::Faulty;
use crate::common::{LLAMA_CPP_F32, variant};
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use xcheck::checkpoint::Site;
use xcheck::engine::{self, RunInput};
use xcheck::model::Model;
use xcheck::numerics::{self, KvType, LlamaCpp, Numerics, Transformers};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::weight::Matrix;

/// The bits of every value of a run.
type Bits = BTreeMap<String, Vec<u32>>;

#[derive(Default)]
struct Keep(Bits);

impl Tap for Keep {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        self.0.insert(site.to_string(), value.data().iter().map(|value| value.to_bits()).collect());
        value
    }
}

/// A prompt and three greedy passes after it, with so many threads.
fn run(model: &dyn Model, numerics: &dyn Numerics, threads: usize) -> Bits {
    let pool = ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    let script = RunInput::greedy(&[1, 9, 17, 200, 77, 30, 2, 5, 110], 3);
    let mut kept = Keep::default();
    pool.install(|| engine::run(model, numerics, &script, &mut kept)).expect("it runs");
    assert!(kept.0.len() > 50, "every tap is looked at");
    kept.0
}

/// The first place where two runs differ in a bit.
fn first_difference(a: &Bits, b: &Bits) -> Option<String> {
    assert_eq!(a.len(), b.len());
    a.iter().find(|(site, bits)| b.get(*site) != Some(*bits)).map(|(site, _)| site.clone())
}

/// Every numerics, in each of its own types.
fn all() -> Vec<(&'static str, &'static dyn Numerics)> {
    let mut all: Vec<(&str, &dyn Numerics)> =
        numerics::ALL.iter().map(|&numerics| (numerics.name(), numerics)).collect();
    all.push(("llama.cpp, f32 cache", &LlamaCpp { kv: KvType::F32 }));
    all.push(("transformers bf16", &Transformers::Bf16));
    all.push(("transformers f16", &Transformers::F16));
    all
}

#[track_caller]
fn assert_same_bits(model: &str) {
    let loaded = variant(model).load().expect("it loads");
    for (name, numerics) in all() {
        let alone = run(&*loaded.model, numerics, 1);
        for threads in [1, 2, 3] {
            let again = run(&*loaded.model, numerics, threads);
            assert_eq!(first_difference(&alone, &again), None, "{model}, {name}, {threads} threads");
        }
    }
}

#[test]
fn every_numerics_gives_the_same_bits_with_any_number_of_threads() {
    assert_same_bits("tiny-llama2-f32");
}

#[test]
fn quantised_weights_give_the_same_bits_with_any_number_of_threads() {
    assert_same_bits("tiny-llama2-q8_0");
}

#[test]
fn gqa_and_f16_weights_give_the_same_bits_with_any_number_of_threads() {
    assert_same_bits("tiny-qwen3-f16");
}

#[test]
fn sliding_window_and_gelu_give_the_same_bits_with_any_number_of_threads() {
    assert_same_bits("tiny-gemma3-f32");
}

#[test]
fn bias_and_layer_norm_give_the_same_bits_with_any_number_of_threads() {
    assert_same_bits("tiny-gpt2-f32");
}

/// Each thread sums its own part of the columns: what a parallel sum does that is written without thought.
fn summed_by_threads(x: &Tensor, w: &Matrix) -> Tensor {
    let parts = rayon::current_num_threads();
    let length = w.cols.div_ceil(parts);
    Tensor::from_rows(x.rows(), w.rows, |token, out| {
        for (output, out) in out.iter_mut().enumerate() {
            let weights: Vec<f32> =
                w.row(output).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            let pairs: Vec<f32> = x.row(token).iter().zip(&weights).map(|(x, w)| x * w).collect();
            let sums: Vec<f32> = pairs.par_chunks(length).map(|part| part.iter().sum()).collect();
            *out = sums.iter().sum();
        }
    })
}

#[test]
fn a_sum_that_is_split_among_the_threads_is_found() {
    let loaded = variant("tiny-llama2-f32").load().expect("it loads");
    let faulty = Faulty { linear: Some(summed_by_threads), ..Faulty::default() };
    assert_eq!(faulty.weight_types(), LLAMA_CPP_F32.weight_types());
    let (alone, two) = (run(&*loaded.model, &faulty, 1), run(&*loaded.model, &faulty, 2));
    assert!(first_difference(&alone, &two).is_some(), "two threads add in another order than one");
    assert_eq!(first_difference(&alone, &run(&*loaded.model, &faulty, 1)), None, "one thread has one order");
}
