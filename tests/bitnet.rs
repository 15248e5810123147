//! BitNet: the shipped models against real bitnet.cpp, the same weights in every layout, and planted faults.

use std::path::{Path, PathBuf};

use crate::common::faulty::{Base, Faulty};
use crate::common::terminal::Terminal;
use crate::common::{assert_identical, counterpart, gguf, judge_in, reference_of, variant};
use xcheck::align::Selection;
use xcheck::check::Mode;
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;
use xcheck::format::{FileBytes, Gguf};
use xcheck::model::bitnet::{self, Bitnet};
use xcheck::model::{Activation, I2sLayout, LoadedModel, Model, ModelFiles, TernaryFiles};
use xcheck::numerics::{BitnetCpp, KvType, Numerics};
use xcheck::quant::{decode_matrix_row, ternary};
use xcheck::shipped_models;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, Verdict};
use xcheck::weight::{DType, Matrix, StoredTensor};

const NUMERICS: BitnetCpp = BitnetCpp { kv: KvType::F16 };
const SHIPPED: [&str; 2] = ["tiny-bitnet-b158", "tiny-bitnet"];

fn judge(reference: &Dump, model: &dyn Model, numerics: &dyn Numerics) -> Outcome {
    let everything = Selection { explicit: true, ..Selection::everything() };
    judge_in(Mode::Both, &everything, reference, model, numerics, &mut ())
}

/// A model and its dump by real bitnet.cpp.
struct Real {
    name: String,
    loaded: LoadedModel,
    numerics: Box<dyn Numerics>,
    reference: Dump,
}

/// Those that ship, and one of weights for lookup tables.
fn real_runs() -> Vec<Real> {
    let mut runs: Vec<Real> = SHIPPED.into_iter().flat_map(of_shipped).collect();
    let (loaded, numerics) = (tl2_model("tl2"), Box::new(NUMERICS));
    runs.push(Real { name: "tl2".into(), loaded, numerics, reference: tl2_dump() });
    runs
}

fn of_shipped(model: &'static str) -> impl Iterator<Item = Real> {
    let references = shipped_models::model(model).expect("it ships").references().expect("they are sound");
    let real = references.into_iter().filter(|(_, dump)| dump.manifest.producer.name == "bitnet.cpp");
    real.map(move |(name, reference)| {
        let (loaded, numerics) = counterpart(model, &reference);
        Real { name: format!("{model} {name}"), loaded, numerics, reference }
    })
}

fn tl2_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bitnet/tiny-bitnet-tl2")
}

/// The model of `tests/data` in one of its two formats.
fn tl2_model(format: &str) -> LoadedModel {
    let path = tl2_folder().join(format!("tiny-bitnet-tl2-{format}.gguf"));
    ModelFiles::open(&path).and_then(|files| files.load()).expect("it loads")
}

fn tl2_dump() -> Dump {
    Dump::open(&tl2_folder().join("dumps/bitnet.cpp-tl2-f16kv.safetensors")).expect("it is sound")
}

// ---- honest runs ----------------------------------------------------------------------------------------

#[test]
fn every_model_passes_all_checkpoints_and_its_products_are_those_of_bitnet_cpp_bit_for_bit() {
    use Point::{AttnOut, FfnGate, FfnOut, FfnUp, K, Logits, Q, V};
    let products = [Q, K, V, AttnOut, FfnGate, FfnUp, FfnOut, Logits];
    let runs = real_runs();
    assert_eq!(runs.len(), 5);
    for Real { name, loaded, numerics, reference } in runs {
        let outcome = judge(&reference, &*loaded.model, &*numerics);
        assert_eq!((outcome.verdict, &outcome.reason), (Verdict::Pass, &None), "{name}");
        assert_eq!(outcome.rows.len(), reference.sites().count());
        for row in outcome.rows.iter().filter(|row| products.contains(&row.site.point)) {
            let local = row.local.as_ref().expect("its input is held");
            assert!(local.is_identical(), "{name}: {}", row.site);
        }
    }
}

#[test]
fn every_value_is_that_of_bitnet_cpp_bit_for_bit() {
    for Real { name, loaded, numerics, reference } in real_runs() {
        assert_identical(&name, &judge(&reference, &*loaded.model, &*numerics));
    }
}

#[test]
fn the_command_line_takes_the_numerics_of_the_dump_and_decodes_nothing() {
    let terminal = Terminal::new();
    let tl2 = tl2_folder().join("tiny-bitnet-tl2-tl2.gguf");
    for model in SHIPPED.into_iter().chain([tl2.to_str().expect("a name")]) {
        let arguments = ["run", "--model", model, "--strict", "--checkpoint", "all"];
        let (code, report) = terminal.json(&arguments);
        assert_eq!((code, &report["verdict"]), (0, &"pass".into()), "{model}: {report}");
    }
    let decodes = ["run", "--model", "tiny-bitnet", "--strict", "--numerics", "f32"];
    terminal.assert_refused(&decodes, "i2_s as it is stored: 'bitnet.cpp'");
}

#[test]
fn i2_s_and_tl2_files_of_one_model_give_the_same_bits() {
    let reference = tl2_dump();
    let [i2_s, tl2] = ["i2_s", "tl2"].map(tl2_model);
    assert_eq!((i2_s.precision, tl2.precision), (DType::I2_S, DType::TL2));
    assert_same_weights(&*i2_s.model, &*tl2.model);
    let outcomes = [i2_s, tl2].map(|loaded| judge(&reference, &*loaded.model, &NUMERICS));
    assert_eq!(outcomes[0].verdict, Verdict::Pass);
    assert_eq!(outcomes[0].rows, outcomes[1].rows);
}

#[test]
fn every_layout_of_one_model_gives_the_same_bits() {
    let reference = reference_of("tiny-bitnet-b158", "bitnet.cpp-f16kv");
    let x86 = variant("tiny-bitnet-b158-i2_s").load().expect("it loads");
    let rows = judge(&reference, &*x86.model, &NUMERICS).rows;
    for name in ["arm", "tl1", "tl2"] {
        let loaded = in_layout(name).expect("it loads");
        assert_same_weights(&*x86.model, &*loaded.model);
        let outcome = judge(&reference, &*loaded.model, &NUMERICS);
        assert_eq!((outcome.verdict, &outcome.rows), (Verdict::Pass, &rows), "{name}");
    }
}

fn assert_same_weights(a: &dyn Model, b: &dyn Model) {
    let (a, b) = (a.matrices(), b.matrices());
    assert_eq!(a.len(), b.len());
    for ((name, a), (_, b)) in a.into_iter().zip(b).filter(|((_, a), _)| ternary::is_ternary(a.dtype)) {
        assert_eq!((a.rows, a.cols, a.scale()), (b.rows, b.cols, b.scale()), "{name}");
        let mut rows = [vec![0.0; a.cols], vec![0.0; a.cols]];
        for row in 0..a.rows {
            decode_matrix_row(a, row, &mut rows[0]);
            decode_matrix_row(b, row, &mut rows[1]);
            assert_eq!(rows[0], rows[1], "{name}, row {row}");
        }
    }
}

// ---- what the files leave unsaid ------------------------------------------------------------------------

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bitnet").join(name)
}

/// The files of `reference-scripts/make/make_bitnet_files.py`, each with what its reader must be told.
fn in_layout(name: &str) -> xcheck::Result<LoadedModel> {
    let file = ModelFiles::Gguf(FileBytes::open(&data(&format!("{name}.gguf")))?);
    match name {
        "arm" => file.load_told(&TernaryFiles { layout: I2sLayout::Arm, ..TernaryFiles::default() }),
        _ => file.load_told(&kernels(&format!("{name}.ini"))?),
    }
}

fn kernels(ini: &str) -> xcheck::Result<TernaryFiles> {
    TernaryFiles::default().with_kernels(&FileBytes::open(&data(ini))?)
}

fn refusal(result: xcheck::Result<LoadedModel>) -> String {
    result.err().expect("it is refused").to_string()
}

#[test]
fn tl2_files_with_unknown_tiles_are_refused_by_shape() {
    for name in ["tl1", "tl2"] {
        let file = ModelFiles::Gguf(FileBytes::open(&data(&format!("{name}.gguf"))).expect("it is there"));
        let message = refusal(file.load());
        for part in ["blk.0.attn_q.weight", name, "128 x 128", "--kernel-config"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn tl2_tiles_that_do_not_fit_are_refused() {
    let file = ModelFiles::Gguf(FileBytes::open(&data("tl2.gguf")).expect("it is there"));
    let mut told = kernels("tl2.ini").expect("it is sound");
    for change in [|bm: &mut usize, _: &mut usize| *bm = 48, |_: &mut usize, bk: &mut usize| *bk = 100] {
        let sound = told.kernels[0];
        let tiles = &mut told.kernels[0].tiles;
        change(&mut tiles.rows, &mut tiles.columns);
        let message = refusal(file.load_told(&told));
        assert!(
            message.contains("cannot be divided into tiles of") && message.contains("128 x 128"),
            "{message}"
        );
        told.kernels[0] = sound;
    }
}

/// The order of groups is what the tiles say: with others, the weights are others.
#[test]
fn tl2_tiles_of_another_kernel_are_found_at_the_first_product() {
    let file = ModelFiles::Gguf(FileBytes::open(&data("tl1.gguf")).expect("it is there"));
    let mut told = kernels("tl1.ini").expect("it is sound");
    told.kernels.iter_mut().for_each(|kernel| kernel.tiles.rows = 32.max(kernel.tiles.together));
    told.kernels.iter_mut().for_each(|kernel| kernel.tiles.columns = 32);
    let loaded = file.load_told(&told).expect("these fit, too");
    // Of q, whose rows of a tile are all read together, the order is the same.
    assert_first_wrong("tiny-bitnet-b158", &*loaded.model, &NUMERICS, Point::K, 0);
}

#[test]
fn an_arm_file_read_as_one_of_x86_is_found_at_the_first_product() {
    let file = ModelFiles::Gguf(FileBytes::open(&data("arm.gguf")).expect("it is there"));
    let loaded = file.load().expect("no code tells");
    assert_first_wrong("tiny-bitnet-b158", &*loaded.model, &NUMERICS, Point::Q, 0);
}

#[test]
fn an_invalid_tl2_kernel_config_is_refused_by_line() {
    let ini = |text: &str| FileBytes { path: "kernels.ini".into(), data: text.as_bytes().to_vec().into() };
    for (text, line, problem) in [
        ("", 1, "no kernel"),
        ("m = 3\n", 1, "before the first section"),
        ("[a]\nm = 3\nk = x\n", 3, "k is x"),
        ("[a]\nm = 3\nbm = 99999999999\n", 3, "bm is"),
        ("\n[a]\nm = 3\n[b]\n", 2, "must have all of"),
        ("[a]\nwhat\n", 2, "neither"),
    ] {
        let message = TernaryFiles::default().with_kernels(&ini(text)).expect_err("refused").to_string();
        let expected = format!("line {line}: ");
        assert!(message.contains(&expected) && message.contains(problem), "{text:?}: {message}");
    }
}

fn damaged(change: impl Fn(&mut [u8])) -> ModelFiles {
    let ModelFiles::Gguf(source) = variant("tiny-bitnet-b158-i2_s") else { panic!("it is a GGUF file") };
    let file = Gguf::read(&source).expect("it is sound");
    let tensor = file.tensors.get("blk.1.attn_v.weight").expect("it is in the file");
    let start = tensor.data.as_ptr() as usize - source.data.as_ptr() as usize;
    let mut bytes = source.data.to_vec();
    change(&mut bytes[start..start + tensor.data.len()]);
    ModelFiles::Gguf(FileBytes { path: "changed.gguf".into(), data: bytes.into() })
}

#[test]
fn an_i2_s_code_without_a_meaning_and_a_nan_scale_are_refused() {
    let message = refusal(damaged(|data| data[300] = 0xC0).load());
    assert!(message.contains("'blk.1.attn_v.weight' (i2_s): byte 300 "), "{message}");
    let codes = 64 * 128 / 4;
    let message = refusal(damaged(|data| data[codes..codes + 4].copy_from_slice(&[0, 0, 0xC0, 0x7F])).load());
    assert!(message.contains("not finite") && message.contains("byte 2048 "), "{message}");
    assert!(damaged(|data| data[codes + 4..].fill(0xFF)).load().is_ok(), "the last 28 bytes are nobody's");
}

#[test]
fn a_tl2_index_without_weights_is_refused() {
    for (name, index) in [("tl1", 0x9F), ("tl2", 0xE0)] {
        let mut bytes = std::fs::read(data(&format!("{name}.gguf"))).expect("it is there");
        let file = xcheck::format::Gguf::read(&FileBytes { path: "x".into(), data: bytes.clone().into() });
        let tensor =
            file.expect("it is sound").tensors.get("blk.0.attn_q.weight").expect("held").data.clone();
        let at =
            bytes.windows(tensor.len()).position(|window| window == &*tensor).expect("it is in the file");
        bytes[at + 70] = index;
        let file = ModelFiles::Gguf(FileBytes { path: "changed.gguf".into(), data: bytes.into() });
        let message = refusal(file.load_told(&kernels(&format!("{name}.ini")).expect("it is sound")));
        assert!(message.contains("byte 70 ") && message.contains(name), "{message}");
    }
}

// ---- planted faults -------------------------------------------------------------------------------------

#[track_caller]
fn assert_first_wrong(model: &str, damaged: &dyn Model, numerics: &dyn Numerics, point: Point, layer: usize) {
    let reference = reference_of(model, "bitnet.cpp-f16kv");
    let outcome = judge(&reference, damaged, numerics);
    let found = outcome.first_divergence().map(|row| row.site);
    assert_eq!(found, Some(Site { point, layer: Some(layer), pass: Some(0) }), "{:?}", outcome.reason);
    assert_eq!(outcome.verdict, Verdict::Fail);
}

fn b158() -> Bitnet {
    Bitnet::from_gguf(&gguf("tiny-bitnet-b158-i2_s"), &bitnet::FAMILY).expect("it loads")
}

/// The same matrix with the weights of each row changed.
fn recoded(matrix: &Matrix, change: impl Fn(&mut [i8])) -> Matrix {
    let mut data = Vec::new();
    for row in 0..matrix.rows {
        let mut values = vec![0.0; matrix.cols];
        ternary::decode_row(matrix.row(row), &mut values);
        let mut weights: Vec<i8> = values.iter().map(|&value| value as i8).collect();
        change(&mut weights);
        let mut out = vec![0; matrix.row(row).len()];
        ternary::encode_row(weights, &mut out);
        data.extend(out);
    }
    data.extend(matrix.scale().to_le_bytes());
    data.resize(data.len() + 28, 0);
    let shape = vec![matrix.rows, matrix.cols];
    Matrix::from_stored(&StoredTensor { dtype: matrix.dtype, shape, data: data.into() }).expect("as large")
}

#[test]
fn permuted_i2_s_codes_are_found_at_their_product() {
    let permutations: [fn(i8) -> i8; 3] = [|w| -w, |w| (w + 2) % 3 - 1, |w| (w + 3) % 3 - 1];
    for permutation in permutations {
        let mut model = b158();
        let weight = &mut model.layers[1].gate.weight;
        *weight = recoded(weight, |row| row.iter_mut().for_each(|w| *w = permutation(*w)));
        assert_first_wrong("tiny-bitnet-b158", &model, &NUMERICS, Point::FfnGate, 1);
    }
}

#[test]
fn i2_s_groups_in_another_order_are_found_at_their_product() {
    let mut model = b158();
    let weight = &mut model.layers[0].down.weight;
    *weight = recoded(weight, |row| row.chunks_mut(128).for_each(|block| block.rotate_left(32)));
    assert_first_wrong("tiny-bitnet-b158", &model, &NUMERICS, Point::FfnOut, 0);
}

#[test]
fn a_scale_per_block_is_found_at_the_first_product() {
    let linear = |x: &Tensor, w: &Matrix| match w.dtype {
        DType::I2_S => with_scales_per_block(x, w),
        _ => NUMERICS.linear(x, w),
    };
    let faulty = Faulty { base: Base(&NUMERICS), linear: Some(linear), ..Faulty::default() };
    assert_first_wrong("tiny-bitnet-b158", &b158(), &faulty, Point::Q, 0);
}

/// Each block of 32 weights scaled by their own mean size.
fn with_scales_per_block(x: &Tensor, w: &Matrix) -> Tensor {
    Tensor::from_rows(x.rows(), w.rows, |token, out| {
        for (row, out) in out.iter_mut().enumerate() {
            let mut weights = vec![0.0; w.cols];
            decode_matrix_row(w, row, &mut weights);
            let blocks = weights.chunks(32).zip(x.row(token).chunks(32));
            *out = blocks
                .map(|(w, x)| {
                    let mean = w.iter().map(|w| w.abs()).sum::<f32>() / w.len() as f32;
                    w.iter()
                        .zip(x)
                        .map(|(w, x)| w.signum() * if *w == 0.0 { 0.0 } else { mean } * x)
                        .sum::<f32>()
                })
                .sum();
        }
    })
}

#[test]
fn a_missing_int8_activation_scale_is_found_at_the_first_product() {
    let linear = |x: &Tensor, w: &Matrix| match w.dtype {
        DType::I2_S => Tensor::from_rows(x.rows(), w.rows, |token, out| {
            let mut activations = ternary::quantise(w.dtype, x.row(token));
            activations.scale = 1.0;
            ternary::fill(w, 0..w.rows, &[activations], out);
        }),
        _ => NUMERICS.linear(x, w),
    };
    let faulty = Faulty { base: Base(&NUMERICS), linear: Some(linear), ..Faulty::default() };
    assert_first_wrong("tiny-bitnet-b158", &b158(), &faulty, Point::Q, 0);
}

#[test]
fn activations_not_quantised_to_int8_are_found_at_the_first_product() {
    let linear = |x: &Tensor, w: &Matrix| xcheck::numerics::F32.linear(x, w);
    let faulty = Faulty { base: Base(&NUMERICS), linear: Some(linear), ..Faulty::default() };
    assert_first_wrong("tiny-bitnet-b158", &b158(), &faulty, Point::Q, 0);
}

#[test]
fn a_skipped_sub_norm_is_found_where_it_should_be() {
    /// Marks the norm to skip.
    const SKIPPED: f32 = 0.5;
    let rms_norm = |x: &Tensor, norm: &xcheck::ops::norm::RmsNorm| match norm.eps {
        SKIPPED => x.clone(),
        _ => NUMERICS.rms_norm(x, norm),
    };
    let faulty = Faulty { base: Base(&NUMERICS), rms_norm: Some(rms_norm), ..Faulty::default() };
    let mut model = b158();
    model.layers[1].attn_sub_norm.eps = SKIPPED;
    assert_first_wrong("tiny-bitnet-b158", &model, &faulty, Point::AttnSubNorm, 1);
    let mut model = b158();
    model.layers[0].ffn_sub_norm.eps = SKIPPED;
    assert_first_wrong("tiny-bitnet-b158", &model, &faulty, Point::FfnSubNorm, 0);
}

#[test]
fn silu_instead_of_squared_relu_is_found_at_the_ffn() {
    let mut model = b158();
    model.config.activation = Activation::Silu;
    assert_first_wrong("tiny-bitnet-b158", &model, &NUMERICS, Point::FfnAct, 0);
    let mut model = Bitnet::from_gguf(&gguf("tiny-bitnet-i2_s"), &bitnet::FAMILY).expect("it loads");
    assert_eq!(model.config.activation, Activation::Silu);
    model.config.activation = Activation::SquaredRelu;
    assert_first_wrong("tiny-bitnet", &model, &NUMERICS, Point::FfnAct, 0);
}

/// A batch's logits from activations that were rounded as a single token's are.
#[test]
fn head_activations_rounded_in_a_batch_are_found_at_the_logits() {
    let linear = |x: &Tensor, w: &Matrix| match w.dtype {
        DType::F16 => xcheck::numerics::LlamaCpp { kv: KvType::F16 }.linear(x, w),
        _ => NUMERICS.linear(x, w),
    };
    let faulty = Faulty { base: Base(&NUMERICS), linear: Some(linear), ..Faulty::default() };
    let outcome = judge(&reference_of("tiny-bitnet-b158", "bitnet.cpp-f16kv"), &b158(), &faulty);
    let logits = outcome.rows.iter().find(|row| row.site.point == Point::Logits).expect("a row");
    assert!(logits.local.as_ref().expect("measured").errors.max_abs > 1e-4);
}
