//! From names and paths to model files and reference dumps.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::elsewhere::{dump_behind, remote};
use crate::cli::fingerprint::Fingerprint;
use crate::cli::foreign::Foreign;
use crate::cli::named::told_apart;
use crate::cli::output::{model_name, plain_name};
use crate::cli::progress::Transfer;
use crate::cli::sequence::{asked_for, parts_of};
use crate::cli::terminal::tell;
use crate::dump::Dump;
use crate::error::{Error, Result};
use crate::format::Source;
use crate::hub::{self, HubModel, Located, Settings};
use crate::kept::Kept;
use crate::model::ModelFiles;
use crate::remote::{self, Url};
use crate::report::ModelRecord;
use crate::shipped::{self, ShippedModel};
use crate::tokenizer::Tokenizer;

/// What is to be said of a file of llama-perplexity.
const OF_CHUNKS: &str = "a file of llama-perplexity: log-probabilities behind the second half of each chunk, to 16 bits, of the 1024 \
                         likeliest tokens at most; it does not say how it was computed: as llama.cpp does with a cache in f16, unless \
                         --numerics and --kv-cache say otherwise";
/// The folder beside a model where its dumps are looked for.
const DUMPS: &str = "dumps";

/// A model in one of its formats.
pub struct Variant {
    /// A name of its own.
    pub name: String,
    /// Its files.
    pub files: ModelFiles,
    /// SHA-256 of its weights, for those who ask; of files elsewhere nobody knows it.
    fingerprint: Option<Fingerprint>,
}

/// A dump, as it was asked for.
pub struct NamedDump {
    /// The name in tables.
    pub name: String,
    /// What names it on the command line.
    pub typed: String,
    /// What names it where no model is named: dumps of several models ship under one name.
    pub alone: String,
    /// The dump.
    pub dump: Dump,
    /// What is to be said of how it was read, if it is not on this machine, or is no dump by itself.
    pub notes: Vec<String>,
    /// The arguments by which it is read, if it is no dump by itself.
    pub words: Vec<String>,
}

/// A model as it was asked for: by a shipped name in all its formats, by a path or a name of the hub in one.
pub struct Target {
    /// What it was asked for by.
    pub typed: String,
    /// Its name: the last part of a path.
    pub name: String,
    /// Its formats, the original first.
    pub variants: Vec<Variant>,
    home: Home,
    /// What makes text of tokens, once that was asked.
    tokenizer: OnceCell<Arc<dyn Tokenizer>>,
}

enum Home {
    Shipped(&'static ShippedModel),
    Path(PathBuf),
    Hub(String),
    Elsewhere(String),
}

impl Target {
    /// Finds a model by path, by shipped name, by the name of one of its formats, or by a name of the hub: in
    /// the cache, and on the hub what the cache lacks if that may be downloaded.
    ///
    /// # Errors
    /// If there is none, or its files cannot be opened.
    pub fn find(name: &str, may_download: bool) -> Result<Self> {
        if let Some(url) = Url::of(name)? {
            return Self::elsewhere(&url);
        }
        let path = Path::new(name);
        match (Self::shipped(name).transpose(), path.exists()) {
            (None, true) => Self::at(path),
            (Some(shipped), false) => shipped,
            // A folder of that name that holds no model is no reason to doubt what was meant.
            (Some(shipped), true) => match Self::at(path) {
                Ok(own) => {
                    tell!("note: {name} here was taken, not the model of that name that ships");
                    Ok(own)
                }
                Err(_) => shipped,
            },
            (None, false) => Self::of_the_hub(name, may_download),
        }
    }

    /// The first tokenizer among the model's files, if there is one.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn tokenizer(&self) -> Result<Option<Arc<dyn Tokenizer>>> {
        if let Some(known) = self.tokenizer.get() {
            return Ok(Some(known.clone()));
        }
        let found = self.variants.iter().find_map(|variant| variant.files.tokenizer().transpose());
        Ok(found.transpose()?.map(|found| self.tokenizer.get_or_init(|| found.into()).clone()))
    }

    fn shipped(name: &str) -> Result<Option<Self>> {
        let Some(shipped) = shipped::home(name)? else { return Ok(None) };
        let mut variants = shipped.variants()?;
        if shipped.name != name {
            variants.retain(|(variant, _)| variant == name);
        }
        let variants: Vec<Variant> = variants.into_iter().map(Variant::shipped).collect();
        Ok(Some(Self {
            typed: name.to_owned(),
            name: name.to_owned(),
            variants,
            home: Home::Shipped(shipped),
            tokenizer: OnceCell::new(),
        }))
    }

    fn of_the_hub(name: &str, may_download: bool) -> Result<Self> {
        let Some(model) = HubModel::named(name) else {
            return Err(Error::NoModel { name: name.to_owned(), problem: what_there_is(name)? });
        };
        let settings = Settings::from_env()?;
        let located = on_this_machine(&settings, &model, may_download)?;
        let variant = Variant::of_the_hub(name, &located, settings.kept)?;
        let home = Home::Hub(plain_name(name));
        Ok(Self {
            typed: name.to_owned(),
            name: name.to_owned(),
            variants: vec![variant],
            home,
            tokenizer: OnceCell::new(),
        })
    }

    fn elsewhere(url: &Url) -> Result<Self> {
        let files = ModelFiles::open_in(&remote(url)?, Path::new(url.shown()))?;
        let name = model_name(url.shown()).to_owned();
        let home = Home::Elsewhere(plain_name(&name));
        let variants = vec![Variant { name: name.clone(), fingerprint: None, files }];
        Ok(Self { typed: url.shown().to_owned(), name, variants, home, tokenizer: OnceCell::new() })
    }

    fn at(path: &Path) -> Result<Self> {
        // A directory's name may hold a dot (Qwen3-1.7B) that begins no extension.
        let last = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let plain = last.unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let variants = vec![Variant::of_files(plain.clone(), ModelFiles::open(path)?, Kept::from_env()?)?];
        let typed = path.display().to_string();
        Ok(Self {
            typed,
            name: plain,
            variants,
            home: Home::Path(path.to_owned()),
            tokenizer: OnceCell::new(),
        })
    }

    /// The references to compare with: those asked for, else every one found for this model; and what is to be said of
    /// those that were found and are of other files.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn references(
        &self,
        asked: &[String],
        foreign: &Foreign,
    ) -> Result<(Vec<NamedDump>, Option<String>)> {
        if !asked.is_empty() {
            let dumps =
                asked.iter().map(|typed| only_asked_for(typed, self.reference(parts_of(typed).0, foreign)?));
            let dumps: Vec<_> = dumps.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
            foreign.check_used(&dumps)?;
            return Ok((told_apart(dumps), None));
        }
        let (mut own, mut others) = (Vec::new(), Vec::new());
        let found = self.found()?.into_iter().map(Place::open).collect::<Result<Vec<_>>>()?;
        for dump in found.into_iter().flatten() {
            let is_silent = dump.dump.manifest.model.sha256.is_none();
            let is_own = is_silent || self.made_from(&dump)?.is_some();
            let side = if is_own { &mut own } else { &mut others };
            side.push(dump);
        }
        Ok((told_apart(own), self.left_out(&others)))
    }

    /// Of the dumps that ship with a model, those of its other formats are nothing to speak of.
    fn left_out(&self, others: &[NamedDump]) -> Option<String> {
        let names: Vec<_> = others.iter().map(|other| other.name.as_str()).collect();
        let is_worth_it = !names.is_empty() && !matches!(self.home, Home::Shipped(_));
        is_worth_it.then(|| {
            format!(
                "note: left out, being made from other weights than {} by their SHA-256: {}; --reference NAME compares one \
                 nevertheless",
                self.name,
                names.join(", ")
            )
        })
    }

    /// The format that a dump was made from, as far as it says; else one of its type of weights, else the original. Of a
    /// model in one format nothing is hashed.
    ///
    /// # Errors
    /// If the weights cannot be hashed.
    pub fn variant_for(&self, named: &NamedDump) -> Result<&Variant> {
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

    /// What is to be said of a dump and the weights that were taken for it.
    ///
    /// # Errors
    /// If the weights cannot be hashed.
    pub fn origin(&self, named: &NamedDump, variant: &Variant) -> Result<Option<String>> {
        let Some(stated) = &named.dump.manifest.model.sha256 else {
            let several = self.variants.len() > 1;
            let taken = &variant.name;
            return Ok(several
                .then(|| format!("the dump does not say from which file it was made; {taken} was taken")));
        };
        let Some(found) = variant.sha256()? else {
            let stated = stated.get(..12).unwrap_or(stated);
            return Ok(Some(format!("that the dump was made from SHA-256 {stated}… could not be checked")));
        };
        Ok((found != *stated).then(|| {
            format!(
                "the dump was made from other weights than {}: it says SHA-256 {}…, the file has {}…",
                variant.name,
                stated.get(..12).unwrap_or(stated),
                &found[..12]
            )
        }))
    }

    /// Where a dump made for this model would be found.
    pub fn dumps_folder(&self) -> PathBuf {
        match &self.home {
            Home::Shipped(model) => Path::new(DUMPS).join(model.name),
            Home::Path(path) if path.is_dir() => path.join(DUMPS),
            Home::Path(path) => path.with_file_name(DUMPS),
            // The cache is shared with other programs: nothing of ours belongs there.
            Home::Hub(name) | Home::Elsewhere(name) => Path::new(DUMPS).join(name),
        }
    }

    /// The model that ships by that name, if it is one.
    pub fn shipped_model(&self) -> Option<&'static ShippedModel> {
        match self.home {
            Home::Shipped(model) => Some(model),
            _ => None,
        }
    }

    /// Whether its files are not on this machine.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.home, Home::Elsewhere(_))
    }

    /// Whether it is a file, with others beside it that may be other models.
    pub fn is_one_of_several(&self) -> bool {
        matches!(&self.home, Home::Path(path) if !path.is_dir())
    }

    /// A reference by the name that tables give it, or by path.
    fn reference(&self, typed: &str, foreign: &Foreign) -> Result<Vec<NamedDump>> {
        let found = self.found()?;
        let names: Vec<String> = found.iter().map(Place::name).collect();
        if let Some(named) = found.into_iter().find(|place| place.name() == typed) {
            return named.open();
        }
        if Path::new(typed).exists() {
            return opened(typed, foreign);
        }
        if let Some(url) = Url::of(typed)? {
            return Place::Elsewhere(url).open();
        }
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(Error::Usage(format!(
            "no reference '{typed}': no such file, and those of {} are: {known}",
            self.name
        )))
    }

    /// Where every dump is that ships with the model, or that lies in the folder for its dumps.
    fn found(&self) -> Result<Vec<Place>> {
        let mut found = Vec::new();
        if let Some(model) = self.shipped_model() {
            let dumps = model.dumps()?.into_iter();
            found.extend(dumps.map(|(name, source)| Place::Shipped(model.name, name, source)));
        }
        found.extend(self.beside()?);
        Ok(found)
    }

    fn beside(&self) -> Result<Vec<Place>> {
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

    /// The format that a dump says it was made from, if there is one.
    fn made_from(&self, named: &NamedDump) -> Result<Option<&Variant>> {
        let Some(stated) = &named.dump.manifest.model.sha256 else { return Ok(None) };
        for variant in &self.variants {
            if variant.sha256()?.as_ref() == Some(stated) {
                return Ok(Some(variant));
            }
        }
        Ok(None)
    }
}

impl Variant {
    fn shipped((name, files): (String, ModelFiles)) -> Self {
        Self { name, fingerprint: Some(Fingerprint::of_bytes(&files)), files }
    }

    fn of_files(name: String, files: ModelFiles, kept: Kept) -> Result<Self> {
        Ok(Self { name, fingerprint: Some(Fingerprint::of_files(&files, kept)?), files })
    }

    /// Large weights are not hashed a second time.
    fn of_the_hub(name: &str, located: &Located, kept: Kept) -> Result<Self> {
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
}

impl Variant {
    /// Begins to hash the weights beside what comes next.
    pub fn begin_hash(&self) {
        self.fingerprint.iter().for_each(Fingerprint::begin);
    }

    /// SHA-256 of the weights; `None` where they are elsewhere, and nobody has read them all.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn sha256(&self) -> Result<Option<String>> {
        self.fingerprint.as_ref().map(Fingerprint::sha256).transpose()
    }

    /// By what weights that are elsewhere are known, file by file; nothing for those that are here.
    pub fn pins(&self) -> Vec<&str> {
        self.files.weights().iter().filter_map(|file| file.data.pin()).collect()
    }

    /// What is to be said of weights that are elsewhere.
    ///
    /// # Errors
    /// If an index cannot be read any more.
    pub fn elsewhere(&self) -> Result<Option<String>> {
        let weights = self.files.weights();
        let pins = self.pins();
        let ([first, ..], [pin, ..]) = (weights, pins.as_slice()) else { return Ok(None) };
        let hashes = match self.files.tensor_hashes()? {
            0 => String::new(),
            tensors => format!("; {tensors} tensors are held against their own SHA-256"),
        };
        let more = match weights.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Ok(Some(format!(
            "the weights were read in parts from {}{more} ({pin}{hashes}): what was not needed was not read, and SHA-256 \
             of the whole is not known",
            first.path.display()
        )))
    }
}

/// A model of the hub, downloaded where that is allowed and needed.
fn on_this_machine(settings: &Settings, model: &HubModel, may_download: bool) -> Result<Located> {
    match hub::locate(settings, model) {
        Err(Error::NotCached { .. } | Error::Damaged { .. }) if may_download => {
            hub::download(settings, model, &mut Transfer::new())
        }
        found => found,
    }
}

/// Where a dump is.
enum Place {
    /// Of a model, by a name that is its own among those of the model.
    Shipped(&'static str, String, Source),
    Path(PathBuf),
    Elsewhere(Url),
}

impl Place {
    /// The name in tables.
    fn name(&self) -> String {
        match self {
            Place::Shipped(_, name, _) => name.clone(),
            Place::Path(path) => dump_name(path),
            Place::Elsewhere(url) => dump_name(url.shown().as_ref()),
        }
    }

    /// A dump for each sequence that it holds.
    fn open(self) -> Result<Vec<NamedDump>> {
        let name = self.name();
        match self {
            Place::Shipped(model, typed, source) => {
                let alone = format!("{model}/{typed}");
                let dumps = Dump::all_from_source(source)?;
                Ok(named_dumps(dumps, &NamedAs { name, typed, alone, notes: Vec::new() }))
            }
            Place::Path(path) => {
                let typed = path.display().to_string();
                let dumps = Dump::open_all(&path)?;
                Ok(named_dumps(dumps, &NamedAs { name, alone: typed.clone(), typed, notes: Vec::new() }))
            }
            Place::Elsewhere(url) => {
                let source = dump_behind(&url)?;
                let typed = url.shown().to_owned();
                let pin = source.data.pin().unwrap_or_default().to_owned();
                let dumps = Dump::all_from_source(source)?;
                let rows = || dumps.iter().flat_map(|dump| &dump.manifest.tensors);
                let hashes = match rows().filter(|row| row.sha256.is_some()).count() {
                    0 => String::new(),
                    hashed => {
                        format!("; {hashed} of {} arrays are held against their own SHA-256", rows().count())
                    }
                };
                let notes = vec![format!("the dump was read in parts from {typed} ({pin}{hashes})")];
                Ok(named_dumps(dumps, &NamedAs { name, alone: typed.clone(), typed, notes }))
            }
        }
    }
}

/// What a dump of one or several sequences is known as.
struct NamedAs {
    name: String,
    typed: String,
    alone: String,
    notes: Vec<String>,
}

/// One of several sequences goes by its name or number behind a `#`.
fn named_dumps(dumps: Vec<Dump>, known: &NamedAs) -> Vec<NamedDump> {
    let is_one = dumps.len() == 1;
    let one = |dump: Dump| {
        let sequence = dump.manifest.sequence.as_ref().filter(|_| !is_one);
        let of = |name: &String| sequence.map_or(name.clone(), |sequence| format!("{name}#{sequence}"));
        let (name, typed, alone) = (of(&known.name), of(&known.typed), of(&known.alone));
        NamedDump { name, typed, alone, dump, notes: known.notes.clone(), words: Vec::new() }
    };
    dumps.into_iter().map(one).collect()
}

/// The one that is asked for; all if none is.
fn only_asked_for(typed: &str, mut dumps: Vec<NamedDump>) -> Result<Vec<NamedDump>> {
    let asked = asked_for(typed, dumps.iter().map(|named| &named.dump))?;
    Ok(match asked {
        Some(number) => vec![dumps.swap_remove(number)],
        None => dumps,
    })
}

/// What lies in a folder of dumps and is none, notes or hidden files, is nobody's mistake.
fn may_be_a_dump(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    path.join("manifest.json").is_file() || matches!(extension, Some("safetensors" | "npz"))
}

/// A dump by its path, or by the name of one that ships: `tiny-llama2/transformers-f32`, or the last part alone where
/// only one model has such a dump; one for each of its sequences, if none is named behind a `#`.
///
/// # Errors
/// If there is none, or it cannot be read.
pub fn dumps_named(typed: &str, foreign: &Foreign) -> Result<Vec<NamedDump>> {
    only_asked_for(typed, all_named(parts_of(typed).0, foreign)?)
}

/// What is here: a dump, or a file that a map reads as one.
fn opened(typed: &str, foreign: &Foreign) -> Result<Vec<NamedDump>> {
    let path = Path::new(typed);
    if let Some(chunks) = foreign.chunks(path)? {
        let (name, notes) = (dump_name(path), vec![OF_CHUNKS.to_owned()]);
        return Ok(named_dumps(
            chunks,
            &NamedAs { name, typed: typed.to_owned(), alone: typed.to_owned(), notes },
        ));
    }
    match foreign.open(path)? {
        Some(read) => Ok(vec![read]),
        None => Place::Path(typed.into()).open(),
    }
}

fn all_named(typed: &str, foreign: &Foreign) -> Result<Vec<NamedDump>> {
    if let Some(url) = Url::of(typed)? {
        return Place::Elsewhere(url).open();
    }
    if Path::new(typed).exists() {
        return opened(typed, foreign);
    }
    let mut found = shipped::dumps_named(typed)?;
    let names: Vec<_> = found.iter().map(|(model, name, _)| format!("{model}/{name}")).collect();
    match (found.pop(), names.as_slice()) {
        (Some((_, name, source)), [alone]) => {
            let (alone, dumps) = (alone.clone(), Dump::all_from_source(source)?);
            Ok(named_dumps(dumps, &NamedAs { name, typed: typed.to_owned(), alone, notes: Vec::new() }))
        }
        (None, _) => Err(Error::Usage(format!(
            "no dump '{typed}': no such file, and none of that name ships; those that ship are named as in \
             tiny-llama2/transformers-f32 (xcheck models){}",
            shipped::absent()?
        ))),
        _ => Err(Error::Usage(format!("'{typed}' is a dump of several models: {}", names.join(", ")))),
    }
}

/// The last part of a dump's path, without what tells its container.
pub fn dump_name(path: &Path) -> String {
    let path = PathBuf::from(remote::redacted(&path.to_string_lossy()));
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = name.strip_suffix(".safetensors").or_else(|| name.strip_suffix(".npz")).unwrap_or(&name);
    name.to_owned()
}

/// The record of a model for a report.
///
/// # Errors
/// If its weights cannot be hashed.
pub fn record(target: &str, variant: &Variant, model: &crate::model::LoadedModel) -> Result<ModelRecord> {
    Ok(ModelRecord {
        name: target.to_owned(),
        architecture: model.model.architecture().to_owned(),
        format: model.format.to_owned(),
        quantisation: model.precision.name().to_owned(),
        sha256: variant.sha256()?,
    })
}

fn what_there_is(name: &str) -> Result<String> {
    let names: Vec<_> = shipped::MODELS.iter().map(|model| model.name).collect();
    let nearest = hub::nearest(name);
    let hint = match nearest.as_slice() {
        [] => String::new(),
        alike => format!("did you mean {}? ", alike.join(", ")),
    };
    Ok(format!(
        "no such file or directory, no public model of that name ({hint}xcheck models lists them), and the models that \
         ship are: {}{}",
        names.join(", "),
        shipped::absent()?
    ))
}
