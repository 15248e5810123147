//! LoRA adapters of PEFT (Hu et al., 2021): `adapter_config.json` and `adapter_model.safetensors`.
//!
//! The product of an adapter's two matrices is added to the weights. It is computed in `f64` and rounded to `f32`.
//! In `f32`, merged and separate adapters differ only by the rounding of products. In shorter types they differ by
//! more, since peft rounds the sum of two products and also rounds its merged weights to that type.

use std::collections::BTreeMap;
use std::path::Path;

use rayon::prelude::*;
use serde_json::{Value, json};

use crate::error::{Error, ModelError, Result};
use crate::format::{FileBytes, FileStore, Gguf, TensorFile};
use crate::model::Model;
use crate::model::json::{Config, json_of};
use crate::quant::decode_row;
use crate::weight::{DType, StoredTensor};

const CONFIG: &str = "adapter_config.json";
/// Weight files of an adapter; the first existing one is used.
const WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];
/// Prefix of an adapter's tensor names.
const PREFIX: &str = "base_model.model.";
/// Last parts of the names of an adapter's two matrices.
const A: &str = ".lora_A.weight";
const B: &str = ".lora_B.weight";

/// Settings that change the computation of an adapter, unless they are null, false, empty or "none".
const UNSUPPORTED: [&str; 16] = [
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "bias",
    "alpha_pattern",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
    "megatron_config",
    "exclude_modules",
];

/// Files of a LoRA adapter.
#[derive(Clone, Debug)]
pub struct AdapterFiles {
    /// `adapter_config.json`.
    pub(crate) config: FileBytes,
    /// `adapter_model.safetensors` or `adapter_model.bin`.
    pub(crate) weights: FileBytes,
}

impl AdapterFiles {
    /// Finds the adapter in a folder, if there is one.
    ///
    /// # Errors
    /// If a file cannot be opened, or the folder has only the configuration.
    pub(crate) fn find(place: &dyn FileStore, folder: &Path) -> Result<Option<Self>> {
        let Some(config) = place.find(&folder.join(CONFIG))? else { return Ok(None) };
        for name in WEIGHTS {
            if let Some(weights) = place.find(&folder.join(name))? {
                return Ok(Some(Self { config, weights }));
            }
        }
        Err(unusable(folder, format!("{CONFIG} is there, but {} is missing", WEIGHTS.join(" or "))))
    }

    /// Opens the adapter in a folder.
    ///
    /// # Errors
    /// If there is none, or a file cannot be opened.
    pub fn open(place: &dyn FileStore, folder: &Path) -> Result<Self> {
        let missing = || unusable(folder, format!("{CONFIG} is missing; give a folder that peft has saved"));
        Self::find(place, folder)?.ok_or_else(missing)
    }

    /// Adds the adapter to the weights of its base model.
    ///
    /// # Errors
    /// If the adapter is of an unsupported kind, or does not fit the base model.
    pub(crate) fn merge(&self, base: TensorFile) -> Result<TensorFile> {
        let json = json_of(&self.config)?;
        let settings = LoraSettings::read(&Config::new(&self.config.path, &json))?;
        let tensors = TensorFile::read(&self.weights)?;
        let (modules, mut whole) = self.sorted(&tensors)?;
        self.check_targets(&json, &modules)?;
        let unknown = modules.keys().map(|module| format!("{module}.weight")).chain(whole.keys().cloned());
        if let Some(name) = unknown.into_iter().find(|name| base.get(name).is_none()) {
            let problem =
                format!("it changes '{name}', which the base model does not have; give its own base model");
            return Err(unusable(&self.weights.path, problem));
        }
        base.try_map(|name, stored| {
            if let Some(replacement) = whole.remove(name) {
                return same_shape(&self.weights.path, name, replacement, stored);
            }
            match name.strip_suffix(".weight").and_then(|module| modules.get(module)) {
                Some(pair) => pair.added(&self.weights.path, name, stored, &settings),
                None => Ok(stored.clone()),
            }
        })
    }

    /// Records in a model that its weights contain the adapter, and returns a note about this.
    ///
    /// # Errors
    /// If the architecture does not support adapters.
    pub(super) fn mark(&self, model: &mut dyn Model) -> Result<String> {
        if !model.set_adapter() {
            let expected = format!("no adapter for {}", model.architecture());
            return Err(Error::bad_key(&self.config.path, "peft_type", "LORA", expected));
        }
        Ok(format!("the LoRA adapter {} is merged into the weights, in f32", self.weights.path.display()))
    }

    /// Sorts an adapter's tensors: pairs of matrices by module, and whole tensors of `modules_to_save` by their name in
    /// the base model.
    fn sorted<'t>(
        &self,
        tensors: &'t TensorFile,
    ) -> Result<(Modules<'t>, BTreeMap<String, &'t StoredTensor>)> {
        let mut halves: BTreeMap<String, [Option<&StoredTensor>; 2]> = BTreeMap::new();
        let mut whole = BTreeMap::new();
        for (name, tensor) in tensors.iter() {
            let refuse = || {
                let problem =
                    format!("the tensor '{name}' is not supported, expected names such as {PREFIX}…{A}");
                unusable(&self.weights.path, problem)
            };
            let inner = name.strip_prefix(PREFIX).ok_or_else(refuse)?;
            let half = [A, B].iter().position(|end| inner.ends_with(end));
            match half {
                Some(half) => {
                    let module = inner[..inner.len() - [A, B][half].len()].to_owned();
                    halves.entry(module).or_default()[half] = Some(tensor);
                }
                None if inner.contains("lora_") => return Err(refuse()),
                None => _ = whole.insert(inner.to_owned(), tensor),
            }
        }
        let pair = |(module, halves): (String, [Option<&'t StoredTensor>; 2])| match halves {
            [Some(a), Some(b)] => Ok((module, LoraPair { a, b })),
            _ => Err(unusable(&self.weights.path, format!("'{module}' has only one of {A} and {B}"))),
        };
        Ok((halves.into_iter().map(pair).collect::<Result<_>>()?, whole))
    }

    /// Checks that every module that the configuration names is in the weight file.
    fn check_targets(&self, json: &Value, modules: &Modules) -> Result<()> {
        let names = json["target_modules"].as_array().map(Vec::as_slice).unwrap_or_default();
        for name in names.iter().filter_map(Value::as_str) {
            let is_it = |module: &String| module == name || module.ends_with(&format!(".{name}"));
            if !modules.keys().any(is_it) {
                let expected = "a module that the adapter's weights change";
                return Err(Error::bad_key(&self.config.path, "target_modules", name, expected));
            }
        }
        match modules.is_empty() {
            true => Err(unusable(&self.weights.path, "it has no LoRA matrices".to_owned())),
            false => Ok(()),
        }
    }
}

type Modules<'t> = BTreeMap<String, LoraPair<'t>>;

/// Settings of a LoRA adapter.
struct LoraSettings {
    /// Rank of all matrices; `None` if ranks differ between modules.
    rank: Option<usize>,
    alpha: f64,
    /// True if the scale is alpha / √r instead of alpha / r.
    is_stabilised: bool,
    /// True if the base model's matrices are stored as inputs × outputs.
    is_transposed: bool,
}

impl LoraSettings {
    fn read(config: &Config) -> Result<Self> {
        config.only("peft_type", &["LORA".into()], "\"LORA\" (other adapters are not supported)")?;
        config.require_str("peft_type")?;
        for key in UNSUPPORTED {
            let unset = [json!(false), json!(""), json!("none"), json!([]), json!({})];
            config.only(
                key,
                &unset,
                "unset (this variant of LoRA is not supported; merge it with peft's merge_and_unload)",
            )?;
        }
        let has_ranks =
            config.get("rank_pattern").and_then(Value::as_object).is_some_and(|ranks| !ranks.is_empty());
        let rank = config.require_usize("r")?;
        let alpha = config.require_f32("lora_alpha")?;
        if !alpha.is_finite() {
            return Err(config.bad_key("lora_alpha", alpha, "a finite number"));
        }
        Ok(Self {
            rank: Some(rank).filter(|_| !has_ranks),
            alpha: alpha.into(),
            is_stabilised: config.optional_bool("use_rslora")?.unwrap_or(false),
            is_transposed: config.optional_bool("fan_in_fan_out")?.unwrap_or(false),
        })
    }

    fn scale(&self, rank: usize) -> f64 {
        let rank = rank as f64;
        self.alpha / if self.is_stabilised { rank.sqrt() } else { rank }
    }
}

/// Two matrices of an adapter, `[r, inputs]` and `[outputs, r]`.
struct LoraPair<'t> {
    a: &'t StoredTensor,
    b: &'t StoredTensor,
}

impl LoraPair<'_> {
    /// Returns the weight of the base model with the scaled product of both matrices added.
    fn added(
        &self,
        file: &Path,
        name: &str,
        stored: &StoredTensor,
        settings: &LoraSettings,
    ) -> Result<StoredTensor> {
        let bad = |what: String| unusable(file, format!("'{name}': {what}"));
        let (&[rank, inputs], &[outputs, width]) = (&self.a.shape[..], &self.b.shape[..]) else {
            return Err(bad(format!(
                "its matrices have shapes {:?} and {:?}, expected two axes",
                self.a.shape, self.b.shape
            )));
        };
        let expected = if settings.is_transposed { [inputs, outputs] } else { [outputs, inputs] };
        if rank == 0
            || rank != width
            || settings.rank.is_some_and(|stated| stated != rank)
            || stored.shape != expected
        {
            let stated = settings.rank.map_or("any rank".to_owned(), |rank| format!("rank {rank}"));
            return Err(bad(format!(
                "its matrices have shapes {:?} and {:?}, expected {stated} and a base of shape {:?}",
                self.a.shape, self.b.shape, stored.shape
            )));
        }
        let [a, b, mut sum] = [self.a, self.b, stored].map(values);
        let (Some(a), Some(b), Some(sum)) = (a, b, sum.as_mut()) else {
            return Err(bad(format!(
                "the types are {}, {} and {}, expected f32, f16 or bf16",
                self.a.dtype, self.b.dtype, stored.dtype
            )));
        };
        let scale = settings.scale(rank);
        sum.par_chunks_mut(expected[1].max(1)).enumerate().for_each(|(row, weights)| {
            for (column, weight) in weights.iter_mut().enumerate() {
                let (output, input) = if settings.is_transposed { (column, row) } else { (row, column) };
                let terms =
                    (0..rank).map(|k| f64::from(b[output * rank + k]) * f64::from(a[k * inputs + input]));
                *weight = (f64::from(*weight) + scale * terms.sum::<f64>()) as f32;
            }
        });
        let data: Vec<u8> = sum.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(StoredTensor { dtype: DType::F32, shape: stored.shape.clone(), data: data.into() })
    }
}

/// Decodes a tensor of a plain type.
fn values(tensor: &StoredTensor) -> Option<Vec<f32>> {
    if !matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16) {
        return None;
    }
    let mut values = vec![0.0; tensor.elements()];
    decode_row(tensor.dtype, &tensor.data, &mut values);
    Some(values)
}

fn same_shape(file: &Path, name: &str, own: &StoredTensor, base: &StoredTensor) -> Result<StoredTensor> {
    if own.shape == base.shape {
        return Ok(own.clone());
    }
    let (file, tensor) = (file.to_owned(), name.to_owned());
    Err(ModelError::WrongShape { file, tensor, found: own.shape.clone(), expected: base.shape.clone() }
        .into())
}

/// Returns an error if a GGUF file is not a model but an adapter or another change of one.
///
/// # Errors
/// If the file states that it is not a model.
pub(super) fn refuse_gguf_adapter(file: &Gguf) -> Result<()> {
    const KIND: &str = "general.type";
    match file.optional::<&str>(KIND)? {
        Some(found) if found != "model" => {
            let expected = "model; give the model's own file (adapters in GGUF files are not supported)";
            Err(Error::bad_key(file.tensors.path(), KIND, found, expected))
        }
        _ => Ok(()),
    }
}

fn unusable(path: &Path, problem: String) -> Error {
    Error::BadContainer { file: path.to_owned(), format: "LoRA adapter", problem }
}
