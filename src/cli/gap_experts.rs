//! Experts that a side chose, in place of those that our engine would choose.

use crate::checkpoint::{Point, Site};
use crate::error::{Error, Result};
use crate::gap::{ExpertRoutes, RouteReplay};
use crate::tap::Tap;
use crate::tensor::Tensor;

/// A tap that replaces the chosen experts. Their weights are computed from the router's logits, as in routing replay (R3).
#[derive(Debug, Default)]
pub(super) struct GivenExpertsTap<'r> {
    given: Option<&'r ExpertRoutes>,
    /// Number of layers of the model; only some of them may have experts.
    layers: usize,
    /// Number of layers with experts, and number of experts that each token chooses.
    shape: [usize; 2],
    /// Scores from which the experts of the layer are chosen.
    scores: Option<Tensor>,
    replay: RouteReplay,
    problem: Option<String>,
}

impl<'r> GivenExpertsTap<'r> {
    /// Creates a tap for a model with this number of layers.
    pub(super) fn new(given: Option<&'r ExpertRoutes>, layers: usize) -> Self {
        Self { given, layers, ..Self::default() }
    }

    /// Returns the choices that were replaced.
    ///
    /// # Errors
    /// If the experts are not those of a model of this shape.
    pub(super) fn replay(self) -> Result<RouteReplay> {
        let Some(given) = self.given else { return Ok(self.replay) };
        let [with_experts, used] = self.shape;
        let [layers, own] = given.shape();
        let problem = match self.problem {
            None if own == used && (layers == with_experts || layers == self.layers) => {
                return Ok(self.replay);
            }
            Some(problem) => problem,
            None => format!(
                "{layers} layers with {own} experts for each token, the model has {with_experts} layers with experts, \
                 {used} for each token"
            ),
        };
        Err(Error::Usage(format!("--model: routed_experts: {problem}")))
    }

    /// Replaces the experts of a layer.
    fn experts(&mut self, layer: usize, own: Tensor) -> Tensor {
        let [index, used] = [self.shape[0], own.row_len()];
        self.shape = [index + 1, used];
        let Some((given, scores)) = self.given.zip(self.scores.take()) else { return own };
        let [layers, width] = given.shape();
        let slot = if layers == self.layers { layer } else { index };
        if width != used || slot >= layers {
            return own;
        }
        let mut data = own.data().to_vec();
        for (token, row) in data.chunks_mut(used).enumerate() {
            let Some(chosen) = given.chosen(token, slot) else { continue };
            if let Some(unknown) = chosen.iter().find(|&&expert| usize::from(expert) >= scores.row_len()) {
                let problem = format!("expert {unknown}, the model has {} experts", scores.row_len());
                self.problem.get_or_insert(problem);
                continue;
            }
            let chosen: Vec<f32> = chosen.iter().map(|&expert| expert.into()).collect();
            self.replay.choices += 1;
            if chosen != row {
                self.replay.other_choices += 1;
                let gap = gap(scores.row(token), row, &chosen);
                self.replay.largest_gap = self.replay.largest_gap.max(gap);
            }
            row.copy_from_slice(&chosen);
        }
        Tensor::new(own.shape(), data)
    }
}

/// Returns the largest score of an expert that the side did not choose, minus the smallest score of an expert that
/// the side chose instead.
fn gap(scores: &[f32], own: &[f32], chosen: &[f32]) -> f64 {
    let score = |expert: &f32| f64::from(scores[*expert as usize]);
    let best = own.iter().filter(|expert| !chosen.contains(expert)).map(score).fold(f64::MIN, f64::max);
    let worst = chosen.iter().filter(|expert| !own.contains(expert)).map(score).fold(f64::MAX, f64::min);
    // A side may choose better scores: those of groups that our engine excludes.
    (best - worst).abs()
}

impl Tap for GivenExpertsTap<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        match (site.point, site.layer) {
            (Point::RouterLogits | Point::ExpertScores, _) if self.given.is_some() => {
                self.scores = Some(value.clone());
                value
            }
            (Point::Experts, Some(layer)) => self.experts(layer, value),
            _ => value,
        }
    }

    fn wants(&self, site: Site) -> bool {
        let is_score = matches!(site.point, Point::RouterLogits | Point::ExpertScores);
        self.given.is_some() && (is_score || site.point == Point::Experts)
    }
}
