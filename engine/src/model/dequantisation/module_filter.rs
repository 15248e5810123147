//! Patterns for the modules that a checkpoint quantises.

use std::collections::HashSet;

use fancy_regex::Regex;

use crate::error::Result;
use crate::model::json::Config;

/// Key of the list of unquantised modules.
pub(super) const UNCONVERTED: &str = "modules_to_not_convert";

/// Requirement of the configuration on one module: quantised or not.
pub(super) enum Conversion {
    /// The module must have a format group's format.
    Group(usize),
    /// The module may have a format group's format, or be unquantised: libraries differ, or the file decides.
    Either(usize),
    /// The module must be unquantised, for this reason.
    Excluded(String),
}

/// Pattern for names of modules.
pub(super) enum ModulePattern {
    /// Regular expression, from the start of the name.
    Regex(Box<Regex>),
    /// The whole name.
    Name(String),
    /// One of these whole names.
    Names(HashSet<String>),
    /// End of the name.
    Suffix(String),
    /// Any part of the name.
    Part(String),
    /// Every linear layer.
    Linear,
    /// Every embedding table.
    Embedding,
}

/// Modules that a checkpoint quantises.
pub(super) struct ModuleFilter {
    /// Key of the list of unquantised modules, with the keys that lead to it.
    pub(crate) key_path: String,
    /// Unquantised modules, with the text of each pattern.
    pub(crate) excluded: Vec<(String, ModulePattern)>,
    /// Texts in the names of modules that some libraries leave unquantised.
    pub(crate) maybe_excluded: Vec<String>,
    /// Modules with settings of their own, by format group, with the text of each pattern. These groups take precedence
    /// over `groups`. A module that matches several entries is refused, because libraries apply the first entry but the
    /// order of entries is not known.
    pub(crate) own: Vec<(String, ModulePattern)>,
    /// Modules of each format group.
    pub(crate) groups: Vec<Vec<ModulePattern>>,
    /// True if modules without quantised tensors count as unquantised, regardless of the configuration.
    pub(crate) follows_file: bool,
}

impl ModuleFilter {
    /// Creates the filter of one group with all linear layers and embedding tables.
    pub(crate) fn all(key: &'static str) -> Self {
        let groups = vec![vec![ModulePattern::Linear, ModulePattern::Embedding]];
        let (excluded, maybe_excluded, own) = (Vec::new(), Vec::new(), Vec::new());
        let key_path = format!("quantization_config.{key}");
        Self { key_path, excluded, maybe_excluded, own, groups, follows_file: false }
    }

    /// Excludes the modules of a list as transformers does. An entry matches the end of a name, or, as a regular
    /// expression, a name from its start to the end of one of its parts.
    ///
    /// # Errors
    /// If an entry is not a text or not a regular expression.
    pub(crate) fn exclude_listed(&mut self, config: &Config, key: &str) -> Result<()> {
        for text in config.texts(key)? {
            let pattern = format!(r"\A(?:{text})(?:(?<=\.)|(?=\.|\z))");
            let regex = regex(config, key, text, &pattern)?;
            self.excluded.push((text.to_owned(), ModulePattern::Regex(Box::new(regex))));
            self.excluded.push((text.to_owned(), ModulePattern::Suffix(text.to_owned())));
        }
        Ok(())
    }

    pub(crate) fn conversion(&self, module: &str) -> Conversion {
        let contains = |(_, pattern): &&(String, ModulePattern)| pattern.matches(module);
        let excluding = self.excluded.iter().find(contains);
        let own: Vec<_> = self.own.iter().filter(contains).collect();
        match (excluding, own.as_slice()) {
            (Some((text, _)), [(other, _), ..]) | (None, [(text, _), (other, _), ..]) => {
                let path = &self.key_path;
                return Conversion::Excluded(format!("both '{text}' and '{other}' in {path} contain it"));
            }
            (Some((text, _)), []) => {
                return Conversion::Excluded(format!("'{text}' in {} excludes it", self.key_path));
            }
            (None, _) => (),
        }
        let of_group = |group: &Vec<ModulePattern>| group.iter().any(|pattern| pattern.matches(module));
        let own = self.own.iter().position(|(_, pattern)| pattern.matches(module));
        let shared = || self.groups.iter().position(of_group).map(|group| self.own.len() + group);
        let Some(group) = own.or_else(shared) else {
            return Conversion::Excluded("no group of the configuration contains it".to_owned());
        };
        let is_unsure = self.maybe_excluded.iter().any(|text| module.contains(text.as_str()));
        let is_named = self.groups.iter().flatten().any(|pattern| pattern.names(module));
        match (is_projection(module) || is_named) && !is_unsure && !self.follows_file {
            true => Conversion::Group(group),
            false => Conversion::Either(group),
        }
    }
}

impl ModulePattern {
    /// Reads a pattern of compressed-tensors: `re:` and a regular expression, the name of a torch class, or a name.
    ///
    /// # Errors
    /// If it is not a regular expression.
    pub(crate) fn compressed_tensors(config: &Config, key: &str, text: &str) -> Result<Self> {
        Ok(match (text.strip_prefix("re:"), text) {
            (Some(pattern), _) => {
                Self::Regex(Box::new(regex(config, key, text, &format!(r"\A(?:{pattern})"))?))
            }
            (None, "Linear") => Self::Linear,
            (None, "Embedding") => Self::Embedding,
            (None, name) => Self::Name(name.to_owned()),
        })
    }

    /// Reads a pattern of GPTQModel: a name, or a regular expression that matches the start of a name. `-:` and `+:` before it
    /// say if the modules are excluded.
    ///
    /// # Errors
    /// If it is not a regular expression.
    pub(crate) fn gptq(config: &Config, text: &str) -> Result<Self> {
        let pattern = text.strip_prefix("-:").or(text.strip_prefix("+:")).unwrap_or(text);
        let name = pattern.replace(r"\.", "");
        match name.contains(|c: char| r"\.^$*+?{}[]()|".contains(c)) {
            true => Ok(Self::Regex(Box::new(regex(config, text, pattern, &format!(r"\A(?:{pattern})"))?))),
            false => Ok(Self::Name(pattern.replace('\\', ""))),
        }
    }

    /// Reads a name in which `*` stands for any text, and `?` for any character.
    ///
    /// # Errors
    /// If it has a class of characters.
    pub(crate) fn glob(config: &Config, key: &str, text: &str) -> Result<Self> {
        if text.contains(['[', ']']) {
            return Err(config.bad_key(key, format!("{text:?}"), "names of modules with * and ?"));
        }
        let pattern = fancy_regex::escape(text).replace(r"\*", ".*").replace(r"\?", ".");
        Ok(Self::Regex(Box::new(regex(config, key, text, &format!(r"\A{pattern}\z"))?)))
    }

    /// Returns true for a list of whole names that contains this name.
    fn names(&self, module: &str) -> bool {
        matches!(self, ModulePattern::Names(names) if names.contains(module))
    }

    fn matches(&self, module: &str) -> bool {
        match self {
            // An expression that takes too long to match is not an exclusion; a contradiction is reported later.
            ModulePattern::Regex(regex) => regex.is_match(module).unwrap_or(false),
            ModulePattern::Name(name) => module == name,
            ModulePattern::Names(names) => names.contains(module),
            ModulePattern::Suffix(suffix) => module.ends_with(suffix.as_str()),
            ModulePattern::Part(part) => module.contains(part.as_str()),
            ModulePattern::Linear => !is_embedding(module),
            ModulePattern::Embedding => is_embedding(module),
        }
    }
}

/// Returns true for the linear layers of attention, feed-forward blocks and experts. Routers and the head are not among
/// them: some libraries never quantise these.
pub(super) fn is_projection(module: &str) -> bool {
    let last = module.rsplit('.').next().unwrap_or(module);
    last.ends_with("_proj") || matches!(last, "w1" | "w2" | "w3")
}

fn is_embedding(module: &str) -> bool {
    module.rsplit('.').next().is_some_and(|last| last == "embed_tokens")
}

fn regex(config: &Config, key: &str, text: &str, pattern: &str) -> Result<Regex> {
    Regex::new(pattern)
        .map_err(|error| config.bad_key(key, format!("{text:?}"), format!("regular expressions ({error})")))
}
