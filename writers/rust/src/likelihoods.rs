//! Log-probabilities: that readers know of which tokens they are.

use crate::error::{refuse, Result};
use crate::passes::{Pass, Passes};
use crate::taps::Tap;

/// What was written of them, to be looked at in the end: what follows a token may be known later.
#[derive(Debug, Default)]
pub(crate) struct Likelihoods {
    /// A token whose log-probability was given: of which pass, sequence and position.
    followers: Vec<(usize, usize, usize)>,
    /// Ids and log-probabilities of likely tokens: the tap, its pass, shape and rows.
    tops: Vec<(&'static str, [Vec<usize>; 3])>,
}

const NAMES: [&str; 2] = ["top_ids", "top_logprobs"];

impl Likelihoods {
    /// Notes a value that was listed; `rows` are those of the pass that it holds.
    pub fn note(&mut self, tap: &Tap, pass: &Pass, shape: &[usize], rows: &[usize]) {
        if tap.name == "token_logprobs" {
            let places = rows.iter().filter_map(|&row| *pass.places.get(row)?);
            self.followers.extend(places.map(|(whose, position)| (pass.index, whose, position + 1)));
        }
        if NAMES.contains(&tap.name) {
            self.tops.push((tap.name, [vec![pass.index], shape.to_vec(), rows.to_vec()]));
        }
    }

    /// Whether readers take them.
    pub fn check(&self, passes: &Passes, generated: &[Option<Vec<u32>>]) -> Result<()> {
        for (name, what) in &self.tops {
            let [one, two] = NAMES;
            let other = if *name == one { two } else { one };
            if !self.tops.iter().any(|(tap, its)| *tap == other && its == what) {
                return refuse(format!(
                    "{name} of pass {} needs {other} of the same shape and rows beside it",
                    what[0][0]
                ));
            }
        }
        for &(pass, whose, position) in &self.followers {
            let chosen = generated.get(whose).and_then(Option::as_ref).map_or(0, Vec::len);
            if position >= passes.read_of(whose).max(passes.sequences[whose].tokens.len() + chosen) {
                return refuse(format!(
                    "token_logprobs of pass {pass}: an entry is of the token at position {position} of sequence {whose}, and none \
                     is known there; give one entry less, or the continuation to Dump::generated"
                ));
            }
        }
        Ok(())
    }
}
