//! Products whose error has a low rank over many tokens: an adapter (LoRA) that one engine applies and the other does
//! not.
//!
//! A few tokens show the rank of an adapter, but not its matrices: the error of `T` tokens is a matrix with the
//! adapter's rank. Errors of few outputs or few tokens have a low rank too, and so has a wrong bias. Those are
//! excluded. Wrong zero points of a quantised weight give a rank equal to the number of groups: their errors are
//! multiples of the sums of each group's inputs.

use crate::change::CauseKind;
use crate::check::UnexplainedOperation;
use crate::checkpoint::{Point, Site};
use crate::diagnose::causes::operation_search::SearchContext;
use crate::exact::node_of;
use crate::ops::linear::exact::{Integers, Linear};
use crate::tensor::Tensor;
use crate::verdict::{Cause, CauseSearch};
use crate::weight::DType;

/// Maximum number of tokens whose errors are compared.
const MOST_TOKENS: usize = 96;

/// A rank is low if it is at most this share of the number of different tokens and of outputs. Any error of a few
/// tokens has a low rank, so the number of tokens matters.
const SHARE: usize = 4;

/// Smallest share of tokens, and of outputs, with errors above the rounding of the product.
const DENSE: f64 = 0.9;

/// Largest rounding error, relative to the largest value of a token: in `f32`, and in 16-bit types.
const ROUNDING: [f64; 2] = [1e-5, 1.0 / 64.0];

/// Finds the products whose errors have the same rank as the first error. `None` if that rank is not low.
pub(super) fn of(search: &SearchContext, open: &[&UnexplainedOperation]) -> Option<Cause> {
    let first = ProductErrors::of(search, open.first()?)?;
    let rank = first.rank()?;
    let group = first.group_length(&open.first()?.traced, rank);
    let errors: Vec<(Site, ProductErrors)> =
        open.iter().filter_map(|one| Some((one.site, ProductErrors::of(search, one)?))).collect();
    let alike = errors.iter().filter(|(_, errors)| errors.rank() == Some(rank));
    let alike: Vec<Site> = alike.map(|(site, _)| *site).collect();
    // A pass of few tokens cannot contradict the rank that the same product has in another pass.
    let is_same = |site: Site| alike.iter().any(|one| (one.point, one.layer) == (site.point, site.layer));
    let is_short = |errors: &ProductErrors| errors.tokens < rank * SHARE;
    let told =
        errors.iter().filter(|(site, errors)| alike.contains(site) || (is_short(errors) && is_same(*site)));
    let sites: Vec<Site> = told.map(|(site, _)| *site).collect();
    let whose = search.context.role.name();
    let (kind, what) = match group {
        Some(len) => (
            CauseKind::WeightGroups,
            format!(
                "weight_groups: the errors of the {whose}'s products are multiples of the sums of {len} inputs each, as \
                 if zero points of groups of {len} inputs were wrong"
            ),
        ),
        None => (
            CauseKind::WeightLowRank,
            format!(
                "weight_low_rank: the errors of the {whose}'s products have rank {rank} over the tokens, as if an \
                 adapter (LoRA) of that rank were applied, or left out"
            ),
        ),
    };
    Some(Cause::described(CauseSearch::Stages, kind, sites, what))
}

/// Returns the input of a product.
fn input_of(product: &Tensor) -> Option<Tensor> {
    let [whole] = product.origins() else { return None };
    let node = node_of(whole)?;
    let of_codes = || node.operation::<Integers>().map(|product| product.x.clone());
    node.operation::<Linear>().map(|product| product.x.clone()).or_else(of_codes)
}

/// Subtracts the components along other vectors, which are orthogonal to each other.
fn without_parts(mut vector: Vec<f64>, units: &[Vec<f64>]) -> Vec<f64> {
    for unit in units {
        let along: f64 = vector.iter().zip(unit).map(|(a, b)| a * b).sum();
        vector.iter_mut().zip(unit).for_each(|(x, unit)| *x -= along * unit);
    }
    vector
}

/// Errors of a matrix product.
struct ProductErrors {
    /// Indices of the tokens whose errors are compared.
    rows: Vec<usize>,
    tokens: usize,
    outputs: usize,
    /// `[tokens, outputs]`
    errors: Vec<f64>,
    /// Largest rounding error of each token.
    rounding: Vec<f64>,
}

impl ProductErrors {
    fn of(search: &SearchContext, one: &UnexplainedOperation) -> Option<Self> {
        // Adapters leave the output matrix alone, and changes of logits have low ranks of their own.
        search
            .operations
            .product(one.site.point, one.site.layer)
            .filter(|_| one.site.point != Point::Logits)?;
        let outputs = one.traced.row_len();
        // The error of a token that occurs twice says nothing new.
        let is_new = |row: &usize| !(0..*row).any(|before| one.traced.row(before) == one.traced.row(*row));
        let rows: Vec<usize> = (0..one.traced.rows()).filter(is_new).take(MOST_TOKENS).collect();
        let is_short = search.context.numerics.activation_type() != DType::F32;
        let theirs = |row: usize| &one.theirs[row * outputs..][..outputs];
        let errors_of = |&row: &usize| {
            one.traced.row(row).iter().zip(theirs(row)).map(|(&own, theirs)| theirs - f64::from(own))
        };
        let errors: Vec<f64> = rows.iter().flat_map(errors_of).collect();
        let largest = |&row: &usize| {
            ROUNDING[usize::from(is_short)] * theirs(row).iter().fold(0.0f64, |most, y| most.max(y.abs()))
        };
        let is_known = errors.iter().all(|error| error.is_finite());
        let rounding = rows.iter().map(largest).collect();
        is_known.then_some(Self { tokens: rows.len(), rows, outputs, errors, rounding })
    }

    fn row(&self, token: usize) -> &[f64] {
        &self.errors[token * self.outputs..][..self.outputs]
    }

    /// Returns the rank of the errors if it is low, they are dense, and they differ between tokens.
    fn rank(&self) -> Option<usize> {
        let most = self.tokens.min(self.outputs) / SHARE;
        if most == 0 || !self.is_dense() || self.is_constant() {
            return None;
        }
        let mut rest = self.errors.clone();
        for rank in 1..=most {
            self.remove_largest(&mut rest);
            let mut rows = rest.chunks(self.outputs).zip(&self.rounding);
            if rows.all(|(row, rounding)| row.iter().all(|error| error.abs() <= *rounding)) {
                return Some(rank);
            }
        }
        None
    }

    /// Returns the number of inputs per group if each output's errors are combinations of the groups' input sums, and
    /// the number of groups equals the rank.
    fn group_length(&self, product: &Tensor, rank: usize) -> Option<usize> {
        let x = input_of(product).filter(|x| x.row_len().is_multiple_of(rank))?;
        let len = x.row_len() / rank;
        let mut units: Vec<Vec<f64>> = Vec::new();
        for group in 0..rank {
            let inputs = group * len..(group + 1) * len;
            let sum = |&row: &usize| x.row(row)[inputs.clone()].iter().map(|&x| f64::from(x)).sum();
            let rest = without_parts(self.rows.iter().map(sum).collect(), &units);
            let norm = rest.iter().map(|x| x * x).sum::<f64>().sqrt();
            units.push(rest.into_iter().map(|x| x / norm.max(f64::MIN_POSITIVE)).collect());
        }
        let is_made_of_sums = |output: usize| {
            let errors = (0..self.tokens).map(|token| self.row(token)[output]).collect();
            let rest = without_parts(errors, &units);
            rest.iter().zip(&self.rounding).all(|(error, rounding)| error.abs() <= *rounding)
        };
        (0..self.outputs).all(is_made_of_sums).then_some(len)
    }

    fn is_dense(&self) -> bool {
        let is_wrong =
            |token: usize, output: usize| self.row(token)[output].abs() > self.rounding[token] / 4.0;
        let tokens =
            (0..self.tokens).filter(|&token| (0..self.outputs).any(|output| is_wrong(token, output)));
        let outputs =
            (0..self.outputs).filter(|&output| (0..self.tokens).any(|token| is_wrong(token, output)));
        let is_most = |count: usize, all: usize| count as f64 >= DENSE * all as f64;
        is_most(tokens.count(), self.tokens) && is_most(outputs.count(), self.outputs)
    }

    /// Returns true if all tokens have the same error, as with a wrong bias.
    fn is_constant(&self) -> bool {
        let first = self.row(0);
        let is_first = |token: usize| {
            self.row(token).iter().zip(first).all(|(a, b)| (a - b).abs() <= 2.0 * self.rounding[token])
        };
        (1..self.tokens).all(is_first)
    }

    /// Subtracts the component along the largest singular vector, which power iteration finds. Subtracting any vector
    /// in the rows' space lowers the rank by one.
    fn remove_largest(&self, rest: &mut [f64]) {
        const STEPS: usize = 30;
        let width = self.outputs;
        let square = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>();
        let start = rest.chunks(width).max_by(|a, b| square(a).total_cmp(&square(b)));
        let mut right: Vec<f64> = start.map_or(Vec::new(), <[f64]>::to_vec);
        for _ in 0..STEPS {
            let norm = square(&right).sqrt();
            if norm == 0.0 {
                return;
            }
            right.iter_mut().for_each(|x| *x /= norm);
            let mut next = vec![0.0; width];
            for row in rest.chunks(width) {
                let along: f64 = row.iter().zip(&right).map(|(a, b)| a * b).sum();
                next.iter_mut().zip(row).for_each(|(sum, x)| *sum += along * x);
            }
            right = next;
        }
        let norm = square(&right).sqrt().max(f64::MIN_POSITIVE);
        right.iter_mut().for_each(|x| *x /= norm);
        for row in rest.chunks_mut(width) {
            let along: f64 = row.iter().zip(&right).map(|(a, b)| a * b).sum();
            row.iter_mut().zip(&right).for_each(|(x, unit)| *x -= along * unit);
        }
    }
}
