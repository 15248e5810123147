//! llama2.c's models, from file to token: the shipped dumps hold what real runs of `run.c` and `runq.c` compute.

use crate::common;
use std::path::Path;

use crate::common::terminal::Terminal;
use crate::common::{assert_identical, counterpart, judge_in, variant};
use xcheck::align::Selection;
use xcheck::check::Mode;
use xcheck::checkpoint::Point;
use xcheck::dump::Dump;
use xcheck::engine::Engine;
use xcheck::format::{FileBytes, Llama2cFile};
use xcheck::model::llama::{self, Llama};
use xcheck::model::{Model, ModelFiles};
use xcheck::numerics::{F32, Llama2C, Numerics};
use xcheck::shipped_models;
use xcheck::tensor::RopePairing;
use xcheck::verdict::{Outcome, Verdict};
use xcheck::weight::{DType, Matrix, StoredTensor};

const MODEL: &str = "tiny-llama2c";
/// Bytes of a header of version 0.
const HEADER: usize = 28;

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/llama2c").join(name)
}

/// Models beside the one that ships, each with its dump.
const BESIDE: [&str; 3] = ["untied-v0", "tiny-llama2c-v1", "tiny-llama2-v2"];

fn file_beside(name: &str) -> FileBytes {
    FileBytes::open(&data(&format!("{name}.bin"))).expect("it is there")
}

fn dump_beside(name: &str) -> Dump {
    Dump::open(&data(&format!("{name}.safetensors"))).expect("it is sound")
}

fn shipped_file(name: &str) -> FileBytes {
    match variant(name) {
        ModelFiles::Llama2c { model, .. } => model,
        _ => panic!("{name} is a llama2.c file"),
    }
}

fn load(source: &FileBytes) -> Llama {
    Llama::from_llama2c(&Llama2cFile::read(source).expect("it is sound"), &llama::FAMILY).expect("it loads")
}

fn judge(model: &dyn Model, numerics: &dyn Numerics, reference: &Dump) -> Outcome {
    judge_in(Mode::Both, &Selection::everything(), reference, model, numerics, &mut ())
}

fn dump_of(name: &str) -> Dump {
    common::reference_of(MODEL, name)
}

// ---- real runs ------------------------------------------------------------------------------------------

/// Every bit, in ordinary runs too: the order of each sum is the program's. Another machine's C library may have other
/// exponentials, sines and cosines than the one the dumps were made with.
#[test]
fn every_version_computes_what_the_real_programs_do() {
    let references = shipped_models::model(MODEL).expect("it ships").references().expect("they are sound");
    assert_eq!(references.len(), 2);
    for (name, reference) in &references {
        let (loaded, numerics) = counterpart(MODEL, reference);
        let outcome = judge(&*loaded.model, &*numerics, reference);
        assert_eq!((outcome.verdict, &outcome.reason), (Verdict::Pass, &None), "{name}");
        assert_eq!(outcome.coverage.taps_compared, outcome.coverage.taps_expected, "{name}");
        assert_identical(name, &outcome);
    }
    for name in BESIDE {
        let outcome = judge(&load(&file_beside(name)), &Llama2C, &dump_beside(name));
        assert_eq!((outcome.verdict, &outcome.reason), (Verdict::Pass, &None), "{name}");
        assert_identical(name, &outcome);
    }
}

/// The manifests say which of them the dumper was held against.
#[test]
fn the_dumps_of_versions_0_and_2_were_held_against_real_runs() {
    let shipped = ["v0", "v2"].map(|version| dump_of(&format!("llama2.c-{version}")));
    let dumps = shipped.into_iter().chain([dump_beside("tiny-llama2-v2")]);
    for (dump, program) in dumps.zip(["run", "runq", "runq"]) {
        assert_eq!(dump.manifest.producer.setting("checked_against"), Some(program));
    }
}

#[test]
fn versions_0_and_1_of_a_model_hold_the_same_tensors() {
    let files = [shipped_file("tiny-llama2c-v0"), file_beside("tiny-llama2c-v1")];
    let [first, second] = files.map(|file| Llama2cFile::read(&file).expect("it is sound").tensors);
    let mut compared = 0;
    for (name, tensor) in first.iter().filter(|(name, _)| !name.starts_with("rope_")) {
        let other = second.get(name).unwrap_or_else(|| panic!("{name} is in version 1"));
        assert!((&tensor.shape, &tensor.data) == (&other.shape, &other.data), "{name}");
        compared += 1;
    }
    assert_eq!((compared, first.len()), (second.len(), second.len() + 2));
}

#[test]
fn every_token_of_the_vocabulary_gives_finite_logits() {
    for name in ["tiny-llama2c-v0", "tiny-llama2c-v2"] {
        let loaded = variant(name).load().expect("it loads");
        let sizes = loaded.model.dimensions();
        for token in 0..sizes.vocab_size as u32 {
            let mut engine = Engine::new(&*loaded.model, &Llama2C, 1).expect("one token fits");
            let logits = engine.read(&[token], &mut ()).expect("it is in the vocabulary");
            assert_eq!(logits.data().len(), sizes.vocab_size);
            assert!(logits.data().iter().all(|logit| logit.is_finite()), "{name}, token {token}");
        }
    }
}

// ---- planted faults -------------------------------------------------------------------------------------

#[track_caller]
fn assert_first_wrong(outcome: &Outcome, point: Point) {
    assert_eq!(outcome.verdict, Verdict::Fail);
    assert_eq!(outcome.first_divergence().map(|row| row.site.point), Some(point));
}

/// A matrix of `f32` that starts at this byte of the file.
fn matrix_at(source: &FileBytes, start: usize, rows: usize, cols: usize) -> Matrix {
    let data = source.data.slice(start..start + 4 * rows * cols);
    Matrix::from_stored(&StoredTensor { dtype: DType::F32, shape: vec![rows, cols], data })
        .expect("it is whole")
}

#[test]
fn rope_tables_that_are_not_skipped_are_found_in_the_logits() {
    let source = file_beside("untied-v0");
    let header = Llama2cFile::read(&source).unwrap().header;
    let tables = 4 * header.seq_len * header.head_dim();
    let start = source.data.len() - 4 * header.vocab_size * header.dim - tables;
    let mut model = load(&source);
    model.output = matrix_at(&source, start, header.vocab_size, header.dim);
    assert_first_wrong(&judge(&model, &Llama2C, &dump_beside("untied-v0")), Point::Logits);
}

#[test]
fn the_sign_of_the_vocabulary_size_ignored_is_found_in_the_logits_or_by_the_length() {
    let source = file_beside("untied-v0");
    let mut model = load(&source);
    model.output = model.token_embd.clone();
    assert_first_wrong(&judge(&model, &Llama2C, &dump_beside("untied-v0")), Point::Logits);

    let mut bytes = source.data.to_vec();
    let vocab_size = &mut bytes[20..24];
    vocab_size.copy_from_slice(&512i32.to_le_bytes());
    let error = Llama2cFile::read(&FileBytes { data: bytes.into(), ..source }).expect_err("it is too long");
    assert!(error.to_string().contains("classifier shared"), "{error}");
}

#[test]
fn int8_groups_of_another_size_are_found_in_the_first_product() {
    let mut model = load(&shipped_file("tiny-llama2c-v2"));
    let q = &mut model.layers[0].attn.q.weight;
    let twice = |scale: &[u8; 4]| [*scale, *scale].concat();
    let scales: Vec<u8> = q.scale_range(0..q.rows).as_chunks().0.iter().flat_map(twice).collect();
    *q = with_scales(q, scales, 16);
    assert_first_wrong(&judge(&model, &Llama2C, &dump_of("llama2.c-v2")), Point::Q);
}

#[test]
fn int8_scales_off_by_one_group_are_found_at_their_product() {
    let mut model = load(&shipped_file("tiny-llama2c-v2"));
    let down = &mut model.layers[1].ffn.down.weight;
    let mut scales = down.scale_range(0..down.rows).to_vec();
    scales.rotate_left(4);
    *down = with_scales(down, scales, 32);
    assert_first_wrong(&judge(&model, &Llama2C, &dump_of("llama2.c-v2")), Point::FfnOut);
}

fn with_scales(matrix: &Matrix, scales: Vec<u8>, group: usize) -> Matrix {
    let shape = vec![matrix.rows, matrix.cols / group];
    let stored = StoredTensor { dtype: DType::F32, shape, data: scales.into() };
    matrix.clone().with_scales(&stored).expect("they fit")
}

#[test]
fn rope_of_halves_instead_of_neighbours_is_found() {
    let mut model = load(&shipped_file("tiny-llama2c-v0"));
    model.config.rope.pairing = RopePairing::Half;
    let outcome = judge(&model, &Llama2C, &dump_of("llama2.c-v0"));
    assert_eq!(outcome.verdict, Verdict::Fail);
    let first = outcome.first_divergence().map(|row| (row.site.layer, row.site.pass));
    assert_eq!(first, Some((Some(0), Some(0))));
}

#[test]
fn activations_not_quantised_to_int8_are_found_in_the_first_product_of_version_2() {
    let model = load(&file_beside("tiny-llama2-v2"));
    assert_first_wrong(&judge(&model, &F32, &dump_beside("tiny-llama2-v2")), Point::Q);
}

#[test]
fn an_int8_scale_that_is_nan_is_refused_with_its_group() {
    let source = shipped_file("tiny-llama2c-v2");
    let mut bytes = source.data.to_vec();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = Llama2cFile::read(&FileBytes { data: bytes.into(), ..source }).expect("the layout is sound");
    let error = Llama::from_llama2c(&file, &llama::FAMILY).expect_err("it is refused").to_string();
    assert!(error.contains("blk.1.ffn_up.weight") && error.contains("not finite"), "{error}");
}

// ---- the commands ---------------------------------------------------------------------------------------

#[test]
fn the_command_passes_every_reference_with_the_numerics_of_llama2c() {
    let (code, report) = Terminal::new().json(&["run", "--model", MODEL, "--checkpoint", "all", "--strict"]);
    assert_eq!((code, &report["verdict"]), (0, &"pass".into()));
}

#[test]
fn numerics_of_llama_cpp_refuse_groups_by_name() {
    let arguments = ["run", "--model", "tiny-llama2c-v2", "--numerics", "llama.cpp"];
    Terminal::new().assert_refused(&arguments, "int8_groups");
}

#[test]
fn a_file_on_disk_is_inspected_and_reads_prompts_with_the_tokenizer_beside_it() {
    let terminal = Terminal::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints/tiny-llama2c");
    let model = folder.join("tiny-llama2c-v2.bin").display().to_string();
    let shown = terminal.run(&["inspect", &model]);
    for told in ["llama2.c version 2", "group_size = 32", "blk.0.attn_q.scales", "int8_groups"] {
        assert!(shown.stdout.contains(told), "{told}");
    }
    let arguments =
        ["run", "--model", &model, "--prompt", "Once upon a time, there was", "--numerics", "llama2.c"];
    assert_eq!(terminal.run(&arguments).code, 0, "the dump's tokens are the prompt's");
}

#[test]
fn a_header_is_not_enough_for_a_model() {
    let bytes = file_beside("untied-v0").data.slice(0..HEADER);
    let error =
        Llama2cFile::read(&FileBytes { path: "short.bin".into(), data: bytes }).expect_err("no weights");
    assert!(error.to_string().contains("truncated"), "{error}");
}
