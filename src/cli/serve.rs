//! `xcheck serve`: serves the reference engine with the OpenAI API.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{FormatOptions, ModelOptions, RequestedModelOptions, ThreadOptions};
use crate::cli::terminal::tell;
use crate::error::{Error, Result};
use crate::input;
use crate::serve::{RequestLimits, ServedModel, serve};
use crate::tokenizer::ChatTemplate;
use crate::verdict::Verdict;

/// Arguments of `xcheck serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    target: RequestedModelOptions,
    /// Address to listen on; any but 127.0.0.1 is open without authentication
    ///
    /// Any address but 127.0.0.1 exposes the server to other machines without authentication.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Port to listen on; 0 picks a free port
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,
    /// Name of the model for clients [default: the model's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// File with a Jinja chat template, instead of the model's own
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitOptions,
    #[command(flatten)]
    output: FormatOptions,
    #[command(flatten)]
    numerics: NumericsOptions,
    #[command(flatten)]
    model_options: ModelOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
}

/// Limits of client requests.
#[derive(Debug, Args)]
struct LimitOptions {
    /// Maximum tokens of prompt and generation [default: the model's context]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    context: Option<usize>,
    /// Maximum tokens per answer [default: the rest of the context]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_tokens: Option<usize>,
    /// Maximum top log-probabilities per position
    #[arg(long, value_name = "N", default_value_t = 20, help_heading = "Limits")]
    max_logprobs: usize,
    /// Number of sequences computed in turn, each with a KV cache
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = parallel, help_heading = "Limits")]
    parallel: usize,
    /// Maximum waiting sequences; further requests get status 429
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Limits")]
    queue: usize,
    /// Maximum size of a request body in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, help_heading = "Limits")]
    max_body: usize,
}

fn parallel(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=64) => Ok(number),
        _ => Err("expected a number from 1 to 64".to_owned()),
    }
}

/// Serves until the process is stopped.
pub(crate) fn run(args: &ServeArgs) -> Result<Verdict> {
    let served = args.served()?;
    let address = (args.host, args.port);
    let refuse = |error: std::io::Error| {
        Error::Usage(format!(
            "cannot listen on {}:{}: {error}; use another --port or --host",
            address.0, address.1
        ))
    };
    let listener = TcpListener::bind(address).map_err(refuse)?;
    let bound = listener.local_addr().map_err(refuse)?;
    let (model, numerics) = (served.name.clone(), served.numerics.name());
    let output = args.output;
    serve(served, listener, move || {
        output.line(format_args!("{model} with numerics {numerics}, listening on http://{bound}"));
        output.document(|| {
            json!({"model": model, "numerics": numerics, "url": format!("http://{bound}"), "port": bound.port()})
        });
    })?;
    Ok(Verdict::Pass)
}

impl ServeArgs {
    fn served(&self) -> Result<ServedModel> {
        let target = self.target.find()?;
        let variant = &target.variants[0];
        let loaded = self.model_options.load(variant)?;
        let numerics = self.numerics.of_stored(&loaded)?;
        let tokenizer = target.tokenizer().unwrap_or_else(|problem| {
            tell!("prompts must be token ids: {problem}");
            None
        });
        let mut chat = variant.files.chat(tokenizer.as_deref())?;
        if let Some(file) = &self.chat_template {
            chat.template = Some(input::text(file)?);
        }
        let template =
            chat.template.clone().map(|source| ChatTemplate::new(source, &chat.tokens)).transpose()?;
        let limits = self.limits.limits(loaded.model.dimensions().context_length)?;
        Ok(ServedModel {
            name: self.name.clone().unwrap_or_else(|| target.name.clone()),
            template,
            chat,
            loaded,
            numerics,
            tokenizer,
            limits,
        })
    }
}

impl LimitOptions {
    fn limits(&self, trained_for: usize) -> Result<RequestLimits> {
        let context = self.context.unwrap_or(trained_for);
        if !(1..=trained_for).contains(&context) {
            return Err(Error::Usage(format!(
                "invalid --context {context}, expected 1 to {trained_for}, the model's context length"
            )));
        }
        Ok(RequestLimits {
            context,
            max_tokens: self.max_tokens.unwrap_or(context).min(context),
            max_logprobs: self.max_logprobs,
            parallel: self.parallel,
            queue: self.queue,
            body: self.max_body,
        })
    }
}
