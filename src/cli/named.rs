//! Dumps with their names. Those of one name are told apart: a name in a report, in JUnit or in a baseline is that of one dump.

use crate::cli::apart::names;
use crate::cli::content::DumpFiles;
use crate::dump::Dump;

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
    /// Arrays that are not compared: the verdict is no pass unless `--ignore` names them.
    pub lacking: Vec<String>,
    /// The arguments by which it is read, if it is no dump by itself.
    pub words: Vec<String>,
    /// Its files, whose content tells it from another dump of the same name.
    pub files: DumpFiles,
}

/// Each with a name of its own: the shortest part of what was typed that no other has, else a number.
pub fn told_apart(mut dumps: Vec<NamedDump>) -> Vec<NamedDump> {
    let typed: Vec<[&str; 2]> = dumps.iter().map(|dump| [dump.name.as_str(), &dump.typed]).collect();
    let names = names(&typed);
    dumps.iter_mut().zip(names).for_each(|(dump, name)| dump.name = name);
    dumps
}
