//! Environment variables of the specifications, as defaults of options.

use std::ffi::{OsStr, OsString};

use clap::CommandFactory;

use crate::cli::Cli;
use crate::error::{Error, Result};

/// Number of threads that rayon starts. rayon reads the variable itself and ignores invalid values.
const THREADS: &str = "RAYON_NUM_THREADS";

/// An environment variable that sets an option if the option is missing.
struct EnvironmentVariable {
    name: &'static str,
    /// Long name of the option.
    option: &'static str,
    /// Commands that read the variable; empty for every command that has the option.
    commands: &'static [&'static str],
    /// Options that take precedence: if one of them is given, the variable is ignored.
    rivals: &'static [&'static str],
    value: VariableValue,
}

/// Type of a variable, with the arguments it becomes.
enum VariableValue {
    /// 1 or 0; 1 adds these arguments.
    Switch(&'static [&'static str]),
    /// An integer, at least this large.
    Number(u64),
}

const VARIABLES: [EnvironmentVariable; 5] = [
    EnvironmentVariable::new("BITNET_STRICT_MODE", "strict", VariableValue::Switch(&["--strict"])),
    EnvironmentVariable {
        rivals: &["threads"],
        ..EnvironmentVariable::new(
            "BITNET_DETERMINISTIC",
            "deterministic",
            VariableValue::Switch(&["--deterministic"]),
        )
    },
    EnvironmentVariable::new("BITNET_SEED", "seed", VariableValue::Number(0)),
    EnvironmentVariable::new("MAX_CONTEXT", "context", VariableValue::Number(1)),
    EnvironmentVariable {
        commands: &["generate", "dump", "serve"],
        rivals: &["numerics"],
        ..EnvironmentVariable::new(
            "HALF",
            "dtype",
            VariableValue::Switch(&["--numerics", "transformers", "--dtype", "f16"]),
        )
    },
];

/// Returns all variables that are set, with their values.
pub(crate) fn variables() -> impl Iterator<Item = (&'static str, OsString)> {
    VARIABLES.iter().filter_map(|variable| Some((variable.name, std::env::var_os(variable.name)?)))
}

/// Adds the options from environment variables to a command line. Also returns one line per variable that was
/// used.
///
/// # Errors
/// If a variable has an invalid value.
pub fn with_environment(
    mut words: Vec<OsString>,
    read: impl Fn(&str) -> Option<OsString>,
) -> Result<(Vec<OsString>, Vec<String>)> {
    let mut notes = Vec::new();
    let set = |name: &str| read(name).filter(|value| !value.is_empty());
    if let Some(value) = set(THREADS) {
        number(THREADS, &value, 0)?;
    }
    if VARIABLES.iter().all(|variable| set(variable.name).is_none()) {
        return Ok((words, notes));
    }
    let cli = Cli::command();
    let command = words.get(1).and_then(|word| cli.find_subcommand(word));
    let Some(command) = command else { return Ok((words, notes)) };
    for variable in &VARIABLES {
        let has_option = command.get_arguments().any(|arg| arg.get_long() == Some(variable.option));
        let is_read = variable.commands.is_empty() || variable.commands.contains(&command.get_name());
        let Some(value) = set(variable.name).filter(|_| has_option && is_read) else { continue };
        let added = variable.words(&value)?;
        let is_settled =
            [variable.option].iter().chain(variable.rivals).any(|option| is_given(&words, option));
        if !is_settled && !added.is_empty() {
            notes.push(format!("{}={} is read as {}", variable.name, value.display(), added.join(" ")));
            words.splice(2..2, added.into_iter().map(OsString::from));
        }
    }
    Ok((words, notes))
}

impl EnvironmentVariable {
    const fn new(name: &'static str, option: &'static str, value: VariableValue) -> Self {
        Self { name, option, commands: &[], rivals: &[], value }
    }

    fn words(&self, value: &OsStr) -> Result<Vec<String>> {
        match self.value {
            VariableValue::Number(least) => {
                let number = number(self.name, value, least)?;
                Ok(vec![format!("--{}", self.option), number.to_string()])
            }
            VariableValue::Switch(words) => match value.to_ascii_lowercase().to_str() {
                Some("1" | "true" | "yes" | "on") => Ok(words.iter().map(|&word| word.to_owned()).collect()),
                Some("0" | "false" | "no" | "off") => Ok(Vec::new()),
                _ => Err(unreadable(self.name, value, "1 or 0")),
            },
        }
    }
}

fn number(name: &str, value: &OsStr, least: u64) -> Result<u64> {
    let number = value.to_str().and_then(|value| value.trim().parse().ok()).filter(|number| *number >= least);
    number.ok_or_else(|| unreadable(name, value, &format!("an integer of at least {least}")))
}

fn unreadable(name: &str, value: &OsStr, expected: &str) -> Error {
    Error::Usage(format!(
        "environment variable {name}: invalid value '{}', expected {expected}; correct it or unset the \
            variable",
        value.display()
    ))
}

fn is_given(words: &[OsString], option: &str) -> bool {
    let options =
        words.iter().take_while(|word| *word != "--").filter_map(|word| word.to_str()?.strip_prefix("--"));
    options.map(|word| word.split('=').next().unwrap_or(word)).any(|given| given == option)
}
