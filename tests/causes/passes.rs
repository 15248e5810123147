//! Mistakes that happen in passes of one kind alone, and mistakes in which keys a query sees and how they are summed.

use xcheck::catalogue::Supposition;
use xcheck::verdict::Verdict;

use super::planted::{Bed, RecordedTaps};
use crate::common::share::{one_of, pairs};

const TAPS: [RecordedTaps; 4] =
    [RecordedTaps::Full, RecordedTaps::NoScores, RecordedTaps::Blocks, RecordedTaps::Logits];

const BEDS: [(&str, &str); 6] = [
    ("tiny-llama3-f32", "f32"),
    ("tiny-qwen3-f32", "f32"),
    ("tiny-gpt2-f32", "f32"),
    ("tiny-llama3-f32", "bf16"),
    ("tiny-qwen3-f32", "bf16"),
    ("tiny-llama3-f16", "llama.cpp"),
];

const MISTAKES: [&str; 10] = [
    "mask_causal=strict@decode",
    "mask_causal=whole-blocks:4@decode",
    "mask_window=2+4@decode",
    "mask_window=4@prompt",
    "attn_scale=1@from-12",
    "attn_merge=base-2",
    "attn_merge=exchanged",
    "attn_merge=mean",
    "softmax_sum=zeros:1@decode",
    "softmax_sum=static:64",
];

fn supposed(typed: &str) -> Supposition {
    Supposition::named(typed).expect("it can be supposed")
}

/// All explanations of each finding that names a mistake, and the verdict.
fn told(bed: &Bed, typed: &[&str], taps: RecordedTaps) -> (Verdict, Vec<Vec<String>>) {
    let (dump, made) = bed.dump_named(typed, taps);
    assert!(made > 0 || typed.is_empty(), "{typed:?} has no meaning here");
    let outcome = bed.check(&dump);
    let causes = outcome.findings.iter().filter(|finding| finding.kind.is_cause());
    let all = causes.map(|finding| {
        [&finding.supposed.iter().cloned().collect::<Vec<_>>()[..], &finding.remaining].concat()
    });
    (outcome.verdict, all.collect())
}

/// Each of them fails and is named, with all taps.
#[test]
fn each_mistake_of_some_passes_or_keys_has_its_name() {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    for typed in MISTAKES {
        let (verdict, causes) = told(&bed, &[typed], RecordedTaps::Full);
        let is_named = matches!(causes.as_slice(), [all] if all.iter().any(|one| one == typed));
        assert!(verdict == Verdict::Fail && is_named, "{typed}: {verdict}, {causes:?}");
    }
}

/// Nothing but the mistake is named. In f32 it is named from all taps and from blocks.
#[test]
fn a_mistake_of_some_passes_or_keys_is_named_and_no_other() {
    for ((model, arithmetic), (taps, typed)) in
        one_of(34, pairs(BEDS, pairs(TAPS, MISTAKES).collect::<Vec<_>>()))
    {
        let bed = Bed::new(model, arithmetic);
        let (verdict, causes) = told(&bed, &[typed], taps);
        let case = format!("{typed} in {model}, {arithmetic}, {taps:?}: {verdict}, {causes:?}");
        let is_named = matches!(causes.as_slice(), [all] if all.iter().any(|one| one == typed));
        assert!(is_named || causes.is_empty(), "{case}");
        let is_due = arithmetic == "f32" && taps != RecordedTaps::Logits && verdict == Verdict::Fail;
        assert!(is_named || !is_due, "{case}");
    }
}

#[test]
fn a_restriction_is_part_of_the_sentence() {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    let (dump, _) = bed.dump(&[supposed("mask_causal=strict@decode")], RecordedTaps::Full);
    let findings = bed.check(&dump).findings;
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert!(finding.what.contains(", only while decoding; seen at attn_weights"), "{}", finding.what);
}

#[test]
fn a_change_of_all_passes_has_no_restriction() {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    for taps in TAPS {
        let (_, causes) = told(&bed, &["rope_theta=10000"], taps);
        assert!(causes.iter().flatten().all(|typed| !typed.ends_with("@decode")), "{taps:?}: {causes:?}");
        assert_eq!(causes.first().and_then(|all| all.first()).map(String::as_str), Some("rope_theta=10000"));
    }
}

#[test]
fn a_typed_restriction_is_read_back_and_a_wrong_one_refused() {
    for typed in [
        "norm_missing@ffn_norm@decode",
        "mask_window=4@prompt",
        "rope_missing@from-12",
        "rope_missing@pass-1",
        "norm_eps@ffn_norm=0.01@chunk",
    ] {
        let change = &supposed(typed).change[0];
        assert_eq!(change.to_string(), typed);
    }
    let refusal = Supposition::named("mask_window=4@prefill").expect_err("an unknown pass");
    assert!(
        refusal.contains("unknown passes 'prefill', expected prompt, chunk, decode, pass-1 or from-12"),
        "{refusal}"
    );
}
