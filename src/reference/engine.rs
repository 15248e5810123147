//! Engines that can make references, with the scripts, packages and tools of each.

use std::str::FromStr;

use sha2::{Digest, Sha256};

/// An engine that a script of `reference-scripts` runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceEngine {
    /// Hugging Face transformers.
    Transformers,
    /// llama.cpp.
    LlamaCpp,
    /// mlx-lm.
    Mlx,
    /// tinygrad, for GPT-2 only.
    Tinygrad,
}

/// The files of a model that an engine reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineInput {
    /// A Hugging Face directory.
    Directory,
    /// A GGUF file.
    Gguf,
}

/// A file of `reference-scripts`, embedded in the binary: its path and content.
pub(crate) type ScriptFile = (&'static str, &'static str);

pub(super) struct EngineSettings {
    pub(crate) name: &'static str,
    pub(crate) takes: EngineInput,
    /// Lists of the architectures that its script supports; empty if the engine decides.
    pub(crate) families: &'static [&'static [&'static str]],
    /// Types that it can compute in; empty if the model file decides.
    pub(crate) dtypes: &'static [&'static str],
    /// The script to run, followed by the files that it imports or reads.
    pub(crate) scripts: &'static [ScriptFile],
    /// Packages to install, without their dependencies.
    pub(crate) wanted: &'static str,
    /// All required packages with hashes.
    pub(crate) locked: ScriptFile,
    /// Modules that the script imports, each with its package.
    pub(crate) modules: &'static [(&'static str, &'static str)],
    /// Required programs, each with its Debian package.
    pub(crate) tools: &'static [(&'static str, &'static str)],
    /// Approximate size of the environment.
    pub(crate) size: &'static str,
}

macro_rules! script {
    ($name:literal) => {
        ($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/reference-scripts/", $name)))
    };
}

const WRITER: ScriptFile = script!("lib/dump_writer.py");

/// Architectures without experts that transformers and llama.cpp both compute.
const DENSE: &[&str] = &[
    "llama",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "olmo2",
    "smollm3",
    "granite",
    "phi3",
    "gpt2",
    "gemma",
    "seed_oss",
    "ernie4_5",
    "exaone4",
    "glm4",
    "chatglm",
    "arcee",
    "starcoder2",
    "gptneox",
    "stablelm",
    "command-r",
    "cohere2",
    "olmo",
    "jais2",
    "nemotron",
    "phi2",
    "falcon",
    "bloom",
    "starcoder",
    "hunyuan-dense",
];

// Statics instead of constants, so that the texts are in the binary only once.
static TRANSFORMERS: EngineSettings = EngineSettings {
    name: "transformers",
    takes: EngineInput::Directory,
    families: &[DENSE, &["mistral", "bitnet", "helium", "opt", "gptj"]],
    dtypes: &["f32", "bf16", "f16"],
    scripts: &[script!("dump/dump_transformers.py"), WRITER],
    wanted: script!("requirements.txt").1,
    locked: script!("locked/transformers.txt"),
    modules: &[
        ("torch", "torch"),
        ("transformers", "transformers"),
        ("huggingface_hub", "huggingface_hub"),
        ("numpy", "numpy"),
        ("safetensors", "safetensors"),
        ("tqdm", "tqdm"),
    ],
    tools: &[],
    size: if cfg!(target_os = "linux") {
        "4.3 GB of disk, 2.4 GB to download: torch for Linux includes the CUDA libraries"
    } else {
        "1 GB of disk"
    },
};

static LLAMA_CPP: EngineSettings = EngineSettings {
    name: "llama.cpp",
    takes: EngineInput::Gguf,
    families: &[DENSE],
    dtypes: &[],
    scripts: &[script!("dump/build_dump_llama_cpp.sh"), script!("dump/dump_llama_cpp.cpp")],
    wanted: script!("requirements-llama-cpp.txt").1,
    locked: script!("locked/llama.cpp.txt"),
    modules: &[],
    tools: &[("bash", "bash"), ("cc", "gcc"), ("c++", "g++")],
    size: "0.2 GB of disk; compiling llama.cpp takes ten minutes on two cores",
};

static MLX: EngineSettings = EngineSettings {
    name: "mlx",
    takes: EngineInput::Directory,
    families: &[&["llama", "qwen3", "gemma2", "gemma3", "olmo2", "smollm3", "granite", "phi3", "gpt2"]],
    dtypes: &["f32", "bf16", "f16"],
    scripts: &[script!("dump/dump_mlx.py"), WRITER, script!("lib/model_files.py")],
    wanted: script!("requirements-mlx.txt").1,
    locked: script!("locked/mlx.txt"),
    modules: &[
        ("mlx", "mlx"),
        ("mlx_lm", "mlx-lm"),
        ("numpy", "numpy"),
        ("safetensors", "safetensors"),
        ("transformers", "transformers"),
    ],
    tools: &[("c++", "g++")],
    size: "0.4 GB of disk",
};

static TINYGRAD: EngineSettings = EngineSettings {
    name: "tinygrad",
    takes: EngineInput::Directory,
    families: &[&["gpt2"]],
    dtypes: &["f32"],
    scripts: &[script!("dump/dump_tinygrad.py"), WRITER],
    wanted: script!("requirements-tinygrad.txt").1,
    locked: script!("locked/tinygrad.txt"),
    modules: &[
        ("tinygrad", "tinygrad"),
        ("numpy", "numpy"),
        ("safetensors", "safetensors"),
        ("tokenizers", "tokenizers"),
    ],
    tools: &[("clang", "clang")],
    size: "0.2 GB of disk",
};

impl ReferenceEngine {
    pub(crate) const ALL: [ReferenceEngine; 4] = [
        ReferenceEngine::Transformers,
        ReferenceEngine::LlamaCpp,
        ReferenceEngine::Mlx,
        ReferenceEngine::Tinygrad,
    ];

    /// Returns the default engine for a kind of model files.
    pub(crate) fn usual_for(takes: EngineInput) -> Self {
        match takes {
            EngineInput::Directory => ReferenceEngine::Transformers,
            EngineInput::Gguf => ReferenceEngine::LlamaCpp,
        }
    }

    pub(super) fn recipe(self) -> &'static EngineSettings {
        match self {
            ReferenceEngine::Transformers => &TRANSFORMERS,
            ReferenceEngine::LlamaCpp => &LLAMA_CPP,
            ReferenceEngine::Mlx => &MLX,
            ReferenceEngine::Tinygrad => &TINYGRAD,
        }
    }

    /// Returns the name on the command line.
    pub(crate) fn name(self) -> &'static str {
        self.recipe().name
    }

    /// Returns the engine's producer name in dumps.
    pub(crate) fn producer(self) -> &'static str {
        match self {
            ReferenceEngine::Mlx => "mlx-lm",
            other => other.name(),
        }
    }

    /// Returns the kind of model files that the engine reads.
    pub(crate) fn takes(self) -> EngineInput {
        self.recipe().takes
    }

    /// Returns the architectures that its script supports; empty if the engine decides.
    pub(crate) fn families(self) -> Vec<&'static str> {
        self.recipe().families.concat()
    }

    /// Returns the types that it can compute in; empty if the model file decides.
    pub(crate) fn dtypes(self) -> &'static [&'static str] {
        self.recipe().dtypes
    }

    /// Returns the size of its environment, as text.
    pub fn size(self) -> &'static str {
        self.recipe().size
    }

    /// Returns the packages to install as pip requirements, without their dependencies.
    pub(crate) fn packages(self) -> Vec<&'static str> {
        let lines = self.recipe().wanted.lines().map(str::trim);
        lines.filter(|line| !line.is_empty() && !line.starts_with(['#', '-'])).collect()
    }

    /// Returns the number of packages in its environment; a few are for one system only.
    pub(crate) fn locked_packages(self) -> usize {
        self.recipe().locked.1.lines().filter(|line| line.contains("==")).count()
    }

    /// Returns the name of the engine's environment, with a hash of everything that the environment is made from.
    pub(super) fn environment(self) -> String {
        let recipe = self.recipe();
        let mut hash = Sha256::new_with_prefix(recipe.locked.1);
        if self == ReferenceEngine::LlamaCpp {
            recipe.scripts.iter().for_each(|(_, text)| hash.update(text)); // compiled into it
        }
        format!("{}-{}", recipe.name, &hex::encode(hash.finalize())[..12])
    }
}

impl FromStr for ReferenceEngine {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|engine| engine.name() == name);
        found.ok_or_else(|| format!("unknown engine; known: {known}"))
    }
}
