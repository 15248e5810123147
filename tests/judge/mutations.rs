//! Whatever is changed in a dump, nothing panics, and a value that is changed visibly never passes unseen.

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;
use xcheck::check::{Mode, Role};
use xcheck::checkpoint::{Point, Site, TapAxis, ValueKind};
use xcheck::dump::Dump;
use xcheck::format::FileBytes;
use xcheck::measure::Measurement;
use xcheck::verdict::{Outcome, Verdict};

use super::clay::Clay;
use super::scene::{Scene, compare, compare_selected, told};
use crate::common::share::share;
use xcheck::align::Selection;

/// A scene, its dump to be shaped, and the places of numbers in it.
type Shaped = (Scene, Clay, Vec<Site>);

thread_local! {
    static SCENES: &'static [Shaped] = Box::leak(NAMES.map(shaped).into());
}

/// A small model, in types of every coarseness.
const NAMES: [&str; 4] = ["llama.cpp-f32", "llama.cpp-q8_0", "transformers-bf16", "transformers-f16"];

fn shaped(name: &str) -> Shaped {
    let scene = Scene::shipped("tiny-qwen3", name);
    let clay = Clay::of(&scene.dump);
    let real = clay.arrays.keys().copied().filter(|site| site.point.kind() == ValueKind::Real);
    let mut sites: Vec<Site> = real.collect();
    sites.sort_by_key(|site| site.flow_order());
    (scene, clay, sites)
}

fn scenes() -> &'static [Shaped] {
    SCENES.with(|scenes| *scenes)
}

/// Whether anybody may look at an entry: attention has entries that mean nothing.
fn is_seen(scene: &Scene, site: Site, shape: &[usize], flat: usize) -> bool {
    match (site.point, shape) {
        (Point::AttnScores | Point::AttnWeights, &[_, tokens, keys]) => {
            let position = scene.dump.manifest.passes[site.pass.expect("of a pass")].position;
            flat % keys <= position + flat / keys % tokens
        }
        _ => true,
    }
}

fn outcomes(scene: &Scene, dump: &Dump, mode: Mode) -> [Outcome; 4] {
    [
        scene.judge_dump(dump, mode, Role::Candidate, &mut ()),
        scene.judge_dump(dump, mode, Role::Reference, &mut ()),
        compare(dump, &scene.dump),
        compare(&scene.dump, dump),
    ]
}

/// The row of a place shows it.
fn shows(outcome: &Outcome, site: Site) -> bool {
    let row = outcome.rows.iter().find(|row| row.site == site).expect("it was compared");
    let wrong = |found: &Measurement| !found.is_identical();
    row.accumulated.iter().chain(&row.local).any(wrong)
}

fn rms(values: &[f64]) -> f64 {
    (values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64).sqrt()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: share(2, 16), max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_value_that_is_changed_by_more_than_any_rounding_fails_there(
        scene in 0..4usize, place in any::<Index>(), element in any::<Index>(), factor in 2.0..50.0f64, down in any::<bool>(),
        mode in prop::sample::select(&[Mode::Both, Mode::Local, Mode::Accumulated][..]),
    ) {
        let (scene, clay, sites) = &scenes()[scene];
        let site = *place.get(sites);
        let values = &clay.arrays[&site].values;
        let flat = element.index(values.data.len());
        prop_assume!(is_seen(scene, site, &values.shape, flat));
        // A probability is at most 1, and of the size of what is allowed: it is changed to a large one.
        let by = factor * rms(&values.data).max(if site.point == Point::Probs { 0.01 } else { 0.0 });
        let changed = clay.clone().edit(site, |values| values[flat] += if down { -by } else { by }).dump();
        for (way, outcome) in outcomes(scene, &changed, mode).into_iter().enumerate() {
            let row = outcome.rows.iter().find(|row| row.site == site).expect("it was compared");
            let what = format!("{site} {} {way}: {}", mode.name(), told(&outcome));
            // Of what has travelled through 16 bits from the tokens on, less is certain.
            let is_certain = mode != Mode::Accumulated || row.floor.is_none();
            prop_assert!(!is_certain || row.verdict == Verdict::Fail, "{what}");
            prop_assert!(!outcome.verdict.is_good() && !row.verdict.is_good(), "{what}");
        }
    }

    #[test]
    fn a_value_that_is_changed_at_all_is_seen_there(
        scene in 0..4usize, place in any::<Index>(), element in any::<Index>(), by in -0.1..0.1f64,
    ) {
        let (scene, clay, sites) = &scenes()[scene];
        let site = *place.get(sites);
        let values = &clay.arrays[&site].values;
        let flat = element.index(values.data.len());
        prop_assume!(is_seen(scene, site, &values.shape, flat));
        let changed = clay.clone().edit(site, |values| values[flat] += by * (values[flat].abs() + 0.01)).dump();
        prop_assume!(changed.read(site).expect("sound") != scene.dump.read(site).expect("sound"));
        for outcome in outcomes(scene, &changed, Mode::Both) {
            prop_assert!(outcome.verdict != Verdict::Pass || shows(&outcome, site), "{}: {}", site, told(&outcome));
        }
    }

    #[test]
    fn a_manifest_that_is_changed_is_refused_or_judged_and_never_passes_as_something_else(
        scene in 0..4usize, place in any::<Index>(), change in 0..8usize, number in 0..20usize,
    ) {
        let (scene, clay, sites) = &scenes()[scene];
        let site = *place.get(sites);
        let mut changed = clay.clone();
        let array = changed.arrays.get_mut(&site).expect("it is held");
        let mut harmless = false;
        match change {
            0 => array.axes = Some(array_axes(site).into_iter().rev().collect()),
            1 => array.axes = Some(vec!["token"; number % 4]),
            2 => array.values.shape.reverse(),
            3 => changed.manifest["passes"][number % 4]["position"] = json!(number),
            4 => changed.manifest["passes"][number % 4]["tokens"][0] = json!(number),
            5 => changed.manifest["input"]["tokens"] = json!([number]),
            6 => {
                let other = sites[(number * 7) % sites.len()];
                let moved = changed.arrays.remove(&site).expect("it is held");
                harmless = other == site;
                changed.arrays.insert(other, moved);
            }
            _ => changed.manifest["layout"]["rope_pairing"] = json!(["half", "interleaved", "x"][number % 3]),
        }
        let source = FileBytes { path: "changed.safetensors".into(), data: changed.bytes().into() };
        let Ok(dump) = Dump::from_source(source) else { return Ok(()) };
        let everything = Selection { explicit: true, ..Selection::everything() };
        let _ = compare_selected(&dump, &scene.dump, &everything);
        let _ = compare_selected(&scene.dump, &dump, &everything);
        let _ = scene.try_judge(&dump, Mode::Both, Role::Candidate);
        let Ok(outcome) = scene.try_judge(&dump, Mode::Both, Role::Reference) else { return Ok(()) };
        // A square array whose axes change places, or a value that stands elsewhere, is another value.
        if change == 6 && !harmless {
            prop_assert_ne!(outcome.verdict, Verdict::Pass, "{}: {}", site, told(&outcome));
        }
    }
}

fn array_axes(site: Site) -> Vec<&'static str> {
    site.point.axes().iter().map(|axis: &TapAxis| axis.name()).collect()
}
