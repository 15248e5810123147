//! Dumps that hold what enters and leaves layers alone, or logits alone: the layer is right, and the name where it can be
//! told. The engine adds up otherwise than ours.

use xcheck::catalogue::{OperationChange, Supposition};
use xcheck::selftest::told;
use xcheck::verdict::Verdict;

use super::planted::{Bed, FaultDetection, RecordedTaps};

#[track_caller]
fn assert_told(typed: &str, layers: Option<&[usize]>, thinned: RecordedTaps) {
    let bed = Bed::new("tiny-llama3-f32", "other-order");
    let change: OperationChange = OperationChange::named(typed).expect("it can be supposed").remove(0);
    let everywhere = Supposition::everywhere(change.clone());
    let supposed = match layers {
        Some(layers) => everywhere.in_layers(layers.iter().copied()),
        None => everywhere,
    };
    let (dump, made) = bed.dump(&[supposed], thinned);
    let outcome = bed.check(&dump);
    assert_eq!(outcome.verdict, Verdict::Fail, "{typed}");
    let first = outcome.findings.first().unwrap_or_else(|| panic!("{typed}: no cause"));
    assert!(
        matches!(told(&outcome, &change, made), FaultDetection::Right | FaultDetection::Among),
        "{typed}: {}",
        first.what
    );
    if let Some(layers) = layers {
        assert_eq!(first.layers, layers, "{typed}: {}", first.what);
    }
}

#[test]
fn what_is_wrong_in_one_layer_is_named_from_what_enters_and_leaves_layers() {
    for typed in
        ["rope_theta=10000", "norm_eps=0.001", "activation=relu2", "mask_causal=none", "gqa_mapping=tile"]
    {
        assert_told(typed, Some(&[1]), RecordedTaps::Blocks);
    }
}

#[test]
fn what_is_wrong_everywhere_is_named_from_logits_alone() {
    for typed in
        ["rope_theta=10000", "rope_pairing=half", "attn_scale=0.125", "activation=gelu", "norm_eps=0.001"]
    {
        assert_told(typed, None, RecordedTaps::Logits);
    }
}

#[test]
fn causes_between_recorded_taps_are_named_without_attention_scores_and_kv_cache() {
    for typed in
        ["attn_scale=1", "mask_window=4", "cache_stale=repeated", "head_order=reversed", "softmax_axis=heads"]
    {
        assert_told(typed, None, RecordedTaps::NoScores);
    }
}
