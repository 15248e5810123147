//! Tap that replaces results by the results of changed operations.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;

use crate::catalogue::OperationChange;
use crate::change::{ModelOperations, SiteContext, embedded_tokens};
use crate::checkpoint::{Point, Site};
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;

/// A change with the layers it applies to.
#[derive(Clone, Debug)]
pub struct Supposition {
    /// Alternative changes. At each site, the one that applies there is used.
    pub change: Vec<OperationChange>,
    /// Layers that the change applies to; `None` for all.
    pub layers: Option<BTreeSet<usize>>,
}

impl Supposition {
    /// Applies a change in all layers and passes.
    pub fn everywhere(change: OperationChange) -> Self {
        Self { change: vec![change], layers: None }
    }

    /// Parses `KEY=VALUE`, which applies the change in all layers, or `KEY=VALUE@layer-2` and `KEY=VALUE@layer-0+2`,
    /// which apply it in these layers only.
    ///
    /// # Errors
    /// See [`OperationChange::named`].
    pub fn named(text: &str) -> Result<Self, String> {
        let (text, layers) = without_layers(text)?;
        Ok(Self { change: OperationChange::named(text)?, layers })
    }

    /// Limits the change to these layers. If it was limited before, only the layers in both limits remain.
    pub fn in_layers(self, layers: impl IntoIterator<Item = usize>) -> Self {
        let own = self.layers.as_ref();
        let layers = layers.into_iter().filter(|layer| own.is_none_or(|own| own.contains(layer)));
        Self { layers: Some(layers.collect()), ..self }
    }

    /// Limits the change to this tap.
    pub fn at(self, point: Point) -> Self {
        Self { change: self.change.into_iter().map(|change| change.at(point)).collect(), ..self }
    }

    fn is_made_at(&self, site: Site) -> bool {
        let in_layer = |layers: &BTreeSet<usize>| site.layer.is_some_and(|layer| layers.contains(&layer));
        self.layers.as_ref().is_none_or(in_layer)
    }

    fn compute(&self, at: &SiteContext) -> Option<Tensor> {
        self.change.iter().filter(|_| self.is_made_at(at.site)).find_map(|change| change.compute(at))
    }
}

/// Splits a change from the layers that it applies to.
fn without_layers(text: &str) -> Result<(&str, Option<BTreeSet<usize>>), String> {
    let Some((change, layers)) = text.rsplit_once("@layer-") else { return Ok((text, None)) };
    let numbers: Result<BTreeSet<usize>, _> = layers.split('+').map(str::parse).collect();
    let numbers = numbers.map_err(|_| {
        format!("invalid layers '{layers}', expected e.g. @layer-2, @layer-0+2 or @decode@layer-2")
    })?;
    Ok((change, Some(numbers)))
}

/// Replaces results by the results of changed operations, in a run of the same traced numerics.
pub struct ChangeTap<'c> {
    n: &'c TracedNumerics<'c>,
    operations: &'c ModelOperations,
    suppositions: &'c [Supposition],
    /// True if the tap drops each value's origin, which saves memory.
    forgets: bool,
    /// Positions of the known passes. A pass starts at its embeddings, at the position where the previous pass ended.
    passes: Vec<Range<usize>>,
    /// Tokens that were read, from the embeddings of each pass or as given.
    tokens: Vec<u32>,
    /// Number of operations that were changed.
    pub made: Cell<usize>,
    /// First site at which a changed operation gave different values.
    pub first: Cell<Option<Site>>,
}

impl<'c> ChangeTap<'c> {
    /// Creates a tap that applies these changes in this order.
    pub fn new(
        n: &'c TracedNumerics<'c>,
        operations: &'c ModelOperations,
        suppositions: &'c [Supposition],
    ) -> Self {
        Self {
            n,
            operations,
            suppositions,
            forgets: false,
            passes: Vec::new(),
            tokens: Vec::new(),
            made: Cell::new(0),
            first: Cell::new(None),
        }
    }

    /// Drops a value's inputs after the tap has seen the value.
    pub fn forgetting(self) -> Self {
        Self { forgets: true, ..self }
    }

    /// Sets the token positions of each pass and the tokens, for a run that does not begin with embeddings.
    pub fn along(self, passes: Vec<Range<usize>>, tokens: Vec<u32>) -> Self {
        Self { passes, tokens, ..self }
    }

    /// Returns the token positions of a value's pass.
    fn positions(&mut self, site: Site, value: &Tensor) -> Range<usize> {
        let Some(pass) = site.pass else { return 0..0 };
        if site.point == Point::Embed && self.passes.len() == pass {
            let start = self.passes.last().map_or(0, |before| before.end);
            self.tokens.extend(embedded_tokens(value).unwrap_or_default());
            self.passes.push(start..start + value.rows());
        }
        self.passes.get(pass).cloned().unwrap_or_default()
    }
}

impl Tap for ChangeTap<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let positions = self.positions(site, &value);
        let mut value = value;
        for supposition in self.suppositions {
            let at = SiteContext::new(site, positions.clone(), &value, self.n, self.operations);
            let changed = supposition.compute(&at.reading(&self.tokens));
            if let Some(changed) = changed {
                self.made.set(self.made.get() + 1);
                let bits =
                    |value: &Tensor| value.data().iter().map(|element| element.to_bits()).collect::<Vec<_>>();
                if self.first.get().is_none() && bits(&changed) != bits(&value) {
                    self.first.set(Some(site));
                }
                value = changed;
            }
        }
        if self.forgets { value.with_origins(Vec::new()) } else { value }
    }
}
