//! The profiles that ship: one per numerics and for common engines.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::exact::profile::{Float, Profile};
use crate::numerics::Numerics;
use crate::weight::DType;

/// By name.
static PROFILES: LazyLock<BTreeMap<String, Profile>> = LazyLock::new(|| {
    toml::from_str(include_str!("profiles.toml")).expect("the table of profiles is parsed by a test")
});

impl Profile {
    /// The profile of that name.
    pub fn named(name: &str) -> Option<Self> {
        PROFILES.get(name).copied()
    }

    /// The names of all of them.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.keys().map(String::as_str)
    }

    /// How numerics round: by their name, else as most engines of that type do.
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
        match (profile.follows_cache, Float::of(numerics.cache_type())) {
            (true, Some(cache)) => Self { queries: cache, attention: cache, ..profile },
            _ => profile,
        }
    }
}
