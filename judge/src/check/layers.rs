//! Layers that can be run from the reference, because it records their input.

use crate::checkpoint::{Point, Site};
use crate::dump::Dump;
use crate::plan::input_of;

/// The first missing input of each layer, and of the operations after the last layer.
pub(crate) struct LayerInputs {
    lacking: Vec<Option<Site>>,
}

impl LayerInputs {
    pub(crate) fn new(reference: &Dump, n_layers: usize) -> Self {
        let passes = reference.manifest.passes.len();
        let first_lacking = |layer: usize| {
            let mut inputs = (0..passes).map(|pass| input_of(layer, pass));
            inputs.find(|&input| !reference.starts_at(input))
        };
        Self { lacking: (0..=n_layers).map(first_lacking).collect() }
    }

    /// Returns the missing input because of which `site` cannot be computed from the reference. The input may
    /// belong to an earlier pass, which fills the layer's cache.
    pub(crate) fn missing(&self, site: Site) -> Option<Site> {
        let after_the_last = self.lacking.len() - 1;
        let layer = match (site.layer, site.point) {
            (None, Point::Embed) => return None,
            (layer, _) => layer.unwrap_or(after_the_last),
        };
        let input = self.lacking.get(layer).copied().flatten()?;
        (site.pass.is_none() || input.pass <= site.pass).then_some(input)
    }
}
