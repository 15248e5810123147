//! Context of a change at one site: the operation, its inputs, and the model's other operations.

use std::ops::Range;
use std::sync::Arc;

use crate::change::ModelOperations;
use crate::checkpoint::Site;
use crate::exact::{Node, Operation, node_of};
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;

/// A site, its value, and the numerics and model that computed it.
pub struct SiteContext<'a> {
    /// The site.
    pub site: Site,
    /// Token positions of the value's rows.
    pub positions: Range<usize>,
    /// Value at the site, which records its operation.
    pub value: &'a Tensor,
    /// Numerics that computed the value.
    pub(crate) n: &'a TracedNumerics<'a>,
    /// Operations at the model's other sites, with their parameters.
    pub operations: &'a ModelOperations,
    /// True if the dump's heads use the other RoPE pairing and are permuted to the model's when they are read.
    pub(crate) is_turned: bool,
    /// Tokens of the text, starting at its beginning. The list may be shorter than the text if tokens are unknown.
    pub(crate) tokens: &'a [u32],
    node: Option<Arc<Node>>,
}

impl<'a> SiteContext<'a> {
    /// Creates the context of a value that traced numerics computed.
    pub fn new(
        site: Site,
        positions: Range<usize>,
        value: &'a Tensor,
        n: &'a TracedNumerics<'a>,
        operations: &'a ModelOperations,
    ) -> Self {
        let node = match value.origins() {
            [whole] => node_of(whole),
            _ => None,
        };
        Self { site, positions, value, n, operations, is_turned: false, tokens: &[], node }
    }

    /// Sets `is_turned`.
    pub fn turned(self, is_turned: bool) -> Self {
        Self { is_turned, ..self }
    }

    /// Sets the tokens of the text.
    pub fn reading(self, tokens: &'a [u32]) -> Self {
        Self { tokens, ..self }
    }

    /// Returns the context with another value.
    pub fn with<'b>(&'b self, value: &'b Tensor) -> SiteContext<'b> {
        let at = SiteContext::new(self.site, self.positions.clone(), value, self.n, self.operations);
        at.turned(self.is_turned).reading(self.tokens)
    }

    /// Returns the context of another site, with the model's operation there but without its value.
    pub(crate) fn elsewhere(&self, site: Site) -> SiteContext<'a> {
        let node = self.operations.node(site.point, site.layer);
        SiteContext { site, positions: self.positions.clone(), node, ..*self }
    }

    /// Returns the recorded operation (node) of the site; `None` if none was recorded.
    pub(crate) fn node(&self) -> Option<&Node> {
        self.node.as_deref()
    }

    /// Returns the operation, if it has type `S`.
    pub fn stage<S: Operation>(&self) -> Option<&S> {
        self.node.as_ref()?.operation()
    }

    pub(crate) fn row(&self, x: &Tensor, row: usize, width: usize) -> Tensor {
        self.n.gathered(&[x], &[1, width], |at| (0, row * width + at))
    }

    /// Concatenates rows of equal width into the shape of the value.
    pub(crate) fn joined(&self, rows: &[Tensor]) -> Tensor {
        let width = rows.first().map_or(1, |row| row.data().len());
        let rows: Vec<&Tensor> = rows.iter().collect();
        self.n.gathered(&rows, self.value.shape(), |flat| (flat / width, flat % width))
    }
}
