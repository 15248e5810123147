//! Notes on the arrays of a file that was read with a map.

use std::collections::HashMap;

use crate::format::{Arrays, EscapedText};
use crate::map::matched_array::MatchedArray;
use crate::map::pattern::NamePattern;
use crate::map::rule::MapRule;
use crate::map::tokens::MapTokens;
use crate::map::{NameMap, SHOWN};

impl NameMap {
    /// Returns a note that describes the reading: map, number of arrays and tokens.
    pub(super) fn told(&self, placed: usize, arrays: &Arrays, tokens: &MapTokens) -> String {
        let total = arrays.tensors.len() - usize::from(tokens.array.is_some());
        let whence = match &tokens.array {
            Some(name) => format!("; array '{}' has the tokens", EscapedText(name)),
            None => String::new(),
        };
        format!(
            "the file has no manifest and was read with the map {}: {placed} of {total} arrays have a \
                tap{whence}",
            self.name
        )
    }

    /// Returns notes on arrays that were not assigned to a tap.
    pub(super) fn left(
        &self,
        arrays: &Arrays,
        used: &[bool],
        tokens: &MapTokens,
        (misfits, ignored): (&[(&str, String)], &[NamePattern]),
    ) -> Vec<String> {
        let is_ignored = |name: &str| ignored.iter().any(|pattern| pattern.of(name).is_some());
        // Modules that a shipped map ignores (tables, other activations) are ignored with a custom map as
        // well.
        let shipped: Vec<NameMap> = if self.is_shipped { Vec::new() } else { NameMap::shipped().collect() };
        let is_no_module = |name: &str| shipped.iter().any(|map| map.is_ignored(name));
        let is_known = |name: &str| {
            tokens.array.as_deref() == Some(name)
                || is_ignored(name)
                || self.is_no_tap(name)
                || is_no_module(name)
        };
        let unused = arrays.tensors.iter().zip(used).filter(|((name, _), used)| !**used && !is_known(name));
        let others = arrays.others.iter().map(String::as_str).filter(|name| !is_known(name));
        let names = unused.map(|((name, _), _)| name).chain(others);
        let misfit = |name: &str| misfits.iter().any(|(misfit, _)| *misfit == name);
        let names = shortened(names.filter(|name| !misfit(name) && !is_ignored(name)));
        let names = names.map(|names| {
            format!(
                "arrays not compared, because the map {} has no tap for them: {names}; name their taps in \
                 your own map, or skip them with --ignore",
                self.name
            )
        });
        let misfits: Vec<_> = misfits.iter().filter(|(name, _)| !is_ignored(name)).collect();
        let misfits = misfits.first().map(|(first, problem)| {
            let more = misfits.len() - 1;
            let more = if more == 0 { String::new() } else { format!(" (and {more} more)") };
            format!(
                "array not compared, because it does not match its name: '{}': {problem}{more}; skip it with \
                    --ignore",
                EscapedText(first)
            )
        });
        names.into_iter().chain(misfits).collect()
    }

    /// Returns a note on the rules of a custom map that match no array.
    pub(super) fn idle(&self, matched: &[MatchedArray]) -> Option<String> {
        let is_idle = |rule: &&MapRule| !matched.iter().any(|one| std::ptr::eq(one.rule, *rule));
        let idle: Vec<String> =
            self.rules.iter().filter(is_idle).map(|rule| EscapedText(rule.name()).to_string()).collect();
        (!idle.is_empty() && !self.is_shipped)
            .then(|| format!("rules of the map {} that match no array: {}", self.name, idle.join(", ")))
    }
}

/// Returns the first few distinct names, with numbers replaced; `None` without names.
fn shortened<'n>(names: impl Iterator<Item = &'n str>) -> Option<String> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for name in names {
        let mut plain = String::new();
        for character in EscapedText(name).to_string().chars() {
            match (character.is_ascii_digit(), plain.ends_with('#')) {
                (true, true) => {}
                (true, false) => plain.push('#'),
                _ => plain.push(character),
            }
        }
        let plain = if plain.is_empty() { "''".to_owned() } else { plain };
        let at = *known.entry(plain.clone()).or_insert(counts.len());
        match counts.get_mut(at) {
            Some((_, count)) => *count += 1,
            None => counts.push((plain, 1)),
        }
    }
    let shown: Vec<String> = counts
        .iter()
        .take(SHOWN)
        .map(|(name, count)| if *count == 1 { name.clone() } else { format!("{name} ({count})") })
        .collect();
    let more: usize = counts.iter().skip(SHOWN).map(|(_, count)| count).sum();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    (!shown.is_empty()).then(|| shown.join(", ") + &more)
}
