//! What every tap may rely on: each place once, in data-flow order, and looking changes no bit.

use crate::common::{LLAMA_CPP_F32, tiny_llama2, variant};
use xcheck::checkpoint::{Point, Site};
use xcheck::engine::{self, Engine, RunInput};
use xcheck::model::Model;
use xcheck::numerics::{F32, Numerics};
use xcheck::tap::{Probe, Tap};
use xcheck::tensor::Tensor;

/// Keeps everything it sees.
#[derive(Default)]
struct Keep(Vec<(Site, Tensor)>);

impl Tap for Keep {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        self.0.push((site, value.clone()));
        value
    }
}

/// Keeps what the last pass ends with only.
#[derive(Default)]
struct KeepLogits(Vec<Tensor>);

impl Tap for KeepLogits {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point == Point::Logits {
            self.0.push(value.clone());
        }
        value
    }
}

const PROMPT: &[u32] = &[1, 393, 395, 260, 394];

#[test]
fn each_tap_fires_once_per_layer_and_pass_in_data_flow_order() {
    let mut keep = Keep::default();
    let model = tiny_llama2();
    engine::run(&model, &LLAMA_CPP_F32, &RunInput::greedy(PROMPT, 3), &mut keep).expect("it runs");
    let visited: Vec<Site> = keep.0.iter().map(|(site, _)| *site).collect();

    use Point::*;
    let of_layer = [
        AttnNorm,
        Q,
        K,
        V,
        QRope,
        KRope,
        KCache,
        VCache,
        AttnScores,
        AttnWeights,
        AttnContext,
        AttnOut,
        AttnResidual,
        FfnNorm,
        FfnGate,
        FfnUp,
        FfnAct,
        FfnOut,
        BlockOut,
    ];
    let mut expected = Vec::new();
    for pass in 0..4 {
        let at = |point, layer| Site { point, layer, pass: Some(pass) };
        expected.push(at(Embed, None));
        for layer in 0..model.dimensions().n_layers {
            expected.extend(of_layer.map(|point| at(point, Some(layer))));
        }
        expected.extend([FinalNorm, Logits, LastLogits, Argmax, Probs].map(|point| at(point, None)));
    }
    expected.push(Site { point: Generated, layer: None, pass: None });
    assert_eq!(visited, expected);
    assert!(visited.is_sorted_by_key(|site| site.flow_order()));
}

#[test]
fn every_value_has_the_axes_of_its_tap_point() {
    let mut keep = Keep::default();
    engine::run(&tiny_llama2(), &F32, &RunInput::greedy(PROMPT, 1), &mut keep).expect("it runs");
    for (site, value) in &keep.0 {
        assert_eq!(value.shape().len(), site.point.axes().len(), "{site}");
    }
    let shape = |point, pass| {
        let found = keep.0.iter().find(|(site, _)| site.point == point && site.pass == Some(pass));
        found.expect("it was tapped").1.shape().to_vec()
    };
    assert_eq!(shape(Point::AttnScores, 0), [4, 5, 5]);
    assert_eq!(shape(Point::AttnScores, 1), [4, 1, 6]);
    assert_eq!(shape(Point::KCache, 1), [6, 4, 32]);
    assert_eq!(shape(Point::Logits, 0), [5, 512]);
}

#[test]
fn recording_changes_no_bit_of_the_result() {
    let numerics: [&dyn Numerics; 2] = [&F32, &LLAMA_CPP_F32];
    for numerics in numerics {
        let model = variant("tiny-llama2-hf").load().expect("it loads").model;
        let script = RunInput::greedy(PROMPT, 3);
        let (mut all, mut logits) = (Keep::default(), KeepLogits::default());
        let recorded = engine::run(&*model, numerics, &script, &mut all).expect("it runs");
        let unrecorded = engine::run(&*model, numerics, &script, &mut ()).expect("it runs");
        let lightly = engine::run(&*model, numerics, &script, &mut logits).expect("it runs");
        assert_eq!((&recorded, &recorded), (&unrecorded, &lightly));
        let of_all =
            all.0.into_iter().filter(|(site, _)| site.point == Point::Logits).map(|(_, value)| value);
        assert!(of_all.eq(logits.0));
    }
}

/// Wants one point, and is shown no other.
struct Wants(Point, usize);

impl Tap for Wants {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        assert_eq!(site.point, self.0);
        self.1 += 1;
        value
    }

    fn wants(&self, site: Site) -> bool {
        site.point == self.0
    }
}

#[test]
fn a_tap_is_shown_what_it_wants_and_no_more() {
    let mut wants = Wants(Point::FfnGate, 0);
    let model = tiny_llama2();
    let mut engine = Engine::new(&model, &F32, 16).expect("it fits");
    engine.pass(PROMPT, 1.0, &mut wants).expect("it runs");
    assert_eq!(wants.1, 4);
}

#[test]
fn where_nobody_looks_at_the_logits_the_last_row_alone_is_computed_with_the_bits_it_has_among_all() {
    // Several rows of F16 weights add in another order than one.
    let model = variant("tiny-llama2-f16").load().expect("it loads").model;
    let logits = |tap: &mut dyn Tap| {
        let pass = model.pass(&LLAMA_CPP_F32, 0..PROMPT.len());
        let mut t = Probe::new(tap, 0);
        let mut x = pass.embed(PROMPT, &mut t);
        for layer in 0..model.dimensions().n_layers {
            x = pass.layer(layer, &x, &mut t, &mut model.layer_state(layer));
        }
        pass.head(x, &mut t)
    };
    let all = logits(&mut Wants(Point::Logits, 0));
    let last = logits(&mut Wants(Point::FfnGate, 0));
    assert_eq!((all.rows(), last.rows()), (PROMPT.len(), 1));
    let bits = |row: &[f32]| row.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(all.row(PROMPT.len() - 1)), bits(last.row(0)));
}
