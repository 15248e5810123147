//! Model files and reference dumps of a model, found by its name, path or URL.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::fingerprint::Fingerprint;
use crate::cli::named_dump::NamedDump;
use crate::cli::names::{model_name, plain_name};
use crate::cli::progress::DownloadProgress;
use crate::cli::remote_files::remote;
use crate::cli::terminal::tell;
use crate::disk_cache::DiskCache;
use crate::error::{Error, HubError, ModelError, Result};
use crate::format::Disk;
use crate::hub::{self, HubModel, HubSettings, VerifiedModel};
use crate::model::{AdapterFiles, LoadedModel, ModelFiles};
use crate::remote::Url;
use crate::report::ModelRecord;
use crate::shipped_models::{self, ShippedModel};
use crate::tokenizer::Tokenizer;

/// Folder next to a model with its dumps.
const DUMPS: &str = "dumps";

/// A model in one of its formats.
pub(crate) struct ModelVariant {
    /// Unique name of the variant.
    pub(crate) name: String,
    pub(crate) files: ModelFiles,
    /// SHA-256 of the weights, on demand; `None` for remote files.
    fingerprint: Option<Fingerprint>,
}

/// A model as given on the command line: a shipped name with all its formats, or a path, hub name or URL with one
/// format.
pub(crate) struct RequestedModel {
    /// Argument that selected the model.
    pub(crate) typed: String,
    /// Name: the last part of a path.
    pub(crate) name: String,
    /// Formats of the model, the original first.
    pub(crate) variants: Vec<ModelVariant>,
    home: ModelLocation,
    /// Folder of an adapter given with `--adapter`.
    adapter: Option<PathBuf>,
    /// Tokenizer, loaded on first use.
    tokenizer: OnceCell<Arc<dyn Tokenizer>>,
}

/// Location of a model's files.
enum ModelLocation {
    Shipped(&'static ShippedModel),
    Path(PathBuf),
    Hub(String),
    Elsewhere(String),
}

impl RequestedModel {
    /// Finds a model by path, by shipped name, by the name of a shipped format, or by hub name. A hub model
    /// is read from the cache; missing files are downloaded if that is allowed.
    ///
    /// # Errors
    /// If the model does not exist, or its files cannot be opened.
    pub(crate) fn find(name: &str, may_download: bool) -> Result<Self> {
        if let Some(url) = Url::of(name)? {
            return Self::elsewhere(&url);
        }
        let path = Path::new(name);
        match (Self::shipped(name).transpose(), path.exists()) {
            (None, true) => Self::at(path),
            (Some(shipped), false) => shipped,
            // A folder with a shipped model's name is ignored if it contains no model.
            (Some(shipped), true) => match Self::at(path) {
                Ok(own) => {
                    tell!("note: using the local {name}, not the shipped model of that name");
                    Ok(own)
                }
                Err(_) => shipped,
            },
            (None, false) => Self::of_the_hub(name, may_download),
        }
    }

    /// Merges the adapter of a folder into each of the model's Hugging Face directories; other formats are dropped.
    ///
    /// # Errors
    /// If there is no adapter in the folder, or the model has no Hugging Face directory.
    pub(crate) fn with_adapter(mut self, folder: &Path) -> Result<Self> {
        let adapter = AdapterFiles::open(&Disk, folder)?;
        let has_directory = self.variants.iter().any(|variant| is_directory(&variant.files));
        self.variants.retain(|variant| !has_directory || is_directory(&variant.files));
        for variant in &mut self.variants {
            variant.files = variant.files.clone().with_adapter(adapter.clone())?;
        }
        self.adapter = Some(folder.to_owned());
        Ok(self)
    }

    /// Returns the arguments that select the model again.
    pub(crate) fn words(&self) -> Vec<String> {
        let adapter =
            self.adapter.iter().map(|folder| ["--adapter".to_owned(), folder.display().to_string()]);
        ["--model".to_owned(), self.typed.clone()].into_iter().chain(adapter.flatten()).collect()
    }

    /// Returns an error if an adapter is merged into the model. Used where another program loads the model.
    ///
    /// # Errors
    /// Names the model and the use.
    pub(crate) fn refuse_adapter(&self, place: &str) -> Result<()> {
        match self.variants.iter().any(|variant| has_adapter(&variant.files)) {
            false => Ok(()),
            true => Err(Error::Usage(format!(
                "{}: the model has a LoRA adapter, which {place} does not support; merge it with peft's merge_and_unload \
                 and use that model",
                self.typed
            ))),
        }
    }

    /// Returns the first tokenizer among the model's files, if there is one.
    ///
    /// # Errors
    /// If the tokenizer is invalid.
    pub(crate) fn tokenizer(&self) -> Result<Option<Arc<dyn Tokenizer>>> {
        if let Some(known) = self.tokenizer.get() {
            return Ok(Some(known.clone()));
        }
        let found = self.variants.iter().find_map(|variant| variant.files.tokenizer().transpose());
        Ok(found.transpose()?.map(|found| self.tokenizer.get_or_init(|| found.into()).clone()))
    }

    fn new(typed: String, name: String, variants: Vec<ModelVariant>, home: ModelLocation) -> Self {
        Self { typed, name, variants, home, adapter: None, tokenizer: OnceCell::new() }
    }

    fn shipped(name: &str) -> Result<Option<Self>> {
        let Some(shipped) = shipped_models::home(name)? else { return Ok(None) };
        let mut variants = shipped.variants()?;
        if shipped.name != name {
            variants.retain(|(variant, _)| variant == name);
        }
        let variants = variants.into_iter().map(ModelVariant::shipped).collect();
        Ok(Some(Self::new(name.to_owned(), name.to_owned(), variants, ModelLocation::Shipped(shipped))))
    }

    fn of_the_hub(name: &str, may_download: bool) -> Result<Self> {
        let Some(model) = hub::named(name) else {
            return Err(ModelError::NoModel { name: name.to_owned(), problem: what_there_is(name)? }.into());
        };
        let settings = HubSettings::from_env()?;
        let located = on_this_machine(&settings, &model, may_download)?;
        let variant = ModelVariant::of_the_hub(name, &located, settings.kept)?;
        let home = ModelLocation::Hub(plain_name(name));
        Ok(Self::new(name.to_owned(), name.to_owned(), vec![variant], home))
    }

    fn elsewhere(url: &Url) -> Result<Self> {
        let files = ModelFiles::open_in(&remote(url)?, Path::new(url.shown()))?;
        let name = model_name(url.shown()).to_owned();
        let home = ModelLocation::Elsewhere(plain_name(&name));
        let variants = vec![ModelVariant { name: name.clone(), fingerprint: None, files }];
        Ok(Self::new(url.shown().to_owned(), name, variants, home))
    }

    fn at(path: &Path) -> Result<Self> {
        // A dot in a folder name, such as Qwen3-1.7B, does not start an extension.
        let last = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let plain = last.unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let variants =
            vec![ModelVariant::of_files(plain.clone(), ModelFiles::open(path)?, DiskCache::from_env()?)?];
        Ok(Self::new(path.display().to_string(), plain, variants, ModelLocation::Path(path.to_owned())))
    }

    /// Returns the format from which a dump was made, if the dump states it. Otherwise returns a format with the dump's
    /// weight type, or the original format. With a single format, no file is hashed.
    ///
    /// # Errors
    /// If the weights cannot be hashed.
    pub(crate) fn variant_for(&self, named: &NamedDump) -> Result<&ModelVariant> {
        if let [only] = self.variants.as_slice() {
            return Ok(only);
        }
        let manifest = &named.dump.manifest;
        if let Some(made_from) = self.made_from(named)? {
            return Ok(made_from);
        }
        let weights = manifest.producer.setting("weights").unwrap_or("original");
        let suffix = format!("-{}", weights.to_ascii_lowercase());
        let alike = self.variants.iter().find(|variant| variant.name.ends_with(&suffix));
        Ok(alike.unwrap_or(&self.variants[0]))
    }

    /// Returns a note on a dump and the weights used for it.
    ///
    /// # Errors
    /// If the weights cannot be hashed.
    pub(crate) fn origin(&self, named: &NamedDump, variant: &ModelVariant) -> Result<Option<String>> {
        let Some(stated) = &named.dump.manifest.model.sha256 else {
            let several = self.variants.len() > 1;
            let taken = &variant.name;
            return Ok(several
                .then(|| format!("the dump does not state the file it was made from; {taken} is used")));
        };
        let Some(found) = variant.sha256()? else {
            let stated = stated.get(..12).unwrap_or(stated);
            return Ok(Some(format!(
                "the dump states weights with SHA-256 {stated}…, which could not be \
                checked"
            )));
        };
        Ok((found != *stated).then(|| {
            format!(
                "the dump was made from other weights than {}: it states SHA-256 {}…, the file has {}…",
                variant.name,
                stated.get(..12).unwrap_or(stated),
                &found[..12]
            )
        }))
    }

    /// Returns the default folder of the model's dumps.
    pub(crate) fn dumps_folder(&self) -> PathBuf {
        match &self.home {
            ModelLocation::Shipped(model) => Path::new(DUMPS).join(model.name),
            ModelLocation::Path(path) if path.is_dir() => path.join(DUMPS),
            ModelLocation::Path(path) => path.with_file_name(DUMPS),
            // The hub's cache is shared with other programs, so nothing is written there.
            ModelLocation::Hub(name) | ModelLocation::Elsewhere(name) => Path::new(DUMPS).join(name),
        }
    }

    /// Returns the shipped model with this name, if it exists.
    pub(crate) fn shipped_model(&self) -> Option<&'static ShippedModel> {
        match self.home {
            ModelLocation::Shipped(model) => Some(model),
            _ => None,
        }
    }

    /// Returns true if the model's files are remote.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.home, ModelLocation::Elsewhere(_))
    }

    /// Returns true if the model is a file in a folder with other files that may be other models.
    pub(crate) fn is_one_of_several(&self) -> bool {
        matches!(&self.home, ModelLocation::Path(path) if !path.is_dir())
    }

    /// Returns the format that a dump states, if it exists.
    pub(super) fn made_from(&self, named: &NamedDump) -> Result<Option<&ModelVariant>> {
        let Some(stated) = &named.dump.manifest.model.sha256 else { return Ok(None) };
        for variant in &self.variants {
            if variant.sha256()?.as_ref() == Some(stated) {
                return Ok(Some(variant));
            }
        }
        Ok(None)
    }
}

impl ModelVariant {
    fn shipped((name, files): (String, ModelFiles)) -> Self {
        Self { name, fingerprint: Some(Fingerprint::of_bytes(&files)), files }
    }

    fn of_files(name: String, files: ModelFiles, kept: DiskCache) -> Result<Self> {
        Ok(Self { name, fingerprint: Some(Fingerprint::of_files(&files, kept)?), files })
    }

    /// Makes a model from verified hub files, whose known hashes are reused.
    fn of_the_hub(name: &str, located: &VerifiedModel, kept: DiskCache) -> Result<Self> {
        let files = ModelFiles::open(&located.path)?;
        let known = match files.weights() {
            [only] => located.sha256(&only.path).map(str::to_owned),
            _ => None,
        };
        match known {
            Some(sha256) => {
                Ok(Self { name: name.to_owned(), fingerprint: Some(Fingerprint::known(sha256)), files })
            }
            None => Self::of_files(name.to_owned(), files, kept),
        }
    }

    /// Starts to hash the weights in parallel.
    pub(crate) fn begin_hash(&self) {
        self.fingerprint.iter().for_each(Fingerprint::begin);
    }

    /// Returns the SHA-256 of the weights; `None` if they are remote.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) fn sha256(&self) -> Result<Option<String>> {
        self.fingerprint.as_ref().map(Fingerprint::sha256).transpose()
    }

    /// Returns the versions of remote weight files, such as `ETag`s; empty for local files.
    pub(crate) fn pins(&self) -> Vec<&str> {
        self.files.weights().iter().filter_map(|file| file.data.pin()).collect()
    }

    /// Returns a note on remote weights.
    ///
    /// # Errors
    /// If an index file can no longer be read.
    pub(crate) fn elsewhere(&self) -> Result<Option<String>> {
        let weights = self.files.weights();
        let pins = self.pins();
        let ([first, ..], [pin, ..]) = (weights, pins.as_slice()) else { return Ok(None) };
        let hashes = match self.files.tensor_hashes()? {
            0 => String::new(),
            tensors => format!("; {tensors} tensors are checked by SHA-256"),
        };
        let more = match weights.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Ok(Some(format!(
            "the weights were read in parts from {}{more} ({pin}{hashes}): only the needed parts were read, \
             so the SHA-256 of the whole is unknown",
            first.path.display()
        )))
    }
}

fn has_adapter(files: &ModelFiles) -> bool {
    matches!(files, ModelFiles::HuggingFace { adapter: Some(_), .. })
}

fn is_directory(files: &ModelFiles) -> bool {
    matches!(files, ModelFiles::HuggingFace { .. })
}

/// Returns a hub model; missing files are downloaded if that is allowed.
fn on_this_machine(settings: &HubSettings, model: &HubModel, may_download: bool) -> Result<VerifiedModel> {
    match hub::locate(settings, model) {
        Err(Error::Hub(HubError::NotCached { .. } | HubError::Damaged { .. })) if may_download => {
            hub::download(settings, model, &mut DownloadProgress::new())
        }
        found => found,
    }
}

/// Returns the record of a model for a report.
///
/// # Errors
/// If its weights cannot be hashed.
pub(crate) fn record(target: &str, variant: &ModelVariant, model: &LoadedModel) -> Result<ModelRecord> {
    Ok(ModelRecord {
        name: target.to_owned(),
        architecture: model.model.architecture().to_owned(),
        format: model.format.to_owned(),
        quantisation: model.precision.name().to_owned(),
        sha256: variant.sha256()?,
    })
}

fn what_there_is(name: &str) -> Result<String> {
    let names: Vec<_> = shipped_models::MODELS.iter().map(|model| model.name).collect();
    let nearest = hub::nearest(name, names.iter().copied());
    let hint = match nearest.as_slice() {
        [] => String::new(),
        alike => format!("did you mean {}? ", alike.join(", ")),
    };
    Ok(format!(
        "no such file or directory, and no public model of that name ({hint}xcheck models lists them); the \
         shipped models are: {}{}",
        names.join(", "),
        shipped_models::absent()?
    ))
}

/// Returns the model's tokenizer, or the reason why there is none; then texts are not compared.
#[cfg(feature = "hub")]
pub(super) fn own_tokenizer(target: Option<&RequestedModel>) -> (Option<Arc<dyn Tokenizer>>, String) {
    match target.map(RequestedModel::tokenizer) {
        None => (None, "no model is given, so there is no tokenizer; use --model".to_owned()),
        Some(Ok(None)) => (None, "the model has no tokenizer".to_owned()),
        Some(Ok(own)) => (own, String::new()),
        Some(Err(error)) => (None, error.to_string()),
    }
}
