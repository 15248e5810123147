//! Public models by their common names.

use serde::Deserialize;

use super::name::{HubModel, RepoFiles};

/// A public model with its published formats.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownModel {
    /// Name that users type.
    pub(crate) name: String,
    /// Architecture, as in dumps and tolerances.
    pub(crate) architecture: String,
    /// Published forms; the first is the default.
    pub(crate) files: Vec<KnownFiles>,
}

/// One form of a known model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFiles {
    /// File in the repository; `None` for `config.json` and the weights in the same folder.
    pub repo: String,
    /// File in the repository; `None` for `config.json` and the weights next to it.
    pub file: Option<String>,
    /// Approximate size of the download, in 10⁹ bytes.
    pub gb: f64,
    /// True if the licence must be accepted first.
    #[serde(default)]
    pub(crate) gated: bool,
}

/// The content of `known.toml`.
#[derive(Deserialize)]
struct KnownModelTable {
    model: Vec<KnownModel>,
}

impl KnownModel {
    /// Returns all known models.
    pub fn all() -> Vec<Self> {
        let table: KnownModelTable =
            toml::from_str(include_str!("known.toml")).expect("a test parses the shipped table");
        table.model
    }

    /// Returns the name of each form: the model's name for the first, `name:quantisation` for the others.
    pub fn forms(&self) -> impl Iterator<Item = (String, &KnownFiles)> {
        self.files.iter().enumerate().map(|(index, files)| match files.quantisation() {
            Some(tag) if index > 0 => (format!("{}:{tag}", self.name), files),
            _ => (self.name.clone(), files),
        })
    }

    /// Returns the form with this name, if the model has it.
    fn named(&self, text: &str) -> Option<HubModel> {
        let form = self.forms().find(|(name, _)| name.eq_ignore_ascii_case(text));
        form.map(|(name, files)| files.model(name))
    }
}

impl KnownFiles {
    /// Returns the location on the hub; `asked` is the form's name.
    pub(crate) fn model(&self, asked: String) -> HubModel {
        let part = self.file.clone().map_or(RepoFiles::Folder, RepoFiles::File);
        HubModel { asked, repo: self.repo.clone(), part }
    }

    /// Returns the quantisation in a file name, such as `Q8_0` in `llama-2-7b.Q8_0.gguf`.
    pub(crate) fn quantisation(&self) -> Option<&str> {
        self.file.as_deref()?.strip_suffix(".gguf")?.rsplit(['.', '-']).next()
    }
}

/// Returns the model with this name: a known model, or any model of the hub by its id.
pub fn named(text: &str) -> Option<HubModel> {
    KnownModel::all().iter().find_map(|known| known.named(text)).or_else(|| HubModel::parse(text))
}

/// Returns the names most similar to `text`, nearest first, from the known names and `others`.
pub fn nearest<'o>(text: &str, others: impl Iterator<Item = &'o str>) -> Vec<String> {
    const ALIKE: f64 = 0.8;
    const SHOWN: usize = 3;
    let models = KnownModel::all();
    let names = models.iter().flat_map(|model| model.forms().map(|(name, _)| name));
    let names = names.chain(others.map(str::to_owned));
    let text = text.to_lowercase();
    let mut alike: Vec<(f64, String)> =
        names.map(|name| (strsim::jaro_winkler(&name.to_lowercase(), &text), name)).collect();
    alike.retain(|(likeness, _)| *likeness >= ALIKE);
    alike.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    alike.into_iter().take(SHOWN).map(|(_, name)| name).collect()
}
