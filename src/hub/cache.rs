//! The cache shared with `huggingface_hub`: `models--org--name/{blobs,refs,snapshots}`.
//!
//! A blob is the content of a file, named by its hash. `snapshots/<commit>/` contains links to blobs, under the
//! original file names. `refs/main` contains the newest downloaded commit.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::digest::Digest;
use super::file_selection::{FileSelection, choose, read_index};
use super::name::{HubModel, RepoFiles, is_plain};
use super::settings::HubSettings;
use crate::disk_cache::{DiskCache, PinnedFile};
use crate::error::{Error, HubError, Result};
use crate::input;

/// One repository's folder in the cache.
pub(super) struct RepoFolder(PathBuf);

/// State of a model in the cache.
#[derive(Debug)]
pub(crate) enum CacheState {
    /// All files are cached.
    Whole(CachedFiles),
    /// These files are missing.
    Partly(Vec<String>),
    /// No file is cached.
    Not,
}

/// The cached files of a model, not yet checked.
#[derive(Debug)]
pub(crate) struct CachedFiles {
    model: HubModel,
    snapshot: PathBuf,
    files: Vec<String>,
}

impl CacheState {
    /// Looks for the newest downloaded version of a model; reads no weights.
    pub(crate) fn look_for(settings: &HubSettings, model: &HubModel) -> Self {
        let repo = RepoFolder::of(settings, &model.repo);
        let Some(snapshot) = repo.newest() else { return repo.begun() };
        match choose(&model.part, &files_below(&snapshot), |index| read_index(&snapshot.join(index))) {
            Ok(FileSelection { files, missing }) if missing.is_empty() => {
                CacheState::Whole(CachedFiles { model: model.clone(), snapshot, files })
            }
            Ok(FileSelection { files, .. }) if files.is_empty() => CacheState::Not,
            Ok(FileSelection { missing, .. }) => CacheState::Partly(missing),
            Err(_) if model.part != RepoFiles::Folder => CacheState::Not,
            Err(error) => CacheState::Partly(vec![error.to_string()]),
        }
    }
}

impl RepoFolder {
    /// Returns the cache folder of a repository, which may not exist.
    pub(crate) fn of(settings: &HubSettings, repo: &str) -> Self {
        Self(settings.cache.join(format!("models--{}", repo.replace('/', "--"))))
    }

    /// Returns the path of the blob with that hash.
    #[cfg(feature = "hub")]
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.0.join("blobs").join(digest.name())
    }

    /// Returns the folder with the links to the files of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.0.join("snapshots").join(commit)
    }

    /// Returns the path of the file with the commit of a branch.
    pub(crate) fn reference(&self, branch: &str) -> PathBuf {
        self.0.join("refs").join(branch)
    }

    /// Returns the snapshot folder of the newest commit of `main`.
    fn newest(&self) -> Option<PathBuf> {
        let commit = input::text(&self.reference("main")).ok()?;
        let commit = commit.trim();
        is_plain(commit).then(|| self.snapshot(commit))
    }

    /// Returns the state of a model that was never downloaded completely.
    fn begun(&self) -> CacheState {
        let is_begun = fs::read_dir(self.0.join("blobs")).is_ok_and(|mut blobs| blobs.next().is_some());
        if is_begun {
            CacheState::Partly(vec!["files of an interrupted download".into()])
        } else {
            CacheState::Not
        }
    }
}

/// A model in the cache, all files checked against their hashes.
#[derive(Debug)]
pub(crate) struct VerifiedModel {
    /// Path with which the model is opened.
    pub(crate) path: PathBuf,
    checked: Vec<(PathBuf, Digest)>,
}

impl VerifiedModel {
    /// Returns the SHA-256 of a file, if the file was verified by that hash.
    pub(crate) fn sha256(&self, path: &Path) -> Option<&str> {
        match self.checked.iter().find(|(checked, _)| checked == path) {
            Some((_, Digest::Sha256(sha256))) => Some(sha256),
            _ => None,
        }
    }
}

impl CachedFiles {
    /// Verifies every file against the hash in its blob's name. Files that are unchanged since an earlier
    /// verification are not read again.
    ///
    /// # Errors
    /// [`HubError::Damaged`] if a file has another hash.
    pub(crate) fn checked(self, kept: &DiskCache) -> Result<VerifiedModel> {
        let paths: Vec<PathBuf> = self.files.iter().map(|file| self.snapshot.join(file)).collect();
        let checked: Result<Vec<_>> = paths.par_iter().map(|path| self.check(path, kept)).collect();
        let checked = checked?.into_iter().flatten().collect();
        let path = match (&self.model.part, paths.as_slice()) {
            (RepoFiles::File(_) | RepoFiles::Quantised(_), [first, ..]) => first.clone(),
            _ => self.snapshot,
        };
        Ok(VerifiedModel { path, checked })
    }

    /// Verifies one file. A file that is not a link to a blob (a cache without links) has no hash to verify.
    fn check(&self, path: &Path, kept: &DiskCache) -> Result<Option<(PathBuf, Digest)>> {
        let blob = fs::read_link(path).ok();
        let name = blob.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        let Some(digest) = name.and_then(Digest::from_name) else { return Ok(None) };
        let found = match &digest {
            Digest::Sha256(_) => kept.sha256(&[PinnedFile::at(path)?])?,
            Digest::GitBlob(_) => {
                let mut file = File::open(path).map_err(Error::io("open", path))?;
                digest.of(&mut file).map_err(Error::io("read", path))?
            }
        };
        if found == digest.name() {
            return Ok(Some((path.to_owned(), digest)));
        }
        let (file, expected) = (path.to_owned(), digest.name().to_owned());
        Err(HubError::Damaged { file, found, expected, command: self.model.download_command() }.into())
    }
}

/// Returns the files and links to files below a folder, as paths with slashes. Broken links are ignored.
fn files_below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_file() {
            found.push(name);
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(files_below(&path).into_iter().map(|below| format!("{name}/{below}")));
        }
    }
    found
}
