//! Which numerics are run against a reference: what its settings say, whoever its producer is.

use std::fs;

use crate::common::terminal::Terminal;
use serde_json::{Value, json};

/// A dump by xcheck of a prompt, with these options, whose producer is edited.
fn dump(options: &[&str], edit: impl FnOnce(&mut Value)) -> Terminal {
    let terminal = Terminal::new();
    let arguments = ["dump", "-m", "tiny-llama2-hf", "--tokens", "1,393,395,260", "--decode", "2", "-o", "d"];
    let finished = terminal.run(&[&arguments[..], options].concat());
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let file = terminal.path().join("d/manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).expect("it is there")).expect("JSON");
    edit(&mut manifest["producer"]);
    fs::write(&file, manifest.to_string()).expect("it is written");
    terminal
}

fn by(name: &str, settings: Value) -> impl FnOnce(&mut Value) {
    let producer = json!({"name": name, "settings": settings});
    move |written| *written = producer
}

const RUN: [&str; 6] = ["run", "-m", "tiny-llama2-hf", "--reference", "d", "--no-report"];

/// Whether a run gives every value of the dump to the last bit.
fn is_reproduced(terminal: &Terminal, options: &[&str]) -> bool {
    let (code, report) = terminal.json(&[&RUN[..], &["--no-causes"], options].concat());
    let rows = report["references"][0]["results"].as_array().expect("rows");
    code == 0 && !rows.is_empty() && rows.iter().all(|row| row["accumulated"]["max_abs"] == 0.0)
}

#[track_caller]
fn assert_reproduced(options: &[&str], edit: impl FnOnce(&mut Value)) {
    assert!(is_reproduced(&dump(options, edit), &[]), "{options:?}");
}

const BF16: [&str; 4] = ["--numerics", "transformers", "--dtype", "bf16"];
const F16: [&str; 4] = ["--numerics", "transformers", "--dtype", "f16"];
const TRANSFORMERS: [&str; 2] = ["--numerics", "transformers"];
const F16_CACHE: [&str; 2] = ["--kv-cache", "f16"];

#[test]
fn a_dump_says_how_it_was_computed() {
    let settings = |options: &[&str]| {
        let mut settings = Value::Null;
        dump(options, |producer| settings = producer["settings"].clone());
        settings
    };
    let expected = |numerics: &str, dtype: &str, kv_cache: &str| json!({"numerics": numerics, "dtype": dtype, "weights": "f32", "kv_cache": kv_cache});
    assert_eq!(settings(&[]), expected("f32", "f32", "f32"));
    assert_eq!(settings(&F16_CACHE), expected("f32", "f32", "f16"));
    assert_eq!(settings(&BF16), expected("transformers", "bf16", "bf16"));
    assert_eq!(settings(&[&TRANSFORMERS[..], &F16_CACHE].concat()), expected("transformers", "f32", "f16"));
    assert_eq!(settings(&["--numerics", "llama.cpp"]), expected("llama.cpp", "f32", "f16"));
}

#[test]
fn what_xcheck_has_dumped_is_computed_again_in_the_same_way() {
    let ways: [&[&str]; 9] = [
        &[],
        &F16_CACHE,
        &BF16,
        &F16,
        &TRANSFORMERS,
        &["--numerics", "transformers", "--kv-cache", "f16"],
        &["--numerics", "llama.cpp", "--kv-cache", "f32"],
        &["--numerics", "llama.cpp"],
        &["--numerics", "llama2.c"],
    ];
    ways.into_iter().for_each(|options| assert_reproduced(options, |_| ()));
}

#[test]
fn bf16_and_f16_are_transformers_whoever_has_computed_in_them() {
    for dtype in ["bf16", "torch.bfloat16", "BFloat16"] {
        assert_reproduced(&BF16, by("my-engine", json!({"dtype": dtype, "kv_cache": dtype})));
    }
    assert_reproduced(&F16, by("my-engine", json!({"dtype": "half"})));
    // Without the setting its values tell. The twin: plain f32 is far away.
    assert_reproduced(&BF16, by("my-engine", json!({})));
    assert!(!is_reproduced(&dump(&BF16, by("my-engine", json!({"dtype": "f32"}))), &[]));
}

#[test]
fn the_producers_name_decides_what_settings_leave_open() {
    assert_reproduced(&TRANSFORMERS, by("transformers", json!({})));
    assert_reproduced(&["--numerics", "llama.cpp"], by("llama.cpp", json!({})));
    assert_reproduced(&["--numerics", "llama2.c"], by("llama2.c", json!({})));
    assert_reproduced(&[], by("my-engine", json!({"dtype": "f32"})));
    assert_reproduced(&[], by("llama.cpp", json!({"numerics": "f32", "kv_cache": "f32"})));
}

#[test]
fn a_reference_in_f64_is_run_in_f32() {
    let settings = json!({"dtype": "torch.float64", "kv_cache": "torch.float64"});
    assert_reproduced(&TRANSFORMERS, by("transformers", settings));
    assert_reproduced(&[], by("my-engine", json!({"dtype": "double"})));
}

#[test]
fn the_kv_cache_has_the_dtype_that_settings_say() {
    let f16_cache = json!({"kv_cache": "torch.float16"});
    assert_reproduced(&F16_CACHE, by("my-engine", f16_cache.clone()));
    assert_reproduced(&["--numerics", "transformers", "--kv-cache", "f16"], by("transformers", f16_cache));
    assert_reproduced(
        &["--numerics", "llama.cpp", "--kv-cache", "f32"],
        by("llama.cpp", json!({"kv_cache": "F32"})),
    );
    // The twin: a cache of f32 is another one.
    assert!(!is_reproduced(&dump(&F16_CACHE, by("my-engine", json!({"kv_cache": "f32"}))), &[]));
}

#[test]
fn options_stand_above_settings() {
    let unsaid = dump(&F16_CACHE, by("my-engine", json!({})));
    assert!(is_reproduced(&unsaid, &F16_CACHE) && !is_reproduced(&unsaid, &[]));
    let unsaid = dump(&BF16, by("my-engine", json!({})));
    assert!(is_reproduced(&unsaid, &BF16));
    let wrong = dump(&BF16, by("transformers", json!({"dtype": "int4"})));
    assert!(is_reproduced(&wrong, &BF16));
}

#[test]
fn settings_that_are_not_known_are_refused_with_the_option_that_helps() {
    let refused = |settings: Value, expected: &[&str]| {
        let terminal = dump(&[], by("transformers", settings));
        expected.iter().for_each(|part| terminal.assert_refused(&RUN, part));
    };
    refused(json!({"numerics": "fast"}), &["numerics fast", "llama.cpp", "--numerics"]);
    refused(json!({"dtype": "fp8"}), &["dtype fp8", "f32, bf16 or f16", "--dtype"]);
    refused(json!({"kv_cache": "q4_0"}), &["a q4_0 KV cache", "--kv-cache"]);
    refused(json!({"kv_cache": "tiny"}), &["a tiny KV cache", "--kv-cache"]);
    refused(json!({"numerics": "llama.cpp", "kv_cache": "q4_0"}), &["a q4_0 KV cache", "f16 and f32"]);
    refused(json!({"numerics": "llama2.c", "kv_cache": "f16"}), &["llama2.c has an f32 KV cache"]);
}

/// Other libraries' names of a cache of 8 bits. What numerics do not have is run with another, and its rounding is allowed for.
#[test]
fn an_int8_or_q8_0_kv_cache_is_recognised_under_every_name() {
    for name in ["uint8_t", "u8", "int8_t", "int8", "torch.float8_e4m3fn", "q8_0", "UINT8"] {
        for numerics in ["f32", "llama.cpp"] {
            let terminal = dump(&[], by("my-engine", json!({"numerics": numerics, "kv_cache": name})));
            let finished = terminal.run(&RUN);
            assert_ne!(finished.code, 2, "{numerics} {name}: {}", finished.stderr);
        }
    }
    let terminal = dump(&[], by("my-engine", json!({"dtype": "f32", "kv_cache": "uint8_t"})));
    let finished = terminal.run(&RUN);
    assert!(finished.stdout.contains("kv_cache uint8_t cannot be reproduced"), "{}", finished.stdout);
}

#[test]
fn a_setting_that_nothing_reads_is_named() {
    let told = |settings: Value| {
        let finished = dump(&[], by("my-engine", settings)).run(&RUN);
        assert_eq!(finished.code, 0, "{}{}", finished.stdout, finished.stderr);
        finished.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let mistyped = told(json!({"dtype": "f32", "kvcache": "f16", "threads": 4}));
    assert!(mistyped.contains("producer.settings.kvcache is unknown"), "{mistyped}");
    assert!(!mistyped.contains("settings.threads") && !mistyped.contains("settings.dtype is"), "{mistyped}");
    let known = told(json!({"dtype": "f32", "kv_cache": "f32", "torch": "2.8", "attention": "eager"}));
    assert!(!known.contains("is unknown and has no effect"), "{known}");
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let terminal = Terminal::new();
    let dump = ["dump", "-m", "tiny-llama2", "--tokens", "1", "-o", "never"];
    let refused = |options: &[&str], expected: &str| {
        terminal.assert_refused(&[&dump[..], options].concat(), expected);
    };
    refused(&["--dtype", "bf16"], "--numerics transformers");
    refused(&["--dtype", "bf16", "--numerics", "f32"], "--numerics transformers");
    refused(&["--numerics", "llama2.c", "--kv-cache", "f16"], "llama2.c has an f32 KV cache");
    refused(&["--dtype", "int8", "--numerics", "transformers"], "bf16");
    assert!(!terminal.path().join("never").exists());
    terminal
        .assert_refused(&["selfcheck", "-m", "tiny-llama2", "--dtype", "bf16"], "--numerics transformers");
}

#[test]
fn a_report_repeats_the_options_that_computed_it() {
    let terminal = dump(&BF16, by("my-engine", json!({})));
    let options = ["--numerics", "transformers", "--dtype", "f16", "--kv-cache", "f32"];
    let finished = terminal.run(&[&RUN[..], &options].concat());
    assert_eq!(finished.code, 1, "{}", finished.stderr);
    let all = format!("{}{}", finished.stdout, finished.stderr);
    assert!(all.contains("--numerics transformers --dtype f16 --kv-cache f32"), "{all}");
}
