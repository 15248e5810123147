//! The engine agrees with itself on every model that ships, and a cache that is wrong is found.

use crate::common::faulty::{Base, Faulty};
use crate::common::share::one_of;
use crate::common::terminal::Terminal;
use crate::common::{LLAMA_CPP_F32, architecture, common_models, tiny_llama2, variant};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use xcheck::error::Result;
use xcheck::model::{
    Activation, Dimensions, LoadedModel, LongRope, LongRopeModel, Model, ModelFiles, ModelPass,
};
use xcheck::numerics::{BitnetCpp, F32, KvType, LlamaCpp, Numerics, Transformers};
use xcheck::ops::attention::AttentionScale;
use xcheck::ops::rope::Rope;
use xcheck::selfcheck::{
    CheckResult, CheckSubject, Exactness, cache_on_equals_off, check_all, chunks_equal_one_pass,
    formats_agree, in_one_order, prefill_equals_decode, recorded_equals_unrecorded,
    side_by_side_equals_alone, window_equals_whole,
};
use xcheck::shipped_models;
use xcheck::tensor::Tensor;
use xcheck::verdict::Verdict;
use xcheck::weight::{DType, Matrix, StoredTensor};

type Check = fn(CheckSubject) -> Result<CheckResult>;

fn verdict(check: Check, model: &dyn Model, numerics: &dyn Numerics) -> Verdict {
    let checked = check(CheckSubject { model, numerics }).expect("it runs");
    checked.verdict.unwrap_or_else(|| panic!("{checked:?}"))
}

// ---- what ships -----------------------------------------------------------------------------------------

#[test]
fn every_model_that_ships_agrees_with_itself_in_every_format() {
    for model in one_of(3, shipped_models::MODELS) {
        let (code, report) = Terminal::new().json(&["selfcheck", "--model", model.name]);
        assert_eq!((code, &report["verdict"]), (0, &"pass".into()), "{report:#}");
        let checks = report["checks"].as_array().expect("a list");
        let passed = |check: &str| {
            let of_it: Vec<_> = checks.iter().filter(|row| row["check"] == check).collect();
            !of_it.is_empty() && of_it.iter().all(|row| row["verdict"] == "pass")
        };
        for check in [
            "prefill equals decode",
            "chunks equal one pass",
            "cache on equals cache off",
            "side by side equals alone",
            "recorded equals unrecorded",
        ] {
            assert!(passed(check), "{} {check}: {report:#}", model.name);
        }
        assert_eq!(passed("window kept equals all kept"), model.name.contains("gemma"), "{report:#}");
        // BitNet's formats pack weights in types of their own, and llama2.c's files are neither of the two.
        let has_both = common_models().any(|common| common.name == model.name);
        assert_eq!(passed("safetensors equals GGUF"), has_both, "{report:#}");
    }
}

#[test]
fn bits_are_held_together_but_in_llama_cpps_numerics_which_have_an_order_for_one_token_and_one_for_several() {
    let exactness = |name: &str, numerics: &dyn Numerics| {
        let loaded = variant(name).load().expect("it loads");
        CheckSubject { model: &*loaded.model, numerics }.exactness()
    };
    assert_eq!(exactness("tiny-llama2-f16", &F32), Exactness::Bits);
    assert_eq!(exactness("tiny-llama2-q8_0", &LLAMA_CPP_F32), Exactness::Rounding);
    assert_eq!(exactness("tiny-llama2-f16", &LLAMA_CPP_F32), Exactness::Rounding);
}

#[test]
fn a_single_file_has_no_other_format_to_agree_with_and_passes() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2/tiny-llama2-q8_0.gguf");
    let (code, report) = Terminal::new().json(&["selfcheck", "--model", file, "--numerics", "llama.cpp"]);
    assert_eq!((code, &report["verdict"]), (0, &"pass".into()));
    let across = report["checks"].as_array().expect("a list").last().expect("a row").clone();
    assert_eq!((&across["check"], across["verdict"].is_null()), (&"safetensors equals GGUF".into(), true));
}

// ---- planted faults -------------------------------------------------------------------------------------

/// The rows of `x` in another order: row `t` is that of `of(t)`.
fn reordered(x: &Tensor, of: impl Fn(usize) -> usize) -> Tensor {
    let rows = (0..x.rows()).flat_map(|row| x.row(of(row)));
    Tensor::new(x.shape(), rows.copied().collect())
}

/// Whose arithmetic a fault is planted in.
trait Arithmetic {
    const NUMERICS: &'static dyn Numerics;
}

struct LlamaCppF32;
struct LlamaCppF16;
struct BitnetCppF16;

impl Arithmetic for LlamaCppF32 {
    const NUMERICS: &'static dyn Numerics = &LLAMA_CPP_F32;
}

impl Arithmetic for LlamaCppF16 {
    const NUMERICS: &'static dyn Numerics = &LlamaCpp { kv: KvType::F16 };
}

impl Arithmetic for BitnetCppF16 {
    const NUMERICS: &'static dyn Numerics = &BitnetCpp { kv: KvType::F16 };
}

/// A decode pass sees the keys shifted by one position.
fn shifted_keys<A: Arithmetic>() -> Faulty {
    let scores = |q: &Tensor, k: &Tensor, scale: AttentionScale| {
        let shifted = reordered(k, |row| (row + 1) % k.rows());
        A::NUMERICS.scores(q, if q.rows() == 1 { &shifted } else { k }, scale)
    };
    Faulty { base: Base(A::NUMERICS), scores: Some(scores), ..Faulty::default() }
}

/// A decode pass finds the key of the token before in place of its own.
fn stale_key<A: Arithmetic>() -> Faulty {
    let scores = |q: &Tensor, k: &Tensor, scale: AttentionScale| {
        let last = k.rows() - 1;
        let stale = reordered(k, |row| if row == last { row.saturating_sub(1) } else { row });
        A::NUMERICS.scores(q, if q.rows() == 1 { &stale } else { k }, scale)
    };
    Faulty { base: Base(A::NUMERICS), scores: Some(scores), ..Faulty::default() }
}

/// What a decode pass caches is rounded more coarsely.
fn rounded_in_decode<A: Arithmetic>() -> Faulty {
    let to_cache = |x: Tensor| {
        let x = A::NUMERICS.to_cache(x);
        if x.rows() == 1 { x.map(|value| (value * 64.0).round() / 64.0) } else { x }
    };
    Faulty { base: Base(A::NUMERICS), to_cache: Some(to_cache), ..Faulty::default() }
}

/// Decode passes count their positions one too high.
fn wrong_position<A: Arithmetic>() -> Faulty {
    let rope_table = |rope: &Rope, positions: Range<usize>| {
        let off = usize::from(positions.len() == 1 && positions.start > 0);
        A::NUMERICS.rope_table(rope, positions.start + off..positions.end + off)
    };
    Faulty { base: Base(A::NUMERICS), rope_table: Some(rope_table), ..Faulty::default() }
}

fn wrong_caches<A: Arithmetic>() -> [(&'static str, Faulty); 4] {
    [
        ("shifted keys", shifted_keys::<A>()),
        ("a stale key", stale_key::<A>()),
        ("coarse rounding", rounded_in_decode::<A>()),
        ("a wrong position", wrong_position::<A>()),
    ]
}

#[test]
fn a_wrong_kv_cache_fails_both_checks_of_the_kv_cache_bit_for_bit_and_no_other() {
    let model = tiny_llama2();
    for (what, fault) in wrong_caches::<LlamaCppF32>() {
        let subject = CheckSubject { model: &model, numerics: &fault };
        for checked in in_one_order(subject).expect("it runs") {
            assert_eq!(checked.verdict, Some(Verdict::Fail), "{what}: {checked:?}");
        }
        assert_eq!(verdict(side_by_side_equals_alone, &model, &fault), Verdict::Pass, "{what}");
    }
}

fn test_data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

fn load(path: &Path) -> LoadedModel {
    ModelFiles::open(path).and_then(|files| files.load()).expect("it loads")
}

fn assert_wrong_caches_are_found<A: Arithmetic>(model: &dyn Model) {
    assert_eq!(CheckSubject { model, numerics: A::NUMERICS }.exactness(), Exactness::Rounding);
    for check in [prefill_equals_decode as Check, cache_on_equals_off] {
        assert_eq!(verdict(check, model, A::NUMERICS), Verdict::Pass);
        for (what, fault) in wrong_caches::<A>() {
            assert_eq!(verdict(check, model, &fault), Verdict::Fail, "{what}");
        }
    }
}

#[test]
fn a_wrong_kv_cache_is_more_than_rounding_in_floats_and_in_every_quantised_format() {
    assert_wrong_caches_are_found::<LlamaCppF32>(&tiny_llama2());
    for file in ["formats/q8_0.gguf", "formats/q4_k.gguf", "formats/q4_k_m.gguf"] {
        assert_wrong_caches_are_found::<LlamaCppF16>(&*load(&test_data(file)).model);
    }
    for name in ["tiny-bitnet-i2_s", "tiny-bitnet-b158-i2_s"] {
        assert_wrong_caches_are_found::<BitnetCppF16>(&*variant(name).load().expect("it loads").model);
    }
}

#[test]
fn a_kernel_for_several_tokens_that_is_off_by_little_is_more_than_rounding() {
    // Far less than an activation comes to that rounds to the next int8.
    let linear = |x: &Tensor, w: &_| {
        let product = LlamaCppF16::NUMERICS.linear(x, w);
        if x.rows() > 1 { product.map(|value| value * 1.0001) } else { product }
    };
    let fault = Faulty { base: Base(LlamaCppF16::NUMERICS), linear: Some(linear), ..Faulty::default() };
    for file in ["formats/q8_0.gguf", "formats/q4_k.gguf"] {
        let loaded = load(&test_data(file));
        for check in [prefill_equals_decode as Check, cache_on_equals_off] {
            assert_eq!(verdict(check, &*loaded.model, &fault), Verdict::Fail, "{file}");
        }
    }
}

#[test]
fn without_a_fault_the_same_numerics_pass() {
    let model = tiny_llama2();
    let checked = check_all(CheckSubject { model: &model, numerics: &Faulty::default() }).expect("it runs");
    assert!(checked.iter().all(|one| one.verdict != Some(Verdict::Fail)), "{checked:?}");
}

#[test]
fn the_first_wrong_tap_is_named() {
    let model = tiny_llama2();
    let fault = wrong_position::<LlamaCppF32>();
    let checked = prefill_equals_decode(CheckSubject { model: &model, numerics: &fault }).expect("it runs");
    assert!(checked.detail.starts_with("first at q_rope, layer 0, pass 1"), "{}", checked.detail);
}

#[test]
fn a_sliding_window_of_the_wrong_length_fails_its_check() {
    use xcheck::ops::attention::Mask;
    let loaded = variant("tiny-gemma3-hf").load().expect("it loads");
    // Attends to everything that is there: right for what is kept only where nothing was left out.
    let softmax = |scores: &Tensor, mask: Mask| F32.softmax(scores, Mask { window: None, ..mask });
    let fault = Faulty { softmax: Some(softmax), ..Faulty::default() };
    assert_eq!(verdict(window_equals_whole, &*loaded.model, &fault), Verdict::Fail);
    assert_eq!(verdict(window_equals_whole, &*loaded.model, &F32), Verdict::Pass);
}

#[test]
fn another_order_of_sums_when_nobody_looks_fails_the_check_of_the_recording() {
    // The product of one row is not that of many: what a head of one row would be without `linear_of_pass`.
    let linear = |x: &Tensor, w: &_| {
        let product = LLAMA_CPP_F32.linear(x, w);
        if x.rows() == 1 { product.map(|value| value * (1.0 + f32::EPSILON)) } else { product }
    };
    let fault = Faulty { linear: Some(linear), ..Faulty::default() };
    assert_eq!(verdict(recorded_equals_unrecorded, &tiny_llama2(), &fault), Verdict::Fail);
}

#[test]
fn another_weight_in_safetensors_than_in_gguf_fails_the_check_of_formats() {
    let original = variant("tiny-llama2-hf").load().expect("it loads");
    let mut other = tiny_llama2();
    let agree = |other: &dyn Model| {
        let [one, other] = [&*original.model, other].map(|model| CheckSubject { model, numerics: &F32 });
        formats_agree(one, other).expect("they run").verdict
    };
    assert_eq!(agree(&other), Some(Verdict::Pass));
    other.output_norm.weight_mut()[5] *= 1.01;
    assert_eq!(agree(&other), Some(Verdict::Fail));
}

/// Where the next token of a run stands, of whichever run came last: one number for all sequences.
static POSITION: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_state_that_sequences_of_a_batch_share_fails_the_check_of_batches() {
    let rope_table = |rope: &Rope, positions: Range<usize>| {
        if positions.start == 0 {
            POSITION.store(0, Ordering::Relaxed);
        }
        let first = POSITION.fetch_add(positions.len(), Ordering::Relaxed);
        F32.rope_table(rope, first..first + positions.len())
    };
    let fault = Faulty { base: Base(&F32), rope_table: Some(rope_table), ..Faulty::default() };
    let model = tiny_llama2();
    // One sequence after the other is not disturbed.
    assert_eq!(verdict(prefill_equals_decode, &model, &fault), Verdict::Pass);
    assert_eq!(verdict(side_by_side_equals_alone, &model, &fault), Verdict::Fail);
    assert_eq!(verdict(side_by_side_equals_alone, &model, &F32), Verdict::Pass);
}

// ---- what cannot differ ---------------------------------------------------------------------------------

fn assert_no_check_passes(model: &dyn Model, numerics: &dyn Numerics, expected: Verdict) {
    let checked = check_all(CheckSubject { model, numerics }).expect("it runs");
    let judged: Vec<_> = checked.iter().filter(|one| one.verdict.is_some()).collect();
    assert!(!judged.is_empty(), "{checked:?}");
    judged.iter().for_each(|one| assert_eq!(one.verdict, Some(expected), "{one:?}"));
}

#[test]
fn a_model_that_gives_nan_fails_every_check() {
    let not_a_number = |x: &Tensor, w: &_| LLAMA_CPP_F32.linear(x, w).map(|_| f32::NAN);
    let infinite = |x: &Tensor, w: &_| LLAMA_CPP_F32.linear(x, w).map(|_| f32::INFINITY);
    for linear in [not_a_number as fn(&Tensor, &Matrix) -> Tensor, infinite] {
        let fault = Faulty { linear: Some(linear), ..Faulty::default() };
        assert_no_check_passes(&tiny_llama2(), &fault, Verdict::Fail);
    }
}

#[test]
fn a_model_whose_numbers_cannot_differ_passes_no_check() {
    let zero = |x: &Tensor, w: &_| LLAMA_CPP_F32.linear(x, w).map(|_| 0.0);
    let constant = |x: &Tensor, w: &_| LLAMA_CPP_F32.linear(x, w).map(|_| 0.5);
    let same_for_all = |x: &Tensor, w: &Matrix| {
        Tensor::from_rows(x.rows(), w.rows, |_, out| (0..).zip(out).for_each(|(i, out)| *out = i as f32))
    };
    for linear in [zero as fn(&Tensor, &Matrix) -> Tensor, constant, same_for_all] {
        let fault = Faulty { linear: Some(linear), ..Faulty::default() };
        assert_no_check_passes(&tiny_llama2(), &fault, Verdict::Inconclusive);
    }
}

#[test]
fn an_operation_that_is_all_zero_is_named() {
    let mut model = tiny_llama2();
    let down = &model.layers[1].ffn.down.weight;
    let (shape, bytes) = (vec![down.rows, down.cols], vec![0; 4 * down.rows * down.cols]);
    let zeros = StoredTensor { dtype: DType::F32, shape, data: bytes.into() };
    model.layers[1].ffn.down.weight = Matrix::from_stored(&zeros).expect("it is whole");
    for numerics in [&F32 as &dyn Numerics, &LLAMA_CPP_F32] {
        let checked = prefill_equals_decode(CheckSubject { model: &model, numerics }).expect("it runs");
        assert_eq!(checked.verdict, Some(Verdict::Inconclusive));
        assert_eq!(checked.detail, "ffn_out, layer 1 shows nothing: every value is 0");
    }
}

#[test]
fn a_file_of_zeros_is_inconclusive() {
    let original = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2/tiny-llama2-f32.gguf");
    let mut bytes = std::fs::read(original).expect("it ships");
    // The weights begin before byte 30000; what is zeroed makes every layer, and the embeddings, zero.
    bytes[30_000..].fill(0);
    let terminal = Terminal::new();
    std::fs::write(terminal.path().join("zeros.gguf"), bytes).expect("it is written");
    let (code, report) = terminal.json(&["selfcheck", "--model", "zeros.gguf"]);
    assert_eq!((code, &report["verdict"]), (3, &"inconclusive".into()), "{report:#}");
    let checks = report["checks"].as_array().expect("a list");
    assert!(checks.len() > 10 && checks.iter().all(|check| check["verdict"] != "pass"), "{report:#}");
}

#[test]
fn every_quantised_weight_type_agrees_with_itself_in_llama_cpp_numerics() {
    let files = std::fs::read_dir(test_data("formats")).expect("it is there");
    let paths = files.map(|file| file.expect("listed").path());
    let is_gguf = |path: &PathBuf| path.extension().is_some_and(|found| found == "gguf");
    let mut models: Vec<_> = paths.filter(is_gguf).collect();
    assert!(models.len() >= 17);
    models.sort();
    for path in one_of(3, models) {
        let subject = CheckSubject { model: &*load(&path).model, numerics: &LlamaCpp::default() };
        for checked in check_all(subject).expect("it runs") {
            let path = path.display();
            assert!(matches!(checked.verdict, Some(Verdict::Pass) | None), "{path}: {checked:?}");
        }
    }
}

// ---- boundaries -----------------------------------------------------------------------------------------

fn phi4(file: &str) -> LoadedModel {
    load(&architecture("tiny-phi4").join(file))
}

#[test]
fn a_sequence_that_outgrows_longropes_short_factors_has_the_same_bits_in_any_chunked_prefill() {
    for (file, numerics) in [("hf", &F32 as &dyn Numerics), ("tiny-phi4-q8_0.gguf", &LLAMA_CPP_F32)] {
        let loaded = phi4(file);
        for checked in check_all(CheckSubject { model: &*loaded.model, numerics }).expect("it runs") {
            assert_ne!(checked.verdict.unwrap_or(Verdict::Pass), Verdict::Fail, "{file}: {checked:?}");
        }
        assert_eq!(verdict(chunks_equal_one_pass, &*loaded.model, numerics), Verdict::Pass, "{file}");
    }
}

#[test]
fn chunked_prefill_passes_with_a_recurrent_state_and_is_inconclusive_with_chunks_of_the_delta_rule() {
    // The delta rule starts a new chunk with each pass, so that another split of the prompt rounds differently.
    for (model, expected) in [
        ("tiny-lfm2", Verdict::Pass),
        ("tiny-granitehybrid", Verdict::Pass),
        ("tiny-falconh1", Verdict::Pass),
        ("tiny-qwen3next", Verdict::Inconclusive),
    ] {
        let gguf = format!("{model}-q8_0.gguf");
        let kinds: [(&str, &dyn Numerics); 3] =
            [("hf", &F32), ("hf", &Transformers::Bf16), (&gguf, &LLAMA_CPP_F32)];
        for (file, numerics) in kinds {
            let loaded = load(&architecture(model).join(file));
            let checks = check_all(CheckSubject { model: &*loaded.model, numerics }).expect("it runs");
            assert!(
                checks.iter().any(|checked| checked.verdict == Some(Verdict::Pass)),
                "{model}: {checks:?}"
            );
            for checked in checks {
                assert_ne!(checked.verdict.unwrap_or(Verdict::Pass), Verdict::Fail, "{model}: {checked:?}");
            }
            assert_eq!(verdict(chunks_equal_one_pass, &*loaded.model, numerics), expected, "{model}, {file}");
        }
    }
}

/// Keeps the rotation of keys that were read before the sequence outgrew the short factors, and claims to read them again.
struct Keeps<'m>(LongRopeModel<'m>);

impl Model for Keeps<'_> {
    fn architecture(&self) -> &'static str {
        self.0.architecture()
    }

    fn dimensions(&self) -> Dimensions {
        self.0.dimensions()
    }

    fn outer_matrices(&self) -> Vec<(&'static str, &Matrix)> {
        self.0.outer_matrices()
    }

    fn layer_matrices(&self, layer: usize) -> Vec<(&'static str, &Matrix)> {
        self.0.layer_matrices(layer)
    }

    fn head(&self) -> &Matrix {
        self.0.head()
    }

    fn activation(&self) -> Activation {
        self.0.activation()
    }

    fn set_gelu(&mut self, _: Activation) -> bool {
        false
    }

    fn pass_within<'m>(
        &'m self,
        n: &'m dyn Numerics,
        positions: Range<usize>,
        length: usize,
    ) -> Box<dyn ModelPass + 'm> {
        self.0.pass_within(n, positions, length)
    }
}

#[test]
fn longrope_keys_that_keep_the_short_factors_fail_every_check_of_the_kv_cache() {
    let loaded = phi4("hf");
    let keeps = Keeps(LongRopeModel { model: &*loaded.model, rule: LongRope::Kept });
    for check in [prefill_equals_decode, chunks_equal_one_pass] as [Check; 2] {
        assert_eq!(verdict(check, &keeps, &F32), Verdict::Fail);
    }
    // Its prompt is longer than the short factors are for.
    assert_eq!(verdict(cache_on_equals_off, &keeps, &F32), Verdict::Pass);
}

/// tiny-mistral with another window.
fn with_window(window: usize) -> (tempfile::TempDir, LoadedModel) {
    let (home, from) = (tempfile::tempdir().expect("a folder"), architecture("tiny-mistral").join("hf"));
    std::fs::copy(from.join("model.safetensors"), home.path().join("model.safetensors"))
        .expect("it is copied");
    let config = std::fs::read_to_string(from.join("config.json")).expect("it is there");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config["sliding_window"] = window.into();
    std::fs::write(home.path().join("config.json"), config.to_string()).expect("it is written");
    let loaded = load(home.path());
    (home, loaded)
}

#[test]
fn a_sliding_window_of_any_length_is_crossed_and_a_fault_there_is_found() {
    use xcheck::ops::attention::Mask;
    let (_home, loaded) = with_window(90);
    // Right up to the window, and in a pass that starts at position 0.
    let softmax = |scores: &Tensor, mask: Mask| {
        let window = mask.window.map(|window| window + usize::from(mask.position > window));
        F32.softmax(scores, Mask { window, ..mask })
    };
    let fault = Faulty { softmax: Some(softmax), ..Faulty::default() };
    assert_eq!(verdict(chunks_equal_one_pass, &*loaded.model, &fault), Verdict::Fail);
    assert_eq!(verdict(prefill_equals_decode, &*loaded.model, &fault), Verdict::Fail);
    for check in [chunks_equal_one_pass, prefill_equals_decode, window_equals_whole] as [Check; 3] {
        assert_eq!(verdict(check, &*loaded.model, &F32), Verdict::Pass);
    }
}

#[test]
fn a_causal_mask_by_chunk_length_fails_the_check_of_chunked_prefill_alone() {
    use xcheck::ops::attention::Mask;
    let loaded = variant("tiny-gemma3-hf").load().expect("it loads");
    let softmax = |scores: &Tensor, mask: Mask| {
        let is_chunk = mask.position > 0 && scores.shape()[1] > 1;
        let window = mask.window.map(|window| if is_chunk { window + 1 } else { window });
        F32.softmax(scores, Mask { window, ..mask })
    };
    let fault = Faulty { softmax: Some(softmax), ..Faulty::default() };
    assert_eq!(verdict(chunks_equal_one_pass, &*loaded.model, &fault), Verdict::Fail);
    assert_eq!(verdict(prefill_equals_decode, &*loaded.model, &fault), Verdict::Pass);
}
