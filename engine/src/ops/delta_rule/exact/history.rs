//! Tokens that the state of a gated delta rule has read since it was last recorded.

use std::sync::Arc;

use crate::exact::node_of;
use crate::ops::delta_rule::DeltaTokens;
use crate::ops::delta_rule::exact::DeltaState;
use crate::tensor::Tensor;

/// Returns the history that a state results from; `None` if the state is recorded.
fn before(state: &Tensor) -> Option<Arc<DeltaHistory>> {
    match state.origins() {
        [whole] => node_of(whole)?.operation::<DeltaState>().map(|DeltaState(history)| history.clone()),
        _ => None,
    }
}

/// A state, and the tokens read after it: those of earlier passes too, as long as no dump records the state between them. A
/// state between two passes is thus evaluated from recorded values, like all others.
pub(crate) struct DeltaHistory {
    /// `[H, Dv, Dk]`
    pub(crate) initial: Tensor,
    /// Tokens of each pass; the latest is the last.
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
        self.passes.last().expect("every history has a pass")
    }

    /// Returns everything that is read.
    pub(super) fn inputs(&self) -> Vec<&Tensor> {
        self.passes.iter().flat_map(|pass| pass.tensors()).chain([&self.initial]).collect()
    }
}
