//! Causes from two dumps without a model, operation by operation. Only activations need no weights.

use crate::change::CauseKind;
use crate::checkpoint::{Point, Site};
use crate::compare::{Heads, SiteResult, Verdict, aligned};
use crate::diagnose::causes::finding::Finding;
use crate::dump::Dump;
use crate::error::Result;
use crate::exact::{Profile, ResultPair, TracedNumerics, judge};
use crate::model::Activation;
use crate::numerics::{F32, Numerics};
use crate::tensor::Tensor;
use crate::view::View;

/// Another nonlinearity: each dump's own gate and up give its `ffn_act` by one, and these are not the same.
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
    /// `[T, F]`, where the architecture has a gate.
    gate: Option<Tensor>,
    /// `[T, F]`
    up: Tensor,
    /// `[T, F]`
    act: Tensor,
}

impl RecordedActivation {
    /// The values around `site`; `None` where a dump lacks one, or they are not of one shape.
    fn read(dump: &Dump, site: Site) -> Result<Option<Self>> {
        let at = |point| tensor(dump, Site { point, ..site });
        let (gate, up, act) = (at(Point::FfnGate)?, at(Point::FfnUp)?, at(Point::FfnAct)?);
        let (Some(up), Some(act)) = (up, act) else { return Ok(None) };
        let fits = [Some(&up), gate.as_ref()].into_iter().flatten().all(|x| x.shape() == act.shape());
        Ok(fits.then_some(Self { gate, up, act }))
    }

    /// Returns the only activation that explains the operation.
    fn activation(&self) -> Option<Activation> {
        // The forms of one function are told apart by their rounding, which two dumps do not tell.
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
    Ok(aligned(dump, site, Heads::AS_THEY_ARE)?.as_ref().map(Tensor::from))
}
