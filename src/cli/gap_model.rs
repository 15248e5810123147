//! `xcheck gap --model`: both sides against the log-probabilities of our engine.

use crate::catalogue::Supposition;
use crate::checkpoint::{Point, Site};
use crate::cli::progress::StepProgress;
use crate::cli::supposed_changes::run_supposing;
use crate::engine::{PassInput, RunInput};
use crate::error::{Error, Result};
use crate::gap::{GapAssessment, GapOptions, JoinCounts, PairTally, PolicySide, SequenceJoin, SequencePair};
use crate::model::Model;
use crate::numerics::F32;
use crate::ops::log_probabilities::log_probabilities;
use crate::tap::Tap;
use crate::tensor::Tensor;

/// Type of our engine's log-probabilities.
const OWN_TYPE: &str = "f32";

/// Both sides against our engine: the rollout, and the trainer.
pub(super) struct ModelAssessments {
    /// Number of sequences that our engine read.
    pub(crate) sequences: usize,
    /// The rollout and the trainer, each in the place of the rollout; our engine is in the trainer's place.
    pub(crate) sides: [GapAssessment; 2],
}

/// Compares the first sequences of both sides with our engine, up to a number of tokens.
pub(super) fn against_model(
    mut join: SequenceJoin,
    model: &dyn Model,
    supposed: &[Supposition],
    (options, most): (&GapOptions, usize),
) -> Result<ModelAssessments> {
    let own = |dtype: &Option<String>| GapOptions {
        dtypes: [dtype.clone(), Some(OWN_TYPE.into())],
        ..options.clone()
    };
    let mut tallies = [0, 1].map(|side| PairTally::new(&own(&options.dtypes[side])));
    let (mut read, mut sequences) = (0, 0);
    let mut steps = StepProgress::new("token", most);
    while let Some(pair) = join.read()? {
        if sequences > 0 && read + pair.tokens.len() > most {
            break;
        }
        let exact = own_logprobs(model, supposed, &pair.tokens, pair.temperatures.map(applied))?;
        for ((side, tally), exact) in tallies.iter_mut().enumerate().zip(&exact) {
            tally.add(&one_side(&pair, side, exact));
        }
        read += pair.tokens.len();
        sequences += 1;
        steps.reached(read.min(most));
    }
    let sides = tallies.map(|tally| tally.assessment(JoinCounts::default()));
    Ok(ModelAssessments { sequences, sides })
}

/// Returns the temperature that a side applies. Greedy sampling (0) has no log-probabilities of its own.
fn applied(stated: Option<f64>) -> f32 {
    stated.filter(|temperature| *temperature > 0.0).unwrap_or(1.0) as f32
}

/// Returns a pair of one side and our engine, which applies the side's temperature.
fn one_side(pair: &SequencePair, side: usize, exact: &[f64]) -> SequencePair {
    let own = pair.logprobs[side].iter().zip(exact);
    let scored = own.map(|(own, &exact)| if own.is_nan() { f64::NAN } else { exact }).collect();
    SequencePair {
        logprobs: [pair.logprobs[side].clone(), scored],
        temperatures: [None, None],
        versions: [pair.versions[side], None],
        dtypes: [pair.dtypes[side].clone(), None],
        nan: [pair.nan[side], 0],
        ..pair.clone()
    }
}

/// Returns our engine's log-probability of each token at the temperature of each side; NaN for the first token.
fn own_logprobs(
    model: &dyn Model,
    supposed: &[Supposition],
    tokens: &[u32],
    temperatures: [f32; 2],
) -> Result<[Vec<f64>; 2]> {
    let vocabulary = model.dimensions().vocab_size;
    if tokens.is_empty() {
        return Err(Error::Usage(
            "--model needs the tokens, but the files have log-probabilities only".into(),
        ));
    }
    if let Some(id) = tokens.iter().find(|&&id| id as usize >= vocabulary) {
        return Err(Error::Usage(format!(
            "token id {id} is outside the model's vocabulary of {vocabulary} tokens"
        )));
    }
    let script = RunInput { passes: vec![PassInput::given(tokens)], prompt_len: tokens.len() };
    let mut tap = NextTokenTap { tokens, temperatures, logprobs: [0, 1].map(|_| vec![f64::NAN]) };
    run_supposing(supposed, model, &F32, &script, &mut tap)?;
    tap.logprobs.iter_mut().for_each(|logprobs| logprobs.truncate(tokens.len()));
    Ok(tap.logprobs)
}

/// A tap that computes the log-probability of each next token from the logits.
struct NextTokenTap<'t> {
    tokens: &'t [u32],
    temperatures: [f32; 2],
    logprobs: [Vec<f64>; 2],
}

impl Tap for NextTokenTap<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if self.wants(site) {
            for row in 0..value.rows() {
                let Some(&next) = self.tokens.get(self.logprobs[0].len()) else { continue };
                for (logprobs, &temperature) in self.logprobs.iter_mut().zip(&self.temperatures) {
                    logprobs.push(log_probabilities(value.row(row), &[next], false, temperature)[0]);
                }
            }
        }
        value
    }

    fn wants(&self, site: Site) -> bool {
        site.point == Point::Logits
    }
}

impl ModelAssessments {
    /// Names the sides that the model contradicts.
    pub(super) fn sentence(&self) -> String {
        use crate::verdict::Verdict;
        let wrong = |side: usize| self.sides[side].verdict == Verdict::Fail;
        let [rollout, trainer] = [PolicySide::Rollout, PolicySide::Trainer].map(PolicySide::name);
        let scales = format!(
            "scale of the {rollout} {:.2e}, of the {trainer} {:.2e}, in {} sequences",
            self.sides[0].scale, self.sides[1].scale, self.sequences
        );
        match (wrong(0), wrong(1)) {
            (true, true) => format!("the log-probabilities of both sides differ from the model's ({scales})"),
            (true, false) => {
                format!("the log-probabilities of the {rollout} differ from the model's ({scales})")
            }
            (false, true) => {
                format!("the log-probabilities of the {trainer} differ from the model's ({scales})")
            }
            (false, false) => format!("neither side fails against the model ({scales})"),
        }
    }
}
