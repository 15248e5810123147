//! Whatever the parts: put together they are the whole, byte for byte.

use std::collections::BTreeSet;
use std::ops::Range;

use xcheck::align::Selection;
use xcheck::catalogue::Supposition;
use xcheck::check::{Gate, Mode, Role};
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;
use xcheck::model::Model;
use xcheck::numerics::{BitnetCpp, F32, KvType, LlamaCpp, Numerics, Transformers};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, Verdict};

use super::bed::{Case, blocks, dump_of, formats, merged};
use crate::common::share::one_of;
use crate::common::{counterpart, references, variant};

/// Holds every way of cutting a comparison against the whole of it, and gives back what that is.
fn assert_parts_are_the_whole(case: &Case) -> Outcome {
    let (plan, whole) = (case.plan(), case.whole());
    let expected = formats(&case.report(whole.clone(), None));
    let count = plan.units.len();
    for cuts in partitions(count) {
        let mut texts: Vec<String> = cuts.iter().map(|part| case.text(part.clone(), &plan)).collect();
        // In another order, and one of them twice.
        texts.reverse();
        texts.push(texts[0].clone());
        let merged = merged(&texts).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert!(merged.results[0].sharded.is_none(), "{}: {cuts:?}: it is complete", case.name);
        for (merged, expected) in formats(&merged).iter().zip(&expected) {
            let first = merged.lines().zip(expected.lines()).find(|(one, other)| one != other);
            assert!(merged == expected, "{}: {cuts:?} of {:?}: {first:?}", case.name, plan.units);
        }
    }
    whole
}

/// Each unit by itself, all at once, and three uneven parts, of which two overlap.
fn partitions(count: usize) -> Vec<Vec<Range<usize>>> {
    let third = count.div_ceil(3);
    vec![
        (0..count).map(|unit| unit..unit + 1).collect(),
        vec![0..count],
        vec![0..third, third.saturating_sub(1)..(2 * third).min(count), (2 * third).min(count)..count],
    ]
}

#[test]
fn of_every_dump_that_ships() {
    let ways = [(Mode::Local, Role::Reference), (Mode::Layers, Role::Candidate)];
    let cases = references().flat_map(|reference| ways.map(|way| (reference.clone(), way)));
    for ((model, name, dump), (mode, role)) in one_of(9, cases) {
        let (loaded, numerics) = counterpart(model, &dump);
        let named = format!("{model} {name} {}", mode.name());
        let case = Case { mode, role, ..Case::new(&named, &*loaded.model, &*numerics, &dump) };
        let whole = assert_parts_are_the_whole(&case);
        assert_eq!(whole.verdict, Verdict::Pass, "{named}: {:?}", whole.reason);
        assert!(case.plan().units.len() >= 3, "{named}: {:?}", case.plan().units);
    }
}

/// Is given a name, a model, what computes it, and what is wrong with it.
type Planted<'p> = dyn FnMut(&str, &dyn Model, &dyn Numerics, &[Supposition]) + 'p;

/// Models with what they are computed by, and what is wrong with an engine. Gives back how many cases there were.
fn planted(test: &mut Planted) -> usize {
    let beds: [(&str, Box<dyn Numerics>); 7] = [
        ("tiny-llama3-f32", Box::new(F32)),
        ("tiny-llama3-f32", Box::new(Transformers::Bf16)),
        ("tiny-qwen3-f32", Box::new(F32)),
        ("tiny-gemma3-f32", Box::new(F32)),
        ("tiny-gpt2-f32", Box::new(F32)),
        ("tiny-bitnet-i2_s", Box::new(BitnetCpp { kv: KvType::F16 })),
        ("tiny-llama2-q8_0", Box::new(LlamaCpp { kv: KvType::F16 })),
    ];
    let cases = beds.iter().flat_map(|(name, numerics)| FAULTS.map(|faults| (name, numerics, faults)));
    let mut number = 0;
    for (name, numerics, faults) in one_of(6, cases) {
        let loaded = variant(name).load().expect("it loads");
        let supposed = faults.iter().map(|(typed, layers)| {
            let everywhere = Supposition::named(typed).expect("it is in the catalogue");
            if layers.is_empty() { everywhere } else { everywhere.in_layers(layers.iter().copied()) }
        });
        let named = format!("{name} {} {faults:?}", numerics.name());
        test(&named, &*loaded.model, &**numerics, &supposed.collect::<Vec<_>>());
        number += 1;
    }
    number
}

/// What is wrong, and in which layers.
type Fault = &'static [(&'static str, &'static [usize])];

/// In all layers, in some, several at once.
const FAULTS: [Fault; 8] = [
    &[("rope_theta=20000", &[])],
    &[("norm_eps=1e-3", &[]), ("activation=relu", &[1])],
    &[("norm_eps@ffn_norm=1e-2", &[0, 2])],
    &[("attn_scale=0.3", &[2])],
    &[("residual_missing=branch", &[1])],
    &[("weight_missing=zero", &[0]), ("logit_scale=0.5", &[])],
    &[("mask_causal=one-more", &[])],
    &[],
];

#[test]
fn of_engines_that_are_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut failing, mut named) = (0, BTreeSet::new());
    let all = planted(&mut |name, model, numerics, supposed| {
        let dump = dump_of(model, numerics, supposed, &|_| true, &folder.path().join(name));
        let case = Case::new(name, model, numerics, &dump);
        let whole = assert_parts_are_the_whole(&case);
        assert!(
            whole.verdict == Verdict::Fail || whole.verdict == Verdict::Pass,
            "{name}: {:?}",
            whole.reason
        );
        failing += usize::from(whole.verdict == Verdict::Fail);
        named.extend(whole.findings.iter().map(|finding| finding.kind.name()));
    });
    assert!(failing * 3 > all, "the test tests little: of {all} fail {failing}");
    assert!(named.contains("rope_theta") && named.contains("norm_eps"), "{named:?}");
}

/// A fault in all layers is one finding, however many have found it.
#[test]
fn a_cause_of_all_layers_is_told_once_with_all_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let loaded = variant("tiny-llama3-f32").load().expect("it loads");
    let supposed = [Supposition::named("rope_theta=10000").expect("it is known")];
    let dump = dump_of(&*loaded.model, &F32, &supposed, &|_| true, &folder.path().join("d"));
    let case = Case::new("tiny-llama3-f32", &*loaded.model, &F32, &dump);
    let apart = case.whole();
    let at_once = Case { mode: Mode::Both, ..case }.whole();
    assert_eq!(apart.findings, at_once.findings);
    assert_eq!(apart.findings.len(), 1, "{:?}", apart.findings);
    assert_eq!(apart.findings[0].layers, [0, 1, 2]);
}

/// Weights are mapped: of what is not run, nothing is read.
#[test]
fn a_unit_runs_its_own_layers_and_no_others() {
    struct Seen(BTreeSet<(Option<usize>, Point)>);
    impl Tap for Seen {
        fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
            self.0.insert((site.layer, site.point));
            value
        }
    }
    let dump = crate::common::reference_of("tiny-llama3", "transformers-f32");
    let (loaded, numerics) = counterpart("tiny-llama3", &dump);
    let case = Case::new("tiny-llama3", &*loaded.model, &*numerics, &dump);
    for (index, unit) in case.plan().units.iter().enumerate() {
        let mut seen = Seen(BTreeSet::new());
        case.part_seen_by(index..index + 1, Vec::new(), &mut seen);
        let part = unit.part().expect("it is one");
        let is_own = |(layer, point): &(Option<usize>, Point)| match layer {
            Some(layer) => part.layers.contains(layer),
            None => {
                if *point == Point::Embed {
                    part.embed
                } else {
                    part.head
                }
            }
        };
        assert!(!seen.0.is_empty() && seen.0.iter().all(is_own), "{unit}: {:?}", seen.0);
    }
}

/// What is found apart is what is found at once, wherever one cause is everywhere or in one layer.
#[test]
fn causes_that_are_found_apart_are_those_that_are_found_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut same = 0;
    let all = planted(&mut |name, model, numerics, supposed| {
        let dump = dump_of(model, numerics, supposed, &|_| true, &folder.path().join(name));
        let apart = Case::new(name, model, numerics, &dump);
        let told = |outcome: Outcome| -> BTreeSet<_> {
            let findings = outcome.findings.into_iter();
            findings.map(|found| (found.kind.name(), found.candidate, found.layers)).collect()
        };
        let one = told(apart.whole());
        let other = told(Case { mode: Mode::Both, ..apart }.whole());
        same += usize::from(one == other);
        if one != other {
            println!("{name}: apart {one:?}, at once {other:?}");
        }
    });
    assert!(same * 10 >= all * 9, "{same} of {all} are the same");
}

/// What a dump leaves out, and in which modes.
#[test]
fn of_dumps_that_hold_little() {
    let folder = tempfile::tempdir().expect("a folder");
    let without_one = |site: Site| !(site.point == Point::BlockOut && site.layer == Some(0));
    let without_embed = |site: Site| site.point != Point::Embed;
    let without_scores = |site: Site| {
        !matches!(site.point, Point::AttnScores | Point::AttnWeights | Point::KCache | Point::VCache)
    };
    let keeps: [&dyn Fn(Site) -> bool; 4] = [&blocks, &without_one, &without_embed, &without_scores];
    let mut failing = 0;
    let faults = [("tiny-llama3-f32", "norm_eps=1e-2"), ("tiny-gpt2-f32", "activation=relu")];
    for (name, fault) in one_of(2, faults) {
        let loaded = variant(name).load().expect("it loads");
        let supposed = Supposition::named(fault).expect("it is known").in_layers([1]);
        for (index, keeps) in keeps.iter().enumerate() {
            for supposed in [&[][..], std::slice::from_ref(&supposed)] {
                let path = folder.path().join(format!("{name}-{index}-{}", supposed.len()));
                let dump = dump_of(&*loaded.model, &F32, supposed, keeps, &path);
                for (mode, gate) in [
                    (Mode::Local, Gate::Rounding),
                    (Mode::Local, Gate::Tolerance),
                    (Mode::Layers, Gate::Rounding),
                ] {
                    let named = format!("{name} {index} {} {}", mode.name(), gate.name());
                    let case = Case { mode, gate, ..Case::new(&named, &*loaded.model, &F32, &dump) };
                    let whole = assert_parts_are_the_whole(&case);
                    let may_fail = !supposed.is_empty();
                    assert!(may_fail || whole.verdict != Verdict::Fail, "{named}: {:?}", whole.reason);
                    failing += usize::from(whole.verdict == Verdict::Fail);
                }
            }
        }
    }
    assert!(
        failing >= 10,
        "{failing} faulty cases fail, expected at least 10 (of 12, or of 24 with every case)"
    );
}

#[test]
fn of_what_was_selected() {
    let dump: Dump = crate::common::reference_of("tiny-gemma3", "transformers-f32");
    let (loaded, numerics) = counterpart("tiny-gemma3", &dump);
    let layers = |text: &str| Some(text.parse().expect("ranges"));
    let everything = Selection::everything();
    let selections = [
        Selection { layers: layers("1,3"), ..everything.clone() },
        Selection { layers: layers("2"), ..everything.clone().inside_layers() },
        Selection { passes: layers("1"), positions: layers("6-8"), ..everything.clone() },
        Selection {
            checkpoints: "rope,logits".parse::<xcheck::align::Checkpoints>().expect("two").0,
            explicit: true,
            ..everything
        },
    ];
    for selection in selections {
        let named = format!("{selection:?}");
        let case = Case { selection, ..Case::new(&named, &*loaded.model, &*numerics, &dump) };
        let whole = assert_parts_are_the_whole(&case);
        assert!(!whole.rows.is_empty() && whole.verdict != Verdict::Fail, "{named}: {:?}", whole.reason);
    }
}

/// More was generated than was dumped: that takes the whole model, and a unit of its own.
#[test]
fn of_a_continuation_beyond_the_passes() {
    let dump = crate::common::reference_of("tiny-llama2", "llama.cpp-f32");
    let (loaded, numerics) = counterpart("tiny-llama2", &dump);
    let folder = tempfile::tempdir().expect("a folder");
    let mut generated = dump.manifest.generated.clone().expect("it has one");
    let script = xcheck::engine::RunInput::greedy(&dump.manifest.input.tokens, generated.len() + 2);
    let longer =
        xcheck::engine::run(&*loaded.model, &*numerics, &script, &mut ()).expect("it runs").generated;
    assert_eq!(longer[..generated.len()], generated);
    generated = longer;
    let path = folder.path().join("longer");
    crate::common::record(&*loaded.model, &*numerics, &script_of(&dump), &path);
    let manifest = path.join("manifest.json");
    let mut told: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&manifest).expect("it is there")).expect("it is JSON");
    told["generated"] = generated.into();
    let rows = told["tensors"].as_array_mut().expect("rows");
    rows.retain(|row| row["tap"] != "generated");
    std::fs::write(&manifest, told.to_string()).expect("it can be written");
    let longer = Dump::open(&path).expect("it is whole");
    let case = Case::new("longer", &*loaded.model, &*numerics, &longer);
    let units = case.plan().units;
    assert_eq!(units.last().map(ToString::to_string).as_deref(), Some("continuation"), "{units:?}");
    let whole = assert_parts_are_the_whole(&case);
    assert_eq!(whole.verdict, Verdict::Pass, "{:?}", whole.reason);
    assert!(whole.rows.iter().any(|row| row.site.point == Point::Generated));
}

fn script_of(dump: &Dump) -> xcheck::engine::RunInput {
    xcheck::engine::RunInput::greedy(&dump.manifest.input.tokens, dump.manifest.passes.len() - 1)
}
