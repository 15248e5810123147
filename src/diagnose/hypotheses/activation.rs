//! Another activation function: a dump's own gate and up give its `ffn_act` by another nonlinearity than the other side's.

use crate::checkpoint::{Point, Site};
use crate::compare::Tolerance;
use crate::diagnose::hypotheses::{Evidence, Finding, Other, tensor};
use crate::dump::Dump;
use crate::error::Result;
use crate::model::Activation;
use crate::numerics::{F32, Numerics};
use crate::tensor::Tensor;

pub(super) fn another(evidence: &Evidence) -> Result<Option<Finding>> {
    let Some(row) = evidence.first_failure(Point::FfnAct) else { return Ok(None) };
    let (site, tolerance) = (row.site, &row.tolerance);
    let numerics = evidence.numerics();
    let Some(stage) = Stage::read(evidence.dump, site)? else { return Ok(None) };
    let (Some((found, error)), Some(other)) =
        (stage.activation(numerics, tolerance), evidence.other_activation(site, tolerance)?)
    else {
        return Ok(None);
    };
    // The other's fits as well where the error was inherited, or where the two are too close for the tolerance to tell.
    let fits = |activation| stage.error(numerics, activation).is_some_and(|e| e <= tolerance.max_abs);
    if fits(other) {
        return Ok(None);
    }
    let inputs = if stage.gate.is_some() { "gate and up" } else { "up" };
    let (dump, against) = evidence.names();
    let what = format!(
        "the {dump}'s activation is {found}: its own {inputs} give this tap within {error:.1e}; the {against}'s is {other}"
    );
    Ok(Some(Finding { site, what }))
}

impl Evidence<'_> {
    /// How to recompute the dump's stage: as our engine computes, or plainly.
    fn numerics(&self) -> &dyn Numerics {
        match self.other {
            Other::Model(_, numerics) => numerics,
            Other::Dump(_) => &F32,
        }
    }

    /// The activation of the other side: the model's own, or what another engine's values tell.
    fn other_activation(&self, site: Site, tolerance: &Tolerance) -> Result<Option<Activation>> {
        match self.other {
            Other::Model(model, _) => Ok(Some(model.activation())),
            Other::Dump(dump) => {
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
        let own = match &self.gate {
            Some(gate) => n.gated(gate, &self.up, activation),
            None => n.activation(&self.up, activation),
        };
        let differences = own.data().iter().zip(self.act.data());
        let mut differences = differences.map(|(&own, &dumped)| (f64::from(own) - f64::from(dumped)).abs());
        differences.try_fold(0.0, |most: f64, next| next.is_finite().then(|| most.max(next)))
    }
}
