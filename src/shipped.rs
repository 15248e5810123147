//! What is inside the binary, so that the main job works in an empty directory: models and real references.

use include_dir::{Dir, include_dir};

use crate::dump::Dump;
use crate::error::Result;
use crate::format::Source;
use crate::model::ModelFiles;
use crate::tokenizer::{HuggingFaceFiles, TokenizerFiles};

static TINY_BITNET: Dir = include_dir!("$CARGO_MANIFEST_DIR/checkpoints/tiny-bitnet");
static TINY_BITNET_B158: Dir = include_dir!("$CARGO_MANIFEST_DIR/checkpoints/tiny-bitnet-b158");
static TINY_GEMMA3: Dir = include_dir!("$CARGO_MANIFEST_DIR/checkpoints/tiny-gemma3");
static TINY_GEMMA3_VISION: Dir = include_dir!("$CARGO_MANIFEST_DIR/checkpoints/tiny-gemma3-vision");
static TINY_GPT2: Dir = include_dir!("$CARGO_MANIFEST_DIR/checkpoints/tiny-gpt2");
static TINY_LLAMA2: Dir = include_dir!("$CARGO_MANIFEST_DIR/checkpoints/tiny-llama2");
static TINY_LLAMA2C: Dir = include_dir!("$CARGO_MANIFEST_DIR/checkpoints/tiny-llama2c");
static TINY_LLAMA3: Dir = include_dir!("$CARGO_MANIFEST_DIR/checkpoints/tiny-llama3");
static TINY_QWEN3: Dir = include_dir!("$CARGO_MANIFEST_DIR/checkpoints/tiny-qwen3");

/// A model that ships, in every format it ships in, with dumps that real engines made of it.
pub struct ShippedModel {
    /// The name it is asked for by.
    pub name: &'static str,
    /// One line for a person.
    pub description: &'static str,
    files: &'static Dir<'static>,
}

/// Every model that ships.
pub const MODELS: &[ShippedModel] = &[
    ShippedModel {
        name: "tiny-llama2",
        description: "Llama-2 architecture, 0.8 M parameters, trained on small stories",
        files: &TINY_LLAMA2,
    },
    ShippedModel {
        name: "tiny-llama2c",
        description: "llama2.c's files of versions 0 and 2: grouped queries, tied head; trained on small stories",
        files: &TINY_LLAMA2C,
    },
    ShippedModel {
        name: "tiny-llama3",
        description: "Llama 3 architecture: grouped queries, scaled RoPE, sharded; random weights",
        files: &TINY_LLAMA3,
    },
    ShippedModel {
        name: "tiny-qwen3",
        description: "Qwen 3 architecture: q and k norms, a head size of its own, tied head; random weights",
        files: &TINY_QWEN3,
    },
    ShippedModel {
        name: "tiny-gemma3",
        description: "Gemma 3 architecture: sliding windows, two RoPE bases, four norms; random weights",
        files: &TINY_GEMMA3,
    },
    ShippedModel {
        name: "tiny-gemma3-vision",
        description: "Gemma 3 as the part of a model that reads text, with scaled RoPE in its global layers; random weights",
        files: &TINY_GEMMA3_VISION,
    },
    ShippedModel {
        name: "tiny-gpt2",
        description: "GPT-2 architecture: learned positions, LayerNorm, biases; also as pytorch_model.bin; random weights",
        files: &TINY_GPT2,
    },
    ShippedModel {
        name: "tiny-bitnet-b158",
        description: "BitNet b1.58 as released (2B-4T): I2_S, squared ReLU, norms inside both halves; random weights",
        files: &TINY_BITNET_B158,
    },
    ShippedModel {
        name: "tiny-bitnet",
        description: "BitNet b1.58 as of the older models: I2_S, SiLU, norms inside both halves; random weights",
        files: &TINY_BITNET,
    },
];

/// The shipped model of that name, if there is one.
pub fn model(name: &str) -> Option<&'static ShippedModel> {
    MODELS.iter().find(|model| model.name == name)
}

/// A weight file or dump by the name it has in tables; a dump that several models have is the first one's, unless the
/// model is named: `tiny-llama3/transformers-f32`.
pub fn source(name: &str) -> Option<Source> {
    let named = |model: &ShippedModel| {
        let weights = model.variants().into_iter().map(|(name, files)| (name, files.weights()[0].clone()));
        let of_the_model = name.strip_prefix(model.name).and_then(|rest| rest.strip_prefix('/'));
        let wanted = |known: &str| known == name || Some(known) == of_the_model;
        weights.chain(model.dumps()).find(|(known, _)| wanted(known))
    };
    MODELS.iter().find_map(named).map(|(_, source)| source)
}

impl ShippedModel {
    /// The model in each of its formats, each with a name of its own: the original first.
    pub fn variants(&self) -> Vec<(String, ModelFiles)> {
        let folders = [("hf", "safetensors"), ("pt", "bin")];
        let folders = folders.into_iter().filter_map(|(folder, extension)| self.folder(folder, extension));
        let files = self.sources("", "gguf").into_iter().map(|(stem, source)| (stem, self.gguf(source)));
        let llama2c = self.sources("", "bin").into_iter().filter(|(stem, _)| stem != "tokenizer");
        let tokenizer = self.source("tokenizer.bin");
        let llama2c =
            llama2c.map(|(stem, model)| (stem, ModelFiles::Llama2c { model, tokenizer: tokenizer.clone() }));
        folders.chain(files).chain(llama2c).collect()
    }

    /// The files that one of the formats is made of, by name, for programs that read files.
    pub fn files_of(&self, variant: &str) -> Vec<(&'static str, &'static [u8])> {
        let folder = variant.strip_prefix(self.name).and_then(|rest| rest.strip_prefix('-'));
        let folder = folder.and_then(|folder| self.files.get_dir(folder));
        let files = folder.map_or(self.files.files(), Dir::files);
        let is_wanted =
            |name: &str| folder.is_some() || name.rsplit_once('.').is_some_and(|(stem, _)| stem == variant);
        let named = files.filter_map(|file| Some((file.path().file_name()?.to_str()?, file.contents())));
        named.filter(|(name, _)| is_wanted(name)).collect()
    }

    fn gguf(&self, source: Source) -> ModelFiles {
        ModelFiles::gguf(source, self.source("kernel_config.ini"))
    }

    /// The model as a folder of the hub, if it ships as one, its weights in files of that extension.
    fn folder(&self, folder: &str, extension: &str) -> Option<(String, ModelFiles)> {
        let config = self.source(&format!("{folder}/config.json"))?;
        let index = self.source(&format!("{folder}/model.{extension}.index.json"));
        let weights = self.sources(folder, extension).into_iter().map(|(_, source)| source).collect();
        Some((
            format!("{}-{folder}", self.name),
            ModelFiles::HuggingFace { config, index, weights, tokenizer: self.tokenizer(), chat: None },
        ))
    }

    /// The files of the reference dumps, with their names.
    pub fn dumps(&self) -> Vec<(String, Source)> {
        self.sources("dumps", "safetensors")
    }

    /// The reference dumps, with their names.
    ///
    /// # Errors
    /// If one is damaged.
    pub fn references(&self) -> Result<Vec<(String, Dump)>> {
        let dumps = self.dumps().into_iter();
        dumps.map(|(name, source)| Ok((name, Dump::from_source(source)?))).collect()
    }

    fn tokenizer(&self) -> Option<TokenizerFiles> {
        let tokenizer = self.source("hf/tokenizer.json")?;
        let config = self.source("hf/tokenizer_config.json");
        Some(TokenizerFiles::HuggingFace(HuggingFaceFiles { tokenizer, config }))
    }

    fn source(&self, path: &str) -> Option<Source> {
        let file = self.files.get_file(path)?;
        Some(Source::embedded(format!("{}/{path}", self.name), file.contents()))
    }

    /// The files of a folder with an extension, by stem, sorted.
    fn sources(&self, folder: &str, extension: &str) -> Vec<(String, Source)> {
        let folder = if folder.is_empty() { Some(self.files) } else { self.files.get_dir(folder) };
        let files = folder.into_iter().flat_map(Dir::files);
        let mut found: Vec<(String, Source)> = files
            .filter(|file| file.path().extension().is_some_and(|found| found == extension))
            .filter_map(|file| {
                let stem = file.path().file_stem()?.to_str()?.to_owned();
                Some((stem, self.source(file.path().to_str()?)?))
            })
            .collect();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found
    }
}
