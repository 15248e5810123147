//! A sequence of tokens with one side's log-probabilities.

use super::expert_routes::ExpertRoutes;

/// A sequence of tokens with one side's log-probabilities.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceRecord {
    /// Token ids. Empty if the file has none.
    pub(crate) tokens: Vec<u32>,
    /// Log-probability of each token. NaN for a token that is not scored.
    pub(crate) logprobs: Vec<f64>,
    /// Number of tokens of the prompt, if stated.
    pub(crate) prompt_length: Option<usize>,
    /// Temperature that the file states: the divisor of the logits.
    pub(crate) temperature: Option<f64>,
    /// Stated training step of the weights.
    pub(crate) version: Option<i64>,
    /// Stated type of the arithmetic.
    pub(crate) dtype: Option<String>,
    /// Experts that the side chose.
    pub(crate) routes: Option<ExpertRoutes>,
    /// Number of scored tokens whose log-probability is NaN.
    pub(crate) nan: usize,
}

/// The fields of a sequence as a file states them.
#[derive(Clone, Debug, Default)]
pub(super) struct StatedSequence {
    pub(crate) tokens: Option<Vec<u32>>,
    pub(crate) prompt: Option<Vec<u32>>,
    pub(crate) completion: Option<Vec<u32>>,
    /// Log-probabilities. `None` for a token that is not scored.
    pub(crate) logprobs: Vec<Option<f64>>,
    pub(crate) mask: Option<Vec<bool>>,
    pub(crate) prompt_length: Option<usize>,
    pub(crate) completion_length: Option<usize>,
    pub(crate) temperature: Option<f64>,
    pub(crate) version: Option<i64>,
    pub(crate) dtype: Option<String>,
    pub(crate) routes: Option<ExpertRoutes>,
    /// Experts for the prompt, if `routes` contains only those for the completion.
    pub(crate) prompt_routes: Option<ExpertRoutes>,
}

/// The problem with a field of a sequence: the field's name, and the value with the expected one.
#[derive(Debug)]
pub(super) struct FieldProblem(pub &'static str, pub String);

/// Returns the token id for a stored number. Negative ids, with which some libraries pad, become `u32::MAX`.
pub(super) fn token_id(value: f64) -> Option<u32> {
    match value as u32 {
        id if f64::from(id) == value => Some(id),
        _ => (value < 0.0 && value.fract() == 0.0).then_some(u32::MAX),
    }
}

/// Converts a stored number to a number of tokens.
pub(super) fn token_count(value: f64) -> Option<usize> {
    let count = value as usize;
    (count as f64 == value).then_some(count)
}

impl StatedSequence {
    /// Aligns log-probabilities, mask and tokens.
    pub(super) fn aligned(mut self) -> Result<SequenceRecord, FieldProblem> {
        let (tokens, prompt_length) = self.all_tokens()?;
        let length = if tokens.is_empty() { self.logprobs.len() } else { tokens.len() };
        let start = start(length, self.logprobs.len(), prompt_length)?;
        let mut record = SequenceRecord {
            tokens,
            logprobs: vec![f64::NAN; length],
            prompt_length,
            temperature: self.temperature,
            version: self.version,
            dtype: self.dtype.take(),
            routes: self.routes(length)?,
            nan: 0,
        };
        let mask = match &self.mask {
            None => None,
            Some(mask) => Some(masked(mask, length, start)?),
        };
        for (index, logprob) in self.logprobs.iter().enumerate() {
            let at = start + index;
            let is_scored = mask.as_ref().is_none_or(|mask| mask[at]);
            if let Some(value) = logprob.filter(|_| is_scored) {
                // Arrays have no other mark for tokens of the prompt that are not scored.
                record.nan += usize::from(value.is_nan() && prompt_length.is_none_or(|first| at >= first));
                record.logprobs[at] = value;
            }
        }
        Ok(record)
    }

    /// Returns the experts of all tokens that a forward pass read.
    fn routes(&mut self, length: usize) -> Result<Option<ExpertRoutes>, FieldProblem> {
        let problem = |problem: String| FieldProblem("routed_experts", problem);
        let routes = match (self.prompt_routes.take(), self.routes.take()) {
            (Some(mut prompt), Some(completion)) => {
                prompt.append(&completion).map_err(problem)?;
                prompt
            }
            (None, Some(routes)) => routes,
            (_, None) => return Ok(None),
        };
        let found = routes.tokens();
        match length.checked_sub(found) {
            Some(0 | 1) => Ok(Some(routes)),
            _ => {
                let least = length.saturating_sub(1);
                Err(problem(format!("{found} tokens, expected {least} or {length}, those of the sequence")))
            }
        }
    }

    /// Returns the tokens of prompt and completion, and the prompt's length.
    fn all_tokens(&self) -> Result<(Vec<u32>, Option<usize>), FieldProblem> {
        let (tokens, mut prompt) = match (&self.tokens, &self.prompt, &self.completion) {
            (Some(tokens), prompt, _) => (tokens.clone(), prompt.as_ref().map(Vec::len)),
            (None, Some(prompt), Some(completion)) => {
                ([&prompt[..], completion].concat(), Some(prompt.len()))
            }
            (None, None, Some(completion)) => (completion.clone(), None),
            _ => (Vec::new(), None),
        };
        if let Some(completion) = self.completion_length {
            let length = if tokens.is_empty() { self.logprobs.len() } else { tokens.len() };
            let left = length.checked_sub(completion);
            let problem =
                || FieldProblem("response_length", format!("{completion}, expected at most {length}"));
            prompt = Some(left.ok_or_else(problem)?);
        }
        let prompt = self.prompt_length.or(prompt);
        let length = if tokens.is_empty() { self.logprobs.len() } else { tokens.len() };
        match prompt.filter(|&prompt| prompt > length) {
            Some(long) => Err(FieldProblem(
                "prompt_length",
                format!("{long}, expected at most {length}, the number of tokens"),
            )),
            None => Ok((tokens, prompt)),
        }
    }
}

/// Returns the position of the first log-probability: that of the first token, the second token, or the first token
/// of the completion.
fn start(length: usize, logprobs: usize, prompt: Option<usize>) -> Result<usize, FieldProblem> {
    match (length.checked_sub(logprobs), prompt) {
        (Some(0), _) => Ok(0),
        (Some(left), Some(prompt)) if left == prompt => Ok(prompt),
        (Some(1), _) => Ok(1),
        (Some(left), None) if logprobs > 0 => Ok(left),
        _ => {
            let completion = prompt.map_or(String::new(), |prompt| format!(" or {}", length - prompt));
            Err(FieldProblem(
                "logprobs",
                format!("{logprobs} values, expected {length}{completion}, one for each token"),
            ))
        }
    }
}

/// Returns the mask of all tokens.
fn masked(mask: &[bool], length: usize, start: usize) -> Result<Vec<bool>, FieldProblem> {
    let at = match length.checked_sub(mask.len()) {
        Some(0) => 0,
        Some(left) if left == start || left == 1 => left,
        _ => {
            let found = mask.len();
            return Err(FieldProblem(
                "mask",
                format!("{found} values, expected {length}, one for each token"),
            ));
        }
    };
    Ok([&vec![false; at][..], mask].concat())
}
