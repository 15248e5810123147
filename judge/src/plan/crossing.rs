//! The pass in which a sequence becomes too long for LongRoPE's short factors.

use crate::dump::{Manifest, Pass};
use crate::model::Model;

/// A pass in which the model must evaluate its sequence again from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crossing {
    /// Longest sequence that uses the short factors, in tokens.
    pub(crate) within: usize,
    /// Index of the pass; one after the dump's last pass if its continuation crosses the limit.
    pub(crate) pass: usize,
}

impl Crossing {
    /// Returns the crossing of a dump's passes or of its continuation, if any.
    pub(crate) fn of(model: &dyn Model, manifest: &Manifest) -> Option<Self> {
        let (within, passes) = (model.rereads_beyond()?, &manifest.passes);
        let crosses = |pass: &Pass| (1..=within).contains(&pass.position) && pass.end() > within;
        if let Some(pass) = passes.iter().position(crosses) {
            return Some(Self { within, pass });
        }
        let read = passes.last().map_or(0, Pass::end);
        let goes_on = read <= within && read + super::unread(manifest).len() > within;
        goes_on.then_some(Self { within, pass: passes.len() })
    }

    /// Returns true if the crossing is in a recorded pass of the dump.
    pub(crate) fn is_held(&self, manifest: &Manifest) -> bool {
        self.pass < manifest.passes.len()
    }
}
