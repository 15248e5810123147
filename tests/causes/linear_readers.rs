//! Faults that are read from the values of one operation: multiples of its operands, parts of its columns, its weights.

use xcheck::change::CauseKind;
use xcheck::checkpoint::{Point, Site};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;

use super::planted::Bed;
use super::planted::RecordedTaps::{self, Blocks, Full, Logits};

fn assert_named(model: &str, arithmetic: &'static str, typed: &str, thinned: &[RecordedTaps]) {
    let bed = Bed::new(model, arithmetic);
    thinned.iter().for_each(|&thinned| bed.assert_named(typed, thinned));
}

#[test]
fn a_bias_that_each_device_adds_is_named_with_their_number() {
    assert_named("tiny-gpt2-f32", "f32", "bias_scale=ranks:2", &[Full, Blocks, Logits]);
    assert_named("tiny-gpt2-f32", "bf16", "bias_scale=ranks:4", &[Full, Blocks]);
    assert_named("tiny-gpt2-f32", "f32", "bias_scale=2", &[Full, Blocks]);
}

#[test]
fn a_sum_over_some_columns_is_named_with_the_columns() {
    assert_named("tiny-llama3-f32", "f32", "partial_sum=rank:1/2", &[Full, Blocks, Logits]);
    assert_named("tiny-qwen3-f32", "bf16", "partial_sum=rank:2/2", &[Full, Blocks]);
    assert_named("tiny-llama3-f32", "f32", "partial_sum@q=multiples-of:64", &[Full]);
    assert_named("tiny-llama3-f32", "bf16", "partial_sum@ffn_out=1/2x2", &[Full]);
}

#[test]
fn a_stream_that_is_added_several_times_is_named() {
    assert_named("tiny-qwen3-f32", "f32", "residual_scale=stream:2", &[Full, Blocks]);
    assert_named("tiny-llama3-f32", "bf16", "residual_scale=stream:4", &[Full]);
}

/// One cause for keys and values, with a value for each, and for each layer if they differ.
#[test]
fn scales_of_a_cache_are_one_cause() {
    let typed = ["cache_scale@k_cache=20", "cache_scale@v_cache=1/0.03"];
    for (model, arithmetic) in [("tiny-llama3-f32", "f32"), ("tiny-qwen3-f32", "bf16")] {
        let bed = Bed::new(model, arithmetic);
        let findings = bed.check(&bed.dump_named(&typed, Full).0).findings;
        let [finding] = findings.as_slice() else { panic!("{model}, {arithmetic}: {findings:?}") };
        let supposed = finding.supposed.as_deref();
        assert_eq!(supposed, Some("cache_scale@k_cache=20 and cache_scale@v_cache=1/0.03"), "{finding:?}");
    }
    assert_named("tiny-llama3-f32", "f32", "cache_scale@k_cache=2;3;5", &[Full]);
    assert_named("tiny-llama3-f32", "f32", "cache_scale@v_cache=2,3", &[Full]);
}

#[test]
fn weights_in_a_shorter_type_are_named() {
    assert_named("tiny-llama3-f32", "f32", "weight_precision=int8-row", &[Full, Blocks]);
    assert_named("tiny-qwen3-f32", "f32", "weight_precision=f8_e4m3-tensor", &[Full]);
    // Embeddings of a file in f16 are no sign of a dump that was stored in f16.
    assert_named("tiny-llama3-f32", "f32", "weight_precision=f16", &[Full, Blocks]);
}

#[test]
fn scales_and_zero_points_of_other_groups_are_named() {
    assert_named("tiny-llama3-q8_0", "llama.cpp", "weight_groups=next", &[Full, Blocks]);
    assert_named("tiny-llama3-q8_0", "llama.cpp", "weight_groups=zero+1", &[Full]);
}

#[test]
fn exchanged_and_repeated_shards_are_named() {
    for typed in ["weight_shards@ffn_up=1,0", "weight_shards@v=0,0", "weight_shards@attn_out=columns:1,0"] {
        assert_named("tiny-llama3-f32", "f32", typed, &[Full]);
    }
}

#[test]
fn a_sum_that_is_split_and_rounded_is_named_with_its_parts() {
    assert_named("tiny-llama3-f32", "bf16", "split_k=columns:8", &[Full]);
    assert_named("tiny-gpt2-f32", "bf16", "split_k=columns:16", &[Full]);
}

/// Numbers that nobody would guess, from what leaves the layers alone.
#[test]
fn parameters_are_solved_for_if_few_taps_are_recorded() {
    assert_named("tiny-llama3-f32", "f32", "attn_scale=0.31", &[Blocks]);
    assert_named("tiny-llama3-f32", "f32", "rope_theta=23000", &[Blocks]);
    assert_named("tiny-qwen3-f32", "f32", "residual_scale=0.83", &[Blocks]);
}

/// Large scales of keys leave one key for each query, and both scales cannot be approached together.
#[test]
fn large_scales_of_keys_and_values_are_solved_for_if_few_taps_are_recorded() {
    let typed = ["cache_scale@k_cache=30", "cache_scale@v_cache=40"];
    let bed = Bed::new("tiny-llama3-f32", "f32");
    let findings = bed.check(&bed.dump_named(&typed, Blocks).0).findings;
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    let supposed = finding.supposed.as_deref();
    assert_eq!(supposed, Some("cache_scale@k_cache=30 and cache_scale@v_cache=40"), "{finding:?}");
}

/// Adds an adapter's product to q of one layer: its input is not what counts, but its rank.
struct Adapter {
    rank: usize,
    /// Number of outputs that it changes.
    outputs: usize,
}

impl Tap for Adapter {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if (site.point, site.layer) != (Point::Q, Some(1)) {
            return value;
        }
        let width = value.row_len();
        let number = |seed: usize| ((seed * 7919 + 13) % 1009) as f32 / 1009.0 - 0.5;
        let more = |flat: usize| {
            let (token, output) = (flat / width, flat % width);
            let of_rank = |rank: usize| {
                number(31 * token * token + rank + 5) * number(17 * output * output + 97 * rank)
            };
            if output < self.outputs { (0..self.rank).map(of_rank).sum::<f32>() } else { 0.0 }
        };
        let data = value.data().iter().enumerate().map(|(flat, x)| x + more(flat)).collect();
        Tensor::new(value.shape(), data)
    }
}

#[test]
fn an_adapter_is_named_with_its_rank_and_errors_of_few_outputs_are_not() {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    let told = |adapter: &mut Adapter| {
        let findings = bed.check(&bed.dump_with(adapter)).findings;
        findings.iter().map(|finding| (finding.kind, finding.what.clone())).collect::<Vec<_>>()
    };
    let adapted = told(&mut Adapter { rank: 2, outputs: usize::MAX });
    let [(CauseKind::WeightLowRank, what)] = adapted.as_slice() else { panic!("{adapted:?}") };
    assert!(what.contains("have rank 2"), "{what}");
    let few = told(&mut Adapter { rank: 2, outputs: 8 });
    assert!(!few.is_empty() && few.iter().all(|(kind, _)| !kind.is_cause()), "{few:?}");
}
