//! Checks that neither a parallel sequence nor a tap changes a sequence.

use crate::checkpoint::Site;
use crate::engine::Engine;
use crate::error::Result;
use crate::selfcheck::tally::LogitsTally;
use crate::selfcheck::{CheckResult, CheckSubject, PROMPT};
use crate::tap::Tap;
use crate::tensor::Tensor;

/// Number of single tokens that each sequence reads after its prompt.
const TURNS: usize = 6;

/// Compares several sequences that take turns with each sequence alone, by the logits after every pass. The
/// sequences share only the model and the numerics, so any difference shows shared state.
///
/// # Errors
/// If the model cannot be run.
pub fn side_by_side_equals_alone(subject: CheckSubject) -> Result<CheckResult> {
    const NAME: &str = "side by side equals alone";
    let sequences = sequences(&subject.tokens());
    let engine = |sequence: &Vec<u32>| subject.engine(sequence.len());
    let mut engines = sequences.iter().map(engine).collect::<Result<Vec<_>>>()?;
    let mut side_by_side = Vec::new();
    for turn in 0..=TURNS {
        for (engine, sequence) in engines.iter_mut().zip(&sequences) {
            side_by_side.push(take_turn(engine, sequence, turn)?);
        }
    }
    let mut tally = LogitsTally::default();
    for (index, sequence) in sequences.iter().enumerate() {
        let mut alone = engine(sequence)?;
        for turn in 0..=TURNS {
            let logits = take_turn(&mut alone, sequence, turn)?;
            tally.add(side_by_side[turn * sequences.len() + index].data(), logits.data());
        }
    }
    Ok(tally.checked(NAME))
}

/// Returns a long sequence, one of half its length, and a short one. Each starts with a different token.
fn sequences(tokens: &[u32]) -> Vec<Vec<u32>> {
    let longest = tokens.len().saturating_sub(TURNS);
    let prompts = [longest, longest.div_ceil(2), 1].into_iter().filter(|&prompt| prompt > 0 && longest > 0);
    let sequence = |(index, prompt)| {
        let turned = tokens.iter().cycle().skip(5 * index);
        turned.take(prompt + TURNS).copied().collect()
    };
    prompts.enumerate().map(sequence).collect()
}

/// Runs one turn of a sequence. Turn 0 reads the prompt (all but the last [`TURNS`] tokens); each later turn
/// reads one token.
fn take_turn(engine: &mut Engine, sequence: &[u32], turn: usize) -> Result<Tensor> {
    let prompt = sequence.len() - TURNS;
    let next = if turn == 0 { 0..prompt } else { prompt + turn - 1..prompt + turn };
    engine.read(&sequence[next], &mut ())
}

/// Compares the logits of a prompt and following tokens with and without a tap.
///
/// # Errors
/// If the model cannot be run.
pub fn recorded_equals_unrecorded(subject: CheckSubject) -> Result<CheckResult> {
    const NAME: &str = "recorded equals unrecorded";
    let tokens = subject.tokens();
    let (mut recorded, mut unrecorded) = (subject.engine(tokens.len())?, subject.engine(tokens.len())?);
    let mut tally = LogitsTally::default();
    let (prompt, rest) = tokens.split_at(PROMPT.min(tokens.len()));
    for part in std::iter::once(prompt).chain(rest.chunks(1)) {
        tally.add(recorded.read(part, &mut ObservingTap)?.data(), unrecorded.read(part, &mut ())?.data());
    }
    Ok(tally.checked(NAME))
}

/// A tap that requests every value and stores none.
struct ObservingTap;

impl Tap for ObservingTap {
    fn tap(&mut self, _: Site, value: Tensor) -> Tensor {
        value
    }
}
