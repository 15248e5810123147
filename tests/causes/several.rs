//! Two mistakes at once, in one stage and in two; and what is in no catalogue.

use xcheck::catalogue::Supposition;
use xcheck::change::CauseKind;
use xcheck::checkpoint::{Point, Site};
use xcheck::selftest::MODELS;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::Finding;

use super::planted::{Bed, RecordedTaps};
use crate::common::share::one_of;

fn found(typed: &[&str]) -> Vec<Finding> {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    let supposed: Vec<Supposition> =
        typed.iter().map(|typed| Supposition::named(typed).expect("it can be supposed")).collect();
    let (dump, _) = bed.dump(&supposed, RecordedTaps::Full);
    bed.check(&dump).findings
}

#[test]
fn two_mistakes_of_one_stage_are_told_together() {
    let findings = found(&["rope_theta=10000", "rope_scaling=none"]);
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!((finding.kind, finding.candidate.as_deref()), (CauseKind::RopeTheta, Some("10000")));
    assert_eq!(finding.reference.as_deref(), Some("500000"));
    assert!(finding.what.contains("rope_scaling: the candidate computes with none"), "{}", finding.what);
    assert!(finding.remaining.is_empty(), "{:?}", finding.remaining);
}

#[test]
fn two_mistakes_of_two_stages_are_told_one_by_one() {
    let findings = found(&["norm_eps=1e-3", "activation=gelu"]);
    let kinds: Vec<CauseKind> = findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [CauseKind::NormEps, CauseKind::Activation]);
    assert_eq!(findings[1].layers, [0, 1, 2]);
}

struct Spoiled<F: Fn(Site, &mut [f32])>(F);

impl<F: Fn(Site, &mut [f32])> Tap for Spoiled<F> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let (shape, mut data) = (value.shape().to_vec(), value.into_data());
        (self.0)(site, &mut data);
        Tensor::new(&shape, data)
    }
}

fn spoiled(spoil: impl Fn(Site, &mut [f32])) -> Finding {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    let dump = bed.dump_with(&mut Spoiled(spoil));
    let findings = bed.check(&dump).findings;
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    finding.clone()
}

#[test]
fn a_pattern_is_told_where_nothing_of_the_catalogue_explains_a_stage() {
    // Every fourth channel takes part twice, as where the rest of a vector loop is done again.
    let finding = spoiled(|site, data| {
        if (site.point, site.layer) == (Point::FfnNorm, Some(1)) {
            data.iter_mut().skip(3).step_by(4).for_each(|value| *value = value.sin());
        }
    });
    assert_eq!((finding.kind, finding.layers.as_slice()), (CauseKind::Partial, &[1][..]));
    assert!(finding.what.contains("hidden 3 to 95 in steps of 4"), "{}", finding.what);
    assert!(finding.excluded.contains(&"norm_eps".to_owned()), "{:?}", finding.excluded);
}

#[test]
fn nothing_is_named_where_all_values_are_those_of_no_known_mistake() {
    let finding = spoiled(|site, data| {
        if (site.point, site.layer) == (Point::FfnAct, Some(2)) {
            data.iter_mut()
                .enumerate()
                .for_each(|(at, value)| *value += ((at * 7919) % 13) as f32 * 0.01 + 0.1);
        }
    });
    assert_eq!((finding.kind, finding.layers.as_slice()), (CauseKind::Unknown, &[2][..]));
    assert!(finding.excluded.contains(&"activation".to_owned()), "{:?}", finding.excluded);
}

/// Every tap of every model, spoiled in a way that no port has: the whole catalogue is gone through, alone and by twos.
#[test]
fn whatever_is_spoiled_is_given_no_wrong_name() {
    let engines = MODELS.iter().flat_map(|model| ["f32", "llama.cpp"].map(|way| (model, way)));
    let beds =
        engines.map(|(model, arithmetic)| (format!("{model}, {arithmetic}"), Bed::new(model, arithmetic)));
    let beds: Vec<_> = beds.collect();
    let taps = beds.iter().flat_map(|(engine, bed)| {
        let points = bed.points();
        assert!(points.len() > 15, "{engine}");
        points.into_iter().map(move |point| (engine, bed, point))
    });
    for (engine, bed, point) in one_of(36, taps) {
        let spoil = |site: Site, data: &mut [f32]| {
            let is_here = site.point == point && site.layer.is_none_or(|layer| layer == 1);
            let noise = |at: usize| ((at * 7919 + 13) % 101) as f32 / 101.0 - 0.3;
            let of_pass = site.pass == Some(0) && is_here;
            data.iter_mut().enumerate().filter(|_| of_pass).for_each(|(at, value)| *value += noise(at));
        };
        let dump = bed.dump_with(&mut Spoiled(spoil));
        let outcome = bed.check(&dump);
        let named: Vec<_> = outcome.findings.iter().filter(|finding| !is_unnamed(finding)).collect();
        assert!(named.is_empty(), "{engine}, {point}: {named:?}");
    }
}

fn is_unnamed(finding: &Finding) -> bool {
    matches!(finding.kind, CauseKind::Unknown | CauseKind::Partial)
}
