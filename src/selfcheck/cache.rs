//! What the KV cache holds must not depend on how it was filled.

use crate::compare::Verdict;
use crate::engine::{Engine, Script, Step};
use crate::error::Result;
use crate::selfcheck::record::compare_runs;
use crate::selfcheck::{Exactness, Finding, PROMPT, Subject, Tally};

/// The same tokens all at once and one by one: every tap of every position.
///
/// # Errors
/// If the model cannot be run.
pub fn prefill_equals_decode(subject: Subject) -> Result<Finding> {
    const NAME: &str = "prefill equals decode";
    let tokens = subject.tokens();
    if tokens.len() < 2 {
        return Ok(Finding::new(NAME, Verdict::Inconclusive, "the context has room for one token only"));
    }
    let one_by_one = tokens.iter().map(|&token| Step::given(&[token])).collect();
    let [at_once, one_by_one] =
        [vec![Step::given(&tokens)], one_by_one].map(|passes| Script { passes, prompt_len: tokens.len() });
    compare_runs(NAME, [(subject, &one_by_one), (subject, &at_once)], subject.exactness())
}

/// Logits of a prompt and single tokens after it, against those of ever longer prompts that start anew.
///
/// # Errors
/// If the model cannot be run.
pub fn cache_on_equals_off(subject: Subject) -> Result<Finding> {
    const NAME: &str = "cache on equals cache off";
    let tokens = subject.tokens();
    let Some(rest) = tokens.get(PROMPT..).filter(|rest| !rest.is_empty()) else {
        let why = format!("the context has room for {} tokens only", tokens.len());
        return Ok(Finding::new(NAME, Verdict::Inconclusive, why));
    };
    let mut cached = subject.engine(tokens.len())?;
    let mut tally = Tally::default();
    cached.read(&tokens[..PROMPT], &mut ())?;
    for (index, token) in rest.iter().enumerate() {
        let mut anew = subject.engine(tokens.len())?;
        let ours = cached.read(&[*token], &mut ())?;
        let theirs = anew.read(&tokens[..=PROMPT + index], &mut ())?;
        tally.add(ours.data(), theirs.data());
    }
    Ok(tally.finding(NAME, subject.exactness()))
}

/// Logits with a cache that keeps no more than each layer's window, against one that keeps everything.
///
/// # Errors
/// If the model cannot be run.
pub fn window_equals_whole(subject: Subject) -> Result<Finding> {
    const NAME: &str = "window kept equals all kept";
    let tokens = subject.tokens();
    let (prompt, rest) = tokens.split_at(PROMPT.min(tokens.len()));
    let (mut whole, mut window) = (subject.engine(tokens.len())?, subject.engine(tokens.len())?.forgetting());
    let mut tally = Tally::default();
    for part in std::iter::once(prompt).chain(rest.chunks(1)) {
        tally.add(window.read(part, &mut ())?.data(), whole.read(part, &mut ())?.data());
    }
    if !window.has_forgotten() {
        let why = format!("no layer's window is smaller than {} tokens", tokens.len());
        return Ok(Finding::not_applicable(NAME, why));
    }
    Ok(tally.finding(NAME, Exactness::Bits))
}

impl<'m> Subject<'m> {
    pub(super) fn engine(&self, capacity: usize) -> Result<Engine<'m>> {
        Engine::new(self.model, self.numerics, capacity)
    }
}
