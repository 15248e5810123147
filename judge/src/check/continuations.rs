//! Continuations of two dumps: the tokens that both sides chose after the prompt.

use crate::align::AlignedDump;
use crate::check::site_check::ArrayComparison;
use crate::measure::measure_tokens;
use crate::view::View;

/// The tokens that two dumps chose after the prompt. If the dumps later read different tokens, only the choices
/// before that point.
pub(crate) struct Continuations([Vec<u32>; 2]);

impl Continuations {
    /// Reads the continuations of a candidate and a reference that read `common` leading tokens identically.
    pub(crate) fn of(both: [&AlignedDump; 2], common: usize) -> Self {
        let [_, reference] = both;
        let prompt = reference.dump.manifest.input.tokens.len();
        let parts = both.iter().all(|held| held.read_tokens().len() > common);
        Self(both.map(|held| {
            let choices = held.choices.iter().filter(|(position, _)| !parts || *position < common);
            choices.filter(|(position, _)| position + 1 >= prompt).map(|(_, token)| token).collect()
        }))
    }

    /// Compares the continuations up to the end of the shorter one.
    pub(crate) fn compare(&self) -> ArrayComparison {
        let [one, other] = &self.0;
        let both = one.len().min(other.len());
        ArrayComparison::Measured(measure_tokens(
            View::of_tokens(&one[..both]),
            View::of_tokens(&other[..both]),
        ))
    }

    /// Returns a note if one side has more generated tokens.
    pub(crate) fn note(&self) -> Option<String> {
        let [one, other] = [self.0[0].len(), self.0[1].len()];
        (one != other).then(|| {
            let both = one.min(other);
            format!(
                "generated: the candidate has {one} tokens, the reference {other}; only the first {both} \
                are compared"
            )
        })
    }
}
