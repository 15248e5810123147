//! `xcheck dump`: writes a dump of our own engine.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::cli::kld::{self, KldOptions};
use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{
    FormatOptions, ModelOptions, RequestedModelOptions, SuppositionOptions, ThreadOptions,
};
use crate::cli::progress::RunProgress;
use crate::cli::prompt::PromptOptions;
use crate::cli::requested_model::ModelVariant;
use crate::cli::supposed_changes::run_supposing;
use crate::dump::{DumpInput, Layout, Manifest, ModelInfo, Producer, Recorder};
use crate::engine::{self, RunInput};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::quant::CACHES;
use crate::verdict::Verdict;

/// Arguments of `xcheck dump`.
#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    target: RequestedModelOptions,
    #[command(flatten)]
    prompt: PromptOptions,
    /// Dump to write: a new directory, or a file ending in .safetensors
    #[arg(long, short, value_name = "PATH", required_unless_present = "kld")]
    out: Option<PathBuf>,
    /// Number of greedy decode passes after the prompt
    #[arg(long, value_name = "N", default_value_t = 4)]
    decode: usize,
    /// Write twelve numbers per token instead of all values
    ///
    /// They are enough to find the layer that differs.
    #[arg(long)]
    sketch: bool,
    #[command(flatten)]
    kld: KldOptions,
    #[command(flatten)]
    output: FormatOptions,
    #[command(flatten)]
    numerics: NumericsOptions,
    #[command(flatten)]
    suppose: SuppositionOptions,
    #[command(flatten)]
    model_options: ModelOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
}

/// Runs the model and writes every tap.
pub(crate) fn run(args: &DumpArgs) -> Result<Verdict> {
    let target = args.target.find()?;
    if let Some(path) = &args.kld.kld {
        let loaded = args.model_options.load(&target.variants[0])?;
        let numerics = args.numerics.of_stored(&loaded)?;
        let (text, model) = ((&target, &args.prompt), (&loaded, &*numerics));
        return kld::write(path, &args.kld, text, model, &args.suppose, args.output);
    }
    let out = args.out.as_deref().expect("clap requires --out");
    let tokens = args.prompt.tokens(&target)?;
    let tokens =
        tokens.ok_or_else(|| Error::Usage("no input for the model; use --prompt or --tokens".into()))?;
    let variant = &target.variants[0];
    variant.begin_hash();
    let loaded = args.model_options.load(variant)?;
    let numerics = args.numerics.of_stored(&loaded)?;
    let settings = [
        ("numerics", json!(numerics.name())),
        ("dtype", json!(numerics.activation_type().name())),
        ("weights", json!(loaded.precision.name())),
        ("kv_cache", json!(numerics.cache_type().name())),
    ];
    let supposed: Vec<String> = args.suppose.words().collect();
    let supposed = (!supposed.is_empty()).then(|| ("suppose", json!(supposed.join(" "))));
    let blocks = CACHES.contains(&numerics.cache_type()).then(|| ("attention_rotation", json!("off")));
    let settings = settings.into_iter().chain(blocks).chain(supposed);
    let producer = Producer {
        name: "xcheck".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: settings.map(|(key, value)| (key.to_owned(), value)).collect(),
        rounding: None,
    };
    engine::check_length(&*loaded.model, tokens.len().saturating_add(args.decode))?;
    let script = RunInput::greedy(&tokens, args.decode);
    engine::check(&*loaded.model, &*numerics, &script)?;
    let prompt = args.prompt.prompt.clone().unwrap_or_default();
    let mut recorder = Recorder::create(out, manifest(producer, variant, &*loaded.model, prompt, &tokens))?;
    if args.sketch {
        recorder = recorder.sketching();
    }
    let read = script.passes.iter().map(|step| step.tokens.as_ref().map_or(1, Vec::len));
    let progress = RunProgress::new(&variant.name, loaded.model.dimensions().n_layers).along(read);
    let mut taps = (progress, &mut recorder);
    let supposed = args.suppose.suppositions(None);
    let transcript = run_supposing(&supposed, &*loaded.model, &*numerics, &script, &mut taps)?;
    let chosen = chosen(&transcript.generated, &loaded.end_tokens);
    variant.sha256()?.into_iter().for_each(|sha256| recorder.made_from(sha256));
    let document = json!({
        "path": out.display().to_string(),
        "model": variant.name,
        "passes": script.passes.len(),
        "generated": transcript.generated,
    });
    recorder.finish(transcript.passes, transcript.generated)?;
    let (out, passes) = (out.display(), script.passes.len());
    args.output.line(format_args!("{out}: {passes} passes of {}, chosen tokens {chosen}", variant.name));
    args.output.document(|| document);
    Ok(Verdict::Pass)
}

/// Formats the chosen tokens. A run continues after an end token, like the reference scripts.
fn chosen(tokens: &[u32], end_tokens: &[u32]) -> String {
    let one = |id: &u32| if end_tokens.contains(id) { format!("{id} (end of text)") } else { id.to_string() };
    tokens.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the manifest as far as it is known before the run.
fn manifest(
    producer: Producer,
    variant: &ModelVariant,
    model: &dyn Model,
    prompt: String,
    tokens: &[u32],
) -> Manifest {
    let info =
        ModelInfo { name: variant.name.clone(), architecture: model.architecture().to_owned(), sha256: None };
    let layout = Layout { rope_pairing: model.dimensions().rope_pairing };
    let input = DumpInput { prompt, tokens: tokens.to_vec(), ..DumpInput::default() };
    Manifest::new(producer, info, layout, input, Vec::new())
}
