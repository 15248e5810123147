//! Causes found from two dumps without a model. Only activation functions can be checked, because they need
//! no weights.

use crate::align::aligned;
use crate::change::CauseKind;
use crate::checkpoint::{Point, Site};
use crate::dump::Dump;
use crate::error::Result;
use crate::exact::{Profile, ResultPair, judge};
use crate::model::Activation;
use crate::numerics::{F32, Numerics};
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;
use crate::verdict::{Finding, SiteResult, Verdict};
use crate::view::View;

/// Finds different activation functions. Each dump's `ffn_act` follows from its own gate and up by one
/// function, and the two functions differ.
pub(super) fn other_activation(
    candidate: &Dump,
    reference: &Dump,
    rows: &[SiteResult],
) -> Result<Option<Finding>> {
    let fails = |row: &&SiteResult| row.site.point == Point::FfnAct && row.verdict == Verdict::Fail;
    let Some(row) = rows.iter().find(fails) else { return Ok(None) };
    let of = |dump| {
        RecordedActivation::read(dump, row.site).map(|stage| stage.and_then(|stage| stage.activation()))
    };
    let (Some(theirs), Some(ours)) = (of(reference)?, of(candidate)?) else { return Ok(None) };
    if theirs == ours {
        return Ok(None);
    }
    let what = format!(
        "activation: the candidate computes ffn_act from gate and up by {ours}, the reference by {theirs}"
    );
    Ok(Some(Finding {
        key: Some("hidden_act".to_owned()),
        reference: Some(theirs.to_string()),
        candidate: Some(ours.to_string()),
        verified_on: vec![row.site.to_string()],
        ..Finding::new(CauseKind::Activation, row.site, what)
    }))
}

/// The recorded inputs and the output of one activation function.
struct RecordedActivation {
    /// Gate values, `[T, F]`, if the architecture has a gate.
    gate: Option<Tensor>,
    /// Result of the up projection, `[T, F]`.
    up: Tensor,
    /// Result of the activation function, `[T, F]`.
    act: Tensor,
}

impl RecordedActivation {
    /// Reads the values at a site's layer and pass. Returns `None` if a dump lacks one or the shapes differ.
    fn read(dump: &Dump, site: Site) -> Result<Option<Self>> {
        let at = |point| tensor(dump, Site { point, ..site });
        let (gate, up, act) = (at(Point::FfnGate)?, at(Point::FfnUp)?, at(Point::FfnAct)?);
        let (Some(up), Some(act)) = (up, act) else { return Ok(None) };
        let fits = [Some(&up), gate.as_ref()].into_iter().flatten().all(|x| x.shape() == act.shape());
        Ok(fits.then_some(Self { gate, up, act }))
    }

    /// Returns the activation function that explains the recorded result, if exactly one does.
    fn activation(&self) -> Option<Activation> {
        // Variants of one function differ only in rounding. Two dumps do not show rounding, so only one
        // variant of each function is tried.
        let functions = Activation::ALL.iter().copied().filter(|known| known.function() == *known);
        let mut fits = functions.filter(|&known| self.is_made_by(known));
        let first = fits.next()?;
        fits.next().is_none().then_some(first)
    }

    fn is_made_by(&self, activation: Activation) -> bool {
        let traced = TracedNumerics::new(&F32, Profile::of(&F32));
        let own = match &self.gate {
            Some(gate) => traced.gated(gate, &self.up, activation),
            None => traced.activation(&self.up, activation),
        };
        let compared = ResultPair {
            traced: &own,
            sides: [&View::from(&self.act), &View::from(&own)],
            stored: None,
            is_double: false,
            sees: &|_| 0..usize::MAX,
        };
        judge(&compared, true).is_some_and(|judged| judged.dump.is_explained())
    }
}

/// Returns the recorded tensor of a site.
fn tensor(dump: &Dump, site: Site) -> Result<Option<Tensor>> {
    Ok(aligned(dump, site)?.as_ref().map(Tensor::from))
}
