//! Dumps with unique names, for reports, JUnit and baselines.

use crate::cli::dump_hash::DumpFiles;
use crate::cli::unique_names::names;
use crate::dump::Dump;

/// A dump with a unique name for reports.
pub struct NamedDump {
    /// The name in tables.
    pub name: String,
    /// Name on the command line.
    pub typed: String,
    /// Name without a model; dumps of several models may share one.
    pub alone: String,
    /// The dump.
    pub dump: Dump,
    /// Notes on how a remote file, or one without a manifest, was read.
    pub notes: Vec<String>,
    /// Arrays that are not compared: the verdict is no pass unless `--ignore` names them.
    pub lacking: Vec<String>,
    /// The arguments by which it is read, if it is no dump by itself.
    pub words: Vec<String>,
    /// Its files, whose content tells it from another dump of the same name.
    pub files: DumpFiles,
}

/// Gives each dump a unique name: the shortest part of its argument that no other has, else a number.
pub fn told_apart(mut dumps: Vec<NamedDump>) -> Vec<NamedDump> {
    let typed: Vec<[&str; 2]> = dumps.iter().map(|dump| [dump.name.as_str(), &dump.typed]).collect();
    let names = names(&typed);
    dumps.iter_mut().zip(names).for_each(|(dump, name)| dump.name = name);
    dumps
}
