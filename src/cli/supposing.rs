//! Runs with supposed changes: `--suppose`.

use crate::change::{Book, Changing, Supposition};
use crate::engine::{self, Script, Transcript};
use crate::error::{Error, Result};
use crate::exact::{Profile, Traced};
use crate::model::Model;
use crate::numerics::Numerics;
use crate::tap::Tap;

/// Runs the model with supposed changes.
pub fn run_supposing(
    supposed: &[Supposition],
    model: &dyn Model,
    numerics: &dyn Numerics,
    script: &Script,
    tap: &mut dyn Tap,
) -> Result<Transcript> {
    let traced = Traced::new(numerics, Profile::of(numerics));
    let book = Book::of(model, numerics)?;
    let changing = Changing::new(&traced, &book, supposed).forgetting();
    let mut taps = (changing, tap);
    let transcript = engine::run(model, &traced, script, &mut taps)?;
    match taps.0.made.get() {
        0 => Err(Error::Usage("--suppose: no effect in this model".into())),
        _ => Ok(transcript),
    }
}
