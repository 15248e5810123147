//! Exact evaluation of the gated delta rule: outputs and states.
//!
//! The rule is a recurrence, so an error of one token reaches all later tokens. Each step multiplies the error by
//! exp(g) · (I - β k kᵀ). This makes no error larger, since keys have length 1 and β is between 0 and 1. The error of an
//! update β(v - S·k) is multiplied by the token's key and is propagated exactly. Rounding errors of the state's elements are
//! bounded by the largest variance of a row.

mod chunk;
mod head;
mod history;
mod inputs;

use std::sync::Arc;

pub(crate) use self::history::DeltaHistory;
use crate::exact::input::InputTensor;
use crate::exact::{ExactValue, Float, Operation, Profile};
use crate::ops::delta_rule::exact::head::HeadRun;
use crate::ops::delta_rule::exact::inputs::{KnownPass, known};
use crate::parallel;
use crate::tensor::Tensor;

/// Outputs of the latest pass: `[T, H, Dv]`.
pub(crate) struct DeltaOutput(pub(crate) Arc<DeltaHistory>);

/// State after the latest pass: `[H, Dv, Dk]`.
pub(crate) struct DeltaState(pub(crate) Arc<DeltaHistory>);

impl Operation for DeltaOutput {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let latest = self.0.latest();
        let ([_, width], heads) = (latest.widths(), latest.heads());
        let of = runs(&self.0, profile, wanted, |flat| flat / width % heads, HeadRun::outputs);
        wanted.iter().map(|&flat| of[flat / width % heads][flat / width / heads][flat % width]).collect()
    }

    fn is_light(&self) -> bool {
        false
    }

    fn inputs(&self) -> Vec<&Tensor> {
        self.0.inputs()
    }
}

impl Operation for DeltaState {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let [width, rows] = self.0.latest().widths();
        let of = runs(&self.0, profile, wanted, |flat| flat / (width * rows), HeadRun::state);
        wanted.iter().map(|&flat| of[flat / (width * rows)][flat / width % rows][flat % width]).collect()
    }

    fn is_light(&self) -> bool {
        false
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        self.0.inputs()
    }
}

/// Evaluates the heads that the requested results need. The entries of other heads are empty.
fn runs(
    history: &DeltaHistory,
    profile: &Profile,
    wanted: &[usize],
    head_of: impl Fn(usize) -> usize,
    results: fn(&HeadRun) -> Vec<Vec<ExactValue>>,
) -> Vec<Vec<Vec<ExactValue>>> {
    let latest = history.latest();
    let mut is_wanted = vec![false; latest.heads()];
    wanted.iter().for_each(|&flat| is_wanted[head_of(flat)] = true);
    let passes: Vec<KnownPass> = history.passes.iter().map(|pass| known(pass, profile)).collect();
    let initial = InputTensor::of(&history.initial, profile);
    let tokens: usize = history.passes.iter().map(|pass| pass.len()).sum();
    let work = tokens * latest.widths().iter().product::<usize>();
    parallel::map(latest.heads(), work, |head| match is_wanted[head] {
        true => results(&HeadRun::of(&passes, &initial, head, profile)),
        false => Vec::new(),
    })
}
