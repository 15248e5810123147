//! Paths of a torch model's modules, which name taps in models that our engine does not support.

use std::collections::HashMap;
use std::sync::{LazyLock, PoisonError, RwLock};

/// Maximum length of a module's name. Longer names mean a damaged dump.
const LONGEST: usize = 300;
/// Maximum number of different names in one program run.
const MOST: usize = 1 << 20;

/// The place of a module in a torch model, the same in all layers: `model.layers.*.self_attn.q_proj`.
///
/// A star replaces the number of the layer, as in maps. `#1` after the path names the second call of the module in a
/// pass. Paths are numbered in the order in which they are first named, which is their order in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModulePath(u32);

/// All names used by the program run. Each name is a leaked string, so that it lives as long as the names of
/// built-in taps.
#[derive(Default)]
struct KnownNames {
    names: Vec<&'static str>,
    numbers: HashMap<&'static str, u32>,
}

static KNOWN: LazyLock<RwLock<KnownNames>> = LazyLock::new(RwLock::default);

impl ModulePath {
    /// Returns the path of a module in a model, and the number of its layer. `call` counts the calls of the module in
    /// a pass, from 0.
    ///
    /// # Errors
    /// If `path` is not a path of a module, such as `model.layers.0.mlp`.
    pub fn in_model(path: &str, call: usize) -> Result<(Self, Option<usize>), String> {
        let mut parts: Vec<&str> = path.split('.').collect();
        // A number at the start is a part of the model, such as the pooling of an embedding model.
        let layer = parts.iter().skip(1).position(|part| part.parse::<u16>().is_ok()).map(|at| at + 1);
        let number = layer.and_then(|at| parts[at].parse::<usize>().ok());
        if let Some(at) = layer {
            parts[at] = "*";
        }
        let call = if call == 0 { String::new() } else { format!("#{call}") };
        Ok((Self::named(&format!("{}{call}", parts.join(".")))?, number))
    }

    /// Returns the path with this name, as reports have it.
    ///
    /// # Errors
    /// If `name` is not a name of a module, or too many names are in use.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner).numbers.get(name).copied();
        if let Some(number) = known {
            return Ok(Self(number));
        }
        if !is_path(name) {
            return Err(format!(
                "invalid module '{}', expected a path as in model.named_modules(), e.g. model.layers.0.mlp",
                name.chars().take(LONGEST).collect::<String>()
            ));
        }
        let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = known.numbers.get(name) {
            return Ok(Self(number));
        }
        let number = u32::try_from(known.names.len()).ok().filter(|&number| (number as usize) < MOST);
        let number = number.ok_or_else(|| format!("too many different modules, expected at most {MOST}"))?;
        let name: &'static str = Box::leak(name.into());
        known.names.push(name);
        known.numbers.insert(name, number);
        Ok(Self(number))
    }

    /// Returns the name used in reports.
    pub(crate) fn name(self) -> &'static str {
        KNOWN.read().unwrap_or_else(PoisonError::into_inner).names[self.0 as usize]
    }

    /// Returns the number of the path, in the order of first use.
    pub(super) fn number(self) -> u32 {
        self.0
    }

    /// Returns the parts of the path after the layer's number; `None` outside of layers.
    pub fn in_layer(self) -> Option<Vec<&'static str>> {
        let mut parts = self.parts();
        parts.any(|part| part == "*").then(|| parts.collect())
    }

    /// Returns the last part of the path.
    pub(crate) fn last(self) -> &'static str {
        self.parts().next_back().unwrap_or_default()
    }

    /// Returns the parts of the path.
    pub(crate) fn parts(self) -> std::str::Split<'static, char> {
        let path = self.name().split('#').next().unwrap_or_default();
        path.split('.')
    }
}

fn is_path(name: &str) -> bool {
    let (path, call) = name.split_once('#').map_or((name, None), |(path, call)| (path, Some(call)));
    let is_word = |part: &str| part.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
    let is_part = |part: &str| part == "*" || !part.is_empty() && is_word(part);
    name.len() <= LONGEST
        && path.split('.').all(is_part)
        && call.is_none_or(|call| call.parse::<u32>().is_ok())
}
