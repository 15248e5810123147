//! `xcheck gap --model`: both sides against the log-probabilities of our engine.

use crate::catalogue::Supposition;
use crate::checkpoint::{Point, Site};
use crate::cli::gap_experts::GivenExpertsTap;
use crate::cli::progress::StepProgress;
use crate::cli::supposed_changes::run_supposing;
use crate::engine::{PassInput, RunInput};
use crate::error::{Error, Result};
use crate::gap::{
    ExpertRoutes, GapAssessment, GapOptions, JoinCounts, PairTally, PolicySide, RouteReplay, SequenceJoin,
    SequencePair,
};
use crate::model::Model;
use crate::numerics::F32;
use crate::ops::log_probabilities::log_probabilities;
use crate::tap::Tap;
use crate::tensor::Tensor;

/// Type of our engine's log-probabilities.
const OWN_TYPE: &str = "f32";

/// Comparisons of both sides with our engine: the rollout, and the trainer.
pub(super) struct ModelAssessments {
    /// Number of sequences that our engine read.
    pub(crate) sequences: usize,
    /// The rollout and the trainer. Each is compared as if it were the rollout; our engine takes the trainer's place.
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
    let tallies = || [0, 1].map(|side| PairTally::new(&own(&options.dtypes[side])));
    // With our engine's experts, and with those of the side.
    let (mut tallies, mut replayed) = (tallies(), tallies());
    let mut replays = [None::<RouteReplay>; 2];
    let (mut read, mut sequences) = (0, 0);
    let mut steps = StepProgress::new("token", most);
    while let Some(pair) = join.read()? {
        if sequences > 0 && read + pair.tokens.len() > most {
            break;
        }
        let run =
            |routes| own_logprobs(model, supposed, &pair.tokens, pair.temperatures.map(applied), routes);
        let (exact, _) = run(None)?;
        // Both sides have the same experts after a replay.
        let mut last = None::<(&ExpertRoutes, _)>;
        for side in 0..2 {
            let of_own = one_side(&pair, side, &exact[side]);
            tallies[side].add(&of_own);
            let Some(routes) = &pair.routes[side] else {
                replayed[side].add(&of_own);
                continue;
            };
            let (_, (with_routes, replay)) = match last.take() {
                Some(known) if known.0 == routes => last.insert(known),
                _ => last.insert((routes, run(Some(routes))?)),
            };
            replayed[side].add(&one_side(&pair, side, &with_routes[side]));
            replays[side].get_or_insert_default().add(replay);
        }
        read += pair.tokens.len();
        sequences += 1;
        steps.reached(read.min(most));
    }
    let ([rollout, trainer], [replayed_rollout, replayed_trainer]) = (tallies, replayed);
    let sides =
        [judged(rollout, replayed_rollout, replays[0]), judged(trainer, replayed_trainer, replays[1])];
    Ok(ModelAssessments { sequences, sides })
}

/// Judges a side against our engine. If there is a `replay`, also compares with a run of our engine that uses the
/// side's experts.
fn judged(side: PairTally, replayed: PairTally, replay: Option<RouteReplay>) -> GapAssessment {
    let found = side.assessment(JoinCounts::default());
    match replay {
        Some(replay) => found.with_replay(replayed.assessment(JoinCounts::default()), replay),
        None => found,
    }
}

/// Returns the temperature that a side applies. Greedy sampling (0) has no log-probabilities of its own.
fn applied(stated: Option<f64>) -> f32 {
    stated.filter(|temperature| *temperature > 0.0).unwrap_or(1.0) as f32
}

/// Returns a pair of one side and our engine. Our engine applies the side's temperature.
fn one_side(pair: &SequencePair, side: usize, exact: &[f64]) -> SequencePair {
    let own = pair.logprobs[side].iter().zip(exact);
    let scored = own.map(|(own, &exact)| if own.is_nan() { f64::NAN } else { exact }).collect();
    SequencePair {
        index: pair.index,
        tokens: pair.tokens.clone(),
        prompt_length: pair.prompt_length,
        has_other_prompt: pair.has_other_prompt,
        logprobs: [pair.logprobs[side].clone(), scored],
        temperatures: [None, None],
        versions: [pair.versions[side], None],
        dtypes: [pair.dtypes[side].clone(), None],
        routes: [None, None],
        nan: [pair.nan[side], 0],
    }
}

/// Returns our engine's log-probability of each token at the temperature of each side. The first token gets NaN.
/// With `routes`, the engine computes with these experts.
fn own_logprobs(
    model: &dyn Model,
    supposed: &[Supposition],
    tokens: &[u32],
    temperatures: [f32; 2],
    routes: Option<&ExpertRoutes>,
) -> Result<([Vec<f64>; 2], RouteReplay)> {
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
    let next = NextTokenTap { tokens, temperatures, logprobs: [0, 1].map(|_| vec![f64::NAN]) };
    let mut taps = (next, GivenExpertsTap::new(routes, model.dimensions().n_layers));
    run_supposing(supposed, model, &F32, &script, &mut taps)?;
    let (mut next, experts) = taps;
    next.logprobs.iter_mut().for_each(|logprobs| logprobs.truncate(tokens.len()));
    Ok((next.logprobs, experts.replay()?))
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
