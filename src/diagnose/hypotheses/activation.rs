//! Another activation function: the reference's own gate and up give its `ffn_act` by another nonlinearity than ours.

use crate::checkpoint::{Point, Site};
use crate::compare::Tolerance;
use crate::diagnose::hypotheses::{Evidence, Finding, Ours, tensor};
use crate::dump::Dump;
use crate::error::Result;
use crate::model::Activation;
use crate::numerics::{F32, Numerics};
use crate::tensor::Tensor;

pub(super) fn another(evidence: &Evidence) -> Result<Option<Finding>> {
    let Some(row) = evidence.first_failure(Point::FfnAct) else { return Ok(None) };
    let (site, tolerance) = (row.site, &row.tolerance);
    let numerics = evidence.numerics();
    let Some(stage) = Stage::read(evidence.theirs, site)? else { return Ok(None) };
    let (Some((theirs, error)), Some(ours)) =
        (stage.activation(numerics, tolerance), evidence.our_activation(site, tolerance)?)
    else {
        return Ok(None);
    };
    // Ours fits as well where the error was inherited, or where the two are too close for the tolerance to tell.
    let fits = |activation| stage.error(numerics, activation).is_some_and(|e| e <= tolerance.max_abs);
    if fits(ours) {
        return Ok(None);
    }
    let inputs = if stage.gate.is_some() { "gate and up" } else { "up" };
    let what = format!(
        "the reference's activation is {theirs}: its own {inputs} give this tap within {error:.1e}; ours is {ours}"
    );
    Ok(Some(Finding { site, what }))
}

impl Evidence<'_> {
    /// How to recompute the reference's stage: as our engine computes, or plainly.
    fn numerics(&self) -> &dyn Numerics {
        match self.ours {
            Ours::Model(_, numerics) => numerics,
            Ours::Dump(_) => &F32,
        }
    }

    /// The activation of our side: the model's own, or what another engine's values tell.
    fn our_activation(&self, site: Site, tolerance: &Tolerance) -> Result<Option<Activation>> {
        match self.ours {
            Ours::Model(model, _) => Ok(Some(model.activation())),
            Ours::Dump(dump) => {
                let stage = Stage::read(dump, site)?;
                Ok(stage.and_then(|stage| Some(stage.activation(&F32, tolerance)?.0)))
            }
        }
    }
}

/// One activation as a dump holds it: what entered and what left.
struct Stage {
    /// `[T, F]`, where the architecture has a gate.
    gate: Option<Tensor>,
    /// `[T, F]`
    up: Tensor,
    /// `[T, F]`
    act: Tensor,
}

impl Stage {
    /// The values around `site`; `None` where a dump lacks one, or they are not of one shape.
    fn read(dump: &Dump, site: Site) -> Result<Option<Self>> {
        let at = |point| tensor(dump, Site { point, ..site });
        let (gate, up, act) = (at(Point::FfnGate)?, at(Point::FfnUp)?, at(Point::FfnAct)?);
        let (Some(up), Some(act)) = (up, act) else { return Ok(None) };
        let fits = [Some(&up), gate.as_ref()].into_iter().flatten().all(|x| x.shape() == act.shape());
        Ok(fits.then_some(Self { gate, up, act }))
    }

    /// The activation that explains the stage best, with its largest error, if that is tolerable.
    fn activation(&self, n: &dyn Numerics, tolerance: &Tolerance) -> Option<(Activation, f64)> {
        let errors = Activation::ALL.iter().filter_map(|&known| Some((known, self.error(n, known)?)));
        let best = errors.min_by(|(_, a), (_, b)| a.total_cmp(b));
        best.filter(|(_, error)| *error <= tolerance.max_abs)
    }

    /// The largest difference between what the dump holds and what an activation gives; `None` if that is no number.
    fn error(&self, n: &dyn Numerics, activation: Activation) -> Option<f64> {
        let ours = match &self.gate {
            Some(gate) => n.gated(gate, &self.up, activation),
            None => n.activation(&self.up, activation),
        };
        let differences = ours.data().iter().zip(self.act.data());
        let mut differences = differences.map(|(&ours, &theirs)| (f64::from(ours) - f64::from(theirs)).abs());
        differences.try_fold(0.0, |most: f64, next| next.is_finite().then(|| most.max(next)))
    }
}
