//! What is told of tokens that are chosen otherwise, and of values that are no numbers.

#[path = "causes/planted.rs"]
#[allow(dead_code)]
mod planted;

use planted::Bed;
use xcheck::change::Kind;
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::Finding;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;

/// The first finding of a dump whose values a tap has replaced.
fn told(tap: impl FnMut(Site, Tensor) -> Tensor) -> Finding {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bed = Bed::new("tiny-llama2-f32", "f32");
    let dump = bed.dump_with(&mut Replaced(tap), &folder.path().join("dump"));
    let outcome = bed.check(&dump);
    outcome.findings.into_iter().next().expect("a cause")
}

struct Replaced<F>(F);

impl<F: FnMut(Site, Tensor) -> Tensor> Tap for Replaced<F> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        (self.0)(site, value)
    }
}

/// Another choice from the last logits of each pass.
fn chosen(logits_of: fn(usize, &mut Vec<f32>), choose: fn(&[f32]) -> usize) -> Finding {
    let mut logits = Vec::new();
    told(move |site, value| match site.point {
        Point::Logits => {
            let (shape, mut data) = (value.shape().to_vec(), value.data().to_vec());
            logits_of(shape[1], &mut data);
            Tensor::new(&shape, data)
        }
        Point::LastLogits => {
            logits = value.data().to_vec();
            value
        }
        Point::Argmax => Tensor::scalar(choose(&logits) as f32),
        _ => value,
    })
}

fn position(logits: &[f32], better: fn(f32, f32) -> bool) -> usize {
    (0..logits.len()).fold(0, |best, at| if better(logits[at], logits[best]) { at } else { best })
}

#[test]
fn the_smallest_logit_is_named() {
    let finding = chosen(|_, _| {}, |logits| position(logits, |one, best| one < best));
    assert_eq!(finding.kind, Kind::Sampling);
    assert_eq!(finding.candidate.as_deref(), Some("the smallest"), "{}", finding.what);
}

#[test]
fn the_index_after_the_largest_is_named() {
    let finding = chosen(|_, _| {}, |logits| position(logits, |one, best| one > best) + 1);
    assert_eq!(finding.candidate.as_deref(), Some("the index of the largest +1"), "{}", finding.what);
}

#[test]
fn values_that_overflow_f16_are_told_with_what_they_should_be() {
    let finding = told(|site, value| match (site.point, site.layer) {
        (Point::FfnOut, Some(1)) => {
            let mut data = value.data().to_vec();
            data[3] = f32::INFINITY;
            Tensor::new(value.shape(), data)
        }
        _ => value,
    });
    assert_eq!(finding.kind, Kind::NonFinite);
    assert!(finding.what.contains("inf at [0, 3]"), "{}", finding.what);
}
