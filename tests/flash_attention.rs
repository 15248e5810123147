//! llama.cpp with flash attention, as its CPU backend computes it: dumps of a real run (tests/data/flash/README.md).

use std::path::Path;

use serde_json::Value;
use xcheck::align::Selection;
use xcheck::check::Mode;
use xcheck::checkpoint::Point;
use xcheck::dump::Dump;
use xcheck::format::FileBytes;
use xcheck::model::ModelFiles;
use xcheck::numerics::LlamaCppFlash;
use xcheck::verdict::Verdict;
use xcheck::weight::DType;

use crate::common::judge_in;
use crate::common::terminal::Terminal;

/// A prompt of 12 tokens, of which values are added up in f16, and two passes of one, with a cache of either type; and one of
/// 64, in tiles.
const DUMPS: [(&str, &str); 3] = [
    ("checkpoints/tiny-llama3/tiny-llama3-f32.gguf", "tests/data/flash/tiny-llama3-f32.safetensors"),
    (
        "checkpoints/tiny-llama3/tiny-llama3-f32.gguf",
        "tests/data/flash/tiny-llama3-f32-f32-cache.safetensors",
    ),
    ("checkpoints/tiny-gpt2/tiny-gpt2-f32.gguf", "tests/data/flash/tiny-gpt2-f32-tiled.safetensors"),
];

fn here(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

fn judged(model: &str, dump: &str, more: &[&str]) -> (i32, Value) {
    let (model, dump) = (here(model), dump.to_owned());
    let arguments = ["run", "--model", &model, "--reference", &dump, "--no-report"];
    let (code, mut report) = Terminal::new().json(&[&arguments, more].concat());
    (code, report["references"][0].take())
}

#[test]
fn the_values_of_a_real_flash_attention_run_are_computed_again() {
    for (model, dump) in DUMPS {
        let (code, found) = judged(model, &here(dump), &[]);
        assert_eq!(code, 0, "{dump}: {found:#}");
        assert_eq!(found["numerics"], "llama.cpp-flash", "{dump}");
        let rows = found["results"].as_array().expect("rows");
        let contexts: Vec<&Value> = rows.iter().filter(|row| row["tap"] == "attn_context").collect();
        assert!(!contexts.is_empty(), "{dump}");
        for row in contexts {
            let error = row["local"]["rel_l2"].as_f64().expect("it was compared");
            // Half a unit in the last place of f16 is 5e-4: nothing was rounded otherwise but here and there.
            assert!(error < 1e-4, "{dump}: {row:#}");
        }
    }
}

#[test]
fn without_flash_attention_the_same_is_further_off_and_still_explained() {
    let (model, dump) = DUMPS[0];
    let terminal = Terminal::new();
    let plain = terminal.path().join("plain.safetensors").display().to_string();
    let made = ["dump", "--model", &here(model), "--tokens", "1,393,395,260,394,486,263", "--decode", "2"];
    let numerics = ["--numerics", "llama.cpp", "--out", &plain];
    assert_eq!(terminal.run(&[&made[..], &numerics[..]].concat()).code, 0);
    let (code, found) = judged(model, &plain, &["--numerics", "llama.cpp-flash"]);
    assert_eq!(code, 0, "{dump}: {found:#}");
    let rows = found["results"].as_array().expect("rows");
    let contexts = rows.iter().filter(|row| row["tap"] == "attn_context");
    let far = contexts.filter(|row| row["local"]["rel_l2"].as_f64() > Some(1e-4)).count();
    assert!(far > 0, "f16 sums are not seen: {found:#}");
}

#[test]
fn a_fault_beside_flash_attention_fails() {
    let (model, _) = DUMPS[0];
    for change in ["attn_scale=1", "rope_theta=10000", "mask_causal=strict"] {
        let terminal = Terminal::new();
        let wrong = terminal.path().join("wrong.safetensors").display().to_string();
        let made =
            ["dump", "--model", &here(model), "--tokens", "1,393,395,260,394,486,263", "--decode", "2"];
        let how = ["--numerics", "llama.cpp-flash", "--suppose", change, "--out", &wrong];
        let done = terminal.run(&[&made[..], &how[..]].concat());
        assert_eq!(done.code, 0, "{change}: {}", done.stderr);
        let (code, found) = judged(model, &wrong, &["--numerics", "llama.cpp-flash"]);
        assert_eq!(code, 1, "{change}: {found:#}");
    }
}

/// Block types of a cache; the model's heads have 32 values, so llama.cpp does not rotate them.
const BLOCKS: [&str; 6] = ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"];

const BF16: &str = "tests/data/formats/bf16.gguf";

fn dump_of_cache(kv: &str) -> String {
    here(&format!("tests/data/flash/bf16-{kv}-cache.safetensors"))
}

/// Attention weights are not computed as such, so contexts differ by rounding; all else has the same bits.
#[test]
fn a_kv_cache_of_blocks_of_llama_cpp_has_the_same_bits() {
    for kv in BLOCKS {
        let (code, found) = judged(BF16, &dump_of_cache(kv), &[]);
        assert_eq!(code, 0, "{kv}: {found:#}");
        let rows = found["results"].as_array().expect("rows");
        let caches: Vec<&Value> = rows
            .iter()
            .filter(|row| ["k_cache", "v_cache"].contains(&row["tap"].as_str().unwrap_or("")))
            .collect();
        assert_eq!(caches.len(), 6, "{kv}");
        for row in caches {
            assert_eq!(row["local"]["max_abs"].as_f64(), Some(0.0), "{kv}: {row:#}");
        }
        let contexts: Vec<&Value> = rows.iter().filter(|row| row["tap"] == "attn_context").collect();
        assert_eq!(contexts.len(), 3, "{kv}");
        for row in contexts {
            assert!(row["local"]["rel_l2"].as_f64().is_some_and(|error| error < 1e-6), "{kv}: {row:#}");
        }
    }
}

#[test]
fn a_kv_cache_of_another_block_type_fails() {
    for (kv, other) in
        [("q8_0", "f16"), ("q8_0", "q4_0"), ("q5_0", "q8_0"), ("q4_0", "q5_0"), ("q4_0", "f16")]
            .into_iter()
            .chain([
                ("q5_1", "q5_0"),
                ("q4_1", "q4_0"),
                ("q4_1", "q5_1"),
                ("iq4_nl", "q4_0"),
                ("q4_0", "iq4_nl"),
            ])
    {
        let (code, found) = judged(BF16, &dump_of_cache(kv), &["--kv-cache", other]);
        assert_eq!(code, 1, "{kv} as {other}: {found:#}");
    }
}

/// A dump of our own arithmetic, with a fault; without it, it passes.
fn dumped_with_cache(terminal: &Terminal, kv: &str, faults: &[&str]) -> String {
    let out = terminal.path().join(format!("{}.safetensors", faults.len())).display().to_string();
    let made = ["dump", "--model", &here(BF16), "--tokens", "3,17,30,8,25,1,12,21", "--decode", "2"];
    let how = ["--numerics", "llama.cpp-flash", "--kv-cache", kv, "--out", &out];
    let faults = faults.iter().flat_map(|fault| ["--suppose", fault]);
    let all: Vec<&str> = made.into_iter().chain(how).chain(faults).collect();
    let done = terminal.run(&all);
    assert_eq!(done.code, 0, "{kv}: {}", done.stderr);
    out
}

#[test]
fn a_dropped_scale_of_keys_or_values_in_a_quantised_cache_is_named() {
    for (kv, tap) in BLOCKS.into_iter().flat_map(|kv| ["k_cache", "v_cache"].map(|tap| (kv, tap))) {
        let terminal = Terminal::new();
        assert_eq!(judged(BF16, &dumped_with_cache(&terminal, kv, &[]), &[]).0, 0, "{kv}");
        let fault = format!("cache_scale@{tap}=codes");
        let (code, found) = judged(BF16, &dumped_with_cache(&terminal, kv, &[&fault]), &[]);
        assert_eq!(code, 1, "{kv}, {tap}: {found:#}");
        assert_eq!(found["first_divergence"]["tap"], *tap, "{kv}: {found:#}");
        let causes = found["findings"].to_string();
        assert!(causes.contains("cache_scale") && causes.contains("codes"), "{kv}, {tap}: {causes}");
    }
}

#[test]
fn a_quantised_cache_that_does_not_fit_the_heads_is_refused() {
    // Latent attention caches 64 values of a latent with 8 rotated ones, not heads of 40.
    let latent = "tests/data/architectures/tiny-deepseekv3/tiny-deepseekv3-f32.gguf";
    for (model, width) in [(DUMPS[0].0, ""), (latent, "72;")] {
        let terminal = Terminal::new();
        let small = terminal.run(&[
            "dump",
            "--model",
            &here(model),
            "--tokens",
            "1,5",
            "--numerics",
            "llama.cpp-flash",
            "--kv-cache",
            "q8_0",
            "--out",
            &terminal.path().join("x.safetensors").display().to_string(),
        ]);
        assert_eq!(small.code, 2, "{}", small.stderr);
        let told =
            format!("q8_0 KV cache needs heads of a multiple of 32 values, and this model has {width}");
        assert!(small.stderr.contains(&told), "{}", small.stderr);
    }
}

const HEAD_OF_128: &str = "tests/data/flash/head-of-128.gguf";

/// Keys are transformed by 128 values, values by 64.
#[test]
fn a_rotated_kv_cache_of_llama_cpp_has_the_same_bits_and_is_not_taken_for_a_plain_one() {
    for kv in [DType::Q8_0, DType::Q4_0] {
        let file = here(&format!("tests/data/flash/rotated-{kv}-cache.safetensors"));
        let (code, found) = judged(HEAD_OF_128, &file, &[]);
        assert_eq!(code, 0, "{kv}: {found:#}");
        let rows = found["results"].as_array().expect("rows");
        let caches =
            rows.iter().filter(|row| ["k_cache", "v_cache"].contains(&row["tap"].as_str().unwrap_or("")));
        let errors: Vec<_> = caches.map(|row| row["local"]["max_abs"].as_f64()).collect();
        assert_eq!(errors, [Some(0.0); 6], "{kv}");
        let source = FileBytes::open(Path::new(&here(HEAD_OF_128))).expect("it is there");
        let model = ModelFiles::Gguf(source).load().expect("it loads").model;
        let dump = Dump::open(Path::new(&file)).expect("it is sound");
        let verdicts = [true, false].map(|is_rotated| {
            let numerics = LlamaCppFlash::of(kv).expect("a type of caches").rotated(is_rotated);
            let outcome = judge_in(Mode::Both, &Selection::everything(), &dump, &*model, &numerics, &mut ());
            (outcome.verdict, outcome.first_divergence().map(|row| row.site.point))
        });
        assert_eq!(verdicts, [(Verdict::Pass, None), (Verdict::Fail, Some(Point::KCache))], "{kv}");
    }
}
