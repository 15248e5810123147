//! Checks of a server without a reference: determinism, and consistency of a single answer.

use std::panic::resume_unwind;
use std::thread;

use crate::error::Error;
use crate::probe::answer::{
    ContinuationRequest, GreedyContinuation, MissingAnswer, ProbePrompt, ServerAnswer, TokenPosition,
};
use crate::probe::check::{ProbeCheck, ProbeSubject};
use crate::probe::difference::{AnswerDifference, LogprobDifference, coarseness};
use crate::probe::server::ServerApi;
use crate::verdict::Verdict;

/// Number of repeats of the same request, one after the other.
const REPEATS: usize = 4;
/// Number of other requests at the same time.
const OTHERS: usize = 4;

/// Size of rounding errors in a server's log-probabilities.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundingScale {
    /// Noise floor of the log-probabilities of this model; `None` without a model.
    pub(crate) floor: Option<LogprobDifference>,
    /// Precision of the decimals in the answers.
    pub(crate) step: f64,
}

/// Checks that a single answer is consistent with a probability distribution.
pub fn sound(answer: &GreedyContinuation, asked: &ContinuationRequest) -> Vec<ProbeCheck> {
    let named = || answer.places.iter().flat_map(|place| place.top.iter().chain(&place.token));
    let values = named().filter(|named| named.logprob.is_some()).count();
    if values == 0 {
        let why = "the server gives no log-probabilities of generated tokens";
        return vec![ProbeCheck::cannot(ProbeSubject::Answer, "log-probabilities are valid", why)];
    }
    vec![
        ProbeCheck::new(
            ProbeSubject::Answer,
            "log-probabilities are valid",
            are_logarithms(&answer.places, values),
        ),
        ProbeCheck::new(ProbeSubject::Answer, "the greedy token is the likeliest", is_greedy(&answer.places)),
        ProbeCheck::new(
            ProbeSubject::Answer,
            "as many top tokens as requested",
            are_as_many(&answer.places, asked.top),
        ),
        ProbeCheck::new(
            ProbeSubject::Answer,
            "other tokens have some probability",
            leave_a_share(&answer.places),
        ),
    ]
}

fn are_logarithms(places: &[TokenPosition], values: usize) -> (Verdict, String) {
    let coarse = coarseness(places).exp();
    for (at, place) in places.iter().enumerate() {
        let found = place.top.iter().chain(&place.token).filter_map(|named| named.logprob);
        // Zero may round up by the rounding error of a softmax sum.
        if let Some(wrong) = found.clone().find(|value| !(*value <= f64::from(f32::EPSILON))) {
            return (Verdict::Fail, format!("token {}: {wrong} is not a log-probability", at + 1));
        }
        let sum: f64 = place.top.iter().filter_map(|named| named.logprob).map(f64::exp).sum();
        let most = 1.0 + rounding_of_sum(place);
        if !(sum <= most * coarse) {
            return (
                Verdict::Fail,
                format!(
                    "token {}: the probabilities of the top tokens sum to {sum}, expected at most 1",
                    at + 1
                ),
            );
        }
    }
    (Verdict::Pass, format!("{values} values"))
}

/// Returns the rounding error of a sum of probabilities.
fn rounding_of_sum(place: &TokenPosition) -> f64 {
    f64::from(f32::EPSILON) * 8.0 * (place.top.len() + 1) as f64
}

/// Checks that the top tokens leave some probability for all other tokens. Positions whose least likely top token
/// is less likely than the rounding error are skipped. If the top tokens have all of the probability at every other
/// position, the softmax was probably computed over the top tokens only.
pub(crate) fn leave_a_share(places: &[TokenPosition]) -> (Verdict, String) {
    let step = coarseness(places);
    let shares = places.iter().filter_map(|place| {
        let values: Vec<f64> = place.top.iter().filter_map(|named| Some(named.logprob?.exp())).collect();
        let sum: f64 = values.iter().sum();
        let rounding = rounding_of_sum(place) + step * sum;
        let least = values.into_iter().reduce(f64::min).filter(|least| *least > rounding)?;
        // A total above 1 is reported by the check of log-probabilities.
        (sum <= 1.0 + rounding).then_some((1.0 - sum > rounding, least))
    });
    let shares: Vec<_> = shares.collect();
    match shares.iter().filter(|(is_left, _)| *is_left).count() {
        _ if shares.is_empty() => {
            (Verdict::Pass, "the top tokens leave too little probability to measure".to_owned())
        }
        0 => {
            let least = shares.iter().map(|(_, least)| *least).fold(0.0, f64::max);
            let told = format!(
                "the top tokens have all of the probability at {} tokens, and the least likely of them up to \
                 {least:.1e}: the softmax ran over these alone (top-k before the softmax?), or no other token is \
                 possible",
                shares.len()
            );
            (Verdict::Inconclusive, told)
        }
        left => (Verdict::Pass, format!("{left} of {} tokens where this is measurable", shares.len())),
    }
}

fn is_greedy(places: &[TokenPosition]) -> (Verdict, String) {
    let mut seen = 0;
    for (at, place) in places.iter().enumerate() {
        let Some(token) = &place.token else { continue };
        let best = place.top.iter().filter_map(|named| named.logprob).fold(f64::NEG_INFINITY, f64::max);
        let own = token.logprob.or_else(|| place.top.iter().find(|named| named.is(token))?.logprob);
        let Some(own) = own.filter(|_| best.is_finite()) else { continue };
        seen += 1;
        if own < best {
            let told = format!(
                "token {}: at temperature 0 the server chose a token with log-probability {own:.4}, but lists one with \
                 {best:.4}: a penalty or a sampler is active, or the list is of another position",
                at + 1
            );
            return (Verdict::Fail, told);
        }
    }
    match seen {
        0 => (Verdict::Inconclusive, "no top tokens were returned".to_owned()),
        seen => (Verdict::Pass, format!("{seen} tokens")),
    }
}

fn are_as_many(places: &[TokenPosition], asked: usize) -> (Verdict, String) {
    match places.iter().map(|place| place.top.len()).min().unwrap_or(0) {
        least if least >= asked => (Verdict::Pass, format!("{asked} at each token")),
        least => (
            Verdict::Inconclusive,
            format!("requested {asked}, received {least} (top-k limit?); give --top {least}"),
        ),
    }
}

/// Repeats the same request: alone, with other requests at the same time, with and without the prefix cache,
/// and streamed. Returns the checks, and the largest difference of log-probabilities among answers that pass.
///
/// # Errors
/// If the server fails.
pub(crate) fn determinism(
    server: &dyn ServerApi,
    asked: &ContinuationRequest,
    first: &GreedyContinuation,
    scale: RoundingScale,
) -> Result<(Vec<ProbeCheck>, f64), Error> {
    let mut apart = 0.0f64;
    let mut again = |name: &str, answers: Vec<ServerAnswer<GreedyContinuation>>| {
        let (check, by) = together(name, answers, first, scale)?;
        apart = apart.max(by);
        Ok::<_, Error>(check)
    };
    let repeats = (0..REPEATS).map(|_| server.generate(asked)).collect();
    let cold = ContinuationRequest { cold: true, ..*asked };
    let mut checks = vec![
        again("asked again", repeats)?,
        again("asked alongside others", among_others(server, asked))?,
        again("without the prefix cache", vec![server.generate(&cold)])?,
        again("after a longer prompt with the same prefix", vec![after_longer(server, asked, first)])?,
        again("in pieces", vec![server.generate(&ContinuationRequest { streamed: true, ..*asked })])?,
    ];
    let prefixes = of_prefixes(&checks);
    checks.extend(prefixes);
    Ok((checks, apart))
}

/// Returns a failed check of the prefix cache, if all answers that may use the cache differ from the first answer,
/// and the answer without the cache equals it.
fn of_prefixes(checks: &[ProbeCheck]) -> Option<ProbeCheck> {
    let [again, among, cold, rest @ ..] = checks else { return None };
    let mut warm = [again, among].into_iter().chain(rest).filter_map(|check| check.verdict);
    let is_it = cold.verdict == Some(Verdict::Pass) && warm.all(|verdict| verdict == Verdict::Fail);
    is_it.then(|| {
        let told = "answers differ if a prefix was cached by earlier requests, and are the same without the cache: the \
                    cached prefix is wrong"
            .to_owned();
        ProbeCheck::new(ProbeSubject::Own, "prefix cache", (Verdict::Fail, told))
    })
}

/// Returns the worst verdict of several answers, and the largest difference of log-probabilities between the first
/// answer and those that pass.
fn together(
    name: &str,
    answers: Vec<ServerAnswer<GreedyContinuation>>,
    first: &GreedyContinuation,
    scale: RoundingScale,
) -> Result<(ProbeCheck, f64), Error> {
    let count = answers.len();
    // After a single request, it is unknown if the server could answer.
    let is_asked_again = count > 1;
    let (mut worst, mut same, mut apart) = (None::<(Verdict, f64, String)>, 0, 0.0f64);
    let mut texts = vec![first.text.clone()];
    for answer in answers {
        let found = match answer {
            Ok(answer) => {
                let found = AnswerJudgement::of(first, &answer, scale);
                same += usize::from(found.is_same);
                apart = apart.max(if found.verdict == Verdict::Pass { found.apart } else { 0.0 });
                if !texts.contains(&answer.text) {
                    texts.push(answer.text);
                }
                (found.verdict, found.apart, found.told)
            }
            Err(MissingAnswer::Cannot(why)) if is_asked_again => (
                Verdict::Inconclusive,
                0.0,
                format!("the server refused a request that it answered before: {why}"),
            ),
            Err(refusal) => {
                let refused = ProbeCheck::refused(ProbeSubject::Own, name, refusal)?;
                let Some(verdict) = refused.verdict else { return Ok((refused, 0.0)) };
                (verdict, 0.0, refused.found)
            }
        };
        if worst.as_ref().is_none_or(|known| (found.0, found.1) > (known.0, known.1)) {
            worst = Some(found);
        }
    }
    let nothing = || (Verdict::Inconclusive, 0.0, "nothing was compared".to_owned());
    let (verdict, _, mut told) = worst.unwrap_or_else(nothing);
    if count > 1 {
        let bound = if same == count {
            format!(", so fewer than {:.0} % differ (with 95 % confidence)", 100.0 * rule(count))
        } else {
            String::new()
        };
        told = format!("{same} of {count} answers are the same{bound}, {}: {told}", different(texts.len()));
    }
    Ok((ProbeCheck::new(ProbeSubject::Own, name, (verdict, told)), apart))
}

fn different(texts: usize) -> String {
    if texts == 1 { "one text".to_owned() } else { format!("{texts} different texts") }
}

/// Returns the upper 95 % bound p of the share of different answers, if none of `count` answers differs: 0.05 = (1
/// - p)^count.
fn rule(count: usize) -> f64 {
    1.0 - 0.05f64.powf(1.0 / count as f64)
}

/// Verdict on an answer compared with the first answer.
struct AnswerJudgement {
    verdict: Verdict,
    told: String,
    is_same: bool,
    /// Largest difference of log-probabilities to the first answer.
    apart: f64,
}

impl AnswerJudgement {
    fn of(first: &GreedyContinuation, answer: &GreedyContinuation, scale: RoundingScale) -> Self {
        if first.places.is_empty() || answer.places.is_empty() {
            return Self::of_texts(&first.text, &answer.text);
        }
        let difference = AnswerDifference::of(&first.places, &answer.places);
        let (verdict, told) = difference.judge(scale.floor, scale.step);
        let (is_same, apart) = (difference.is_none(), difference.largest);
        // If the first answer chooses tokens greedily by its own log-probabilities, every answer should.
        match (is_greedy(&first.places), is_greedy(&answer.places)) {
            ((once, _), (Verdict::Fail, why)) if once != Verdict::Fail => {
                Self { verdict: Verdict::Fail, told: format!("{told}; {why}"), is_same, apart }
            }
            _ => Self { verdict, told, is_same, apart },
        }
    }

    fn of_texts(first: &str, answer: &str) -> Self {
        let (verdict, told) = match first == answer {
            true if first.is_empty() => (Verdict::Inconclusive, "no text was returned"),
            true => (Verdict::Pass, "the text is the same; the server returns no tokens"),
            false => {
                (Verdict::Inconclusive, "the texts differ; without log-probabilities the margin is unknown")
            }
        };
        Self { verdict, told: told.to_owned(), is_same: first == answer, apart: 0.0 }
    }
}

/// Sends the same request twice while requests of other lengths are answered.
fn among_others(
    server: &dyn ServerApi,
    asked: &ContinuationRequest,
) -> Vec<ServerAnswer<GreedyContinuation>> {
    let others: Vec<ProbePrompt> =
        (1..=OTHERS).map(|part| beginning(asked.prompt, part, OTHERS + 1)).collect();
    thread::scope(|scope| {
        let start = |prompt| {
            let ask = ContinuationRequest { prompt, ..*asked };
            scope.spawn(move || server.generate(&ask))
        };
        let (before, after) = others.split_at(OTHERS / 2);
        let mut running: Vec<_> = before.iter().map(|prompt| (false, start(prompt))).collect();
        running.push((true, start(asked.prompt)));
        running.extend(after.iter().map(|prompt| (false, start(prompt))));
        running.push((true, start(asked.prompt)));
        let ended = running.into_iter().map(|(is_own, thread)| (is_own, thread.join()));
        let all = ended.map(|(is_own, answer)| (is_own, answer.unwrap_or_else(|panic| resume_unwind(panic))));
        let (own, others): (Vec<_>, Vec<_>) = all.partition(|(is_own, _)| *is_own);
        let is_alone = others.iter().all(|(_, answer)| answer.is_err());
        let alone = || Err(MissingAnswer::cannot("none of the concurrent requests was answered"));
        let broken = others.into_iter().filter(|(_, answer)| matches!(answer, Err(MissingAnswer::Broken(_))));
        let answers = own.into_iter().chain(broken).map(|(_, answer)| answer);
        answers.chain(is_alone.then(alone)).collect()
    })
}

/// Returns the first `part` of `parts` equal parts of a prompt.
fn beginning(prompt: &ProbePrompt, part: usize, parts: usize) -> ProbePrompt {
    let length = |whole: usize| (whole * part / parts).max(1).min(whole);
    let ids = prompt.ids.as_ref().map(|ids| ids[..length(ids.len())].to_vec());
    let text = prompt.text.as_ref().map(|text| text.chars().take(length(text.chars().count())).collect());
    ProbePrompt { ids, text }
}

/// Sends a longer prompt first. The server may then use its cached prefix for the request.
fn after_longer(
    server: &dyn ServerApi,
    asked: &ContinuationRequest,
    first: &GreedyContinuation,
) -> ServerAnswer<GreedyContinuation> {
    let longer = asked.prompt.and(first);
    // The answer is ignored, since the longer prompt may exceed a limit.
    if let Err(MissingAnswer::Broken(error)) =
        server.generate(&ContinuationRequest { prompt: &longer, tokens: 1, ..*asked })
    {
        return Err(MissingAnswer::Broken(error));
    }
    server.generate(asked)
}

/// Compares the log-probabilities of generated tokens with those of the same tokens in a prompt.
///
/// # Errors
/// If the server fails.
pub(crate) fn prefill_and_decode(
    server: &dyn ServerApi,
    asked: &ContinuationRequest,
    first: &GreedyContinuation,
    scale: RoundingScale,
    left: usize,
) -> Result<ProbeCheck, Error> {
    const NAME: &str = "prefill agrees with decode";
    let whole = asked.prompt.and(first);
    let Some(ids) = &whole.ids else {
        return Ok(ProbeCheck::cannot(
            ProbeSubject::Own,
            NAME,
            "the ids of the generated tokens are unknown",
        ));
    };
    if server.forced_requests(ids.len()) > left {
        let why = format!(
            "skipped: this check needs {} requests, one per token; raise --requests",
            server.forced_requests(ids.len())
        );
        return ProbeCheck::refused(ProbeSubject::Own, NAME, MissingAnswer::NotAsked(why));
    }
    match server.forced(&whole, asked.top) {
        Ok(read) => {
            let read: Vec<TokenPosition> =
                read.into_iter().skip(ids.len() - first.places.len()).flatten().collect();
            if read.len() != first.places.len() {
                return Ok(ProbeCheck::cannot(
                    ProbeSubject::Own,
                    NAME,
                    "the server does not return log-probabilities of all these tokens",
                ));
            }
            Ok(ProbeCheck::new(
                ProbeSubject::Own,
                NAME,
                AnswerDifference::of(&first.places, &read).judge(scale.floor, scale.step),
            ))
        }
        Err(refusal) => ProbeCheck::refused(ProbeSubject::Own, NAME, refusal),
    }
}
