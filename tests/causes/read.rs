//! Values that are read from what an engine has made, and not among the usual ones; and what the model is told to have.

use xcheck::change::{Kind, Supposition};
use xcheck::diagnose::Finding;

use super::planted::{Bed, Thinned};

fn found(model: &str, typed: &str, thinned: Thinned) -> Finding {
    let bed = Bed::new(model, "f32");
    let (dump, made) = bed.dump(&[Supposition::named(typed).expect("it can be supposed")], thinned);
    assert!(made > 0, "{typed} has no meaning in {model}");
    let findings = bed.check(&dump).findings;
    let [finding] = findings.as_slice() else { panic!("{typed}: {findings:?}") };
    finding.clone()
}

#[test]
fn how_far_on_the_positions_are_that_rope_turns_by_is_read() {
    for offset in ["3", "7", "100"] {
        let finding = found("tiny-llama3-f32", &format!("rope_position={offset}"), Thinned::Full);
        assert_eq!((finding.kind, finding.candidate.as_deref()), (Kind::RopePosition, Some(offset)));
    }
}

#[test]
fn fused_projections_that_are_cut_otherwise_are_told_by_how() {
    for word in ["interleaved", "concatenated"] {
        let finding = found("tiny-llama3-f32", &format!("fused_order={word}"), Thinned::Full);
        assert_eq!(
            (finding.kind, finding.candidate.as_deref()),
            (Kind::FusedOrder, Some(word)),
            "{}",
            finding.what
        );
    }
}

#[test]
fn what_the_model_has_is_told_where_the_operation_itself_is_not_held() {
    let finding = found("tiny-gemma3-f32", "embed_scale=1", Thinned::Logits);
    assert!(finding.what.contains("computes with 1, the model says 5.6568"), "{}", finding.what);
}
