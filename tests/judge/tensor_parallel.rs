//! Products that several devices share: each holds some columns, rounds its sum to a short type and adds it to those of the
//! others. That excuses such engines, and no faults of others.

use half::{bf16, f16};
use xcheck::align::Selection;
use xcheck::check::{Mode, Role, Rules, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::cross_check;
use xcheck::engine::RunInput;
use xcheck::model::llama::Llama;
use xcheck::numerics::{Numerics, Transformers};
use xcheck::quant::decode_matrix_row;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, Verdict};
use xcheck::weight::Matrix;

use super::clay::Clay;
use super::scene::{assert_first_wrong, assert_passes, recorded, site, told};
use crate::common::share::{one_of, pairs};
use crate::common::{rules, tiny_llama2};

const PROMPT: [u32; 12] = [1, 393, 395, 260, 394, 486, 263, 305, 315, 17, 200, 77];

/// How sums of devices are added.
#[derive(Clone, Copy, Debug)]
enum Added {
    AtOnce,
    /// Around a ring that begins with this one.
    FromDevice(usize),
    InPairs,
}

/// An engine on several devices.
struct Devices<'m> {
    model: &'m Llama,
    round: fn(f64) -> f64,
    /// Columns of each device, in parts of all.
    shares: &'m [f64],
    added: Added,
    /// Whether a layer is shared.
    is_shared: fn(usize) -> bool,
    /// What the sum of the last device is multiplied with.
    fault: f64,
    /// What the product starts from.
    input: Vec<f32>,
}

impl Devices<'_> {
    fn product(&self, w: &Matrix) -> Vec<f32> {
        let rounded = |value: f64| (self.round)(value);
        let mut product = Vec::new();
        let weights: Vec<Vec<f32>> = (0..w.rows).map(|row| decoded(w, row)).collect();
        for x in self.input.chunks(w.cols) {
            for weights in &weights {
                let mut first = 0;
                let mut sums: Vec<f64> = Vec::new();
                for share in self.shares {
                    let columns = first..first + (share * w.cols as f64).round() as usize;
                    let terms = x[columns.clone()].iter().zip(&weights[columns.clone()]);
                    sums.push(rounded(terms.map(|(x, w)| f64::from(*x) * rounded((*w).into())).sum()));
                    first = columns.end;
                }
                assert_eq!(first, w.cols, "every column is somebody's");
                *sums.last_mut().expect("there is a device") *= self.fault;
                product.push(rounded(self.sum(sums)) as f32);
            }
        }
        product
    }

    fn sum(&self, mut sums: Vec<f64>) -> f64 {
        let then = |a: f64, b: &f64| (self.round)(a + b);
        match self.added {
            Added::AtOnce => sums.iter().sum(),
            Added::FromDevice(device) => {
                sums.rotate_left(device);
                sums[1..].iter().fold(sums[0], then)
            }
            Added::InPairs => {
                while sums.len() > 1 {
                    sums = sums.chunks(2).map(|pair| then(pair[0], &pair[1])).collect();
                }
                sums[0]
            }
        }
    }
}

fn decoded(w: &Matrix, row: usize) -> Vec<f32> {
    let mut weights = vec![0.0; w.cols];
    decode_matrix_row(w, row, &mut weights);
    weights
}

impl Tap for Devices<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let Some(layer) = site.layer.filter(|&layer| (self.is_shared)(layer)) else { return value };
        let w = match site.point {
            Point::AttnContext | Point::FfnAct => {
                self.input = value.data().to_vec();
                return value;
            }
            Point::AttnOut => &self.model.layers[layer].attn.output.weight,
            Point::FfnOut => &self.model.layers[layer].ffn.down.weight,
            _ => return value,
        };
        Tensor::new(value.shape(), self.product(w))
    }
}

/// A short type of results.
struct Short {
    name: &'static str,
    numerics: &'static dyn Numerics,
    precision: &'static str,
    /// Of a number of f32, as accumulators hold it. (`half` drops bits of an f64 before it rounds.)
    round: fn(f64) -> f64,
}

const SHORT: [Short; 2] = [
    Short {
        name: "bf16",
        numerics: &Transformers::Bf16,
        precision: "torch-bf16",
        round: |x| bf16::from_f32(x as f32).to_f64(),
    },
    Short {
        name: "f16",
        numerics: &Transformers::F16,
        precision: "torch-f16",
        round: |x| f16::from_f32(x as f32).to_f64(),
    },
];

impl Short {
    fn engine<'m>(&self, model: &'m Llama, shares: &'m [f64], added: Added) -> Devices<'m> {
        let round = self.round;
        Devices { model, round, shares, added, is_shared: |_| true, fault: 1.0, input: Vec::new() }
    }

    fn run(&self, mut engine: Devices) -> Clay {
        let script = RunInput::greedy(&PROMPT, 2);
        Clay::of(&recorded(engine.model, self.numerics, self.name, &script, &mut engine))
    }

    fn judged(&self, clay: &Clay, mode: Mode) -> Outcome {
        let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
        let rules = Rules { role: Role::Candidate, ..rules(&selection, &tolerances, self.precision, mode) };
        cross_check("engine", &tiny_llama2(), self.numerics, &clay.dump(), rules, &mut ())
            .expect("the two can be compared")
    }
}

fn told_of_parts(outcome: &Outcome) -> usize {
    outcome.notes.iter().filter(|note| note.contains("parts of the columns are rounded")).count()
}

const EQUAL: [&[f64]; 3] = [&[0.5; 2], &[0.25; 4], &[0.125; 8]];

#[test]
fn sums_of_several_devices_pass_however_they_are_added_and_are_told() {
    let model = tiny_llama2();
    let orders = [Added::AtOnce, Added::FromDevice(0), Added::FromDevice(1), Added::InPairs];
    for ((short, shares), added) in one_of(3, pairs(pairs(&SHORT, EQUAL), orders)) {
        let clay = short.run(short.engine(&model, shares, added));
        let outcome = short.judged(&clay, Mode::Both);
        let what = format!("{}, {} devices, {added:?}", short.name, shares.len());
        assert_eq!(outcome.verdict, Verdict::Pass, "{what}: {}", told(&outcome));
        assert_eq!(told_of_parts(&outcome), 2, "{what}: {:?}", outcome.notes);
    }
}

#[test]
fn one_device_is_not_taken_for_several() {
    let model = tiny_llama2();
    for short in &SHORT {
        let outcome = short.judged(&short.run(short.engine(&model, &[1.0], Added::AtOnce)), Mode::Both);
        assert_passes(&outcome);
        assert_eq!(told_of_parts(&outcome), 0, "{:?}", outcome.notes);
    }
}

#[test]
fn a_dump_without_the_sums_of_devices_passes_by_what_lies_behind_them() {
    let model = tiny_llama2();
    for short in &SHORT {
        let clay = short.run(short.engine(&model, EQUAL[0], Added::AtOnce));
        for left_out in [&[Point::AttnOut, Point::FfnOut][..], &[Point::AttnContext], &[Point::FfnAct]] {
            let outcome = short.judged(&clay.clone().without(left_out), Mode::Both);
            assert_eq!(
                outcome.verdict,
                Verdict::Pass,
                "{} without {left_out:?}: {}",
                short.name,
                told(&outcome)
            );
        }
    }
}

#[test]
fn shares_that_are_not_equal_and_faults_of_a_device_fail() {
    let model = tiny_llama2();
    let first = site(Point::AttnOut, 0, 0);
    type Change = fn(&mut Devices);
    let changes: [(Site, Change); 4] = [
        (first, |engine| engine.shares = &[0.25, 0.75]),
        (first, |engine| engine.fault = 1.002),
        (first, |engine| engine.fault = 0.0),
        // What one layer does, all do.
        (site(Point::AttnOut, 1, 0), |engine| engine.is_shared = |layer| layer == 1),
    ];
    for (short, (wrong, change)) in one_of(2, pairs(&SHORT, changes)) {
        let mut engine = short.engine(&model, EQUAL[0], Added::AtOnce);
        change(&mut engine);
        assert_first_wrong(&short.judged(&short.run(engine), Mode::Both), wrong);
    }
}

#[test]
fn one_value_of_a_shared_product_that_is_a_step_off_fails() {
    let model = tiny_llama2();
    let place = site(Point::FfnOut, 2, 1);
    for (short, shares) in one_of(2, pairs(&SHORT, EQUAL)) {
        let clay = short.run(short.engine(&model, shares, Added::AtOnce));
        let step = if short.name == "bf16" { 1.0 / 64.0 } else { 1.0 / 512.0 };
        let off = clay.edit(place, |values| {
            let largest = values.iter_mut().max_by(|a, b| a.abs().total_cmp(&b.abs()));
            let largest = largest.expect("there are values");
            *largest = (short.round)(*largest * (1.0 + step));
        });
        assert_first_wrong(&short.judged(&off, Mode::Both), place);
    }
}
