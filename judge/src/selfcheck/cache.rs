//! Check that results do not depend on how the KV cache was filled.

use crate::error::Result;
use crate::selfcheck::operations::OperationFloors;
use crate::selfcheck::tally::LogitsTally;
use crate::selfcheck::{CheckResult, CheckSubject, Exactness, PROMPT};
use crate::verdict::Verdict;

/// Compares every tap at every position between one pass over all tokens and one pass per token.
///
/// # Errors
/// If the model cannot be run.
pub fn prefill_equals_decode(subject: CheckSubject) -> Result<CheckResult> {
    const NAME: &str = "prefill equals decode";
    let length = subject.tokens().len();
    if length < 2 {
        return Ok(CheckResult::new(NAME, Verdict::Inconclusive, "the context is too short: one token"));
    }
    OperationFloors::of(subject, subject.exactness())?.judge(NAME, subject, &vec![1; length])
}

/// Compares a prompt followed by single tokens with longer prompts that start from an empty cache. Compares
/// the logits if bits must be equal, otherwise every tap.
///
/// # Errors
/// If the model cannot be run.
pub fn cache_on_equals_off(subject: CheckSubject) -> Result<CheckResult> {
    const NAME: &str = "cache on equals cache off";
    let length = subject.tokens().len();
    if length <= PROMPT {
        let why = format!("the context is too short: {length} tokens");
        return Ok(CheckResult::new(NAME, Verdict::Inconclusive, why));
    }
    match subject.exactness() {
        Exactness::Bits => Ok(logits_cached_and_anew(subject)?.checked(NAME)),
        Exactness::Rounding => {
            let lengths = [vec![PROMPT], vec![1; length - PROMPT]].concat();
            OperationFloors::of(subject, Exactness::Rounding)?.judge(NAME, subject, &lengths)
        }
    }
}

fn logits_cached_and_anew(subject: CheckSubject) -> Result<LogitsTally> {
    let tokens = subject.tokens();
    let mut cached = subject.engine(tokens.len())?;
    let mut tally = LogitsTally::default();
    cached.read(&tokens[..PROMPT], &mut ())?;
    for last in PROMPT..tokens.len() {
        let mut anew = subject.engine(tokens.len())?;
        let with_cache = cached.read(&tokens[last..=last], &mut ())?;
        tally.add(with_cache.data(), anew.read(&tokens[..=last], &mut ())?.data());
    }
    Ok(tally)
}

/// Compares the logits of a cache that only keeps each layer's window with those of a cache that keeps
/// everything.
///
/// # Errors
/// If the model cannot be run.
pub fn window_equals_whole(subject: CheckSubject) -> Result<CheckResult> {
    const NAME: &str = "window kept equals all kept";
    let tokens = subject.tokens();
    let (prompt, rest) = tokens.split_at(PROMPT.min(tokens.len()));
    let (mut whole, mut window) = (subject.engine(tokens.len())?, subject.engine(tokens.len())?.forgetting());
    let mut tally = LogitsTally::default();
    for part in std::iter::once(prompt).chain(rest.chunks(1)) {
        tally.add(window.read(part, &mut ())?.data(), whole.read(part, &mut ())?.data());
    }
    if !window.has_forgotten() {
        let why = format!("no layer has a window of fewer than {} tokens", tokens.len());
        return Ok(CheckResult::not_applicable(NAME, why));
    }
    Ok(tally.checked(NAME))
}
