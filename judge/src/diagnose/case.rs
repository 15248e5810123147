//! Known cases: checks the model's tokenizer on a prompt, and the model's greedy continuation of the prompt.

use crate::align::AlignedDump;
use crate::check::{Rules, RunContext, RunResults};
use crate::checkpoint::{Point, Site};
use crate::diagnose::causes;
use crate::diagnose::cross_check::{finish, run_and_judge, subject};
use crate::dump::Dump;
use crate::error::Result;
use crate::model::Model;
use crate::numerics::Numerics;
use crate::tap::Tap;
use crate::verdict::{ComparisonSubject, Outcome, UnitRows};

/// The tokens that the model's own tokenizer makes of a prompt, or the reason why they are unknown.
pub type OwnTokens = std::result::Result<Vec<u32>, String>;

/// Checks a model against a known case. Compares `own_tokens` with the case's prompt tokens, and the model's
/// greedy choices with the case's continuation.
///
/// `case` is a dump without activations. Without a tokenizer, only the continuation is compared, and a note
/// says so.
///
/// # Errors
/// If the model cannot read the tokens.
pub fn check_case(
    name: &str,
    model: &dyn Model,
    numerics: &dyn Numerics,
    case: &Dump,
    own_tokens: &OwnTokens,
    rules: Rules,
    onlooker: &mut dyn Tap,
) -> Result<Outcome> {
    let held = AlignedDump::new(case)?;
    let context = RunContext::new(model, numerics, &held, rules)?;
    let mut judge = UnitRows::new(rules, model.architecture(), numerics.activation_type());
    let tokens = Site { point: Point::Tokens, layer: None, pass: None };
    match own_tokens {
        _ if !rules.selection.takes(tokens, &(0..0)) => {}
        Ok(own) => {
            let known = &case.manifest.input.tokens;
            judge.add_tokens(tokens, own, known, causes::of_prompt(tokens, own, known));
            judge.expect(tokens, 0..0);
        }
        Err(why) => judge.note(format!("{tokens}: not compared: {why}")),
    }
    // Without a continuation, the model does not have to run.
    let runs = match case.sites().next() {
        Some(_) => run_and_judge(&mut judge, &context, rules, onlooker)?,
        None => RunResults::default(),
    };
    let subject = ComparisonSubject { is_case: true, ..subject(name, &context, rules, case) };
    finish(judge, subject, &context, rules, runs)
}
