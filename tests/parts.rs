//! A layer run by itself is the layer of a whole run, to the last bit.

mod common;

use common::{tiny_llama2, variant};
use xcheck::checkpoint::{Point, Site};
use xcheck::engine::{self, Script, run_layer};
use xcheck::model::{KvLayer, Model};
use xcheck::numerics::{self, F32, Numerics};
use xcheck::shipped;
use xcheck::tap::{Probe, Tap};
use xcheck::tensor::Tensor;

/// Every value that came by, in order.
#[derive(Default)]
struct Recorded(Vec<(Site, Tensor)>);

impl Tap for Recorded {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        self.0.push((site, value.clone()));
        value
    }
}

impl Recorded {
    fn of(model: &dyn Model, numerics: &dyn Numerics, script: &Script) -> Self {
        let mut recorded = Self::default();
        engine::run(model, numerics, script, &mut recorded).expect("it runs");
        recorded
    }

    fn at(&self, point: Point, layer: Option<usize>, pass: usize) -> &Tensor {
        let wanted = Site { point, layer, pass: Some(pass) };
        &self.0.iter().find(|(site, _)| *site == wanted).expect("it was recorded").1
    }

    /// What enters a layer.
    fn entering(&self, layer: usize, pass: usize) -> &Tensor {
        match layer.checked_sub(1) {
            Some(before) => self.at(Point::BlockOut, Some(before), pass),
            None => self.at(Point::Embed, None, pass),
        }
    }

    /// Every bit of a layer in a pass.
    fn bits(&self, layer: usize, pass: usize) -> Vec<(Site, Vec<usize>, Vec<u32>)> {
        let of_layer = self.0.iter().filter(|(site, _)| (site.layer, site.pass) == (Some(layer), Some(pass)));
        let bits = |value: &Tensor| value.data().iter().map(|number| number.to_bits()).collect();
        of_layer.map(|(site, value)| (*site, value.shape().to_vec(), bits(value))).collect()
    }
}

fn computes(numerics: &dyn Numerics, model: &dyn Model) -> bool {
    model.matrices().iter().all(|(_, matrix)| numerics.weight_types().contains(&matrix.dtype))
}

/// Runs each layer from what entered it, pass after pass.
fn assert_layers_are_those_of(whole: &Recorded, model: &dyn Model, numerics: &dyn Numerics, passes: usize) {
    for layer in 0..model.dimensions().n_layers {
        let mut kv = KvLayer::default();
        for pass in 0..passes {
            let mut alone = Recorded::default();
            let mut t = Probe::new(&mut alone, pass);
            let out = run_layer(model, numerics, layer, whole.entering(layer, pass), &mut kv, &mut t);
            assert_eq!(out.expect("it runs"), *whole.at(Point::BlockOut, Some(layer), pass));
            let (alone, whole) = (alone.bits(layer, pass), whole.bits(layer, pass));
            assert!(alone.len() >= 14 && alone == whole, "{}, layer {layer}", numerics.name());
        }
    }
}

#[test]
fn each_layer_of_every_shipped_model_gives_the_bits_of_the_whole_run_from_its_own_inputs() {
    let script = Script::greedy(&[7, 44, 81, 118, 155, 192, 229, 10, 47], 3);
    for (_, files) in shipped::MODELS.iter().flat_map(|model| model.variants()) {
        let model = files.load().expect("it loads").model;
        for numerics in numerics::ALL.iter().filter(|numerics| computes(**numerics, &*model)) {
            let whole = Recorded::of(&*model, *numerics, &script);
            assert_layers_are_those_of(&whole, &*model, *numerics, script.passes.len());
        }
    }
}

#[test]
fn a_layer_goes_on_from_a_cache_that_was_recorded() {
    for name in ["tiny-llama2-f32", "tiny-gemma3-f32", "tiny-gpt2-f32"] {
        let model = variant(name).load().expect("it loads").model;
        let whole = Recorded::of(&*model, &F32, &Script::greedy(&[7, 44, 81, 118, 155, 192], 2));
        let layer = model.dimensions().n_layers - 1;
        let cached = |point| whole.at(point, Some(layer), 1).clone();
        let mut kv = KvLayer::holding(cached(Point::KCache), cached(Point::VCache));
        let mut alone = Recorded::default();
        let mut t = Probe::new(&mut alone, 2);
        run_layer(&*model, &F32, layer, whole.entering(layer, 2), &mut kv, &mut t).expect("it runs");
        assert_eq!(alone.bits(layer, 2), whole.bits(layer, 2), "{name}");
    }
}

#[test]
fn what_is_no_input_of_a_layer_is_refused_with_one_message() {
    let model = tiny_llama2();
    let zeros = |shape: &[usize]| Tensor::new(shape, vec![0.0; shape.iter().product()]);
    let refused = |layer, x: &[usize], kv: &mut KvLayer| {
        let run = run_layer(&model, &F32, layer, &zeros(x), kv, &mut Probe::new(&mut (), 0));
        run.expect_err("it is refused").to_string()
    };
    let assert_refused = |layer, x: &[usize], kv: [&[usize]; 2], expected: &str| {
        let message = refused(layer, x, &mut KvLayer::holding(zeros(kv[0]), zeros(kv[1])));
        assert!(message.contains(expected), "{message}");
    };
    let empty: [&[usize]; 2] = [&[0, 4, 32]; 2];
    assert_refused(4, &[3, 128], empty, "no layer 4: the model has 4");
    assert_refused(0, &[3, 127], empty, "shape [3, 127], layer 0 takes [tokens, 128]");
    assert_refused(0, &[0, 128], empty, "shape [0, 128]");
    assert_refused(0, &[128], empty, "shape [128]");
    assert_refused(0, &[1, 3, 128], empty, "shape [1, 3, 128]");
    assert_refused(0, &[3, 128], [&[2, 4, 32], &[1, 4, 32]], "other keys than those of 128 values");
    assert_refused(0, &[3, 128], [&[1, 4, 31]; 2], "other keys than those of 128 values");
    assert_refused(0, &[2, 128], [&[255, 4, 32]; 2], "257 tokens are more than the 256");
}
