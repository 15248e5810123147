//! Site of a forward pass for a change: the operation with its inputs, and the operations around it.

use std::ops::Range;
use std::sync::Arc;

use crate::change::{ModelOperations, OperationChange, catalogue};
use crate::checkpoint::Site;
use crate::exact::{Node, Operation, TracedNumerics, node_of};
use crate::tensor::Tensor;

/// A site, its value, and the numerics and model that computed it.
pub struct SiteContext<'a> {
    /// The site.
    pub site: Site,
    /// The positions of its rows.
    pub positions: Range<usize>,
    /// The value; it remembers its operation.
    pub value: &'a Tensor,
    /// Numerics that compute the value.
    pub n: &'a TracedNumerics<'a>,
    /// Parameters of the model's other sites.
    pub book: &'a ModelOperations,
    /// True if heads of the dump have the other RoPE pairing and are permuted to the model's when they are read.
    pub is_turned: bool,
    node: Option<Arc<Node>>,
}

impl<'a> SiteContext<'a> {
    /// The place of a value that traced numerics made.
    pub fn new(
        site: Site,
        positions: Range<usize>,
        value: &'a Tensor,
        n: &'a TracedNumerics<'a>,
        book: &'a ModelOperations,
    ) -> Self {
        let node = match value.origins() {
            [whole] => node_of(whole),
            _ => None,
        };
        Self { site, positions, value, n, book, is_turned: false, node }
    }

    /// Returns the site with heads that are permuted when they are read, or not.
    pub fn turned(self, is_turned: bool) -> Self {
        Self { is_turned, ..self }
    }

    /// Returns the site with another value.
    pub fn with<'b>(&'b self, value: &'b Tensor) -> SiteContext<'b> {
        let at = SiteContext::new(self.site, self.positions.clone(), value, self.n, self.book);
        at.turned(self.is_turned)
    }

    /// Returns another tap of the same layer with the model's own operation, without its value.
    pub fn elsewhere(&self, site: Site) -> SiteContext<'a> {
        let node = self.book.node(site.point, site.layer);
        SiteContext { site, positions: self.positions.clone(), node, ..*self }
    }

    /// The operation.
    pub(super) fn node(&self) -> Option<&Node> {
        self.node.as_deref()
    }

    /// Returns every change that applies here, with the values to try if none can be computed from the data.
    pub fn changes(&self) -> Vec<OperationChange> {
        let known = catalogue().filter(|entry| entry.at.contains(&self.site.point));
        let all = known.flat_map(|entry| entry.usual_at(self).into_iter().map(move |value| (entry, value)));
        let changes = all.map(|(entry, value)| OperationChange::new(entry, value));
        changes.filter(|change| change.compute(self).is_some_and(|made| made != *self.value)).collect()
    }

    /// The operation, if it is one of that kind.
    pub fn stage<S: Operation>(&self) -> Option<&S> {
        self.node.as_ref()?.operation()
    }

    /// A row of `width` values of a tensor, `[1, width]`.
    pub fn row(&self, x: &Tensor, row: usize, width: usize) -> Tensor {
        self.n.gathered(&[x], &[1, width], |at| (0, row * width + at))
    }

    /// Rows of one width, one behind the other, in the shape of the value.
    pub fn joined(&self, rows: &[Tensor]) -> Tensor {
        let width = rows.first().map_or(1, |row| row.data().len());
        let rows: Vec<&Tensor> = rows.iter().collect();
        self.n.gathered(&rows, self.value.shape(), |flat| (flat / width, flat % width))
    }
}
