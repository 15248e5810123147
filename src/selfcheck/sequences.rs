//! Neither a neighbour nor an onlooker may change a sequence.

use crate::checkpoint::Site;
use crate::engine::{Generation, Request, Sampling, generate_all};
use crate::error::Result;
use crate::selfcheck::{Exactness, Finding, PROMPT, Subject, Tally};
use crate::tap::Tap;
use crate::tensor::Tensor;

/// Tokens that each sequence of a batch generates.
const GENERATED: usize = 6;

/// Sequences of several lengths, drawn at a temperature, generated side by side and each alone: their tokens, and the
/// logits after each.
///
/// # Errors
/// If the model cannot be run.
pub fn batch_equals_single(subject: Subject) -> Result<Finding> {
    const NAME: &str = "batch equals single";
    let tokens = subject.tokens();
    let longest = tokens.len().saturating_sub(GENERATED);
    let lengths = [longest, longest.div_ceil(2), 1].into_iter().filter(|&length| length > 0);
    let requests: Vec<Request> = lengths.map(|length| subject.request(&tokens[..length])).collect();
    let mut together = Vec::new();
    for request in &requests {
        together.push(Generation::new(subject.model, subject.numerics, request.clone())?);
    }
    let mut tally = Tally::default();
    generate_all(&mut together, |_, _| true)?;
    for (side_by_side, request) in together.iter().zip(requests) {
        let mut alone = Generation::new(subject.model, subject.numerics, request)?;
        while alone.advance()?.is_some() {}
        let ids = |one: &Generation| one.generated().iter().map(|&id| id as f32).collect::<Vec<_>>();
        tally.add(&ids(side_by_side), &ids(&alone));
        tally.add(side_by_side.logits(), alone.logits());
    }
    Ok(tally.finding(NAME, Exactness::Bits))
}

/// Logits of a prompt and tokens after it, with somebody looking at every value and with nobody.
///
/// # Errors
/// If the model cannot be run.
pub fn recorded_equals_unrecorded(subject: Subject) -> Result<Finding> {
    const NAME: &str = "recorded equals unrecorded";
    let tokens = subject.tokens();
    let (mut recorded, mut unrecorded) = (subject.engine(tokens.len())?, subject.engine(tokens.len())?);
    let mut tally = Tally::default();
    let (prompt, rest) = tokens.split_at(PROMPT.min(tokens.len()));
    for part in std::iter::once(prompt).chain(rest.chunks(1)) {
        tally.add(recorded.read(part, &mut Looks)?.data(), unrecorded.read(part, &mut ())?.data());
    }
    Ok(tally.finding(NAME, Exactness::Bits))
}

/// Looks at everything.
struct Looks;

impl Tap for Looks {
    fn tap(&mut self, _: Site, value: Tensor) -> Tensor {
        value
    }
}

impl Subject<'_> {
    fn request(&self, prompt: &[u32]) -> Request {
        Request {
            prompt: prompt.to_vec(),
            max_tokens: GENERATED,
            stop: Vec::new(),
            context: prompt.len() + GENERATED,
            forgets: false,
            sampling: Sampling { temperature: 0.8, seed: 1, ..Sampling::GREEDY },
        }
    }
}
