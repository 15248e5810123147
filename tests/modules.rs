//! Dumps of the outputs of a model's modules, judged with the exact values that a worker sends.

use std::collections::HashMap;
use std::io::Cursor;
use std::path::Path;
use std::time::SystemTime;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use xcheck::align::Selection;
use xcheck::check::Tolerances;
use xcheck::checkpoint::{Checkpoint, ModulePath, Point};
use xcheck::dump::Dump;
use xcheck::evaluator::{EvaluatorConnection, ModuleRules, check_modules};
use xcheck::exact::{K, LAMBDA};
use xcheck::format::FileBytes;
use xcheck::report::{Comparison, ModelRecord, PromptTokens, Report, ReportContent, Timing};
use xcheck::verdict::{Outcome, Verdict};

/// A module, its recorded values, and the exact ones with their sigma.
#[derive(Clone)]
struct Output {
    module: &'static str,
    call: usize,
    pass: usize,
    values: Vec<f32>,
    exact: Vec<f64>,
    sigma: f64,
}

/// Length of the rows.
const WIDTH: usize = 3;

fn output(module: &'static str, values: [f32; 6]) -> Output {
    let exact = values.iter().map(|&value| f64::from(value)).collect();
    Output { module, call: 0, pass: 0, values: values.to_vec(), exact, sigma: 1e-8 }
}

/// Outputs of two layers and what surrounds them; every value is right.
fn outputs() -> Vec<Output> {
    let row = |scale: f32| [0.5, -0.25, 1.5, -2.0, 0.75, 3.0].map(|value: f32| value * scale);
    [
        ("model.embed_tokens", 0.1),
        ("model.layers.0.input_layernorm", 1.0),
        ("model.layers.0.mixer", 0.7),
        ("model.layers.0", 1.2),
        ("model.layers.1.input_layernorm", 0.9),
        ("model.layers.1.mixer", 0.8),
        ("model.layers.1", 1.4),
        ("lm_head", 2.5),
    ]
    .map(|(module, scale)| output(module, row(scale)))
    .to_vec()
}

/// A safetensors file with metadata.
fn file(key: &str, metadata: &Value, arrays: &[(String, Dtype, Vec<u8>)]) -> Vec<u8> {
    let width = |dtype: &Dtype| if *dtype == Dtype::F64 { 8 } else { 4 };
    let views: Vec<(String, TensorView)> = arrays
        .iter()
        .map(|(name, dtype, bytes)| {
            let shape = vec![1, bytes.len() / width(dtype) / WIDTH, WIDTH];
            (name.clone(), TensorView::new(*dtype, shape, bytes).unwrap())
        })
        .collect();
    safetensors::serialize(views, Some(HashMap::from([(key.to_owned(), metadata.to_string())]))).unwrap()
}

fn manifest(outputs: &[Output], dtype: &str) -> Value {
    let rows: Vec<Value> = outputs
        .iter()
        .map(|Output { module, call, pass, values, .. }| {
            let name = format!("p{pass}/{module}#{call}");
            json!({"module": module, "call": call, "pass": pass, "dtype": "f32", "shape": [1, values.len() / WIDTH, WIDTH], "file": name})
        })
        .collect();
    json!({
        "format": "xcheck-dump", "version": 1,
        "producer": {"name": "my-engine", "settings": {"dtype": dtype}},
        "model": {"architecture": "new_model"},
        "input": {"tokens": [3, 4]},
        "passes": [{"position": 0, "tokens": [3, 4]}],
        "tensors": rows,
    })
}

fn opened(outputs: &[Output], manifest: &Value) -> Dump {
    let arrays: Vec<_> = outputs
        .iter()
        .map(|Output { module, call, pass, values, .. }| {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (format!("p{pass}/{module}#{call}"), Dtype::F32, bytes)
        })
        .collect();
    let bytes = file("xcheck", manifest, &arrays);
    Dump::from_source(FileBytes { path: "new.safetensors".into(), data: bytes.into() }).unwrap()
}

fn dump(outputs: &[Output], dtype: &str) -> Dump {
    opened(outputs, &manifest(outputs, dtype))
}

fn message(message: Value, arrays: &[(&str, Vec<f64>)]) -> Vec<u8> {
    let arrays: Vec<_> = arrays
        .iter()
        .map(|(name, values)| {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            ((*name).to_owned(), Dtype::F64, bytes)
        })
        .collect();
    file("xcheck-evaluator", &message, &arrays)
}

/// The worker's first message, and the rest of its answer for these outputs.
fn hello_and_sites(outputs: &[Output], modules: &[&str]) -> (Vec<u8>, Vec<u8>) {
    let modules: Vec<Value> = modules.iter().map(|path| json!({"path": path, "class": "Module"})).collect();
    let hello = json!({
        "message": "hello", "protocol": 1, "torch": "2.15.0", "transformers": "5.23.0",
        "architecture": "new_model", "model_class": "NewForCausalLM", "modules": modules,
    });
    let sites = outputs.iter().map(|Output { module, call, pass, exact, sigma, .. }| {
        let site = json!({"message": "site", "module": module, "call": call, "pass": pass});
        message(site, &[("exact", exact.clone()), ("sigma", vec![*sigma; exact.len()])])
    });
    (message(hello, &[]), sites.flatten().chain([0; 8]).collect())
}

/// The worker's answer for these outputs, of a model with these modules.
fn answer(outputs: &[Output], modules: &[&str]) -> Vec<u8> {
    let (hello, sites) = hello_and_sites(outputs, modules);
    [hello, sites].concat()
}

fn modules() -> Vec<&'static str> {
    outputs().iter().map(|output| output.module).collect()
}

fn judge_answer(dump: &Dump, answer: Vec<u8>, seconds: Option<u64>) -> Result<Outcome, String> {
    let mut requests = Vec::new();
    let mut connection = EvaluatorConnection::new(Box::new(&mut requests), Box::new(Cursor::new(answer)));
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = ModuleRules { selection: &selection, tolerances: &tolerances, seconds };
    let at = Path::new("new.safetensors");
    let judged = check_modules("new", (dump, at), Path::new("model"), &mut connection, rules, &mut |_| ())
        .map_err(|e| e.to_string());
    drop(connection);
    let request = String::from_utf8(requests).unwrap();
    let Some(first) = request.lines().next() else { return judged };
    let first: Value = serde_json::from_str(first).unwrap();
    assert_eq!(
        first,
        json!({"request": "evaluate", "protocol": 1, "model": "model", "dump": "new.safetensors", "runs": 4})
    );
    judged
}

fn judge(outputs: &[Output]) -> Outcome {
    judge_answer(&dump(outputs, "f32"), answer(outputs, &modules()), None).unwrap()
}

#[test]
fn outputs_of_modules_pass_within_eight_sigma_and_fail_beyond() {
    let right = judge(&outputs());
    assert_eq!((right.verdict, right.reason.as_deref()), (Verdict::Pass, None));
    assert_eq!(right.coverage.taps_compared, 8);
    for (error, verdict) in [(6e-8, Verdict::Pass), (8e-7, Verdict::Fail)] {
        let mut outputs = outputs();
        outputs[5].exact[3] += error;
        let judged = judge(&outputs);
        assert_eq!(judged.verdict, verdict, "an error of {error:e}");
        let first = judged.first_divergence().map(|row| row.site.to_string());
        let wrong = (verdict == Verdict::Fail).then(|| "model.layers.*.mixer, layer 1, pass 0".to_owned());
        assert_eq!(first, wrong);
    }
}

#[test]
fn every_recorded_output_must_be_evaluated_and_every_layer_recorded() {
    let all = outputs();
    let unanswered = judge_answer(&dump(&all, "f32"), answer(&all[..7], &modules()), None).unwrap();
    assert_eq!(unanswered.verdict, Verdict::Inconclusive);
    assert_eq!(
        unanswered.coverage.skipped,
        [
            "lm_head, pass 0: the evaluator sent no values for it, which is a fault of the evaluator; please report it"
        ]
    );

    let mut few = all.clone();
    few.remove(5);
    let unrecorded = judge(&few);
    assert_eq!(unrecorded.verdict, Verdict::Inconclusive);
    let missing = "model.layers.*.mixer, layer 1, pass 0: not recorded, although other layers are; record it in every layer, or in none";
    assert_eq!(unrecorded.coverage.skipped, [missing]);

    few.remove(2); // a module that no layer records is no gap
    assert_eq!(judge(&few).verdict, Verdict::Pass);
    assert_eq!(judge(&few[..1]).verdict, Verdict::Inconclusive, "the input alone");
}

#[test]
fn a_second_call_is_a_site_of_its_own() {
    let mut outputs = outputs();
    outputs.insert(3, Output { call: 1, ..outputs[2].clone() });
    outputs.insert(7, Output { call: 1, ..outputs[6].clone() });
    assert_eq!(judge(&outputs).verdict, Verdict::Pass);
    outputs[3].exact[0] += 0.1;
    let judged = judge(&outputs);
    let first = judged.first_divergence().map(|row| row.site.to_string());
    assert_eq!(first.as_deref(), Some("model.layers.*.mixer#1, layer 0, pass 0"));
}

#[test]
fn values_that_prove_nothing_do_not_pass() {
    let mut blind = outputs();
    blind[7].sigma = 10.0;
    assert_eq!(judge(&blind).verdict, Verdict::Inconclusive, "sigma is larger than the values");

    let mut nan = outputs();
    nan[4].values[1] = f32::NAN;
    assert_eq!(judge(&nan).verdict, Verdict::Fail);

    let mut zero = outputs();
    zero[4].values = vec![0.0; 6];
    assert_eq!(judge(&zero).verdict, Verdict::Fail);

    let all = outputs();
    let short = judge_answer(&dump(&all, "bf16"), answer(&all, &modules()), None).unwrap();
    assert_eq!(short.verdict, Verdict::Inconclusive, "the values are no bf16 numbers");
    assert!(
        short.coverage.skipped[0].starts_with("the dump states bf16, but"),
        "{:?}",
        short.coverage.skipped
    );
}

/// A manifest of these outputs, changed.
fn changed_dump(outputs: &[Output], change: impl FnOnce(&mut Value)) -> Dump {
    let mut manifest = manifest(outputs, "f32");
    change(&mut manifest);
    opened(outputs, &manifest)
}

#[test]
fn gaps_outside_of_the_recorded_arrays_are_seen() {
    let all = outputs();
    let verdict = |change: fn(&mut Value)| {
        let judged = judge_answer(&changed_dump(&all, change), answer(&all, &modules()), None).unwrap();
        (judged.verdict, judged.coverage.skipped.join("; "))
    };
    assert_eq!(verdict(|_| ()), (Verdict::Pass, String::new()));
    for (change, told) in [
        (
            (|manifest| {
                let empty = json!({"position": 2, "tokens": [5]});
                manifest["passes"].as_array_mut().unwrap().push(empty);
            }) as fn(&mut Value),
            "pass 1: the dump records no value",
        ),
        (
            |manifest| manifest["input"]["tokens"] = json!([3, 4, 7, 9]),
            "the passes read 2 tokens, but the prompt has 4",
        ),
    ] {
        let (verdict, skipped) = verdict(change);
        assert_eq!(verdict, Verdict::Inconclusive);
        assert!(skipped.contains(told), "{skipped}");
    }
}

#[test]
fn greedy_tokens_must_be_those_of_the_recorded_logits() {
    // The last row of the logits is the largest at 2.
    let all: Vec<Output> =
        outputs().into_iter().chain([output("logits", [0.1, 0.2, 0.3, -1.0, 0.5, 2.0])]).collect();
    let modules: Vec<&str> = all.iter().map(|output| output.module).collect();
    for (token, decode, verdict) in
        [(2, "greedy", Verdict::Pass), (1, "greedy", Verdict::Inconclusive), (1, "forced", Verdict::Pass)]
    {
        let dump = changed_dump(&all, |manifest| {
            manifest["generated"] = json!([token]);
            manifest["input"]["decode"] = decode.into();
        });
        let judged = judge_answer(&dump, answer(&all, &modules), None).unwrap();
        assert_eq!(judged.verdict, verdict, "token {token}, {decode}: {:?}", judged.coverage.skipped);
    }
}

#[test]
fn wrong_indices_do_not_pass_because_of_a_tie() {
    for (is_tie, verdict) in [(true, Verdict::Inconclusive), (false, Verdict::Fail)] {
        let mut all = outputs();
        all[2].exact[1] += 1.0;
        let site = json!({"message": "site", "module": all[2].module, "call": 0, "pass": 0, "kind": "ids", "tie": is_tie});
        let ids = message(site, &[("exact", all[2].exact.clone()), ("sigma", vec![0.0; 6])]);
        // The first answer about a site counts.
        let (hello, rest) = hello_and_sites(&all, &modules());
        let judged = judge_answer(&dump(&all, "f32"), [hello, ids, rest].concat(), None).unwrap();
        assert_eq!(judged.verdict, verdict);
    }
}

#[test]
fn an_unrecorded_choice_names_the_module_to_record() {
    for (choice, advice) in [
        ("model.layers.0.mlp.gate", "; record the output of model.layers.0.mlp.gate"),
        (modules()[0], "record a run in f32"),
    ] {
        let mut all = outputs();
        all[2].exact[1] += 1.0;
        let module = all[2].module;
        let site =
            json!({"message": "site", "module": module, "call": 0, "pass": 0, "tie": true, "choice": choice});
        let tied = message(site, &[("exact", all[2].exact.clone()), ("sigma", vec![0.0; 6])]);
        let (hello, rest) = hello_and_sites(&all, &modules());
        let judged = judge_answer(&dump(&all, "f32"), [hello, tied, rest].concat(), None).unwrap();
        assert_eq!(judged.verdict, Verdict::Inconclusive);
        let reasons: Vec<_> = judged.rows.iter().filter_map(|row| row.reason.as_deref()).collect();
        assert!(reasons.iter().any(|reason| reason.contains(advice)), "{reasons:?}");
    }
}

#[test]
fn a_systematic_error_within_all_bounds_does_not_pass() {
    // 40 rows with an error of 7 sigma everywhere, or of 2 sigma, which rounding may give.
    for (sigmas, verdict) in [(7.0, Verdict::Inconclusive), (2.0, Verdict::Pass)] {
        let mut all = outputs();
        let Output { values, exact, sigma, .. } = &mut all[5];
        (*values, *exact, *sigma) = (values.repeat(20), exact.repeat(20), 1e-4);
        all[5].exact.iter_mut().for_each(|exact| *exact += sigmas * 1e-4);
        let judged = judge(&all);
        assert_eq!(judged.verdict, verdict, "{sigmas} sigma: {:?}", judged.reason);
    }
}

#[test]
fn a_row_without_a_bound_is_not_hidden_by_the_others() {
    for sigma in [f64::INFINITY, f64::NAN, -1.0] {
        let mut all = outputs();
        all[7].sigma = sigma;
        assert_ne!(judge(&all).verdict, Verdict::Pass, "sigma {sigma}");
    }
}

#[test]
fn a_cause_is_asked_for_at_the_first_wrong_module() {
    let mut outputs = outputs();
    outputs[2].exact[0] += 0.1;
    let mut bytes = answer(&outputs, &modules());
    let cause = json!({
        "message": "cause", "kind": "config", "what": "rms_norm_eps is 1e-5, expected 1e-6", "key": "rms_norm_eps",
        "expected": "1e-6", "found": "1e-5", "file": "modeling_new.py", "line": 50,
    });
    bytes.extend(message(cause, &[]));
    bytes.extend([0; 8]);
    let judged = judge_answer(&dump(&outputs, "f32"), bytes, Some(5)).unwrap();
    let cause = judged.cause().expect("the worker found one");
    assert_eq!(cause.key.as_deref(), Some("rms_norm_eps"));
    assert_eq!(
        cause.what,
        "rms_norm_eps is 1e-5, expected 1e-6 (modeling_new.py:50); seen at model.layers.*.mixer, layer 0, pass 0"
    );
}

#[test]
fn a_failed_search_for_the_cause_leaves_the_verdict() {
    let mut outputs = outputs();
    outputs[2].exact[0] += 0.1;
    let error = message(json!({"message": "error", "code": "internal", "text": "no memory"}), &[]);
    for rest in [Vec::new(), error] {
        let bytes = [answer(&outputs, &modules()), rest].concat();
        let judged = judge_answer(&dump(&outputs, "f32"), bytes, Some(5)).unwrap();
        assert_eq!(judged.verdict, Verdict::Fail);
        let notes = judged.notes.join("; ");
        assert!(notes.contains("the search for the cause failed"), "{notes}");
    }
}

/// The message with a tap in place of a module that returns it, or as it is.
fn with_tap(mut message: Value) -> Value {
    let fields = message.as_object_mut().unwrap();
    let path = fields["module"].as_str().unwrap().to_owned();
    let parts: Vec<&str> = path.split('.').collect();
    let named = match parts[..] {
        ["model", "layers", layer, "mixer"] => {
            json!({"tap": "attn_out", "layer": layer.parse::<usize>().unwrap()})
        }
        ["model", "layers", layer] => json!({"tap": "block_out", "layer": layer.parse::<usize>().unwrap()}),
        ["model", "embed_tokens"] => json!({"tap": "embed"}),
        _ => return message,
    };
    fields.remove("module");
    fields.remove("call");
    fields.extend(named.as_object().unwrap().clone());
    message
}

/// A dump with taps, and the answer of a worker that judges them.
fn taps(outputs: &[Output]) -> (Dump, Vec<u8>) {
    let dump = changed_dump(outputs, |manifest| {
        for row in manifest["tensors"].as_array_mut().unwrap() {
            *row = with_tap(row.clone());
            if row.get("tap").is_some() {
                row["axes"] = json!(["batch", "token", "hidden"]);
            }
        }
    });
    let (mut bytes, _) = hello_and_sites(outputs, &modules());
    for Output { module, pass, exact, sigma, .. } in outputs {
        let site = with_tap(json!({"message": "site", "module": module, "call": 0, "pass": pass}));
        bytes.extend(message(site, &[("exact", exact.clone()), ("sigma", vec![*sigma; exact.len()])]));
    }
    bytes.extend([0; 8]);
    (dump, bytes)
}

#[test]
fn taps_of_an_engine_without_modules_are_judged() {
    let all = outputs();
    let (right, answered) = taps(&all);
    let judged = judge_answer(&right, answered, None).unwrap();
    assert_eq!((judged.verdict, judged.coverage.taps_compared), (Verdict::Pass, 8), "{:?}", judged.coverage);

    let mut wrong = all.clone();
    wrong[5].exact[1] += 0.01;
    let (dump, mut answered) = taps(&wrong);
    let cause = json!({"message": "cause", "kind": "config", "what": "the scale is 0.5, expected 0.25"});
    answered.extend([message(cause, &[]), vec![0; 8]].concat());
    let judged = judge_answer(&dump, answered, Some(5)).unwrap();
    assert_eq!(judged.verdict, Verdict::Fail);
    let told = "the scale is 0.5, expected 0.25; seen at attn_out, layer 1, pass 0";
    assert_eq!(judged.cause().expect("the worker found one").what, told);
}

#[test]
fn a_tap_must_be_recorded_in_all_layers_with_the_same_modules() {
    let mut few = outputs();
    let unrecorded = few.remove(5);
    let (dump, answered) = taps(&few);
    let judged = |modules: &[&str]| {
        let (hello, _) = hello_and_sites(&few, modules);
        let (usual, _) = hello_and_sites(&few, &self::modules());
        let bytes = [hello, answered[usual.len()..].to_vec()].concat();
        judge_answer(&dump, bytes, None).unwrap()
    };
    let gap = judged(&modules());
    assert_eq!(gap.verdict, Verdict::Inconclusive);
    assert!(
        gap.coverage.skipped[0].starts_with("attn_out, layer 1, pass 0: not recorded"),
        "{:?}",
        gap.coverage
    );
    // A layer of another kind need not have it.
    let others: Vec<&str> = modules().into_iter().filter(|module| *module != unrecorded.module).collect();
    let judged = judged(&others);
    assert_eq!((judged.verdict, judged.coverage.skipped), (Verdict::Pass, vec![]));
}

#[test]
fn a_dump_of_llama_cpp_is_judged_if_all_weights_and_the_cache_are_f32() {
    let outputs = outputs();
    let stated = |weights: &str, cache: &str| {
        changed_dump(&outputs, |manifest| {
            let settings = json!({"weights": weights, "kv_cache": cache});
            manifest["producer"] = json!({"name": "llama.cpp", "settings": settings});
        })
    };
    let judged = |dump| judge_answer(&dump, answer(&outputs, &modules()), None);
    assert_eq!(judged(stated("f32", "f32")).unwrap().verdict, Verdict::Pass);
    for (weights, cache) in [("f32", "f16"), ("q8_0", "f32")] {
        let error = judged(stated(weights, cache)).unwrap_err();
        assert!(
            error.contains(&format!("weights {weights} and kv_cache {cache}")) && error.contains("--kv f32"),
            "{error}"
        );
    }
}

#[test]
fn errors_of_the_worker_are_reported() {
    let all = outputs();
    let with = |bytes: Vec<u8>| judge_answer(&dump(&all, "f32"), bytes, None).unwrap_err();
    let error =
        message(json!({"message": "error", "code": "remote-code", "text": "the model needs code"}), &[]);
    assert_eq!(with([error, vec![0; 8]].concat()), "the model needs code");

    let hello = json!({"message": "hello", "protocol": 2, "torch": "", "transformers": "", "architecture": "",
        "model_class": "", "modules": []});
    assert!(with(message(hello, &[])).contains("speaks version 2 of the protocol, expected 1"));

    let cut = answer(&all, &modules());
    assert!(with(cut[..cut.len() - 20].to_vec()).contains("the evaluator"));
    assert!(with(Vec::new()).contains("the pipe was closed without the end marker"));
    assert!(with(b"Loading weights: 100%".to_vec()).contains("does something else write to the pipe"));
    assert!(with(message(json!({"message": "surprise"}), &[])).contains("invalid message"));

    let stated = judge_answer(&dump(&all, "auto"), answer(&all, &modules()), None).unwrap_err();
    assert!(stated.contains("producer.settings.dtype is auto, expected f32, bf16 or f16"), "{stated}");
}

#[test]
fn the_python_evaluator_rounds_with_the_constants_of_the_engine() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/python/src/xcheck/evaluator/rounding.json");
    let constants: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let ours = [("k", K), ("lambda", LAMBDA), ("unit_f32", f64::from(f32::EPSILON) / 2.0)];
    for (name, value) in ours {
        assert_eq!(constants[name]["value"].as_f64(), Some(value), "{name}");
    }
}

#[test]
fn the_checkpoint_of_a_module_follows_from_its_path() {
    for (path, checkpoint) in [
        ("model.embed_tokens", "input"),
        ("model.layers.0.input_layernorm", "norm"),
        ("transformer.h.3.ln_1", "norm"),
        ("model.layers.0.self_attn.q_a_proj", "qkv"),
        ("model.layers.0.linear_attn.in_proj_qkvz", "qkv"),
        ("bert.encoder.layer.0.attention.self.query", "qkv"),
        ("model.layers.0.self_attn.rotary_emb", "rope"),
        ("model.layers.0.self_attn.o_proj", "attn_out"),
        ("model.layers.0.mamba", "attn_out"),
        ("model.layers.0.post_attention_layernorm", "ffn_out"),
        ("model.layers.0.block_sparse_moe.experts.3", "ffn_out"),
        ("transformer.h.3.mlp.c_fc", "ffn_out"),
        ("model.layers.0", "block_out"),
        ("model.norm", "logits"),
        ("lm_head", "logits"),
        ("embed_out", "logits"),
        ("0.model.embeddings.LayerNorm", "input"),
        ("0.model.encoder.layer.3.attention.self.query", "qkv"),
        ("1", "logits"),
    ] {
        let (module, _) = ModulePath::in_model(path, 0).unwrap();
        assert_eq!(Point::Module(module).checkpoint().name(), checkpoint, "{path}");
    }
    let layer = |path| ModulePath::in_model(path, 0).unwrap().1;
    assert_eq!(["model.layers.2.mlp", "0.model.encoder.layer.3", "1"].map(layer), [Some(2), Some(3), None]);
}

#[test]
fn rows_of_modules_are_checked() {
    let all = outputs();
    let known = dump(&all, "f32");
    assert_eq!(known.sites().count(), 8);
    for (change, problem) in [
        (json!({"module": "model..mlp"}), "invalid module 'model..mlp'"),
        (json!({"module": "model.layers.1.mlp", "layer": 2}), "or state the layer of the path"),
        (json!({"module": "mlp", "tap": "q"}), "remove \"tap\""),
        (json!({"module": "mlp", "pass": 7}), "pass 7 does not exist"),
        (json!({"module": "mlp", "axes": ["token"]}), "cannot be used with the output of a module"),
    ] {
        let mut row = json!({"pass": 0, "dtype": "f32", "shape": [1, 2, 3], "file": "x"});
        row.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let manifest = json!({
            "format": "xcheck-dump", "version": 1, "producer": {"name": "x"}, "model": {"architecture": "new"},
            "input": {"tokens": [3, 4]}, "passes": [{"position": 0, "tokens": [3, 4]}], "tensors": [row],
        });
        let bytes = file("xcheck", &manifest, &[("x".to_owned(), Dtype::F32, vec![0; 24])]);
        let error =
            Dump::from_source(FileBytes { path: "new".into(), data: bytes.into() }).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn a_report_of_modules_is_read_back_as_it_was_written() {
    let mut outputs = outputs();
    outputs[5].exact[3] += 0.01;
    let judged = judge(&outputs);
    let sites: Vec<String> = judged.rows.iter().map(|row| row.site.to_string()).collect();
    let model = ModelRecord {
        name: "new".to_owned(),
        architecture: "new_model".to_owned(),
        format: "safetensors".to_owned(),
        quantisation: "f32".to_owned(),
        sha256: None,
    };
    let result = Comparison {
        model,
        outcome: judged,
        again: Vec::new(),
        reference: None,
        tokens: PromptTokens::default(),
        timing: Timing::since(SystemTime::now()),
        sharded: None,
    };
    let checkpoints = Checkpoint::with_input().to_vec();
    let report = Report { command: Vec::new(), results: vec![result], checkpoints, served: None };
    let text = xcheck::report::json(&report);
    let ReportContent::Report(read) = xcheck::report::parse(&text).unwrap() else { panic!("no results") };
    assert_eq!(read.verdict(), Verdict::Fail);
    let again: Vec<String> = read.results[0].outcome.rows.iter().map(|row| row.site.to_string()).collect();
    assert_eq!(again, sites);
}
