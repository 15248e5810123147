//! The verdict about a pair: rounding, a fault, or undetermined.

use serde::Serialize;

use super::bias::bias;
use super::breakdown::{TokenClass, classes};
use super::figure::GapFigure;
use super::finding::{GapFinding, counted};
use super::logprob_error::{LogprobError, StorageError};
use super::number_grid::{NumberGrid, coarse};
use super::pair_view::{PairView, rms};
use super::pattern::patterns;
use super::rounding_scales::LogOddsScale;
use super::route_effect::{RouteCounts, RouteEffect};
use super::route_replay::RouteReplay;
use super::sequence_join::{JoinCounts, SequenceJoin};
use super::softmax_sum;
use super::token_route::{RouteAgreement, TokenRoute};
use super::token_sample::TokenSample;
use super::training_effect::{RatioSums, TrainingEffect};
use super::value_counts::ValueCounts;
use crate::error::Result;
use crate::verdict::Verdict;

/// Minimum number of informative tokens for a pass.
const LEAST_INFORMATIVE: usize = 100;
/// Number of sequences in the list of the worst ones.
const WORST: usize = 5;

/// Facts about the two sides that their files need not state.
#[derive(Clone, Debug, Default)]
pub struct GapOptions {
    /// Types of the arithmetic of rollout and trainer.
    pub dtypes: [Option<String>; 2],
    /// Importance ratios that differ from 1 by more than this are clipped.
    pub clip: f64,
    /// True if both sides are columns of one file.
    pub is_one_file: bool,
    /// True if points for the figures of the HTML page are collected.
    pub has_figure: bool,
}

/// The verdict about a pair of files, and its numbers.
#[derive(Clone, Debug, Serialize)]
pub struct GapAssessment {
    /// The verdict.
    #[serde(serialize_with = "verdict_name")]
    pub verdict: Verdict,
    /// One sentence about the whole difference.
    pub sentence: String,
    /// Findings, the one that names the cause first.
    pub findings: Vec<GapFinding>,
    /// Types of the arithmetic, as given or stated in the files.
    pub dtypes: [Option<String>; 2],
    /// Number of sequences that were compared.
    pub sequences: usize,
    /// Numbers of sequences that have no partner, or one at another index.
    pub join: JoinCounts,
    /// Counts of tokens and of invalid values.
    pub values: ValueCounts,
    /// Number of tokens in which logit errors are visible, because other tokens have some probability.
    pub(crate) informative: usize,
    /// Number of tokens above the memory limit, which the tests of scale and patterns skip.
    pub(crate) not_tested: usize,
    /// Root mean square difference of the log-odds.
    pub scale: f64,
    /// Root mean square difference of the log-odds in the median sequence.
    pub(crate) typical_scale: f64,
    /// Largest scale of differences that rounding causes in these types.
    pub(crate) rounding_scale: Option<f64>,
    /// Share of the squared differences that rounding explains.
    pub explained: f64,
    /// Effect of the differences on training.
    pub training: Option<TrainingEffect>,
    /// Agreement of the experts, if both sides have routing replay data.
    pub experts: Option<RouteEffect>,
    /// Comparison with our engine while it computes with the side's own experts.
    pub replay: Option<RouteReplay>,
    /// Scales by probability and position.
    pub(crate) classes: Vec<TokenClass>,
    /// Sequences with the largest scales, as (index, scale).
    pub(crate) worst_sequences: Vec<(usize, f64)>,
    /// Points and tokens for the HTML page, if they were asked for.
    #[serde(skip)]
    pub figure: Option<GapFigure>,
}

fn verdict_name<S: serde::Serializer>(verdict: &Verdict, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(verdict.name())
}

/// Compares the log-probabilities of two files.
///
/// # Errors
/// If a file cannot be read, a sequence is invalid, or a type has no measured size of rounding.
pub fn assess(mut join: SequenceJoin, options: &GapOptions) -> Result<GapAssessment> {
    let mut tally = PairTally::new(options);
    while let Some(pair) = join.read()? {
        tally.add(&pair);
    }
    Ok(tally.assessment(join.counts()))
}

/// Everything that is collected while the pairs of sequences are read.
pub struct PairTally {
    sample: TokenSample,
    values: ValueCounts,
    ratios: RatioSums,
    routes: RouteCounts,
    dtypes: [Option<String>; 2],
    /// True for the sides whose type the command line states, for all sequences.
    has_given_dtype: [bool; 2],
    has_mixed_dtypes: bool,
    /// Number of sequences for which the two sides state different prompt lengths.
    other_prompt: usize,
    is_one_file: bool,
    has_figure: bool,
    sequences: usize,
}

impl PairTally {
    /// Creates an empty tally.
    pub fn new(options: &GapOptions) -> Self {
        Self {
            sample: TokenSample::default(),
            values: ValueCounts::default(),
            ratios: RatioSums::new(options.clip),
            routes: RouteCounts::default(),
            dtypes: options.dtypes.clone(),
            has_given_dtype: options.dtypes.each_ref().map(Option::is_some),
            has_mixed_dtypes: false,
            other_prompt: 0,
            is_one_file: options.is_one_file,
            has_figure: options.has_figure,
            sequences: 0,
        }
    }

    /// Adds a pair of sequences.
    pub fn add(&mut self, pair: &super::SequencePair) {
        let agreement = RouteAgreement::of(pair);
        self.routes.add(&agreement);
        self.sample.add(pair, &agreement);
        self.values.add(pair);
        self.sequences += 1;
        let first = pair.prompt_length.unwrap_or(0);
        let scored = pair.logprobs[0].iter().zip(&pair.logprobs[1]).skip(first);
        for (&rollout, &trainer) in scored.filter(|(one, other)| one.is_finite() && other.is_finite()) {
            self.ratios.add(rollout, trainer);
        }
        for (side, stated) in pair.dtypes.iter().enumerate().filter(|(_, stated)| stated.is_some()) {
            let known = &mut self.dtypes[side];
            self.has_mixed_dtypes |= !self.has_given_dtype[side] && known.is_some() && known != stated;
            *known = known.take().or_else(|| stated.clone());
        }
        self.other_prompt += usize::from(pair.has_other_prompt);
    }

    /// Makes the verdict on all pairs of sequences that were added.
    pub fn assessment(self, join: JoinCounts) -> GapAssessment {
        let scale = self.scale();
        let grids = [
            NumberGrid::of(self.sample.tokens.iter().map(|token| token.rollout)),
            NumberGrid::of(self.sample.tokens.iter().map(|token| token.trainer)),
        ];
        let storage = grids.iter().flatten().fold(StorageError::F32, |sum, grid| sum.with(grid.error()));
        let rounding = (scale, storage);
        let pair = view(&self.sample, rounding);
        let informative = informative_tokens(&pair);
        let mut findings = self.faults(&pair, grids);
        let experts = self.routes.effect(&pair);
        if let Some(experts) = &experts {
            findings = self.without_flips(findings, experts, &pair, (rounding, grids));
        }
        if !findings.iter().any(is_fault) {
            findings.extend(self.doubts(join, informative));
        }
        let explained = explained(&pair, &findings);
        let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Pass);
        let mut found = GapAssessment {
            verdict,
            sentence: String::new(),
            sequences: self.sequences,
            join,
            informative,
            not_tested: self.sample.left_out,
            scale: pair.rms(),
            typical_scale: pair.typical,
            rounding_scale: scale.map(|scale| scale.largest),
            explained,
            training: self.ratios.effect(explained),
            experts,
            replay: None,
            classes: classes(&pair),
            worst_sequences: worst(&pair),
            figure: self.has_figure.then(|| GapFigure::of(&pair)),
            findings,
            values: self.values,
            dtypes: self.dtypes,
        };
        found.sentence = found.said();
        found
    }

    /// Judges only the tokens without known flips of experts. If flips can cause the first finding, returns the faults
    /// that remain, or `flipped-experts` if none remains. Otherwise returns the findings unchanged.
    fn without_flips(
        &self,
        findings: Vec<GapFinding>,
        experts: &RouteEffect,
        pair: &PairView,
        (rounding, grids): ((Option<LogOddsScale>, StorageError), [Option<NumberGrid>; 2]),
    ) -> Vec<GapFinding> {
        let Some(cause) = findings.first().map(|finding| finding.cause) else { return findings };
        if experts.other_tokens == 0 {
            return findings;
        }
        // One copy of the sample at a time.
        let proven_in = {
            let same = self.sample.with_routes(|route| route == TokenRoute::Same);
            let is_proven = informative_tokens(&view(&same, rounding)) >= LEAST_INFORMATIVE;
            is_proven.then_some(same.sequences.len())
        };
        let unflipped = self.sample.with_routes(TokenRoute::is_unflipped);
        let remaining = self.faults(&view(&unflipped, rounding), grids);
        let is_faulty = remaining.iter().any(is_fault);
        match experts.can_cause(cause, proven_in) {
            _ if is_faulty && RouteEffect::is_caused(cause) => {
                let part = pair.share(|index| self.sample.routes[index].is_unflipped());
                remaining.into_iter().map(|finding| finding.within(part)).collect()
            }
            true if !is_faulty => [vec![experts.finding(proven_in.is_some())], remaining].concat(),
            _ => findings,
        }
    }

    /// Returns findings about invalid values, patterns and sizes.
    fn faults(&self, pair: &PairView, grids: [Option<NumberGrid>; 2]) -> Vec<GapFinding> {
        let mut findings = self.values.findings();
        if findings.is_empty() {
            findings = patterns(pair);
            if !findings.iter().any(is_fault) {
                findings.extend(self.structure(pair, grids));
            }
            let is_f32 = self.dtypes.iter().all(|dtype| dtype.as_deref() == Some("f32"));
            let is_coarse = coarse(&self.dtypes, grids).is_some();
            if is_f32 && !is_coarse && findings.iter().any(is_fault) {
                findings = softmax_sum::doubt(pair).map_or(findings, |doubt| vec![doubt]);
            }
        }
        findings
    }

    /// Returns the size of rounding in both types; `None` if a type is not stated or not measured.
    fn scale(&self) -> Option<LogOddsScale> {
        let [one, other] = [0, 1].map(|side| self.dtypes[side].as_deref().and_then(LogOddsScale::named));
        Some(LogOddsScale::of_both(one?, other?))
    }

    /// Returns findings about the size and the sign of the differences.
    fn structure(&self, pair: &PairView, grids: [Option<NumberGrid>; 2]) -> Vec<GapFinding> {
        let mut found = Vec::new();
        found.extend(coarse(&self.dtypes, grids));
        let rms = pair.rms();
        let excess =
            pair.scale.or_else(|| LogOddsScale::named("bf16")).map_or(f64::INFINITY, |scale| scale.excess);
        let limit = pair.limit();
        if rms > excess && found.is_empty() {
            let shorter = LogOddsScale::nearest(rms).filter(|_| pair.scale.is_some());
            let candidates = shorter.map_or(String::new(), |shorter| {
                format!(
                    ". Rounding of {shorter} can be as large. Candidates: one side computes in a shorter type than stated \
                     (TF32, autocast, the head), or has slightly other weights"
                )
            });
            let text = format!(
                "the differences are {:.0} times as large as rounding gives in these types (scale {rms:.2e}, at most \
                 {limit:.2e}), and no known pattern explains them{candidates}",
                rms / limit
            );
            found.push(GapFinding::fault("unexplained-size", text));
        } else if !(rms <= limit) {
            let text = format!(
                "the scale {rms:.2e} is {:.1} times the limit of rounding in these types ({limit:.2e}), which a larger model may reach; \
                 a fault is larger than {excess:.2e}",
                rms / limit
            );
            found.push(GapFinding::doubt("large-size", text));
        }
        found.extend(bias(pair));
        found
    }

    /// Returns findings about missing data.
    fn doubts(&self, join: JoinCounts, informative: usize) -> Vec<GapFinding> {
        let mut found = Vec::new();
        let alone = join.only_rollout + join.only_trainer;
        if alone > 0 {
            let text = format!("{} without a partner of the same tokens", counted(alone, "sequence"));
            found.push(GapFinding::doubt("unmatched", text));
        }
        found.extend(self.lost_coverage().map(|text| GapFinding::doubt("partly-compared", text)));
        found
            .extend(self.routes.contradiction().map(|text| GapFinding::doubt("contradictory-experts", text)));
        if self.values.compared == 0 {
            let text = "no token is scored by both sides".to_owned();
            found.push(GapFinding::doubt("nothing-compared", text));
        } else if informative < LEAST_INFORMATIVE {
            let text = format!(
                "only {informative} of {} tokens show logit errors (in the others p is 1 up to rounding), expected at \
                 least {LEAST_INFORMATIVE}",
                self.values.compared
            );
            found.push(GapFinding::doubt("too-few-tokens", text));
        }
        for (side, dtype) in self.dtypes.iter().enumerate() {
            let name = ["rollout", "trainer"][side];
            let problem = match dtype.as_deref() {
                None => format!("the {name}'s type is not stated"),
                Some(dtype) if LogOddsScale::named(dtype).is_none() => {
                    format!(
                        "the {name}'s type {dtype} is not among the types whose rounding xcheck has measured"
                    )
                }
                Some(_) => continue,
            };
            let text = format!("{problem}; use --dtype ROLLOUT,TRAINER with {}", LogOddsScale::names());
            found.push(GapFinding::doubt("unknown-type", text));
            break;
        }
        found
    }

    /// Returns the reason why some tokens were not compared, or may have been compared wrongly.
    fn lost_coverage(&self) -> Option<String> {
        let [rollout, trainer] = self.values.only;
        match () {
            () if self.sample.left_out > 0 => Some(format!(
                "{} are beyond the memory limit: the scale and the patterns do not include them; split the files",
                counted(self.sample.left_out, "token")
            )),
            () if rollout + trainer > 0 => Some(format!(
                "only one side scores {}; write the same mask, or prompt_length, for both sides",
                counted(rollout + trainer, "token")
            )),
            () if self.other_prompt > 0 => Some(format!(
                "the sides state different values of prompt_length in {}",
                counted(self.other_prompt, "sequence")
            )),
            () if self.routes.has_other_shape => Some(
                "the sides differ in the number of layers with experts, or in the number of experts per token"
                    .to_owned(),
            ),
            () if self.has_mixed_dtypes => {
                Some("the sequences of one side state different types; state one with --dtype".to_owned())
            }
            () if self.is_one_file && self.values.identical == self.values.compared => Some(
                "all values of both sides are identical; do both columns mean the same one? Name them with --columns"
                    .to_owned(),
            ),
            () => None,
        }
    }
}

impl GapAssessment {
    /// Joins two assessments: one with our engine's choices of experts, and one with the side's own choices. If other
    /// experts explain most of the gap, and are as few as rounding flips, a fail becomes inconclusive. It does not
    /// become a pass, because a wrong router also flips experts.
    #[must_use]
    pub fn with_replay(self, replayed: Self, replay: RouteReplay) -> Self {
        let replay = replay.with_scales(self.scale, replayed.scale);
        let is_excused = !replayed.findings.iter().any(is_fault);
        let findings = match self.verdict {
            Verdict::Fail if !is_excused => return Self { replay: Some(replay), ..replayed },
            _ if !is_excused => vec![replay.contradiction()],
            Verdict::Pass => return Self { replay: Some(replay), ..self },
            _ if !replay.is_excuse() => return Self { replay: Some(replay), ..self },
            _ => [vec![replay.finding()], replayed.findings].concat(),
        };
        let mut found = Self { replay: Some(replay), verdict: Verdict::Inconclusive, findings, ..self };
        found.sentence = found.said();
        found
    }
}

fn view(sample: &TokenSample, (scale, storage): (Option<LogOddsScale>, StorageError)) -> PairView<'_> {
    PairView::new(sample, LogprobError::new(sample, scale, storage), scale)
}

fn is_fault(finding: &GapFinding) -> bool {
    finding.verdict == Verdict::Fail
}

/// Returns the number of tokens in which logit errors are visible.
fn informative_tokens(pair: &PairView) -> usize {
    pair.sample.tokens.iter().filter(|token| pair.error.is_informative(token)).count()
}

/// Returns the share of the squared differences that rounding explains.
fn explained(pair: &PairView, findings: &[GapFinding]) -> f64 {
    let tokens = &pair.sample.tokens;
    let square: f64 = tokens.iter().map(|token| token.delta().powi(2)).sum();
    let most: f64 = tokens.iter().map(|token| pair.error.sigma(token, pair.limit()).powi(2)).sum();
    let place = findings.iter().find(|finding| finding.verdict == Verdict::Fail || finding.share < 1.0);
    match place {
        Some(place) if place.share < 1.0 => 1.0 - place.share,
        _ if square == 0.0 => 1.0,
        // What rounding of the usual size can give; a fault of all tokens has no part without it.
        _ => (most / square).min(1.0),
    }
}

fn worst(pair: &PairView) -> Vec<(usize, f64)> {
    let scale = |one: &super::SampleSequence| (one.index, rms(pair.scaled_of(one)));
    let mut all: Vec<_> = pair.sample.sequences.iter().map(scale).collect();
    all.sort_by(|one, other| other.1.total_cmp(&one.1));
    all.truncate(WORST);
    all
}
