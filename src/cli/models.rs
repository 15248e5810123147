//! `xcheck models`: what ships, and which public models are known.

use clap::Args as ClapArgs;
use comfy_table::{CellAlignment, Table, presets};

use crate::cli::progress::Transfer;
use crate::compare::Verdict;
use crate::error::{Error, Result};
use crate::hub::{self, Cached, HubModel, KnownFiles, KnownModel, Settings};
use crate::model;
use crate::quant::READABLE;
use crate::shipped;

/// Arguments of `xcheck models`.
#[derive(Debug, ClapArgs)]
#[command(after_help = ENVIRONMENT)]
pub struct Args {
    /// Get the newest version of a public model into the Hugging Face cache: a name of the list, org/repo,
    /// org/repo:file.gguf or org/repo:Q8_0
    #[arg(long, value_name = "MODEL")]
    download: Option<String>,
}

const ENVIRONMENT: &str = "Environment, as for huggingface_hub: HF_HOME, HF_HUB_CACHE (the cache), HF_TOKEN (else the \
    file that 'hf auth login' leaves), HF_ENDPOINT, HF_HUB_OFFLINE";

/// Lists models, or downloads one.
pub fn run(args: &Args) -> Result<Verdict> {
    match &args.download {
        Some(name) => download(name)?,
        None => list()?,
    }
    Ok(Verdict::Pass)
}

fn download(name: &str) -> Result<()> {
    let model = HubModel::named(name).ok_or_else(|| unknown(name))?;
    let located = hub::download(&Settings::from_env()?, &model, &mut Transfer::new())?;
    anstream::println!("{model}: {}", located.path.display());
    anstream::println!("run it: xcheck run --model {name}");
    Ok(())
}

fn unknown(name: &str) -> Error {
    let alike = hub::nearest(name).join(", ");
    let alike = if alike.is_empty() { String::new() } else { format!("; did you mean {alike}?") };
    let problem = format!("neither a known public model (xcheck models lists them) nor org/repo{alike}");
    Error::NoModel { name: name.to_owned(), problem }
}

fn list() -> Result<()> {
    list_shipped()?;
    list_known(&Settings::from_env()?);
    anstream::println!(
        "--model takes any of these names, a path (a GGUF file, or a directory with config.json and model.safetensors),"
    );
    anstream::println!(
        "or any model of the hub: org/repo, org/repo:file.gguf, org/repo:Q8_0. --download gets it."
    );
    anstream::println!(
        "Dumps are found in a folder 'dumps' beside the file or in the directory, for a model of the hub in\n\
         dumps/<name> of the current directory; or they are named with --reference."
    );
    Ok(())
}

fn list_shipped() -> Result<()> {
    for model in shipped::MODELS {
        anstream::println!("{}: {}", model.name, model.description);
        let mut table = plain_table(&["format", "first file", "size", "dumps made from it"]);
        let references = model.references()?;
        for (name, files) in model.variants() {
            let sha256 = files.sha256();
            let made: Vec<&str> = references
                .iter()
                .filter(|(_, dump)| dump.manifest.model.sha256.as_ref() == Some(&sha256))
                .map(|(name, _)| name.as_str())
                .collect();
            let bytes: usize = files.weights().iter().map(|file| file.data.len()).sum();
            let first = files.weights()[0].path.display().to_string();
            table.add_row([name, first, format!("{} KB", bytes / 1024), made.join(", ")]);
        }
        anstream::println!("{}\n", table.trim_fmt());
    }
    Ok(())
}

fn list_known(settings: &Settings) {
    anstream::println!("public models on {}, cache {}", settings.endpoint, settings.cache.display());
    let mut table =
        plain_table(&["name", "architecture", "runs", "cached", "gated", "size", "repository and file"]);
    for known in KnownModel::all() {
        for (name, files) in known.forms() {
            let runs =
                obstacle(&known.architecture, files).map_or("yes".to_owned(), |what| format!("no: {what}"));
            let cached = match Cached::look_for(settings, &files.model(name.clone())) {
                Cached::Whole(_) => "yes",
                Cached::Partly(_) => "partly",
                Cached::Not => "no",
            };
            let gated = if files.gated { "yes" } else { "no" };
            let file = files.file.as_ref().map_or(String::new(), |file| format!(" {file}"));
            let place = format!("{}{file}", files.repo);
            let size = format!("{} GB", files.gb);
            table.add_row([name, known.architecture.clone(), runs, cached.into(), gated.into(), size, place]);
        }
    }
    if let Some(sizes) = table.column_mut(5) {
        sizes.set_cell_alignment(CellAlignment::Right);
    }
    anstream::println!("{}\n", table.trim_fmt());
}

/// What this build lacks to run a model.
fn obstacle(architecture: &str, files: &KnownFiles) -> Option<String> {
    if !model::architectures().any(|known| known == architecture) {
        return Some(architecture.to_owned());
    }
    match (&files.file, files.quantisation()) {
        (None, _) => None,
        (Some(_), Some(tag)) => {
            // Q4_K_M is a mix, of Q4_K for the most part.
            let tag_name = tag.to_lowercase();
            let main = tag_name.trim_end_matches("_m").trim_end_matches("_s");
            (!READABLE.iter().any(|dtype| [main, &tag_name].contains(&dtype.name()))).then(|| tag.to_owned())
        }
        (Some(file), None) => Some(file.rsplit('.').next().unwrap_or(file).to_owned()),
    }
}

fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    table
}
