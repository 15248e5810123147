//! Rules by which engines choose between LongRoPE's short and long factors, for sequences that exceed the original
//! context.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::model::{Dimensions, LayerState, Model, ModelPass};
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::weight::Matrix;

/// A rule that chooses between LongRoPE's short and long factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongRope {
    /// Factors by the sequence's length. If it exceeds the original context, all tokens are read again with the long
    /// factors. Each result then equals that of one pass over the whole sequence, as in `generate()` of transformers.
    Reread,
    /// Factors by the sequence's length when a token was read. Cached keys keep their rotation, as in a loop over
    /// `forward` of transformers with a cache.
    Kept,
    /// Long factors at every position. llama.cpp and vLLM do this if the context exceeds the original one.
    Long,
    /// Short factors at every position. llama.cpp and vLLM do this if the context does not exceed the original one.
    Short,
}

impl LongRope {
    /// All rules.
    pub(crate) const ALL: [Self; 4] = [Self::Reread, Self::Kept, Self::Long, Self::Short];

    /// Returns the word in manifests and reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reread => "reread",
            Self::Kept => "kept",
            Self::Long => "long",
            Self::Short => "short",
        }
    }
}

impl fmt::Display for LongRope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LongRope {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|rule| rule.name() == name);
        found.ok_or_else(|| format!("'{name}', expected one of {}", known()))
    }
}

/// A model that chooses LongRoPE's factors by a rule.
pub struct LongRopeModel<'m> {
    /// The model.
    pub model: &'m dyn Model,
    /// The rule.
    pub rule: LongRope,
}

impl Model for LongRopeModel<'_> {
    fn architecture(&self) -> &'static str {
        self.model.architecture()
    }

    fn dimensions(&self) -> Dimensions {
        self.model.dimensions()
    }

    fn outer_matrices(&self) -> Vec<(&'static str, &Matrix)> {
        self.model.outer_matrices()
    }

    fn layer_matrices(&self, layer: usize) -> Vec<(&'static str, &Matrix)> {
        self.model.layer_matrices(layer)
    }

    fn head(&self) -> &Matrix {
        self.model.head()
    }

    fn cache_widths(&self, layer: usize) -> [usize; 2] {
        self.model.cache_widths(layer)
    }

    fn runs_in_parts(&self) -> bool {
        self.model.runs_in_parts()
    }

    fn has_chunks(&self) -> bool {
        self.model.has_chunks()
    }

    fn window(&self, layer: usize) -> Option<usize> {
        self.model.window(layer)
    }

    fn layer_state(&self, layer: usize) -> LayerState {
        self.model.layer_state(layer)
    }

    fn activation(&self) -> Activation {
        self.model.activation()
    }

    /// Returns false: the model is borrowed and cannot be changed.
    fn set_gelu(&mut self, _: Activation) -> bool {
        false
    }

    fn rereads_beyond(&self) -> Option<usize> {
        self.model.rereads_beyond().filter(|_| self.rule == LongRope::Reread)
    }

    fn pass_within<'m>(
        &'m self,
        n: &'m dyn Numerics,
        positions: Range<usize>,
        length: usize,
    ) -> Box<dyn ModelPass + 'm> {
        let length = match self.rule {
            LongRope::Reread => length,
            LongRope::Kept => positions.end,
            LongRope::Long => usize::MAX,
            LongRope::Short => 0,
        };
        self.model.pass_within(n, positions, length)
    }
}
