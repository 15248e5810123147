//! BitNet checkpoints of transformers in every form, against transformers' own dumps of them; and what is refused.

use crate::common;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{reference_of, rules, variant};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};
use serde_json::{Value, json};
use tempfile::TempDir;
use xcheck::align::Selection;
use xcheck::change::CauseKind;
use xcheck::check::{Mode, Rules, Tolerances};
use xcheck::checkpoint::{Checkpoint, Point};
use xcheck::diagnose::cross_check;
use xcheck::dump::Dump;
use xcheck::engine;
use xcheck::model::bitnet::{self, Bitnet};
use xcheck::model::{Activation, LoadedModel, Model, ModelFiles};
use xcheck::numerics::{BitnetCpp, F32, KvType, Numerics, Transformers};
use xcheck::verdict::{Outcome, Verdict};
use xcheck::weight::{DType, Factor};

const FIRST: Option<usize> = Some(0);

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bitnet").join(name)
}

fn load(path: &Path) -> LoadedModel {
    ModelFiles::open(path).expect("it is a model").load().expect("it loads")
}

fn dump(name: &str) -> Dump {
    Dump::open(&folder(name)).expect("it is sound")
}

fn numerics(dump: &Dump) -> Transformers {
    match dump.manifest.producer.setting("dtype") {
        Some("bf16") => Transformers::Bf16,
        _ => Transformers::F32,
    }
}

fn judge(model: &dyn Model, reference: &Dump) -> Outcome {
    judge_with(model, reference, &numerics(reference))
}

fn judge_with(model: &dyn Model, reference: &Dump, numerics: &dyn Numerics) -> Outcome {
    let all = Selection {
        checkpoints: Checkpoint::with_input().to_vec(),
        explicit: true,
        ..Selection::everything()
    };
    let tolerances = Tolerances::shipped();
    let precision = reference.manifest.producer.precision().unwrap_or("f32");
    let rules = Rules { causes: true, ..rules(&all, &tolerances, precision, Mode::Both) };
    cross_check("reference", model, numerics, reference, rules, &mut ()).expect("the two can be compared")
}

/// All twelve checkpoints pass, and no stage introduces more than `most`, measured and rounded up.
#[track_caller]
fn assert_passes(model: &str, reference: &str, most: f64) {
    let reference = dump(&format!("{model}/dumps/transformers-{reference}.safetensors"));
    let outcome = judge(&*load(&folder(model)).model, &reference);
    assert_eq!(outcome.verdict, Verdict::Pass, "{:?}", outcome.reason);
    assert!(outcome.findings.is_empty());
    let local = |row: &xcheck::verdict::SiteResult| row.local.as_ref().map(|m| m.errors.max_abs);
    let worst = outcome.rows.iter().filter_map(local).fold(0.0, f64::max);
    assert!(worst <= most, "{model}: a stage introduces {worst:e}");
}

#[test]
fn a_packed_checkpoint_passes_every_checkpoint() {
    assert_passes("packed", "f32", 3e-6);
}

#[test]
fn a_packed_checkpoint_in_bf16_passes_every_checkpoint() {
    assert_passes("bf16", "bf16", 1e-7);
}

#[test]
fn the_older_linear_class_divides_by_the_scale_and_passes_every_checkpoint() {
    assert_passes("bitlinear", "f32", 3e-6);
    assert_passes("bitlinear", "bf16", 1e-7);
}

#[test]
fn master_weights_are_quantised_online_and_pass_every_checkpoint() {
    assert_passes("online", "f32", 3e-6);
    assert_passes("online", "bf16", 1e-7);
}

/// A copy of the packed model with another configuration or other tensors.
fn changed(config: impl FnOnce(&mut Value), tensors: impl FnOnce(&mut Tensors)) -> TempDir {
    let copy = TempDir::new().expect("a folder");
    let text = fs::read(folder("packed/config.json")).expect("it is there");
    let mut json: Value = serde_json::from_slice(&text).expect("it is JSON");
    config(&mut json);
    fs::write(copy.path().join("config.json"), json.to_string()).expect("it is written");
    let bytes = fs::read(folder("packed/model.safetensors")).expect("it is there");
    let held = SafeTensors::deserialize(&bytes).expect("it is sound").tensors().into_iter();
    let mut held: Tensors = held
        .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect();
    tensors(&mut held);
    let views = held.iter().map(|(name, (dtype, shape, data))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).expect("it is whole"))
    });
    serialize_to_file(views, None, &copy.path().join("model.safetensors")).expect("it is written");
    copy
}

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// The same weights as numbers, four rows of codes in one made four rows.
fn unpack(tensors: &mut Tensors) {
    for (dtype, shape, data) in tensors.values_mut().filter(|(dtype, ..)| *dtype == Dtype::U8) {
        let weight = |part: usize, byte: &u8| f32::from(byte >> (2 * part) & 3) - 1.0;
        let weights = (0..4).flat_map(|part| data.iter().map(move |byte| weight(part, byte)));
        let bytes: Vec<u8> = weights.flat_map(f32::to_le_bytes).collect();
        (*dtype, shape[0], *data) = (Dtype::F32, 4 * shape[0], bytes);
    }
}

#[test]
fn weights_that_are_not_packed_give_what_packed_ones_give() {
    let copy = changed(|_| (), unpack);
    let outcome = judge(&*load(copy.path()).model, &dump("packed/dumps/transformers-f32.safetensors"));
    assert_eq!(outcome.verdict, Verdict::Pass, "{:?}", outcome.reason);
}

// ---- rows that end inside a block of 128 ------------------------------------------------------------------

/// The packed model with a feed-forward size of 172, so that rows of `down_proj` are no whole blocks.
fn narrow(config: impl FnOnce(&mut Value), tensors: impl FnOnce(&mut Tensors)) -> TempDir {
    const WIDTH: usize = 172;
    let cut = |held: &mut Tensors| {
        for (name, (_, shape, data)) in held.iter_mut() {
            if name.ends_with("gate_proj.weight") || name.ends_with("up_proj.weight") {
                (shape[0], _) = (WIDTH / 4, data.truncate(WIDTH / 4 * shape[1]));
            } else if name.ends_with("down_proj.weight") {
                *data = data.chunks(shape[1]).flat_map(|row| &row[..WIDTH]).copied().collect();
                shape[1] = WIDTH;
            } else if name.ends_with("ffn_sub_norm.weight") {
                (shape[0], _) = (WIDTH, data.truncate(WIDTH * 4));
            }
        }
        tensors(held);
    };
    let size = |json: &mut Value| {
        json["intermediate_size"] = json!(WIDTH);
        config(json);
    };
    changed(size, cut)
}

/// Every tap of a short run.
fn values(folder: &Path, numerics: &dyn Numerics) -> Vec<(xcheck::checkpoint::Site, Vec<u64>)> {
    let out = TempDir::new().expect("a folder");
    let path = out.path().join("dump");
    common::record(&*load(folder).model, numerics, &engine::RunInput::greedy(&[1, 5, 9], 1), &path);
    let dump = Dump::open(&path).expect("it is sound");
    let mut sites: Vec<_> = dump.sites().collect();
    sites.sort_by_key(|site| site.flow_order());
    let bits =
        |site| dump.read(site).expect("sound").expect("held").data.iter().map(|v| v.to_bits()).collect();
    sites.into_iter().map(|site| (site, bits(site))).collect()
}

#[test]
fn packed_rows_of_any_length_give_what_the_same_weights_give_as_numbers() {
    let (packed, numbers) = (narrow(|_| (), |_| ()), narrow(|_| (), unpack));
    let ways: [&dyn Numerics; 3] = [&Transformers::F32, &Transformers::Bf16, &F32];
    for numerics in ways {
        assert_eq!(values(packed.path(), numerics), values(numbers.path(), numerics), "{}", numerics.name());
    }
    assert_eq!(load(packed.path()).precision, DType::I2_S);
    // bitnet.cpp has its own arithmetic for codes, and no file of such rows; it must run all the same.
    assert!(!values(packed.path(), &BitnetCpp { kv: KvType::F32 }).is_empty());
}

#[test]
fn master_weights_in_rows_of_any_length_are_quantised() {
    let online = |config: &mut Value| config["quantization_config"]["quantization_mode"] = json!("online");
    let masters = |tensors: &mut Tensors| {
        unpack(tensors);
        tensors.retain(|name, _| !name.ends_with("weight_scale"));
    };
    let (quantised, numbers) = (load(narrow(online, masters).path()), load(narrow(|_| (), unpack).path()));
    let down = |loaded: &LoadedModel| {
        let matrices = loaded.model.matrices();
        let (_, matrix) = matrices.iter().find(|(name, _)| name.starts_with("ffn_down")).expect("it has one");
        let decoded = (0..matrix.rows).flat_map(|row| {
            let mut out = vec![0.0f32; matrix.cols];
            xcheck::quant::decode_matrix_row(matrix, row, &mut out);
            out
        });
        (matrix.dtype, decoded.collect::<Vec<_>>())
    };
    let ((dtype, codes), (plain, weights)) = (down(&quantised), down(&numbers));
    assert_eq!((dtype, plain), (DType::I2_S, DType::F32));
    assert_eq!(codes, weights, "weights of -1, 0 and 1 are their own codes");
}

#[test]
fn a_bad_code_at_the_end_of_such_a_row_is_refused_with_its_place() {
    let name = "model.layers.0.mlp.down_proj.weight";
    let copy = narrow(|_| (), |tensors| tensors.get_mut(name).expect("it is there").2[171] = 0b1100_0000);
    assert_refused(&copy, &[name, "171"]);
}

#[test]
fn both_spellings_of_the_class_are_the_same_model() {
    let copy = changed(|config| config["architectures"] = json!(["BitnetForCausalLM"]), |_| ());
    let outcome = judge(&*load(copy.path()).model, &dump("packed/dumps/transformers-f32.safetensors"));
    assert_eq!(outcome.verdict, Verdict::Pass, "{:?}", outcome.reason);
}

/// The packed checkpoint and the GGUF file hold the same weights: bitnet.cpp's own dump judges both alike.
#[test]
fn a_packed_checkpoint_gives_the_integers_of_the_i2_s_file() {
    let packed = load(&folder("packed")).model;
    let gguf = variant("tiny-bitnet-b158-i2_s").load().expect("it loads").model;
    let names = |model: &dyn Model| model.matrices().iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&*packed), names(&*gguf));
    for ((name, ours), (_, theirs)) in packed.matrices().iter().zip(gguf.matrices()).skip(2) {
        assert_eq!(ours.dtype, DType::I2_S, "{name}");
        assert_eq!(ours.row_range(0..ours.rows), theirs.row_range(0..theirs.rows), "{name}");
    }
}

#[test]
fn the_i2_s_file_passes_against_transformers_up_to_one_rounding() {
    let gguf = variant("tiny-bitnet-b158-i2_s").load().expect("it loads").model;
    let outcome = judge(&*gguf, &dump("packed/dumps/transformers-f32.safetensors"));
    assert_eq!(outcome.verdict, Verdict::Pass, "{:?}", outcome.reason);
}

#[test]
fn strict_takes_packed_codes_and_refuses_to_decode_them_for_other_numerics() {
    let packed = load(&folder("packed"));
    assert_eq!(packed.precision, DType::I2_S);
    engine::check_native(&*packed.model, &Transformers::F32).expect("it computes with codes");
    let refusal = engine::check_native(&*packed.model, &F32).expect_err("it would decode them");
    assert!(refusal.to_string().contains("i2_s"), "{refusal}");
}

// ---- planted faults ----------------------------------------------------------------------------------------

fn packed() -> Bitnet {
    let config = fs::read(folder("packed/config.json")).expect("it is there");
    let config: Value = serde_json::from_slice(&config).expect("it is JSON");
    let path = folder("packed/config.json");
    let source = xcheck::format::FileBytes::open(&folder("packed/model.safetensors")).expect("it is there");
    let tensors = xcheck::format::TensorFile::read(&source).expect("it is sound");
    Bitnet::from_hugging_face(&xcheck::model::Config::new(&path, &config), &tensors, &bitnet::FAMILY)
        .expect("it loads")
}

#[track_caller]
fn assert_first_wrong(outcome: &Outcome, point: Point, layer: Option<usize>) {
    let found = outcome.first_divergence().map(|row| (row.site.point, row.site.layer, row.site.pass));
    assert_eq!(found, Some((point, layer, Some(0))), "{:?}", outcome.reason);
}

#[test]
fn a_scale_that_is_multiplied_where_it_divides_is_found_in_the_queries() {
    let mut model = packed();
    for layer in &mut model.layers {
        let Some(Factor::Multiplies(scale)) = layer.q.factor else { panic!("a scale beside the codes") };
        layer.q.factor = Some(Factor::Divides(scale));
    }
    assert_first_wrong(&judge(&model, &dump("packed/dumps/transformers-f32.safetensors")), Point::Q, FIRST);
}

#[test]
fn activations_not_quantised_to_int8_are_found_in_the_queries() {
    let outcome = judge_with(&packed(), &dump("packed/dumps/transformers-f32.safetensors"), &F32);
    assert_first_wrong(&outcome, Point::Q, FIRST);
}

#[test]
fn a_sub_norm_that_is_skipped_is_found_there() {
    let mut model = packed();
    model.layers[1].ffn_sub_norm.weight.fill(1.0);
    let outcome = judge(&model, &dump("packed/dumps/transformers-f32.safetensors"));
    assert_first_wrong(&outcome, Point::FfnSubNorm, Some(1));
}

// ---- an honest reference -----------------------------------------------------------------------------------

/// A reference that runs SiLU where the model's configuration says squared ReLU is wrong from its activation on, and
/// the message names what it computes; the reference that does as the configuration says settles who is right.
#[test]
fn a_reference_with_silu_fails_at_the_activation_and_the_message_names_it() {
    let model = load(&folder("packed")).model;
    let wrong = judge(&*model, &dump("silu.safetensors"));
    assert_eq!(wrong.verdict, Verdict::Fail);
    assert_first_wrong(&wrong, Point::FfnAct, FIRST);
    let [finding] = wrong.findings.as_slice() else { panic!("{:?}", wrong.findings) };
    assert_eq!(finding.kind, CauseKind::Activation);
    assert_eq!(finding.key.as_deref(), Some("hidden_act"));
    assert_eq!([&finding.reference, &finding.candidate].map(Option::as_deref), [Some("silu"), Some("relu2")]);
    let right = judge(&*model, &dump("packed/dumps/transformers-f32.safetensors"));
    assert_eq!((right.verdict, right.findings.len()), (Verdict::Pass, 0));
}

#[test]
fn silu_in_our_engine_is_named_against_bitnet_cpps_own_dump() {
    let mut model =
        Bitnet::from_gguf(&common::gguf("tiny-bitnet-b158-i2_s"), &bitnet::FAMILY).expect("it loads");
    model.config.activation = Activation::Silu;
    let reference = reference_of("tiny-bitnet-b158", "bitnet.cpp-f32kv");
    let outcome = judge_with(&model, &reference, &BitnetCpp { kv: KvType::F32 });
    assert_first_wrong(&outcome, Point::FfnAct, FIRST);
    let [finding] = outcome.findings.as_slice() else { panic!("{:?}", outcome.findings) };
    assert_eq!(finding.kind, CauseKind::Activation);
    assert_eq!([&finding.reference, &finding.candidate].map(Option::as_deref), [Some("relu2"), Some("silu")]);
}

// ---- refusals ----------------------------------------------------------------------------------------------

#[track_caller]
fn assert_refused(copy: &TempDir, expected: &[&str]) {
    let refusal = ModelFiles::open(copy.path()).expect("it is a model").load().err().expect("it is refused");
    let message = refusal.to_string();
    expected.iter().for_each(|part| assert!(message.contains(part), "{part}: {message}"));
}

#[test]
fn what_quantization_config_asks_for_beyond_this_is_refused_with_its_name() {
    let cases: [(&str, Value); 7] = [
        ("quant_method", json!("quip")),
        ("linear_class", json!("sparselinear")),
        ("quantization_mode", json!("sometimes")),
        ("use_rms_norm", json!(true)),
        ("modules_to_not_convert", json!(["model.layers.0"])),
        ("bits", json!(4)),
        ("quant_method", json!(1.58)),
    ];
    for (key, value) in cases {
        let copy = changed(|config| config["quantization_config"][key] = value.clone(), |_| ());
        assert_refused(&copy, &[&format!("quantization_config.{key}"), "config.json"]);
    }
}

#[test]
fn another_activation_in_the_configuration_is_refused_with_its_name() {
    let copy = changed(|config| config["hidden_act"] = json!("gelu"), |_| ());
    assert_refused(&copy, &["hidden_act", "relu2"]);
}

#[test]
fn a_packed_matrix_without_its_scale_is_refused() {
    let name = "model.layers.1.mlp.up_proj.weight_scale";
    assert_refused(&changed(|_| (), |tensors| _ = tensors.remove(name)), &[name]);
}

#[test]
fn a_packed_matrix_of_other_rows_is_refused() {
    let name = "model.layers.0.self_attn.q_proj.weight";
    let copy = changed(
        |_| (),
        |tensors| {
            let (_, shape, data) = tensors.get_mut(name).expect("it is there");
            (shape[0], _) = (16, data.truncate(16 * 128));
        },
    );
    assert_refused(&copy, &[name, "16", "32"]);
}

#[test]
fn a_packed_ternary_code_without_a_meaning_is_refused_with_its_place() {
    let name = "model.layers.0.self_attn.k_proj.weight";
    let copy = changed(|_| (), |tensors| tensors.get_mut(name).expect("it is there").2[77] = 0b0111_0001);
    assert_refused(&copy, &[name, "77"]);
}

#[test]
fn packed_codes_without_a_quantization_config_are_refused() {
    let copy = changed(
        |config| _ = config.as_object_mut().expect("an object").remove("quantization_config"),
        |_| (),
    );
    assert_refused(&copy, &["model.layers.0.self_attn.q_proj.weight"]);
}
