//! All values of one pass over all tokens. Provides the rows that correspond to any other pass.

use std::collections::HashMap;
use std::ops::Range;

use crate::checkpoint::{Point, Site, TapAxis};
use crate::engine::{self, PassInput, RunInput};
use crate::error::Result;
use crate::selfcheck::CheckSubject;
use crate::selfcheck::variety::Variety;
use crate::tap::Tap;
use crate::tensor::{RopePairing, Tensor};

/// All values of one pass, with the logits of every position.
pub(super) struct SinglePass {
    /// Tokens of the pass.
    pub(super) tokens: Vec<u32>,
    /// RoPE pairing of the model: pairs of head values that rotate together.
    pub(super) pairing: Option<RopePairing>,
    values: HashMap<Site, Tensor>,
    order: Vec<Site>,
}

/// One row of a value: one token, and for attention values one head of it.
#[derive(Clone, Copy)]
pub(super) struct PassRow<'w> {
    /// The numbers that another pass must have in this row. For attention values: only the keys that this
    /// pass has seen.
    pub(super) numbers: &'w [f32],
    /// The whole row. `numbers` may be a part of it.
    whole: &'w [f32],
}

impl SinglePass {
    /// Reads all tokens in one pass.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub(super) fn of(subject: CheckSubject, tokens: &[u32]) -> Result<Self> {
        let tokens = tokens.to_vec();
        let pairing = subject.model.dimensions().rope_pairing;
        let script = RunInput { passes: vec![PassInput::given(&tokens)], prompt_len: tokens.len() };
        let mut whole = Self { tokens, pairing, values: HashMap::new(), order: Vec::new() };
        engine::run(subject.model, subject.numerics, &script, &mut whole)?;
        Ok(whole)
    }

    /// Returns the rows that a pass over the tokens at `positions` must have at a site; `None` if the site
    /// has no value in this pass.
    pub(super) fn rows(&self, site: Site, positions: &Range<usize>) -> Option<Vec<PassRow<'_>>> {
        if site.point == Point::LastLogits {
            let last = positions.end - 1..positions.end;
            return self.rows(Site { point: Point::Logits, ..site }, &last);
        }
        let value = self.values.get(&Site { pass: None, ..site })?;
        let width = self.width(site.point, value);
        // Matrices of a recurrence exist after the last token alone.
        if site.point.axes().contains(&TapAxis::State) {
            let rows = value.data().chunks(width);
            let rows = rows.map(|row| PassRow { numbers: row, whole: row });
            return (positions.end == self.tokens.len()).then(|| rows.collect());
        }
        let (heads, wanted, length) = match site.point.axes() {
            [TapAxis::Head, ..] => (value.shape()[0], positions.clone(), positions.end.min(width)),
            [TapAxis::Key, ..] => (1, 0..positions.end, width),
            _ => (1, positions.clone(), width),
        };
        let all: Vec<&[f32]> = value.data().chunks(width).collect();
        let of_heads = all.chunks(self.tokens.len()).take(heads);
        let rows = of_heads.flat_map(|head| &head[wanted.clone()]);
        Some(rows.map(|row| PassRow { numbers: &row[..length], whole: row }).collect())
    }

    /// Returns the first site with NaN or infinity, and the value.
    pub(super) fn broken(&self) -> Option<(Site, f32)> {
        self.order.iter().find_map(|&site| Some((site, self.variety(site).broken()?)))
    }

    /// Returns the first site whose values cannot reveal a fault, such as all zeros, with the reason.
    pub(super) fn lacking(&self) -> Option<(Site, String)> {
        self.order.iter().find_map(|&site| Some((site, self.variety(site).lacking()?)))
    }

    fn variety(&self, site: Site) -> Variety {
        let value = &self.values[&site];
        Variety::of(value.data(), self.width(site.point, value))
    }

    /// Returns the number of values per row.
    fn width(&self, point: Point, value: &Tensor) -> usize {
        match point.axes() {
            [TapAxis::Head, ..] => value.shape()[2],
            _ => value.data().len() / self.tokens.len(),
        }
    }
}

impl Tap for SinglePass {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if self.wants(site) {
            let site = Site { pass: None, ..site };
            self.order.push(site);
            self.values.insert(site, value.clone());
        }
        value
    }

    /// Returns false for the last logits, which are a row of the logits of every position, and for values computed from
    /// them.
    fn wants(&self, site: Site) -> bool {
        !matches!(site.point, Point::LastLogits | Point::Argmax | Point::Probs | Point::Generated)
    }
}

impl PassRow<'_> {
    /// Returns the mean square of the whole row.
    pub(super) fn mean_square(&self) -> f64 {
        self.whole.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / self.whole.len() as f64
    }
}
