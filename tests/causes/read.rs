//! Values that are read from what an engine has made, and not among the usual ones; and what the model is told to have.

use xcheck::catalogue::Supposition;
use xcheck::change::CauseKind;
use xcheck::checkpoint::Point;
use xcheck::verdict::Finding;

use super::planted::{Bed, RecordedTaps};
use crate::judge::clay::Clay;

fn found(model: &str, typed: &str, thinned: RecordedTaps) -> Finding {
    let bed = Bed::new(model, "f32");
    let (dump, made) = bed.dump(&[Supposition::named(typed).expect("it can be supposed")], thinned);
    assert!(made > 0, "{typed} has no meaning in {model}");
    let findings = bed.check(&dump).findings;
    let [finding] = findings.as_slice() else { panic!("{typed}: {findings:?}") };
    finding.clone()
}

#[test]
fn the_offset_of_rope_positions_is_read() {
    for offset in ["3", "7", "100"] {
        let finding = found("tiny-llama3-f32", &format!("rope_position={offset}"), RecordedTaps::Full);
        assert_eq!((finding.kind, finding.candidate.as_deref()), (CauseKind::RopePosition, Some(offset)));
    }
}

#[test]
fn another_split_of_fused_qkv_is_told() {
    for word in ["interleaved", "concatenated"] {
        let finding = found("tiny-llama3-f32", &format!("fused_order={word}"), RecordedTaps::Full);
        assert_eq!(
            (finding.kind, finding.candidate.as_deref()),
            (CauseKind::FusedOrder, Some(word)),
            "{}",
            finding.what
        );
    }
}

#[test]
fn what_the_model_has_is_told_where_the_operation_itself_is_not_held() {
    let finding = found("tiny-gemma3-f32", "embed_scale=1", RecordedTaps::Logits);
    assert!(finding.what.contains("computes with 1, the model says 5.6568"), "{}", finding.what);
}

/// As the last of the hidden states that transformers gives: what follows is right without another norm.
#[test]
fn a_final_norm_that_was_already_applied_is_told() {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    let change = Supposition::named("norm_order=normed-by-final-norm").expect("it can be supposed");
    let (normed, _) = bed.dump(&[change], RecordedTaps::Blocks);
    let (mut held, right) = (Clay::of(&normed), Clay::of(&bed.dump(&[], RecordedTaps::Blocks).0));
    for (site, array) in right.arrays {
        if site.point != Point::BlockOut {
            held.arrays.insert(site, array);
        }
    }
    let findings = bed.check(&held.dump()).findings;
    let told: Vec<(CauseKind, Point)> =
        findings.iter().map(|finding| (finding.kind, finding.site.point)).collect();
    assert_eq!(
        told[..2],
        [(CauseKind::NormOrder, Point::BlockOut), (CauseKind::NormMissing, Point::Logits)],
        "{findings:?}"
    );
    assert_eq!(findings[0].layers, [2]);
}
