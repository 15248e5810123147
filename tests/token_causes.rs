//! What is told of tokens, of choices from logits, of values that are no numbers, of numbers that nobody expects, and of
//! what is rounded otherwise.

use crate::causes::planted::{Bed, FaultDetection, RecordedTaps};
use xcheck::align::Selection;
use xcheck::cases::Case;
use xcheck::catalogue::Supposition;
use xcheck::change::CauseKind;
use xcheck::check::{EngineRounding, Gate, Mode, Role, Rules, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::check_case;
use xcheck::selftest::{ARITHMETICS, told};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::Finding;

/// What is found of a dump whose values a tap has replaced.
fn found(tap: impl FnMut(Site, Tensor) -> Tensor) -> Vec<Finding> {
    let bed = Bed::new("tiny-llama2-f32", "f32");
    let dump = bed.dump_with(&mut Replaced(tap));
    bed.check(&dump).findings
}

struct Replaced<F>(F);

impl<F: FnMut(Site, Tensor) -> Tensor> Tap for Replaced<F> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        (self.0)(site, value)
    }
}

/// Logits with another largest value at some tokens, and another choice from the last of them.
fn chosen(equal: &'static [usize], choose: fn(&[f32]) -> usize) -> Finding {
    let mut logits = Vec::new();
    let findings = found(move |site, value| match site.point {
        Point::Logits => {
            let (shape, mut data) = (value.shape().to_vec(), value.data().to_vec());
            data.chunks_mut(shape[1]).for_each(|row| equal.iter().for_each(|&at| row[at] = 99.0));
            Tensor::new(&shape, data)
        }
        Point::LastLogits => {
            logits = value.data().to_vec();
            value
        }
        Point::Argmax => Tensor::scalar(choose(&logits) as f32),
        _ => value,
    });
    let is_of_choices = |finding: &Finding| finding.site.point == Point::Argmax;
    findings.into_iter().find(is_of_choices).expect("a cause")
}

fn best(logits: &[f32], better: fn(f32, f32) -> bool) -> usize {
    (0..logits.len()).fold(0, |best, at| if better(logits[at], logits[best]) { at } else { best })
}

#[test]
fn an_argmax_that_takes_the_smallest_logit_is_named() {
    let finding = chosen(&[], |logits| best(logits, |one, best| one < best));
    assert_eq!(finding.kind, CauseKind::Sampling);
    assert_eq!(finding.candidate.as_deref(), Some("the smallest"), "{}", finding.what);
}

#[test]
fn an_argmax_off_by_one_is_named() {
    let finding = chosen(&[], |logits| best(logits, |one, best| one > best) + 1);
    assert_eq!(finding.candidate.as_deref(), Some("the index of the largest +1"), "{}", finding.what);
}

#[test]
fn an_argmax_that_takes_the_last_of_a_tie_is_named() {
    let finding = chosen(&[5, 70, 300], |logits| best(logits, |one, best| one >= best));
    assert_eq!(finding.kind, CauseKind::SamplingTie);
    assert_eq!(finding.candidate.as_deref(), Some("the highest index of a tie"), "{}", finding.what);
}

/// The first finding where one value after a layer's down projection is infinite, and all of them are so much larger.
fn overflowing(factor: f32) -> Finding {
    let findings = found(move |site, value| match (site.point, site.layer) {
        (Point::FfnAct, Some(1)) => value.map(|x| x * factor),
        (Point::FfnOut, Some(1)) => {
            let mut data = value.data().to_vec();
            let largest = data.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            data.iter_mut().filter(|x| x.abs() == largest).for_each(|x| *x = f32::INFINITY);
            Tensor::new(value.shape(), data)
        }
        _ => value,
    });
    findings.into_iter().find(|finding| finding.kind == CauseKind::NonFinite).expect("a cause")
}

#[test]
fn values_that_overflow_f16_are_told_with_what_they_should_be() {
    let finding = overflowing(1e9);
    assert_eq!(finding.site.point, Point::FfnOut);
    assert!(finding.what.contains("the largest f16 number"), "{}", finding.what);
    let finding = overflowing(1.0);
    assert!(finding.what.contains("the first is inf at ["), "{}", finding.what);
    assert!(!finding.what.contains("f16"), "{}", finding.what);
}

#[test]
fn numbers_that_nobody_expects_are_read() {
    let planted = [
        ("tiny-llama2-f32", "residual_scale=0.3"),
        ("tiny-llama2-f32", "probs=1.3"),
        ("tiny-llama2-f32", "embed_scale=12"),
        ("tiny-llama2-f32", "logits_row=5"),
        ("tiny-llama2-f32", "tokens_bos=added:7"),
        ("tiny-llama2-f32", "tokens_bos=left-out:300"),
        ("tiny-gemma3-f32", "tokens_prompt=1,9,17,200,77,301,45,46,260,13,5"),
        ("tiny-gpt2-f32", "tokens_prompt=1,9,17,200,77,301,45,46,260,13,5"),
        ("tiny-gpt2-f32", "tokens_prompt=each+7"),
        ("tiny-gpt2-f32", "position_embedding=5"),
    ];
    for arithmetic in ARITHMETICS {
        for (model, typed) in planted {
            let bed = Bed::new(model, arithmetic);
            let supposition = Supposition::named(typed).expect("it can be supposed");
            let change = supposition.change.iter().find(|change| change.to_string() == typed);
            let change = change.expect("it is told as it is typed").clone();
            let (dump, made) = bed.dump(&[supposition], RecordedTaps::Full);
            let outcome = bed.check(&dump);
            let told = told(&outcome, &change, made);
            let what = outcome.findings.first().map(|finding| &finding.what);
            assert_eq!(told, FaultDetection::Right, "{typed} in {model}, {arithmetic}: {what:?}");
        }
    }
}

/// An engine in bf16 may round each step by itself: that is the same function.
#[test]
fn a_quick_gelu_activation_computed_in_steps_is_named() {
    let bed = Bed::new("tiny-gpt2-f32", "bf16");
    let short = |x: f32| half::bf16::from_f32(x).to_f32();
    let step_by_step = move |x: f32| short(x * short(1.0 / (1.0 + (-short(1.702 * x)).exp())));
    let mut up = None;
    let mut tap = Replaced(|site: Site, value: Tensor| match site.point {
        Point::FfnUp => {
            up = Some(value.clone());
            value
        }
        Point::FfnAct => up.take().expect("it comes before").map(step_by_step),
        _ => value,
    });
    let dump = bed.dump_with(&mut tap);
    let findings = bed.check(&dump).findings;
    let first = findings.first().expect("a cause");
    assert_eq!((first.kind, first.candidate.as_deref()), (CauseKind::Activation, Some("quick_gelu")));
    assert!(first.remaining.is_empty(), "{}", first.what);
}

/// What is told of a tokenizer that makes `own` of a prompt which is 1, 9, 17.
fn tokenized(own: &[u32]) -> Finding {
    let bed = Bed::new("tiny-llama2-f32", "f32");
    let case = Case {
        name: "case".into(),
        models: Vec::new(),
        prompt: String::new(),
        tokens: vec![1, 9, 17],
        continuation: String::new(),
        generated: Vec::new(),
        source: String::new(),
        sizes: Vec::new(),
        note: None,
    };
    let dump = case.reference(bed.model.architecture()).expect("a dump");
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = Rules {
        selection: &selection,
        tolerances: &tolerances,
        gate: Gate::Rounding,
        precision: "f32",
        mode: Mode::Both,
        role: Role::Reference,
        rounding: EngineRounding::Stated,
        is_stated: true,
        suppositions: &[],
        causes: true,
        budget: None,
    };
    let own = Ok(own.to_vec());
    let outcome = check_case("case", &*bed.model, &*bed.numerics, &dump, &own, rules, &mut ());
    outcome.expect("it can be judged").findings.into_iter().next().expect("a cause")
}

#[test]
fn other_tokens_of_a_prompt_are_told() {
    for (own, kind, candidate) in [
        (&[1, 1, 9, 17][..], CauseKind::TokensBos, "added:1 (present twice)"),
        (&[2, 1, 9, 17], CauseKind::TokensBos, "added:2"),
        (&[9, 17], CauseKind::TokensBos, "left-out:1"),
        (&[2, 9, 17], CauseKind::TokensBos, "2 instead of 1"),
        (&[1, 9, 18], CauseKind::TokensPrompt, "1,9,18"),
    ] {
        let finding = tokenized(own);
        assert_eq!((finding.kind, finding.candidate.as_deref()), (kind, Some(candidate)), "{}", finding.what);
    }
}
