//! `xcheck dump`: our engine as a producer.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde_json::json;

use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{ModelOptions, TargetOptions, ThreadOptions};
use crate::cli::progress::Progress;
use crate::cli::prompt::PromptOptions;
use crate::cli::target::Variant;
use crate::compare::Verdict;
use crate::dump::{Input, Layout, Manifest, ModelInfo, Producer, Recorder};
use crate::engine::{self, Script};
use crate::error::{Error, Result};
use crate::model::Model;

/// Arguments of `xcheck dump`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    target: TargetOptions,
    /// Where to write: a new directory, or a file ending in .safetensors
    #[arg(long, short, value_name = "PATH")]
    out: PathBuf,
    #[command(flatten)]
    prompt: PromptOptions,
    /// Greedy decode passes after the prompt
    #[arg(long, value_name = "N", default_value_t = 4)]
    decode: usize,
    #[command(flatten)]
    numerics: NumericsOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
    #[command(flatten)]
    model_options: ModelOptions,
}

/// Runs the model and writes every tap.
pub fn run(args: &Args) -> Result<Verdict> {
    let target = args.target.find()?;
    let tokens = args.prompt.tokens(&target)?;
    let tokens = tokens
        .ok_or_else(|| Error::Usage("give the model something to read: --prompt or --tokens".into()))?;
    let variant = &target.variants[0];
    let loaded = args.model_options.load(variant)?;
    let numerics = args.numerics.of(&*loaded.model, None)?;
    let settings = [
        ("numerics", json!(numerics.name())),
        ("dtype", json!(numerics.activation_type().name())),
        ("weights", json!(loaded.precision.name())),
        ("kv_cache", json!(numerics.cache_type().name())),
    ];
    let producer = Producer {
        name: "xcheck".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        rounding: None,
    };
    let script = Script::greedy(&tokens, args.decode);
    engine::check(&*loaded.model, &*numerics, &script)?;
    let prompt = args.prompt.prompt.clone().unwrap_or_default();
    let mut recorder =
        Recorder::create(&args.out, manifest(producer, variant, &*loaded.model, prompt, &tokens))?;
    let progress = Progress::new(&variant.name, loaded.model.dimensions().n_layers);
    let transcript = engine::run(&*loaded.model, &*numerics, &script, &mut (progress, &mut recorder))?;
    let chosen = chosen(&transcript.generated, &loaded.end_tokens);
    recorder.finish(transcript.passes, transcript.generated)?;
    anstream::println!(
        "{}: {} passes of {}, which chose {chosen}",
        args.out.display(),
        script.passes.len(),
        variant.name
    );
    Ok(Verdict::Pass)
}

/// The tokens chosen; a run goes on where one ends the text, as those of the reference scripts do.
fn chosen(tokens: &[u32], end_tokens: &[u32]) -> String {
    let one = |id: &u32| if end_tokens.contains(id) { format!("{id} (an end)") } else { id.to_string() };
    tokens.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The manifest as far as it is known before the run.
fn manifest(
    producer: Producer,
    variant: &Variant,
    model: &dyn Model,
    prompt: String,
    tokens: &[u32],
) -> Manifest {
    let info = ModelInfo {
        name: variant.name.clone(),
        architecture: model.architecture().to_owned(),
        sha256: Some(variant.sha256.clone()),
    };
    let layout = Layout { rope_pairing: model.dimensions().rope_pairing };
    let input = Input { prompt, tokens: tokens.to_vec(), ..Input::default() };
    Manifest::new(producer, info, layout, input, Vec::new())
}
