//! Exact evaluation of products with the matrices of the chosen experts.

use std::collections::HashMap;

use crate::exact::input::InputTensor;
use crate::exact::operand::{Operand, operand_type};
use crate::exact::{Choice, ExactValue, Float, Operands, Operation, Profile, is_given};
use crate::ops::experts::{by_expert, row_of_each};
use crate::ops::linear::exact::{SharedCodes, WeightRow, is_of_parts};
use crate::parallel;
use crate::quant::{ActivationCodes, CodeGroup};
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Products with the matrices of the chosen experts: `[T, cols]` or `[T, k, cols]` to `[T, k, rows]`.
pub(crate) struct ExpertProducts {
    /// `[T, cols]`, or `[T, k, cols]`: each chosen expert's own activations
    pub(crate) x: Tensor,
    /// `[rows, cols]` of each expert
    pub(crate) w: Vec<Matrix>,
    /// `[T, k]`, ascending
    pub(crate) chosen: Tensor,
}

impl Operation for ExpertProducts {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let mut exacts = self.products(profile, wanted);
        if profile.operands.tf32().is_some() {
            self.allow_whole_rows(profile, wanted, &mut exacts);
        }
        exacts
    }

    fn is_light(&self) -> bool {
        false
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::Tf32, Choice::Tf32Away, Choice::Tf32Cut, Choice::Truncates]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }

    fn dependence(&self) -> f64 {
        (self.w[0].rows as f64 / self.w[0].cols as f64).max(1.0)
    }

    fn is_unbiased(&self, profile: &Profile) -> bool {
        let is_coded = Float::of(operand_type(profile, self.w[0].dtype)).is_none();
        let of_integers = self.w.iter().any(|w| is_of_parts(&profile.of_product(w)));
        is_given(&self.x) && !profile.truncates && !is_coded && !of_integers
    }
}

impl ExpertProducts {
    fn products(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let rows = self.w[0].rows;
        let operands = self.operands(profile, wanted);
        let each = self.operand_of_each(profile);
        // Sorted by expert and output, so that each row of weights is decoded once for all tokens.
        let place = |index: usize| {
            let (entry, output) = (wanted[index] / rows, wanted[index] % rows);
            (self.chosen.data()[entry] as usize, output)
        };
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_unstable_by_key(|&index| place(index));
        let groups: Vec<&[usize]> = order.chunk_by(|&a, &b| place(a) == place(b)).collect();
        let of_group = |group: usize| {
            let indices = groups[group];
            let (expert, output) = place(indices[0]);
            let profile = &profile.of_product(&self.w[expert]);
            let row = WeightRow::new(&self.w[expert], output, profile);
            let at = |&index: &usize| row.times(&operands[&each(wanted[index] / rows)], None, profile);
            indices.iter().map(at).collect::<Vec<_>>()
        };
        let found = parallel::map(groups.len(), self.w[0].cols, of_group);
        let mut exacts = vec![ExactValue::default(); wanted.len()];
        for (indices, found) in groups.into_iter().zip(found) {
            indices.iter().zip(found).for_each(|(&index, exact)| exacts[index] = exact);
        }
        exacts
    }

    /// Widens the error bounds of experts that only one token of the pass chooses: cuBLAS computes a product of one row
    /// in plain f32, unless other sequences of a batch add rows.
    fn allow_whole_rows(&self, profile: &Profile, wanted: &[usize], exacts: &mut [ExactValue]) {
        let mut tokens = vec![0; self.w.len()];
        self.chosen.data().iter().for_each(|&expert| tokens[expert as usize] += 1);
        let is_alone =
            |&index: &usize| tokens[self.chosen.data()[wanted[index] / self.w[0].rows] as usize] == 1;
        let alone: Vec<usize> = (0..wanted.len()).filter(is_alone).collect();
        let whole = Profile { operands: Operands::Whole, truncates: false, ..*profile };
        let flats: Vec<usize> = alone.iter().map(|&index| wanted[index]).collect();
        for (index, exact) in alone.into_iter().zip(self.products(&whole, &flats)) {
            exacts[index] = exacts[index].or(exact);
        }
    }

    /// Returns the index of the operand that each entry of `chosen` reads: the token's row of activations, or a
    /// separate operand if the codes of activations depend on the expert.
    fn operand_of_each(&self, profile: &Profile) -> Box<dyn Fn(usize) -> usize + Sync> {
        match has_codes_of_experts(profile) {
            true => Box::new(|entry| entry),
            false => Box::new(row_of_each(&self.x, self.chosen.row_len())),
        }
    }

    /// Returns the operands that the requested results need.
    fn operands(&self, profile: &Profile, wanted: &[usize]) -> HashMap<usize, Operand> {
        let (rows, width) = (self.w[0].rows, self.w[0].cols);
        let each = self.operand_of_each(profile);
        let mut needed: Vec<usize> = wanted.iter().map(|flat| each(flat / rows)).collect();
        needed.dedup();
        let x = InputTensor::of(&self.x, profile);
        let row = row_of_each(&self.x, self.chosen.row_len());
        let depend = has_codes_of_experts(profile);
        let place = |index: usize| match depend {
            true => (row(index), self.chosen.data()[index] as usize),
            false => (index, 0),
        };
        let experts = if depend { by_expert(&self.chosen) } else { vec![(0, Vec::new())] };
        let codes_of = |(expert, entries): (usize, Vec<usize>)| {
            let rows = entries.iter().map(|&entry| row(entry));
            (expert, SharedCodes::of(&self.x, &x, rows, &self.w[expert], profile))
        };
        let codes: HashMap<usize, SharedCodes> = experts.into_iter().map(codes_of).collect();
        let operand = |&index: &usize| {
            let (row, expert) = place(index);
            (index, codes[&expert].operand(x.part(row * width, width)))
        };
        parallel::map(needed.len(), 4 * width, |at| operand(&needed[at])).into_iter().collect()
    }
}

/// Returns true if the codes of a token's activations depend on the expert: on its stored scale, or on the other
/// tokens that chose it.
fn has_codes_of_experts(profile: &Profile) -> bool {
    let depend = |codes: ActivationCodes| {
        matches!(codes.group, CodeGroup::Matrix | CodeGroup::Pass) || codes.outliers > 0.0
    };
    profile.activation_codes.is_some_and(depend)
}
