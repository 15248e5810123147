//! Dumps that arrive through a pipe. Messages are judged one by one, and each is deleted before the next is
//! read.

use std::fs::File;
use std::io::{self, IsTerminal, Read, stdin};
use std::path::Path;
use std::time::SystemTime;

use crate::atomic_write::write_whole;
use crate::check::{Mode, Role, Rules};
use crate::cli::comparison::{ComparisonContext, ComparisonOptions, LoadedModels, has_modules};
use crate::cli::named_dump::NamedDump;
use crate::cli::names;
use crate::cli::output::ReportOutput;
use crate::cli::progress::RunProgress;
use crate::cli::stream_options::STDIN;
use crate::cli::unstated_properties::cache_of_rows;
use crate::diagnose::{DumpStream, MessageResult};
use crate::dump::{Dump, Manifest};
use crate::error::{Error, Result};
use crate::format::{FileBytes, Messages};
use crate::model::LoadedModel;
use crate::report::{Comparison, Report};

/// Opens standard input without a buffer, which would read ahead into the next message.
#[cfg(unix)]
fn unbuffered() -> io::Result<Box<dyn Read>> {
    use std::os::fd::AsFd;
    Ok(Box::new(File::from(stdin().as_fd().try_clone_to_owned()?)))
}

#[cfg(not(unix))]
fn unbuffered() -> io::Result<Box<dyn Read>> {
    Ok(Box::new(stdin()))
}

/// A stream with its name.
struct NamedStream {
    name: String,
    typed: String,
}

impl NamedStream {
    fn of(typed: &str) -> Self {
        let name = if typed == STDIN { "stdin" } else { typed };
        Self { name: name.to_owned(), typed: typed.to_owned() }
    }

    fn open(&self, most: u64) -> Result<Messages> {
        let path = Path::new(&self.name);
        let input: Box<dyn Read> = match self.typed == STDIN {
            true if stdin().is_terminal() => {
                return Err(Error::Usage(
                    "standard input is a terminal, expected a stream of messages; pipe a producer into it \
                     (see Streams in docs/reference/dump-format.md)"
                        .to_owned(),
                ));
            }
            true => unbuffered().map_err(Error::io("read", path))?,
            false => Box::new(File::open(path).map_err(Error::io("open", path))?),
        };
        Ok(Messages::new(input, path, most))
    }

    fn dump(&self, dump: Dump) -> NamedDump {
        NamedDump::new(self.name.clone(), self.typed.clone(), dump)
    }

    /// Returns the manifest's content without arrays.
    fn told(&self, manifest: Manifest) -> Result<NamedDump> {
        let manifest = Manifest { tensors: Vec::new(), ..manifest };
        Ok(self.dump(Dump::of_continuation(Path::new(&self.name), &manifest)?))
    }
}

/// Judges a dump that arrives through a pipe. `command` is the subcommand that repeats the comparison, with the option
/// before the dump.
///
/// # Errors
/// If options contradict a stream, or its first message cannot be judged.
pub(crate) fn judged(
    typed: &str,
    options: &ComparisonOptions,
    mode: Mode,
    (command, role): ((&'static str, Option<&'static str>), Role),
    output: &ReportOutput,
) -> Result<Report> {
    let mode = options.stream.mode(mode, &options.shard)?;
    let (target, selection, tolerances) =
        (&options.target.find()?, &options.selection(), &options.select.tolerances()?);
    let judging = ComparisonContext { target, selection, tolerances, options, mode, command, output };
    let results = vec![judging.stream(typed, role, &mut LoadedModels::new(&options.model))?];
    Ok(Report {
        command: names::command(),
        results,
        checkpoints: selection.checkpoints.clone(),
        served: None,
    })
}

impl ComparisonContext<'_> {
    /// Judges a stream until it ends. If it breaks off, or a message cannot be judged, the report covers the
    /// messages before.
    fn stream(&self, typed: &str, role: Role, models: &mut LoadedModels) -> Result<Comparison> {
        let started = SystemTime::now();
        let (options, named) = (&self.options.stream, NamedStream::of(typed));
        let folder = options.folder()?;
        let mut messages = named.open(options.largest_message.unwrap_or(LARGEST))?;
        let Some(first) = messages.take()? else {
            return Err(Error::Usage(format!(
                "{}: the stream is empty: it ended before the first message",
                named.name
            )));
        };
        let first = (first.clone(), Dump::from_source(first).map_err(|error| told(1, error))?);
        if has_modules(&first.1) {
            return Err(Error::Usage(format!(
                "{}: the stream has outputs of modules, which only torch evaluates; write them to a file",
                named.name
            )));
        }
        let told_by_first = named.told(first.1.manifest.clone())?;
        let variant = self.target.variant_for(&told_by_first)?;
        variant.begin_hash();
        let loaded = models.load(variant)?;
        let (numerics, is_stated) = self.settled(&named.dump(first.1.clone()), loaded, "a stream")?;
        let suppositions = self.options.suppositions();
        let budget = self.options.causes.budget();
        let rules = self.rules(is_stated, &told_by_first.dump.manifest.producer, role, loaded, &suppositions);
        let rules = Rules { budget: Some(&budget), ..rules };
        let streamed = DumpStream::new(&named.name, &*loaded.model, &*numerics, rules)?;
        let (streamed, broken) = self.take_all(streamed, (messages, first), loaded, folder)?;
        let (mut outcome, manifest) = streamed.finish(broken)?;
        let whole = named.told(manifest)?;
        let remarks = self.remarks(&whole, variant, &outcome, is_stated, &*numerics)?;
        outcome.notes.extend(remarks);
        let comparison = self.comparison(&whole, (variant, loaded), outcome, started, None)?;
        // The messages are deleted, so `xcheck inspect` cannot show them.
        Ok(Comparison { reference: None, ..comparison })
    }

    /// Judges messages one after another. Returns the reason why it stopped, unless the stream's end was marked.
    fn take_all<'s>(
        &self,
        mut streamed: DumpStream<'s>,
        (mut messages, (mut source, mut dump)): (Messages, (FileBytes, Dump)),
        loaded: &LoadedModel,
        folder: Option<&Path>,
    ) -> Result<(DumpStream<'s>, Option<String>)> {
        let n_layers = loaded.model.dimensions().n_layers;
        loop {
            let number = messages.taken();
            let mut progress = RunProgress::new(&format!("message {number}"), n_layers);
            let judged = self.check_cache(&dump).and_then(|()| streamed.judge(&dump, &mut progress));
            match judged {
                Ok(judged) => keep(folder, &judged, &source)?,
                Err(error) if streamed.is_empty() => return Err(told(number, error)),
                Err(error) => return Ok((streamed, Some(told(number, error).to_string()))),
            }
            // Freed before the next message is read.
            drop((dump, source));
            let next = messages
                .take()
                .and_then(|next| next.map(|next| Ok((next.clone(), Dump::from_source(next)?))).transpose());
            match next {
                Ok(Some(next)) => (source, dump) = next,
                Ok(None) => return Ok((streamed, None)),
                Err(error) => return Ok((streamed, Some(told(messages.taken(), error).to_string()))),
            }
        }
    }

    /// Rejects a KV cache that is smaller than the computed type and not stated, because such a type may first appear
    /// in a later message.
    fn check_cache(&self, dump: &Dump) -> Result<()> {
        if cache_of_rows(dump).is_none() || self.options.numerics.names_cache() {
            return Ok(());
        }
        Err(Error::dump(
            &dump.path,
            "the message stores the KV cache in a shorter type, and its manifest does not state \
                settings.kv_cache; give --kv-cache",
        ))
    }
}

/// Default size limit of a message in bytes. It is more than one layer of a model with 405 billion parameters, for
/// 4096 tokens.
const LARGEST: u64 = 32_000_000_000;

/// Writes a message to the folder of `--keep-failing`, if it failed or is inconclusive.
fn keep(folder: Option<&Path>, judged: &MessageResult, source: &FileBytes) -> Result<()> {
    let Some(folder) = folder.filter(|_| judged.is_suspect) else { return Ok(()) };
    let name = judged.of.replace(", ", "_").replace(' ', "-");
    let path = folder.join(name).with_extension("safetensors");
    write_whole(&path, &source.data.whole()).map_err(Error::io("write", &path))
}

fn told(number: usize, error: Error) -> Error {
    Error::Usage(format!("message {number} of the stream: {error}"))
}
