//! What an array is, is told by its values, whatever it is called and however it is stored.

use std::fs;
use std::path::{Path, PathBuf};

use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;
use xcheck::engine::RunInput;
use xcheck::identify::{IdentifiedArray, identify, map_of};
use xcheck::map::{MapContext, NameMap};
use xcheck::model::LoadedModel;
use xcheck::numerics::{F32, Numerics};
use xcheck::weight::{DType, StoredTensor};

use super::disguised::{ALL, Disguise, Disguised, arrays, disguised, places, stored, view};
use crate::common::share::{one_of, pairs};
use crate::common::terminal::Terminal;
use crate::common::{counterpart, record, reference_of};

/// The dumps that ship, each with its model.
fn dumps() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints");
    let entries = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.expect("it is read").path()).collect::<Vec<_>>()
    };
    let name = |path: &Path| path.file_stem().expect("a name").to_string_lossy().into_owned();
    let of_model = |model: PathBuf| {
        let dumps = entries(&model.join("dumps")).into_iter();
        dumps.map(|dump| (name(&model), name(&dump))).collect::<Vec<_>>()
    };
    let mut dumps: Vec<_> = entries(&folder).into_iter().flat_map(of_model).collect();
    dumps.sort();
    assert!(dumps.len() >= 40, "those that ship: {dumps:?}");
    dumps
}

struct Case {
    dump: Dump,
    tokens: Vec<u32>,
    loaded: LoadedModel,
    numerics: Box<dyn Numerics>,
}

impl Case {
    fn new(model: &str, name: &str) -> Self {
        let dump = reference_of(model, name);
        let tokens = dump.manifest.passes[0].tokens.clone();
        let (loaded, numerics) = counterpart(model, &dump);
        Self { dump, tokens, loaded, numerics }
    }

    /// All places of the first pass, in an order and under names that tell nothing.
    fn disguised(&self, disguise: impl Fn(usize) -> Disguise) -> Vec<Disguised> {
        let mut sites = places(&self.dump, 0);
        sites.sort_by_key(|site| site.to_string().bytes().rev().collect::<Vec<u8>>());
        let one = |(index, site): (usize, Site)| Disguised {
            name: format!("a{index}"),
            site,
            stored: disguised(view(&self.dump, site), disguise(index)),
        };
        sites.into_iter().enumerate().map(one).collect()
    }

    fn identified(&self, all: &[Disguised]) -> Vec<IdentifiedArray> {
        identify(&arrays(all), &self.tokens, &*self.loaded.model, &*self.numerics).expect("it runs")
    }
}

/// Whether an array is named as what it is, or as what has the same values, and that is listed.
fn is_right(array: &IdentifiedArray, site: Site) -> bool {
    let [place] = array.places.as_slice() else { return false };
    place.site == site || place.others.contains(&site)
}

fn assert_told(what: &str, all: &[Disguised], identified: &[IdentifiedArray]) {
    let wrong: Vec<String> = all
        .iter()
        .zip(identified)
        .filter(|(one, array)| !is_right(array, one.site) || array.is_guess())
        .map(|(one, array)| {
            let named: Vec<String> =
                array.places.iter().map(|place| format!("{} {:.1e}", place.site, place.rel_l2)).collect();
            let near =
                array.nearest.as_ref().map(|place| format!("nearest {} {:.1e}", place.site, place.rel_l2));
            format!("{} {:?} is told as {named:?} {near:?}", one.site, array.shape)
        })
        .collect();
    assert!(wrong.is_empty(), "{what}: {} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

/// Names are removed, or name another layer; axes are in other orders, values stored in f16, differently in each dump.
#[test]
fn every_tap_of_every_dump_is_told_without_its_name() {
    for (turn, (model, name)) in one_of(3, dumps().iter().enumerate()) {
        let case = Case::new(model, name);
        let mut all = case.disguised(|index| ALL[(index + turn) % ALL.len()]);
        let layers = case.loaded.model.dimensions().n_layers;
        for one in all.iter_mut().filter(|_| turn % 2 == 0) {
            one.name = format!("layers.{}.{}", (one.site.layer.unwrap_or(0) + 1) % layers, one.name);
        }
        assert_told(&format!("{model}/{name}"), &all, &case.identified(&all));
    }
}

/// The dump that a file is read as by the map that is written of it.
fn read_back(case: &Case, all: &[Disguised], identified: &[IdentifiedArray]) -> Dump {
    let map = toml::to_string(&map_of(identified, &case.tokens, &*case.loaded.model)).expect("plain data");
    let read =
        NameMap::of_text("written", &map).expect("it is a map").read(&arrays(all), &MapContext::default());
    let reading = read.unwrap_or_else(|error| panic!("{error}\n{map}"));
    let notes = reading.notes.join("\n");
    assert!(!notes.contains("match no array"), "{notes}\n{map}");
    reading.dump
}

/// The array of a file that a place of a dump was read from.
fn whence(dump: &Dump, site: Site) -> &str {
    dump.row(site).expect("it is there").file.split('#').next().expect("a name")
}

#[test]
fn the_map_that_is_written_gives_the_same_values() {
    for (model, name) in [
        ("tiny-qwen3", "transformers-f32"),
        ("tiny-gpt2", "llama.cpp-f16"),
        ("tiny-gemma3", "llama.cpp-q8_0"),
    ] {
        let case = Case::new(model, name);
        let all = case.disguised(|index| ALL[index % ALL.len()]);
        let identified = case.identified(&all);
        let dump = read_back(&case, &all, &identified);
        let mut read = 0;
        for (one, array) in all.iter().zip(&identified) {
            let site = array.places[0].site;
            // What two arrays may be, one of them is.
            if whence(&dump, site) != one.name {
                let holder = whence(&dump, site);
                let other =
                    identified.iter().find(|other| other.name == holder).expect("an array of the file");
                assert!(other.places[0].site == site && other.places[0].rel_l2 <= array.places[0].rel_l2);
                continue;
            }
            read += 1;
            let (told, original) = (view(&dump, site), view(&case.dump, one.site));
            assert_eq!(told.shape(), original.shape(), "{model}: {} as {site}", one.site);
            let stored = |value: f64| match one.stored.dtype {
                DType::F16 => half::f16::from_f64(value).to_f64(),
                _ => f64::from(value as f32),
            };
            let expected: Vec<f64> = original.to_vec().into_iter().map(stored).collect();
            assert_eq!(told.to_vec(), expected, "{model}: {} as {site}", one.site);
        }
        assert!(read * 10 >= all.len() * 9, "{model}: {read} of {}", all.len());
    }
}

/// In which way projections, or gate and up, are one array.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fusion {
    Beside,
    ByHead,
    InTurn,
}

impl Case {
    /// Taps of a layer as one array: the parts of a row as they lie in it.
    fn fused(&self, points: &[Point], layer: usize, fusion: Fusion) -> Disguised {
        let tokens = self.tokens.len();
        let site = |point| Site { point, layer: Some(layer), pass: Some(0) };
        let parts: Vec<Vec<f64>> =
            points.iter().map(|&point| view(&self.dump, site(point)).to_vec()).collect();
        // How many pieces a row of each is cut into, which are then dealt out.
        let pieces = match fusion {
            Fusion::Beside => 1,
            Fusion::ByHead => self.loaded.model.dimensions().kv_heads(),
            Fusion::InTurn => parts[0].len() / tokens,
        };
        let mut values = Vec::new();
        for piece in 0..tokens * pieces {
            for part in &parts {
                let length = part.len() / tokens / pieces;
                values.extend_from_slice(&part[piece * length..(piece + 1) * length]);
            }
        }
        Disguised {
            name: format!("x{layer}{}", points[0]),
            site: site(points[0]),
            stored: stored(&[1, tokens, values.len() / tokens], &values),
        }
    }
}

#[test]
fn fused_qkv_projections_are_split_and_read_back() {
    for (model, name) in [
        ("tiny-qwen3", "transformers-f32"),
        ("tiny-gpt2", "transformers-f32"),
        ("tiny-llama3", "llama.cpp-f32"),
    ] {
        let case = Case::new(model, name);
        for (of_heads, of_halves) in [(Fusion::Beside, Fusion::Beside), (Fusion::ByHead, Fusion::InTurn)] {
            let projections = [Point::Q, Point::K, Point::V];
            let halves = match of_halves {
                Fusion::Beside => [Point::FfnUp, Point::FfnGate],
                _ => [Point::FfnGate, Point::FfnUp],
            };
            let mut all: Vec<Disguised> =
                (0..2).map(|layer| case.fused(&projections, layer, of_heads)).collect();
            if model != "tiny-gpt2" {
                all.extend((0..2).map(|layer| case.fused(&halves, layer, of_halves)));
            }
            let identified = case.identified(&all);
            let dump = read_back(&case, &all, &identified);
            for (one, array) in all.iter().zip(&identified) {
                let taps: Vec<Point> = array.places.iter().map(|place| place.site.point).collect();
                let expected = if one.site.point == Point::Q { &projections[..] } else { &halves };
                assert_eq!(taps, expected, "{model}: {} {of_heads:?}", one.name);
                for site in array.places.iter().map(|place| place.site) {
                    assert_eq!(site.layer, one.site.layer, "{model}: {}", one.name);
                    let (told, original) = (view(&dump, site), view(&case.dump, site));
                    assert_eq!(told.shape(), original.shape(), "{model}: {site}");
                    assert_eq!(told.to_vec(), original.to_vec(), "{model}: {site} {of_heads:?}");
                }
            }
        }
    }
}

#[test]
fn what_two_arrays_may_be_is_written_of_one() {
    let case = Case::new("tiny-qwen3", "transformers-f32");
    let mut all = case.disguised(|_| Disguise::Plain);
    let of = |point: Point, layer: usize| {
        let site = Site { point, layer: Some(layer), pass: Some(0) };
        (site, view(&case.dump, site))
    };
    // The last row of what is there whole, other rows of it, the same in f64, and projections that are there, too.
    let (site, whole) = of(Point::BlockOut, 1);
    let last = whole.clone().slice(0, case.tokens.len() - 1..case.tokens.len());
    let other = |name: &str, stored| Disguised { name: name.to_owned(), site, stored };
    let f64s = whole.to_vec().iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let wide = StoredTensor { dtype: DType::F64, shape: whole.shape().to_vec(), data: f64s.into() };
    let more = [
        other("last", stored(last.shape(), &last.to_vec())),
        other("wide", wide),
        case.fused(&[Point::Q, Point::K, Point::V], 0, Fusion::Beside),
    ];
    all.splice(0..0, more);
    // Rows of a place that is nowhere else, with heads first.
    let (rows_of, queries) = of(Point::QNorm, 2);
    all.retain(|one| one.site != rows_of);
    let rows = queries.slice(0, 1..3).permuted(&[1, 0, 2]);
    all.push(Disguised { name: "rows".into(), site: rows_of, stored: stored(rows.shape(), &rows.to_vec()) });
    let identified = case.identified(&all);
    let told = |name: &str| &identified.iter().find(|one| one.name == name).expect("it is there").places;
    assert_eq!(told("last")[0].rows, Some((case.tokens.len() - 1, 1)));
    assert_eq!(told("x0q").len(), 3, "{:?}", told("x0q"));
    let dump = read_back(&case, &all, &identified);
    for place in places(&case.dump, 0).into_iter().filter(|site| dump.holds(*site) && *site != rows_of) {
        assert_eq!(view(&dump, place).shape(), view(&case.dump, place).shape(), "{place}");
    }
    assert!(dump.holds(site) && dump.holds(Site { point: Point::Q, layer: Some(0), pass: Some(0) }));
    assert_eq!(dump.held_rows(rows_of), Some([1, 2].as_slice()));
}

#[test]
fn noise_is_told_as_nothing() {
    let mut state = 7u64;
    let mut noise = || {
        let mut sum = 0.0;
        for _ in 0..12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (state >> 40) as f64 / (1u64 << 24) as f64;
        }
        sum - 6.0
    };
    let mut dumps = dumps();
    dumps.dedup_by_key(|(model, _)| model.clone());
    for (model, name) in one_of(2, dumps) {
        let case = Case::new(&model, &name);
        let mut all = case.disguised(|_| Disguise::Plain);
        for one in &mut all {
            let values: Vec<f64> = (0..one.stored.elements()).map(|_| noise()).collect();
            one.stored = stored(&one.stored.shape.clone(), &values);
        }
        let identified = case.identified(&all);
        let told = identified.iter().filter(|one| one.is_told()).map(|one| format!("{:?}", one.places));
        assert_eq!(told.collect::<Vec<_>>(), Vec::<String>::new(), "{model}");
    }
}

#[test]
fn zeros_and_nan_are_told_as_nothing() {
    let case = Case::new("tiny-qwen3", "transformers-f32");
    let mut all = case.disguised(|_| Disguise::Plain);
    for (index, one) in all.iter_mut().enumerate() {
        let value = if index % 2 == 0 { 0.0 } else { f64::NAN };
        one.stored = stored(&one.stored.shape.clone(), &vec![value; one.stored.elements()]);
    }
    assert!(case.identified(&all).iter().all(|one| !one.is_told() && one.because.is_some()));
}

#[test]
fn an_array_of_another_layer_than_its_name_says_is_told_as_that_layers() {
    let case = Case::new("tiny-qwen3", "transformers-f32");
    let mut all = case.disguised(|_| Disguise::Plain);
    for one in &mut all {
        one.name = format!("layers.{}.{}", (one.site.layer.unwrap_or(0) + 1) % 3, one.name);
    }
    assert_told("names of other layers", &all, &case.identified(&all));
}

#[test]
fn values_times_a_number_are_told_with_the_number() {
    let case = Case::new("tiny-qwen3", "transformers-f32");
    let mut all = case.disguised(|_| Disguise::Plain);
    let is_scores = |one: &Disguised| one.site.point == Point::AttnScores;
    all.iter_mut().filter(|one| is_scores(one)).for_each(|one| {
        let values: Vec<f64> = view(&case.dump, one.site).to_vec().iter().map(|value| value * 5.5).collect();
        one.stored = stored(&one.stored.shape.clone(), &values);
    });
    for (one, array) in all.iter().zip(case.identified(&all)).filter(|(one, _)| is_scores(one)) {
        assert!(
            is_right(&array, one.site) && (array.places[0].scale - 5.5).abs() < 1e-3,
            "{:?}",
            array.places
        );
    }
}

/// What engines multiply with is undone by the map that is written; what a fault may be is not.
#[test]
fn a_map_takes_no_factor_away_that_no_engine_means() {
    let case = Case::new("tiny-qwen3", "transformers-f32");
    let head_dim = case.loaded.model.dimensions().head_dim as f64;
    for (factor, is_meant) in [(head_dim.sqrt(), true), (8.0, true), (1.05, false), (5.5, false)] {
        let mut all = case.disguised(|_| Disguise::Plain);
        let is_scores = |one: &Disguised| one.site.point == Point::AttnScores;
        all.iter_mut().filter(|one| is_scores(one)).for_each(|one| {
            let values: Vec<f64> =
                view(&case.dump, one.site).to_vec().iter().map(|value| value * factor).collect();
            one.stored = stored(&one.stored.shape.clone(), &values);
        });
        let written = map_of(&case.identified(&all), &case.tokens, &*case.loaded.model);
        let map = toml::to_string(&written).expect("plain data");
        assert_eq!(map.contains("scale = "), is_meant, "{factor}\n{map}");
    }
}

#[test]
fn decoding_passes_are_told_by_their_positions() {
    let mut case = Case::new("tiny-qwen3", "transformers-f32");
    case.tokens = case.dump.manifest.passes.iter().flat_map(|pass| pass.tokens.clone()).collect();
    let points = [Point::AttnNorm, Point::Q, Point::V, Point::FfnGate, Point::BlockOut];
    let mut all = Vec::new();
    for (index, pass) in case.dump.manifest.passes.iter().enumerate() {
        for site in places(&case.dump, index).into_iter().filter(|site| points.contains(&site.point)) {
            let name = format!("s{index}.{}.{}", site.layer.unwrap_or(9), site.point);
            let of_run = Site { pass: Some(0), ..site };
            all.push((
                pass.position,
                Disguised { name, site: of_run, stored: disguised(view(&case.dump, site), Disguise::Batch) },
            ));
        }
    }
    let (positions, all): (Vec<usize>, Vec<Disguised>) = all.into_iter().unzip();
    let identified = case.identified(&all);
    assert_told("decoding", &all, &identified);
    for (position, array) in positions.iter().zip(&identified) {
        assert_eq!(array.places[0].rows.expect("some rows").0, *position, "{}", array.name);
    }
    let read = read_back(&case, &all, &identified);
    assert_eq!(read.manifest.passes.len(), case.dump.manifest.passes.len());
}

#[test]
fn an_engine_with_a_bug_is_told_all_the_same() {
    let terminal = Terminal::new();
    let tokens = "1,5,9,12,3,7,20,33";
    for suppose in ["rope_theta=100", "activation=gelu", "attn_scale=1", "gqa_mapping=0,1,0,1"] {
        let out = format!("{}.safetensors", suppose.replace('=', "-"));
        let made = terminal.run(&[
            "dump",
            "--model",
            "tiny-qwen3",
            "--tokens",
            tokens,
            "--decode",
            "0",
            "--suppose",
            suppose,
            "--out",
            &out,
        ]);
        assert_eq!(made.code, 0, "{suppose}: {}", made.stderr);
        let mut case = Case::new("tiny-qwen3", "transformers-f32");
        case.dump = Dump::open(&terminal.path().join(&out)).expect("it was written");
        case.tokens = case.dump.manifest.passes[0].tokens.clone();
        let all = case.disguised(|_| Disguise::Plain);
        let identified = case.identified(&all);
        let right = all.iter().zip(&identified).filter(|(one, array)| is_right(array, one.site)).count();
        let false_ones: Vec<String> = all
            .iter()
            .zip(&identified)
            .filter(|(one, array)| !array.places.is_empty() && !is_right(array, one.site))
            .map(|(one, array)| format!("{} as {}", one.site, array.places[0].site))
            .collect();
        assert!(right * 10 >= all.len() * 9, "{suppose}: {right} of {}", all.len());
        assert!(false_ones.is_empty(), "{suppose}: {false_ones:?}");
    }
}

// ---- what is not certain --------------------------------------------------------------------------------

/// The rows of a tap, each divided by its root mean square: a norm before its gain.
fn normed(case: &Case, site: Site) -> StoredTensor {
    let view = view(&case.dump, site);
    let (shape, mut values) = (view.shape().to_vec(), view.to_vec());
    for row in values.chunks_mut(shape[shape.len() - 1]) {
        let rms = (row.iter().map(|value| value * value).sum::<f64>() / row.len() as f64 + 1e-6).sqrt();
        row.iter_mut().for_each(|value| *value /= rms);
    }
    stored(&shape, &values)
}

fn edited(case: &Case, site: Site, change: impl FnMut((usize, f64)) -> f64) -> StoredTensor {
    let view = view(&case.dump, site);
    let values: Vec<f64> = view.to_vec().into_iter().enumerate().map(change).collect();
    stored(view.shape(), &values)
}

/// None of some arrays is told for certain, neither by itself nor among right ones, which still are.
fn assert_uncertain(case: &Case, what: &str, uncertain: Vec<Disguised>) {
    let identified = case.identified(&uncertain);
    for array in &identified {
        assert!(!array.is_told(), "{what}: {} alone is told: {:?}", array.name, array.places);
    }
    let map = toml::to_string(&map_of(&identified, &case.tokens, &*case.loaded.model)).expect("plain data");
    assert!(!map.contains("[[rule]]"), "{what}: {map}");
    // Among the others: nothing else has these places.
    let is_changed = |site: Site| uncertain.iter().any(|one| one.site == site);
    let mut all = case.disguised(|_| Disguise::Plain);
    all.retain(|one| !is_changed(one.site));
    let count = all.len();
    all.extend(uncertain);
    let identified = case.identified(&all);
    for array in &identified[count..] {
        assert!(!array.is_told(), "{what}: {} is told: {:?}", array.name, array.places);
    }
    assert_told(what, &all[..count], &identified[..count]);
}

fn of_layer(point: Point, layer: usize) -> Site {
    Site { point, layer: Some(layer), pass: Some(0) }
}

const EMBED: Site = Site { point: Point::Embed, layer: None, pass: Some(0) };

#[test]
fn a_norm_before_its_gain_is_told_as_nothing_for_certain() {
    for (model, name) in [("tiny-llama2", "transformers-f32"), ("tiny-qwen3", "transformers-f32")] {
        let case = Case::new(model, name);
        let of_norm = [
            (EMBED, of_layer(Point::AttnNorm, 0)),
            (of_layer(Point::AttnResidual, 0), of_layer(Point::FfnNorm, 0)),
            (of_layer(Point::BlockOut, 0), of_layer(Point::AttnNorm, 1)),
            (of_layer(Point::AttnResidual, 2), of_layer(Point::FfnNorm, 2)),
        ];
        let rows = |(from, site): (Site, Site)| Disguised {
            name: format!("Multiply_{}", site.layer.unwrap_or(9)) + site.point.name(),
            site,
            stored: normed(&case, from),
        };
        assert_uncertain(&case, model, of_norm.into_iter().map(rows).collect());
    }
}

#[test]
fn scaled_and_shifted_copies_are_told_as_nothing_for_certain() {
    let case = Case::new("tiny-qwen3", "transformers-f32");
    let sites = [
        EMBED,
        of_layer(Point::Q, 0),
        of_layer(Point::AttnOut, 1),
        of_layer(Point::FfnUp, 2),
        of_layer(Point::BlockOut, 1),
    ];
    for (site, change) in one_of(3, pairs(sites, 0..6)) {
        let values = view(&case.dump, site).to_vec();
        let rms = (values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64).sqrt();
        let width = *view(&case.dump, site).shape().last().expect("an axis");
        type Change = Box<dyn Fn((usize, f64)) -> f64>;
        let changes: [(&str, Change); 6] = [
            ("times 1.01", Box::new(|(_, value)| value * 1.01)),
            ("times 1.3", Box::new(|(_, value)| value * 1.3)),
            ("times 19.38", Box::new(|(_, value)| value * 19.38)),
            ("a little more", Box::new(move |(_, value)| value + 0.02 * rms)),
            (
                "more in each channel",
                Box::new(move |(at, value)| value + 0.02 * rms * ((at % width) as f64).sin()),
            ),
            (
                "a factor for each row",
                Box::new(move |(at, value)| value * (1.0 + 0.03 * ((at / width) as f64).cos())),
            ),
        ];
        let (what, change) = &changes[change];
        let array = Disguised { name: "x".into(), site, stored: edited(&case, site, change) };
        assert_uncertain(&case, &format!("{site} {what}"), vec![array]);
    }
}

#[test]
fn what_is_between_two_layers_is_told_as_neither() {
    let case = Case::new("tiny-llama2", "transformers-f32");
    for (layer, share) in [(0, 0.5), (1, 0.3), (2, 0.9)] {
        let next = view(&case.dump, of_layer(Point::BlockOut, layer + 1)).to_vec();
        let site = of_layer(Point::BlockOut, layer);
        let between = edited(&case, site, |(at, value)| share * value + (1.0 - share) * next[at]);
        assert_uncertain(
            &case,
            &format!("layer {layer}"),
            vec![Disguised { name: "x".into(), site, stored: between }],
        );
    }
}

#[test]
fn copies_beside_the_tap_itself_are_told_as_nothing_for_certain() {
    let case = Case::new("tiny-qwen3", "transformers-f32");
    let mut all = case.disguised(|_| Disguise::Plain);
    let site = of_layer(Point::AttnOut, 1);
    let count = all.len();
    for (name, factor) in [("twice", 2.0), ("more", 1.2), ("near", 1.015)] {
        let stored = edited(&case, site, |(_, value)| value * factor);
        all.push(Disguised { name: name.into(), site, stored });
    }
    let identified = case.identified(&all);
    assert_told("the others", &all[..count], &identified[..count]);
    for array in &identified[count..] {
        assert!(!array.is_told(), "{}: {:?}", array.name, array.places);
    }
}

/// In bf16, in another order of axes, and times the square root of the hidden size, an array is what it was.
#[test]
fn right_arrays_are_told_for_certain_however_they_are_stored() {
    let case = Case::new("tiny-gemma3", "transformers-f32");
    let root = (case.loaded.model.dimensions().hidden_size as f64).sqrt();
    let mut all = case.disguised(|index| ALL[index % ALL.len()]);
    // Of logits that are stored in bf16 the probabilities are others than the file's, by more than rounding.
    all.retain(|one| one.site.point != Point::Probs);
    let short = |mut one: Disguised| {
        let values = view(&case.dump, one.site).to_vec();
        let factor = if one.site == EMBED { 1.0 / root } else { 1.0 };
        if one.stored.dtype == DType::F32 || factor != 1.0 {
            let bits = values.iter().flat_map(|value| half::bf16::from_f64(value * factor).to_le_bytes());
            let shape = view(&case.dump, one.site).shape().to_vec();
            one.stored = StoredTensor { dtype: DType::BF16, shape, data: bits.collect::<Vec<u8>>().into() };
        }
        one
    };
    let all: Vec<Disguised> = all.into_iter().map(short).collect();
    assert_told("bf16", &all, &case.identified(&all));
}

#[test]
fn a_best_guess_is_written_as_a_comment() {
    let terminal = Terminal::new();
    let case = Case::new("tiny-llama2", "transformers-f32");
    let site = of_layer(Point::AttnNorm, 1);
    let tap = of_layer(Point::AttnOut, 0);
    let arrays = [
        ("right", disguised(view(&case.dump, tap), Disguise::Plain)),
        ("guess", normed(&case, of_layer(Point::BlockOut, 0))),
    ];
    let tensors = arrays.iter().map(|(name, stored)| {
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, stored.shape.clone(), &stored.data);
        (*name, view.expect("it fits"))
    });
    let file = terminal.path().join("hooked.safetensors");
    fs::write(&file, safetensors::serialize(tensors, None).expect("plain data")).expect("it is written");
    let tokens = case.tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let words = [
        "identify",
        "hooked.safetensors",
        "--model",
        "tiny-llama2",
        "--tokens",
        &tokens,
        "--map-out",
        "m.toml",
    ];
    let finished = terminal.run(&words);
    assert_eq!(finished.code, 3, "{}", finished.stderr);
    assert!(finished.stdout.contains("1 of 2 arrays identified"), "{}", finished.stdout);
    let map = fs::read_to_string(terminal.path().join("m.toml")).expect("it was written");
    let rules: Vec<&str> = map.lines().filter(|line| line.starts_with("name = ")).collect();
    assert_eq!(rules, ["name = \"right\""], "{map}");
    if finished.stdout.contains("best guess") {
        assert!(map.contains("# name = \"guess\""), "{site}: {map}");
    }
    NameMap::of_text("written", &map).expect("it is a map");
}

#[test]
fn our_own_run_is_told_to_the_bit() {
    let case = Case::new("tiny-llama2", "transformers-f32");
    let terminal = Terminal::new();
    let path = terminal.path().join("own");
    record(&*case.loaded.model, &F32, &RunInput::greedy(&case.tokens, 0), &path);
    let own = Case { dump: Dump::open(&path).expect("it was written"), numerics: Box::new(F32), ..case };
    let all = own.disguised(|_| Disguise::Plain);
    assert!(own.identified(&all).iter().all(|one| one.places[0].rel_l2 == 0.0));
}
