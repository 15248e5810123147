//! Downloads to the cache. Each file has a temporary name until it is complete and verified.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::DownloadObserver;
use super::cache::RepoFolder;
use super::client::{HubClient, Listing, RemoteFile};
use super::file_selection::{choose, read_index};
use super::name::HubModel;
use super::settings::HubSettings;
use crate::atomic_write::write_whole;
use crate::error::{Error, HubError, Result};

/// Wait before a broken connection is retried.
const PAUSE: Duration = Duration::from_secs(1);

/// Downloads every file that a model needs.
///
/// # Errors
/// If the hub refuses or cannot be reached, a file does not match its hash, or the disk is full.
pub(super) fn fetch(
    settings: &HubSettings,
    model: &HubModel,
    watch: &mut dyn DownloadObserver,
) -> Result<()> {
    let remote = HubClient::new(settings);
    let listing = remote.list(&model.repo)?;
    let folder = RepoFolder::of(settings, &model.repo);
    let mut download = Download { remote, model, listing, folder, watch };
    for name in download.choose()? {
        download.get(&name)?;
    }
    download.finish()
}

/// Download of one model into the cache.
struct Download<'a> {
    remote: HubClient<'a>,
    model: &'a HubModel,
    listing: Listing,
    folder: RepoFolder,
    watch: &'a mut dyn DownloadObserver,
}

impl Download<'_> {
    /// Returns the files to download. An index of shards is downloaded to find them.
    fn choose(&mut self) -> Result<Vec<String>> {
        let there: Vec<String> = self.listing.files.iter().map(|file| file.name.clone()).collect();
        let part = self.model.part.clone();
        let choice = choose(&part, &there, |index| read_index(&self.get(index)?))?;
        if choice.missing.is_empty() {
            return Ok(choice.files);
        }
        let missing = choice.missing.join(", ");
        Err(self
            .refused(&format!("the repository has no {missing}, or the hub gives no length and hash for it")))
    }

    /// Adds a file to the snapshot and returns its path.
    fn get(&mut self, name: &str) -> Result<PathBuf> {
        let file = self.listing.files.iter().find(|file| file.name == name).cloned();
        let file = file.ok_or_else(|| self.refused(&format!("the repository has no file '{name}'")))?;
        let blob = self.folder.blob(&file.digest);
        make_parent(&blob)?;
        if !is_good(&blob, &file)? {
            self.transfer(&file, &blob)?;
        }
        let link = self.folder.snapshot(&self.listing.commit).join(name);
        make_parent(&link)?;
        link_to(&blob, &link, name)?;
        Ok(link)
    }

    /// Downloads the missing bytes of a file. The blob gets its name only after its content is verified.
    fn transfer(&mut self, file: &RemoteFile, blob: &Path) -> Result<()> {
        let path = blob.with_extension("incomplete");
        let mut unfinished = UnfinishedDownload::open(&path)?;
        if unfinished.len > file.size {
            unfinished.restart()?;
        }
        if let Some(room) = room(&path).filter(|&room| room < file.size - unfinished.len) {
            let size = file.size;
            return Err(self.refused(&format!(
                "{} has {size} bytes, but only {room} bytes are free in {}",
                file.name,
                path.parent().unwrap_or(&path).display()
            )));
        }
        self.watch.file(&file.name, file.size, unfinished.len);
        while unfinished.len < file.size {
            self.go_on(file, &mut unfinished)?;
        }
        unfinished.file.sync_all().map_err(Error::io("write", &path))?;
        let found = unfinished.digest(file)?;
        if found != file.digest.name() {
            unfinished.restart()?;
            let expected = file.digest.name();
            let problem = format!(
                "the download of {} has the hash {found}, expected {expected}; it was corrupted and has been deleted, \
                 try again",
                file.name
            );
            return Err(self.refused(&problem));
        }
        fs::rename(&path, blob).map_err(Error::io("rename", &path))
    }

    /// Downloads over several connections if they break. Each must transfer some bytes.
    fn go_on(&mut self, file: &RemoteFile, unfinished: &mut UnfinishedDownload) -> Result<()> {
        let before = unfinished.len;
        let (repo, commit) = (&self.model.repo, &self.listing.commit);
        let (start, bytes) = self.remote.read(repo, commit, &file.name, before)?;
        if start < before {
            unfinished.restart()?;
        }
        let broken = unfinished.append(&mut bytes.take(file.size - start), self.watch)?;
        match broken {
            _ if unfinished.len == file.size => Ok(()),
            Some(slow) if slow.kind() == io::ErrorKind::TimedOut => Err(self.refused(&format!(
                "{}: {slow}; try again with a better connection, the download resumes",
                file.name
            ))),
            _ if unfinished.len > before => {
                thread::sleep(PAUSE);
                Ok(())
            }
            error => {
                let error = error.map_or("the connection closed".to_owned(), |error| error.to_string());
                Err(self.refused(&format!(
                    "the connection for {} broke after {} of {} bytes ({error}); try again, the download resumes",
                    file.name, unfinished.len, file.size
                )))
            }
        }
    }

    /// Marks the complete snapshot as the newest.
    fn finish(&self) -> Result<()> {
        let path = self.folder.reference("main");
        make_parent(&path)?;
        write_whole(&path, self.listing.commit.as_bytes()).map_err(Error::io("write", &path))
    }

    fn refused(&self, problem: &str) -> Error {
        HubError::Download { what: self.model.to_string(), problem: problem.to_owned() }.into()
    }
}

/// A partly downloaded file, locked against other processes that download it.
struct UnfinishedDownload {
    path: PathBuf,
    file: File,
    len: u64,
}

impl UnfinishedDownload {
    fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = file.map_err(Error::io("write", path))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let problem = "another process is downloading it; wait until that has finished".to_owned();
                return Err(HubError::Download { what: path.display().to_string(), problem }.into());
            }
            // Without file locks, the hash still detects a file that two processes wrote.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let len = file.metadata().map_err(Error::io("read", path))?.len();
        Ok(Self { path: path.to_owned(), file, len })
    }

    fn restart(&mut self) -> Result<()> {
        self.file.set_len(0).map_err(Error::io("write", &self.path))?;
        self.len = 0;
        Ok(())
    }

    /// Appends the response until it ends. Returns the error if the connection broke.
    fn append(
        &mut self,
        bytes: &mut impl Read,
        watch: &mut dyn DownloadObserver,
    ) -> Result<Option<io::Error>> {
        let mut buffer = vec![0; 1 << 18];
        loop {
            let read = match bytes.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(read) => read,
                Err(error) => return Ok(Some(error)),
            };
            self.file.write_all(&buffer[..read]).map_err(|error| self.unwritten(error))?;
            self.len += read as u64;
            watch.reached(self.len);
        }
    }

    fn unwritten(&self, error: io::Error) -> Error {
        if error.kind() != io::ErrorKind::StorageFull {
            return Error::io("write", &self.path)(error);
        }
        let problem = "the disk is full; free some space and try again, the download resumes".to_owned();
        HubError::Download { what: self.path.display().to_string(), problem }.into()
    }

    fn digest(&mut self, file: &RemoteFile) -> Result<String> {
        let hashed = self.file.seek(SeekFrom::Start(0)).and_then(|_| file.digest.of(&mut self.file));
        hashed.map_err(Error::io("read", &self.path))
    }
}

/// Returns true if a blob exists and matches its hash; a blob that does not match is deleted.
fn is_good(blob: &Path, file: &RemoteFile) -> Result<bool> {
    let Ok(mut there) = File::open(blob) else { return Ok(false) };
    if file.digest.of(&mut there).map_err(Error::io("read", blob))? == file.digest.name() {
        return Ok(true);
    }
    fs::remove_file(blob).map_err(Error::io("remove", blob))?;
    Ok(false)
}

/// Returns the free disk space in bytes, if the system reports it.
#[cfg(unix)]
fn room(path: &Path) -> Option<u64> {
    let of = rustix::fs::statvfs(path).ok()?;
    of.f_bavail.checked_mul(of.f_frsize)
}

#[cfg(not(unix))]
fn room(_: &Path) -> Option<u64> {
    None
}

fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(Error::io("create", parent))
}

/// Links a snapshot's file to its blob, by a relative path, so that the cache can be moved.
#[cfg(unix)]
fn link_to(blob: &Path, link: &Path, name: &str) -> Result<()> {
    let up = "../".repeat(2 + name.matches('/').count());
    let target = format!("{up}blobs/{}", blob.file_name().unwrap_or_default().to_string_lossy());
    if fs::read_link(link).is_ok_and(|there| there == Path::new(&target)) {
        return Ok(());
    }
    let _ = fs::remove_file(link); // from an older layout, or a copy; the next line reports errors
    std::os::unix::fs::symlink(target, link).map_err(Error::io("link", link))
}

/// Links a snapshot's file to its blob.
#[cfg(not(unix))]
fn link_to(blob: &Path, link: &Path, _: &str) -> Result<()> {
    let _ = fs::remove_file(link); // from an older download; the next line reports errors
    fs::hard_link(blob, link).or_else(|_| fs::copy(blob, link).map(drop)).map_err(Error::io("link", link))
}
