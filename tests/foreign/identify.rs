//! What an array is, is told by its values, whatever it is called and however it is stored.

use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;
use xcheck::engine::Script;
use xcheck::identify::{Finding, identify, map_of};
use xcheck::map::{Known, Map};
use xcheck::model::LoadedModel;
use xcheck::numerics::{F32, Numerics};

use crate::common::terminal::Terminal;
use crate::common::{counterpart, record, reference_of};
use crate::disguised::{ALL, Disguise, Disguised, arrays, disguised, places, stored, view};

/// A dump of each shipped model.
const DUMPS: [(&str, &str); 9] = [
    ("tiny-llama2", "transformers-f32"),
    ("tiny-llama2c", "llama2.c-v0"),
    ("tiny-llama3", "transformers-bf16"),
    ("tiny-qwen3", "transformers-f32"),
    ("tiny-gemma3", "llama.cpp-q8_0"),
    ("tiny-gemma3-vision", "transformers-f32"),
    ("tiny-gpt2", "llama.cpp-f16"),
    ("tiny-bitnet", "bitnet.cpp-f32kv"),
    ("tiny-bitnet-b158", "bitnet.cpp-f16kv"),
];

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

    fn findings(&self, all: &[Disguised]) -> Vec<Finding> {
        identify(&arrays(all), &self.tokens, &*self.loaded.model, &*self.numerics).expect("it runs")
    }
}

/// Whether an array is named as what it is, or as what has the same values, and that is listed.
fn is_right(finding: &Finding, site: Site) -> bool {
    let [place] = finding.places.as_slice() else { return false };
    place.site == site || place.others.contains(&site)
}

fn assert_told(what: &str, all: &[Disguised], findings: &[Finding]) {
    let wrong: Vec<String> = all
        .iter()
        .zip(findings)
        .filter(|(one, finding)| !is_right(finding, one.site))
        .map(|(one, finding)| {
            let named: Vec<String> =
                finding.places.iter().map(|place| format!("{} {:.1e}", place.site, place.rel_l2)).collect();
            let near =
                finding.nearest.as_ref().map(|place| format!("nearest {} {:.1e}", place.site, place.rel_l2));
            format!("{} {:?} is told as {named:?} {near:?}", one.site, finding.shape)
        })
        .collect();
    assert!(wrong.is_empty(), "{what}: {} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
fn every_tap_of_every_model_is_told_without_its_name() {
    for (model, name) in DUMPS {
        let case = Case::new(model, name);
        let all = case.disguised(|index| ALL[index % ALL.len()]);
        assert_told(&format!("{model}/{name}"), &all, &case.findings(&all));
    }
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
        let findings = case.findings(&all);
        let map = toml::to_string(&map_of(&findings, &case.tokens, &*case.loaded.model)).expect("plain data");
        let read = Map::of_text("written", &map).expect("it is a map").read(&arrays(&all), &Known::default());
        let dump = read.unwrap_or_else(|error| panic!("{model}: {error}\n{map}")).dump;
        for (one, finding) in all.iter().zip(&findings) {
            let (told, original) = (view(&dump, finding.places[0].site), view(&case.dump, one.site));
            let pairs = told.to_vec().into_iter().zip(original.to_vec());
            let furthest = pairs.map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(0.0, f64::max);
            // Places that are told for one another are as near as rounding brings them.
            assert!(furthest < 1e-2, "{model}: {} as {}", one.site, finding.places[0].site);
        }
    }
}

#[test]
fn fused_projections_are_taken_apart() {
    for (model, name) in [
        ("tiny-qwen3", "transformers-f32"),
        ("tiny-gpt2", "transformers-f32"),
        ("tiny-llama3", "llama.cpp-f32"),
    ] {
        let case = Case::new(model, name);
        let tokens = case.tokens.len();
        let beside = |points: &[Point], layer: usize| {
            let site = |point| Site { point, layer: Some(layer), pass: Some(0) };
            let parts: Vec<Vec<f64>> =
                points.iter().map(|&point| view(&case.dump, site(point)).to_vec()).collect();
            let row = |token: usize| {
                parts.iter().flat_map(move |part| {
                    part.chunks(part.len() / tokens).nth(token).expect("a row").to_vec()
                })
            };
            let values: Vec<f64> = (0..tokens).flat_map(row).collect();
            Disguised {
                name: format!("x{layer}{}", points[0]),
                site: site(points[0]),
                stored: stored(&[1, tokens, values.len() / tokens], &values),
            }
        };
        let mut all: Vec<Disguised> =
            (0..2).map(|layer| beside(&[Point::Q, Point::K, Point::V], layer)).collect();
        if model != "tiny-gpt2" {
            all.extend((0..2).map(|layer| beside(&[Point::FfnUp, Point::FfnGate], layer)));
        }
        for (one, finding) in all.iter().zip(case.findings(&all)) {
            let taps: Vec<Point> = finding.places.iter().map(|place| place.site.point).collect();
            let expected = match one.site.point {
                Point::Q => vec![Point::Q, Point::K, Point::V],
                _ => vec![Point::FfnUp, Point::FfnGate],
            };
            assert_eq!(taps, expected, "{model}: {}", one.name);
            assert!(
                finding.places.iter().all(|place| place.site.layer == one.site.layer),
                "{model}: {}",
                one.name
            );
        }
    }
}

#[test]
fn noise_is_told_as_nothing() {
    let case = Case::new("tiny-qwen3", "transformers-f32");
    let mut state = 7u64;
    let mut noise = || {
        let mut sum = 0.0;
        for _ in 0..12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (state >> 40) as f64 / (1u64 << 24) as f64;
        }
        sum - 6.0
    };
    let mut all = case.disguised(|_| Disguise::Plain);
    for one in &mut all {
        let values: Vec<f64> = (0..one.stored.elements()).map(|_| noise()).collect();
        one.stored = stored(&one.stored.shape.clone(), &values);
    }
    let told: Vec<String> = case
        .findings(&all)
        .iter()
        .filter(|one| one.is_told())
        .map(|one| format!("{:?}", one.places))
        .collect();
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn zeros_and_nan_are_told_as_nothing() {
    let case = Case::new("tiny-qwen3", "transformers-f32");
    let mut all = case.disguised(|_| Disguise::Plain);
    for (index, one) in all.iter_mut().enumerate() {
        let value = if index % 2 == 0 { 0.0 } else { f64::NAN };
        one.stored = stored(&one.stored.shape.clone(), &vec![value; one.stored.elements()]);
    }
    assert!(case.findings(&all).iter().all(|one| !one.is_told() && one.because.is_some()));
}

#[test]
fn an_array_of_another_layer_than_its_name_says_is_told_as_that_layers() {
    let case = Case::new("tiny-qwen3", "transformers-f32");
    let mut all = case.disguised(|_| Disguise::Plain);
    for one in &mut all {
        one.name = format!("layers.{}.{}", (one.site.layer.unwrap_or(0) + 1) % 3, one.name);
    }
    assert_told("names of other layers", &all, &case.findings(&all));
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
    for (one, finding) in all.iter().zip(case.findings(&all)).filter(|(one, _)| is_scores(one)) {
        assert!(
            is_right(&finding, one.site) && (finding.places[0].scale - 5.5).abs() < 1e-3,
            "{:?}",
            finding.places
        );
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
    let findings = case.findings(&all);
    assert_told("decoding", &all, &findings);
    for (position, finding) in positions.iter().zip(&findings) {
        assert_eq!(finding.places[0].rows.expect("some rows").0, *position, "{}", finding.name);
    }
    let map = toml::to_string(&map_of(&findings, &case.tokens, &*case.loaded.model)).expect("plain data");
    let read = Map::of_text("written", &map)
        .expect("a map")
        .read(&arrays(&all), &Known::default())
        .expect("it is read");
    assert_eq!(read.dump.manifest.passes.len(), case.dump.manifest.passes.len(), "{map}");
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
        let findings = case.findings(&all);
        let right = all.iter().zip(&findings).filter(|(one, finding)| is_right(finding, one.site)).count();
        let false_ones: Vec<String> = all
            .iter()
            .zip(&findings)
            .filter(|(one, finding)| !finding.places.is_empty() && !is_right(finding, one.site))
            .map(|(one, finding)| format!("{} as {}", one.site, finding.places[0].site))
            .collect();
        assert!(right * 10 >= all.len() * 9, "{suppose}: {right} of {}", all.len());
        assert!(false_ones.is_empty(), "{suppose}: {false_ones:?}");
    }
}

#[test]
fn our_own_run_is_told_to_the_bit() {
    let case = Case::new("tiny-llama2", "transformers-f32");
    let terminal = Terminal::new();
    let path = terminal.path().join("own");
    record(&*case.loaded.model, &F32, &Script::greedy(&case.tokens, 0), &path);
    let own = Case { dump: Dump::open(&path).expect("it was written"), numerics: Box::new(F32), ..case };
    let all = own.disguised(|_| Disguise::Plain);
    assert!(own.findings(&all).iter().all(|one| one.places[0].rel_l2 == 0.0));
}
