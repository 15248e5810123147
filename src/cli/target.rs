//! From names and paths to model files and reference dumps.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::output::plain_name;
use crate::cli::progress::Transfer;
use crate::dump::Dump;
use crate::error::{Error, Result};
use crate::format::Source;
use crate::hub::{self, HubModel, Located, Settings};
use crate::model::ModelFiles;
use crate::report::ModelRecord;
use crate::shipped::{self, ShippedModel};

/// The folder beside a model where its dumps are looked for.
const DUMPS: &str = "dumps";

/// A model in one of its formats.
pub struct Variant {
    /// A name of its own.
    pub name: String,
    /// Its files.
    pub files: ModelFiles,
    /// SHA-256 of its weights.
    pub sha256: String,
}

/// A dump to compare with.
pub struct Reference {
    /// The name in tables.
    pub name: String,
    /// What names it on the command line.
    pub typed: String,
    /// The dump.
    pub dump: Dump,
}

/// A model as it was asked for: by a shipped name in all its formats, by a path or a name of the hub in one.
pub struct Target {
    /// What it was asked for by.
    pub name: String,
    /// Its formats, the original first.
    pub variants: Vec<Variant>,
    home: Home,
}

enum Home {
    Shipped(&'static ShippedModel),
    Path(PathBuf),
    Hub(String),
}

impl Target {
    /// Finds a model by shipped name, by the name of one of its formats, by path, or by a name of the hub: in
    /// the cache, and on the hub what the cache lacks if that may be downloaded.
    ///
    /// # Errors
    /// If there is none, or its files cannot be opened.
    pub fn find(name: &str, may_download: bool) -> Result<Self> {
        for shipped in shipped::MODELS {
            let mut variants = shipped.variants();
            if shipped.name != name {
                variants.retain(|(variant, _)| variant == name);
            }
            if !variants.is_empty() {
                let variants = variants.into_iter().map(Variant::new).collect();
                return Ok(Self { name: name.to_owned(), variants, home: Home::Shipped(shipped) });
            }
        }
        let path = Path::new(name);
        if path.exists() {
            return Self::at(path);
        }
        let model = HubModel::named(name)
            .ok_or_else(|| Error::NoModel { name: name.to_owned(), problem: what_there_is(name) })?;
        let variant = Variant::of_the_hub(name, &on_this_machine(&model, may_download)?)?;
        Ok(Self { name: name.to_owned(), variants: vec![variant], home: Home::Hub(plain_name(name)) })
    }

    fn at(path: &Path) -> Result<Self> {
        // A directory's name may hold a dot (Qwen3-1.7B) that begins no extension.
        let last = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let plain = last.unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let variants = vec![Variant::new((plain.clone(), ModelFiles::open(path)?))];
        Ok(Self { name: plain, variants, home: Home::Path(path.to_owned()) })
    }

    /// The references to compare with: those asked for, else every one found for this model.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn references(&self, asked: &[String]) -> Result<Vec<Reference>> {
        if asked.is_empty() {
            let found = self.found()?.into_iter().map(Place::open).collect::<Result<Vec<_>>>()?;
            return Ok(found.into_iter().filter(|reference| self.made_from_this(reference)).collect());
        }
        asked.iter().map(|name| self.reference(name)).collect()
    }

    /// The format that a reference was made from.
    ///
    /// # Errors
    /// If that cannot be told.
    pub fn variant_for(&self, reference: &Reference) -> Result<&Variant> {
        let sha256 = reference.dump.manifest.model.sha256.as_ref();
        let made_from = self.variants.iter().find(|variant| Some(&variant.sha256) == sha256);
        match (made_from, self.variants.as_slice()) {
            (Some(variant), _) | (None, [variant]) => Ok(variant),
            (None, several) => {
                let names: Vec<_> = several.iter().map(|variant| variant.name.as_str()).collect();
                Err(Error::Usage(format!(
                    "{}: its manifest does not tell which format of {} it was made from; name one with --model: {}",
                    reference.dump.path.display(),
                    self.name,
                    names.join(", ")
                )))
            }
        }
    }

    /// Where a dump made for this model would be found.
    pub fn dumps_folder(&self) -> PathBuf {
        match &self.home {
            Home::Shipped(model) => Path::new(model.name).join(DUMPS),
            Home::Path(path) if path.is_dir() => path.join(DUMPS),
            Home::Path(path) => path.with_file_name(DUMPS),
            // The cache is shared with other programs: nothing of ours belongs there.
            Home::Hub(name) => Path::new(DUMPS).join(name),
        }
    }

    /// A reference by the name that tables give it, or by path.
    fn reference(&self, typed: &str) -> Result<Reference> {
        let found = self.found()?;
        let names: Vec<String> = found.iter().map(Place::name).collect();
        if let Some(named) = found.into_iter().find(|place| place.name() == typed) {
            return named.open();
        }
        if Path::new(typed).exists() {
            return Place::Path(typed.into()).open();
        }
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(Error::Usage(format!(
            "no reference '{typed}': no such file, and those of {} are: {known}",
            self.name
        )))
    }

    /// Where every dump is that ships with the model, or that lies in the folder beside it.
    fn found(&self) -> Result<Vec<Place>> {
        if let Home::Shipped(model) = &self.home {
            return Ok(model
                .dumps()
                .into_iter()
                .map(|(name, source)| Place::Shipped(name, source))
                .collect());
        }
        let folder = self.dumps_folder();
        if !folder.is_dir() {
            return Ok(Vec::new());
        }
        let entries = fs::read_dir(&folder).map_err(Error::io("list", &folder))?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(Error::io("list", &folder)));
        let mut paths = paths.collect::<Result<Vec<_>>>()?;
        paths.retain(|path| may_be_a_dump(path));
        paths.sort();
        Ok(paths.into_iter().map(Place::Path).collect())
    }

    /// Whether a reference that was merely found was made from one of the variants, as far as it says.
    fn made_from_this(&self, reference: &Reference) -> bool {
        let sha256 = reference.dump.manifest.model.sha256.as_ref();
        sha256.is_none_or(|sha256| self.variants.iter().any(|variant| variant.sha256 == *sha256))
    }
}

impl Variant {
    fn new((name, files): (String, ModelFiles)) -> Self {
        Self { name, sha256: files.sha256(), files }
    }

    /// Large weights are not hashed a second time.
    fn of_the_hub(name: &str, located: &Located) -> Result<Self> {
        let files = ModelFiles::open(&located.path)?;
        let known = match files.weights() {
            [only] => located.sha256(&only.path).map(str::to_owned),
            _ => None,
        };
        Ok(Self { name: name.to_owned(), sha256: known.unwrap_or_else(|| files.sha256()), files })
    }
}

/// A model of the hub, downloaded where that is allowed and needed.
fn on_this_machine(model: &HubModel, may_download: bool) -> Result<Located> {
    let settings = Settings::from_env();
    match hub::locate(&settings, model) {
        Err(Error::NotCached { .. } | Error::Damaged { .. }) if may_download => {
            hub::download(&settings, model, &mut Transfer::new())
        }
        found => found,
    }
}

/// Where a dump is.
enum Place {
    Shipped(String, Source),
    Path(PathBuf),
}

impl Place {
    /// The name in tables.
    fn name(&self) -> String {
        match self {
            Place::Shipped(name, _) => name.clone(),
            Place::Path(path) => dump_name(path),
        }
    }

    fn open(self) -> Result<Reference> {
        let name = self.name();
        match self {
            Place::Shipped(typed, source) => Ok(Reference { name, typed, dump: Dump::from_source(source)? }),
            Place::Path(path) => {
                Ok(Reference { name, typed: path.display().to_string(), dump: Dump::open(&path)? })
            }
        }
    }
}

/// What lies in a folder of dumps and is none, notes or hidden files, is nobody's mistake.
fn may_be_a_dump(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    path.join("manifest.json").is_file() || matches!(extension, Some("safetensors" | "npz"))
}

/// The last part of a dump's path, without what tells its container.
pub fn dump_name(path: &Path) -> String {
    let name = path.file_name().map_or(path.as_os_str(), |name| name).to_string_lossy();
    let name = name.strip_suffix(".safetensors").or_else(|| name.strip_suffix(".npz")).unwrap_or(&name);
    name.to_owned()
}

/// The record of a model for a report.
pub fn record(target: &str, variant: &Variant, model: &crate::model::LoadedModel) -> ModelRecord {
    ModelRecord {
        name: target.to_owned(),
        architecture: model.model.architecture().to_owned(),
        format: model.format.to_owned(),
        quantisation: model.precision.name().to_owned(),
        sha256: Some(variant.sha256.clone()),
    }
}

fn what_there_is(name: &str) -> String {
    let names: Vec<_> = shipped::MODELS.iter().map(|model| model.name).collect();
    let nearest = hub::nearest(name);
    let hint = match nearest.as_slice() {
        [] => String::new(),
        alike => format!("did you mean {}? ", alike.join(", ")),
    };
    format!(
        "no such file or directory, no public model of that name ({hint}xcheck models lists them), and the models that \
         ship are: {}",
        names.join(", ")
    )
}
