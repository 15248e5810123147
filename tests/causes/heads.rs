//! Faults of some heads or of some tokens of a pass, and a sink of each head.

use xcheck::checkpoint::{Point, Site};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::Verdict;

use super::planted::Bed;
use super::planted::RecordedTaps::{Blocks, Full};

const OF_HEADS: [(&str, &str, &[&str]); 6] = [
    (
        "tiny-llama3-f32",
        "f32",
        &[
            "rope_theta=10000@head-1",
            "attn_scale=1@head-3",
            "mask_window=4@head-0+2",
            "weight_scale@v=0.5@head-1@layer-1",
            "rope_missing@head-0",
            "attn_scale=1@decode@head-3",
        ],
    ),
    ("tiny-qwen3-f32", "f32", &["norm_eps@q_norm=0.1@head-2", "softmax_sum=sink:none,none,0.5,none"]),
    ("tiny-gpt2-f32", "f32", &["bias_scale@k=2@head-1", "bias_missing@q=none@head-2"]),
    ("tiny-gpt2-f32", "bf16", &["bias_scale@q=3@head-0+3", "weight_scale@k=2@head-2@layer-0"]),
    ("tiny-llama3-f32", "bf16", &["rope_theta=10000@head-1", "attn_scale=1@head-5"]),
    ("tiny-llama3-f16", "llama.cpp", &["rope_theta=10000@head-1"]),
];

#[test]
fn a_fault_of_some_heads_is_named_with_its_heads() {
    for (model, arithmetic, faults) in OF_HEADS {
        let bed = Bed::new(model, arithmetic);
        faults.iter().for_each(|typed| bed.assert_named(typed, Full));
    }
    let bed = Bed::new("tiny-llama3-f32", "f32");
    let findings = bed.check(&bed.dump_named(&["weight_scale@k=0.5@head-1"], Full).0).findings;
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert!(finding.what.contains(", only in KV head 1"), "{}", finding.what);
}

/// With few taps, a fault of one head has no name, and above all no wrong one.
#[test]
fn a_fault_of_one_head_is_never_named_as_one_of_all_heads() {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    let outcome = bed.check(&bed.dump_named(&["attn_scale=1@head-3"], Blocks).0);
    assert_eq!(outcome.verdict, Verdict::Fail);
    assert!(outcome.findings.iter().all(|finding| !finding.kind.is_cause()), "{:?}", outcome.findings);
}

/// Within a pass, the tokens from a position on.
#[test]
fn a_fault_from_a_position_of_the_prompt_on_is_named() {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    for typed in ["rope_theta=10000@from-6", "norm_eps=0.01@from-4", "attn_scale=1@from-5"] {
        bed.assert_named(typed, Full);
    }
    Bed::new("tiny-qwen3-f32", "bf16").assert_named("rope_theta=10000@from-5", Full);
}

#[test]
fn a_sink_of_each_head_is_read() {
    for (model, arithmetic, typed) in [
        ("tiny-llama3-f32", "f32", "softmax_sum=sink:0.5,none,-1,2,0.25,1"),
        ("tiny-gpt2-f32", "f32", "softmax_sum=sink:1.5,-0.5,2,3"),
        ("tiny-llama3-f32", "f32", "softmax_sum=sink:0.5"),
    ] {
        Bed::new(model, arithmetic).assert_named(typed, Full);
    }
    // In bf16, the values are known to two digits or so.
    let bed = Bed::new("tiny-llama3-f32", "bf16");
    let findings = bed.check(&bed.dump_named(&["softmax_sum=sink:0.5,none,-1,2,0.25,1"], Full).0).findings;
    let supposed = findings.first().and_then(|finding| finding.supposed.as_deref());
    assert!(supposed.is_none_or(|supposed| supposed.starts_with("softmax_sum=sink:")), "{findings:?}");
}

/// A tap that adds noise to one head of the queries.
struct NoisyHead;

impl Tap for NoisyHead {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point != Point::Q {
            return value;
        }
        let (shape, mut data) = (value.shape().to_vec(), value.into_data());
        let (heads, width) = (shape[1], shape[2]);
        for (flat, value) in data.iter_mut().enumerate().filter(|(flat, _)| flat / width % heads == 1) {
            *value += 0.01 * (flat as f32 * 0.7).sin();
        }
        Tensor::new(&shape, data)
    }
}

#[test]
fn noise_in_one_head_has_no_cause() {
    for arithmetic in ["f32", "bf16"] {
        let bed = Bed::new("tiny-llama3-f32", arithmetic);
        let outcome = bed.check(&bed.dump_with(&mut NoisyHead));
        assert!(outcome.findings.iter().all(|finding| !finding.kind.is_cause()), "{:?}", outcome.findings);
    }
}
