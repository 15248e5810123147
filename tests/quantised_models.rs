//! Quantised Hugging Face checkpoints made by the real libraries: the decoded weights have the libraries' bits, dumps of
//! transformers pass, and faults in the stored tensors or the configuration are found.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use xcheck::engine::RunInput;
use xcheck::format::TensorFile;
use xcheck::model::ModelFiles;
use xcheck::numerics::{Numerics, Transformers};
use xcheck::quant::decode_matrix_row;
use xcheck::tensor::Tensor;
use xcheck::weight::{DType, Matrix, StoredTensor};

use crate::common::faulty::{Base, Faulty};
use crate::common::terminal::Terminal;
use crate::judge::clay::Clay;
use crate::judge::scene::recorded;

/// Whole models with a dump.
const MODELS: [&str; 36] = [
    "hqq",
    "hqq-bf16",
    "hqq-f16",
    "quanto-int8",
    "quanto-int4",
    "quanto-fp8",
    "quanto-groups",
    "fp8-cache",
    "fp8-cache-heads",
    "nvfp4-and-fp8",
    "static-and-dynamic",
    "modelopt-fp8",
    "modelopt-int8",
    "modelopt-nvfp4",
    "modelopt-mixed",
    "modelopt-smoothquant",
    "modelopt-int4-awq",
    "modelopt-nvfp4-awq",
    "modelopt-w4a8-awq",
    "fp8-static-tensor",
    "nf4-model",
    "fp4-model",
    "int8-model",
    "awq",
    "gptq",
    "gptq-dynamic",
    "w4a16",
    "nvfp4",
    "fp8",
    "w8a8",
    "fp8-dynamic",
    "fp8-static",
    "w8a8-static",
    "w8a8-static-zeros",
    "torchao-int8",
    "mxfp4-experts",
];

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/quantised").join(name)
}

/// Name of the folder with the unquantised model.
fn original_of(name: &str) -> &'static str {
    match name {
        "mxfp4-experts" => "../architectures/tiny-gptoss/hf",
        "modelopt-fp8-block" => "modelopt-fp8-block/original",
        "quanto-groups" | "quanto-int2-groups" => "quanto-groups/original",
        _ => "original",
    }
}

pub(crate) fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("it is there")).expect("it is JSON")
}

pub(crate) fn decoded(folder: &Path) -> Result<TensorFile, String> {
    let files = ModelFiles::open(folder).expect("it is a model");
    let settings = files.dequantisation().map_err(|error| error.to_string())?;
    let file = files.tensors().expect("it is sound");
    settings.expect("it is quantised").decoded(&file).map_err(|error| error.to_string())
}

/// The bytes of a decoded tensor in the type of the library.
fn bytes(tensor: &StoredTensor, dtype: &str) -> Vec<u8> {
    let value = |bytes: &[u8]| match tensor.dtype {
        DType::F32 => f32::from_le_bytes(bytes.try_into().expect("four bytes")),
        DType::F16 => f16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f32(),
        _ => bf16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f32(),
    };
    let values = tensor.data.chunks(tensor.dtype.block_bytes()).map(value);
    match dtype {
        "float32" => values.flat_map(f32::to_le_bytes).collect(),
        "float16" => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
        "bfloat16" => values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
        other => panic!("no type {other}"),
    }
}

/// The modules whose weights do not have the bits of the library.
fn differing(decoded: &TensorFile, facts: &Value) -> Vec<String> {
    let weights = facts["weights"].as_object().expect("an object");
    let differs = |(module, facts): (&String, &Value)| {
        let weight = decoded.get(&format!("{module}.weight"));
        let tensor = weight.or_else(|| decoded.get(module)).expect("it is decoded");
        let dtype = facts["dtype"].as_str().expect("a text");
        let sha256 = hex::encode(Sha256::digest(bytes(tensor, dtype)));
        (facts["sha256"] != *sha256).then(|| module.clone())
    };
    weights.iter().filter_map(differs).collect()
}

fn every_folder() -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder("")).expect("it is there").map(|entry| entry.expect("it is there").path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.join("decoded.json").is_file()).collect();
    folders.sort();
    assert!(folders.len() >= 25, "all are tested");
    folders
}

#[test]
fn weights_have_the_bits_of_the_libraries() {
    for folder in every_folder() {
        let decoded = decoded(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let differing = differing(&decoded, &json_of(&folder.join("decoded.json")));
        assert_eq!(differing, Vec::<String>::new(), "{}", folder.display());
    }
}

pub(crate) type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// A copy of a folder with another configuration or other tensors.
pub(crate) fn changed(
    name: &str,
    config: impl FnOnce(&mut Value),
    tensors: impl FnOnce(&mut Tensors),
) -> TempDir {
    let copy = TempDir::new().expect("a folder");
    let mut json = json_of(&folder(name).join("config.json"));
    config(&mut json);
    fs::write(copy.path().join("config.json"), json.to_string()).expect("it is written");
    for file in ["hf_quant_config.json", "quanto_qmap.json"] {
        if folder(name).join(file).is_file() {
            fs::copy(folder(name).join(file), copy.path().join(file)).expect("it is written");
        }
    }
    let bytes = fs::read(folder(name).join("model.safetensors")).expect("it is there");
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

/// Changes the bytes of every tensor with that ending.
pub(crate) fn each(tensors: &mut Tensors, ending: &str, change: impl Fn(&mut [u8])) {
    let named = tensors.iter_mut().filter(|(name, _)| name.ends_with(ending));
    assert!(named.map(|(_, (_, _, data))| change(data)).count() > 0, "there is one");
}

fn add_one_to_each_nibble(data: &mut [u8]) {
    data.iter_mut()
        .for_each(|byte| *byte = (*byte & 0xf0).wrapping_add(0x10) | (*byte & 0xf).wrapping_add(1) & 0xf);
}

pub(crate) fn swap_nibbles(data: &mut [u8]) {
    data.iter_mut().for_each(|byte| *byte = byte.rotate_left(4));
}

pub(crate) fn inverted(data: &mut [u8]) {
    let (numbers, _) = data.as_chunks_mut::<4>();
    numbers.iter_mut().for_each(|number| *number = (1.0 / f32::from_le_bytes(*number)).to_le_bytes());
}

/// Adds a number to each f32.
fn floats_plus(data: &mut [u8], more: f32) {
    let (numbers, _) = data.as_chunks_mut::<4>();
    numbers.iter_mut().for_each(|number| *number = (f32::from_le_bytes(*number) + more).to_le_bytes());
}

/// Adds a number to each f16.
fn half_floats_plus(data: &mut [u8], more: f32) {
    let (numbers, _) = data.as_chunks_mut::<2>();
    let plus = |number: [u8; 2]| f16::from_f32(f16::from_le_bytes(number).to_f32() + more).to_le_bytes();
    numbers.iter_mut().for_each(|number| *number = plus(*number));
}

fn reversed(data: &mut [u8]) {
    // Pairs of scales of two bytes change their places, too.
    let (numbers, _) = data.as_chunks_mut::<4>();
    numbers.reverse();
}

/// Exit code and verdict of a dump that is judged with the model in a folder.
pub(crate) fn checked(model: &Path, dump: &Path, options: &[&str]) -> (i32, Value) {
    let (model, dump) = (model.display().to_string(), dump.display().to_string());
    let words = [&["check", "--candidate", &dump, "--model", &model, "--no-report"], options].concat();
    let (code, report) = Terminal::new().json(&words);
    (code, report["references"][0].clone())
}

fn verdict(model: &Path, dump: &Path) -> (i32, Value) {
    checked(model, dump, &["--no-causes"])
}

/// A dump by an engine in `dtype` whose products with weights are computed by `linear`.
pub(crate) fn dumped(
    model: &Path,
    (base, dtype): (&'static dyn Numerics, &str),
    linear: fn(&Tensor, &Matrix) -> Tensor,
) -> (TempDir, PathBuf) {
    let model = ModelFiles::open(model).expect("it is a model").load().expect("it loads").model;
    let numerics = Faulty { base: Base(base), linear: Some(linear), ..Faulty::default() };
    let dump = recorded(&*model, &numerics, dtype, &RunInput::greedy(&[1, 39, 35, 26, 9, 41], 2), &mut ());
    let place = TempDir::new().expect("a folder");
    let file = place.path().join("dump.safetensors");
    Clay::of(&dump).save(&file);
    (place, file)
}

#[test]
fn dumps_of_the_libraries_pass_at_every_site() {
    for name in MODELS {
        let (code, report) = verdict(&folder(name), &folder(name).join("dump.safetensors"));
        assert_eq!(code, 0, "{name}: {report:#}");
    }
}

#[test]
fn the_same_dumps_fail_with_a_fault_in_the_format() {
    let unchanged = |_: &mut Value| ();
    type Fault = (&'static str, &'static str, fn(&mut [u8]));
    let faults: [Fault; 33] = [
        ("hqq", "down_proj.zero", |data| floats_plus(data, 1.0)),
        ("hqq", "down_proj.scale", reversed),
        ("hqq", "down_proj.W_q", swap_nibbles),
        ("quanto-int8", "down_proj.weight._scale", reversed),
        ("quanto-int4", "down_proj.weight._data._data", swap_nibbles),
        ("quanto-int4", "down_proj.weight._shift", inverted),
        ("quanto-groups", "o_proj.weight._scale", reversed),
        ("nvfp4-and-fp8", "input_global_scale", |data| floats_times(data, 1.5)),
        ("nvfp4-and-fp8", "self_attn.q_proj.weight_scale", reversed),
        ("static-and-dynamic", "input_scale", |data| brain_floats_times(data, 1.25)),
        ("modelopt-fp8", "input_scale", |data| floats_times(data, 1.25)),
        ("modelopt-int8", "input_scale", |data| floats_times(data, 1.25)),
        ("modelopt-nvfp4", "weight_scale_2", inverted),
        ("modelopt-smoothquant", "pre_quant_scale", |data| brain_floats_times(data, 1.05)),
        ("modelopt-int4-awq", "pre_quant_scale", reversed),
        ("modelopt-nvfp4-awq", "pre_quant_scale", reversed),
        ("modelopt-w4a8-awq", "pre_quant_scale", reversed),
        ("modelopt-w4a8-awq", "input_scale", |data| floats_times(data, 1.25)),
        ("nf4-model", "proj.weight", swap_nibbles),
        ("fp4-model", "absmax", reversed),
        ("int8-model", "SCB", reversed),
        ("fp8-static", "input_scale", |data| brain_floats_times(data, 1.25)),
        ("w8a8-static", "input_scale", |data| brain_floats_times(data, 1.25)),
        ("mxfp4-experts", "_blocks", swap_nibbles),
        ("mxfp4-experts", "_scales", reversed),
        ("torchao-int8", "_weight_scale", reversed),
        ("awq", "qzeros", add_one_to_each_nibble),
        ("gptq", "qzeros", add_one_to_each_nibble),
        ("w4a16", "weight_packed", swap_nibbles),
        ("nvfp4", "weight_global_scale", inverted),
        ("fp8", "weight_scale_inv", reversed),
        ("w8a8", "weight_scale", reversed),
        ("fp8-dynamic", "weight_scale", reversed),
    ];
    for (name, tensor, change) in faults {
        let wrong = changed(name, unchanged, |tensors| each(tensors, tensor, change));
        let (code, report) = verdict(wrong.path(), &folder(name).join("dump.safetensors"));
        assert_eq!(code, 1, "{name}: {report:#}");
    }
}

/// A dump by an engine in f16 whose products do not round the weights that it decodes.
fn by_whole_weights(name: &str, linear: fn(&Tensor, &Matrix) -> Tensor) -> (i32, Value) {
    let (_place, file) = dumped(&folder(name), (&Transformers::F16, "f16"), linear);
    verdict(&folder(name), &file)
}

fn product(x: &Tensor, w: &Matrix, factor: f64) -> Tensor {
    let mut rows = vec![vec![0.0f32; w.cols]; w.rows];
    rows.iter_mut().enumerate().for_each(|(row, weights)| decode_matrix_row(w, row, weights));
    let times = |x: &[f32], w: &[f32]| -> f32 {
        let sum: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
        f16::from_f64(sum * factor).to_f32()
    };
    let data = x.data().chunks(w.cols).flat_map(|x| rows.iter().map(move |w| times(x, w))).collect();
    Tensor::new(&[x.rows(), w.rows], data)
}

#[test]
fn kernels_that_do_not_round_decoded_weights_pass_and_wrong_ones_fail() {
    for name in ["awq", "hqq-f16", "quanto-fp8"] {
        let (code, report) = by_whole_weights(name, |x, w| product(x, w, 1.0));
        assert_eq!(code, 0, "{name}: {report:#}");
        // hqq rounds weights when it decodes them.
        let has_note = report.to_string().contains("decoded weights are not rounded");
        assert_eq!(has_note, name != "hqq-f16", "{name}: {report:#}");
        let (code, report) = by_whole_weights(name, |x, w| product(x, w, 1.004));
        assert_eq!(code, 1, "{name}: {report:#}");
    }
}

#[test]
fn settings_that_change_the_weights_are_read() {
    let cases = [("gptq", "gptq_v2"), ("gptq-asymmetric", "gptq_v2"), ("gptq-activation-order", "gptq")];
    for (name, value) in cases {
        let set = |config: &mut Value| config["quantization_config"]["checkpoint_format"] = json!(value);
        let decoded = decoded(changed(name, set, |_| ()).path()).expect("the setting is known");
        assert_ne!(differing(&decoded, &json_of(&folder(name).join("decoded.json"))).len(), 0, "{name}");
    }
    let empty = |config: &mut Value| config["quantization_config"]["config_groups"] = json!(null);
    let error = decoded(changed("fp8-channel", empty, |_| ()).path()).unwrap_err();
    assert!(error.contains("config_groups"), "{error}");
}

#[track_caller]
pub(crate) fn assert_refused(copy: &TempDir, words: &[&str]) {
    let error = decoded(copy.path()).expect_err("it is refused");
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn settings_beyond_these_are_refused_with_their_key() {
    let cases: [(&str, &str, Value); 13] = [
        ("awq", "quant_method", json!("quip")),
        ("awq", "version", json!("gemv")),
        ("awq", "bits", json!(3)),
        ("awq", "zero_point", json!(false)),
        ("awq", "group_size", json!(0)),
        ("gptq", "bits", json!(5)),
        ("gptq", "checkpoint_format", json!("marlin")),
        ("w4a16", "kv_cache_scheme", json!({"num_bits": 4})),
        ("w4a16", "quantization_status", json!("frozen")),
        ("w4a16", "format", json!("marlin-24")),
        ("fp8", "scale_fmt", json!("log")),
        ("fp8", "weight_block_size", json!([0, 128])),
        ("nf4", "bnb_4bit_quant_type", json!("int4")),
    ];
    for (name, key, value) in cases {
        let change = |config: &mut Value| {
            let settings = &mut config["quantization_config"];
            if let Some(group) = settings["config_groups"].get_mut("group_0").and_then(Value::as_object_mut) {
                _ = group.remove("format");
            }
            settings[key] = value;
        };
        assert_refused(
            &changed(name, change, |_| ()),
            &[&format!("quantization_config.{key}"), "config.json"],
        );
    }
}

/// GPTQModel applies the first entry that contains a module. JSON objects are read without an order.
#[test]
fn settings_of_single_gptq_modules_that_contradict_the_file_or_each_other_are_refused() {
    let up = r"+:model\.layers\.0\.mlp\.up_proj";
    let cases: [(&str, Value, &[&str]); 6] = [
        ("-:.*k_proj", json!(null), &["k_proj", "is not quantised", "quantization_config.dynamic"]),
        ("-:.*q_proj", json!({}), &["q_proj", "'-:.*q_proj' in quantization_config.dynamic excludes it"]),
        (up, json!({"bits": 4}), &["up_proj"]),
        (up, json!({"bits": 5}), &["up_proj.bits' is 5"]),
        (up, json!({"bits": 8, "codebook": 1}), &["up_proj.codebook'"]),
        (".*up_proj", json!({"bits": 4}), &["both '+:model", "and '.*up_proj'"]),
    ];
    for (pattern, value, words) in cases {
        let set = |config: &mut Value| config["quantization_config"]["dynamic"][pattern] = value;
        assert_refused(&changed("gptq-dynamic", set, |_| ()), words);
    }
}

#[test]
fn types_of_torchao_beyond_these_are_refused_with_their_key() {
    let data = "/default/_data";
    let cases = [
        ("torchao-int8", "", json!("int8_weight_only"), "quant_type"),
        ("torchao-int8", "/default/_type", json!("Int4WeightOnlyConfig"), "default._type"),
        ("torchao-int8", "/default/_version", json!(1), "default._version"),
        ("torchao-int8", &format!("{data}/granularity/_type"), json!("PerBlock"), "granularity._type"),
        ("torchao-w8a8", &format!("{data}/granularity"), json!(null), "_data.granularity"),
        (
            "torchao-int4",
            &format!("{data}/intx_packing_format/_data"),
            json!("OPAQUE"),
            "intx_packing_format._data",
        ),
    ];
    for (name, place, value, key) in cases {
        let change = |config: &mut Value| {
            let kind = &mut config["quantization_config"]["quant_type"];
            *kind.pointer_mut(place).expect("it is there") = value;
        };
        assert_refused(
            &changed(name, change, |_| ()),
            &["quantization_config.quant_type", &format!("{key}'")],
        );
    }
}

#[test]
fn modules_that_contradict_the_lists_are_refused_with_their_name() {
    let module = "model.layers.0.mlp.down_proj";
    let listed = |key: &'static str, pattern: &'static str| {
        move |config: &mut Value| config["quantization_config"][key] = json!([pattern])
    };
    let lists = [
        ("awq", "modules_to_not_convert", "down_proj"),
        ("gptq", "modules_to_not_convert", "model.layers.0.mlp"),
        ("w4a16", "ignore", "re:.*down_proj$"),
        ("w4a16", "ignore", module),
        ("fp8", "modules_to_not_convert", "model.layers.0.mlp.down_proj"),
        ("nf4", "llm_int8_skip_modules", "mlp"),
    ];
    for (name, key, pattern) in lists {
        let copy = changed(name, listed(key, pattern), |_| ());
        if (name, pattern) != ("nf4", "mlp") {
            assert_refused(&copy, &["down_proj", &format!("'{pattern}' in quantization_config.{key}")]);
        }
        // The same name with an ending that does not match excludes nothing.
        let copy = changed(name, listed(key, "own_pro"), |_| ());
        assert!(decoded(copy.path()).is_ok(), "{name}");
        // An unquantised module must be listed.
        let plain = |tensors: &mut Tensors| {
            tensors.retain(|name, _| !name.starts_with(module));
            let data = vec![0; 64 * 128 * 2];
            tensors.insert(format!("{module}.weight"), (Dtype::BF16, vec![64, 128], data));
        };
        assert_refused(&changed(name, |_| (), plain), &[&format!("{module}.weight"), key]);
        if pattern != "mlp" {
            let allowed = changed(name, listed(key, pattern), |tensors| {
                plain(tensors);
                let inside = pattern == "model.layers.0.mlp";
                tensors.retain(|name, _| !inside || !name.contains("gate_proj") && !name.contains("up_proj"));
            });
            assert!(decoded(allowed.path()).is_ok(), "{name}: {:?}", decoded(allowed.path()).err());
        }
    }
}

#[test]
fn damaged_tensors_are_refused_with_their_name() {
    let module = "model.layers.0.mlp.down_proj";
    let missing = [
        ("awq", "scales"),
        ("gptq", "qzeros"),
        ("w4a16", "weight_scale"),
        ("w4a16", "weight_shape"),
        ("nvfp4", "weight_global_scale"),
        ("nf4", "weight.absmax"),
        ("nf4", "weight.nested_quant_map"),
        ("mlx-4-bits", "biases"),
        ("bnb-int8", "weight"),
    ];
    let missing = missing.map(|(name, tensor)| (name, format!("{module}.{tensor}")));
    let experts = "model.layers.0.mlp.experts.gate_up_proj_scales";
    for (name, tensor) in missing.into_iter().chain([("mxfp4-experts", experts.to_owned())]) {
        assert_refused(&changed(name, |_| (), |tensors| _ = tensors.remove(&tensor)), &[&tensor]);
    }
    let values: [(&str, &str, &[u8]); 7] = [
        ("awq", "scales", &[0, 0x7c]),
        ("fp8", "weight_scale_inv", &[0, 0, 0xc0, 0x7f]),
        ("w4a16", "weight_shape", &[0xff; 16]),
        ("mxfp4", "weight_scale", &[0xff]),
        ("gptq-activation-order", "g_idx", &[0xff; 4]),
        ("nvfp4", "weight_global_scale", &[0; 4]),
        ("nf4", "weight.quant_state.bitsandbytes__nf4", b"{]"),
    ];
    for (name, tensor, bytes) in values {
        let tensor = format!("{module}.{tensor}");
        let change = |tensors: &mut Tensors| {
            let (_, _, data) = tensors.get_mut(&tensor).expect("it is there");
            data[..bytes.len()].copy_from_slice(bytes);
        };
        assert_refused(&changed(name, |_| (), change), &[&tensor]);
    }
}

/// Tensors whose shapes and types are not checked: they state how the weight was made or is computed, or contain no
/// array.
const UNREAD: [&str; 13] = [
    "bitsandbytes__nf4",
    "bitsandbytes__fp4",
    "view_as_float",
    "unpack_view_dtype",
    "compute_dtype",
    "offload_meta",
    "encoded_state_dict",
    "stores_quant_config",
    "channel_wise",
    "optimize",
    "round_zero",
    "input_scale",
    "output_scale",
];

#[test]
fn tensors_of_other_shapes_or_types_are_refused() {
    let module = "model.layers.0.mlp.down_proj";
    for folder in every_folder().into_iter().filter(|folder| folder.join("model.safetensors").is_file()) {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let parts: Vec<String> = {
            let bytes = fs::read(folder.join("model.safetensors")).expect("it is there");
            let file = SafeTensors::deserialize(&bytes).expect("it is sound");
            let is_part = |part: &str| part.starts_with(module) || part.contains("0.mlp.experts.down_proj_");
            let parts = file.names().into_iter().filter(|part| is_part(part) && !part.ends_with("_bias"));
            parts.map(str::to_owned).collect()
        };
        assert!(!parts.is_empty(), "{name} is tested");
        for part in parts.iter().filter(|part| !UNREAD.iter().any(|unread| part.ends_with(unread))) {
            let longer = |tensors: &mut Tensors| {
                let (_, shape, data) = tensors.get_mut(part).expect("it is there");
                let flat = shape.iter().product::<usize>();
                data.extend(vec![0; data.len() / flat]);
                *shape = vec![flat + 1];
            };
            let other = |tensors: &mut Tensors| {
                let (dtype, shape, data) = tensors.get_mut(part).expect("it is there");
                let flat = shape.iter().product::<usize>();
                (*dtype, *data) = (Dtype::U16, vec![0; 2 * flat]);
            };
            assert!(
                decoded(changed(&name, |_| (), longer).path()).is_err(),
                "{name}: {part} of another shape"
            );
            assert!(decoded(changed(&name, |_| (), other).path()).is_err(), "{name}: {part} of another type");
        }
    }
}

#[test]
fn products_that_are_not_known_are_refused_with_their_key() {
    let scheme = |key: &'static str, value: Value| {
        move |config: &mut Value| {
            config["quantization_config"]["config_groups"]["group_0"]["input_activations"][key] = value;
        }
    };
    // Modules with 8-bit activations, whose scale is computed from all tokens of a pass.
    let with_dynamic_group = |config: &mut Value| {
        let groups = &mut config["quantization_config"]["config_groups"];
        groups["group_1"] = groups["group_0"].clone();
        groups["group_1"]["targets"] = json!(["re:.*nothing.*"]);
        groups["group_1"]["input_activations"] =
            json!({"num_bits": 8, "strategy": "tensor", "dynamic": true});
    };
    let keep = |_: &mut Tensors| ();
    let cases = [
        (changed("w8a8", scheme("dynamic", json!("local")), keep), "input_activations.dynamic"),
        (changed("w8a8", scheme("dynamic", json!(false)), keep), "input_activations.strategy"),
        (changed("w8a8", scheme("num_bits", json!(4)), keep), "input_activations.num_bits"),
        (changed("fp8-dynamic", scheme("symmetric", json!(false)), keep), "input_activations.symmetric"),
        (changed("nvfp4-inputs", scheme("group_size", json!(32)), keep), "input_activations.strategy"),
        (changed("nvfp4-inputs", scheme("dynamic", json!(true)), keep), "input_activations.strategy"),
        (changed("nvfp4-inputs", scheme("type", json!("int")), keep), "input_activations.num_bits"),
        (changed("mxfp4-inputs", scheme("scale_dtype", json!(null)), keep), "input_activations.scale_dtype"),
        (changed("nvfp4-inputs", with_dynamic_group, keep), "group_1.input_activations.strategy"),
    ];
    for (copy, key) in cases {
        let Err(error) = ModelFiles::open(copy.path()).expect("it is a model").load() else {
            panic!("{key}: it is loaded");
        };
        assert!(error.to_string().contains(&format!("{key}' is")), "{error}");
        assert!(decoded(copy.path()).is_ok(), "{key}: the weights are still decoded");
    }
}

/// The dump states its cache, so the scales in the file are skipped.
#[test]
fn a_checkpoint_with_scales_of_its_kv_cache_is_read() {
    let set = |config: &mut Value| {
        let scheme = json!({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false});
        config["quantization_config"]["kv_cache_scheme"] = scheme;
    };
    let scales = |tensors: &mut Tensors| {
        for name in ["k_scale", "v_scale"] {
            let name = format!("model.layers.0.self_attn.{name}");
            tensors.insert(name, (Dtype::BF16, vec![1], vec![0x80, 0x3c]));
        }
    };
    let model = changed("fp8-static", set, scales);
    let (code, report) = verdict(model.path(), &folder("fp8-static").join("dump.safetensors"));
    assert_eq!(code, 0, "{report:#}");
}

#[test]
fn stored_scales_of_activations_that_are_missing_or_damaged_are_refused_with_their_name() {
    let static_scheme =
        |config: &mut Value| config["quantization_config"]["activation_scheme"] = json!("static");
    assert_refused(&changed("fp8", static_scheme, |_| ()), &["activation_scale", "is missing"]);
    let set = |name: &str, tensor: &'static str, bytes: &'static [u8]| {
        changed(name, |_| (), |tensors| each(tensors, tensor, |data| data.copy_from_slice(bytes)))
    };
    let zero = set("fp8-static", "input_scale", &[0, 0]);
    assert_refused(&zero, &["down_proj", "input_scale' is 0, expected more than 0"]);
    assert_refused(&set("w8a8-static", "input_scale", &[0x80, 0x7f]), &["input_scale"]);
    let zero = set("nvfp4-inputs", "input_global_scale", &[0; 4]);
    assert_refused(&zero, &["down_proj", "input_global_scale' is 0, expected more than 0"]);
    let lost = |tensors: &mut Tensors| tensors.retain(|name, _| !name.ends_with("q_proj.input_zero_point"));
    assert_refused(&changed("w8a8-static-zeros", |_| (), lost), &["q_proj.input_zero_point' is missing"]);
    let symmetric = |config: &mut Value| {
        config["quantization_config"]["config_groups"]["group_0"]["input_activations"]["symmetric"] =
            json!(true);
    };
    assert_refused(
        &changed("w8a8-static-zeros", symmetric, |_| ()),
        &["input_zero_point", "symmetric: true"],
    );
}

/// Exit code and results of `inspect --verify` of a quantised folder.
pub(crate) fn verified(quantised: &Path, original: &Path) -> (i32, Value) {
    let (quantised, original) = (quantised.display().to_string(), original.display().to_string());
    let (code, json) = Terminal::new().json(&["inspect", &quantised, "--verify", &original]);
    (code, json["verification"].clone())
}

/// The findings of `inspect --verify`, without those of weights that fit.
pub(crate) fn faults(verification: &Value) -> Vec<String> {
    let all = verification.as_array().expect("a list").iter();
    let wrong = all.filter(|weight| weight["fits"] == json!(false));
    wrong.map(|weight| weight["finding"].as_str().expect("a text").to_owned()).collect()
}

#[test]
fn quantised_weights_are_verified_against_their_original() {
    for folder in every_folder() {
        let held = ModelFiles::open(&folder).expect("it is a model").tensors().expect("it is sound");
        let modules: Vec<String> =
            held.iter().filter_map(|(name, _)| Some(name.rsplit_once('.')?.0.to_owned())).collect();
        // Some folders have a part of the model.
        let is_held = |name: &str| {
            modules.iter().any(|module| name.strip_prefix(module).is_some_and(|rest| rest.starts_with('.')))
        };
        let name = folder.file_name().expect("a name").to_string_lossy();
        // The script moves their shifts away from those of the original.
        if name.starts_with("quanto-shifts") {
            continue;
        }
        let original = changed(original_of(&name), |_| (), |tensors| tensors.retain(|name, _| is_held(name)));
        let (code, verification) = verified(&folder, original.path());
        // AWQ moves factors to norms and to outputs of other matrices.
        let wanted = if name == "modelopt-nvfp4-awq" { 3 } else { 0 };
        assert_eq!(
            (code, faults(&verification)),
            (wanted, Vec::new()),
            "{}: {verification:#}",
            folder.display()
        );
        assert_ne!(verification, json!([]), "{}", folder.display());
    }
}

#[test]
fn faults_of_conversions_are_named_from_the_files_alone() {
    type Fault = (&'static str, &'static str, fn(&mut [u8]), &'static str);
    let faults_of_files: [Fault; 17] = [
        ("hqq", "zero", |data| floats_plus(data, 1.0), "zero points are too large by 1"),
        ("hqq-8-bits", "zero", |data| half_floats_plus(data, -1.0), "zero points are too small by 1"),
        ("hqq", "W_q", swap_nibbles, "another order"),
        ("hqq", "scale", inverted, "scales are inverted"),
        ("quanto-int4", "weight._data._data", swap_nibbles, "another order"),
        ("modelopt-nvfp4", "weight_scale_2", inverted, "the scale of the whole matrix is inverted"),
        ("modelopt-fp8", "weight_scale", inverted, "scales are inverted"),
        ("modelopt-int4", "weight", swap_nibbles, "another order"),
        ("mxfp4-experts", "proj_blocks", swap_nibbles, "another order"),
        ("awq", "qzeros", add_one_to_each_nibble, "zero points are too large by 1"),
        ("gptq", "qzeros", add_one_to_each_nibble, "zero points are too large by 1"),
        ("gptq-8-bits", "qzeros", subtract_one_from_each_byte, "zero points are too small by 1"),
        ("w4a16", "weight_packed", swap_nibbles, "another order"),
        ("nvfp4", "weight_packed", swap_nibbles, "another order"),
        ("nf4", "weight", swap_nibbles, "another order"),
        ("nvfp4", "weight_global_scale", inverted, "the scale of the whole matrix is inverted"),
        ("fp8", "weight_scale_inv", inverted, "scales are inverted"),
    ];
    for (name, tensor, change, fault) in faults_of_files {
        let ending = if tensor.contains("proj") { tensor.to_owned() } else { format!("proj.{tensor}") };
        let wrong = changed(name, |_| (), |tensors| each(tensors, &ending, change));
        let (code, verification) = verified(wrong.path(), &folder(original_of(name)));
        assert_eq!(code, 1, "{name}");
        let found = faults(&verification);
        let all = verification.as_array().expect("a list").len();
        assert_eq!(found.len(), all, "{name}: {verification:#}");
        assert!(found.iter().all(|found| found.contains(fault)), "{name}: {found:?}");
    }
}

/// A lost row is a small part of a weight's error, and a lost tensor has none.
#[test]
fn lost_rows_and_lost_tensors_do_not_pass() {
    let is_held = |name: &str| name.contains("q_proj");
    let original = changed("original", |_| (), |tensors| tensors.retain(|name, _| is_held(name)));
    let code = |rows: usize, original: &Path| {
        let change = |tensors: &mut Tensors| {
            tensors.retain(|name, _| is_held(name));
            let (_, (_, shape, codes)) =
                tensors.iter_mut().find(|(name, _)| name.ends_with("proj.weight")).expect("codes");
            let row = codes.len() / shape[0];
            codes[..rows * row].fill(0);
        };
        verified(changed("w8a8", |_| (), change).path(), original).0
    };
    assert_eq!((code(0, original.path()), code(1, original.path())), (0, 1));
    assert_eq!(code(0, &folder("original")), 3, "the other weights are missing");
}

/// Every row of a large matrix is compared, not a sample.
#[test]
fn a_lost_row_of_a_large_matrix_does_not_pass() {
    const TIMES: usize = 12;
    let tall = |tensors: &mut Tensors| {
        tensors.retain(|name, _| name.contains("layers.0.self_attn.q_proj"));
        for (_, shape, data) in tensors.values_mut() {
            (shape[0], *data) = (shape[0] * TIMES, data.repeat(TIMES));
        }
    };
    let original = changed("original", |_| (), tall);
    let code = |row: Option<usize>| {
        let lose = |tensors: &mut Tensors| {
            tall(tensors);
            let (_, (_, shape, codes)) =
                tensors.iter_mut().find(|(name, _)| name.ends_with("proj.weight")).expect("codes");
            let width = codes.len() / shape[0];
            assert!(shape[0] > 256, "{shape:?}");
            row.into_iter().for_each(|row| codes[row * width..][..width].fill(0));
        };
        verified(changed("w8a8", |_| (), lose).path(), original.path()).0
    };
    assert_eq!([None, Some(0), Some(1), Some(2), Some(5)].map(code), [0, 1, 1, 1, 1]);
}

#[test]
fn other_weights_are_not_verified() {
    let other = |tensors: &mut Tensors| {
        each(tensors, "proj.weight", |data| {
            data.rotate_left(300);
        });
    };
    let wrong = changed("original", |_| (), other);
    let (code, verification) = verified(&folder("w4a16"), wrong.path());
    assert_eq!(code, 1);
    let found = faults(&verification);
    assert_eq!(found.len(), verification.as_array().expect("a list").len());
    assert!(found.iter().all(|finding| finding.contains("fits in no known reading")), "{found:?}");
    let missing =
        changed("original", |_| (), |tensors| tensors.retain(|name, _| !name.contains("down_proj")));
    let (code, verification) = verified(&folder("w4a16"), missing.path());
    assert_eq!((code, faults(&verification).len()), (1, 1));
    assert!(faults(&verification)[0].contains("no weight of this name"));
}

fn subtract_one_from_each_byte(data: &mut [u8]) {
    data.iter_mut().for_each(|byte| *byte = byte.wrapping_sub(1));
}

#[test]
fn loaded_models_name_their_format() {
    let loaded = ModelFiles::open(&folder("awq")).expect("it is a model").load().expect("it loads");
    assert_eq!(loaded.precision, DType::F16);
    assert!(loaded.notes.iter().any(|note| note.contains("AWQ, 4 bits, groups of 32")), "{:?}", loaded.notes);
}

fn times<const N: usize>(
    data: &mut [u8],
    number: fn([u8; N]) -> f32,
    bytes: fn(f32) -> [u8; N],
    factor: f32,
) {
    let (numbers, _) = data.as_chunks_mut::<N>();
    numbers.iter_mut().for_each(|stored| *stored = bytes(number(*stored) * factor));
}

fn floats_times(data: &mut [u8], factor: f32) {
    times(data, f32::from_le_bytes, f32::to_le_bytes, factor);
}

fn halves_times(data: &mut [u8], factor: f32) {
    times(
        data,
        |bytes| f16::from_le_bytes(bytes).to_f32(),
        |value| f16::from_f32(value).to_le_bytes(),
        factor,
    );
}

fn brain_floats_times(data: &mut [u8], factor: f32) {
    times(
        data,
        |bytes| bf16::from_le_bytes(bytes).to_f32(),
        |value| bf16::from_f32(value).to_le_bytes(),
        factor,
    );
}

/// Errors below the limit of the format, which a factor explains.
#[test]
fn scales_that_are_seven_or_twenty_percent_off_do_not_pass() {
    type Fault = (&'static str, &'static str, fn(&mut [u8]), [&'static str; 2]);
    let scaled: [Fault; 6] = [
        ("modelopt-nvfp4", "weight_scale_2", |data| floats_times(data, 1.2), ["times 1.1", "times 1.2"]),
        ("w8a8", "weight_scale", |data| brain_floats_times(data, 1.07), ["times 1.06", "times 1.07"]),
        ("fp8", "weight_scale_inv", |data| floats_times(data, 0.93), ["times 0.92", "times 0.93"]),
        ("fp8-tensor", "weight_scale", |data| floats_times(data, 1.07), ["times 1.06", "times 1.07"]),
        ("gptq", "scales", |data| halves_times(data, 1.2), ["times 1.1", "times 1.2"]),
        ("nvfp4", "weight_global_scale", |data| floats_times(data, 1.0 / 1.2), ["times 1.1", "times 1.2"]),
    ];
    for (name, tensor, change, texts) in scaled {
        let wrong = changed(name, |_| (), |tensors| each(tensors, &format!("proj.{tensor}"), change));
        let (code, verification) = verified(wrong.path(), &folder("original"));
        assert_eq!(code, 1, "{name}: {verification:#}");
        let found = faults(&verification);
        assert!(!found.is_empty(), "{name}: {verification:#}");
        let is_named = |found: &String| texts.iter().any(|text| found.contains(text));
        assert!(found.iter().all(is_named), "{name}: {found:?}");
    }
}

/// AWQ divides outputs by factors whose inverse the next layer has: one row alone is not decided.
#[test]
fn a_row_whose_scale_is_off_is_inconclusive() {
    let is_held = |name: &str| name.contains("down_proj");
    let original = changed("original", |_| (), |tensors| tensors.retain(|name, _| is_held(name)));
    let code = |rows: usize| {
        let change = |tensors: &mut Tensors| {
            tensors.retain(|name, _| is_held(name));
            let (_, (_, _, scales)) =
                tensors.iter_mut().find(|(name, _)| name.ends_with("weight_scale")).expect("scales");
            brain_floats_times(&mut scales[..2 * rows], 1.07);
        };
        verified(changed("w8a8", |_| (), change).path(), original.path()).0
    };
    assert_eq!([0, 1, 20].map(code), [0, 3, 3]);
}

/// Blocks of 32 × 32, each larger than the one before by a power of two, so that no scale is like another.
#[test]
fn transposed_scales_of_blocks_are_named() {
    const NAME: &str = "model.layers.0.mlp.down_proj.weight";
    const GRID: [usize; 2] = [2, 4];
    let is_held = |name: &str| name.starts_with(NAME);
    let power = |block: usize| 2f32.powi(block as i32);
    let original = changed(
        "original",
        |_| (),
        |tensors| {
            tensors.retain(|name, _| is_held(name));
            let (_, _, data) = tensors.get_mut(NAME).expect("it is there");
            for (at, value) in data.chunks_mut(2).enumerate() {
                let (row, col) = (at / 128, at % 128);
                brain_floats_times(value, power(row / 32 * GRID[1] + col / 32));
            }
        },
    );
    let with_scales = |place: fn(usize) -> usize| {
        changed(
            "fp8",
            |_| (),
            |tensors| {
                tensors.retain(|name, _| is_held(name));
                let (_, shape, data) = tensors.get_mut(&format!("{NAME}_scale_inv")).expect("it is there");
                assert_eq!(*shape, GRID);
                data.chunks_mut(4).enumerate().for_each(|(at, scale)| floats_times(scale, power(at)));
                let right = data.clone();
                (0..8).for_each(|at| data[4 * place(at)..][..4].copy_from_slice(&right[4 * at..][..4]));
            },
        )
    };
    let (code, verification) = verified(with_scales(|at| at).path(), original.path());
    assert_eq!((code, faults(&verification)), (0, Vec::new()), "{verification:#}");
    let (code, verification) = verified(with_scales(|at| at % 4 * 2 + at / 4).path(), original.path());
    assert_eq!(code, 1);
    assert!(faults(&verification)[0].contains("scales are transposed"), "{verification:#}");
}

/// The weights are in the order of the inputs, and `g_idx` says otherwise.
#[test]
fn an_index_of_groups_that_the_weights_do_not_follow_is_named() {
    let wrong = |reverses: bool| {
        changed(
            "gptq",
            |_| (),
            |tensors| {
                tensors.retain(|name, _| name.contains("q_proj"));
                let groups: Vec<u8> = (0..64u32).flat_map(|col| (col / 32).to_le_bytes()).collect();
                for (name, (_, _, data)) in tensors.iter_mut() {
                    match &name[name.len() - 5..] {
                        "g_idx" => {
                            data.copy_from_slice(&groups);
                            let (numbers, _) = data.as_chunks_mut::<4>();
                            if reverses {
                                numbers.reverse();
                            }
                        }
                        // The groups have other scales.
                        "cales" => halves_times(&mut data[..128], 0.5),
                        _ => (),
                    }
                }
            },
        )
    };
    let original = changed(
        "original",
        |_| (),
        |tensors| {
            tensors.retain(|name, _| name.contains("q_proj"));
            for (_, _, data) in tensors.values_mut() {
                data.chunks_mut(128).for_each(|row| brain_floats_times(&mut row[..64], 0.5));
            }
        },
    );
    let (code, verification) = verified(wrong(false).path(), original.path());
    assert_eq!((code, faults(&verification)), (0, Vec::new()), "{verification:#}");
    let (code, verification) = verified(wrong(true).path(), original.path());
    assert_eq!(code, 1);
    assert!(faults(&verification)[0].contains("g_idx is stored"), "{verification:#}");
}

/// A row of zeros has no factor: it does not make a common factor one of rows.
#[test]
fn a_wrong_scale_of_all_rows_does_not_pass_beside_a_row_of_zeros() {
    let is_held = |name: &str| name.contains("down_proj");
    let clear_first_row = |(_, shape, data): &mut (Dtype, Vec<usize>, Vec<u8>)| {
        let width = data.len() / shape[0];
        data[..width].fill(0);
    };
    let cleared = |tensors: &mut Tensors| {
        tensors.retain(|name, _| is_held(name));
        let weights = tensors.iter_mut().filter(|(name, _)| name.ends_with("proj.weight"));
        weights.for_each(|(_, weight)| clear_first_row(weight));
    };
    let original = changed("original", |_| (), cleared);
    let code = |factor: f32| {
        let change = |tensors: &mut Tensors| {
            cleared(tensors);
            each(tensors, "proj.weight_scale", |data| brain_floats_times(data, factor));
        };
        verified(changed("w8a8", |_| (), change).path(), original.path()).0
    };
    assert_eq!([1.0, 1.07, 2.0].map(code), [0, 1, 1]);
}
