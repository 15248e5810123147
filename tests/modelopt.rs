//! Checkpoints of NVIDIA Model Optimizer: `hf_quant_config.json`, excluded modules, and what is refused.

use std::fs;
use std::path::PathBuf;

use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;
use xcheck::engine::RunInput;
use xcheck::model::ModelFiles;
use xcheck::numerics::{ActivationQuantisation, Numerics, Transformers};
use xcheck::quant::ActivationCodes;
use xcheck::weight::DType;

use crate::common::faulty::{Base, Faulty};
use crate::common::share::one_of;
use crate::judge::clay::Clay;
use crate::judge::scene::recorded;

use crate::quantised_models::{
    Tensors, assert_refused, changed, checked, decoded, each, faults, folder, inverted, json_of, verified,
};

const MODULE: &str = "model.layers.0.mlp.down_proj";

/// A copy whose `config.json` states no quantisation, with another `hf_quant_config.json`.
fn with_file(name: &str, settings: impl FnOnce(&mut Value), tensors: impl FnOnce(&mut Tensors)) -> TempDir {
    let copy = changed(name, |config| config["quantization_config"] = Value::Null, tensors);
    let path = copy.path().join("hf_quant_config.json");
    let mut json = json_of(&path);
    settings(&mut json["quantization"]);
    fs::write(path, json.to_string()).expect("it is written");
    copy
}

/// A copy with the settings in `config.json` alone.
fn with_config(name: &str, settings: impl FnOnce(&mut Value)) -> TempDir {
    let copy = changed(name, |config| settings(&mut config["quantization_config"]), |_| ());
    fs::remove_file(copy.path().join("hf_quant_config.json")).expect("it is there");
    copy
}

fn keep(_: &mut Tensors) {}

/// Decoded integers are rounded in the model's type, which `text_config` may state.
#[test]
fn the_type_of_the_text_part_is_the_type_of_its_weights() {
    let nested = |config: &mut Value| {
        (config["text_config"], config["dtype"]) = (json!({"dtype": "float16"}), json!("bfloat16"));
    };
    let file = decoded(changed("modelopt-w4a8-awq", nested, keep).path()).expect("it is decoded");
    assert_eq!(file.get(&format!("{MODULE}.weight")).map(|weight| weight.dtype), Some(DType::F16));
}

#[test]
fn either_file_states_the_quantisation() {
    for name in ["modelopt-fp8", "modelopt-nvfp4", "modelopt-mixed"] {
        let dump = folder(name).join("dump.safetensors");
        let flat = with_config(name, |settings| settings["quant_method"] = json!("modelopt_fp4"));
        let nested = with_config(name, |settings| {
            let file = json_of(&folder(name).join("hf_quant_config.json"));
            *settings = json!({"quant_method": "modelopt", "quantization": file["quantization"]});
        });
        for copy in [with_file(name, |_| (), keep), flat, nested] {
            let (code, report) = checked(copy.path(), &dump, &["--no-causes"]);
            assert_eq!(code, 0, "{name}: {report:#}");
        }
    }
}

#[test]
fn files_that_contradict_each_other_are_refused() {
    let other = |change: fn(&mut Value)| {
        let copy = changed("modelopt-fp8", |config| change(&mut config["quantization_config"]), keep);
        decoded(copy.path()).expect_err("it is refused")
    };
    let error = other(|settings| settings["quant_algo"] = json!("NVFP4"));
    assert!(error.contains("hf_quant_config.json.quantization.quant_algo' is \"FP8\""), "{error}");
    let error = other(|settings| settings["ignore"] = json!(["lm_head"]));
    assert!(error.contains("exclude_modules' is with \"model.embed_tokens\" in one"), "{error}");
    let error = other(|settings| settings["quant_method"] = json!("fp8"));
    assert!(error.contains("quant_method' is \"fp8\", with hf_quant_config.json"), "{error}");
}

/// A copy with other settings in both files.
fn with_both(name: &str, config: impl FnOnce(&mut Value), file: impl FnOnce(&mut Value)) -> TempDir {
    let copy = changed(name, |json| config(&mut json["quantization_config"]), keep);
    let path = copy.path().join("hf_quant_config.json");
    let mut json = json_of(&path);
    file(&mut json["quantization"]);
    fs::write(path, json.to_string()).expect("it is written");
    copy
}

#[test]
fn each_of_two_files_is_checked() {
    let float = json!({"num_bits": 8, "type": "float", "dynamic": false});
    let int = json!({"num_bits": 8, "type": "int", "dynamic": false});
    let (four, zero) = (json!({"num_bits": 4, "type": "float"}), ("has_zero_point", json!(true)));
    let (scheme, fp8) = ("kv_cache_scheme", ("kv_cache_quant_algo", json!("FP8")));
    type Setting<'v> = (&'v str, Value);
    let cases: [(&str, Setting, Option<Setting>, &str); 10] = [
        ("modelopt-w4a8-awq", ("pre_quant_scale", json!(false)), None, "pre_quant_scale' is true"),
        ("modelopt-smoothquant", ("pre_quant_scale", json!(false)), None, "sets pre_quant_scale to false"),
        ("modelopt-int4", (scheme, float.clone()), None, "kv_cache_quant_algo' is absent"),
        ("modelopt-int4", (scheme, int), Some(fp8.clone()), "kv_cache_quant_algo' is \"FP8\""),
        ("modelopt-int4", (scheme, four), None, "kv_cache_scheme.num_bits"),
        ("modelopt-int4", zero.clone(), None, "has_zero_point"),
        ("modelopt-mixed", zero, None, "has_zero_point"),
        ("modelopt-int4", ("smoothquant_alpha", json!(0.5)), None, "smoothquant_alpha"),
        ("modelopt-int4", ("group_size", json!(64)), None, "group_size"),
        (
            "modelopt-mixed",
            ("quantized_layers", json!({MODULE: {"quant_algo": "FP8"}})),
            None,
            "quantized_layers",
        ),
    ];
    for (name, (key, value), of_file, named) in cases {
        let file = |json: &mut Value| {
            if let Some((key, value)) = &of_file {
                json[key] = value.clone();
            }
        };
        let copy = with_both(name, |json| json[key] = value.clone(), file);
        assert_refused(&copy, &[named]);
    }
    // Older versions state the cache in the second file alone.
    for config in [None, Some(float)] {
        let stated = |json: &mut Value| config.into_iter().for_each(|value| json[scheme] = value);
        let copy = with_both("modelopt-int4", stated, |json| json[fp8.0] = fp8.1.clone());
        assert!(decoded(copy.path()).is_ok());
    }
}

#[test]
fn formats_and_keys_beyond_these_are_refused_with_their_key() {
    let cases = [
        ("quant_algo", json!("NVFP4_SVD")),
        ("quant_algo", json!("W4A8_NVFP4_FP8")),
        ("quant_algo", json!(null)),
        ("group_size", json!(32)),
        ("kv_cache_quant_algo", json!("NVFP4")),
        ("kv_cache_quant_algo", json!("INT8")),
        ("kv_cache_scheme", json!("NVFP4")),
        ("kv_cache_scheme", json!({"num_bits": 4})),
        ("has_zero_point", json!(true)),
        ("exclude_modules", json!(["lm_head", "model.[0-9]"])),
        ("lora_rank", json!(32)),
    ];
    for (key, value) in cases {
        let copy = with_file("modelopt-nvfp4", |settings| settings[key] = value.clone(), keep);
        let Err(error) = decoded(copy.path()) else { panic!("{key}: {value} is read") };
        assert!(error.contains("quantization.") && error.contains(key), "{key}: {error}");
    }
    let copy = with_file("modelopt-nvfp4", |settings| settings["quant_algo"] = json!("nvfp4_awq"), keep);
    assert!(decoded(copy.path()).is_ok());
}

#[test]
fn missing_or_damaged_scales_are_refused_with_their_name() {
    for (name, tensor) in [
        ("modelopt-nvfp4", "weight_scale_2"),
        ("modelopt-nvfp4", "input_scale"),
        ("modelopt-fp8", "input_scale"),
        ("modelopt-fp8", "weight"),
        ("modelopt-w4a8-awq", "weight_scale_2"),
    ] {
        let tensor = format!("{MODULE}.{tensor}");
        let copy = with_file(name, |_| (), |tensors| _ = tensors.remove(&tensor));
        assert_refused(&copy, &[&tensor]);
    }
    for (name, tensor) in [("modelopt-nvfp4", "input_scale"), ("modelopt-w4a8-awq", "weight_scale_2")] {
        for bytes in [[0; 4], (-1f32).to_le_bytes(), f32::NAN.to_le_bytes(), 1e-45f32.to_le_bytes()] {
            let set = |data: &mut [u8]| data.copy_from_slice(&bytes);
            let copy = with_file(name, |_| (), |tensors| each(tensors, tensor, set));
            assert_refused(&copy, &["down_proj", tensor]);
        }
    }
}

/// Folders of models with a `pre_quant_scale`.
const SCALED: [&str; 4] =
    ["modelopt-smoothquant", "modelopt-int4-awq", "modelopt-nvfp4-awq", "modelopt-w4a8-awq"];

#[test]
fn dumps_in_other_types_with_scaled_inputs_pass() {
    for (name, dump) in SCALED.iter().flat_map(|name| ["dump-f32", "dump-f16"].map(|dump| (name, dump))) {
        let file = folder(name).join(format!("{dump}.safetensors"));
        let (code, report) = checked(&folder(name), &file, &["--no-causes"]);
        assert_eq!(code, 0, "{name}, {dump}: {report:#}");
    }
}

#[test]
fn factors_of_inputs_are_one_positive_number_for_each_input() {
    const NAME: &str = "model.layers.0.self_attn.o_proj.pre_quant_scale";
    type Damage = (&'static str, fn(&mut Tensors));
    let changes: [Damage; 5] = [
        ("has the value 0", |tensors| each(tensors, NAME, |data| data[..2].fill(0))),
        ("has the value -", |tensors| each(tensors, NAME, |data| data[1] |= 0x80)),
        ("not finite", |tensors| each(tensors, NAME, |data| data[..2].fill(0xff))),
        ("[64]", |tensors| {
            let (_, shape, data) = tensors.get_mut(NAME).expect("it is there");
            (shape[0], *data) = (63, data[..126].to_vec());
        }),
        ("not quantised", |tensors| {
            let factors = tensors[NAME].clone();
            tensors.insert("lm_head.pre_quant_scale".to_owned(), factors);
        }),
    ];
    for (why, change) in changes {
        for name in SCALED {
            let copy = with_file(name, |_| (), change);
            assert_refused(&copy, &["pre_quant_scale", why]);
        }
    }
    let ones = |tensors: &mut Tensors| {
        tensors.insert(NAME.to_owned(), (Dtype::BF16, vec![64], [0x80, 0x3f].repeat(64)));
    };
    let no_factors = |settings: &mut Value| {
        let layers = settings["quantized_layers"].as_object_mut().expect("modules");
        layers.values_mut().for_each(|own| own["pre_quant_scale"] = json!(false));
    };
    let copy = with_file("modelopt-mixed", no_factors, ones);
    assert_refused(&copy, &[NAME, "sets pre_quant_scale to false"]);
    // Other methods and unquantised models have no factors.
    for (name, why) in [("gptq", "GPTQ, 4 bits, groups of 32 has no"), ("original", "does not use 1 tensor")]
    {
        let copy = changed(name, |_| (), ones);
        let error =
            ModelFiles::open(copy.path()).expect("it is a model").load().err().expect("it is refused");
        assert!(error.to_string().contains(why) && error.to_string().contains(NAME), "{error}");
    }
}

/// A dump by an engine that replaces each factor of an input by `factor(it)`, and quantises inputs if `is_coded`.
fn scaled_dump(name: &str, n: Transformers, is_coded: bool, factor: fn(f32) -> f32) -> (TempDir, PathBuf) {
    // An engine in bf16 rounds factors to bf16.
    let round = |factor: f32| if n == Transformers::F32 { factor } else { bf16::from_f32(factor).to_f32() };
    let change = |tensors: &mut Tensors| {
        let named = tensors.iter_mut().filter(|(name, _)| name.ends_with("pre_quant_scale"));
        for (_, (dtype, _, data)) in named {
            let stored = data.as_chunks::<2>().0.iter().map(|&number| bf16::from_le_bytes(number).to_f32());
            *data = stored.flat_map(|number| round(factor(number)).to_le_bytes()).collect();
            *dtype = Dtype::F32;
        }
    };
    let copy = with_file(name, |_| (), change);
    let model = ModelFiles::open(copy.path()).expect("it is a model").load().expect("it loads").model;
    let input = model.matrices().iter().find_map(|(_, matrix)| matrix.input_scale()).filter(|_| is_coded);
    let dtype = n.activation_type().name();
    let numerics: Box<dyn Numerics> = match input {
        Some(input) => {
            Box::new(ActivationQuantisation::over(Box::new(n), ActivationCodes::of_matrix(&input)))
        }
        None => Box::new(n),
    };
    let dump = recorded(&*model, &*numerics, dtype, &RunInput::greedy(&[1, 39, 35, 26, 9, 41], 2), &mut ());
    let place = TempDir::new().expect("a folder");
    let file = place.path().join("dump.safetensors");
    Clay::of(&dump).save(&file);
    (place, file)
}

#[test]
fn factors_of_inputs_that_are_not_applied_or_inverted_are_named() {
    type Fault = (fn(f32) -> f32, &'static str);
    let faults: [Fault; 3] =
        [(|_| 1.0, "none"), (|factor| 1.0 / factor, "inverse"), (|factor| factor * factor, "twice")];
    let engines = SCALED.iter().flat_map(|name| [Transformers::Bf16, Transformers::F32].map(|n| (name, n)));
    for ((name, n), is_coded) in one_of(4, engines.clone().flat_map(|case| [(case, false), (case, true)])) {
        let (_place, right) = scaled_dump(name, n, is_coded, |factor| factor);
        let (code, report) = checked(&folder(name), &right, &["--no-causes"]);
        assert_eq!(code, 0, "{name}, {n:?}, {is_coded}: {report:#}");
    }
    // `twice` is tested in f32 only: this dump multiplies once by factor², and an engine in bf16 would round twice.
    let is_exact = |(n, fault): &(Transformers, Fault)| *n == Transformers::F32 || fault.1 != "twice";
    let cases = engines.flat_map(|(name, n)| faults.map(|fault| (name, (n, fault))));
    for (name, (n, (factor, value))) in one_of(5, cases.filter(|(_, case)| is_exact(case))) {
        let (_place, wrong) = scaled_dump(name, n, !name.contains("int4"), factor);
        let (code, report) = checked(&folder(name), &wrong, &[]);
        assert_eq!(code, 1, "{name}, {n:?}, {value}: {report:#}");
        let is_named = |finding: &Value| {
            let found = finding["candidate"].as_str().unwrap_or_default();
            let word = found.split(':').next().unwrap_or_default().replace("reciprocal", "inverse");
            finding["kind"] == "pre_quant_scale" && word == value
        };
        let findings = report["findings"].as_array().expect("findings");
        assert!(findings.iter().any(is_named), "{name}, {n:?}, {value}: {findings:#?}");
    }
}

/// TensorRT-LLM rounds the scales of 4-bit integers: for W4A8, the quotient of both scales to f16; for W4A16, the
/// scales to the model's type.
#[test]
fn weights_with_rounded_scales_pass() {
    let code = |name: &str, n: Transformers, factor: f32| {
        let rounded = |tensors: &mut Tensors| {
            let number = |data: &[u8]| f32::from_le_bytes(data.try_into().expect("four bytes"));
            let second = |name: &str| tensors.get(&format!("{name}_2")).map(|(_, _, data)| number(data));
            let names: Vec<_> = tensors.keys().filter(|name| name.ends_with("weight_scale")).collect();
            let seconds: Vec<_> = names.into_iter().map(|name| (name.clone(), second(name))).collect();
            for (name, second) in seconds {
                let (_, _, data) = tensors.get_mut(&name).expect("scales");
                data.as_chunks_mut::<4>().0.iter_mut().for_each(|data| {
                    let short = |scale: f32| f16::from_f32(scale).to_f32();
                    let scale = factor * number(data);
                    let scale = match second {
                        Some(second) => short(short(scale) / second) * second,
                        None => bf16::from_f32(scale).to_f32(),
                    };
                    *data = scale.to_le_bytes();
                });
            }
            tensors.retain(|name, _| !name.ends_with("weight_scale_2") && !name.ends_with("input_scale"));
        };
        let copy = with_file(name, |settings| settings["quant_algo"] = json!("W4A16_AWQ"), rounded);
        let model = ModelFiles::open(copy.path()).expect("it is a model").load().expect("it loads").model;
        let input = RunInput::greedy(&[1, 39, 35, 26, 9, 41], 2);
        let dump = recorded(&*model, &n, n.activation_type().name(), &input, &mut ());
        let file = copy.path().join("dump.safetensors");
        Clay::of(&dump).save(&file);
        // Over a whole run, the logits differ by more than rounding, so only local errors are judged.
        let (code, report) = checked(&folder(name), &file, &["--no-causes", "--introduced"]);
        let is_noted = report.to_string().contains("a kernel that multiplies with codes");
        assert_eq!(is_noted, code == 0, "{name}: {report:#}");
        code
    };
    for (name, n) in [("modelopt-w4a8-awq", Transformers::F32), ("modelopt-int4-awq", Transformers::Bf16)] {
        assert_eq!([1.0, 1.02].map(|factor| code(name, n, factor)), [0, 1], "{name}");
    }
}

/// A fused kernel may multiply inputs by their factors without rounding the results.
#[test]
fn inputs_that_are_not_rounded_after_their_factors_pass() {
    let name = "modelopt-int4-awq";
    let model = ModelFiles::open(&folder(name)).expect("it is a model").load().expect("it loads").model;
    // `Faulty` does not forward the multiplication by factors to its base, so the results are not rounded.
    let numerics = Faulty { base: Base(&Transformers::Bf16), ..Faulty::default() };
    let dump = recorded(&*model, &numerics, "bf16", &RunInput::greedy(&[1, 39, 35, 26, 9, 41], 2), &mut ());
    let place = TempDir::new().expect("a folder");
    let file = place.path().join("dump.safetensors");
    Clay::of(&dump).save(&file);
    let (code, report) = checked(&folder(name), &file, &["--no-causes"]);
    assert_eq!(code, 0, "{report:#}");
    assert!(report.to_string().contains("scaled inputs are fused"), "{report:#}");
    let larger = |data: &mut [u8]| {
        data.as_chunks_mut::<2>().0.iter_mut().for_each(|number| {
            *number = bf16::from_f32(1.02 * bf16::from_le_bytes(*number).to_f32()).to_le_bytes();
        })
    };
    let copy = with_file(name, |_| (), |tensors| each(tensors, "pre_quant_scale", larger));
    assert_eq!(checked(copy.path(), &file, &["--no-causes"]).0, 1);
}

/// Patterns are whole names with `*`. Older versions list parts of names.
#[test]
fn excluded_modules_must_be_unquantised_and_others_quantised() {
    let listed = |list: Value| move |settings: &mut Value| settings["exclude_modules"] = list;
    let plain = |tensors: &mut Tensors| {
        tensors.retain(|name, _| !name.starts_with(MODULE));
        let data = vec![0; 64 * 128 * 2];
        tensors.insert(format!("{MODULE}.weight"), (Dtype::BF16, vec![64, 128], data));
    };
    for name in ["modelopt-fp8", "modelopt-nvfp4"] {
        for pattern in ["*down_proj", "model.layers.?.mlp.down*", MODULE] {
            let copy = with_file(name, listed(json!(["lm_head", pattern])), keep);
            let key = "hf_quant_config.json.quantization.exclude_modules";
            assert_refused(&copy, &["down_proj", &format!("'{pattern}' in {key} excludes it")]);
            assert!(decoded(with_file(name, listed(json!([pattern])), plain).path()).is_ok(), "{pattern}");
        }
        assert!(decoded(with_file(name, listed(json!(["down_proj"])), plain).path()).is_ok());
        let missed = with_file(name, |_| (), plain);
        assert_refused(&missed, &["down_proj.weight", "is not quantised", "exclude_modules"]);
    }
    let other = |settings: &mut Value| {
        let layers = settings["quantized_layers"].as_object_mut().expect("an object");
        _ = layers.remove(MODULE);
    };
    assert_refused(&with_file("modelopt-mixed", other, keep), &["down_proj", "no group"]);
    let twice = |settings: &mut Value| {
        settings["ignore"] = json!(["lm_head"]);
        settings["exclude_modules"] = json!(["lm_head"]);
    };
    assert_refused(&with_file("modelopt-fp8", twice, keep), &["exclude_modules", "absent beside `ignore`"]);
    // Every module's settings are read, also those of the last one.
    let of_last = |key: &'static str, value: bool| {
        let change = |settings: &mut Value| {
            let layers = settings["quantized_layers"].as_object_mut().expect("an object");
            layers.values_mut().last().expect("a module")[key] = json!(value);
        };
        with_file("modelopt-mixed", change, keep)
    };
    assert_refused(&of_last("has_zero_point", true), &["has_zero_point", "expected false"]);
    assert_refused(&of_last("lora_rank", true), &["lora_rank", "expected absent"]);
    assert!(decoded(of_last("has_zero_point", false).path()).is_ok());
}

/// A wrong `pre_quant_scale` in the file fails. Factors that AWQ has moved to other layers are inconclusive, but a row
/// of zeros fails.
#[test]
fn wrong_factors_of_inputs_and_lost_rows_do_not_pass_against_the_original() {
    let doubled = |data: &mut [u8]| {
        data.as_chunks_mut::<2>().0.iter_mut().for_each(|number| {
            *number = bf16::from_f32(2.0 * bf16::from_le_bytes(*number).to_f32()).to_le_bytes();
        })
    };
    let lost = |data: &mut [u8]| data[..32].fill(0);
    let code = |name: &str, ending: &str, change: &dyn Fn(&mut [u8])| {
        let copy = with_file(name, |_| (), |tensors| each(tensors, ending, change));
        verified(copy.path(), &folder("original")).0
    };
    assert_eq!(code("modelopt-smoothquant", "pre_quant_scale", &|_| ()), 0);
    assert_eq!(code("modelopt-smoothquant", "pre_quant_scale", &doubled), 1);
    assert_eq!(code("modelopt-nvfp4-awq", "up_proj.weight", &|_| ()), 3);
    assert_eq!(code("modelopt-nvfp4-awq", "up_proj.weight", &lost), 1);
}

#[test]
fn an_inverted_global_scale_is_named_from_the_files_alone() {
    let inverted_2 = with_file("modelopt-nvfp4", |_| (), |tensors| each(tensors, "weight_scale_2", inverted));
    let (code, verification) = verified(inverted_2.path(), &folder("original"));
    assert_eq!(code, 1, "{verification:#}");
    assert!(
        faults(&verification).iter().all(|found| found.contains("scale of the whole matrix is inverted"))
    );
}
