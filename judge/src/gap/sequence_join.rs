//! Pairs of sequences. The files of the two sides are read in parallel, and sequences are matched by their tokens.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};

use super::expert_routes::ExpertRoutes;
use super::record::SequenceRecord;
use super::record_source::RecordSource;
use crate::error::{Error, Result};

/// Maximum number of tokens in sequences that wait for their partner. Eight experts of a token count as one more
/// token.
const MOST_WAITING: usize = 64_000_000;

/// A sequence with the log-probabilities of both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct SequencePair {
    /// Index in the rollout's file.
    pub index: usize,
    /// Token ids; empty if no file has them.
    pub tokens: Vec<u32>,
    /// Log-probabilities of the rollout and of the trainer for each token, NaN where not scored.
    pub logprobs: [Vec<f64>; 2],
    /// Number of tokens of the prompt, if stated.
    pub prompt_length: Option<usize>,
    /// Stated divisors of the logits.
    pub temperatures: [Option<f64>; 2],
    /// Stated training steps of the weights.
    pub versions: [Option<i64>; 2],
    /// Stated types of the arithmetic.
    pub dtypes: [Option<String>; 2],
    /// Experts that the sides chose.
    pub routes: [Option<ExpertRoutes>; 2],
    /// Number of scored tokens of each side that are NaN.
    pub nan: [usize; 2],
    /// True if the sides state different lengths of the prompt.
    pub has_other_prompt: bool,
}

/// Numbers of sequences without a partner, and with a partner at another index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct JoinCounts {
    /// Sequences of the rollout without a partner.
    pub only_rollout: usize,
    /// Sequences of the trainer without a partner.
    pub(crate) only_trainer: usize,
    /// Pairs whose sequences have different indices in the two files.
    pub at_other_index: usize,
}

/// Reads two files in parallel. A sequence waits until the other file has one with the same tokens.
pub struct SequenceJoin {
    sources: [RecordSource; 2],
    waiting: [HashMap<u64, VecDeque<(usize, SequenceRecord)>>; 2],
    waiting_tokens: usize,
    ready: VecDeque<SequencePair>,
    next: usize,
    ended: [bool; 2],
    counts: JoinCounts,
}

impl SequenceJoin {
    /// Joins the files of the rollout and of the trainer.
    pub fn new(rollout: RecordSource, trainer: RecordSource) -> Self {
        Self {
            sources: [rollout, trainer],
            waiting: Default::default(),
            waiting_tokens: 0,
            ready: VecDeque::new(),
            next: 0,
            ended: [false; 2],
            counts: JoinCounts::default(),
        }
    }

    /// Returns the next pair; `None` at the end of both files.
    ///
    /// # Errors
    /// If a sequence is invalid, or too many sequences wait for their partner.
    pub fn read(&mut self) -> Result<Option<SequencePair>> {
        loop {
            if let Some(pair) = self.ready.pop_front() {
                return Ok(Some(pair));
            }
            if self.ended == [true; 2] {
                return Ok(None);
            }
            self.step()?;
        }
    }

    /// Returns the sequences without a partner. Valid after the last pair.
    pub(crate) fn counts(&self) -> JoinCounts {
        let left = |side: usize| self.waiting[side].values().map(VecDeque::len).sum();
        JoinCounts { only_rollout: left(0), only_trainer: left(1), ..self.counts }
    }

    fn step(&mut self) -> Result<()> {
        let index = self.next;
        self.next += 1;
        let mut found = [None, None];
        for ((found, source), ended) in found.iter_mut().zip(&mut self.sources).zip(&mut self.ended) {
            if !*ended {
                *found = source.read()?;
                *ended = found.is_none();
            }
        }
        match found {
            [Some(rollout), Some(trainer)] if are_same(&rollout, &trainer) => {
                self.ready.push_back(pair(index, rollout, trainer));
            }
            found => {
                for (side, record) in found.into_iter().enumerate() {
                    if let Some(record) = record {
                        self.meet(side, index, record);
                    }
                }
            }
        }
        if self.waiting_tokens > MOST_WAITING {
            return Err(Error::Usage(format!(
                "more than {MOST_WAITING} tokens of sequences without a partner of the same tokens; \
                 write both files in the same order"
            )));
        }
        Ok(())
    }

    /// Looks for the partner of a sequence. If there is none yet, the sequence waits.
    fn meet(&mut self, side: usize, index: usize, record: SequenceRecord) {
        let key = key(&record.tokens);
        let other = self.waiting[1 - side].get_mut(&key);
        let found = other.and_then(|waiting| {
            let at = waiting.iter().position(|(_, other)| are_same(other, &record))?;
            waiting.remove(at)
        });
        let Some((other_index, other)) = found else {
            self.waiting_tokens += waiting_size(&record);
            self.waiting[side].entry(key).or_default().push_back((index, record));
            return;
        };
        self.waiting_tokens -= waiting_size(&other);
        self.counts.at_other_index += 1;
        self.ready.push_back(match side {
            0 => pair(index, record, other),
            _ => pair(other_index, other, record),
        });
    }
}

/// Returns the number of tokens, including the memory of their experts.
fn waiting_size(record: &SequenceRecord) -> usize {
    record.logprobs.len() + record.routes.as_ref().map_or(0, |routes| routes.len() / 8)
}

/// Returns true if two sequences have the same tokens. Sequences without tokens match by their length.
fn are_same(one: &SequenceRecord, other: &SequenceRecord) -> bool {
    let is_unknown = one.tokens.is_empty() || other.tokens.is_empty();
    if is_unknown { one.logprobs.len() == other.logprobs.len() } else { one.tokens == other.tokens }
}

fn key(tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    tokens.hash(&mut hasher);
    hasher.finish()
}

fn pair(index: usize, rollout: SequenceRecord, trainer: SequenceRecord) -> SequencePair {
    let tokens = if rollout.tokens.is_empty() { trainer.tokens } else { rollout.tokens };
    SequencePair {
        index,
        tokens,
        has_other_prompt: rollout
            .prompt_length
            .zip(trainer.prompt_length)
            .is_some_and(|(rollout, trainer)| rollout != trainer),
        prompt_length: rollout.prompt_length.or(trainer.prompt_length),
        temperatures: [rollout.temperature, trainer.temperature],
        versions: [rollout.version, trainer.version],
        dtypes: [rollout.dtype, trainer.dtype],
        routes: [rollout.routes, trainer.routes],
        nan: [rollout.nan, trainer.nan],
        logprobs: [rollout.logprobs, trainer.logprobs],
    }
}
