//! `xcheck models`: lists shipped and known public models.

use std::path::Path;

use clap::Args;
use comfy_table::CellAlignment;
use serde::Serialize;
use serde_json::json;

use crate::cli::options::FormatOptions;
use crate::cli::progress::DownloadProgress;
use crate::cli::terminal::plain_table;
use crate::disk_cache::write_with_folders;
use crate::error::{Error, ModelError, Result};
use crate::hub::{self, CacheState, HubSettings, KnownFiles, KnownModel};
use crate::model;
use crate::quant::READABLE;
use crate::shipped_models::{self, ShippedModel};
use crate::verdict::Verdict;

/// Arguments of `xcheck models`.
#[derive(Debug, Args)]
#[command(after_long_help = ENVIRONMENT)]
pub(crate) struct ModelsArgs {
    /// Download the newest version of a public model to the Hugging Face cache
    ///
    /// MODEL is a name from the list, org/repo, org/repo:file.gguf or org/repo:Q8_0.
    #[arg(long, value_name = "MODEL")]
    download: Option<String>,
    /// Write the files of a shipped model and its dumps to DIR/NAME
    #[arg(long, num_args = 2, value_names = ["NAME", "DIR"], conflicts_with = "download")]
    export: Option<Vec<String>>,
    #[command(flatten)]
    output: FormatOptions,
}

const ENVIRONMENT: &str = "\
Environment variables, as for huggingface_hub: HF_HOME, HF_HUB_CACHE (the cache), HF_TOKEN (else the file written by \
'hf auth login'), HF_ENDPOINT, HF_HUB_OFFLINE.

XCHECK_CHECKPOINTS is the folder of the shipped models [default: that of the repository, else xcheck/checkpoints in \
XDG_DATA_HOME or ~/.local/share].";

/// Lists models, or downloads one.
pub(crate) fn run(args: &ModelsArgs) -> Result<Verdict> {
    match (&args.download, args.export.as_deref()) {
        (Some(name), _) => download(name, args.output)?,
        (None, Some([name, folder])) => export(name, Path::new(folder), args.output)?,
        (None, _) => list(args.output)?,
    }
    Ok(Verdict::Pass)
}

fn download(name: &str, output: FormatOptions) -> Result<()> {
    let model = hub::named(name).ok_or_else(|| unknown(name))?;
    let located = hub::download(&HubSettings::from_env()?, &model, &mut DownloadProgress::new())?;
    output.line(format_args!("{model}: {}", located.path.display()));
    output.line(format_args!("run it: xcheck run --model {name}"));
    output.document(|| json!({"model": name, "path": located.path.display().to_string()}));
    Ok(())
}

/// Exports a model without overwriting anything.
fn export(name: &str, folder: &Path, output: FormatOptions) -> Result<()> {
    let names: Vec<_> = shipped_models::MODELS.iter().map(|model| model.name).collect();
    let model = shipped_models::model(name).ok_or_else(|| ModelError::NoModel {
        name: name.to_owned(),
        problem: format!("the shipped models are: {}", names.join(", ")),
    })?;
    let (files, home) = (model.files()?, folder.join(name));
    if home.exists() {
        return Err(Error::Usage(format!(
            "{} already exists; remove it, or name another folder",
            home.display()
        )));
    }
    for name in files.names() {
        let path = home.join(name);
        if let Some(source) = files.open(name)? {
            write_with_folders(&path, &source.data.whole()).map_err(Error::io("write", &path))?;
        }
    }
    let written: Vec<_> = files.names().collect();
    output.line(format_args!("{}: {} files", home.display(), written.len()));
    output.document(|| json!({"name": name, "path": home.display().to_string(), "files": written}));
    Ok(())
}

fn unknown(name: &str) -> Error {
    let alike = hub::nearest(name, std::iter::empty()).join(", ");
    let alike = if alike.is_empty() { String::new() } else { format!("; did you mean {alike}?") };
    let problem = format!("expected a known public model (xcheck models lists them) or org/repo{alike}");
    ModelError::NoModel { name: name.to_owned(), problem }.into()
}

fn list(output: FormatOptions) -> Result<()> {
    let settings = HubSettings::from_env()?;
    let (shipped, public) =
        (shipped_models::MODELS.iter().map(shipped).collect::<Result<Vec<_>>>()?, public(&settings));
    shipped.iter().for_each(|model| show_shipped(model, output));
    if let Some(hint) = shipped_models::absent()?.strip_prefix("; ") {
        output.line(format_args!("{hint}\n"));
    }
    let (endpoint, cache) = (&settings.endpoint, settings.cache.display());
    output.line(format_args!("public models on {endpoint}, cache {cache}"));
    show_public(&public, output);
    output.line(HOW_TO_NAME);
    output.document(|| {
        json!({
            "shipped": shipped,
            "public": public,
            "endpoint": endpoint.to_string(),
            "cache": cache.to_string(),
        })
    });
    Ok(())
}

const HOW_TO_NAME: &str = "\
--model takes any of these names, a path (a GGUF file, or a directory with config.json and model.safetensors),
or any model of the hub: org/repo, org/repo:file.gguf, org/repo:Q8_0. --download gets it.
Dumps are found in a folder 'dumps' beside the file or in the directory, for a model of the hub in
dumps/<name> of the current directory; or they are named with --reference.";

/// A shipped model in the list.
#[derive(Serialize)]
struct ShippedModelRow {
    name: &'static str,
    description: &'static str,
    /// Location of the files: a folder, or "in the program"; `None` if they are not on this machine.
    place: Option<String>,
    formats: Vec<ShippedFormatRow>,
}

/// A format of a shipped model in the list.
#[derive(Serialize)]
struct ShippedFormatRow {
    name: String,
    first_file: String,
    bytes: usize,
    dumps: Vec<String>,
}

fn shipped(model: &ShippedModel) -> Result<ShippedModelRow> {
    let (name, description) = (model.name, model.description);
    let files = match model.files() {
        Ok(files) => files,
        Err(Error::Model(ModelError::NoModel { .. })) => {
            return Ok(ShippedModelRow { name, description, place: None, formats: Vec::new() });
        }
        Err(other) => return Err(other),
    };
    let references = model.references()?;
    let formats = model.variants()?.into_iter().map(|(name, files)| {
        let sha256 = files.sha256();
        let made = references.iter().filter(|(_, dump)| dump.manifest.model.sha256.as_ref() == Some(&sha256));
        ShippedFormatRow {
            name,
            first_file: files.weights()[0].path.display().to_string(),
            bytes: files.weights().iter().map(|file| file.data.len()).sum(),
            dumps: made.map(|(name, _)| name.clone()).collect(),
        }
    });
    let place = files.folder().map_or("inside the program".to_owned(), |folder| folder.display().to_string());
    Ok(ShippedModelRow { name, description, place: Some(place), formats: formats.collect() })
}

fn show_shipped(model: &ShippedModelRow, output: FormatOptions) {
    let place = model.place.as_deref().unwrap_or("not on this machine");
    output.line(format_args!("{}: {} ({place})", model.name, model.description));
    if model.place.is_none() {
        return;
    }
    let mut table = plain_table(&["format", "first file", "size", "dumps made from it"]);
    for ShippedFormatRow { name, first_file, bytes, dumps } in &model.formats {
        table.add_row([name.clone(), first_file.clone(), format!("{} KB", bytes / 1024), dumps.join(", ")]);
    }
    output.line(format_args!("{}\n", table.trim_fmt()));
}

/// A public model in the list.
#[derive(Serialize)]
struct PublicModelRow {
    name: String,
    architecture: String,
    /// Feature that this build lacks to run the model.
    lacks: Option<String>,
    cached: &'static str,
    gated: bool,
    gb: f64,
    repository: String,
    file: Option<String>,
}

fn public(settings: &HubSettings) -> Vec<PublicModelRow> {
    let all = KnownModel::all();
    let forms = all.iter().flat_map(|known| known.forms().map(move |(name, files)| (known, name, files)));
    let one = |(known, name, files): (&KnownModel, String, &KnownFiles)| PublicModelRow {
        architecture: known.architecture.clone(),
        lacks: obstacle(&known.architecture, files),
        cached: match CacheState::look_for(settings, &files.model(name.clone())) {
            CacheState::Whole(_) => "yes",
            CacheState::Partly(_) => "partly",
            CacheState::Not => "no",
        },
        gated: files.gated,
        gb: files.gb,
        repository: files.repo.clone(),
        file: files.file.clone(),
        name,
    };
    forms.map(one).collect()
}

fn show_public(models: &[PublicModelRow], output: FormatOptions) {
    let mut table =
        plain_table(&["name", "architecture", "runs", "cached", "gated", "size", "repository and file"]);
    for model in models {
        let runs = model.lacks.as_ref().map_or("yes".to_owned(), |what| format!("no: {what}"));
        let gated = if model.gated { "yes" } else { "no" };
        let file = model.file.as_ref().map_or(String::new(), |file| format!(" {file}"));
        let (place, size) = (format!("{}{file}", model.repository), format!("{} GB", model.gb));
        let (name, architecture) = (model.name.clone(), model.architecture.clone());
        table.add_row([name, architecture, runs, model.cached.into(), gated.into(), size, place]);
    }
    if let Some(sizes) = table.column_mut(5) {
        sizes.set_cell_alignment(CellAlignment::Right);
    }
    output.line(format_args!("{}\n", table.trim_fmt()));
}

/// Returns the feature that this build lacks to run a model.
fn obstacle(architecture: &str, files: &KnownFiles) -> Option<String> {
    if !model::architectures().any(|known| known == architecture) {
        return Some(architecture.to_owned());
    }
    match (&files.file, files.quantisation()) {
        (None, _) => None,
        (Some(_), Some(tag)) => {
            // Q4_K_M is a mix of types, mostly Q4_K.
            let tag_name = tag.to_lowercase();
            let main = tag_name.trim_end_matches("_m").trim_end_matches("_s");
            (!READABLE.iter().any(|dtype| [main, &tag_name].contains(&dtype.name()))).then(|| tag.to_owned())
        }
        // A file in llama2.c's format.
        (Some(file), None) if file.ends_with(".bin") => None,
        (Some(file), None) => Some(file.rsplit('.').next().unwrap_or(file).to_owned()),
    }
}
