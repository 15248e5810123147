//! Sketches: twelve numbers a token, against numpy's, in runs, and against each other.

use std::path::{Path, PathBuf};

use xcheck::align::Selection;
use xcheck::check::{Mode, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::{cross_check, cross_check_dumps};
use xcheck::dump::sketch::sketched;
use xcheck::dump::{ArrayValues, Dump};
use xcheck::measure::sketch::WIDTH;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, SiteResult, Verdict};
use xcheck::view::View;

use crate::common::{counterpart, reference_of, rules};

/// What `sketch_dump.py` has made of shipped dumps.
const SKETCHES: [(&str, &str); 3] = [
    ("tiny-llama2", "transformers-f32"),
    ("tiny-llama2", "llama.cpp-q8_0"),
    ("tiny-qwen3", "transformers-bf16"),
];

fn path(model: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/sketches/{model}-{name}.safetensors"))
}

fn sketch(model: &str, name: &str) -> Dump {
    Dump::open(&path(model, name)).expect("it is sound")
}

fn run(model: &str, dump: &Dump, fault: &mut dyn Tap) -> Outcome {
    run_in(Mode::Both, model, dump, fault)
}

fn run_in(mode: Mode, model: &str, dump: &Dump, fault: &mut dyn Tap) -> Outcome {
    let (loaded, numerics) = counterpart(model, dump);
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let precision = dump.manifest.producer.precision().unwrap_or(loaded.precision.name());
    let rules = rules(&selection, &tolerances, precision, mode);
    cross_check("sketch", &*loaded.model, &*numerics, dump, rules, fault).expect("the two can be compared")
}

fn compare(candidate: &Dump, reference: &Dump) -> Outcome {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let precision = reference.manifest.producer.precision().unwrap_or("f32");
    let rules = rules(&selection, &tolerances, precision, Mode::Both);
    cross_check_dumps("sketch", candidate, reference, rules).expect("the two can be compared")
}

/// Moves the values of a tap of a layer from there on, each a little.
struct Off(Point, usize, f32);

impl Tap for Off {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let Off(point, layer, by) = *self;
        let here = site.point == point && site.layer == Some(layer);
        if here { value.map(|value| value * (1.0 + by)) } else { value }
    }
}

#[test]
fn sketches_are_those_that_numpy_makes() {
    for (model, name) in SKETCHES {
        let (sketches, values) = (sketch(model, name), reference_of(model, name));
        let mut compared = 0;
        for site in sketches.sites().filter(|&site| sketches.sketches(site)) {
            let numpys = sketches.sketch(site).expect("sound").expect("there").to_vec();
            let view = values.view(site).expect("sound").expect("there");
            let ours = sketched(site.point, &view).to_vec();
            for (row, (ours, numpys)) in ours.chunks(WIDTH).zip(numpys.chunks(WIDTH)).enumerate() {
                assert_eq!(ours[0], numpys[0], "{site}, row {row}: the checksum");
                for (ours, numpys) in ours.iter().zip(numpys) {
                    approx::assert_relative_eq!(ours, numpys, max_relative = 1e-9, epsilon = 1e-9);
                }
                compared += 1;
            }
        }
        assert!(compared > 100, "{model}: {compared} rows");
    }
}

#[test]
fn a_run_passes_the_sketch_of_its_reference_in_every_precision() {
    for (model, name) in SKETCHES {
        let outcome = run(model, &sketch(model, name), &mut ());
        assert_eq!(outcome.verdict, Verdict::Pass, "{name}: {:?}", outcome.reason);
        assert!(outcome.notes.iter().any(|note| note.contains("are sketches")), "{:?}", outcome.notes);
        let identical = outcome.coverage.taps_identical == outcome.coverage.taps_compared;
        assert_eq!(identical, name.starts_with("llama.cpp"), "{name}: equal checksums are equal bits");
    }
}

#[test]
fn the_layer_that_is_off_is_the_first_that_fails() {
    for (model, name) in SKETCHES {
        // Where activations have eight bits, rounding from the tokens on comes to some hundredths.
        let by = if name.ends_with("f32") { 1e-3 } else { 0.5 };
        for layer in [1, 2] {
            let outcome = run(model, &sketch(model, name), &mut Off(Point::FfnOut, layer, by));
            assert_eq!(outcome.verdict, Verdict::Fail, "{name}, layer {layer}");
            let first = outcome.first_divergence().map(|row| (row.site.point, row.site.layer));
            assert_eq!(first, Some((Point::FfnOut, Some(layer))), "{name}");
        }
    }
}

#[test]
fn a_sketch_is_compared_with_the_values_that_it_was_made_of() {
    for (model, name) in SKETCHES {
        for (candidate, reference) in [
            (sketch(model, name), reference_of(model, name)),
            (reference_of(model, name), sketch(model, name)),
        ] {
            let outcome = compare(&candidate, &reference);
            let sketches = |row: &&SiteResult| candidate.sketches(row.site) || reference.sketches(row.site);
            assert!(outcome.rows.iter().filter(sketches).count() > 20);
            assert!(
                outcome.rows.iter().all(|row| row.verdict == Verdict::Pass),
                "{name}: {:?}",
                outcome.reason
            );
        }
    }
}

#[test]
fn of_two_sketches_that_differ_by_little_it_is_not_said_that_they_pass() {
    let [(model, f32), (_, q8), _] = SKETCHES;
    let of = |outcome: Outcome, wanted| outcome.rows.iter().filter(|row| row.verdict == wanted).count();
    // The same model in Q8_0 is far from f32.
    assert!(of(compare(&sketch(model, q8), &sketch(model, f32)), Verdict::Fail) > 10);
    let honest = compare(&sketch(model, f32), &reference_of(model, "llama.cpp-f32"));
    assert_eq!(of(honest, Verdict::Fail), 0);
    let honest = compare(&sketch(model, f32), &reference_of(model, "llama.cpp-f32"));
    assert!(of(honest, Verdict::Inconclusive) > 10);
}

#[test]
fn one_bit_of_one_value_is_another_checksum() {
    let dump = reference_of("tiny-llama2", "transformers-f32");
    let site = Site { point: Point::BlockOut, layer: Some(0), pass: Some(0) };
    let ArrayValues { shape, mut data } = dump.read(site).expect("sound").expect("there");
    let before = sketched(site.point, &View::of(&shape, &data)).to_vec();
    data[7] = f64::from(f32::from_bits((data[7] as f32).to_bits() ^ 1));
    let after = sketched(site.point, &View::of(&shape, &data)).to_vec();
    let rows = |sketch: &[f64]| sketch.chunks(WIDTH).map(|row| row[0]).collect::<Vec<_>>();
    let differing: Vec<usize> = rows(&before)
        .iter()
        .zip(rows(&after))
        .enumerate()
        .filter(|(_, (a, b))| *a != b)
        .map(|(row, _)| row)
        .collect();
    assert_eq!(differing, [0], "and of no other token");
}

#[test]
fn a_sketch_that_is_cut_short_or_of_ids_is_refused() {
    let bytes = std::fs::read(path("tiny-llama2", "transformers-f32")).expect("it is there");
    let changed = |from: &str, to: &str| {
        let text = |text: &str| text.as_bytes().to_vec();
        assert_eq!(from.len(), to.len(), "the header keeps its length");
        let (from, to) = (text(from), text(to));
        let mut bytes = bytes.clone();
        let at = bytes.windows(from.len()).position(|window| window == from).expect("it is in the header");
        bytes[at..at + to.len()].copy_from_slice(&to);
        let source = xcheck::format::FileBytes { path: "changed.safetensors".into(), data: bytes.into() };
        Dump::from_source(source).and_then(|dump| run_all(&dump)).expect_err("it is refused").to_string()
    };
    fn run_all(dump: &Dump) -> xcheck::Result<()> {
        dump.sites().try_for_each(|site| dump.sketch(site).map(drop))
    }
    let problem = changed(r#"\"tap\": \"embed\""#, r#"\"tap\":\"argmax\""#);
    assert!(problem.contains("cannot be used with token ids"), "{problem}");
}

#[test]
fn our_own_engine_writes_sketches_into_a_file_that_others_read() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["sketch.safetensors", "sketch"] {
        let out = folder.path().join(name);
        let words =
            ["dump", "--model", "tiny-llama2", "--tokens", "1,15,27", "--decode", "2", "--sketch", "--out"];
        let command = &mut std::process::Command::new(env!("CARGO_BIN_EXE_xcheck"));
        let output = command.args(words).arg(&out).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let dump = Dump::open(&out).expect("it is sound");
        let outcome = run("tiny-llama2", &dump, &mut ());
        assert_eq!((outcome.verdict, dump.points().contains(&Point::AttnScores)), (Verdict::Pass, false));
        let outcome = run("tiny-llama2", &dump, &mut Off(Point::AttnOut, 1, 1e-3));
        let first = outcome.first_divergence().map(|row| (row.site.point, row.site.layer));
        assert_eq!(first, Some((Point::AttnOut, Some(1))));
    }
    let bytes = std::fs::read(folder.path().join("sketch.safetensors")).expect("it is there");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("the format's own crate reads it");
    assert!(file.names().iter().any(|name| name.ends_with("block_out")));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 2, "nothing is left beside them");
}

#[test]
fn nothing_starts_from_a_sketch_in_any_mode() {
    let (model, name) = SKETCHES[0];
    let dump = sketch(model, name);
    for mode in [Mode::Both, Mode::Accumulated, Mode::Local] {
        let outcome = run_in(mode, model, &dump, &mut ());
        assert_eq!(outcome.verdict, Verdict::Pass, "{mode:?}: {:?}", outcome.reason);
        let wrong = run_in(mode, model, &dump, &mut Off(Point::FfnOut, 1, 1e-3));
        let first = wrong.first_divergence().map(|row| (row.site.point, row.site.layer));
        assert_eq!(first, Some((Point::FfnOut, Some(1))), "{mode:?}");
    }
    let layers = run_in(Mode::Layers, model, &dump, &mut ());
    assert_eq!(layers.verdict, Verdict::Inconclusive, "no layer has an input to start from");
}

#[test]
fn a_sketch_is_shown_by_its_figures() {
    let command = &mut std::process::Command::new(env!("CARGO_BIN_EXE_xcheck"));
    let (model, name) = SKETCHES[0];
    let of = |path: &Path, command: &mut std::process::Command| {
        let shown = ["--tap", "block_out", "--layer", "0", "--pass", "0"];
        let output = command.arg("inspect").arg(path).args(shown).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8").lines().last().expect("a row").to_owned()
    };
    let row = of(&path(model, name), command);
    let whole = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("checkpoints/tiny-llama2/dumps/transformers-f32.safetensors");
    let values = of(&whole, &mut std::process::Command::new(env!("CARGO_BIN_EXE_xcheck")));
    let words = |row: &str| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (row, values) = (words(&row), words(&values));
    assert_eq!(row[..5], values[..5], "the place and the shape of the values");
    let largest = values[5..7].iter().map(|end| end.trim_start_matches('-')).max().expect("two ends");
    assert_eq!(row[5..], [format!("±{largest}"), values[7].clone(), values[8].clone(), "sketch".to_owned()]);
}
