//! Keys that attention reads with another rotation than the cache or the tap `k_rope` shows, and cache rows that our
//! engine can be asked to overwrite.

use xcheck::change::CauseKind;

use super::planted::{Bed, RecordedTaps};
use crate::batched_sequences::bed::Written;

#[test]
fn keys_of_another_rotation_and_overwritten_rows_are_named() {
    for (model, arithmetic, thinned, typed) in [
        ("tiny-llama3-f32", "f32", RecordedTaps::Full, "cache_rotation=cached-unrotated"),
        ("tiny-qwen3-f32", "bf16", RecordedTaps::Full, "cache_rotation=prompt-unrotated"),
        ("tiny-gemma3-f32", "other-order", RecordedTaps::Blocks, "cache_rotation=prompt-unrotated"),
        ("tiny-llama2-f32", "bf16", RecordedTaps::Blocks, "cache_rotation=cached-twice"),
        ("tiny-llama3-f32", "other-order", RecordedTaps::Logits, "cache_rotation=cached-unrotated"),
        ("tiny-gpt2-f32", "f32", RecordedTaps::Full, "cache_row=pass2:5:zero"),
        ("tiny-qwen3-f32", "bf16", RecordedTaps::Full, "cache_row=pass2:0-3:4-7"),
        ("tiny-gemma3-f32", "other-order", RecordedTaps::Blocks, "cache_row=pass1:3:zero"),
        ("tiny-llama3-f32", "other-order", RecordedTaps::Logits, "cache_row=pass2:6:zero"),
    ] {
        Bed::new(model, arithmetic).assert_named(typed, thinned);
    }
}

/// A dump whose `k_rope` has the values of another tap, as where rotated keys go to the cache alone.
fn with_keys_before_rope(bed: &Bed, supposed: &[&str], before: &str) -> Vec<(CauseKind, String)> {
    let (dump, _) = bed.dump_named(supposed, RecordedTaps::Full);
    let mut written = Written::of(&dump);
    let file = |tap: &str, pass: Option<usize>, layer: Option<usize>| {
        let mut rows = dump.manifest.tensors.iter();
        rows.find(|row| row.tap == tap && (row.pass, row.layer) == (pass, layer)).map(|row| row.file.clone())
    };
    for row in dump.manifest.tensors.iter().filter(|row| row.tap == "k_rope") {
        let unrotated = file(before, row.pass, row.layer).expect("it is recorded");
        let values = written.arrays[&unrotated].clone();
        written.arrays.insert(row.file.clone(), values);
    }
    let findings = bed.check(&written.open()).findings;
    findings.into_iter().map(|finding| (finding.kind, finding.what)).collect()
}

#[test]
fn a_tap_is_misnamed_only_if_attention_is_right_without_it() {
    for (model, arithmetic, before) in [("tiny-qwen3-f32", "f32", "k_norm"), ("tiny-llama3-f32", "bf16", "k")]
    {
        let bed = Bed::new(model, arithmetic);
        let found = with_keys_before_rope(&bed, &["cache_rotation=prompt-unrotated"], before);
        let [(kind, what)] = found.as_slice() else { panic!("{model}: {found:?}") };
        assert_eq!(*kind, CauseKind::CacheRotation, "{model}: {what}");
        assert!(what.contains("the prompt's attention reads keys before RoPE"), "{model}: {what}");
        let twin = with_keys_before_rope(&bed, &[], before);
        let [(CauseKind::DumpTap, _)] = twin.as_slice() else { panic!("{model}: {twin:?}") };
    }
}
