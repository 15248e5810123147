//! Which scores may be compared: those between a query and a key that it sees. What a producer leaves in all others has no
//! meaning; weights have one everywhere, zero.

use crate::checkpoint::Point;

/// The keys that queries of a layer see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// The position of the first query.
    pub first_query: usize,
    /// The position of the first key.
    pub first_key: usize,
    /// How many of the latest positions a query sees, itself included; `None` for all.
    pub window: Option<usize>,
}

impl Sight {
    /// Whether the entry at a flat index may be compared; of what are no scores, every entry may.
    pub fn sees(&self, point: Point, shape: &[usize], flat: usize) -> bool {
        match (point, shape) {
            (Point::AttnScores, &[_, queries, keys]) => {
                let query = self.first_query + flat / keys % queries;
                let key = self.first_key + flat % keys;
                key <= query && self.window.is_none_or(|window| query - key < window)
            }
            _ => true,
        }
    }
}
