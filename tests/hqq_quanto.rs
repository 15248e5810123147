//! HQQ and quanto: contradictory files and unsupported settings are refused, and the error names the key.

use std::fs;
use std::path::Path;

use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;
use xcheck::checkpoint::Point;
use xcheck::dump::Dump;
use xcheck::model::ModelFiles;

use crate::judge::clay::Clay;
use crate::judge::scene::site;
use crate::quantised_models::{
    Tensors, assert_refused, changed, checked, decoded, each, faults, folder, json_of, verified,
};

const DOWN: &str = "model.layers.0.mlp.down_proj";

fn same(_: &mut Value) {}

/// The error when the model is loaded.
fn load_error(model: &Path) -> String {
    match ModelFiles::open(model).expect("it is a model").load() {
        Ok(_) => panic!("it is loaded"),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn assert_not_loaded(model: &Path, words: &[&str]) {
    let error = load_error(model);
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn tensors_of_hqq_that_contradict_each_other_are_refused() {
    let integer = |number: i32| number.to_le_bytes().to_vec();
    let cases: [(&str, Vec<u8>, &str); 9] = [
        ("quant_scale", vec![1], "quant_scale' is true, expected false"),
        ("quant_zero", vec![1], "quant_zero' is true, expected false"),
        ("packing", b"4bit_u9".to_vec(), "packing' is \"4bit_u9\""),
        ("nbits", integer(3), "packing' is \"4bit_u8\" for 3 bits"),
        ("axis", integer(2), "axis' is 2"),
        ("axis", integer(0), "axis' is 0, but quantization_config.quant_config states 1"),
        ("group_size", integer(48), "64 x 128 weights cannot be divided into groups of 48"),
        ("group_size", integer(-1), "group_size' is -1, expected 1 or more"),
        ("group_size", integer(64), "group_size' is 64, but quantization_config.quant_config states 32"),
    ];
    for (tensor, bytes, words) in cases {
        let change = |tensors: &mut Tensors| {
            tensors.get_mut(&format!("{DOWN}.{tensor}")).expect("it is there").2 = bytes;
        };
        assert_refused(&changed("hqq", same, change), &[DOWN, words]);
    }
    // Codes of 5 bits have the packing of 8 bits.
    let five = |tensors: &mut Tensors| each(tensors, "down_proj.nbits", |data| data[0] = 5);
    assert_refused(&changed("hqq-8-bits", same, five), &["nbits' is 5", "quant_config states 8"]);
    for tensor in ["zero", "axis", "packing"] {
        let name = format!("{DOWN}.{tensor}");
        assert_refused(&changed("hqq", same, |tensors| _ = tensors.remove(&name)), &[&name, "is missing"]);
    }
    let shapes: [(Dtype, Vec<usize>, &str); 4] = [
        (Dtype::U8, vec![32, 128], "its shape is [32, 128] in u8, expected 128 rows of 32 u8 words"),
        (Dtype::U8, vec![4096], "expected 128 rows of 32 u8 words"),
        // `view_as_float` is false.
        (Dtype::F32, vec![128, 8], "W_q' has the unsupported type f32"),
        (Dtype::I32, vec![128, 8], "W_q' has the unsupported type i32"),
    ];
    for (dtype, shape, words) in shapes {
        let change = |tensors: &mut Tensors| {
            let stored = tensors.get_mut(&format!("{DOWN}.W_q")).expect("it is there");
            (stored.0, stored.1) = (dtype, shape);
        };
        assert_refused(&changed("hqq", same, change), &[DOWN, words]);
    }
}

/// Tensors that the format does not have are not ignored, also by `inspect --verify`.
#[test]
fn other_tensors_of_a_quantised_module_are_refused() {
    let cases = [
        ("hqq", "weight", "weight' is stored, too, expected one of the two"),
        ("hqq", "zero_scale", "written with offload_meta"),
        ("hqq", "meta.shape", "written by hqq before 0.2"),
        ("quanto-int8", "weight", "weight' is stored, too, expected one of the two"),
        ("awq", "weight", "weight' is stored, too, expected one of the two"),
    ];
    for (name, tensor, words) in cases {
        let add = |tensors: &mut Tensors| {
            tensors.insert(format!("{DOWN}.{tensor}"), (Dtype::U8, vec![64, 128], vec![0; 64 * 128]));
        };
        let copy = changed(name, same, add);
        assert_refused(&copy, &[DOWN, words]);
        let (files, original) = (ModelFiles::open(copy.path()), ModelFiles::open(&folder("original")));
        let (files, original) = (files.expect("it is a model"), original.expect("it is a model"));
        let settings = files.dequantisation().expect("the settings are known").expect("it is quantised");
        let (tensors, original) = (files.tensors().expect("sound"), original.tensors().expect("sound"));
        let error = settings.compare(&tensors, &original).expect_err("it is refused").to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// transformers compares `skip_modules` with parts of names, as text.
#[test]
fn skipped_modules_of_hqq_are_parts_of_names() {
    let skipped = |text: &'static str| {
        move |config: &mut Value| config["quantization_config"]["skip_modules"] = json!([text])
    };
    for text in ["down*", "[down]", "layers.1"] {
        assert!(decoded(changed("hqq", skipped(text), |_| ()).path()).is_ok(), "{text}");
    }
    assert_refused(&changed("hqq", skipped("mlp.down"), |_| ()), &["'mlp.down'", "skip_modules excludes it"]);
}

/// A correct weight of 1 bit may be further from the original than zeros, so its error is not a fault.
#[test]
fn weights_of_one_bit_that_differ_from_the_original_are_inconclusive() {
    let original = TempDir::new().expect("a folder");
    let only = folder("original");
    fs::copy(only.join("config.json"), original.path().join("config.json")).expect("it is copied");
    let bytes = fs::read(only.join("model.safetensors")).expect("it is there");
    let held = safetensors::SafeTensors::deserialize(&bytes).expect("it is sound");
    let name = format!("{DOWN}.weight");
    let kept = [(name.as_str(), held.tensor(&name).expect("it is there"))];
    safetensors::serialize_to_file(kept, None, &original.path().join("model.safetensors"))
        .expect("it is written");
    let turned = |tensors: &mut Tensors| each(tensors, "down_proj.W_q", <[u8]>::reverse);
    for (name, code) in [("hqq-1-bit", 3), ("hqq-2-bits", 3), ("hqq-8-bits", 1)] {
        assert_eq!(verified(&folder(name), original.path()).0, 0, "{name}");
        let (found, verification) = verified(changed(name, same, turned).path(), original.path());
        assert_eq!(found, code, "{name}: {verification:#}");
    }
}

#[test]
fn settings_of_hqq_beyond_these_are_refused_with_their_key() {
    let settings = "/quantization_config/quant_config";
    let cases = [
        (format!("{settings}/scale_quant_params"), json!({"nbits": 8}), "quant_config.scale_quant_params"),
        (format!("{settings}/weight_quant_params/channel_wise"), json!(false), "channel_wise"),
        (format!("{settings}/weight_quant_params"), json!({"codebook": 1}), "weight_quant_params.codebook"),
        (
            "/quantization_config/skip_modules".to_owned(),
            json!(["down_proj"]),
            "'down_proj' in quantization_config.skip_modules",
        ),
    ];
    for (pointer, value, words) in cases {
        let set = |config: &mut Value| *config.pointer_mut(&pointer).expect("it is there") = value;
        assert_refused(&changed("hqq", set, |_| ()), &[words]);
    }
    let absent = |config: &mut Value| config["quantization_config"] = json!(null);
    let model = changed("hqq", absent, |_| ());
    assert_not_loaded(
        model.path(),
        &["quantization_config", "W_q' is quantised", r#"{"quant_method": "hqq"}"#],
    );
}

/// `dynamic_config` of transformers: settings of each kind of module. Other modules are not quantised.
#[test]
fn settings_of_kinds_of_modules_are_read() {
    let kinds = |names: &'static [&'static str]| {
        move |config: &mut Value| {
            let settings = config["quantization_config"]["quant_config"].take();
            let own: Value = names.iter().map(|name| ((*name).to_owned(), settings.clone())).collect();
            config["quantization_config"]["quant_config"] = own;
        }
    };
    const WITH_HEAD: &[&str] = &[
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "lm_head",
    ];
    let (_, all) = WITH_HEAD.split_last().expect("not empty");
    assert!(decoded(changed("hqq", kinds(all), |_| ()).path()).is_ok());
    let head = |tensors: &mut Tensors| {
        let named = tensors.iter().filter_map(|(name, tensor)| {
            Some((format!("lm_head.{}", name.strip_prefix(DOWN)?.strip_prefix('.')?), tensor.clone()))
        });
        let named: Vec<_> = named.collect();
        tensors.remove("lm_head.weight");
        tensors.extend(named);
    };
    let with_head = |config: &mut Value| {
        kinds(WITH_HEAD)(config);
        config["quantization_config"]["skip_modules"] = json!([]);
    };
    assert!(decoded(changed("hqq", with_head, head).path()).is_ok());
    let words = ["down_proj", "no group of the configuration contains it"];
    assert_refused(&changed("hqq", kinds(&all[..6]), |_| ()), &words);
}

/// xcheck never runs code of a pickle. Flags of a pickle are read as those of safetensors files.
#[test]
fn files_of_hqq_with_other_classes_or_quantised_zero_points_are_refused() {
    let with = |old: &[u8], new: &[u8]| {
        let place = TempDir::new().expect("a folder");
        let config = fs::copy(folder("hqq-bf16").join("config.json"), place.path().join("config.json"));
        config.expect("it is copied");
        let mut bytes = fs::read(folder("hqq-bf16").join("qmodel.pt")).expect("it is there");
        let at = bytes.windows(old.len()).position(|window| window == old).expect("it is there");
        bytes[at..][..old.len()].copy_from_slice(new);
        fs::write(place.path().join("qmodel.pt"), bytes).expect("it is written");
        place
    };
    let other = with(b"torch\nbfloat16\n", b"posix\nsystem16\n");
    assert_not_loaded(other.path(), &["posix.system16", "qmodel.pt", "never runs code"]);
    let quantised = with(b"quant_zeroq=\x89", b"quant_zeroq=\x88");
    assert_not_loaded(quantised.path(), &["quant_zero' is true, expected false"]);
}

#[test]
fn null_settings_beside_a_file_of_hqq_are_absent_ones() {
    let place = TempDir::new().expect("a folder");
    fs::copy(folder("hqq-bf16").join("qmodel.pt"), place.path().join("qmodel.pt")).expect("it is copied");
    let mut config = json_of(&folder("hqq-bf16").join("config.json"));
    config["quantization_config"] = json!(null);
    fs::write(place.path().join("config.json"), config.to_string()).expect("it is written");
    let model = ModelFiles::open(place.path()).expect("it is a model").load().expect("it is read");
    assert!(model.notes.iter().any(|note| note.contains("quantised (HQQ)")), "{:?}", model.notes);
}

/// A copy of a folder of quanto with another map of modules.
fn with_map(name: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    let copy = changed(name, same, |_| ());
    let file = copy.path().join("quanto_qmap.json");
    let mut map = json_of(&file);
    change(&mut map);
    fs::write(file, map.to_string()).expect("it is written");
    copy
}

#[test]
fn maps_of_quanto_that_are_not_supported_are_refused_with_their_key() {
    let set = |key: &'static str, value: Value| with_map("quanto-int8", move |map| map[DOWN][key] = value);
    assert_refused(
        &set("weights", json!("qfloat8_e4m3fnuz")),
        &["down_proj.weights' is \"qfloat8_e4m3fnuz\""],
    );
    assert_refused(&set("weights", json!("qfloat8_e4m3fn")), &["down_proj.weight._data", "i8"]);
    assert_refused(&set("weights", json!("qint4")), &["down_proj.weight._data._data' is missing"]);
    assert_refused(&set("group_size", json!(32)), &["quanto_qmap.json", "down_proj.group_size"]);
    let lost = with_map("quanto-int8", |map| _ = map.as_object_mut().expect("an object").remove(DOWN));
    assert_refused(&lost, &["down_proj", "no group of the configuration contains it"]);
    let empty = with_map("quanto-int8", |map| *map = json!({}));
    assert_refused(&empty, &["quanto_qmap.json", "without quantised weights"]);
    for key in ["quantization_config", "quantization"] {
        let both = |config: &mut Value| config[key] = json!({"quant_method": "quanto"});
        assert_refused(
            &changed("quanto-int8", both, |_| ()),
            &[&format!("'{key}' is"), "remove quanto_qmap.json"],
        );
    }
    let head = json!({"weights": "qint8", "activations": "none"});
    let unquantised = with_map("quanto-int8", |map| map["lm_head"] = head);
    assert_refused(&unquantised, &["'lm_head.weight._scale' is missing", "correct quanto_qmap.json"]);
    let activations = set("activations", json!("qint8"));
    assert_not_loaded(activations.path(), &["down_proj.activations' is \"qint8\"", "activations=None"]);
    assert!(decoded(activations.path()).is_ok(), "the weights are still decoded");
    let alone = changed("quanto-int8", same, |_| ());
    fs::remove_file(alone.path().join("quanto_qmap.json")).expect("it is removed");
    assert_not_loaded(alone.path(), &["quanto_qmap.json", "weight._scale' is quantised"]);
    let unfrozen = |tensors: &mut Tensors| {
        tensors.retain(|name, _| !name.starts_with(DOWN));
        tensors.insert(format!("{DOWN}.weight"), (Dtype::BF16, vec![64, 128], vec![0; 2 * 64 * 128]));
    };
    assert_refused(
        &changed("quanto-int8", same, unfrozen),
        &["down_proj", "weight._scale' is missing", "quanto_qmap.json"],
    );
}

/// torch's kernel for int4 has other weights than those that quanto decodes.
#[test]
fn products_of_torchs_int4_kernel_pass_with_a_note() {
    let model = folder("quanto-groups");
    let (code, report) = checked(&model, &model.join("dump.safetensors"), &[]);
    assert_eq!(code, 0, "{report:#}");
    assert!(report["notes"].to_string().contains("decoded weights are those of a kernel"), "{report:#}");
}

/// hqq's `compute_dtype` decides in which type scales are loaded, and so which values weights have.
#[test]
fn weights_of_hqq_in_another_compute_dtype_pass_with_a_note() {
    let scale = |q: &mut Vec<f64>| q.iter_mut().for_each(|value| *value *= 1.02);
    for (name, dtype) in [("hqq", "bf16"), ("hqq-bf16", "f16"), ("hqq-f16", "bf16")] {
        let file = folder(name).join(format!("dump-{dtype}.safetensors"));
        let (code, report) = checked(&folder(name), &file, &["--no-causes"]);
        assert_eq!(code, 0, "{name}: {report:#}");
        assert!(report["notes"].to_string().contains("scales of another type"), "{name}: {report:#}");
        let place = TempDir::new().expect("a folder");
        let wrong = place.path().join("wrong.safetensors");
        Clay::of(&Dump::open(&file).expect("it is a dump")).edit(site(Point::Q, 0, 0), scale).save(&wrong);
        assert_eq!(checked(&folder(name), &wrong, &["--no-causes"]).0, 1, "{name}");
    }
}

/// Stores a matrix of f32 column by column.
fn transposed(data: &mut [u8], [rows, cols]: [usize; 2]) {
    let (numbers, _) = data.as_chunks_mut::<4>();
    let old = numbers.to_vec();
    assert_eq!(old.len(), rows * cols);
    numbers.iter_mut().enumerate().for_each(|(at, number)| *number = old[at % rows * cols + at / rows]);
}

#[test]
fn transposed_scales_of_hqq_are_named() {
    let wrong = |tensors: &mut Tensors| each(tensors, "down_proj.scale", |data| transposed(data, [64, 4]));
    let (code, verification) = verified(changed("hqq", same, wrong).path(), &folder("original"));
    let found = faults(&verification);
    assert_eq!((code, found.len()), (1, 1), "{verification:#}");
    assert!(found[0].contains("scales are transposed"), "{found:?}");
}
