//! Every block format from file to token: a small model in each, against llama.cpp's dump of that very file.

use crate::common;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock};

use crate::common::faulty::Faulty;
use crate::common::judge_in;
use crate::common::share::{one_of, pairs};
use xcheck::align::Selection;
use xcheck::check::{Mode, Tolerances};
use xcheck::checkpoint::{Checkpoint, Point, Site};
use xcheck::dump::Dump;
use xcheck::format::{FileBytes, Gguf};
use xcheck::model::{LoadedModel, ModelFiles};
use xcheck::numerics::{F32, KvType, LlamaCpp, Numerics};
use xcheck::quant;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, SiteResult, Verdict};
use xcheck::weight::{DType, Matrix};

const NUMERICS: LlamaCpp = LlamaCpp { kv: KvType::F16 };

const PRODUCTS: [Point; 8] = {
    use Point::{AttnOut, FfnGate, FfnOut, FfnUp, K, Logits, Q, V};
    [Q, K, V, AttnOut, FfnGate, FfnUp, FfnOut, Logits]
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats")
}

/// The names of the files, without what tells their container: of types in lower case, and of one mixture.
fn names() -> BTreeSet<String> {
    let files =
        fs::read_dir(folder()).expect("it is there").map(|entry| entry.expect("it can be listed").path());
    let models = files.filter(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    models.map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned()).collect()
}

fn source(name: &str) -> FileBytes {
    FileBytes::open(&folder().join(format!("{name}.gguf"))).expect("it can be read")
}

fn load(source: FileBytes) -> LoadedModel {
    ModelFiles::Gguf(source).load().expect("it loads")
}

fn dump(name: &str) -> Dump {
    Dump::open(&folder().join(format!("dumps/{name}.safetensors"))).expect("it is sound")
}

fn judge(name: &str, model: &LoadedModel, numerics: &dyn Numerics) -> Outcome {
    let everything = Selection { explicit: true, ..Selection::everything() };
    judge_in(Mode::Both, &everything, &dump(name), &*model.model, numerics, &mut ())
}

/// The file against its dump: computed once for the tests that read it.
fn outcome(name: &str) -> &'static Outcome {
    static OUTCOMES: LazyLock<BTreeMap<String, OnceLock<Outcome>>> =
        LazyLock::new(|| names().into_iter().map(|name| (name, OnceLock::new())).collect());
    OUTCOMES[name].get_or_init(|| judge(name, &load(source(name)), &NUMERICS))
}

fn local(row: &SiteResult) -> &xcheck::measure::Measurement {
    row.local.as_ref().expect("the dumps hold every input")
}

// ---- honest files ---------------------------------------------------------------------------------------

/// F16 is in the shipped models, in four architectures, and so is F32.
#[test]
fn every_format_that_can_be_computed_with_has_a_file() {
    let elsewhere = [DType::F32, DType::F16];
    let types = quant::DECODABLE.iter().filter(|dtype| !elsewhere.contains(dtype));
    let mut wanted: BTreeSet<String> = types.map(|dtype| dtype.name().to_owned()).collect();
    wanted.insert("q4_k_m".to_owned());
    assert_eq!(names(), wanted);
}

#[test]
fn every_file_holds_its_format_and_its_dump_is_of_that_file() {
    for name in names() {
        let (source, dump) = (source(&name), dump(&name));
        let sha256 = ModelFiles::Gguf(source.clone()).sha256();
        assert_eq!(dump.manifest.model.sha256.as_ref(), Some(&sha256), "{name}");
        let model = load(source).model;
        let types: BTreeSet<_> = model.matrices().iter().map(|(_, matrix)| matrix.dtype.name()).collect();
        let wanted: &[&str] = if name == "q4_k_m" { &["q4_k", "q6_k"] } else { &[&name] };
        assert_eq!(types.into_iter().collect::<Vec<_>>(), wanted);
    }
}

#[test]
fn q8_0_q4_k_and_every_other_format_pass_all_twelve_checkpoints() {
    for name in names() {
        let outcome = outcome(&name);
        assert_eq!((outcome.verdict, &outcome.reason), (Verdict::Pass, &None), "{name}");
        assert_eq!(outcome.coverage.taps_compared, outcome.coverage.taps_expected, "{name}");
        let compared: BTreeSet<_> = outcome.rows.iter().map(SiteResult::checkpoint).collect();
        assert_eq!(compared.len(), Checkpoint::with_input().len(), "{name}: {compared:?}");
    }
}

/// Of an ordinary run, in which nothing is put right on the way, and of every stage by itself.
#[test]
fn q8_0_q4_k_and_every_other_format_have_the_values_of_llama_cpp_bit_for_bit() {
    for name in names() {
        let outcome = outcome(&name);
        let products = outcome.rows.iter().filter(|row| PRODUCTS.contains(&row.site.point));
        assert!(products.count() >= 2 * PRODUCTS.len(), "{name}");
        common::assert_identical(&name, outcome);
    }
}

/// With another C library, the table is printed and not compared: `cargo test formats::the_table_of_errors -- --nocapture`.
#[test]
fn the_table_of_errors_in_the_docs_is_that_of_every_quantised_format() {
    const PAGE: &str = include_str!("../docs/reference/quantised-formats.md");
    let checkpoints = &Checkpoint::with_input()[1..];
    let heads: Vec<_> = checkpoints.iter().map(|checkpoint| checkpoint.name()).collect();
    let mut table = format!("| format | {} | identical |\n", heads.join(" | "));
    table += &format!("|{}\n", "---|".repeat(heads.len() + 2));
    for name in names() {
        let outcome = outcome(&name);
        let cells: Vec<_> = checkpoints.iter().map(|&checkpoint| shown(worst(outcome, checkpoint))).collect();
        let coverage = &outcome.coverage;
        let identical = 100.0 * coverage.elements_identical as f64 / coverage.elements as f64;
        table += &format!("| {name} | {} | {identical} % |\n", cells.join(" | "));
    }
    println!("{table}");
    assert!(!common::SAME_C_LIBRARY || PAGE.contains(&table), "not in the docs:\n{table}");
}

fn worst(outcome: &Outcome, checkpoint: Checkpoint) -> f64 {
    let rows = outcome.rows.iter().filter(|row| row.checkpoint() == checkpoint);
    rows.map(|row| local(row).errors.max_rel_rms).fold(0.0, f64::max)
}

fn shown(error: f64) -> String {
    if error == 0.0 { "0".to_owned() } else { format!("{error:.1e}") }
}

/// llama.cpp writes `q4_K`, and all types of a mixture.
#[test]
fn tolerances_of_a_format_apply_to_its_dump() {
    let known = Tolerances::precisions();
    for dtype in quant::DECODABLE.iter().filter(|dtype| names().contains(dtype.name())) {
        assert_eq!(dump(dtype.name()).manifest.producer.precision(), Some(dtype.name()));
        assert!(known.contains(&dtype.name()), "{dtype}");
    }
    assert_eq!(dump("q4_k_m").manifest.producer.precision(), None);
}

// ---- planted faults -------------------------------------------------------------------------------------

/// Where each format has a block's scale, an f16: its last byte holds the sign. Those of MXFP4 and NVFP4 have none.
fn turn_sign(dtype: DType, block: &mut [u8]) {
    let last = match dtype {
        DType::Q2_K => 81,
        DType::Q3_K => 109,
        DType::Q6_K => 209,
        DType::TQ1_0 => 53,
        DType::TQ2_0 => 65,
        DType::IQ1_M => 55,
        DType::MXFP4 => return block[1..].iter_mut().for_each(|codes| *codes ^= 0x88),
        DType::NVFP4 => return block[4..].iter_mut().for_each(|codes| *codes ^= 0x88),
        _ => 1,
    };
    block[last] ^= 0x80;
}

/// The file with the sign of one block turned round, in one row of a tensor.
fn damaged(name: &str, tensor: &str, row: usize) -> FileBytes {
    let whole = source(name);
    let file = Gguf::read(&whole).expect("it is sound");
    let stored = file.tensors.get(tensor).expect("it has that");
    let row_bytes = stored.data.len() / stored.shape[0];
    let start = stored.data.as_ptr() as usize - whole.data.as_ptr() as usize + row * row_bytes;
    let mut bytes = whole.data.to_vec();
    turn_sign(stored.dtype, &mut bytes[start..][..stored.dtype.block_bytes()]);
    FileBytes { data: bytes.into(), ..whole }
}

#[track_caller]
fn assert_found(name: &str, tensor: &str, row: usize, point: Point, layer: Option<usize>) {
    let outcome = judge(name, &load(damaged(name, tensor, row)), &NUMERICS);
    let found = outcome.first_divergence().map(|row| row.site);
    assert_eq!(found, Some(Site { point, layer, pass: Some(0) }), "{name} {tensor}");
    assert_eq!(outcome.verdict, Verdict::Fail, "{name} {tensor}");
}

#[test]
fn one_quantised_block_of_the_wrong_sign_is_found_at_its_product() {
    let blocks = [
        ("blk.0.attn_q.weight", 5, Point::Q),
        ("blk.0.ffn_up.weight", 40, Point::FfnUp),
        ("blk.0.ffn_down.weight", 0, Point::FfnOut),
    ];
    for (name, (tensor, row, point)) in one_of(3, pairs(names(), blocks)) {
        assert_found(&name, tensor, row, point, Some(0));
    }
}

#[test]
fn one_quantised_block_of_the_wrong_sign_is_found_in_the_second_layer_of_a_moe() {
    assert_found("q4_k_m", "blk.1.attn_v.weight", 3, Point::V, Some(1));
}

/// Token 3 is read, token 5 is not: that row of the table is seen by the head alone, which is the same table.
#[test]
fn one_quantised_block_of_the_wrong_sign_is_found_in_the_embedding_and_in_the_lm_head() {
    for (name, (row, point)) in one_of(2, pairs(names(), [(3, Point::Embed), (5, Point::Logits)])) {
        assert_found(&name, "token_embd.weight", row, point, None);
    }
}

/// Decoded weights are what a port computes with at first: no format passes that way.
#[test]
fn activations_that_are_not_quantised_are_found_at_the_first_product() {
    for name in one_of(3, names()) {
        let outcome = judge(&name, &load(source(&name)), &F32);
        let found = outcome.first_divergence().map(|row| row.site);
        assert_eq!(found, Some(Site { point: Point::Q, layer: Some(0), pass: Some(0) }), "{name}");
    }
}

/// Exactly zero means something: one token at a time, sums have another order, and other last bits.
#[test]
fn kernels_for_decode_and_for_a_batch_of_eight_differ_in_bits() {
    let linear = |x: &Tensor, w: &Matrix| {
        Tensor::from_rows(x.rows(), w.rows, |token, out| {
            let row = Tensor::new(&[1, w.cols], x.row(token).to_vec());
            out.copy_from_slice(NUMERICS.linear(&row, w).data());
        })
    };
    let faulty = Faulty { linear: Some(linear), ..Faulty::default() };
    for name in one_of(
        2,
        ["bf16", "iq1_s", "iq2_xs", "iq3_s", "iq4_nl", "iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"],
    ) {
        let outcome = judge(name, &load(source(name)), &faulty);
        let products = outcome.rows.iter().filter(|row| PRODUCTS.contains(&row.site.point));
        assert!(products.filter(|row| !local(row).is_identical()).count() > 2, "{name}");
    }
}
