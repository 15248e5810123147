//! Prompts of random words, which a server can neither know nor have in a cache.

/// Common English words. Most tokenizers have a token for each.
const WORDS: [&str; 64] = [
    "river", "seven", "glass", "under", "paper", "quick", "stone", "because", "music", "never", "green",
    "house", "where", "doctor", "light", "after", "train", "simple", "ocean", "early", "school", "between",
    "metal", "right", "winter", "number", "yellow", "table", "before", "garden", "sharp", "market", "about",
    "silver", "horse", "later", "window", "person", "large", "forest", "again", "letter", "summer", "engine",
    "small", "bridge", "north", "family", "sugar", "always", "island", "color", "during", "bread", "animal",
    "under", "clock", "coffee", "without", "planet", "young", "street", "story", "almost",
];

/// Number of words of a prompt.
const LENGTH: usize = 8;

/// Endless sequence of prompts, determined by a seed.
#[derive(Clone, Debug)]
pub(crate) struct WordPrompts {
    state: u64,
}

impl WordPrompts {
    /// Starts with a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number of SplitMix64.
    fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

impl Iterator for WordPrompts {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let words = (0..LENGTH).map(|_| WORDS[self.number() as usize % WORDS.len()]);
        Some(words.collect::<Vec<_>>().join(" "))
    }
}
