//! `xcheck probe --audit`: finds out with few one-token requests in which state a server serves a model.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cli::audit_report::{AuditReport, AuditedState};
use crate::cli::audited_states::{AuditedModels, ServingState};
use crate::cli::progress::StepProgress;
use crate::cli::requested_model::own_tokenizer;
use crate::cli::terminal::tell;
use crate::dump::COARSEST;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::numerics::{F32, Numerics};
use crate::probe::self_consistency::leave_a_share;
use crate::probe::state::{
    Arithmetic, NoiseBounds, NoisePair, OddsAnswer, StateTest, TokenOdds, ToldOdds, WordPrompts, last_odds,
};
use crate::probe::{
    Client, ContinuationRequest, MissingAnswer, ProbePrompt, ServerApi, ServerIdentity, TokenPosition,
    TokenTextIds, coarseness, decimals,
};
use crate::tokenizer::Tokenizer;
use crate::verdict::Verdict;

/// Largest probability with which a true state is rejected.
pub(super) const ALPHA: f64 = 1e-3;
/// Number of prompts for which the noise is computed.
const CALIBRATION: usize = 24;
/// Number of prompts in each later batch.
const MORE: usize = 12;
/// Largest number of tokens that are compared in an answer.
const MOST_TOKENS: usize = 10;
/// Probability above which a token is not used, because its log-odds are lost in the rounding of its
/// log-probability.
const LIKELIEST: f64 = 0.99;
/// Minimum lead of the likeliest token, so that rounding does not decide which token a server returns.
const LEAD: f64 = 0.5;
/// Largest difference of log-odds between two predictions that count as equal.
const SAME: f64 = 1e-4;
/// Log-probability below which tokens are not distinguished.
const IMPOSSIBLE: f64 = -1e4;
/// Log-probability above which a token counts as certain; its log-odds are about 20.
const CERTAIN: f64 = -2e-9;

/// Endpoint to which requests are sent, and the seed of the prompts.
pub(super) struct AuditedEndpoint<'c> {
    pub client: &'c Client,
    pub known: &'c ServerIdentity,
    pub server: &'c dyn ServerApi,
    /// Number of top tokens to ask for.
    pub top: usize,
    pub seed: u64,
}

/// A prompt, the tokens to compare, and their predicted log-odds.
struct AuditPrompt {
    prompt: ProbePrompt,
    ids: Vec<u32>,
    odds: TokenOdds,
    /// Predictions of all states, the claimed one first.
    predicted: Vec<Vec<f64>>,
}

impl AuditPrompt {
    /// Computes the noise of a pair of numerics.
    fn noise(&self, model: &dyn Model, (exact, rounded): &NoisePair) -> Result<Vec<f64>> {
        let odds = |numerics: &dyn Numerics| last_odds(model, numerics, &self.ids, Some(&self.odds.ids), 0);
        let (exact, rounded) = (odds(&**exact)?.odds, odds(&**rounded)?.odds);
        Ok(rounded.iter().zip(exact).map(|(rounded, exact)| rounded - exact).collect())
    }
}

/// Computes the predictions of the states for which `is_open` returns true; other states get NaN. The states are
/// computed one after the other, since each has a quantised copy of the weights.
fn predict(
    prompts: &mut [AuditPrompt],
    states: &[ServingState],
    is_open: impl Fn(usize) -> bool,
) -> Result<()> {
    for prompt in prompts.iter_mut() {
        prompt.predicted = vec![prompt.odds.odds.clone()];
    }
    for (at, state) in states.iter().enumerate() {
        let odds = match is_open(at + 1) {
            true => state.odds(prompts.iter().map(|prompt| (&prompt.ids[..], &prompt.odds.ids[..])))?,
            false => prompts.iter().map(|prompt| vec![f64::NAN; prompt.odds.ids.len()]).collect(),
        };
        prompts.iter_mut().zip(odds).for_each(|(prompt, odds)| prompt.predicted.push(odds));
    }
    Ok(())
}

/// Source of prompts for which the claimed state has a clear likeliest token.
struct PromptSource<'m> {
    words: WordPrompts,
    tokenizer: &'m dyn Tokenizer,
    claimed: &'m ServingState<'m>,
}

impl PromptSource<'_> {
    /// Returns several prompts, each with `tokens` tokens to compare.
    fn several(&mut self, count: usize, tokens: usize) -> Result<Vec<AuditPrompt>> {
        (0..count).map(|_| self.next(tokens)).collect()
    }

    /// Returns the next prompt with `tokens` tokens to compare.
    fn next(&mut self, tokens: usize) -> Result<AuditPrompt> {
        const TRIES: usize = 1000;
        let largest = (LIKELIEST / (1.0 - LIKELIEST)).ln();
        for text in self.words.by_ref().take(TRIES) {
            let ids = self.tokenizer.encode(&text, true)?;
            let mut odds = last_odds(self.claimed.model, &F32, &ids, None, tokens.max(2))?;
            let is_clear = odds.odds.len() > 1 && odds.odds[0] - odds.odds[1] > LEAD;
            if is_clear && odds.odds[0] < largest {
                odds.ids.truncate(tokens);
                odds.odds.truncate(tokens);
                let prompt = ProbePrompt { ids: Some(ids.clone()), text: Some(text) };
                return Ok(AuditPrompt { prompt, ids, odds, predicted: Vec::new() });
            }
        }
        let problem = "--audit: in 1000 prompts of random words, the likeliest token was never both clear and below 99 %; \
                       expected a trained language model";
        Err(Error::Usage(problem.into()))
    }
}

/// Sends requests until the endpoint's state is known, or no request is left.
pub(super) fn audit(models: &AuditedModels, endpoint: &AuditedEndpoint) -> Result<AuditReport> {
    let tokenizer = tokenizer_of(models)?;
    let vocabulary = TokenTextIds::of(&*tokenizer);
    let mut states = models.states();
    let claimed = states.remove(0);
    let words = WordPrompts::new(endpoint.seed);
    let mut source = PromptSource { words, tokenizer: &*tokenizer, claimed: &claimed };
    let first = source.next(1)?;
    let told = endpoint.ask(&first, &vocabulary)?.map_or(1, |place| place.top.len().max(1));
    if endpoint.server.reads_conversations() {
        let problem = "--audit: the server only answers conversations, so the tokens that it reads are unknown; audit an \
             endpoint for completions";
        return Err(Error::Usage(problem.into()));
    }
    let tokens = (told / 2).clamp(1, MOST_TOKENS);
    let mut prompts = source.several(CALIBRATION, tokens)?;
    let bounds = calibrated(&claimed, &mut states, &mut prompts)?;
    let mut prompts = VecDeque::from(prompts);
    let mut test = StateTest::new(ALPHA, &bounds);
    let most = endpoint.client.left();
    let mut answers = AuditAnswers::default();
    let mut steps = StepProgress::new("request", most);
    while !test.is_decided() {
        if prompts.is_empty() {
            let mut more = source.several(MORE, tokens)?;
            predict(&mut more, &states, |state| test.rejected(state).is_none())?;
            prompts.extend(more);
        }
        let Some(prompt) = prompts.pop_front() else { break };
        let Some(place) = endpoint.ask(&prompt, &vocabulary)? else { break };
        let told = told_odds(&place, &prompt.odds.ids);
        let Some(told) = told else { return Err(no_logprobs(endpoint)) };
        answers.add(prompt, place, told, &mut test);
        if answers.doubt().is_some() {
            break;
        }
        steps.reached(answers.published.len());
    }
    Ok(report(endpoint, &claimed, &states, &test, (tokens, answers)))
}

/// Answers of the server. The first answers are kept back until their precision is known.
#[derive(Default)]
struct AuditAnswers {
    places: Vec<TokenPosition>,
    waiting: Vec<(AuditPrompt, Vec<ToldOdds>)>,
    published: Vec<Value>,
}

impl AuditAnswers {
    /// Number of answers that show the precision of log-probabilities.
    const FIRST: usize = 8;

    /// Adds an answer. Bets on it if the precision is known and there is no doubt.
    fn add(&mut self, prompt: AuditPrompt, place: TokenPosition, told: Vec<ToldOdds>, test: &mut StateTest) {
        self.published.push(published(&prompt, &told));
        self.places.push(place);
        self.waiting.push((prompt, told));
        if self.places.len() < Self::FIRST || self.doubt().is_some() {
            return;
        }
        let step = coarseness(&self.places);
        for (prompt, told) in self.waiting.drain(..) {
            test.add(&OddsAnswer { told, step, predicted: prompt.predicted });
        }
    }

    /// Returns the reason why the answers cannot distinguish states.
    fn doubt(&self) -> Option<String> {
        if self.places.len() < Self::FIRST {
            return None;
        }
        let step = 2.0 * decimals(&self.places).unwrap_or(0.0);
        let is_certain = |place: &TokenPosition| {
            place
                .top
                .iter()
                .chain(&place.token)
                .any(|named| named.logprob.is_some_and(|value| value >= CERTAIN))
        };
        match leave_a_share(&self.places) {
            _ if step > COARSEST => Some(format!(
                "the log-probabilities are multiples of {step}, too coarse to distinguish models"
            )),
            _ if self.places.iter().all(is_certain) => Some(
                "a token has the probability 1 in every answer: the server returns probabilities after sampling filters"
                    .to_owned(),
            ),
            (Verdict::Inconclusive, why) => Some(why),
            _ => None,
        }
    }
}

fn tokenizer_of(models: &AuditedModels) -> Result<Arc<dyn Tokenizer>> {
    let (tokenizer, lacking) = own_tokenizer(Some(&models.target));
    let lacking = if lacking.is_empty() { "it has none".to_owned() } else { lacking };
    tokenizer.ok_or_else(|| Error::Usage(format!("--audit needs the model's tokenizer: {lacking}")))
}

fn no_logprobs(endpoint: &AuditedEndpoint) -> Error {
    let kind = endpoint.known.kind.name();
    Error::Usage(format!(
        "--audit: the {kind} server returned no log-probability of a token that xcheck can identify; start it \
         with log-probabilities, or choose its protocol with --server"
    ))
}

impl AuditedEndpoint<'_> {
    /// Requests one token; `None` if no request is left.
    fn ask(&self, prompt: &AuditPrompt, vocabulary: &TokenTextIds) -> Result<Option<TokenPosition>> {
        let (prompt, top) = (&prompt.prompt, self.top);
        let ask = ContinuationRequest { prompt, tokens: 1, top, cold: false, streamed: false };
        match self.server.generate(&ask) {
            Ok(mut answer) => {
                vocabulary.name_all(&mut answer.places);
                answer.places.into_iter().next().map(Some).ok_or_else(|| no_logprobs(self))
            }
            Err(MissingAnswer::NotAsked(_)) => Ok(None),
            Err(MissingAnswer::Cannot(why)) => Err(Error::Usage(format!("cannot query the server: {why}"))),
            Err(MissingAnswer::Broken(error)) => Err(*error),
        }
    }
}

/// Returns the log-odds that an answer contains for some tokens; `None` if it has no log-probabilities.
fn told_odds(place: &TokenPosition, ids: &[u32]) -> Option<Vec<ToldOdds>> {
    let named = place.top.iter().chain(&place.token);
    let known: Vec<(Option<u32>, f64)> = named
        .filter_map(|named| Some((named.id, named.logprob.filter(|logprob| !logprob.is_nan())?)))
        .map(|(id, logprob)| (id, TokenOdds::of(logprob.clamp(IMPOSSIBLE, CERTAIN))))
        .collect();
    let least = known.iter().map(|(_, odds)| *odds).min_by(f64::total_cmp)?;
    let of = |id: &u32| known.iter().find(|(known, _)| *known == Some(*id)).map(|(_, odds)| *odds);
    // A text that several tokens share has no id: such an entry may be any token.
    let absent = match known.iter().all(|(id, _)| id.is_some()) {
        true => ToldOdds::AtMost(least),
        false => ToldOdds::Unknown,
    };
    known
        .iter()
        .any(|(id, _)| id.is_some())
        .then(|| ids.iter().map(|id| of(id).map_or(absent, ToldOdds::Known)).collect())
}

/// Computes predictions and noise of all states for the first prompts. Drops states whose predictions equal those
/// of the claimed state.
fn calibrated<'m>(
    claimed: &ServingState<'m>,
    states: &mut Vec<ServingState<'m>>,
    prompts: &mut [AuditPrompt],
) -> Result<NoiseBounds> {
    predict(prompts, states, |_| true)?;
    let differs = |odds: &[f64], own: &[f64]| odds.iter().zip(own).any(|(a, b)| !((a - b).abs() < SAME));
    let is_other =
        |state: usize| prompts.iter().any(|prompt| differs(&prompt.predicted[state], &prompt.predicted[0]));
    let kept: Vec<bool> = (1..=states.len()).map(is_other).collect();
    for prompt in prompts.iter_mut() {
        let mut kept = std::iter::once(true).chain(kept.iter().copied());
        prompt.predicted.retain(|_| kept.next().unwrap_or(false));
    }
    let mut kept = kept.into_iter();
    states.retain(|state| {
        let is_kept = kept.next().unwrap_or(false);
        if !is_kept {
            tell!("note: state {} is skipped, because it predicts the same values as the model", state.name);
        }
        is_kept
    });
    let kinds: Vec<Arithmetic> =
        std::iter::once(claimed).chain(&*states).map(|state| state.arithmetic).collect();
    let mut pairs: Vec<(Arithmetic, Vec<NoisePair>)> = Vec::new();
    for &kind in &kinds {
        if !pairs.iter().any(|(known, _)| *known == kind) {
            pairs.push((kind, kind.noise(claimed.model)));
        }
    }
    let mut bounds = NoiseBounds::default();
    let mut steps = StepProgress::new("prompt", prompts.len());
    for (done, prompt) in prompts.iter().enumerate() {
        let of = |(kind, pairs): &(Arithmetic, Vec<NoisePair>)| {
            let noise = pairs.iter().map(|pair| prompt.noise(claimed.model, pair));
            Ok((*kind, noise.collect::<Result<Vec<_>>>()?))
        };
        let measured = pairs.iter().map(of).collect::<Result<Vec<_>>>()?;
        let of = |kind| measured.iter().find(|(known, _)| known == kind).map(|(_, noise)| noise.clone());
        bounds.add(prompt.predicted.clone(), kinds.iter().filter_map(of).collect());
        steps.reached(done + 1);
    }
    Ok(bounds)
}

/// Returns an answer and the prediction of the claimed model, for the published report.
fn published(prompt: &AuditPrompt, told: &[ToldOdds]) -> Value {
    let told: Vec<Value> = told
        .iter()
        .map(|told| match told {
            ToldOdds::Known(odds) => json!(odds),
            ToldOdds::AtMost(odds) => json!({"at_most": odds}),
            ToldOdds::Unknown => Value::Null,
        })
        .collect();
    json!({
        "prompt": prompt.prompt.text, "prompt_ids": prompt.ids, "ids": prompt.odds.ids, "log_odds": told,
        "model_log_odds": prompt.odds.odds,
    })
}

fn report(
    endpoint: &AuditedEndpoint,
    claimed: &ServingState,
    states: &[ServingState],
    test: &StateTest,
    (tokens, answers): (usize, AuditAnswers),
) -> AuditReport {
    let audited = |(index, state): (usize, &ServingState)| {
        let (residual, bound) = test.residual(index);
        AuditedState {
            name: state.name.clone(),
            meaning: state.meaning.clone(),
            rejected_after: test.rejected(index),
            agrees: test.agrees(index),
            log10_evidence: test.evidence(index) / std::f64::consts::LN_10,
            residual,
            bound,
            expected_requests: test.expected(index),
        }
    };
    AuditReport {
        url: endpoint.client.base().to_owned(),
        server: endpoint.known.kind.name().to_owned(),
        version: endpoint.known.version.clone(),
        served_model: endpoint.known.model.clone(),
        alpha: ALPHA,
        seed: endpoint.seed,
        answers: test.answers,
        requests: endpoint.client.made(),
        least_answers: test.least_answers(),
        tokens,
        states: std::iter::once(claimed).chain(states).enumerate().map(audited).collect(),
        doubt: answers.doubt(),
        evidence: answers.published,
    }
}
