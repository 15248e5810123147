//! `--suppose`: runs of the model with supposed changes.

use crate::catalogue::{ChangeTap, Supposition};
use crate::change::ModelOperations;
use crate::engine::{self, RunInput, Transcript};
use crate::error::{Error, Result};
use crate::exact::Profile;
use crate::model::Model;
use crate::numerics::Numerics;
use crate::tap::Tap;
use crate::tracing::TracedNumerics;

/// Runs the model with supposed changes, if there are any.
pub(crate) fn run_supposing(
    supposed: &[Supposition],
    model: &dyn Model,
    numerics: &dyn Numerics,
    script: &RunInput,
    tap: &mut dyn Tap,
) -> Result<Transcript> {
    if supposed.is_empty() {
        return engine::run(model, numerics, script, tap);
    }
    let traced = TracedNumerics::new(numerics, Profile::of(numerics));
    let operations = ModelOperations::of(model, numerics)?;
    let changing = ChangeTap::new(&traced, &operations, supposed).forgetting();
    let mut taps = (changing, tap);
    let transcript = engine::run(model, &traced, script, &mut taps)?;
    match taps.0.made.get() {
        0 => Err(Error::Usage("--suppose: no effect in this model".into())),
        _ => Ok(transcript),
    }
}
