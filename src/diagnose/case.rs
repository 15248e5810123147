//! A known case: its prompt as the model's own tokenizer encodes it, and its greedy continuation.

use crate::checkpoint::{Point, Site};
use crate::diagnose::check::{Rules, run_and_judge};
use crate::diagnose::hypotheses::Ours;
use crate::diagnose::judge::Judge;
use crate::diagnose::outcome::Outcome;
use crate::dump::Dump;
use crate::error::Result;
use crate::model::Model;
use crate::numerics::Numerics;
use crate::tap::Tap;

/// What the model's own tokenizer makes of a prompt, or why that is not known.
pub type OwnTokens = std::result::Result<Vec<u32>, String>;

/// Compares `own_tokens` with the tokens of the case, and what `model` chooses along the continuation with the
/// continuation. `case` is a dump that holds nothing else. Without a tokenizer, only the continuation is compared, and
/// a note says so.
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
    let mut judge = Judge::new(case, rules, model.architecture());
    let mut expected = Vec::new();
    let tokens = Site { point: Point::Tokens, layer: None, pass: None };
    match own_tokens {
        _ if !rules.selection.includes(tokens) => {}
        Ok(ours) => {
            judge.add_tokens(tokens, ours, &case.manifest.input.tokens);
            expected.push(tokens);
        }
        Err(why) => judge.note(format!("{tokens}: not covered: {why}")),
    }
    // Without a continuation there is nothing to run the model for.
    if case.sites().next().is_some() {
        expected.extend(run_and_judge(&mut judge, model, numerics, case, rules, onlooker)?.expected);
    }
    Ok(Outcome { is_case: true, ..judge.finish(name, Ours::Model(model, numerics), &expected)? })
}
