//! `xcheck record`: writes a running server's answers as a dump.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::atomic_write::write_new;
use crate::cli::options::{FormatOptions, RequestedModelOptions};
use crate::cli::requested_model::own_tokenizer;
use crate::cli::server_options::ServerOptions;
use crate::dump::ModelInfo;
use crate::error::{Error, Result};
use crate::verdict::Verdict;

/// Arguments of `xcheck record`.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    asking: ServerOptions,
    /// Dump to write: a new file ending in .safetensors
    #[arg(long, short, value_name = "DUMP")]
    out: PathBuf,
    /// Model that is served; its tokenizer finds the ids of token texts
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// Architecture without --model: llama, qwen3, gemma3, gpt2, bitnet
    #[arg(long, value_name = "NAME", default_value = ModelInfo::UNKNOWN, conflicts_with = "model")]
    architecture: String,
    /// Type that the server computes in, if it does not say: f32, bf16, f16
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,
    #[command(flatten)]
    output: FormatOptions,
}

/// Sends the requests once and writes the answers.
pub(crate) fn run(args: &RecordArgs) -> Result<Verdict> {
    let out = &args.out;
    if out.extension().is_none_or(|extension| extension != "safetensors") {
        return Err(Error::Usage("--out: expected a file ending in .safetensors".into()));
    }
    if out.exists() {
        return Err(Error::Usage(format!("{} already exists; use another name or remove it", out.display())));
    }
    let target = args.model.as_deref().map(|model| RequestedModelOptions::of(model).find()).transpose()?;
    let architecture = match &target {
        Some(target) => target.variants[0].files.load()?.model.architecture().to_owned(),
        None => args.architecture.clone(),
    };
    let (tokenizer, _) = own_tokenizer(target.as_ref());
    let client = args.asking.client()?;
    let known = args.asking.identify(&client)?;
    let asked = args.asking.ask(&client, &known, tokenizer.as_deref())?;
    let info = ModelInfo { name: known.model.clone(), architecture, sha256: None };
    let dtype = args.dtype.as_deref().or(known.dtype.as_deref());
    let recording = asked.recording();
    let (dump, bytes) = recording.dump(&known, info, dtype, out)?;
    write_new(out, &bytes).map_err(Error::io("write", out))?;
    let (arrays, generated) = (dump.manifest.tensors.len(), recording.generated.len());
    let prompt = asked
        .read
        .as_ref()
        .err()
        .map(|why| format!("; no log-probabilities of the prompt: {}", why.why()))
        .unwrap_or_default();
    args.output.line(format_args!(
        "{}: {} {}, {} prompt tokens and {generated} generated tokens, {arrays} arrays, {} requests{prompt}",
        out.display(),
        known.kind.name(),
        known.version,
        recording.prompt.len(),
        client.made(),
    ));
    args.output.document(|| {
        json!({
            "path": out.display().to_string(), "server": known.kind.name(), "version": known.version,
            "model": known.model, "prompt": recording.prompt, "generated": dump.manifest.generated,
            "arrays": arrays, "requests": client.made(), "prompt_not_told": asked.read.as_ref().err().map(|why| why.why()),
        })
    });
    Ok(Verdict::Pass)
}
