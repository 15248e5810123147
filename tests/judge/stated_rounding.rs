//! What a manifest claims of its arithmetic widens what is allowed only where nothing narrower explains the values, and never to a
//! pass where the arithmetic is not known.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use xcheck::checkpoint::Point;

use super::clay::{Clay, largest};
use super::scene::Scene;
use crate::common::share;
use crate::common::terminal::Terminal;

/// The exit code for a dump of a model by an engine in `f32`, with wrong attention scales or not, whose manifest has these settings.
fn code(model: &str, suppose: &[&str], points: &[Point], settings: Value) -> (i32, String) {
    claimed(model, suppose, points, json!({"settings": settings}))
}

/// [`code`] with these fields of the manifest's producer.
fn claimed(model: &str, suppose: &[&str], points: &[Point], claims: Value) -> (i32, String) {
    claimed_to(&["--no-report"], model, suppose, points, claims)
}

/// [`claimed`] with these options of `check`. The text is the reason, or the message of a refusal.
fn claimed_to(
    options: &[&str],
    model: &str,
    suppose: &[&str],
    points: &[Point],
    claims: Value,
) -> (i32, String) {
    let terminal = Terminal::new();
    let made = terminal.path().join("made.safetensors").display().to_string();
    let words = ["dump", "--model", model, "--tokens", TOKENS, "--decode", "1", "-o", &made];
    let finished = terminal.run(&[&words, suppose].concat());
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let dump = xcheck::dump::Dump::open(made.as_ref()).expect("a sound dump");
    let clay = Clay::of(&dump).with_only(points).say(|manifest| {
        manifest["producer"] = json!({"name": "my-engine", "version": "1"});
        let claims = claims.as_object().expect("an object").clone();
        manifest["producer"].as_object_mut().expect("an object").extend(claims);
    });
    let path = terminal.path().join("claimed.safetensors");
    clay.save(&path);
    let path = path.display().to_string();
    let words = ["check", "--model", model, "--candidate", &path, "--no-causes", "--format", "json"];
    let finished = terminal.run(&[&words, options].concat());
    let report: Option<Value> = serde_json::from_str(&finished.stdout).ok();
    let reason = report.map(|report| report["references"][0]["reason"].to_string());
    (finished.code, reason.filter(|_| finished.code != 2).unwrap_or(finished.stderr))
}

const TOKENS: &str = "1,9,17,200,77,301,45,46,260,13,5,8";
const BLOCKS: &[Point] = &[Point::Embed, Point::BlockOut, Point::Logits];
const BLOCKS_AND_PRODUCTS: &[Point] = &[Point::FfnOut, Point::BlockOut, Point::Logits];
const WRONG: &[&str] = &["--suppose", "attn_scale=0.3"];

/// Settings that name no type say nothing: the same verdict as without them.
#[test]
fn a_type_that_is_none_says_nothing() {
    for points in [BLOCKS, &[Point::Logits]] {
        let (unsaid, _) = code("tiny-llama3", WRONG, points, json!({}));
        for dtype in ["auto", "None"] {
            let settings = json!({"dtype": dtype});
            assert_eq!(code("tiny-llama3", &[], points, settings.clone()).0, 0, "{dtype}");
            let (wrong, why) = code("tiny-llama3", WRONG, points, settings);
            assert!(wrong == unsaid && wrong != 0, "{dtype}: {wrong}, without it {unsaid}: {why}");
        }
    }
}

/// A type that nobody knows may be of 8 bits: what only that explains is neither right nor wrong. What `f32` explains passes.
#[test]
fn a_type_that_is_not_known_gives_no_pass_to_what_f32_does_not_explain() {
    for dtype in ["int8", "fp4", "bf61"] {
        let settings = json!({"dtype": dtype});
        assert_eq!(code("tiny-llama3", &[], BLOCKS, settings.clone()).0, 0, "{dtype}");
        let (wrong, why) = code("tiny-llama3", &["--suppose", "attn_scale=0.27"], BLOCKS, settings);
        assert!([1, 3].contains(&wrong), "{dtype}: {wrong} {why}");
    }
}

/// Of a quantised model, too: what `f32` explains passes, and what only 8 bits of an unknown kind explain does not.
#[test]
fn int8_weights_excuse_no_wrong_attention_scale() {
    let model = "tiny-llama3-q8_0";
    let words = ["--numerics", "f32"];
    assert_eq!(code(model, &words, &[Point::Logits], json!({})).0, 0);
    let wrong = [&words[..], &["--suppose", "attn_scale=0.27"]].concat();
    let (code, why) = code(model, &wrong, &[Point::Logits], json!({}));
    assert!([1, 3].contains(&code), "{code} {why}");
}

/// Values that are no bf16 numbers contradict an engine of bf16: they are judged as f32, and bf16 explains nothing.
#[test]
fn values_of_f32_contradict_bf16() {
    let settings = json!({"dtype": "bf16"});
    let right = code("tiny-llama3", &[], &[Point::Logits], settings.clone());
    assert_eq!(right.0, 0, "{}", right.1);
    let (wrong, why) = code("tiny-llama3", &["--suppose", "rope_theta=530000"], &[Point::Logits], settings);
    assert!([1, 3].contains(&wrong), "{wrong} {why}");
    let scene = Scene::shipped("tiny-llama3", "transformers-bf16");
    let path = tempfile::tempdir().expect("a folder");
    let file = path.path().join("bf16.safetensors");
    Clay::of(&scene.dump).with_only(&[Point::Logits]).save(&file);
    let file = file.display().to_string();
    let words = ["check", "--model", "tiny-llama3", "--candidate", &file, "--no-report", "--no-causes"];
    assert_eq!(Terminal::new().json(&words).0, 0, "numbers of bf16 contradict nothing");
}

/// A rounding profile claims a type, too: the same verdicts as for `settings.dtype`.
#[test]
fn values_of_f32_contradict_a_profile_that_rounds_to_bf16() {
    for rounding in
        [json!({"like": "bf16-flash"}), json!({"results": "bf16"}), json!({"like": "bf16-autocast"})]
    {
        let code =
            |suppose| claimed("tiny-llama3", suppose, BLOCKS_AND_PRODUCTS, json!({"rounding": rounding}));
        let right = code(&[]);
        assert_eq!(right.0, 0, "{rounding}: {}", right.1);
        let (wrong, why) = code(&["--suppose", "rope_theta=530000"]);
        assert!([1, 3].contains(&wrong), "{rounding}: {wrong} {why}");
    }
}

/// What the values contradict gives no pass to a wrong dump by tolerances, and no part of a comparison believes it.
#[test]
fn values_of_f32_contradict_bf16_by_tolerances_and_in_shards() {
    let (bf16, f32) = (json!({"settings": {"dtype": "bf16"}}), json!({"settings": {"dtype": "f32"}}));
    let wrong = &["--suppose", "rope_theta=530000"];
    let check = |options: &[&str], suppose: &[&str], claims: &Value| {
        claimed_to(options, "tiny-llama3", suppose, BLOCKS_AND_PRODUCTS, claims.clone())
    };
    for (claims, suppose, codes) in
        [(&f32, &[][..], [0, 0]), (&bf16, &[], [0, 3]), (&bf16, wrong, [1, 3]), (&f32, wrong, [1, 3])]
    {
        let (code, why) = check(&["--gate", "tolerance", "--no-report"], suppose, claims);
        assert!(codes.contains(&code), "{claims} {suppose:?}: {code} {why}");
    }
    let shard = &["--shard", "1/2", "--report", "part"];
    let (code, why) = check(shard, &[], &f32);
    assert_eq!(code, 0, "{why}");
    for suppose in [&[][..], wrong] {
        let (code, why) = check(shard, suppose, &bf16);
        assert!(code == 2 && why.contains("no array has bf16 values"), "{code} {why}");
    }
}

/// Claims of a manifest, partial dumps and faults of several sizes, each with each: no dump passes that chooses another token, or whose
/// predictions are further off than results of 11 bits (f16) take them. TF32 rounds as much, and is the coarsest arithmetic that values of f32 do not contradict.
#[test]
fn no_claim_lets_a_dump_of_f32_pass_that_predicts_otherwise() {
    let claims = [
        json!({"settings": {"dtype": "f32"}}),
        json!({"settings": {"dtype": "tf32"}}),
        json!({"settings": {"dtype": "bf16", "attention": "flash"}}),
        json!({"settings": {"dtype": "fp8"}}),
        json!({"settings": {"weights": "int4"}}),
        json!({"settings": {"numerics": "llama.cpp"}, "rounding": {"results": "bf16"}}),
        json!({"rounding": {"like": "f16-fused"}}),
        json!({"rounding": {"like": "bf16-autocast"}}),
        json!({"rounding": {"like": "tf32"}}),
    ];
    let partial: [&[Point]; 4] = [
        &[Point::Logits],
        &[Point::BlockOut, Point::Logits],
        &[Point::Q, Point::FfnOut, Point::Logits],
        &[Point::FinalNorm],
    ];
    let faults = [
        "attn_scale=0.2042",
        "attn_scale=0.21",
        "rope_theta=510000",
        "rope_theta=700000",
        "norm_eps=1e-4",
        "logit_scale=1.05",
    ];
    // The final norm alone does not show a fault of the logits.
    let is_shown = |((_, points), fault): &((Value, &[Point]), &str)| {
        points.contains(&Point::Logits) || !fault.starts_with("logit")
    };
    let cases = share::pairs(share::pairs(claims, partial), faults).filter(is_shown);
    let right = logits(&[]);
    let of_11_bits = divergence(&right, &logits(&["--numerics", "transformers", "--dtype", "f16"]));
    let (mut passed, mut moved) = (0, BTreeMap::new());
    for ((claim, points), fault) in share::one_of(14, cases) {
        let (code, why) = claimed("tiny-llama3", &["--suppose", fault], points, claim.clone());
        assert!([0, 1, 3].contains(&code), "{claim} {fault}: {code} {why}");
        if code == 0 {
            passed += 1;
            let moved =
                moved.entry(fault).or_insert_with(|| divergence(&right, &logits(&["--suppose", fault])));
            assert!(*moved <= ROOM * of_11_bits, "{claim} {fault} passes with {points:?}: KL {moved}");
        }
    }
    assert!(passed > 0, "faults below rounding pass");
}

/// The judge lets an error be twice as large as in perturbed runs, which squares in a divergence, and a divergence twice as large.
const ROOM: f64 = 8.0;

/// The logits of the prompt.
fn logits(suppose: &[&str]) -> Vec<Vec<f64>> {
    let terminal = Terminal::new();
    let made = terminal.path().join("logits.safetensors").display().to_string();
    let words = ["dump", "--model", "tiny-llama3", "--tokens", TOKENS, "--decode", "0", "-o", &made];
    assert_eq!(terminal.run(&[&words, suppose].concat()).code, 0);
    let dump = xcheck::dump::Dump::open(made.as_ref()).expect("a sound dump");
    let site = dump.sites().find(|site| site.point == Point::Logits).expect("logits");
    let view = dump.view(site).expect("sound").expect("recorded");
    view.to_vec().chunks(view.width()).map(<[f64]>::to_vec).collect()
}

/// The largest KL divergence of a row; infinite where another token is the likeliest.
fn divergence(right: &[Vec<f64>], wrong: &[Vec<f64>]) -> f64 {
    let log_softmax = |row: &[f64]| -> Vec<f64> {
        let sum = row.iter().map(|x| x.exp()).sum::<f64>().ln();
        row.iter().map(|x| x - sum).collect()
    };
    let of_row = |(right, wrong): (&Vec<f64>, &Vec<f64>)| {
        if largest(right) != largest(wrong) {
            return f64::INFINITY;
        }
        let (p, q) = (log_softmax(right), log_softmax(wrong));
        p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
    };
    right.iter().zip(wrong).map(of_row).fold(0.0, f64::max)
}
