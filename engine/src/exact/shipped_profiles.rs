//! Shipped rounding profiles: one for each numerics, and the profiles of common engines.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::exact::float::Float;
use crate::exact::profile::Profile;
use crate::numerics::Numerics;
use crate::quant::ActivationCodes;
use crate::weight::DType;

/// Largest plausible error of a library function, in units in the last place.
const MOST_ULPS: f64 = 64.0;

/// Shipped profiles by name.
static PROFILES: LazyLock<BTreeMap<String, Profile>> = LazyLock::new(|| {
    toml::from_str(include_str!("profiles.toml")).expect("the table of profiles is parsed by a test")
});

impl Profile {
    /// Returns the shipped profile with that name.
    pub fn named(name: &str) -> Option<Self> {
        PROFILES.get(name).copied()
    }

    /// Returns the names of all shipped profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.keys().map(String::as_str)
    }

    /// Applies the fields of a manifest, on top of this profile or of the profile named by `like`.
    ///
    /// # Errors
    /// A message about the bad field: an unknown field or profile, or a value that the field does not accept.
    pub fn stated(self, fields: &Map<String, Value>) -> Result<Self, String> {
        let base = match fields.get("like") {
            None => self,
            Some(Value::String(name)) => Self::named(name).ok_or_else(|| {
                let names: Vec<_> = Self::names().collect();
                format!("unknown profile '{name}'; known: {}", names.join(", "))
            })?,
            Some(other) => return Err(format!("`like` is {other}, expected the name of a profile")),
        };
        let mut merged = serde_json::to_value(base).map_err(|error| error.to_string())?;
        if let Value::Object(merged) = &mut merged {
            merged.extend(
                fields
                    .iter()
                    .filter(|(key, _)| *key != "like")
                    .map(|(key, value)| (key.clone(), value.clone())),
            );
        }
        let stated: Self = serde_json::from_value(merged).map_err(|error| error.to_string())?;
        stated.sound()
    }

    /// Rejects settings that no engine can have.
    fn sound(self) -> Result<Self, String> {
        if self.lanes == 0 {
            return Err("lanes is 0, expected at least 1: the number of sums of a product".to_owned());
        }
        if self.chunk == 0 {
            return Err(
                "chunk is 0, expected at least 1: the number of tokens of a gated delta rule".to_owned()
            );
        }
        if !(0.0..=MOST_ULPS).contains(&self.library_ulps) {
            return Err(format!("library_ulps is {}, expected 0 to {MOST_ULPS}", self.library_ulps));
        }
        match self.activation_codes.as_ref().and_then(ActivationCodes::problem) {
            Some(problem) => Err(problem.to_owned()),
            None => Ok(self),
        }
    }

    /// Returns the profile of numerics: the one with their name, or else the usual profile of their type.
    pub fn of(numerics: &dyn Numerics) -> Self {
        let name = match numerics.activation_type() {
            DType::F32 => numerics.name().to_owned(),
            short => format!("{}-{}", numerics.name(), short.name()),
        };
        let common = || {
            let results = Float::of(numerics.activation_type()).unwrap_or(Float::F32);
            Self { results, weights: results, ..Self::default() }
        };
        let profile = Self::named(&name).unwrap_or_else(common);
        Self { activation_codes: numerics.activation_codes(), ..profile.following(numerics.cache_type()) }
    }

    /// Rounds queries and attention weights to the type of the cache, in profiles that follow the cache.
    pub fn following(self, cache: DType) -> Self {
        match (self.follows_cache, Float::of(cache)) {
            (true, Some(cache)) => Self { queries: cache, attention: cache, ..self },
            _ => self,
        }
    }
}
