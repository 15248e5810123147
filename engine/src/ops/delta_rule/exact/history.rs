//! Tokens of a gated delta rule since its recurrent state was last recorded.

use std::sync::Arc;

use crate::exact::node_of;
use crate::ops::delta_rule::DeltaTokens;
use crate::ops::delta_rule::exact::DeltaState;
use crate::tensor::Tensor;

/// Returns the history from which a state was computed. `None` if the state is recorded.
fn before(state: &Tensor) -> Option<Arc<DeltaHistory>> {
    match state.origins() {
        [whole] => node_of(whole)?.operation::<DeltaState>().map(|DeltaState(history)| history.clone()),
        _ => None,
    }
}

/// A recorded state, and the tokens of all passes since then. Later states that the dump does not record are evaluated
/// from these.
pub(crate) struct DeltaHistory {
    /// `[H, Dv, Dk]`
    pub(crate) initial: Tensor,
    /// Tokens of each pass, the latest pass last.
    pub(crate) passes: Vec<Arc<DeltaTokens>>,
}

impl DeltaHistory {
    /// Creates the history of a pass that starts from `state`.
    pub(crate) fn of(tokens: &DeltaTokens, state: &Tensor) -> Self {
        let new = Arc::new(tokens.clone());
        match before(state) {
            Some(before) => {
                let passes = before.passes.iter().cloned().chain([new]).collect();
                Self { initial: before.initial.clone(), passes }
            }
            None => Self { initial: state.clone(), passes: vec![new] },
        }
    }

    /// Returns the number of passes between the last recorded state and `state`.
    pub(crate) fn passes_before(state: &Tensor) -> usize {
        before(state).map_or(0, |before| before.passes.len())
    }

    /// Returns the tokens of the latest pass.
    pub(crate) fn latest(&self) -> &DeltaTokens {
        self.passes.last().expect("a history has at least one pass")
    }

    /// Returns all input tensors.
    pub(super) fn inputs(&self) -> Vec<&Tensor> {
        self.passes.iter().flat_map(|pass| pass.tensors()).chain([&self.initial]).collect()
    }
}
