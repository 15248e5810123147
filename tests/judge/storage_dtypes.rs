//! A dump may store what was computed in a coarser or finer type: an honest run passes, a fault above the storage's step
//! does not.

use half::bf16;
use xcheck::check::{Mode, Role};
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;
use xcheck::engine::RunInput;
use xcheck::numerics::Transformers;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::weight::DType;

use super::clay::Clay;
use super::scene::{Scene, assert_does_not_pass, assert_first_wrong, assert_passes, compare, recorded, site};
use crate::common::faulty::At;
use crate::common::share::{one_of, pairs};
use crate::common::terminal::Terminal;

const NAMES: [&str; 3] = ["llama.cpp-f32", "llama.cpp-q8_0", "transformers-f32"];
const TYPES: [DType; 3] = [DType::F64, DType::F16, DType::BF16];
const ROLES: [Role; 2] = [Role::Candidate, Role::Reference];

fn stored(scene: &Scene, dtype: DType) -> Dump {
    Clay::of(&scene.dump).stored_in(dtype).dump()
}

#[test]
fn a_correct_run_passes_in_any_storage_dtype() {
    for model in ["tiny-llama2", "tiny-qwen3"] {
        for name in NAMES {
            let scene = Scene::shipped(model, name);
            for (dtype, role) in one_of(3, pairs(TYPES, ROLES)) {
                println!("{model} {name} in {dtype}, {}", role.name());
                assert_passes(&scene.judge_dump(&stored(&scene, dtype), Mode::Both, role, &mut ()));
            }
        }
    }
}

#[test]
fn two_dumps_of_the_same_values_in_other_dtypes_pass() {
    for name in NAMES {
        let scene = Scene::shipped("tiny-llama2", name);
        for dtype in TYPES {
            println!("{name} in {dtype}");
            let dump = stored(&scene, dtype);
            assert_passes(&compare(&dump, &scene.dump));
            assert_passes(&compare(&scene.dump, &dump));
        }
    }
}

#[test]
fn an_f64_run_of_the_same_model_passes_against_f32() {
    // What an f64 run has besides is far below what f32 can hold.
    let scene = Scene::shipped("tiny-llama2", "transformers-f32");
    let mut clay = Clay::of(&scene.dump).stored_in(DType::F64).say(|json| {
        json["producer"]["settings"]["dtype"] = "f64".into();
    });
    for (site, array) in &mut clay.arrays {
        if site.point.kind() == xcheck::checkpoint::ValueKind::Real {
            for (index, value) in array.values.data.iter_mut().enumerate() {
                *value *= if index % 2 == 0 { 1.0 + 2e-8 } else { 1.0 - 2e-8 };
            }
        }
    }
    for role in ROLES {
        assert_passes(&scene.judge_dump(&clay.dump(), Mode::Both, role, &mut ()));
    }
}

#[test]
fn a_fault_above_the_step_of_the_storage_is_found_at_its_tap() {
    for name in ["llama.cpp-f32", "llama.cpp-q8_0"] {
        let scene = Scene::shipped("tiny-llama2", name);
        let points = [Point::Q, Point::AttnScores, Point::AttnOut, Point::FfnAct, Point::FfnOut];
        for (dtype, point) in one_of(3, pairs(TYPES, points)) {
            let dump = stored(&scene, dtype);
            let wrong = site(point, 2, 0);
            // The last value belongs to the last token, whose query sees every key.
            let mut fault = At(wrong, |values: &mut [f32]| *values.last_mut().expect("some") += 0.5);
            println!("{name} in {dtype}: {wrong}");
            assert_first_wrong(&scene.judge_dump(&dump, Mode::Both, Role::Reference, &mut fault), wrong);
        }
    }
}

#[test]
fn a_stage_five_percent_too_large_is_found_at_its_tap_in_a_bf16_or_f16_dump() {
    for name in ["llama.cpp-f32", "llama.cpp-q8_0"] {
        let scene = Scene::shipped("tiny-llama2", name);
        let sites = [
            site(Point::AttnNorm, 0, 0),
            site(Point::V, 3, 1),
            site(Point::AttnContext, 1, 0),
            site(Point::FfnUp, 2, 2),
            site(Point::FfnOut, 0, 0),
        ];
        for (dtype, wrong) in one_of(2, pairs([DType::F16, DType::BF16], sites)) {
            let dump = stored(&scene, dtype);
            let mut fault =
                At(wrong, |values: &mut [f32]| values.iter_mut().for_each(|value| *value *= 1.05));
            println!("{name} in {dtype}: {wrong}");
            assert_first_wrong(&scene.judge_dump(&dump, Mode::Both, Role::Reference, &mut fault), wrong);
        }
    }
}

/// What `xcheck check` says of a run with a cache of this type, whose caches are stored in f16, and which does not say of
/// what type they are. One value can be made wrong.
fn checked_of_unsaid_cache(cache: &str, fault: Option<Site>) -> (i32, String) {
    let terminal = Terminal::new();
    let arguments = ["dump", "-m", "tiny-llama2", "--tokens", "1,393,395,260", "--decode", "1", "-o", "d"];
    assert_eq!(terminal.run(&[&arguments[..], &["--kv-cache", cache]].concat()).code, 0);
    let dump = Dump::open(&terminal.path().join("d")).expect("it is sound");
    let mut clay = Clay::of(&dump).say(|json| {
        json["producer"]["settings"].as_object_mut().expect("settings").remove("kv_cache");
    });
    for (site, array) in &mut clay.arrays {
        if [Point::KCache, Point::VCache].contains(&site.point) {
            array.dtype = DType::F16;
        }
    }
    if let Some(site) = fault {
        clay = clay.edit(site, |values| *values.last_mut().expect("some") += 0.5);
    }
    clay.save(&terminal.path().join("stored.safetensors"));
    let check = ["check", "-m", "tiny-llama2", "--candidate", "stored.safetensors"];
    let finished = terminal.run(&[&check[..], &["--no-report", "--no-causes"]].concat());
    (finished.code, finished.stdout + &finished.stderr)
}

#[test]
fn a_kv_cache_stored_in_f16_may_be_f16_or_f32_if_the_dump_does_not_say() {
    // Each stored value stands for all that round to it: whichever the cache is of, it is one of these.
    for cache in ["f16", "f32"] {
        let (code, told) = checked_of_unsaid_cache(cache, None);
        assert_eq!(code, 0, "{told}");
    }
    for cache in ["f16", "f32"] {
        for point in [Point::KCache, Point::AttnScores] {
            let (code, told) = checked_of_unsaid_cache(cache, Some(site(point, 1, 0)));
            assert_eq!(code, 1, "{cache} {point}: {told}");
        }
    }
}

/// Goes on with bf16 at these tap points.
struct Rounds(&'static [Point]);

impl Tap for Rounds {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        match self.0.contains(&site.point) {
            true => value.map(|value| bf16::from_f32(value).to_f32()),
            false => value,
        }
    }
}

/// Taps of an engine that says f32, stored in bf16: what it goes on with is rounded, or only what it stores.
#[test]
fn what_an_engine_rounds_is_not_excused_by_how_its_dump_stores_it() {
    let scene = Scene::shipped("tiny-llama2", "transformers-f32");
    let script = RunInput::greedy(&scene.dump.manifest.passes[0].tokens, 2);
    let places: [&[Point]; 3] = [
        &[Point::AttnResidual, Point::BlockOut],
        &[Point::AttnNorm, Point::FfnNorm],
        &[Point::FfnGate, Point::FfnUp],
    ];
    for points in places {
        let judged = |tap: &mut dyn Tap| {
            let dump = recorded(&*scene.model.model, &Transformers::F32, "f32", &script, tap);
            let mut clay = Clay::of(&dump);
            let short = clay.arrays.iter_mut().filter(|(site, _)| points.contains(&site.point));
            short.for_each(|(_, array)| array.dtype = DType::BF16);
            ROLES.map(|role| scene.judge_dump(&clay.dump(), Mode::Both, role, &mut ()))
        };
        println!("{points:?}");
        judged(&mut Rounds(points)).iter().for_each(assert_does_not_pass);
        judged(&mut ()).iter().for_each(assert_passes);
    }
}

/// A dump of torch in bf16 that does not say so: most of its taps hold numbers of that type, also where they were widened to be
/// stored.
#[test]
fn the_type_of_most_values_is_tried_where_the_dump_does_not_say_what_it_computes_in() {
    let check = |is_widened: bool, fault: f64| {
        let clay = Clay::of(&crate::common::reference("transformers-bf16"));
        let clay = if is_widened { clay.stored_in(DType::F32) } else { clay };
        let clay = clay.say(|json| {
            json["producer"]["settings"].as_object_mut().expect("settings").remove("dtype");
        });
        let clay =
            clay.edit(site(Point::FfnUp, 1, 0), |values| values.iter_mut().for_each(|value| *value *= fault));
        let terminal = Terminal::new();
        clay.save(&terminal.path().join("d.safetensors"));
        let check = ["check", "-m", "tiny-llama2", "--candidate", "d.safetensors"];
        terminal.json(&[&check[..], &["--no-report", "--no-causes"]].concat())
    };
    for is_widened in [false, true] {
        let (code, report) = check(is_widened, 1.0);
        assert_eq!(code, 0, "{}", report["references"][0]["reason"]);
        let notes = report["references"][0]["notes"].to_string();
        assert!(notes.contains("settings.dtype is not stated"), "{notes}");
        let (code, report) = check(is_widened, 1.05);
        assert_eq!((code, &report["references"][0]["first_divergence"]["tap"]), (1, &"ffn_up".into()));
    }
}

/// A cache of a fixed length has weights of zero behind the latest position.
#[test]
fn unwritten_kv_cache_keys_are_left_out_if_their_attention_weights_are_zero() {
    let scene = Scene::shipped("tiny-llama2", "transformers-f32");
    let padded = |with: f64| {
        let is_weights = |site: Site| site.point == Point::AttnWeights;
        Clay::of(&scene.dump).edit_all(is_weights, |values| {
            let keys = *values.shape.last().expect("keys");
            let rows = values.data.chunks(keys).flat_map(|row| row.iter().copied().chain([0.0, 0.0, with]));
            values.data = rows.collect();
            *values.shape.last_mut().expect("keys") = keys + 3;
        })
    };
    let cached = |with: f64| {
        let is_cache = |site: Site| [Point::KCache, Point::VCache].contains(&site.point);
        Clay::of(&scene.dump).edit_all(is_cache, |values| {
            let row: usize = values.shape[1..].iter().product();
            values.data.extend(vec![with; 3 * row]);
            values.shape[0] += 3;
        })
    };
    for role in ROLES {
        for (nothing, something) in [(padded(0.0), padded(1e-3)), (cached(0.0), cached(1e-3))] {
            assert_passes(&scene.judge_dump(&nothing.dump(), Mode::Both, role, &mut ()));
            assert_does_not_pass(&scene.judge_dump(&something.dump(), Mode::Both, role, &mut ()));
        }
    }
}
