//! Architectures of which no model ships: all their formats pass against every dump that real engines made of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::architecture;
use crate::common::share::{one_of, pairs};
use crate::common::terminal::Terminal;
use serde_json::{Value, json};
use xcheck::checkpoint::{Point, Site};
use xcheck::engine::{self, RunInput};
use xcheck::format::FileBytes;
use xcheck::model::ModelFiles;
use xcheck::numerics::F32;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;

fn text(path: &Path) -> String {
    path.to_str().expect("a plain path").to_owned()
}

/// A model in the format that the dump was made of, all of it judged.
fn run(model: &Path, dump: &Path) -> (i32, Value) {
    run_with(model, dump, &[])
}

/// Exit code of a run that searches no causes.
fn code_of(model: &Path, dump: &Path) -> i32 {
    run_with(model, dump, &["--no-causes"]).0
}

fn run_with(model: &Path, dump: &Path, options: &[&str]) -> (i32, Value) {
    let (model, dump) = (text(model), text(dump));
    let run = ["run", "--model", &model, "--reference", &dump, "--checkpoint", "all", "--no-report"];
    Terminal::new().json(&[&run, options].concat())
}

fn dump(model: &str, name: &str) -> PathBuf {
    architecture(model).join("dumps").join(format!("{name}.safetensors"))
}

fn gguf(model: &str, dtype: &str) -> PathBuf {
    architecture(model).join(format!("{model}-{dtype}.gguf"))
}

fn kinds(report: &Value) -> Vec<&str> {
    let findings = report["references"][0]["findings"].as_array().expect("findings");
    findings.iter().map(|finding| finding["kind"].as_str().expect("a kind")).collect()
}

/// A model, its GGUF files, and the number of taps in a dump of transformers.
const MODELS: &[(&str, &[&str], usize)] = &[
    ("tiny-qwen2", &["f32", "f16", "q8_0"], 177),
    ("tiny-mistral", &["f32", "f16", "q8_0"], 177),
    ("tiny-olmo2", &["f32", "q8_0"], 193),
    ("tiny-gemma2", &["f32", "q8_0"], 193),
    ("tiny-smollm3", &["f32", "q8_0"], 329),
    ("tiny-granite", &["f32", "q8_0"], 177),
    ("tiny-phi4", &["f32", "q8_0"], 177),
    ("tiny-mixtral", &["f32", "q8_0"], 209),
    ("tiny-qwen3moe", &["f32", "q8_0"], 225),
    ("tiny-qwen2moe", &["f32", "q8_0"], 265),
    ("tiny-qwen3-yarn", &["f32", "q8_0"], 193),
    ("tiny-llama-yarn", &[], 177),
    ("tiny-llama-bias", &["f32", "q8_0"], 177),
    ("tiny-qwen3-bias", &[], 193),
    ("tiny-gemma3-bias", &[], 301),
];

#[test]
fn what_is_run_is_what_dumps_and_tolerances_know() {
    let run: BTreeSet<&str> = xcheck::model::architectures().collect();
    assert_eq!(run, xcheck::architecture::names().collect());
    let read =
        [xcheck::model::architectures().collect::<Vec<_>>(), vec!["Qwen3MoeForCausalLM", "mistral"]].concat();
    assert!(read.into_iter().all(|called| run.contains(xcheck::architecture::family(called))));
    assert_eq!(xcheck::architecture::family("mamba"), "mamba");
}

#[test]
fn every_format_passes_against_every_dump() {
    assert_formats_pass(MODELS);
}

/// Asserts that the models pass against their dumps. Each dump is judged with the file format that its engine ran. Half
/// of the dumps are tried.
pub fn assert_formats_pass(models: &[(&str, &[&str], usize)]) {
    for &(model, types, taps) in models {
        let hugging_face = ["f32", "bf16"]
            .map(|dtype| (architecture(model).join("hf"), dump(model, &format!("transformers-{dtype}"))));
        let of_gguf =
            types.iter().map(|dtype| (gguf(model, dtype), dump(model, &format!("llama.cpp-{dtype}"))));
        for (files, dump) in one_of(2, hugging_face.into_iter().chain(of_gguf)) {
            let (code, report) = run(&files, &dump);
            let reference = &report["references"][0];
            assert_eq!(code, 0, "{}: {}", dump.display(), reference["reason"]);
            let [compared, identical] = ["taps_compared", "taps_identical"]
                .map(|count| reference["coverage"][count].as_u64().expect("a number") as usize);
            // Graphs of llama.cpp record up to 12 taps fewer or 8 more than modules of transformers. Its numerics in our
            // engine compute the same bits.
            let is_of_llama_cpp = dump.display().to_string().contains("llama.cpp");
            let is_right = match is_of_llama_cpp {
                true => identical == compared && (taps - 12..=taps + 8).contains(&compared),
                false => compared == taps,
            };
            assert!(is_right, "{}: {compared} compared, {identical} identical", dump.display());
            assert_eq!(compared, arrays(&dump), "{}", dump.display());
        }
    }
}

/// Number of arrays of a safetensors file.
fn arrays(file: &Path) -> usize {
    let (header, _) = header_of(&fs::read(file).expect("it is there"));
    header.as_object().expect("an object").keys().filter(|key| *key != "__metadata__").count()
}

/// What our engine leaves of a model with a mistake, or without one, judged as a candidate.
fn check_with(model: &str, supposed: &[&str]) -> (i32, Value) {
    check_thinned(model, &[], supposed, |_| true)
}

/// The same, computed with these options, of a dump that holds some taps alone.
fn check_thinned(
    model: &str,
    options: &[&str],
    supposed: &[&str],
    is_kept: impl Fn(&str) -> bool,
) -> (i32, Value) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (files, made) =
        (text(&architecture(model).join("hf")), text(&folder.path().join("made.safetensors")));
    let mistakes: Vec<&str> = supposed.iter().flat_map(|one| ["--suppose", one]).collect();
    let tokens = "1,393,395,260,394,486,263,305,315,17,200,77";
    let dump = ["dump", "--model", &files, "--tokens", tokens, "--decode", "1", "--out", &made];
    let dumped = Terminal::new().run(&[&dump[..], options, &mistakes].concat());
    assert_eq!(dumped.code, 0, "{}", dumped.stderr);
    let thinned = text(&with_taps(is_kept, Path::new(&made), folder.path()));
    Terminal::new().json(&["check", "--model", &files, "--candidate", &thinned, "--no-report"])
}

/// What is supposed, the kind that it is told as, and the tap where it first shows.
pub type Mistake = (&'static str, &'static str, &'static str);

/// What is new in each architecture, done as ports do that do not know it: told by name where it happens. The same engine
/// without the mistake passes.
#[test]
fn a_wrong_softcap_bias_rope_qk_norm_or_residual_scale_of_an_architecture_is_found_at_its_tap() {
    let of_models: &[(&str, &[Mistake])] = &[
        (
            "tiny-llama-bias",
            &[
                ("bias_missing=none", "bias_missing", "q"),
                ("bias_missing=layer:1", "bias_missing", "q"),
                ("bias_missing@ffn_out=none", "bias_missing", "ffn_out"),
                ("bias_scale=ranks:2", "bias_scale", "attn_out"),
                ("bias_scale=2", "bias_scale", "q"),
            ],
        ),
        ("tiny-gemma3-bias", &[("bias_missing=none", "bias_missing", "q")]),
        (
            "tiny-olmo2",
            &[
                ("norm_scope=each-head", "norm_scope", "q_norm"),
                ("norm_missing@attn_post_norm", "norm_missing", "attn_post_norm"),
            ],
        ),
        (
            "tiny-gemma2",
            &[
                ("softcap@attn_scores=none", "softcap", "attn_scores"),
                ("softcap@attn_scores=5", "softcap", "attn_scores"),
                ("softcap@attn_scores=before-scale", "softcap", "attn_scores"),
                ("softcap@attn_scores=log2", "softcap", "attn_scores"),
                ("softcap@logits=none", "softcap", "logits"),
                ("softcap@logits=30", "softcap", "logits"),
                ("attn_scale=0.25", "attn_scale", "attn_scores"),
            ],
        ),
        (
            "tiny-smollm3",
            &[("rope_layers", "rope_layers", "q_rope"), ("rope_missing", "rope_missing", "q_rope")],
        ),
        (
            "tiny-granite",
            &[
                ("embed_scale=1", "embed_scale", "embed"),
                ("attn_scale=0.25", "attn_scale", "attn_scores"),
                ("residual_scale=1", "residual_scale", "attn_residual"),
                ("logit_scale=1", "logit_scale", "logits"),
            ],
        ),
        (
            "tiny-phi4",
            &[
                ("rope_width=4", "rope_width", "q_rope"),
                ("rope_width=last:4", "rope_width", "q_rope"),
                ("rope_width=4:whole", "rope_width", "q_rope"),
                ("rope_scaling=none", "rope_scaling", "q_rope"),
                ("rope_scaling=factors-alone", "rope_scaling", "q_rope"),
                ("rope_direction", "rope_direction", "q_rope"),
                ("fused_order@q=interleaved", "fused_order", "q"),
                ("fused_order@ffn_up=concatenated", "fused_order", "ffn_up"),
            ],
        ),
        (
            "tiny-mixtral",
            &[
                ("expert_weights=all", "expert_weights", "expert_weights"),
                ("expert_weights=equal", "expert_weights", "expert_weights"),
                ("expert_weights@ffn_out=unweighted", "expert_weights", "ffn_out"),
                ("expert_weights@ffn_out=squared", "expert_weights", "ffn_out"),
                ("expert_count=1", "expert_count", "expert_weights"),
                ("gate_up_swap=weights", "gate_up_swap", "expert_gate"),
                ("expert_order@expert_gate=next", "expert_order", "expert_gate"),
                ("expert_order@expert_out=reversed", "expert_order", "expert_out"),
            ],
        ),
        (
            "tiny-qwen3moe",
            &[
                ("expert_weights=all", "expert_weights", "expert_weights"),
                ("expert_count=2", "expert_count", "expert_weights"),
                ("gate_up_swap=operands", "gate_up_swap", "expert_act"),
                ("expert_order@expert_up=previous", "expert_order", "expert_up"),
                ("expert_order@router_logits=next", "expert_order", "router_logits"),
            ],
        ),
        (
            "tiny-qwen2moe",
            &[
                ("shared_expert=none", "shared_expert", "ffn_out"),
                ("shared_expert=unweighted", "shared_expert", "ffn_out"),
                ("expert_weights=chosen", "expert_weights", "expert_weights"),
                ("expert_weights@routed_out=unweighted", "expert_weights", "routed_out"),
                ("gate_up_swap@shared_gate=weights", "gate_up_swap", "shared_gate"),
                ("activation@shared_act=gelu", "activation", "shared_act"),
                ("layer_order@shared_out=1", "layer_order", "shared_out"),
                ("bias_missing=none", "bias_missing", "q"),
            ],
        ),
        (
            "tiny-qwen3-yarn",
            &[
                ("rope_scaling=none", "rope_scaling", "q_rope"),
                ("rope_scaling=linear:4", "rope_scaling", "q_rope"),
                ("rope_scaling=factors-alone", "rope_scaling", "q_rope"),
                ("rope_scaling=yarn:8:128", "rope_scaling", "q_rope"),
                ("rope_frequencies=all:unscaled", "rope_frequencies", "q_rope"),
                ("rope_frequencies=3-5:x2", "rope_frequencies", "q_rope"),
                ("norm_order=after-rope", "norm_order", "q_rope"),
                ("norm_scope=parts:2", "norm_scope", "attn_norm"),
                ("norm_variance=variance", "norm_variance", "attn_norm"),
                ("rope_scaling=yarn:4:512", "rope_scaling", "q_rope"),
                ("rope_theta=1000000", "rope_theta", "q_rope"),
            ],
        ),
        (
            "tiny-llama-yarn",
            &[
                ("rope_scaling=factors-alone", "rope_scaling", "q_rope"),
                ("rope_scaling=yarn:2.5:204:32:1", "rope_scaling", "q_rope"),
            ],
        ),
    ];
    assert_mistakes_named(of_models);
}

/// Each mistake is named at its tap, and the engine without it passes. One of two is tried.
pub fn assert_mistakes_named(of_models: &[(&str, &[Mistake])]) {
    for (model, _) in one_of(3, of_models) {
        let (code, report) = check_with(model, &[]);
        assert_eq!(code, 0, "{model}: {}", report["references"][0]["reason"]);
    }
    let mistakes =
        of_models.iter().flat_map(|(model, mistakes)| mistakes.iter().map(move |mistake| (model, mistake)));
    for (model, (supposed, kind, tap)) in one_of(3, mistakes) {
        let (code, report) = check_with(model, &[supposed]);
        assert_eq!((code, kinds(&report)), (1, vec![*kind]), "{model}, {supposed}: {report}");
        assert_eq!(report["references"][0]["first_divergence"]["tap"], *tap, "{model}, {supposed}");
    }
}

/// Most people hold what modules give, what leaves layers, or logits: one cause explains all of it, and it is the simplest.
#[test]
fn a_mistake_in_all_layers_is_named_by_dumps_that_hold_little() {
    let held: [&[&str]; 3] = [
        &["logits"],
        &["embed", "block_out", "logits"],
        &["embed", "attn_norm", "attn_out", "ffn_norm", "ffn_out", "block_out", "final_norm", "logits"],
    ];
    let mistakes = [
        ("tiny-qwen2", "bias_missing=none"),
        ("tiny-qwen2", "bias_missing@k=none"),
        ("tiny-smollm3", "rope_missing"),
        ("tiny-mistral", "mask_window=none"),
        ("tiny-gemma2", "softcap@attn_scores=none"),
        ("tiny-granite", "residual_scale=1"),
    ];
    let computed = held.map(|taps| ("f32", taps)).into_iter().chain([("bf16", held[2])]);
    let computed: Vec<_> = computed.collect();
    for ((dtype, taps), (model, supposed)) in one_of(3, pairs(computed, mistakes)) {
        let options = ["--numerics", "transformers", "--dtype", dtype];
        let is_kept = |tap: &str| taps.contains(&tap);
        let (code, report) = check_thinned(model, &options, &[], is_kept);
        assert_eq!(code, 0, "{model}: {}", report["references"][0]["reason"]);
        let (code, report) = check_thinned(model, &options, &[supposed], is_kept);
        let findings = report["references"][0]["findings"].as_array().into_iter().flatten();
        let told: Vec<&str> = findings.filter_map(|finding| finding["supposed"].as_str()).collect();
        assert_eq!((code, told), (1, vec![supposed]), "{model}, {dtype}, {taps:?}: {report}");
    }
}

/// Parameters that are read from values of an operation: frequencies of some pairs, part of a head, part of a row, order.
#[test]
fn frequencies_of_some_pairs_and_parts_of_a_row_are_read_in_short_types_too() {
    let mistakes = [
        ("tiny-mistral", "rope_frequencies=4-7:x4", "rope_frequencies"),
        ("tiny-mistral", "rope_frequencies=7:x0", "rope_frequencies"),
        ("tiny-llama-yarn", "rope_frequencies=all:unscaled", "rope_frequencies"),
        ("tiny-qwen2", "rope_frequencies=all:x0.5", "rope_scaling"),
        ("tiny-mistral", "rope_width=last:8", "rope_width"),
        ("tiny-qwen2", "rope_width=8:whole", "rope_width"),
        ("tiny-qwen2", "norm_scope=parts:4", "norm_scope"),
        ("tiny-qwen3-yarn", "norm_order=after-rope", "norm_order"),
        ("tiny-gemma2", "softcap@attn_scores=log2", "softcap"),
        ("tiny-gemma2", "softcap@attn_scores=before-scale", "softcap"),
        ("tiny-qwen3-yarn", "norm_variance=variance", "norm_variance"),
        ("tiny-mixtral", "expert_weights@ffn_out=squared", "expert_weights"),
    ];
    let full: &[&str] = &[];
    let blocks: &[&str] = &["embed", "block_out", "logits"];
    let forms = [("f32", full), ("bf16", full), ("f32", blocks)];
    // One form of each mistake.
    for ((model, supposed, kind), (dtype, taps)) in one_of(3, pairs(mistakes, forms)) {
        let options = ["--numerics", "transformers", "--dtype", dtype];
        let is_kept = |tap: &str| taps.is_empty() || taps.contains(&tap);
        let (code, report) = check_thinned(model, &options, &[], is_kept);
        assert_eq!(code, 0, "{model}, {dtype}, {taps:?}: {}", report["references"][0]["reason"]);
        let (code, report) = check_thinned(model, &options, &[supposed], is_kept);
        assert_eq!(
            (code, kinds(&report)),
            (1, vec![kind]),
            "{model}, {supposed}, {dtype}, {taps:?}: {report}"
        );
    }
}

/// A window that ends behind the first passes says nothing in them.
#[test]
fn a_sliding_window_cause_is_named_by_its_pass() {
    // Six tokens are seen: the first is not from position 6 on, in the second pass after the prompt's.
    let told = |supposed: &[&str]| {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (files, made) =
            (text(&architecture("tiny-mistral").join("hf")), text(&folder.path().join("made.safetensors")));
        let dump =
            ["dump", "--model", &files, "--tokens", "1,393,395,260,394", "--decode", "4", "--out", &made];
        assert_eq!(Terminal::new().run(&[&dump[..], supposed].concat()).code, 0);
        let is_kept = |tap: &str| ["embed", "attn_out", "ffn_out", "block_out"].contains(&tap);
        let thinned = text(&with_taps(is_kept, Path::new(&made), folder.path()));
        let (code, report) =
            Terminal::new().json(&["check", "--model", &files, "--candidate", &thinned, "--no-report"]);
        let findings = report["references"][0]["findings"].as_array().expect("findings").clone();
        (code, findings.iter().map(|finding| finding["supposed"].clone()).collect::<Vec<_>>())
    };
    let window = own_window("tiny-mistral");
    let other = format!("mask_window={}", window + 1);
    assert_eq!(told(&[]), (0, vec![]));
    assert_eq!(told(&["--suppose", &other]), (1, vec![json!(other)]));
}

fn own_window(model: &str) -> u64 {
    let stated = fs::read_to_string(architecture(model).join("hf/config.json")).expect("it is there");
    let config: Value = serde_json::from_str(&stated).expect("JSON");
    config["sliding_window"].as_u64().expect("a window")
}

/// A norm that adds Gemma's 1 twice or never, also if the sum was stored in bf16, is named with its value.
#[test]
fn another_offset_of_gemma_norm_weights_is_named_in_f32_and_bf16() {
    for (dtype, mistakes) in [("f32", ["1", "-1"].as_slice()), ("bf16", &["1", "-1", "1:stored"])] {
        let options = ["--numerics", "transformers", "--dtype", dtype];
        assert_eq!(check_thinned("tiny-gemma2", &options, &[], |_| true).0, 0, "{dtype}");
        for &mistake in mistakes {
            let supposed = format!("norm_weight_offset={mistake}");
            let (code, report) = check_thinned("tiny-gemma2", &options, &[&supposed], |_| true);
            let told = &report["references"][0];
            assert_eq!(
                (code, &told["first_divergence"]["tap"]),
                (1, &"attn_norm".into()),
                "{supposed} {dtype}"
            );
            let finding = &told["findings"][0];
            assert_eq!(finding["supposed"], supposed, "{dtype}: {finding:#}");
            assert_eq!(finding["confirmed"], "pass", "{dtype}: {finding:#}");
        }
    }
}

/// In 16 bits runs that are moved differ by more than another epsilon makes: what is evaluated tells that it is one.
#[test]
fn another_rms_norm_eps_does_not_pass_if_its_norm_is_not_recorded() {
    let options = ["--numerics", "transformers", "--dtype", "bf16"];
    let is_behind = |tap: &str| !matches!(tap, "attn_norm" | "attn_residual");
    let judged = |supposed: &[&str], is_kept: fn(&str) -> bool| {
        let (code, report) = check_thinned("tiny-qwen2", &options, supposed, is_kept);
        (code, report["references"][0].clone())
    };
    assert_eq!(judged(&[], is_behind).0, 0);
    for eps in ["norm_eps@attn_norm=1e-5", "norm_eps@attn_norm=1e-4"] {
        let (code, told) = judged(&[eps], is_behind);
        assert_eq!(code, 3, "{eps}: {}", told["reason"]);
        let reason = told["reason"].as_str().expect("a reason");
        assert!(
            reason.starts_with("q, layer 0") && reason.contains("record the norm before this tap"),
            "{reason}"
        );
        let (code, told) = judged(&[eps], |_| true);
        assert_eq!((code, &told["first_divergence"]["tap"]), (1, &"attn_norm".into()), "{eps}");
    }
}

/// A configuration with another value for a key, or without the key.
fn with_key(model: &str, key: &[&str], value: Option<Value>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary directory");
    fs::copy(architecture(model).join("hf/model.safetensors"), folder.path().join("model.safetensors"))
        .expect("it is copied");
    let stated = fs::read_to_string(architecture(model).join("hf/config.json")).expect("it is there");
    let mut config: Value = serde_json::from_str(&stated).expect("JSON");
    let (last, parents) = key.split_last().expect("a key");
    let object = parents.iter().fold(&mut config, |object, key| &mut object[*key]);
    let object = object.as_object_mut().expect("an object");
    match value {
        Some(value) => object.insert((*last).to_owned(), value),
        None => object.remove(*last),
    };
    fs::write(folder.path().join("config.json"), config.to_string()).expect("it is written");
    folder
}

/// A summand that a number of the model was multiplied with is known as well as one that was given: the norm behind the sum may
/// have read it before it was rounded, and nothing else.
#[test]
fn a_norm_behind_a_residual_multiplier_is_held_to_its_summands() {
    let judged = |eps: f64| {
        let other = with_key("tiny-granite", &["rms_norm_eps"], Some(json!(eps)));
        let terminal = Terminal::new();
        let model = text(other.path());
        let tokens = ["--tokens", "1,5,9,12,3,7,44,2,61,18,33,40", "--out", "d.safetensors"];
        let bf16 = ["dump", "--model", &model, "--numerics", "transformers", "--dtype", "bf16"];
        assert_eq!(terminal.run(&[&bf16[..], &tokens].concat()).code, 0);
        let own = text(&architecture("tiny-granite").join("hf"));
        let (_, report) =
            terminal.json(&["check", "--model", &own, "--candidate", "d.safetensors", "--no-report"]);
        let rows = report["references"][0]["results"].as_array().expect("rows").clone();
        let norm = |row: &&Value| row["tap"] == "attn_norm" && row["layer"] == 1 && row["pass"] == 0;
        rows.iter().find(norm).expect("it is compared")["verdict"].clone()
    };
    assert_eq!(judged(1e-5), "pass");
    assert_eq!(judged(0.03), "fail");
}

#[test]
fn what_is_not_understood_of_an_architecture_is_refused_with_its_key() {
    let refused: &[(&str, &[&str], Value, &str)] = &[
        ("tiny-hunyuan", &["rope_parameters", "alpha"], json!(0), "'rope_parameters.alpha' is 0"),
        ("tiny-gemma3n", &["altup_active_idx"], json!(4), "'altup_active_idx' is 4, expected less than 4"),
        ("tiny-gemma3n", &["altup_num_inputs"], json!(1), "'altup_num_inputs' is 1, expected 2 to 64"),
        ("tiny-gemma3n", &["laurel_rank"], json!(0), "'laurel_rank' is 0"),
        (
            "tiny-gemma3n",
            &["activation_sparsity_pattern"],
            json!([0.95, 1.0]),
            "a share below 1 for each of 2",
        ),
        ("tiny-gemma3n", &["activation_sparsity_pattern"], json!([0.95]), "a share below 1 for each of 2"),
        (
            "tiny-gemma3n",
            &["intermediate_size"],
            json!([64, 32]),
            "one number for each of 2 layers, the same in all",
        ),
        (
            "tiny-gemma3n",
            &["intermediate_size"],
            json!([64]),
            "one number for each of 2 layers, the same in all",
        ),
        (
            "tiny-gemma4",
            &["hidden_size_per_layer_input"],
            json!(1_u64 << 40),
            "'hidden_size_per_layer_input' is",
        ),
        ("tiny-gemma3n", &["vocab_size_per_layer_input"], json!(0), "'vocab_size_per_layer_input' is 0"),
        ("tiny-gemma3n", &["num_kv_shared_layers"], json!(2), "'num_kv_shared_layers' is 2"),
        ("tiny-gemma3n-shared", &["num_kv_shared_layers"], json!(3), "each kind of layer that shares keys"),
        ("tiny-hunyuan", &["mlp_bias"], json!(true), "biases of this architecture are not supported"),
        ("tiny-starcoder", &["scale_attn_weights"], json!(false), "unscaled attention is not supported"),
        ("tiny-starcoder", &["add_cross_attention"], json!(true), "cross attention is not supported"),
        ("tiny-gptj", &["rotary_dim"], Value::Null, "the number of values of a head that rotate"),
        ("tiny-gptj", &["rotary_dim"], json!(9), "'rotary_dim' is 9, expected 8"),
        (
            "tiny-bloom",
            &["apply_residual_connection_post_layernorm"],
            json!(true),
            "a residual stream of normed values is not supported",
        ),
        ("tiny-bloom", &["slow_but_exact"], json!(true), "products in slices are not supported"),
        ("tiny-phi2", &["qk_layernorm"], json!(true), "norms of queries and keys are not supported"),
        ("tiny-falcon", &["alibi"], json!(true), "ALiBi of this architecture is not supported"),
        ("tiny-falcon", &["bias"], json!(true), "biases of this architecture are not supported"),
        ("tiny-falcon", &["num_ln_in_parallel_attn"], json!(2), "without new_decoder_architecture"),
        ("tiny-falcon-new", &["parallel_attn"], json!(false), "'parallel_attn' is false, expected true"),
        ("tiny-falcon-sequential", &["num_kv_heads"], json!(2), "4, the number of query heads"),
        ("tiny-opt", &["word_embed_proj_dim"], json!(16), "projections of embeddings are not supported"),
        ("tiny-opt", &["do_layer_norm_before"], json!(false), "norms after the residual additions"),
        ("tiny-opt", &["_remove_final_layer_norm"], json!(true), "models without a last norm"),
        (
            "tiny-lfm2",
            &["layer_types"],
            json!(["conv", "sliding_attention", "conv"]),
            "full_attention throughout",
        ),
        ("tiny-lfm2", &["layer_types"], json!(["conv", "full_attention"]), "one for each of 3 layers"),
        ("tiny-lfm2", &["conv_L_cache"], json!(1000), "'kernel size' is 1000, expected 1 to 64"),
        ("tiny-granitehybrid", &["mamba_n_groups"], json!(3), "a divisor of the 8 heads"),
        ("tiny-granitehybrid", &["time_step_limit"], json!([0.5, 0.0]), "the smaller one first"),
        ("tiny-nemotronh", &["layers_block_type"], json!(["gru"]), "\"mlp\" or \"moe\", or M, *, - or E"),
        ("tiny-nemotronhmoe", &["mlp_bias"], json!(true), "biases of experts are not supported"),
        ("tiny-nemotronhmoe", &["n_shared_experts"], json!(2), "several shared experts are not supported"),
        ("tiny-nemotronhlatent", &["moe_latent_size"], json!(0), "size of compressed inputs of experts"),
        ("tiny-gemma4moe", &["use_double_wide_mlp"], json!(true), "false in a model with experts"),
        ("tiny-nemotronh", &["mamba_hidden_act"], json!("gelu"), "other activation functions of Mamba-2"),
        ("tiny-falconh1", &["mamba_rms_norm"], json!(true), "a norm before the gate of Mamba-2"),
        ("tiny-falconh1", &["ssm_multipliers"], json!([1.0]), "5 numbers other than 0"),
        ("tiny-qwen3next", &["linear_num_key_heads"], json!(0), "number of key heads of linear attention"),
        ("tiny-qwen3next", &["linear_num_value_heads"], json!(0), "number of value heads of linear"),
        ("tiny-qwen3next", &["linear_num_key_heads"], json!(3), "a divisor of the 4 value heads"),
        ("tiny-qwen3next", &["linear_value_head_dim"], json!(1 << 24), "values of a recurrent state"),
        ("tiny-granitehybrid", &["mamba_d_state"], json!(1 << 24), "values of a recurrent state"),
        ("tiny-gemma2", &["attn_logit_softcapping"], json!(0), "a positive number"),
        ("tiny-qwen2", &["final_logit_softcapping"], json!(30), "softcapping is not supported"),
        ("tiny-qwen2", &["residual_multiplier"], json!(0.22), "multipliers are not supported"),
        ("tiny-qwen2", &["no_rope_layers"], json!([1, 0]), "layers without RoPE are not supported"),
        ("tiny-qwen2", &["rope_parameters", "partial_rotary_factor"], json!(0.5), "partial rotation is not"),
        ("tiny-smollm3", &["no_rope_layers"], json!([1, 0]), "a 0 or 1 for each of 4 layers"),
        ("tiny-smollm3", &["no_rope_layers"], json!([]), "a 0 or 1 for each of 4 layers"),
        ("tiny-llama4", &["attn_temperature_tuning"], json!("on"), "true, false or a number"),
        ("tiny-ministral3", &["rope_parameters", "rope_type"], json!("default"), "RoPE with YaRN"),
        (
            "tiny-ministral3",
            &["rope_parameters", "llama_4_scaling_beta"],
            Value::Null,
            "'rope_parameters.llama_4_scaling_beta' is missing",
        ),
        ("tiny-lfm2moe", &["num_experts_per_tok"], json!(9), "1 to 8, the number of experts"),
        ("tiny-granite", &["logits_scaling"], json!(-1), "a positive number"),
        ("tiny-phi4", &["rope_parameters", "long_factor"], json!([1.0]), "one for each pair"),
        ("tiny-qwen3moe", &["mlp_only_layers"], json!([9]), "layers from 0 to 1"),
        ("tiny-qwen3moe", &["decoder_sparse_step"], json!(0), "1 or more layers"),
        ("tiny-mixtral", &["mlp_only_layers"], json!([0]), "absent, or experts in all layers"),
        ("tiny-dots1", &["n_group"], json!(5), "a divisor of the 12 experts"),
        ("tiny-dots1", &["topk_group"], json!(9), "1 to 4, for 3 experts per token"),
        ("tiny-dots1", &["routed_scaling_factor"], json!(-1), "a positive number"),
        ("tiny-minimaxm2", &["n_group"], json!(2), "groups of experts are not supported"),
        ("tiny-ernie45moe", &["moe_layer_interval"], json!(0), "1 or more layers"),
        ("tiny-deepseekv3", &["rope_interleave"], json!(false), "other rotations are not supported"),
        ("tiny-deepseekv3", &["kv_lora_rank"], json!(0), "rank of keys and values"),
        ("tiny-deepseekv3", &["num_nextn_predict_layers"], json!(1_u64 << 60), "at most 4096"),
        ("tiny-deepseekv2", &["topk_method"], json!("noaux_tc"), "other choices of experts"),
        ("tiny-deepseekv2", &["norm_topk_prob"], json!(true), "are not divided by their sum"),
        ("tiny-ernie45moe", &["moe_norm_min"], json!(1e-6), "other least sums of weights"),
        ("tiny-glm47flash", &["mlp_layer_types"], json!(["dense", "odd"]), "\"dense\" or \"sparse\""),
        (
            "tiny-qwen3moe",
            &["shared_expert_intermediate_size"],
            json!(32),
            "shared experts are not supported",
        ),
        ("tiny-qwen3moe", &["num_experts_per_tok"], json!(13), "1 to 12, the number of experts"),
        ("tiny-mixtral", &["num_experts_per_tok"], json!(0), "1 to 6, the number of experts"),
        ("tiny-mixtral", &["num_local_experts"], json!(0), "1 to 4096"),
        ("tiny-phi4", &["rope_parameters", "rope_type"], json!("dynamic"), "other RoPE scaling is not"),
        (
            "tiny-mistral",
            &["rope_parameters", "rope_type"],
            json!("dynamic"),
            "'rope_parameters.factor' is missing",
        ),
        (
            "tiny-mistral",
            &["rope_parameters", "rope_type"],
            json!("yarn"),
            "'rope_parameters.factor' is missing",
        ),
        (
            "tiny-qwen3-yarn",
            &["rope_parameters", "factor"],
            json!(0.5),
            "'YaRN factor' is 0.5, expected 1 or more",
        ),
        (
            "tiny-qwen3-yarn",
            &["rope_parameters", "beta_fast"],
            json!(0.5),
            "expected a number above beta_slow",
        ),
        (
            "tiny-qwen3-yarn",
            &["rope_parameters", "attention_factor"],
            json!(-1),
            "'YaRN attention factor' is -1",
        ),
        ("tiny-qwen3-yarn", &["rope_parameters", "truncate"], json!(1), "expected true or false"),
        ("tiny-qwen2moe", &["qkv_bias"], json!(false), "such layers without biases are not supported"),
        ("tiny-qwen2moe", &["n_shared_experts"], json!(2), "shared experts are not supported"),
        (
            "tiny-qwen2moe",
            &["shared_expert_intermediate_size"],
            json!(0),
            "feed-forward size of the shared expert",
        ),
        ("tiny-qwen2", &["rope_parameters", "rope_type"], json!("longrope"), "other RoPE scaling is not"),
    ];
    for (model, key, value, expected) in refused {
        let folder = with_key(model, key, Some(value.clone()));
        let (files, reference) = (text(folder.path()), text(&dump(model, "transformers-f32")));
        Terminal::new().assert_refused(&["run", "--model", &files, "--reference", &reference], expected);
    }
    let folder = with_key("tiny-phi4", &["rope_parameters", "short_factor"], None);
    let (files, reference) = (text(folder.path()), text(&dump("tiny-phi4", "transformers-f32")));
    Terminal::new()
        .assert_refused(&["run", "--model", &files, "--reference", &reference], "a number for each pair");
}

/// 140 tokens: two whole chunks of 64 tokens of the gated delta rule, and a part.
#[test]
fn a_prompt_of_several_chunks_passes_and_a_fault_in_its_recurrence_fails() {
    let dump = text(&architecture("tiny-qwen3next").join("long/transformers-f32.safetensors"));
    let model = text(&architecture("tiny-qwen3next").join("hf"));
    let check = |more: &[&str]| {
        let options = ["run", "--model", &model, "--reference", &dump, "--no-report"];
        let recorded = ["--checkpoint", "qkv,rope,attn_out"];
        Terminal::new().json(&[&options[..], &recorded, more].concat())
    };
    let (code, report) = check(&[]);
    assert_eq!(code, 0, "{report}");
    for supposed in ["delta_rule=undecayed", "delta_rule=tiled-heads", "delta_rule=swapped"] {
        let (code, report) = check(&["--suppose", supposed]);
        let tap = &report["references"][0]["first_divergence"]["tap"];
        assert_eq!((code, tap), (1, &json!("recurrent_state")), "{supposed}");
    }
}

#[test]
fn an_interval_of_attention_layers_of_0_is_refused() {
    let folder = with_key("tiny-qwen3next", &["layer_types"], None);
    let file = folder.path().join("config.json");
    let stated = fs::read_to_string(&file).expect("it is there");
    fs::write(&file, stated.replacen('{', r#"{"full_attention_interval":0,"#, 1)).expect("it is written");
    let (files, reference) = (text(folder.path()), text(&dump("tiny-qwen3next", "transformers-f32")));
    Terminal::new()
        .assert_refused(&["run", "--model", &files, "--reference", &reference], "1 or more layers");
}

/// A matrix of queries, keys and values without rows for the gate of attention's output.
#[test]
fn a_fused_matrix_without_the_gate_of_attention_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut bytes = fs::read(gguf("tiny-qwen3next", "f32")).expect("it is there");
    // As many bytes as before, so that the data stay aligned.
    for (from, to) in
        [("blk.1.attn_q.weight", "blk.1.attn_qkv.weight"), ("blk.1.attn_k.weight", "blk.1.attk.weight")]
    {
        let named = |name: &str| [&(name.len() as u64).to_le_bytes(), name.as_bytes()].concat();
        let (from, to) = (named(from), named(to));
        let at = bytes.windows(from.len()).position(|window| window == from).expect("a tensor");
        bytes.splice(at..at + from.len(), to);
    }
    let file = folder.path().join("fused.gguf");
    fs::write(&file, bytes).expect("it is written");
    let (file, reference) = (text(&file), text(&dump("tiny-qwen3next", "llama.cpp-f32")));
    Terminal::new().assert_refused(&["run", "--model", &file, "--reference", &reference], "[192, 32]");
}

/// Official files of Llama 4 state a number for the switch of the temperature, and an empty list of layers with RoPE.
#[test]
fn official_settings_of_llama_4_are_read_as_in_transformers() {
    let code = |model: &str, key: &str, value: Value| {
        code_of(with_key(model, &[key], Some(value)).path(), &dump(model, "transformers-f32"))
    };
    assert_eq!(code("tiny-llama4-chunks", "attn_temperature_tuning", json!(4)), 0);
    assert_eq!(code("tiny-llama4-chunks", "attn_temperature_tuning", json!(0)), 1);
    assert_eq!(code("tiny-llama4", "no_rope_layers", json!([])), 0);
}

/// Official files of Gemma 3n state a factor of queries that transformers ignores, and the text model's settings in a part.
#[test]
fn official_settings_of_gemma_3n_are_read_as_in_transformers() {
    let dump = dump("tiny-gemma3n-shared", "transformers-f32");
    let folder = with_key("tiny-gemma3n-shared", &["query_pre_attn_scalar"], Some(json!(256)));
    assert_eq!(run(folder.path(), &dump).0, 0);
    let file = folder.path().join("config.json");
    let stated = fs::read_to_string(&file).expect("it is there");
    fs::write(&file, format!(r#"{{"model_type": "gemma3n", "text_config": {stated}}}"#))
        .expect("it is written");
    assert_eq!(run(folder.path(), &dump).0, 0);
    let other = with_key("tiny-gemma3n-shared", &["altup_active_idx"], Some(json!(0)));
    assert_eq!(code_of(other.path(), &dump), 1);
}

/// Text models of Mistral and of Ministral 3 are parts of multimodal models with one name.
#[test]
fn the_text_part_of_mistral_3_is_that_of_its_own_model_type() {
    let judged = |model: &str, kind: &str| {
        let folder = with_key(model, &["model_type"], Some(json!(kind)));
        let file = folder.path().join("config.json");
        let text = fs::read_to_string(&file).expect("it is there");
        let whole = format!(r#"{{"model_type": "mistral3", "text_config": {text}}}"#);
        fs::write(&file, whole).expect("it is written");
        code_of(folder.path(), &dump(model, "transformers-f32"))
    };
    assert_eq!(judged("tiny-ministral3", "ministral3"), 0);
    assert_eq!(judged("tiny-ministral3", "mistral"), 1);
    assert_eq!(judged("tiny-mistral", "mistral"), 0);
}

/// Qwen 2.5 says more than Qwen 2, and means the same.
#[test]
fn a_sliding_window_that_no_layer_has_is_none() {
    let folder = with_key("tiny-qwen2", &["max_window_layers"], Some(json!(21)));
    let file = folder.path().join("config.json");
    let stated = fs::read_to_string(&file).expect("it is there");
    let more = r#"{"sliding_window":32768,"use_sliding_window":false,"use_mrope":false,"#;
    fs::write(&file, stated.replacen('{', more, 1)).expect("it is written");
    assert_eq!(run(folder.path(), &dump("tiny-qwen2", "transformers-f32")).0, 0);
}

/// Gemma 2 without the key has the caps that it was made with; one that says `null` has none.
#[test]
fn a_missing_softcap_is_the_default_and_a_null_softcap_is_none() {
    let at = |value: Option<Value>| {
        let folder = with_key("tiny-gemma2", &["final_logit_softcapping"], value);
        let (code, report) = run(folder.path(), &dump("tiny-gemma2", "transformers-f32"));
        (code, kinds(&report).join(","))
    };
    assert_eq!(at(None), (1, "softcap".into()), "30 where the dump has 12");
    assert_eq!(at(Some(Value::Null)), (1, "softcap".into()), "none where the dump has 12");
    assert_eq!(at(Some(json!(12))), (0, String::new()));
}

/// Keeps logits.
struct LogitTap(Vec<f32>);

impl Tap for LogitTap {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point == Point::Logits {
            self.0.extend_from_slice(value.data());
        }
        value
    }
}

/// llama.cpp caps the logits of a Gemma 4 file that does not state a cap at 30.
#[test]
fn a_gguf_file_of_gemma_4_without_a_softcap_has_the_cap_of_llama_cpp() {
    const KEY: &[u8] = b"gemma4.final_logit_softcapping";
    let path = architecture("tiny-gemma4moe").join("tiny-gemma4moe-f32.gguf");
    let bytes = fs::read(path).expect("it is there");
    let at = bytes.windows(KEY.len()).position(|found| found == KEY).expect("the key") + KEY.len();
    let logits = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        edit(&mut bytes);
        let file = ModelFiles::Gguf(FileBytes { path: "changed.gguf".into(), data: bytes.into() });
        let model = file.load().expect("it loads").model;
        let mut kept = LogitTap(Vec::new());
        engine::run(&*model, &F32, &RunInput::greedy(&[1, 393, 395], 1), &mut kept).expect("it runs");
        kept.0
    };
    // After the key: the type of the value, then the value.
    let of = |cap: f32| logits(&|bytes| bytes[at + 4..at + 8].copy_from_slice(&cap.to_le_bytes()));
    let without = logits(&|bytes| bytes[at - 1] = b'x');
    assert_eq!(without, of(30.0));
    assert_ne!(without, of(20.0));
}

/// A configuration that says otherwise of experts than the one that a real dump is of: each is named where it first shows.
#[test]
fn another_moe_routing_than_that_of_a_real_dump_is_named() {
    let others: [(&str, &str, Value, &str, &str); 5] = [
        ("tiny-qwen2moe", "norm_topk_prob", json!(true), "expert_weights", "expert_weights"),
        ("tiny-qwen3moe", "norm_topk_prob", json!(false), "expert_weights", "expert_weights"),
        ("tiny-qwen3moe", "num_experts_per_tok", json!(4), "expert_count", "experts"),
        ("tiny-mixtral", "num_experts_per_tok", json!(1), "expert_count", "experts"),
        ("tiny-mixtral", "num_experts_per_tok", json!(3), "expert_count", "experts"),
    ];
    for ((model, key, value, kind, tap), dtype) in one_of(2, pairs(others, ["f32", "bf16"])) {
        let folder = with_key(model, &[key], Some(value));
        let (code, report) = run(folder.path(), &dump(model, &format!("transformers-{dtype}")));
        assert_eq!((code, kinds(&report)), (1, vec![kind]), "{model}, {key}: {report}");
        let first = &report["references"][0]["first_divergence"];
        assert_eq!((&first["tap"], &first["layer"]), (&tap.into(), &0.into()), "{model}, {key}");
    }
}

/// A configuration that says otherwise of YaRN than the one that a real dump is of.
#[test]
fn another_yarn_than_that_of_a_real_dump_is_named() {
    let others = [
        ("tiny-qwen3-yarn", "factor", json!(8.0)),
        ("tiny-qwen3-yarn", "original_max_position_embeddings", json!(512)),
        ("tiny-qwen3-yarn", "attention_factor", json!(1.0)),
        ("tiny-qwen3-yarn", "rope_type", json!("linear")),
        ("tiny-llama-yarn", "beta_fast", json!(32.0)),
        ("tiny-llama-yarn", "truncate", json!(true)),
        ("tiny-llama-yarn", "mscale", Value::Null),
    ];
    for ((model, key, value), dtype) in one_of(2, pairs(others, ["f32", "bf16"])) {
        let folder = with_key(model, &["rope_parameters", key], Some(value));
        let (code, report) = run(folder.path(), &dump(model, &format!("transformers-{dtype}")));
        assert_eq!(code, 1, "{model}, {key}: {report}");
        let first = &report["references"][0]["first_divergence"];
        assert_eq!((&first["tap"], &first["layer"]), (&"q_rope".into(), &0.into()), "{model}, {key}");
    }
}

/// A GGUF file whose scaling is of another kind, as of a converter that does not write it.
#[test]
fn yarn_that_is_not_in_a_gguf_file_is_named() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut bytes = fs::read(gguf("tiny-qwen3-yarn", "f32")).expect("it is there");
    let value = [&4u64.to_le_bytes()[..], b"yarn"].concat();
    let at = bytes.windows(value.len()).position(|window| window == value).expect("the kind of scaling");
    bytes[at + 8..at + 12].copy_from_slice(b"none");
    let file = folder.path().join("model.gguf");
    fs::write(&file, bytes).expect("it is written");
    let (code, report) = run(&file, &dump("tiny-qwen3-yarn", "llama.cpp-f32"));
    assert_eq!((code, kinds(&report)), (1, vec!["rope_scaling"]), "{report}");
}

/// A copy of a dump that names what it holds of some taps alone.
fn with_taps(is_kept: impl Fn(&str) -> bool, dump: &Path, folder: &Path) -> PathBuf {
    let bytes = fs::read(dump).expect("it is there");
    let (mut header, end) = header_of(&bytes);
    let stored = header["__metadata__"].as_object_mut().expect("a manifest");
    for manifest in stored.values_mut() {
        let mut told: Value = serde_json::from_str(manifest.as_str().expect("a text")).expect("JSON");
        told["tensors"]
            .as_array_mut()
            .expect("tensors")
            .retain(|tensor| is_kept(tensor["tap"].as_str().expect("a name")));
        *manifest = told.to_string().into();
    }
    let header = header.to_string();
    let made = folder.join("thinned.safetensors");
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&made, [&length, header.as_bytes(), &bytes[end..]].concat()).expect("it is written");
    made
}

/// The header of a safetensors file, and the offset of its data.
fn header_of(bytes: &[u8]) -> (Value, usize) {
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    (serde_json::from_slice(&bytes[8..end]).expect("a header"), end)
}

/// A checkpoint that no such model has is none that a dump lacks; of a model that has it, it is.
#[test]
fn a_norm_that_the_architecture_lacks_is_not_required_and_another_is() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let made = with_taps(|tap| tap != "attn_norm", &dump("tiny-qwen2", "transformers-f32"), folder.path());
    let (code, report) = run(&architecture("tiny-qwen2").join("hf"), &made);
    let reference = &report["references"][0];
    let skipped = reference["coverage"]["skipped"].to_string();
    assert_eq!(code, 3, "{}", reference["reason"]);
    assert!(skipped.contains("checkpoint norm: no tap in"), "{skipped}");
    let (code, report) = run(&architecture("tiny-olmo2").join("hf"), &dump("tiny-olmo2", "transformers-f32"));
    assert_eq!(code, 0, "{}", report["references"][0]["reason"]);
}

/// llama.cpp computes Mistral as a Llama: the window is not in its files. Of the model that has one its dump is wrong.
#[test]
fn a_sliding_window_that_llama_cpp_does_not_know_is_named() {
    let (code, report) =
        run(&architecture("tiny-mistral").join("hf"), &dump("tiny-mistral", "llama.cpp-f32"));
    assert_eq!((code, kinds(&report)), (1, vec!["mask_window"]), "{}", report["references"][0]["findings"]);
}

/// A model whose biases are zero, as of an engine that does not read them.
#[test]
fn an_unread_bias_fails_at_its_projection() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let config = folder.path().join("config.json");
    fs::copy(architecture("tiny-qwen2").join("hf/config.json"), config).expect("it is copied");
    let mut bytes = fs::read(architecture("tiny-qwen2").join("hf/model.safetensors")).expect("it is there");
    let (header, data) = header_of(&bytes);
    let mut changed = 0;
    for (name, tensor) in header.as_object().expect("tensors") {
        if name.ends_with("k_proj.bias") {
            let at = |end: usize| data + tensor["data_offsets"][end].as_u64().expect("an offset") as usize;
            bytes[at(0)..at(1)].fill(0);
            changed += 1;
        }
    }
    assert_eq!(changed, 2, "one for each layer");
    fs::write(folder.path().join("model.safetensors"), bytes).expect("it is written");
    let (code, report) = run(folder.path(), &dump("tiny-qwen2", "transformers-f32"));
    assert_eq!(code, 1, "{report}");
    let first = &report["references"][0]["first_divergence"];
    assert_eq!((&first["tap"], &first["layer"]), (&"k".into(), &0.into()));
}

/// transformers takes a window where a file does not say that there is none.
#[test]
fn a_file_without_its_sliding_window_size_is_refused_and_one_without_a_window_sees_all() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let weights = folder.path().join("model.safetensors");
    fs::copy(architecture("tiny-mistral").join("hf/model.safetensors"), weights).expect("it is copied");
    let stated =
        fs::read_to_string(architecture("tiny-mistral").join("hf/config.json")).expect("it is there");
    let mut config: Value = serde_json::from_str(&stated).expect("JSON");
    let write = |config: &Value| {
        fs::write(folder.path().join("config.json"), config.to_string()).expect("it is written");
    };
    config["sliding_window"] = Value::Null;
    write(&config);
    let code = code_of(folder.path(), &dump("tiny-mistral", "llama.cpp-f32"));
    assert_eq!(code, 0, "without a window it is what llama.cpp computes");
    config.as_object_mut().expect("an object").remove("sliding_window");
    write(&config);
    let (model, reference) = (text(folder.path()), text(&dump("tiny-mistral", "transformers-f32")));
    Terminal::new().assert_refused(&["run", "--model", &model, "--reference", &reference], "sliding_window");
}
