//! Options for a dump that arrives through a pipe.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::check::Mode;
use crate::cli::shard_options::ShardOptions;
use crate::disk_cache;
use crate::error::{Error, Result};

/// Argument for standard input.
pub(crate) const STDIN: &str = "-";

/// Options for the messages of a stream.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DumpStreamOptions {
    /// Folder for stream messages that fail or are inconclusive
    ///
    /// Each message is kept as a dump of its own. The folder must be new or empty.
    #[arg(long, value_name = "DIR", help_heading = "Streams")]
    keep_failing: Option<PathBuf>,
    /// Largest message accepted from a stream [default: 32GB]
    ///
    /// A message is kept in the folder for temporary files while it is judged.
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Streams")]
    pub(super) largest_message: Option<u64>,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    disk_cache::size(text).ok_or_else(|| format!("invalid size '{text}', expected e.g. 32GB or 500MB"))
}

impl DumpStreamOptions {
    /// Returns the stream among the requested dumps, if there is one. A stream must be the only dump.
    ///
    /// # Errors
    /// If there are other dumps, or if stream options are given without a stream.
    pub(crate) fn of<'d>(&self, dumps: &'d [String]) -> Result<Option<&'d str>> {
        let is_asked = self.keep_failing.is_some() || self.largest_message.is_some();
        match dumps {
            [only] if is_stream(only) => Ok(Some(only)),
            dumps if dumps.iter().any(|dump| is_stream(dump)) => {
                Err(Error::Usage("a stream must be the only dump; remove the other dumps".to_owned()))
            }
            _ if is_asked => Err(Error::Usage(
                "--keep-failing and --largest-message need a stream: - for standard input, or a FIFO"
                    .to_owned(),
            )),
            _ => Ok(None),
        }
    }

    /// Returns the errors to measure in a stream.
    ///
    /// # Errors
    /// If accumulated errors or a shard are requested.
    pub(crate) fn mode(&self, mode: Mode, shard: &ShardOptions) -> Result<Mode> {
        match mode {
            _ if shard.is_given() => Err(Error::Usage(
                "--shard: a stream cannot be sharded; run one xcheck with --layer for each producer"
                    .to_owned(),
            )),
            Mode::Accumulated => Err(Error::Usage(
                "--total: accumulated errors need a run of the whole model, but a stream is judged message \
                 by message; omit --total, or write the dump to a file"
                    .to_owned(),
            )),
            Mode::Both => Ok(Mode::Local),
            mode => Ok(mode),
        }
    }

    /// Returns the empty folder for kept messages.
    pub(super) fn folder(&self) -> Result<Option<&Path>> {
        let Some(folder) = self.keep_failing.as_deref() else { return Ok(None) };
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let mut entries = fs::read_dir(folder).map_err(Error::io("list", folder))?;
        if entries.next().is_some() {
            let folder = folder.display();
            return Err(Error::Usage(format!("--keep-failing: {folder} is not empty; name a new folder")));
        }
        Ok(Some(folder))
    }
}

/// Returns true if a dump arrives through a pipe.
fn is_stream(typed: &str) -> bool {
    typed == STDIN || is_fifo(Path::new(typed))
}

#[cfg(unix)]
fn is_fifo(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

#[cfg(not(unix))]
fn is_fifo(_: &Path) -> bool {
    false
}
