//! Mistakes of a dump, not of an engine: what follows is right although the tap is wrong.

use xcheck::change::CauseKind;
use xcheck::checkpoint::{Point, Site};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::Finding;

use super::planted::Bed;

/// What is found of a dump that was written otherwise than its engine computed.
fn found(write: impl Fn(Site, &Tensor) -> (Site, Tensor)) -> Vec<Finding> {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    let dump = bed.dump_written(&write);
    bed.check(&dump).findings
}

#[track_caller]
fn assert_told(findings: &[Finding], kind: CauseKind, part: &str) {
    let [finding] = findings else { panic!("one finding, not {findings:?}") };
    assert_eq!(finding.kind, kind, "{}", finding.what);
    assert!(finding.what.contains(part), "{}", finding.what);
}

#[test]
fn attention_scores_before_their_scale_are_told() {
    let findings = found(|site, value| match site.point {
        Point::AttnScores => (site, value.clone().map(|score| score * 4.0)),
        _ => (site, value.clone()),
    });
    assert_told(&findings, CauseKind::DumpTap, "attn_scores has the values that attn_scale=1 would give");
}

#[test]
fn swapped_swiglu_gate_and_up_names_are_told() {
    let findings = found(|site, value| match site.point {
        Point::FfnGate => (Site { point: Point::FfnUp, ..site }, value.clone()),
        Point::FfnUp => (Site { point: Point::FfnGate, ..site }, value.clone()),
        _ => (site, value.clone()),
    });
    assert_told(&findings, CauseKind::DumpTap, "ffn_gate, ffn_up");
}

#[test]
fn layers_counted_from_one_are_told() {
    let findings =
        found(|site, value| (Site { layer: site.layer.map(|layer| layer + 1), ..site }, value.clone()));
    assert_told(&findings, CauseKind::DumpLayers, "from 1 to 3");
}

#[test]
fn values_rounded_to_f16_when_stored_are_told() {
    let round = |x: f32| half::f16::from_f32(x).to_f32();
    let findings = found(|site, value| (site, value.clone().map(round)));
    assert_told(&findings, CauseKind::DumpStorage, "rounded to f16");
}

struct Rounds;

impl Tap for Rounds {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        match site.point {
            Point::AttnResidual => value.map(|x| half::bf16::from_f32(x).to_f32()),
            _ => value,
        }
    }
}

#[test]
fn values_that_their_engine_rounds_and_goes_on_with_are_no_mistake_of_the_dump() {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    let findings = bed.check(&bed.dump_with(&mut Rounds)).findings;
    assert_told(&findings, CauseKind::Arithmetic, "rounds these values to bf16 and computes with the result");
    assert_eq!(findings[0].points, [Point::AttnResidual]);
}

#[test]
fn exchanged_axes_are_told() {
    let findings = found(|site, value| {
        if site.point != Point::V {
            return (site, value.clone());
        }
        let &[tokens, heads, width] = value.shape() else { panic!("values are [T, Hkv, D]") };
        let from = |flat: usize| {
            let (head, token, at) = (flat / width / tokens, flat / width % tokens, flat % width);
            value.data()[(token * heads + head) * width + at]
        };
        (site, Tensor::new(value.shape(), (0..value.data().len()).map(from).collect()))
    });
    assert_told(&findings, CauseKind::DumpAxes, "[kv_head, token, head_dim]");
}
