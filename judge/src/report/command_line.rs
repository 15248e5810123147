//! Comparison of two command lines.

use crate::align::Checkpoints;

/// Short options and their long forms.
const LONG: [(&str, &str); 5] =
    [("-m", "--model"), ("-r", "--reference"), ("-c", "--checkpoint"), ("-l", "--layer"), ("-p", "--pass")];

/// Aliases of options and their canonical names.
const ALIASES: [(&str, &str); 3] =
    [("--isolate", "--introduced"), ("--propagate", "--total"), ("--by-layer", "--from-reference")];

/// Options that take no value.
const FLAGS: [&str; 9] = [
    "--no-report",
    "--download",
    "--deterministic",
    "--introduced",
    "--total",
    "--from-reference",
    "--follow-reference",
    "--strict",
    "--resume",
];

/// Options that affect only the output path or the speed, and so no result.
const OF_NO_EFFECT: [&str; 9] = [
    "--report",
    "--no-report",
    "--format",
    "--threads",
    "--deterministic",
    "--download",
    "--resume",
    "--keep-failing",
    "--largest-message",
];

/// Returns true if two commands differ only in the order and spelling of options, and in the output path.
pub(crate) fn same_command(one: &[String], other: &[String]) -> bool {
    CommandRequest::of(one) == CommandRequest::of(other)
}

/// Normalised arguments of a command line.
#[derive(PartialEq, Eq)]
struct CommandRequest {
    /// Positional arguments, in order.
    named: Vec<String>,
    /// Options with their values, sorted.
    options: Vec<(String, Option<String>)>,
}

impl CommandRequest {
    fn of(command: &[String]) -> Self {
        let mut asked = Self { named: Vec::new(), options: Vec::new() };
        let mut words = command.iter();
        while let Some(word) = words.next() {
            match option(word) {
                None => asked.named.push(word.clone()),
                Some((name, _)) if FLAGS.contains(&name.as_str()) => asked.options.push((name, None)),
                Some((name, value)) => {
                    let value = value.or_else(|| words.next().cloned());
                    let value = value.map(|value| plain_value(&name, value));
                    asked.options.push((name, value));
                }
            }
        }
        asked.options.retain(|(name, _)| !OF_NO_EFFECT.contains(&name.as_str()));
        asked.options.sort_unstable();
        asked
    }
}

/// Returns an option's long name, and its value if it is in the same word: `--layer=1`, `-l1`, `-l=1`.
fn option(word: &str) -> Option<(String, Option<String>)> {
    if word.starts_with("--") {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
        return Some((name.to_owned(), value.map(str::to_owned)));
    }
    let &(short, long) = LONG.iter().find(|(short, _)| word.starts_with(short))?;
    let value = word[short.len()..].trim_start_matches('=');
    Some((long.to_owned(), (!value.is_empty()).then(|| value.to_owned())))
}

/// Returns a canonical option value: checkpoint names become numbers.
fn plain_value(option: &str, value: String) -> String {
    match value.parse::<Checkpoints>() {
        Ok(Checkpoints(chosen)) if option == "--checkpoint" => {
            chosen.iter().map(|checkpoint| checkpoint.name()).collect::<Vec<_>>().join(",")
        }
        _ => value,
    }
}
