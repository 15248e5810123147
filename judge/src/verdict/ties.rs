//! Token choices: equal, tied, or divergent.
//!
//! A different choice is a tie if rounding, or a tolerance that decides, can explain the difference between
//! the two logits. The difference in the dump's own logits proves nothing, since a wrong operation may have
//! caused it. If an operation is wrong, no choice is a tie.

use std::collections::{HashMap, HashSet};

use crate::align::{AlignedDump, logits_after};
use crate::check::{DraftToken, Role};
use crate::checkpoint::{Point, Site, ValueKind};
use crate::dump::Pass;
use crate::engine::GreedyToken;
use crate::error::Result;
use crate::measure::WorstElement;
use crate::noise::NoiseFloor;
use crate::tensor::Tensor;
use crate::verdict::site_result::{SiteResult, Verdict};

/// The logits that measure the margin of a choice.
pub(crate) enum LogitSource<'s> {
    /// A dump and our engine: our margins by pass, and the tokens read within passes.
    Engine { held: &'s AlignedDump<'s>, role: Role, margins: HashMap<usize, f64>, read_on: Vec<DraftToken> },
    /// Two dumps, each with its own logits.
    Dumps { candidate: &'s AlignedDump<'s>, reference: &'s AlignedDump<'s> },
}

impl LogitSource<'_> {
    /// Returns true if a side's choices are known only from the tokens that it read next.
    pub(crate) fn tell_by_reading(&self) -> bool {
        match self {
            LogitSource::Engine { held, .. } => held.tells_by_reading,
            LogitSource::Dumps { candidate, reference } => {
                candidate.tells_by_reading || reference.tells_by_reading
            }
        }
    }
}

/// A position at which candidate and reference choose different tokens.
#[derive(Clone, Copy)]
pub(crate) struct TokenDifference {
    /// The position of the token before the two differing tokens.
    pub(crate) position: usize,
    /// The pass that ends at `position`.
    pub(crate) pass: usize,
    pub(crate) candidate: u32,
    pub(crate) reference: u32,
}

impl TokenDifference {
    /// Makes the difference between the dump's token and our engine's after a position of a pass.
    fn of(role: Role, (pass, position): (usize, usize), dumped: u32, own: u32) -> Self {
        let (candidate, reference) = match role {
            Role::Candidate => (dumped, own),
            Role::Reference => (own, dumped),
        };
        Self { position, pass, candidate, reference }
    }

    fn told(&self) -> String {
        format!("the candidate chose token {}, the reference {}", self.candidate, self.reference)
    }
}

/// The data for judging token choices.
pub(crate) struct TokenChoiceEvidence<'s> {
    pub(crate) sides: LogitSource<'s>,
    /// Tolerance of the logits if the tolerance table decides, else 0.
    pub(crate) tolerance: f64,
    /// Noise floors of the last logits, by site. Empty for two dumps.
    pub(crate) floors: HashMap<Site, NoiseFloor>,
    /// The choices of our engine along the dump's tokens, from the end of the prompt.
    pub(crate) choices: Vec<GreedyToken>,
    /// Our engine's logits at sites where it chooses another token than the dump.
    pub(crate) logits: HashMap<Site, Tensor>,
}

pub(crate) fn last_logits(pass: usize) -> Site {
    Site { point: Point::LastLogits, layer: None, pass: Some(pass) }
}

impl TokenChoiceEvidence<'_> {
    /// Judges the rows of tokens. Until then, rows with differing tokens are failures. Returns messages for
    /// failures without a row.
    pub(crate) fn judge(&self, rows: &mut [SiteResult]) -> Result<Vec<String>> {
        let is_right = first_wrong(rows).is_none();
        for row in rows.iter_mut() {
            let Some((position, judged)) = self.judge_row(row)? else { continue };
            // If an operation is wrong, ties become failures later, so the tokens that follow are not checked.
            let judged = if is_right { self.not_followed(row.site.point, position, judged) } else { judged };
            (row.verdict, row.reason) = (judged.0, Some(judged.1));
        }
        let without_row = self.judge_read_on(rows);
        self.refuse_all_contradictions(rows);
        Ok(without_row)
    }

    /// Judges a row whose tokens differ. Returns the verdict, and the last position before the tokens differ.
    fn judge_row(&self, row: &mut SiteResult) -> Result<Option<(usize, (Verdict, String))>> {
        match row.site.point {
            _ if self.is_from_own_logits(row) => Ok(None),
            Point::Argmax => match self.other(row) {
                Some(other) => Ok(Some((other.position, self.judge_choice(other)?))),
                None => Ok(None),
            },
            Point::Generated => {
                let steps = self.other_steps(row);
                let Some(position) = steps.last().map(|(_, other)| other.position) else { return Ok(None) };
                let judged = steps.into_iter().map(|(step, other)| self.judge_step(step, other));
                let decides = over_steps(judged.collect::<Result<_>>()?);
                Ok(decides.map(|step| {
                    show(row, &step);
                    (position, (step.verdict, step.told))
                }))
            }
            _ => Ok(None),
        }
    }

    /// Fails dumps whose choices contradict their own tokens or logits, regardless of other results.
    pub(crate) fn refuse_all_contradictions(&self, rows: &mut [SiteResult]) {
        rows.iter_mut().for_each(|row| self.refuse_contradictions(row));
    }

    /// Returns contradictions in choices at positions without a row.
    pub(crate) fn untold_contradictions(&self, rows: &[SiteResult]) -> Vec<String> {
        let choices = rows.iter().filter(|row| row.site.point == Point::Argmax);
        let told: HashSet<usize> = choices.map(|row| row.positions.start).collect();
        let of = |held: &AlignedDump| {
            let untold = held.choices.contradictions().filter(|position| !told.contains(position));
            let what =
                |position| Some(format!("position {position}: {}", held.choices.contradiction(position)?));
            untold
                .filter_map(what)
                .map(|what| format!("{}: {what}", held.dump.path.display()))
                .collect::<Vec<_>>()
        };
        match &self.sides {
            LogitSource::Engine { held, .. } => of(held),
            LogitSource::Dumps { candidate, reference } => [of(candidate), of(reference)].concat(),
        }
    }

    /// Returns the differing tokens of a row with one choice.
    pub(crate) fn other(&self, row: &SiteResult) -> Option<TokenDifference> {
        let (candidate, reference) = differing(row)?;
        let position = row.positions.start;
        let pass = match &self.sides {
            LogitSource::Engine { .. } => row.site.pass?,
            LogitSource::Dumps { reference, .. } => pass_ending(reference, position).or(row.site.pass)?,
        };
        Some(TokenDifference { position, pass, candidate, reference })
    }

    /// Returns the steps of a continuation at which the two sides differ and a judgement is possible.
    pub(crate) fn other_steps(&self, row: &SiteResult) -> Vec<(usize, TokenDifference)> {
        match &self.sides {
            LogitSource::Engine { .. } if self.choices.is_empty() => {
                self.first_other_step(row).into_iter().collect()
            }
            LogitSource::Engine { held, role, .. } => self.other_steps_of_a_run(held, *role),
            LogitSource::Dumps { candidate, reference } => other_steps_of_dumps(candidate, reference),
        }
    }

    fn other_steps_of_a_run(&self, held: &AlignedDump, role: Role) -> Vec<(usize, TokenDifference)> {
        let generated = held.dump.manifest.generated.iter().flatten();
        let ends = ends_of_choices(held);
        let steps = self.choices.iter().zip(generated).zip(ends).enumerate();
        steps
            .filter(|(_, ((own, dumped), _))| own.token != **dumped)
            .map(|(step, ((own, &dumped), (pass, end)))| {
                (step, TokenDifference::of(role, (pass, end - 1), dumped, own.token))
            })
            .collect()
    }

    /// Returns the tokens read within passes for which our engine prefers another token, with the margin.
    pub(crate) fn read_on(&self) -> Vec<(TokenDifference, f64)> {
        let LogitSource::Engine { role, read_on, .. } = &self.sides else { return Vec::new() };
        let other = |on: &DraftToken| {
            (TokenDifference::of(*role, (on.pass, on.position), on.read, on.own), on.margin)
        };
        read_on.iter().map(other).collect()
    }

    /// Judges tokens read within a pass, and reports a failure in the row of the choice at the end of the
    /// pass. Returns messages for failures without a row.
    fn judge_read_on(&self, rows: &mut [SiteResult]) -> Vec<String> {
        let mut without_row = Vec::new();
        for (other, margin) in self.read_on() {
            let (verdict, told) = self.weigh(other, margin);
            if verdict == Verdict::Tie {
                continue;
            }
            let told = format!("after position {}: {told}", other.position);
            let is_of_pass =
                |row: &&mut SiteResult| row.site.point == Point::Argmax && row.site.pass == Some(other.pass);
            match rows.iter_mut().find(is_of_pass) {
                Some(row) if row.verdict != Verdict::Fail => {
                    (row.verdict, row.reason) = (verdict, Some(told))
                }
                Some(_) => {}
                None => without_row.push(told),
            }
        }
        without_row
    }

    /// Returns the first step of a continuation at which the two sides differ. Used if no run followed all
    /// the dump's tokens.
    fn first_other_step(&self, row: &SiteResult) -> Option<(usize, TokenDifference)> {
        let LogitSource::Engine { held, .. } = &self.sides else { return None };
        let (candidate, reference) = differing(row)?;
        let worst = row.judged().and_then(|found| found.worst.as_ref());
        let step = worst.and_then(|worst| worst.index.first().copied()).unwrap_or(0);
        let (pass, end) = ends_of_choices(held).into_iter().nth(step)?;
        Some((step, TokenDifference { position: end - 1, pass, candidate, reference }))
    }

    /// Returns true if our engine chooses another token than the dump from the dump's own logits, so no
    /// rounding is involved.
    fn is_from_own_logits(&self, row: &SiteResult) -> bool {
        let since_logits =
            row.since.iter().any(|start| matches!(start.point, Point::LastLogits | Point::Logits));
        let local = row.local.as_ref().is_some_and(|found| found.errors.max_abs != 0.0);
        row.site.point == Point::Argmax && since_logits && local
    }

    fn judge_choice(&self, other: TokenDifference) -> Result<(Verdict, String)> {
        if let Some(judged) = self.judge_by_own_logits(other)? {
            return Ok(judged);
        }
        Ok(match self.margin(other)? {
            Some(margin) => self.weigh(other, margin),
            None => {
                let told = format!("{}; record logits to decide whether this is a tie", other.told());
                (Verdict::Fail, told)
            }
        })
    }

    /// Judges choices of an engine with 8-bit values by the dump's own logits. The effect of 8-bit values on
    /// our logits is not measured.
    fn judge_by_own_logits(&self, other: TokenDifference) -> Result<Option<(Verdict, String)>> {
        let LogitSource::Engine { held, .. } = &self.sides else { return Ok(None) };
        if !held.goes_on_with_eight_bits() {
            return Ok(None);
        }
        let why = "the engine computes with 8-bit values, but the reference run does not";
        Ok(Some(match logits_after(held.dump, other.position)? {
            Some(_) => (
                Verdict::Tie,
                format!(
                    "{}; counted as a tie: {why}, and the dump's own logits agree with its token",
                    other.told()
                ),
            ),
            None => (Verdict::Inconclusive, format!("{}; logits are not recorded, and {why}", other.told())),
        }))
    }

    /// Judges a margin by the noise floor, since rounding may change both logits.
    fn weigh(&self, other: TokenDifference, margin: f64) -> (Verdict, String) {
        let floor = self.floors.get(&last_logits(other.pass)).copied().unwrap_or_default();
        let (verdict, near) = floor.parts(margin, self.tolerance);
        (
            verdict,
            format!(
                "{}; their logits differ by {margin:.1e}, and rounding can change that by up to {near:.1e}",
                other.told()
            ),
        )
    }

    /// Returns the margin by which a side's logits prefer its own token to the other side's. Uses the dump's
    /// logits if recorded.
    fn margin(&self, other: TokenDifference) -> Result<Option<f64>> {
        let TokenDifference { position, pass, candidate, reference } = other;
        let of = |held: &AlignedDump, own: u32, other: u32| -> Result<Option<f64>> {
            let logits = logits_after(held.dump, position)?;
            Ok(logits.and_then(|logits| Some(logits.get(own as usize)? - logits.get(other as usize)?)))
        };
        let ours = |margins: &HashMap<usize, f64>, own: u32, other: u32| {
            let logits = || self.logits.get(&last_logits(pass)).map(Tensor::data);
            let by_logits = || {
                let logit = |token: u32| logits()?.get(token as usize).map(|&logit| f64::from(logit));
                Some(logit(own)? - logit(other)?)
            };
            margins.get(&pass).copied().or_else(by_logits)
        };
        Ok(match &self.sides {
            LogitSource::Engine { held, role: Role::Reference, margins, .. } => {
                of(held, reference, candidate)?.or(ours(margins, candidate, reference))
            }
            LogitSource::Engine { held, role: Role::Candidate, margins, .. } => {
                of(held, candidate, reference)?.or(ours(margins, reference, candidate))
            }
            LogitSource::Dumps { candidate: one, reference: two } => {
                of(two, reference, candidate)?.or(of(one, candidate, reference)?)
            }
        })
    }

    fn judge_step(&self, step: usize, other: TokenDifference) -> Result<DivergentStep> {
        let judged = match (self.judge_by_own_logits(other)?, self.choices.get(step)) {
            (Some(judged), _) => judged,
            // A pass without taps is judged by the engine's own two largest logits.
            (None, Some(own)) if self.margin(other)?.is_none() => self.judge_by_two_best(own, other),
            (None, _) => self.judge_choice(other)?,
        };
        let (verdict, told) = judged;
        Ok(DivergentStep { step, other, verdict, told: format!("step {step}: {told}") })
    }

    fn judge_by_two_best(&self, own: &GreedyToken, other: TokenDifference) -> (Verdict, String) {
        match [other.candidate, other.reference].contains(&own.second) {
            true => self.weigh(other, own.margin.into()),
            false => (
                Verdict::Fail,
                format!(
                    "{}; at least one of the two tokens is not among the reference's two likeliest",
                    other.told()
                ),
            ),
        }
    }

    /// Judges the choice after a position. A tie is inconclusive if later choices depend on it and no run
    /// along the dump's tokens covers them.
    fn not_followed(&self, point: Point, position: usize, judged: (Verdict, String)) -> (Verdict, String) {
        let (verdict, told) = judged;
        let rest = match &self.sides {
            _ if verdict != Verdict::Tie => 0,
            // The choices of later passes have their own rows.
            LogitSource::Engine { .. } if point == Point::Argmax => 0,
            LogitSource::Engine { held, .. } if self.choices.is_empty() => choices_after(held, position),
            LogitSource::Engine { .. } => 0,
            LogitSource::Dumps { candidate, reference }
                if reads_alike(candidate, reference, position + 1) =>
            {
                0
            }
            LogitSource::Dumps { candidate, .. } => choices_after(candidate, position),
        };
        if rest == 0 {
            return (verdict, told);
        }
        let why = match &self.sides {
            LogitSource::Engine { .. } => {
                "to judge them by a run from the token ids, omit --introduced and --from-reference"
            }
            LogitSource::Dumps { .. } => {
                "the reference reads another token there; run `xcheck check` with the model to judge them \
                    along the dump's own tokens"
            }
        };
        let rest =
            if rest == 1 { "choice after it is".into() } else { format!("{rest} choices after it are") };
        let told = format!("{told}: a tie, but the {rest} not judged: {why}");
        (Verdict::Inconclusive, told)
    }

    /// Fails a row if the candidate's choice contradicts itself. A contradictory reference makes the row
    /// inconclusive.
    fn refuse_contradictions(&self, row: &mut SiteResult) {
        let concerns = |held: &AlignedDump| -> Option<String> {
            let at = |position| held.choices.contradiction(position).map(str::to_owned);
            match row.site.point {
                Point::Argmax => at(row.positions.start),
                Point::Generated => ends_of_choices(held).into_iter().find_map(|(_, end)| at(end - 1)),
                _ => None,
            }
        };
        let (candidate, reference) = match &self.sides {
            LogitSource::Engine { held, role: Role::Candidate, .. } => (concerns(held), None),
            LogitSource::Engine { held, role: Role::Reference, .. } => (None, concerns(held)),
            LogitSource::Dumps { candidate, reference } => (concerns(candidate), concerns(reference)),
        };
        if let Some(what) = candidate {
            (row.verdict, row.reason) =
                (Verdict::Fail, Some(format!("the candidate contradicts itself: {what}")));
        } else if let Some(what) = reference {
            let what = format!("the reference contradicts itself: {what}");
            (row.verdict, row.reason) = (Verdict::Inconclusive, Some(what));
        }
    }
}

/// Returns the site of a failing operation in the earliest pass that has one.
fn first_wrong(rows: &[SiteResult]) -> Option<Site> {
    let is_wrong =
        |row: &&SiteResult| row.verdict == Verdict::Fail && row.site.point.kind() == ValueKind::Real;
    rows.iter().filter(is_wrong).map(|row| row.site).min_by_key(|site| site.pass)
}

/// Turns ties into failures in and after the pass of a wrong operation, since these logits changed by more than
/// rounding.
pub(crate) fn refuse_ties_of_a_wrong_run(rows: &mut [SiteResult]) {
    let Some(wrong) = first_wrong(rows) else { return };
    let comes_after = |row: &&mut SiteResult| row.site.pass.is_none_or(|pass| Some(pass) >= wrong.pass);
    // A choice of experts from recorded router logits stays a tie, because those logits already contain the
    // error.
    let is_token = |row: &&mut SiteResult| row.site.point != Point::Experts || row.local.is_none();
    let ties = rows.iter_mut().filter(|row| row.verdict == Verdict::Tie).filter(is_token);
    for row in ties.filter(comes_after) {
        let reason = row.reason.take().unwrap_or_default();
        (row.verdict, row.reason) =
            (Verdict::Fail, Some(format!("{reason}; not a tie, because {wrong} is wrong")));
    }
}

/// A judged step of a continuation at which the two sides differ.
#[derive(Clone)]
struct DivergentStep {
    step: usize,
    other: TokenDifference,
    verdict: Verdict,
    told: String,
}

/// Returns the deciding step: the first difference that is not a tie.
fn over_steps(judged: Vec<DivergentStep>) -> Option<DivergentStep> {
    let first = judged.first()?.clone();
    let ties = judged.iter().take_while(|step| step.verdict == Verdict::Tie).count();
    Some(match judged.into_iter().nth(ties) {
        Some(decides) if ties > 0 => {
            let told = format!("{}; an earlier step is a tie", decides.told);
            DivergentStep { told, ..decides }
        }
        Some(decides) => decides,
        None if ties == 1 => first,
        None => {
            let told = format!("{}; {ties} steps are ties, the others equal", first.told);
            DivergentStep { told, ..first }
        }
    })
}

/// Shows the deciding step as the row's worst difference.
fn show(row: &mut SiteResult, taken: &DivergentStep) {
    let DivergentStep { step, other, .. } = taken;
    let (candidate, reference) = (other.candidate.into(), other.reference.into());
    for found in [&mut row.accumulated, &mut row.local].into_iter().flatten() {
        if found.worst.is_some() {
            found.worst = Some(WorstElement { index: vec![*step], candidate, reference });
        }
    }
}

/// Returns the steps at which the continuations of two dumps differ, while both have read the same tokens.
fn other_steps_of_dumps(candidate: &AlignedDump, reference: &AlignedDump) -> Vec<(usize, TokenDifference)> {
    let steps = ends_of_choices(reference).into_iter().enumerate();
    let alike = steps.take_while(|(_, (_, end))| reads_alike(candidate, reference, end - 1));
    let other = |(step, (pass, end)): (usize, (usize, usize))| {
        let [one, other] = [candidate, reference].map(|held| held.choices.at(end - 1));
        let (candidate, reference) = one.zip(other).filter(|(one, other)| one != other)?;
        Some((step, TokenDifference { position: end - 1, pass, candidate, reference }))
    };
    alike.filter_map(other).collect()
}

/// Returns true if two dumps have the same token at a position, or one of them does not record it.
fn reads_alike(one: &AlignedDump, other: &AlignedDump, position: usize) -> bool {
    let [one, other] = [one, other].map(|held| held.dump.manifest.token_at(position));
    one.zip(other).is_none_or(|(one, other)| one == other)
}

/// Returns the number of choices in a dump after a position.
fn choices_after(held: &AlignedDump, position: usize) -> usize {
    held.choices.iter().filter(|(after, _)| *after > position).count()
}

/// Returns the candidate's and the reference's token if the judged run chose another one.
fn differing(row: &SiteResult) -> Option<(u32, u32)> {
    let worst = row.accumulated.as_ref().or(row.local.as_ref())?.worst.as_ref()?;
    (worst.candidate != worst.reference).then_some((worst.candidate as u32, worst.reference as u32))
}

fn pass_ending(held: &AlignedDump, position: usize) -> Option<usize> {
    Pass::ending(held.passes(), position + 1)
}

/// Returns the passes after which tokens of the continuation are chosen, with the end positions. After the
/// dump's last pass, each token is a pass.
fn ends_of_choices(held: &AlignedDump) -> Vec<(usize, usize)> {
    let (passes, prompt) = (held.passes(), held.dump.manifest.input.tokens.len());
    let count = held.dump.manifest.generated.as_ref().map_or(0, Vec::len).max(passes.len());
    let read = passes.last().map_or(0, |pass| pass.end());
    let own = passes.iter().enumerate().map(|(index, pass)| (index, pass.end()));
    let beyond = (passes.len()..passes.len() + count).map(|index| (index, read + 1 + index - passes.len()));
    own.chain(beyond).filter(|&(_, end)| end >= prompt).take(count).collect()
}
