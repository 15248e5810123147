//! The point at which a sequence exceeds LongRoPE's short factors.

use crate::dump::{Manifest, Pass};
use crate::model::Model;

/// The pass at which a model reads its sequence again from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The length up to which the short factors hold.
    pub within: usize,
    /// The pass; one behind those of the dump if its continuation crosses.
    pub pass: usize,
}

impl Crossing {
    /// Returns where the passes of a dump, or its continuation, cross.
    pub fn of(model: &dyn Model, manifest: &Manifest) -> Option<Self> {
        let (within, passes) = (model.rereads_beyond()?, &manifest.passes);
        let crosses = |pass: &Pass| (1..=within).contains(&pass.position) && pass.end() > within;
        if let Some(pass) = passes.iter().position(crosses) {
            return Some(Self { within, pass });
        }
        let read = passes.last().map_or(0, Pass::end);
        let goes_on = read <= within && read + super::unread(manifest).len() > within;
        goes_on.then_some(Self { within, pass: passes.len() })
    }

    /// True if a pass of the dump crosses.
    pub fn is_held(&self, manifest: &Manifest) -> bool {
        self.pass < manifest.passes.len()
    }
}
