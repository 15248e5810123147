//! Parameters of every site of a model (norms, matrices, rotations), collected in one pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::change::outer_operations::InnerOperation;
use crate::checkpoint::{Point, Site};
use crate::engine::{self, RunInput};
use crate::error::Result;
use crate::exact::{Node, Operation, Profile, node_of};
use crate::model::Model;
use crate::numerics::Numerics;
use crate::ops::addition::exact::Addition;
use crate::ops::embedding::exact::EmbeddingLookup;
use crate::ops::linear::exact::{Integers, Linear};
use crate::ops::norm::RmsNorm;
use crate::ops::norm::exact::{LayerNormalisation, RmsNormalisation};
use crate::ops::rope::Rope;
use crate::ops::rope::exact::Rotary;
use crate::ops::scaling::exact::Scaling;
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;
use crate::weight::{Factor, Matrix};

/// Operations of a model, by layer and by the tap of their result.
#[derive(Default)]
pub struct ModelOperations {
    nodes: BTreeMap<(Option<usize>, Point), Arc<Node>>,
    windows: Vec<Option<usize>>,
}

/// The matrix, bias and scale of a linear layer.
#[derive(Clone)]
pub struct LinearParameters {
    /// `[outputs, inputs]`
    pub(crate) w: Matrix,
    /// `[outputs]`
    pub(crate) bias: Option<Vec<f32>>,
    /// A scale stored with the matrix.
    pub(crate) factor: Option<Factor>,
}

impl LinearParameters {
    /// Returns the matrix of an operation, if it has one.
    pub(crate) fn of(node: &Node) -> Option<Self> {
        if let Some(Linear { w, bias, .. }) = node.operation() {
            return Some(Self { w: w.clone(), bias: bias.clone(), factor: None });
        }
        let Integers { w, factor, .. } = node.operation()?;
        Some(Self { w: w.clone(), bias: None, factor: *factor })
    }
}

struct OperationRecorder(ModelOperations);

impl Tap for OperationRecorder {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if let Some(node) = value.origins().first().and_then(node_of) {
            self.0.nodes.insert((site.layer, site.point), node);
        }
        // Drop the value's origins, so that each node records its own operation only.
        value.with_origins(Vec::new())
    }
}

impl ModelOperations {
    /// Collects the parameters of a model by reading one token.
    ///
    /// # Errors
    /// If the numerics cannot compute with a weight's type.
    pub fn of(model: &dyn Model, numerics: &dyn Numerics) -> Result<Self> {
        let n_layers = model.dimensions().n_layers;
        let windows = (0..n_layers).map(|layer| model.window(layer)).collect();
        let mut scout = OperationRecorder(Self { nodes: BTreeMap::new(), windows });
        let traced = TracedNumerics::new(numerics, Profile::of(numerics));
        engine::run(model, &traced, &RunInput::greedy(&[0], 0), &mut scout)?;
        Ok(scout.0)
    }

    /// Returns the number of layers.
    pub fn n_layers(&self) -> usize {
        self.windows.len()
    }

    /// Returns a layer's sliding window: the number of latest keys it sees.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }

    /// Returns true if any layer has a sliding window.
    pub(crate) fn slides(&self) -> bool {
        self.windows.iter().any(Option::is_some)
    }

    /// Returns the node at a tap and layer.
    pub(crate) fn node(&self, point: Point, layer: Option<usize>) -> Option<Arc<Node>> {
        self.nodes.get(&(layer, point)).cloned()
    }

    /// Returns the operation at a tap and layer, if it has type `S`.
    pub(crate) fn stage<S: Operation>(&self, point: Point, layer: Option<usize>) -> Option<&S> {
        self.nodes.get(&(layer, point))?.operation()
    }

    /// Returns the norms of rows of `width` values, each with its tap, layer and gains.
    pub(crate) fn norms(&self, width: usize) -> impl Iterator<Item = (Point, Option<usize>, Vec<f32>)> {
        self.nodes.iter().filter_map(move |(&(layer, point), node)| {
            let rms = node.operation::<RmsNormalisation>().map(|rms| rms.norm.gains().collect::<Vec<f32>>());
            let gains = rms.or_else(|| Some(node.operation::<LayerNormalisation>()?.norm.weight.clone()))?;
            (gains.len() == width).then_some((point, layer, gains))
        })
    }

    /// Returns the RMSNorm at a tap and layer.
    pub fn norm(&self, point: Point, layer: Option<usize>) -> Option<&RmsNorm> {
        Some(&self.stage::<RmsNormalisation>(point, layer)?.norm)
    }

    /// Returns the matrix at a tap and layer, with its bias and scale.
    pub fn product(&self, point: Point, layer: Option<usize>) -> Option<LinearParameters> {
        let node = self.nodes.get(&(layer, point))?;
        LinearParameters::of(node).or_else(|| LinearParameters::of(&InnerOperation::of(node)?.node))
    }

    /// Returns the embedding table.
    pub(crate) fn table(&self) -> Option<&Matrix> {
        let node = self.nodes.get(&(None, Point::Embed))?;
        embedding(node)
    }

    /// Returns the rotation of a layer.
    pub fn rope(&self, layer: usize) -> Option<&Rope> {
        Some(&self.stage::<Rotary>(Point::QRope, Some(layer))?.rope)
    }
}

/// Returns the table of an embedding.
fn embedding(node: &Node) -> Option<&Matrix> {
    lookup(node).map(|lookup| &lookup.table)
}

/// Returns the lookup of an embedding, before its scaling or the addition of positions.
fn lookup(node: &Node) -> Option<&EmbeddingLookup> {
    if let Some(lookup) = node.operation() {
        return Some(lookup);
    }
    let scaled = node.operation::<Scaling>().map(|times| &times.x);
    let before = scaled.or_else(|| Some(&node.operation::<Addition>()?.a))?;
    lookup(before.origins().first()?.source.as_ref()?.downcast_ref()?)
}

/// Returns the tokens whose embeddings a value holds.
pub(crate) fn embedded_tokens(value: &Tensor) -> Option<Vec<u32>> {
    let node = value.origins().first().and_then(node_of)?;
    lookup(&node).map(|lookup| lookup.tokens.clone())
}
