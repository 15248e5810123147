//! Names of hub repositories and of files in them: `org/repo`, `org/repo:file.gguf`, `org/repo:Q8_0`.

use std::fmt;

/// A model of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// Name as the user typed it.
    pub asked: String,
    /// Id of the repository, `org/name`.
    pub repo: String,
    /// Selected files of the repository.
    pub part: RepoFiles,
}

/// Files of a repository that make up the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepoFiles {
    /// `config.json`, the weights, and the tokenizer.
    Folder,
    /// One file, by name.
    File(String),
    /// The GGUF file with this quantisation, as in `llama-cli -hf org/repo:Q8_0`.
    Quantised(String),
}

impl HubModel {
    /// Parses a repository id, optionally followed by a colon and a file or quantisation.
    pub fn parse(text: &str) -> Option<Self> {
        let (repo, part) = match text.split_once(':') {
            None => (text, RepoFiles::Folder),
            Some((repo, part)) => (repo, RepoFiles::parse(part)?),
        };
        let (organisation, name) = repo.split_once('/')?;
        let is_id = is_plain(organisation) && is_plain(name) && !is_file(name);
        is_id.then(|| Self { asked: text.to_owned(), repo: repo.to_owned(), part })
    }

    /// Returns the command that downloads the model.
    pub(crate) fn download_command(&self) -> String {
        format!("xcheck models --download {}", self.asked)
    }
}

impl RepoFiles {
    fn parse(text: &str) -> Option<Self> {
        let is_path = text.split('/').all(is_plain);
        match is_path {
            true if is_file(text) => Some(RepoFiles::File(text.to_owned())),
            true => Some(RepoFiles::Quantised(text.to_owned())),
            false => None,
        }
    }
}

/// Returns true for a valid part of an id or path: plain characters, not hidden, and not a parent folder.
pub(super) fn is_plain(part: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !part.is_empty() && !part.starts_with('.') && part.chars().all(plain)
}

/// Returns true for the name of a weight file. A repository id that ends like this is a mistyped path.
fn is_file(name: &str) -> bool {
    [".gguf", ".bin", ".safetensors"].iter().any(|extension| name.ends_with(extension))
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.asked)?;
        match &self.part {
            _ if self.asked.starts_with(&self.repo) => Ok(()),
            RepoFiles::Folder => write!(f, " ({})", self.repo),
            RepoFiles::File(part) | RepoFiles::Quantised(part) => write!(f, " ({}:{part})", self.repo),
        }
    }
}
