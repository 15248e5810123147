//! Each layer from the reference's own input: what is allowed follows from what is computed, not from how it is spelled.

use serde_json::json;
use xcheck::align::Selection;
use xcheck::check::{Mode, Role, Rules, Tolerances};
use xcheck::checkpoint::Point;
use xcheck::diagnose::cross_check;
use xcheck::dump::Dump;
use xcheck::numerics::F32;
use xcheck::tap::Tap;
use xcheck::verdict::Outcome;

use super::clay::Clay;
use super::scene::{assert_first_wrong, assert_passes, site};
use crate::common::faulty::At;
use crate::common::share::one_of;
use crate::common::{reference, rules, tiny_llama2};

const SPELLINGS: [&str; 7] = ["float32", "f64", "f32", "torch.float32", "F32", "double", "fp32"];

fn said_to_be(dtype: &str) -> Dump {
    Clay::of(&reference("transformers-f32"))
        .say(|json| json["producer"]["settings"]["dtype"] = json!(dtype))
        .dump()
}

fn layerwise(dump: &Dump, fault: &mut dyn Tap) -> Outcome {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let precision = dump.manifest.producer.precision().unwrap_or("f32");
    let (mode, role) = (Mode::Layers, Role::Reference);
    let rules = Rules { role, ..rules(&selection, &tolerances, precision, mode) };
    cross_check("reference", &tiny_llama2(), &F32, dump, rules, fault).expect("the two can be compared")
}

#[test]
fn an_error_that_no_f32_layer_makes_fails_however_the_type_is_spelled() {
    let wrong = site(Point::AttnOut, 1, 0);
    for dtype in one_of(2, SPELLINGS) {
        println!("{dtype}");
        let outcome = layerwise(&said_to_be(dtype), &mut At(wrong, |values: &mut [f32]| values[7] += 2e-2));
        assert_first_wrong(&outcome, wrong);
    }
}

#[test]
fn an_honest_f32_layer_passes_however_the_type_is_spelled() {
    for dtype in one_of(2, SPELLINGS) {
        println!("{dtype}");
        assert_passes(&layerwise(&said_to_be(dtype), &mut ()));
    }
}

/// A row of the tolerance table is for xcheck to choose: no dump may ask for one.
#[test]
fn a_type_that_is_none_buys_no_tolerance() {
    let wrong = site(Point::AttnOut, 1, 0);
    for dtype in ["layer-int8", "layer", "torch-bf16", "any", ""] {
        println!("{dtype:?}");
        let outcome = layerwise(&said_to_be(dtype), &mut At(wrong, |values: &mut [f32]| values[7] += 2e-2));
        assert_first_wrong(&outcome, wrong);
        assert_passes(&layerwise(&said_to_be(dtype), &mut ()));
    }
}
