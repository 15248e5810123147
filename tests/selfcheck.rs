//! The engine agrees with itself on every model that ships, and a cache that is wrong is found.

mod common;

use common::faulty::Faulty;
use common::terminal::Terminal;
use common::{LLAMA_CPP_F32, common_models, tiny_llama2, variant};
use xcheck::compare::Verdict;
use xcheck::error::Result;
use xcheck::model::Model;
use xcheck::numerics::{F32, LlamaCpp, Numerics};
use xcheck::ops::attention::Scale;
use xcheck::selfcheck::{
    Exactness, Finding, Subject, batch_equals_single, cache_on_equals_off, check_all, formats_agree,
    in_one_order, prefill_equals_decode, recorded_equals_unrecorded, window_equals_whole,
};
use xcheck::shipped;
use xcheck::tensor::Tensor;

type Check = fn(Subject) -> Result<Finding>;

fn verdict(check: Check, model: &dyn Model, numerics: &dyn Numerics) -> Verdict {
    let finding = check(Subject { model, numerics }).expect("it runs");
    finding.verdict.unwrap_or_else(|| panic!("{finding:?}"))
}

// ---- what ships -----------------------------------------------------------------------------------------

#[test]
fn every_model_that_ships_agrees_with_itself_in_every_format() {
    for model in shipped::MODELS {
        let (code, report) = Terminal::new().json(&["selfcheck", "--model", model.name]);
        assert_eq!((code, &report["verdict"]), (0, &"pass".into()), "{report:#}");
        let checks = report["checks"].as_array().expect("a list");
        let passed = |check: &str| {
            let of_it: Vec<_> = checks.iter().filter(|row| row["check"] == check).collect();
            !of_it.is_empty() && of_it.iter().all(|row| row["verdict"] == "pass")
        };
        for check in [
            "prefill equals decode",
            "cache on equals cache off",
            "batch equals single",
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
        Subject { model: &*loaded.model, numerics }.exactness()
    };
    assert_eq!(exactness("tiny-llama2-f16", &F32), Exactness::Bits);
    assert!(matches!(exactness("tiny-llama2-q8_0", &LLAMA_CPP_F32), Exactness::Bound(_)));
    assert!(matches!(exactness("tiny-llama2-f16", &LLAMA_CPP_F32), Exactness::Bound(_)));
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

/// A decode pass sees the keys shifted by one position.
fn shifted_keys() -> Faulty {
    let scores = |q: &Tensor, k: &Tensor, scale: Scale| {
        let shifted = reordered(k, |row| (row + 1) % k.rows());
        LLAMA_CPP_F32.scores(q, if q.rows() == 1 { &shifted } else { k }, scale)
    };
    Faulty { scores: Some(scores), ..Faulty::default() }
}

/// A decode pass finds the key of the token before in place of its own.
fn stale_key() -> Faulty {
    let scores = |q: &Tensor, k: &Tensor, scale: Scale| {
        let last = k.rows() - 1;
        let stale = reordered(k, |row| if row == last { row.saturating_sub(1) } else { row });
        LLAMA_CPP_F32.scores(q, if q.rows() == 1 { &stale } else { k }, scale)
    };
    Faulty { scores: Some(scores), ..Faulty::default() }
}

/// What a decode pass caches is rounded more coarsely.
fn rounded_in_decode() -> Faulty {
    let to_cache = |x: Tensor| if x.rows() == 1 { x.map(|value| (value * 64.0).round() / 64.0) } else { x };
    Faulty { to_cache: Some(to_cache), ..Faulty::default() }
}

/// Decode passes count their positions one too high.
fn wrong_position() -> Faulty {
    let rope_table = |rope: &_, positions: std::ops::Range<usize>| {
        let off = usize::from(positions.len() == 1 && positions.start > 0);
        LLAMA_CPP_F32.rope_table(rope, positions.start + off..positions.end + off)
    };
    Faulty { rope_table: Some(rope_table), ..Faulty::default() }
}

#[test]
fn a_wrong_cache_fails_both_checks_of_the_cache_bit_for_bit_and_no_other() {
    for (what, fault) in [
        ("shifted keys", shifted_keys()),
        ("a stale key", stale_key()),
        ("coarse rounding", rounded_in_decode()),
        ("a wrong position", wrong_position()),
    ] {
        let model = tiny_llama2();
        let subject = Subject { model: &model, numerics: &fault };
        for finding in in_one_order(subject).expect("it runs") {
            assert_eq!(finding.verdict, Some(Verdict::Fail), "{what}: {finding:?}");
        }
        assert_eq!(verdict(batch_equals_single, &model, &fault), Verdict::Pass, "{what}");
    }
}

#[test]
fn a_wrong_cache_is_beyond_the_bound_of_other_orders_of_sums_too() {
    let model = tiny_llama2();
    for fault in [shifted_keys(), stale_key(), wrong_position()] {
        for check in [prefill_equals_decode as Check, cache_on_equals_off] {
            assert_eq!(verdict(check, &model, &fault), Verdict::Fail);
        }
    }
}

#[test]
fn without_a_fault_the_same_numerics_pass() {
    let model = tiny_llama2();
    let findings = check_all(Subject { model: &model, numerics: &Faulty::default() }).expect("it runs");
    assert!(findings.iter().all(|finding| finding.verdict != Some(Verdict::Fail)), "{findings:?}");
}

#[test]
fn the_first_wrong_tap_is_named() {
    let model = tiny_llama2();
    let fault = wrong_position();
    let finding = prefill_equals_decode(Subject { model: &model, numerics: &fault }).expect("it runs");
    assert!(finding.detail.starts_with("first at q_rope, layer 0, pass 1"), "{}", finding.detail);
}

#[test]
fn a_window_that_is_counted_wrongly_fails_the_check_of_the_window() {
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
fn another_weight_fails_the_check_of_the_formats() {
    let original = variant("tiny-llama2-hf").load().expect("it loads");
    let mut other = tiny_llama2();
    let agree = |other: &dyn Model| {
        let [ours, theirs] = [&*original.model, other].map(|model| Subject { model, numerics: &F32 });
        formats_agree(ours, theirs).expect("they run").verdict
    };
    assert_eq!(agree(&other), Some(Verdict::Pass));
    other.output_norm.weight[5] *= 1.01;
    assert_eq!(agree(&other), Some(Verdict::Fail));
}

#[test]
fn a_run_that_gives_no_numbers_does_not_pass() {
    let linear = |x: &Tensor, w: &_| LLAMA_CPP_F32.linear(x, w).map(|_| f32::NAN);
    let fault = Faulty { linear: Some(linear), ..Faulty::default() };
    for check in [prefill_equals_decode as Check, recorded_equals_unrecorded, cache_on_equals_off] {
        let finding = check(Subject { model: &tiny_llama2(), numerics: &fault }).expect("it runs");
        assert_eq!(finding.verdict, Some(Verdict::Fail), "{finding:?}");
    }
}

#[test]
fn every_type_of_weights_agrees_with_itself_in_llama_cpps_numerics() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/formats");
    let files = std::fs::read_dir(folder).expect("it is there").map(|file| file.expect("listed").path());
    let models: Vec<_> = files.filter(|path| path.extension().is_some_and(|found| found == "gguf")).collect();
    assert!(models.len() >= 17);
    for path in models {
        let loaded = xcheck::model::ModelFiles::open(&path).and_then(|files| files.load()).expect("it loads");
        let subject = Subject { model: &*loaded.model, numerics: &LlamaCpp::default() };
        for finding in check_all(subject).expect("it runs") {
            let path = path.display();
            assert!(matches!(finding.verdict, Some(Verdict::Pass) | None), "{path}: {finding:?}");
        }
    }
}
