//! What no query sees may hold anything; a cache that is too short or too long is a finding, not an error.

use serde_json::Value;
use xcheck::check::{Mode, Role};
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::{ArrayValues, Dump};
use xcheck::verdict::{Outcome, Verdict};

use super::clay::Clay;
use super::scene::{
    Scene, assert_does_not_pass, assert_first_wrong, assert_passes, compare, row, site, told,
};
use crate::common::architecture;
use crate::common::terminal::Terminal;

const NAMES: [&str; 2] = ["llama.cpp-f32", "transformers-f32"];

fn gemma(name: &str) -> Scene {
    Scene::shipped("tiny-gemma3", name)
}

fn each_way(scene: &Scene, dump: &Dump) -> Vec<Outcome> {
    let ours =
        [Role::Candidate, Role::Reference].map(|role| scene.judge_dump(dump, Mode::Both, role, &mut ()));
    ours.into_iter().chain([compare(dump, &scene.dump), compare(&scene.dump, dump)]).collect()
}

/// The window of a layer, if it slides.
fn window(scene: &Scene, layer: usize) -> Option<usize> {
    scene.model.model.window(layer)
}

/// Fills what lies outside the sliding windows.
fn hidden(scene: &Scene, points: &[Point], value: f64) -> Dump {
    let mut clay = Clay::of(&scene.dump);
    let mut hidden = 0;
    for (site, array) in &mut clay.arrays {
        let (Some(pass), Some(layer)) = (site.pass, site.layer) else { continue };
        let Some(window) = window(scene, layer).filter(|_| points.contains(&site.point)) else { continue };
        let position = scene.dump.manifest.passes[pass].position;
        let (tokens, keys) = (array.values.shape[1], array.values.shape[2]);
        for (flat, score) in array.values.data.iter_mut().enumerate() {
            let (query, key) = (position + flat / keys % tokens, flat % keys);
            if key + window <= query {
                *score = value;
                hidden += 1;
            }
        }
    }
    assert!(hidden > 100, "the window is shorter than the prompt");
    clay.dump()
}

#[test]
fn scores_outside_a_window_may_hold_anything() {
    for name in NAMES {
        let scene = gemma(name);
        for value in [0.0, f64::NEG_INFINITY, f64::NAN, -3.4e38] {
            for outcome in each_way(&scene, &hidden(&scene, &[Point::AttnScores], value)) {
                println!("{name} {value}");
                assert_passes(&outcome);
            }
        }
    }
}

/// What has neither weights nor scores outside windows still shows which keys are hidden.
#[test]
fn scores_that_are_masked_outside_a_window_need_no_weights_to_be_compared() {
    let scene = gemma("llama.cpp-f32");
    let masked = hidden(&scene, &[Point::AttnScores], f64::NEG_INFINITY);
    let without = Clay::of(&masked).without(&[Point::AttnWeights]).dump();
    each_way(&scene, &without).iter().for_each(assert_passes);
}

/// What the last token of a pass sees: the tokens before it see more, so that no stage of theirs starts from it.
#[test]
fn no_stage_starts_from_weights_that_were_cut_to_the_window_of_the_last_token() {
    let scene = gemma("transformers-f32");
    let place = site(Point::AttnWeights, 0, 0);
    let window = window(&scene, 0).expect("it slides");
    let cut = Clay::of(&scene.dump).edit_all(
        |site| site == place,
        |values| {
            let keys = *values.shape.last().expect("keys");
            assert!(keys > window);
            let rows = values.data.chunks(keys).flat_map(|row| row[keys - window..].to_vec());
            values.data = rows.collect();
            *values.shape.last_mut().expect("keys") = window;
        },
    );
    let since = |clay: &Clay| {
        let outcome = scene.judge_dump(&clay.dump(), Mode::Both, Role::Candidate, &mut ());
        assert_passes(&outcome);
        row(&outcome, site(Point::AttnContext, 0, 0)).since.clone()
    };
    let weights = Site { pass: None, ..place };
    assert!(since(&Clay::of(&scene.dump)).contains(&weights));
    assert!(!since(&cut).contains(&weights), "{:?}", since(&cut));
}

#[test]
fn a_wrong_score_inside_a_window_is_found() {
    let scene = gemma("llama.cpp-f32");
    let masked = hidden(&scene, &[Point::AttnScores], f64::NEG_INFINITY);
    let wrong = site(Point::AttnScores, 0, 1);
    // The last key of the first head: the query itself.
    let keys = scene.dump.manifest.passes[1].end();
    let dump = Clay::of(&masked).edit(wrong, |scores| scores[keys - 1] += 0.5).dump();
    for outcome in each_way(&scene, &dump) {
        assert_first_wrong(&outcome, wrong);
    }
}

#[test]
fn of_scores_of_the_latest_keys_alone_those_outside_a_window_may_hold_anything() {
    // Whose last bits are others than ours, so that its values are evaluated.
    let scene = gemma("transformers-f32");
    let mut clay = Clay::of(&scene.dump);
    let mut cut = 0;
    for (site, array) in &mut clay.arrays {
        let sliding = site.layer.and_then(|layer| window(&scene, layer));
        let (Point::AttnScores, Some(1..), Some(window)) = (site.point, site.pass, sliding) else { continue };
        let ArrayValues { shape, data } = &mut array.values;
        let (keys, kept) = (shape[2], window + 1);
        *data = data.chunks(keys).flat_map(|row| [&[-3.4e38], &row[keys - window..]].concat()).collect();
        shape[2] = kept;
        cut += 1;
    }
    assert!(cut > 4, "passes of one token are there");
    let dump = clay.dump();
    for role in [Role::Candidate, Role::Reference] {
        assert_passes(&scene.judge_dump(&dump, Mode::Both, role, &mut ()));
    }
    // The latest key of the first head is seen.
    let wrong = site(Point::AttnScores, 0, 1);
    let edited = Clay::of(&dump).edit(wrong, |scores| scores[5] += 1e-3).dump();
    assert_first_wrong(&scene.judge_dump(&edited, Mode::Both, Role::Candidate, &mut ()), wrong);
}

#[test]
fn a_score_that_is_masked_inside_a_window_is_found() {
    let scene = gemma("llama.cpp-f32");
    let wrong = site(Point::AttnScores, 0, 1);
    let keys = scene.dump.manifest.passes[1].end();
    let dump = Clay::of(&scene.dump).edit(wrong, |scores| scores[keys - 2] = f64::NEG_INFINITY).dump();
    for outcome in each_way(&scene, &dump) {
        assert_first_wrong(&outcome, wrong);
    }
}

// ---- caches of another length ---------------------------------------------------------------------------

fn keys_from(values: &mut ArrayValues, first: usize) {
    let row = values.data.len() / values.shape[0];
    values.data.drain(..first * row);
    values.shape[0] -= first;
}

/// One key too few or too many at a place.
fn other_length(dump: &Dump, place: Site, longer: bool) -> Dump {
    let change = |values: &mut ArrayValues| {
        let row = values.data.len() / values.shape[0];
        if longer {
            values.data.extend_from_within(..row);
            values.shape[0] += 1;
        } else {
            values.data.truncate(values.data.len() - row);
            values.shape[0] -= 1;
        }
    };
    Clay::of(dump).edit_all(|site| site == place, change).dump()
}

#[test]
fn a_kv_cache_of_another_length_fails_at_its_layer_and_pass() {
    let scene = Scene::shipped("tiny-llama2", "llama.cpp-f32");
    for wrong in [site(Point::KCache, 2, 1), site(Point::VCache, 0, 0)] {
        for longer in [false, true] {
            for outcome in each_way(&scene, &other_length(&scene.dump, wrong, longer)) {
                println!("{wrong} longer: {longer}");
                assert_first_wrong(&outcome, wrong);
                let reason = row(&outcome, wrong).reason.as_ref().expect("a reason");
                assert!(reason.contains("keys"), "{reason}");
            }
        }
    }
}

#[test]
fn a_global_layer_that_forgets_fails_there() {
    let scene = gemma("llama.cpp-f32");
    let layer = (0..).find(|&layer| window(&scene, layer).is_none()).expect("one is global");
    let wrong = site(Point::KCache, layer, 0);
    let dump = Clay::of(&scene.dump).edit_all(|site| site == wrong, |values| keys_from(values, 3)).dump();
    for role in [Role::Candidate, Role::Reference] {
        assert_first_wrong(&scene.judge_dump(&dump, Mode::Both, role, &mut ()), wrong);
    }
}

/// What a cache holds that forgets what no later token sees.
fn forgetful(scene: &Scene) -> Clay {
    let mut clay = Clay::of(&scene.dump);
    let mut dropped = 0;
    for (site, array) in &mut clay.arrays {
        let is_cache = matches!(site.point, Point::KCache | Point::VCache);
        let Some(window) = site.layer.and_then(|layer| window(scene, layer)).filter(|_| is_cache) else {
            continue;
        };
        // Every query of the pass sees so many keys before it.
        let tokens = scene.dump.manifest.passes[site.pass.expect("of a pass")].tokens.len();
        let keys = array.values.shape[0];
        keys_from(&mut array.values, keys.saturating_sub(window + tokens - 1));
        dropped += keys - array.values.shape[0];
    }
    assert!(dropped > 0);
    clay
}

#[test]
fn a_sliding_window_layer_that_keeps_its_window_alone_passes() {
    for name in NAMES {
        let scene = gemma(name);
        let dump = forgetful(&scene).dump();
        for outcome in each_way(&scene, &dump).iter().chain([&compare(&dump, &dump)]) {
            assert_eq!(outcome.verdict, Verdict::Pass, "{name}: {}", told(outcome));
        }
    }
}

#[test]
fn a_wrong_key_in_the_window_that_is_kept_is_found() {
    let scene = gemma("llama.cpp-f32");
    let wrong = site(Point::KCache, 0, 2);
    let dump = forgetful(&scene).edit(wrong, |keys| keys[3] += 0.5).dump();
    for outcome in each_way(&scene, &dump) {
        assert_first_wrong(&outcome, wrong);
    }
}

/// Nothing shows then that it is a window.
#[test]
fn two_dumps_without_weights_of_which_one_forgets_do_not_pass() {
    let scene = gemma("llama.cpp-f32");
    let dump = forgetful(&scene).without(&[Point::AttnWeights]).dump();
    let whole = Clay::of(&scene.dump).without(&[Point::AttnWeights]).dump();
    for outcome in [compare(&dump, &whole), compare(&whole, &dump)] {
        assert_does_not_pass(&outcome);
    }
}

/// A mask leaves each token itself: what is minus infinity throughout is compared.
#[test]
fn scores_that_are_masked_throughout_are_no_pass() {
    let scene = gemma("llama.cpp-f32");
    let right = Clay::of(&scene.dump).with_only(&[Point::AttnScores]);
    let masked = right.clone().edit_all(
        |_| true,
        |values| {
            let most = values.data.len() / 3 * 2;
            values.data[..most].fill(f64::NEG_INFINITY);
        },
    );
    let (right, masked) = (right.dump(), masked.dump());
    assert_passes(&compare(&right, &right));
    assert_does_not_pass(&compare(&masked, &right));
    assert_does_not_pass(&compare(&right, &masked));
}

/// Of 12 keys in chunks of 5, the last position sees its own chunk of 2 alone.
#[test]
fn a_cache_of_chunks_has_at_least_the_keys_of_the_last_chunk() {
    let folder = architecture("tiny-llama4-chunks");
    let verdict_of = |keys: usize| {
        let is_cut = |site: Site| {
            let is_cache = matches!(site.point, Point::KCache | Point::VCache);
            is_cache && (site.layer, site.pass) == (Some(0), Some(0))
        };
        let cut = Clay::open(&folder.join("dumps/transformers-f32.safetensors")).edit_all(is_cut, |values| {
            let width = values.data.len() / values.shape[0];
            values.data.drain(..(values.shape[0] - keys) * width);
            values.shape[0] = keys;
        });
        let terminal = Terminal::new();
        cut.save(&terminal.path().join("cut.safetensors"));
        let model = folder.join("hf").display().to_string();
        let words =
            ["check", "--model", &model, "--candidate", "cut.safetensors", "--no-report", "--no-causes"];
        let (code, report) = terminal.json(&words);
        let rows = report["references"][0]["results"].as_array().cloned().unwrap_or_default();
        let is_cut = |row: &&Value| row["tap"] == "k_cache" && row["layer"] == 0 && row["pass"] == 0;
        let row = rows.iter().find(is_cut).cloned().unwrap_or_default();
        (code, row["verdict"].as_str().map(str::to_owned), row["reason"].clone())
    };
    assert_eq!(verdict_of(2), (0, Some("pass".to_owned()), Value::Null));
    let (code, verdict, reason) = verdict_of(1);
    assert_eq!((code, verdict.as_deref()), (1, Some("fail")));
    assert!(reason.to_string().contains("has 1 keys, expected 12"), "{reason}");
}
