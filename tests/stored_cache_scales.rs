//! FP8 caches whose scales the file stores: dumps of compressed-tensors pass, and scales that are not applied are named.

use std::path::{Path, PathBuf};

use half::bf16;
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;
use xcheck::checkpoint::{Point, Site};
use xcheck::engine::RunInput;
use xcheck::exact::Float;
use xcheck::model::ModelFiles;
use xcheck::numerics::{CacheOverride, Transformers};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::weight::DType;

use crate::judge::clay::Clay;
use crate::judge::scene::recorded;
use crate::quantised_models::{Tensors, assert_refused, changed, checked, decoded, folder};

const FOLDERS: [&str; 2] = ["fp8-cache", "fp8-cache-heads"];
fn without_scheme(config: &mut Value) {
    config["quantization_config"]["kv_cache_scheme"] = Value::Null;
}

const UNKNOWN: &str = "the scales of the KV cache are not recorded";

#[test]
fn dumps_of_compressed_tensors_with_an_fp8_cache_pass() {
    for name in FOLDERS {
        for dump in ["dump", "dump-f32"] {
            let file = folder(name).join(format!("{dump}.safetensors"));
            let (code, report) = checked(&folder(name), &file, &["--no-causes"]);
            assert_eq!(code, 0, "{name}, {dump}: {report:#}");
            assert!(!report["notes"].to_string().contains(UNKNOWN), "{name}, {dump}: {report:#}");
        }
        // The dump alone states the cache.
        let no_scheme = changed(name, without_scheme, |_| ());
        let file = folder(name).join("dump.safetensors");
        let (code, report) = checked(no_scheme.path(), &file, &["--no-causes"]);
        assert_eq!(code, 0, "{name}: {report:#}");
        assert!(!report["notes"].to_string().contains(UNKNOWN), "{name}: {report:#}");
    }
}

/// The same dump with a file of other scales.
#[test]
fn the_same_dumps_fail_with_other_scales() {
    let scaled = |name: &str, ending: &'static str, factor: f32, config: fn(&mut Value)| {
        changed(name, config, |tensors: &mut Tensors| {
            let (_, (_, _, data)) =
                tensors.iter_mut().find(|(name, _)| name.ends_with(ending)).expect("scales");
            let (numbers, _) = data.as_chunks_mut::<2>();
            numbers.iter_mut().for_each(|number| {
                *number = bf16::from_f32(factor * bf16::from_le_bytes(*number).to_f32()).to_le_bytes();
            });
        })
    };
    for name in FOLDERS {
        let cases = [
            ("k_scale", 1.3, without_scheme as fn(&mut Value)),
            // The dumps do not record k_rope. Rounding before the cache explains many of these codes, but not their grid.
            ("k_scale", 12.0, |_| ()),
            ("k_scale", 1.3, |_| ()),
            ("v_scale", 1.3, |_| ()),
        ];
        for (ending, factor, config) in cases {
            let model = scaled(name, ending, factor, config);
            let (code, report) =
                checked(model.path(), &folder(name).join("dump.safetensors"), &["--no-causes"]);
            assert_eq!(code, 1, "{name}, {ending}, {factor}: {report:#}");
        }
    }
}

/// A fault: codes of new rows are not multiplied by their scale, or by that of their head.
struct UnscaledCodes {
    point: Point,
    scales: Vec<f32>,
    /// Rows of earlier passes.
    earlier: usize,
}

impl Tap for UnscaledCodes {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point != self.point {
            return value;
        }
        let (first, width) = (self.earlier * value.row_len(), value.shape()[2]);
        self.earlier = value.rows();
        let scale = |flat: usize| self.scales[flat / width % self.scales.len()];
        let code = |(flat, x): (usize, &f32)| match flat < first {
            true => *x,
            false => Float::E4m3.round((x / scale(flat)).into()) as f32,
        };
        Tensor::new(value.shape(), value.data().iter().enumerate().map(code).collect())
    }
}

/// A dump by an engine with an FP8 cache.
fn dumped(name: &str, plain: Transformers, fault: &mut dyn Tap) -> (TempDir, PathBuf) {
    let model = ModelFiles::open(&folder(name)).expect("it is a model").load().expect("it loads").model;
    let dtype = xcheck::numerics::Numerics::activation_type(&plain).name();
    let numerics = CacheOverride::over(Box::new(plain), DType::F8_E4M3).expect("a float");
    let dump = recorded(&*model, &*numerics, dtype, &RunInput::greedy(&[1, 39, 35, 26, 9, 41], 2), fault);
    let place = TempDir::new().expect("a folder");
    let file = place.path().join("dump.safetensors");
    let stated = |json: &mut Value| json["producer"]["settings"]["kv_cache"] = json!("f8_e4m3");
    Clay::of(&dump).say(stated).save(&file);
    (place, file)
}

/// The stored scales of keys or values.
fn scales(name: &str, projection: &str) -> Vec<f32> {
    let model = ModelFiles::open(&folder(name)).expect("it is a model").load().expect("it loads").model;
    let matrices = model.matrices();
    let stored = matrices.iter().find(|(site, _)| site.to_string().contains(projection));
    stored.and_then(|(_, matrix)| matrix.cache_scales()).expect("stored scales").to_vec()
}

fn check(name: &str, dump: &Path, options: &[&str]) -> (i32, Value) {
    checked(&folder(name), dump, options)
}

#[test]
fn scales_that_are_not_applied_to_keys_or_values_are_named() {
    for name in FOLDERS {
        for plain in [Transformers::F32, Transformers::Bf16, Transformers::F16] {
            let (_place, right) = dumped(name, plain, &mut ());
            let (code, report) = check(name, &right, &["--no-causes"]);
            assert_eq!(code, 0, "{name}: {report:#}");
            assert!(!report["notes"].to_string().contains(UNKNOWN), "{name}: {report:#}");
            for (point, projection) in [(Point::KCache, "attn_k"), (Point::VCache, "attn_v")] {
                let scales = scales(name, projection);
                let mut fault = UnscaledCodes { point, scales, earlier: 0 };
                let (_place, wrong) = dumped(name, plain, &mut fault);
                let (code, report) = check(name, &wrong, &[]);
                assert_eq!(code, 1, "{name}, {point}: {report:#}");
                let findings = report["findings"].to_string();
                let dtype = xcheck::numerics::Numerics::activation_type(&plain);
                assert!(
                    findings.contains(&format!("cache_scale@{point}")),
                    "{name}, {point}, {dtype:?}: {findings}"
                );
            }
        }
    }
}

#[test]
fn damaged_scales_and_other_caches_are_refused_with_their_name() {
    let set = |bytes: [u8; 2]| {
        changed(
            "fp8-cache",
            |_| (),
            |tensors: &mut Tensors| {
                tensors.insert(
                    "model.layers.0.self_attn.k_scale".to_owned(),
                    (Dtype::BF16, vec![1], bytes.into()),
                );
            },
        )
    };
    assert_refused(&set([0, 0]), &["self_attn.k_scale", "expected more than 0"]);
    assert_refused(&set([0x80, 0x7f]), &["self_attn.k_scale"]);
    let three = changed(
        "fp8-cache",
        |_| (),
        |tensors: &mut Tensors| {
            let data = [0x80, 0x3c].repeat(3);
            tensors.insert("model.layers.0.self_attn.v_scale".to_owned(), (Dtype::BF16, vec![3], data));
        },
    );
    let error = ModelFiles::open(three.path()).expect("it is a model").load().err().expect("it is refused");
    assert!(error.to_string().contains("the cache's scales of attn_v, layer 0"), "{error}");
    let twice = changed(
        "fp8-cache",
        |_| (),
        |tensors: &mut Tensors| {
            let name = "model.layers.0.self_attn.k_proj.k_scale".to_owned();
            tensors.insert(name, (Dtype::BF16, vec![1], vec![0x80, 0x3f]));
        },
    );
    assert_refused(&twice, &["self_attn.k_scale' (bf16)", "k_proj.k_scale' has other scales"]);
    let zero_point = changed(
        "fp8-cache",
        |_| (),
        |tensors: &mut Tensors| {
            let name = "model.layers.0.self_attn.k_zero_point".to_owned();
            tensors.insert(name, (Dtype::BF16, vec![1], vec![0x80, 0x3f]));
        },
    );
    assert_refused(&zero_point, &["self_attn.k_zero_point", "expected 0"]);
    for (scheme, is_known) in [
        (json!("static"), true),
        (json!({"num_bits": 8, "type": "float"}), true),
        (json!({"num_bits": 8, "type": "float", "symmetric": true, "strategy": "attn_head"}), true),
        (json!({"num_bits": 8, "type": "float", "symmetric": false}), false),
        (json!({"num_bits": 8, "type": "float", "strategy": "channel"}), false),
        (json!("dynamic"), false),
        (json!({"num_bits": 4}), false),
    ] {
        let copy = changed(
            "fp8",
            |config| config["quantization_config"]["kv_cache_scheme"] = scheme.clone(),
            |_| (),
        );
        match is_known {
            true => assert!(decoded(copy.path()).is_ok(), "{scheme}"),
            false => assert_refused(&copy, &["quantization_config.kv_cache_scheme"]),
        }
    }
    let method = |config: &mut Value| config["quantization_config"]["kv_cache_quant_method"] = json!("fp8");
    assert_refused(&changed("fp8", method, |_| ()), &["quantization_config.kv_cache_quant_method"]);
}

/// Model Optimizer stores the scales with the projections, vLLM in a module of attention, and AutoFP8 one for keys and values.
#[test]
fn scales_under_other_names_are_read() {
    let renamed = |folder: &str, of_vllm: bool| {
        let rename = |tensors: &mut Tensors| {
            for name in ["k", "v"] {
                let scale =
                    tensors.remove(&format!("model.layers.0.self_attn.{name}_scale")).expect("a scale");
                let module = if of_vllm { "attn".to_owned() } else { format!("{name}_proj") };
                tensors.insert(format!("model.layers.0.self_attn.{module}.{name}_scale"), scale);
            }
        };
        changed(folder, |_| (), rename)
    };
    for (name, of_vllm) in FOLDERS.into_iter().flat_map(|name| [(name, false), (name, true)]) {
        let model = renamed(name, of_vllm);
        let (code, report) = checked(model.path(), &folder(name).join("dump.safetensors"), &["--no-causes"]);
        assert_eq!(code, 0, "{name}: {report:#}");
    }
    let one = |tensors: &mut Tensors| {
        _ = tensors.remove("model.layers.0.self_attn.v_scale");
        let scale = tensors.remove("model.layers.0.self_attn.k_scale").expect("a scale");
        tensors.insert("model.layers.0.self_attn.kv_scale".to_owned(), scale);
    };
    let of_keys = |tensors: &mut Tensors| _ = tensors.remove("model.layers.0.self_attn.v_scale");
    for model in [changed("fp8-cache", |_| (), one), changed("fp8-cache", |_| (), of_keys)] {
        let model = ModelFiles::open(model.path()).expect("it is a model").load().expect("it loads").model;
        let matrices = model.matrices();
        let scales: Vec<_> = matrices.iter().filter_map(|(_, matrix)| matrix.cache_scales()).collect();
        assert!(scales.len() == 2 && scales[0] == scales[1], "{scales:?}");
    }
}

#[test]
fn scales_of_fused_projections_are_read() {
    let fused = changed("../architectures/tiny-phi4/hf", with_float_cache, |tensors: &mut Tensors| {
        for (name, scale) in [("qkv_proj.k_scale", 0.5f32), ("qkv_proj.v_scale", 0.25)] {
            let name = format!("model.layers.0.self_attn.{name}");
            tensors.insert(name, (Dtype::F32, vec![1], scale.to_le_bytes().into()));
        }
    });
    let model = ModelFiles::open(fused.path()).expect("it is a model").load().expect("it loads").model;
    let matrices = model.matrices();
    let scales: Vec<_> = matrices.iter().filter_map(|(_, matrix)| matrix.cache_scales()).collect();
    assert_eq!(scales, [[0.5], [0.25]]);
}

/// States an FP8 cache with stored scales, and no quantised weights.
fn with_float_cache(config: &mut Value) {
    let scheme = json!({"num_bits": 8, "type": "float", "dynamic": false});
    config["quantization_config"] = json!({"quant_method": "compressed-tensors", "config_groups": {},
        "format": "dense", "quantization_status": "compressed", "kv_cache_scheme": scheme});
}

/// Layers of Gemma 4 without a projection of values, with scales for values that differ from those for keys.
#[test]
fn values_that_are_projected_as_keys_have_scales_of_their_own() {
    let scaled = |scales: &[(usize, &str, &[f32])]| {
        changed("../architectures/tiny-gemma4moe/hf", with_float_cache, |tensors: &mut Tensors| {
            for (layer, name, scales) in scales {
                let data = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
                let name = format!("model.layers.{layer}.self_attn.{name}");
                tensors.insert(name, (Dtype::F32, vec![scales.len()], data));
            }
        })
    };
    let of_model = |copy: &TempDir| ModelFiles::open(copy.path()).expect("it is a model").load();
    let copy = scaled(&[(1, "k_scale", &[0.5]), (1, "v_scale", &[0.25])]);
    let model = of_model(&copy).expect("it loads").model;
    let matrices = model.matrices();
    let stored = |projection: &str| {
        let is_it = |site: &str| site.contains(projection) && site.contains('1');
        let (_, matrix) = matrices.iter().find(|(site, _)| is_it(&site.to_string())).expect("it is there");
        matrix.cache_scales().map(<[f32]>::to_vec)
    };
    assert_eq!((stored("attn_k"), stored("attn_v")), (Some(vec![0.5]), Some(vec![0.25])));
    // Layer 0 has two heads, layer 1 has one.
    assert!(of_model(&scaled(&[(0, "k_scale", &[0.5, 0.25])])).is_ok());
    let error = of_model(&scaled(&[(1, "k_scale", &[0.5, 0.25])])).err().expect("it is refused");
    assert!(error.to_string().contains("the cache's scales of attn_k, layer 1"), "{error}");
}
