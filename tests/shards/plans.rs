//! Units, slices, and what schedulers tell.

use std::collections::HashMap;

use proptest::prelude::*;
use xcheck::plan::{Cost, Limit, Shard, from_environment, shards};

use super::bed::{Case, blocks, dump_of};
use crate::common::{counterpart, reference_of, variant};
use xcheck::checkpoint::{Point, Site};
use xcheck::numerics::F32;

fn units_of(keeps: &dyn Fn(Site) -> bool) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let loaded = variant("tiny-llama3-f32").load().expect("it loads");
    let dump = dump_of(&*loaded.model, &F32, &[], keeps, &folder.path().join("d"));
    let case = Case::new("tiny-llama3", &*loaded.model, &F32, &dump);
    case.plan().units.iter().map(ToString::to_string).collect()
}

#[test]
fn a_unit_begins_where_the_dump_holds_what_enters_it() {
    assert_eq!(units_of(&blocks), ["embeddings", "layer 0", "layer 1", "layer 2", "head"]);
    let lacks = |layer: usize| {
        move |site: Site| {
            !(site.point == Point::BlockOut && site.layer == Some(layer) && site.pass == Some(1))
        }
    };
    assert_eq!(units_of(&lacks(0)), ["embeddings", "layers 0-1", "layer 2", "head"]);
    assert_eq!(units_of(&lacks(2)), ["embeddings", "layer 0", "layer 1", "layer 2, head"]);
    assert_eq!(units_of(&|site| site.point != Point::Embed)[0], "embeddings, layer 0");
    assert_eq!(units_of(&|site| site.point == Point::LastLogits), ["embeddings, layers 0-2, head"]);
}

/// What was stored in a shorter type stands for many values: what enters the next layer is not known.
#[test]
fn a_unit_does_not_begin_at_values_that_were_rounded_when_they_were_stored() {
    let dump = reference_of("tiny-llama3", "transformers-bf16");
    let (loaded, numerics) = counterpart("tiny-llama3", &dump);
    let count = |numerics: &dyn xcheck::numerics::Numerics| {
        Case::new("tiny-llama3", &*loaded.model, numerics, &dump).plan().units.len()
    };
    assert_eq!(count(&*numerics), 5);
    let stored = dump.manifest.tensors.iter().any(|row| row.dtype == "bf16");
    assert_eq!(count(&F32) == 1, stored, "the dump stores bf16: {stored}");
}

#[test]
fn the_plan_is_of_headers_and_the_same_for_all() {
    let dump = reference_of("tiny-llama3", "transformers-f32");
    let (loaded, numerics) = counterpart("tiny-llama3", &dump);
    let case = Case::new("tiny-llama3", &*loaded.model, &*numerics, &dump);
    let (one, other) = (case.plan(), case.plan());
    assert_eq!((&one.hash, &one.units), (&other.hash, &other.units));
    let another = reference_of("tiny-llama3", "llama.cpp-f32");
    assert_ne!(one.hash, Case::new("tiny-llama3", &*loaded.model, &*numerics, &another).plan().hash);
    // A layer costs its weights, the head the vocabulary.
    let layer: usize = loaded.model.layer_matrices(1).iter().map(|(_, w)| w.rows * w.cols * 4).sum();
    assert_eq!(one.costs[2].weights_bytes, layer as u64);
    let all: u64 = one.costs.iter().map(|cost| cost.dump_bytes).sum();
    let held: u64 = dump.manifest.tensors.iter().filter_map(|row| row.size()).sum();
    assert_eq!(all, held, "every value belongs to one unit");
}

fn costs(gflops: &[u32]) -> Vec<Cost> {
    gflops.iter().map(|&gflop| Cost { gflop: gflop.into(), ..Cost::default() }).collect()
}

proptest! {
    #[test]
    fn slices_are_all_units_in_order_and_as_even_as_they_can_be(
        gflops in prop::collection::vec(1u32..1000, 1..40), n in 1usize..20
    ) {
        let costs = costs(&gflops);
        let slices = shards(&costs, n);
        prop_assert!(slices.len() <= n);
        prop_assert_eq!(slices.iter().cloned().flatten().collect::<Vec<_>>(), (0..costs.len()).collect::<Vec<_>>());
        let sum = |slice: &std::ops::Range<usize>| gflops[slice.clone()].iter().sum::<u32>();
        let dearest = slices.iter().map(sum).max().unwrap_or(0);
        // No even split is cheaper than the mean, and a greedy one is at most a unit dearer.
        let (total, largest) = (gflops.iter().sum::<u32>(), gflops.iter().max().copied().unwrap_or(0));
        prop_assert!(dearest <= total.div_ceil(n as u32) + largest);
        // Each of n shards is one of them, or has nothing.
        let of_shards = (1..=n).flat_map(|index| Shard { index, of: n }.units(&costs)).collect::<Vec<_>>();
        prop_assert_eq!(of_shards, (0..costs.len()).collect::<Vec<_>>());
    }
}

#[test]
fn limits_are_sizes_or_times() {
    let cost = Cost { gflop: 65.0, weights_bytes: 600_000_000, dump_bytes: 400_000_000 };
    let holds = |text: &str| text.parse::<Limit>().expect(text).holds(&cost);
    assert!(holds("1GB") && !holds("999MB") && holds("2s") && !holds("1.9s") && holds("1m"));
    for text in ["", "GB", "2", "-1GB", "0s", "2 bananas"] {
        assert!(text.parse::<Limit>().is_err(), "{text}");
    }
}

#[test]
fn shards_are_counted_from_one() {
    assert_eq!("3/16".parse(), Ok(Shard { index: 3, of: 16 }));
    for text in ["0/4", "5/4", "3", "a/b", "1/0", "-1/4"] {
        assert!(text.parse::<Shard>().is_err(), "{text}");
    }
}

fn auto(variables: &[(&str, &str)]) -> Result<String, String> {
    let variables: HashMap<&str, &str> = variables.iter().copied().collect();
    let told = from_environment(|name| variables.get(name).map(|value| (*value).to_owned()));
    told.map(|shard| shard.to_string()).map_err(|error| error.to_string())
}

#[test]
fn schedulers_tell_which_shard_is_meant() {
    let slurm = |id, min, max, count| {
        auto(&[
            ("SLURM_ARRAY_TASK_ID", id),
            ("SLURM_ARRAY_TASK_MIN", min),
            ("SLURM_ARRAY_TASK_MAX", max),
            ("SLURM_ARRAY_TASK_COUNT", count),
        ])
    };
    assert_eq!(slurm("0", "0", "15", "16").as_deref(), Ok("1/16"));
    assert_eq!(slurm("16", "1", "16", "16").as_deref(), Ok("16/16"));
    let steps = [
        ("SLURM_ARRAY_TASK_ID", "5"),
        ("SLURM_ARRAY_TASK_MIN", "1"),
        ("SLURM_ARRAY_TASK_MAX", "7"),
        ("SLURM_ARRAY_TASK_STEP", "2"),
        ("SLURM_ARRAY_TASK_COUNT", "4"),
    ];
    assert_eq!(auto(&steps).as_deref(), Ok("3/4"));
    assert_eq!(auto(&[("CI_NODE_INDEX", "1"), ("CI_NODE_TOTAL", "4")]).as_deref(), Ok("1/4"));
    assert_eq!(
        auto(&[("BUILDKITE_PARALLEL_JOB", "0"), ("BUILDKITE_PARALLEL_JOB_COUNT", "5")]).as_deref(),
        Ok("1/5")
    );
    assert_eq!(auto(&[("CIRCLE_NODE_INDEX", "3"), ("CIRCLE_NODE_TOTAL", "4")]).as_deref(), Ok("4/4"));
    assert_eq!(auto(&[("JOB_COMPLETION_INDEX", "2"), ("XCHECK_SHARDS", "8")]).as_deref(), Ok("3/8"));
    assert_eq!(
        auto(&[("AWS_BATCH_JOB_ARRAY_INDEX", "9"), ("AWS_BATCH_JOB_ARRAY_SIZE", "10")]).as_deref(),
        Ok("10/10")
    );
}

/// A few jobs are run again: the array alone does not tell of how many they are.
#[test]
fn an_array_with_gaps_is_refused_unless_the_number_of_shards_is_told() {
    let again = [
        ("SLURM_ARRAY_TASK_ID", "8"),
        ("SLURM_ARRAY_TASK_MIN", "4"),
        ("SLURM_ARRAY_TASK_MAX", "8"),
        ("SLURM_ARRAY_TASK_COUNT", "2"),
    ];
    assert!(auto(&again).is_err_and(|error| error.contains("XCHECK_SHARDS")));
    assert_eq!(auto(&[&again[..], &[("XCHECK_SHARDS", "16")]].concat()).as_deref(), Ok("9/16"));
}

#[test]
fn what_no_scheduler_tells_or_two_contradict_is_refused() {
    assert!(auto(&[]).is_err_and(|error| error.contains("SLURM_ARRAY_TASK_ID (Slurm)")));
    // GitLab sets the total in every job, and the index in parallel ones alone.
    assert!(auto(&[("CI_NODE_TOTAL", "1")]).is_err());
    assert!(auto(&[("JOB_COMPLETION_INDEX", "2")]).is_err_and(|error| error.contains("XCHECK_SHARDS")));
    assert!(
        auto(&[("CI_NODE_INDEX", "x"), ("CI_NODE_TOTAL", "4")]).is_err_and(|error| error.contains("'x'"))
    );
    assert!(
        auto(&[("CI_NODE_INDEX", "5"), ("CI_NODE_TOTAL", "4")])
            .is_err_and(|error| error.contains("one of 4 shards"))
    );
    let both = [
        ("CI_NODE_INDEX", "1"),
        ("CI_NODE_TOTAL", "4"),
        ("CIRCLE_NODE_INDEX", "3"),
        ("CIRCLE_NODE_TOTAL", "4"),
    ];
    assert!(auto(&both).is_err_and(|error| error.contains("GitLab has 1/4, CircleCI has 4/4")));
}
