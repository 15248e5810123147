//! Name maps: they assign the activation names of a framework to taps, so that a file of arrays can be read
//! as a dump.

mod mapped_dump;
mod matched_array;
mod notes;
mod passes;
mod pattern;
mod processed_weights;
mod rule;
mod shape;
mod shape_names;
mod stream;
mod tokens;

pub use tokens::tokens_of;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use mapped_dump::{MapContext, MappedDump};
pub(crate) use pattern::NamePattern;
pub(crate) use rule::{Names, RuleDefinition};
pub use shape::{HeadSizes, is_plain};

use crate::architecture::family;
use crate::error::{Error, Result};
use crate::format::{Arrays, EscapedText};
use crate::input;
use crate::map::pattern::{RenamePattern, RenamedArray};
use crate::map::rule::MapRule;
use crate::tensor::RopePairing;

/// The shipped maps, most common first.
const SHIPPED: &[(&str, &str)] = &[
    ("transformers", include_str!("../../maps/transformers.toml")),
    ("llama.cpp", include_str!("../../maps/llama.cpp.toml")),
    ("mlx-lm", include_str!("../../maps/mlx-lm.toml")),
    ("candle", include_str!("../../maps/candle.toml")),
    ("vllm", include_str!("../../maps/vllm.toml")),
    ("sglang", include_str!("../../maps/sglang.toml")),
    (processed_weights::TRANSFORMER_LENS, include_str!("../../maps/transformer-lens.toml")),
];

/// A map as written in its TOML file.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MapDefinition {
    /// The program that writes these names, used as the dump's `producer.name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<String>,
    /// Architecture of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// RoPE pairing: pairs of head values that rotate together. If missing, it is inferred from the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_pairing: Option<RopePairing>,
    /// Input tokens, or the name of an array that contains them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokensDefinition>,
    /// Number of query heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// Number of key-value heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<usize>,
    /// Number of values per head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Prefix and suffix that are added to every pattern.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub around: Option<[String; 2]>,
    /// Name patterns of arrays that are not a tap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<String>,
    /// Name patterns that reveal the architecture. The first one that matches an array is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_by: Vec<ArchitecturePattern>,
    /// Renamings that are applied before the rules. The first pattern that matches a name is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rename: Vec<RenameDefinition>,
    /// Settings, as in a dump's `producer.settings`.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub settings: serde_json::Map<String, serde_json::Value>,
    /// Rounding profile, as in a dump's `producer.rounding`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<serde_json::Map<String, serde_json::Value>>,
    /// Rules. The first rule that matches a name is used.
    #[serde(default, rename = "rule")]
    pub rules: Vec<RuleDefinition>,
}

/// Input tokens: a list, or the name of an array.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a list of token ids, or a pattern for an array name")]
pub enum TokensDefinition {
    /// The token ids.
    Ids(Vec<u32>),
    /// Name pattern of the array with the tokens.
    Array(String),
}

/// An array name that reveals the architecture.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ArchitecturePattern {
    /// Name pattern of the array.
    pub(crate) name: String,
    /// Architecture of a model with such an array.
    pub(crate) architecture: String,
}

/// Renaming of a tool's array names to the names that the rules and `ignore` use.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RenameDefinition {
    /// Name pattern; `{module}` is any text, `{class}` text without a dot.
    pub(crate) name: String,
    /// The new name, with `{module}`.
    pub(crate) to: String,
}

/// A name map that was read and validated.
#[derive(Clone, Debug)]
pub struct NameMap {
    /// Name of a shipped map, or a path.
    pub(crate) name: String,
    /// True for a shipped map.
    pub(crate) is_shipped: bool,
    written: MapDefinition,
    sizes: HeadSizes,
    rules: Vec<MapRule>,
    renames: Vec<RenamePattern>,
    ignored: Vec<NamePattern>,
    known_by: Vec<(NamePattern, String)>,
    tokens: Option<NamePattern>,
}

impl NameMap {
    /// Returns the shipped map with this name, or reads the file at this path.
    ///
    /// # Errors
    /// If neither exists, or the file is not a valid map.
    pub fn named(typed: &str) -> Result<Self> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == typed) {
            return Ok(Self::of_text(name, text)?.shipping());
        }
        let path = Path::new(typed);
        if !path.exists() {
            let known: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            return Err(Error::Usage(format!(
                "no map '{typed}': no such file; the shipped maps are {}; xcheck identify can write a map",
                known.join(", ")
            )));
        }
        let text = input::text(path)?;
        Self::of_text(typed, &text)
    }

    /// Returns the shipped maps.
    pub fn shipped() -> impl Iterator<Item = Self> {
        let read = |(name, text): &(&str, &str)| {
            Self::of_text(name, text).expect("a test parses each shipped map").shipping()
        };
        SHIPPED.iter().map(read)
    }

    /// Returns true if the array's module is known to have no tap: the array matches `ignore`, or (for a shipped map)
    /// only a rule for other architectures.
    fn is_no_tap(&self, name: &str) -> bool {
        let renamed = self.renamed(name).name;
        self.is_ignored(name) || self.is_shipped && self.rules.iter().any(|rule| rule.names(&renamed))
    }

    fn is_ignored(&self, name: &str) -> bool {
        let renamed = self.renamed(name).name;
        self.ignored.iter().any(|pattern| pattern.of(&renamed).is_some())
    }

    /// Returns the name that the rules use for an array.
    fn renamed(&self, name: &str) -> RenamedArray {
        let renamed = self.renames.iter().find_map(|rename| rename.of(name));
        renamed.unwrap_or_else(|| RenamedArray { name: name.to_owned(), pass: None })
    }

    fn shipping(self) -> Self {
        Self { is_shipped: true, ..self }
    }

    /// Parses a map.
    ///
    /// # Errors
    /// If the text is not a valid map in TOML.
    pub fn of_text(name: &str, text: &str) -> Result<Self> {
        let refuse = |problem: String| Error::Usage(format!("{name}: not a map: {}", problem.trim_end()));
        let written: MapDefinition = toml::from_str(text).map_err(|error| refuse(error.to_string()))?;
        Self::of(name, written).map_err(refuse)
    }

    fn of(name: &str, written: MapDefinition) -> std::result::Result<Self, String> {
        let around = written.around.clone().unwrap_or_default();
        let rules = written
            .rules
            .iter()
            .cloned()
            .map(|rule| MapRule::new(rule, &around))
            .collect::<std::result::Result<Vec<_>, _>>()?;
        if rules.is_empty() {
            return Err("missing [[rule]]".into());
        }
        let sizes =
            HeadSizes { heads: written.heads, kv_heads: written.kv_heads, head_dim: written.head_dim };
        if let Some((name, size)) = sizes.named().into_iter().find(|(_, size)| !size.is_none_or(is_size)) {
            return Err(format!("invalid {name} {}, expected 1 to {LARGEST}", size.unwrap_or_default()));
        }
        let whole = |name: &String| format!("{}{name}{}", around[0], around[1]);
        let ignored = written.ignore.iter().map(|name| NamePattern::new(&whole(name)));
        let renames = written.rename.iter().map(|rename| RenamePattern::new(&rename.name, &rename.to));
        let renames = renames.collect::<std::result::Result<_, String>>()?;
        let known_by = written
            .known_by
            .iter()
            .map(|known| Ok((NamePattern::new(&known.name)?, known.architecture.clone())));
        let (ignored, known_by) = (
            ignored.collect::<std::result::Result<_, String>>()?,
            known_by.collect::<std::result::Result<_, String>>()?,
        );
        let tokens = match &written.tokens {
            Some(TokensDefinition::Array(name)) => Some(NamePattern::new(name)?),
            _ => None,
        };
        let name = name.to_owned();
        Ok(Self { name, is_shipped: false, sizes, rules, renames, ignored, known_by, tokens, written })
    }

    /// Returns the architecture that the map derives from these array names. `None` if the map has no pattern for them.
    fn architecture(&self, arrays: &Arrays) -> Option<String> {
        let names: Vec<String> = arrays.tensors.iter().map(|(name, _)| self.renamed(name).name).collect();
        let is_there = |pattern: &NamePattern| names.iter().any(|name| pattern.of(name).is_some());
        let by_name = || {
            self.known_by.iter().find(|(pattern, _)| is_there(pattern)).map(|(_, architecture)| architecture)
        };
        self.written
            .architecture
            .as_ref()
            .or_else(by_name)
            .map(|architecture| family(architecture).to_owned())
    }
}

/// Reads arrays with the shipped map that matches most of them.
///
/// # Errors
/// If no map assigns half of the arrays, or two maps assign equally many arrays to different sites.
pub fn by_shipped(arrays: &Arrays, known: &MapContext) -> Result<MappedDump> {
    let by_best =
        |arrays: &Arrays| by_best(NameMap::shipped(), "no map was given", "no shipped map", arrays, known);
    by_best(arrays).or_else(|error| match shape_names::named(arrays, known) {
        Some((arrays, note)) => by_best(&arrays).map(|reading| reading.told_first(note)),
        None => Err(error),
    })
}

/// Reads arrays with that one of the given maps which matches most of them. Each file may have a different map.
///
/// # Errors
/// The errors of [`by_shipped`].
pub fn by_named(maps: Vec<NameMap>, arrays: &Arrays, known: &MapContext) -> Result<MappedDump> {
    by_best(maps.into_iter(), "several maps were given", "none of the given maps", arrays, known)
}

fn by_best(
    maps: impl Iterator<Item = NameMap>,
    why: &str,
    none: &str,
    arrays: &Arrays,
    known: &MapContext,
) -> Result<MappedDump> {
    let mut best: Option<(NameMap, MappedDump)> = None;
    let (mut rival, mut counts) = (None, Vec::new());
    let mut problem: Option<(usize, Error)> = None;
    let mut unlike: Option<(usize, String)> = None;
    for map in maps {
        let reading = match map.read(arrays, known) {
            Ok(reading) => reading,
            Err(error) => {
                counts.push(format!("{}: 0", map.name));
                let matched = map.matches(arrays, known);
                if matched > problem.as_ref().map_or(0, |(matched, _)| *matched) {
                    problem = Some((matched, error));
                }
                continue;
            }
        };
        counts.push(format!("{}: {}", map.name, reading.placed));
        let matched = if reading.is_half() { 0 } else { map.matches(arrays, known) };
        if matched > unlike.as_ref().map_or(reading.placed, |(matched, _)| *matched) {
            unlike = Some((matched, reading.unlike(&map.name, matched)));
        }
        match &best {
            Some((_, known)) if reading.placed < known.placed => {}
            Some((_, known)) if reading.placed == known.placed => {
                rival = rival.or((!reading.is_like(known)).then_some(map.name));
            }
            _ => (best, rival) = (Some((map, reading)), None),
        }
    }
    let (path, total) = (arrays.tensors.path(), arrays.tensors.len());
    // Report the problem of the map that matches the most names.
    let placed = best.as_ref().map_or(0, |(_, reading)| reading.placed);
    let is_half = best.as_ref().is_some_and(|(_, reading)| reading.is_half());
    if let Some((_, error)) = problem.filter(|(matched, _)| *matched * 2 >= total && *matched > placed) {
        return Err(error);
    }
    if let Some((_, what)) = unlike.filter(|(matched, _)| *matched * 2 >= total && !is_half) {
        return Err(Error::dump(path, what));
    }
    let found = || {
        let names = arrays.tensors.iter().take(SHOWN).map(|(name, _)| EscapedText(name).to_string());
        let names: Vec<String> = names.collect();
        let more = total.saturating_sub(names.len());
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("{}{more}", names.join(", "))
    };
    let how = "choose a map with --map (a file, or one of these), or find the taps with xcheck identify";
    match (best, rival) {
        (Some((map, reading)), None) if is_half => {
            Ok(reading.told_first(format!("{why}; {} matches most array names", map.name)))
        }
        (Some((map, _)), Some(rival)) if is_half => Err(Error::dump(
            path,
            format!(
                "no manifest, and the maps {} and {rival} match equally many arrays ({}): {how}",
                map.name,
                found()
            ),
        )),
        _ => Err(Error::dump(
            path,
            format!(
                "no manifest, and {none} matches half of the {total} arrays ({}; {}): {how}",
                found(),
                counts.join(", ")
            ),
        )),
    }
}

/// Largest accepted number of heads and head size, so that their products cannot overflow.
const LARGEST: usize = 1 << 16;

fn is_size(size: usize) -> bool {
    (1..=LARGEST).contains(&size)
}

/// Maximum number of names in a message.
const SHOWN: usize = 8;
