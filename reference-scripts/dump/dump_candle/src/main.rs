//! Dumps a greedy run of a model by candle, in xcheck's dump format.
//!
//! The models are those of candle-transformers, called through their public functions, so nothing inside them is seen:
//! a dump holds the last row of logits of each pass and what follows from it, `logits` where a pass has one token, the
//! embeddings of Llama, and the last norm of Qwen3, whose body can be called without its head.
//!
//! The model runs twice, loaded anew. Nothing is written unless both runs agree bit for bit.

mod dump;
mod model;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use candle_core::{DType, Device, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

use dump::Record;
use model::Model;

/// Dumps a greedy run of a model by candle, in xcheck's dump format.
#[derive(Parser)]
struct Arguments {
    /// a Hugging Face directory (llama, qwen3, gemma3_text), or a GGUF file (llama, qwen3, gemma3)
    #[arg(long)]
    model: PathBuf,
    /// token ids of the prompt: 1,2,3
    #[arg(long, value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// greedy passes after the prompt's
    #[arg(long, default_value_t = 4)]
    decode: usize,
    /// of weights and activations; a GGUF file has its own
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Type,
    /// feed the prompt in passes of one token each
    #[arg(long)]
    one_by_one: bool,
    /// model.name in the manifest (default: the last part of --model)
    #[arg(long)]
    name: Option<String>,
    /// FILE.safetensors
    #[arg(long)]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Type {
    F32,
    Bf16,
    F16,
}

impl From<Type> for DType {
    fn from(value: Type) -> Self {
        match value {
            Type::F32 => Self::F32,
            Type::Bf16 => Self::BF16,
            Type::F16 => Self::F16,
        }
    }
}

/// Variables that candle reads: weights of a GGUF file become f32, or f16, and activations are not rounded for them.
const DEQUANTISE: [&str; 2] = ["CANDLE_DEQUANTIZE_ALL", "CANDLE_DEQUANTIZE_ALL_F16"];

/// The passes of one run, and what was recorded of them.
struct Run {
    /// (first position, tokens) of each pass.
    passes: Vec<(usize, Vec<u32>)>,
    /// The greedy choice after the prompt and after each later pass.
    generated: Vec<u32>,
    records: Vec<Record>,
}

fn main() -> ExitCode {
    match dump(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let message = format!("{error:#}"); // candle adds a backtrace to it
            eprintln!("error: {}", message.lines().next().unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

/// Runs the model twice, and writes the dump.
fn dump(arguments: &Arguments) -> Result<()> {
    ensure!(
        arguments.out.extension().is_some_and(|end| end == "safetensors"),
        "--out: not a .safetensors name"
    );
    let recorded = run(arguments)?;
    if run(arguments)?.records != recorded.records {
        bail!("a second run gave other values; nothing written");
    }
    let model = Model::load(&arguments.model, arguments.dtype.into())?;
    dump::write(&arguments.out, manifest(arguments, &model, &recorded)?, &recorded.records)?;
    println!(
        "{}: {} passes, {} tensors; prompt {:?}, generated {:?}",
        arguments.out.display(),
        recorded.passes.len(),
        recorded.records.len(),
        arguments.tokens,
        recorded.generated
    );
    Ok(())
}

/// Loads the model and runs it: the prompt, whole or token by token, then the greedy passes.
fn run(arguments: &Arguments) -> Result<Run> {
    let mut model = Model::load(&arguments.model, arguments.dtype.into())?;
    // candle's own choice; it is held against the lowest id among the largest logits below.
    let mut greedy = LogitsProcessor::from_sampling(0, Sampling::ArgMax);
    let mut run = Run { passes: vec![], generated: vec![], records: vec![] };
    let size = if arguments.one_by_one { 1 } else { arguments.tokens.len() };
    let mut pending: Vec<Vec<u32>> = arguments.tokens.chunks(size).map(<[u32]>::to_vec).rev().collect();
    let mut position = 0;
    while let Some(tokens) = pending.pop() {
        let pass = run.passes.len();
        let input = Tensor::new(tokens.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
        let step = model.forward(&input, position)?;
        let mut keep = |tap, values: &Tensor| {
            run.records.push(Record::new(tap, Some(pass), values)?);
            anyhow::Ok(())
        };
        if let Some(embed) = &step.embed {
            keep("embed", &embed.squeeze(0)?)?;
        }
        if let Some(final_norm) = &step.final_norm {
            keep("final_norm", &final_norm.squeeze(0)?)?;
        }
        let last = step.last_logits.flatten_all()?;
        if tokens.len() == 1 {
            keep("logits", &last.unsqueeze(0)?)?; // the only row there is
        }
        keep("last_logits", &last)?;
        let choice = dump::lowest_argmax(&last)?;
        keep("argmax", &Tensor::new(choice, &Device::Cpu)?)?;
        keep("probs", &candle_nn::ops::softmax_last_dim(&last.to_dtype(DType::F32)?)?)?;
        position += tokens.len();
        run.passes.push((position - tokens.len(), tokens));
        if pending.is_empty() {
            let token = greedy.sample(&last)?;
            ensure!(
                token == choice,
                "pass {pass}: candle chooses {token}, the lowest of the largest is {choice}"
            );
            run.generated.push(token);
            if run.generated.len() <= arguments.decode {
                pending.push(vec![token]);
            }
        }
    }
    run.records.push(Record::new("generated", None, &Tensor::new(run.generated.as_slice(), &Device::Cpu)?)?);
    Ok(run)
}

/// The manifest without its tensors.
fn manifest(arguments: &Arguments, model: &Model, run: &Run) -> Result<Value> {
    let name = arguments.model.canonicalize()?;
    let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let passes: Vec<_> =
        run.passes.iter().map(|(p, tokens)| json!({"position": p, "tokens": tokens})).collect();
    Ok(json!({
        "format": "xcheck-dump",
        "version": 1,
        "producer": {
            "name": "candle",
            "version": dump::candle_version(),
            "settings": {
                "dtype": model.dtype(),
                "weights": model.weights(),
                "attention": model.attention(),
                "kv_cache": model.kv_cache(),
                "dequantised": DEQUANTISE.iter().find(|name| std::env::var(name).is_ok_and(|x| !x.is_empty() && x != "0")),
                "threads": candle_core::utils::get_num_threads(),
                "avx": candle_core::utils::with_avx(),
            },
        },
        "model": {
            "name": arguments.name.clone().unwrap_or(name),
            "architecture": model.architecture(),
            "sha256": dump::sha256(&model::weight_files(&arguments.model)?)?,
        },
        "layout": {"rope_pairing": model.rope_pairing()},
        "input": {"tokens": arguments.tokens, "decode": "greedy"},
        "passes": passes,
        "generated": run.generated,
    }))
}
