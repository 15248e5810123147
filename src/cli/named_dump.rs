//! Dumps with unique names, for reports, JUnit and baselines.

use crate::cli::dump_hash::DumpFiles;
use crate::cli::unique_names::names;
use crate::dump::Dump;

/// A dump with a unique name for reports.
pub(crate) struct NamedDump {
    /// Name in tables.
    pub(crate) name: String,
    /// Argument on the command line.
    pub(crate) typed: String,
    /// Name without a model; dumps of several models may share one.
    pub(crate) alone: String,
    /// Name of the dump without the model's name. Dumps of several models may have the same one.
    pub(crate) dump: Dump,
    /// Notes on how a remote file, or one without a manifest, was read.
    pub(crate) notes: Vec<String>,
    /// Arrays that were not assigned to a tap. Unless `--ignore` matches them, the verdict is not a pass.
    pub(crate) lacking: Vec<String>,
    /// Command-line arguments with which the file was read, if it has no manifest.
    pub(crate) words: Vec<String>,
    /// Files of the dump. Their hash distinguishes dumps with the same name.
    pub(crate) files: DumpFiles,
}

impl NamedDump {
    /// Names a dump without files, such as a stream.
    pub(crate) fn new(name: String, typed: String, dump: Dump) -> Self {
        let (notes, lacking, words) = (Vec::new(), Vec::new(), Vec::new());
        let files = DumpFiles::Unknown;
        Self { name, alone: typed.clone(), typed, dump, notes, lacking, words, files }
    }
}

/// Gives each dump a unique name: the shortest end of its path that is unique, or otherwise a number.
pub(crate) fn told_apart(mut dumps: Vec<NamedDump>) -> Vec<NamedDump> {
    let typed: Vec<[&str; 2]> = dumps.iter().map(|dump| [dump.name.as_str(), &dump.typed]).collect();
    let names = names(&typed);
    dumps.iter_mut().zip(names).for_each(|(dump, name)| dump.name = name);
    dumps
}
