//! Description of the first difference between generated texts.

use crate::check::Role;
use crate::checkpoint::Point;
use crate::cli::requested_model::RequestedModel;
use crate::dump::Dump;
use crate::error::Result;
use crate::tokenizer::Tokenizer;
use crate::verdict::Outcome;

/// Number of displayed characters of a text.
const SHOWN: usize = 40;

/// Describes the first step at which the texts differ, with both texts; `None` if they are equal. A tokenizer that
/// cannot be used only causes a note.
pub(crate) fn parting(target: &RequestedModel, outcome: &Outcome, dump: &Dump) -> Option<String> {
    told(target, outcome, dump).unwrap_or_else(|error| {
        Some(format!(
            "the generated tokens differ; their text cannot be shown: \
            {error}"
        ))
    })
}

fn told(target: &RequestedModel, outcome: &Outcome, dump: &Dump) -> Result<Option<String>> {
    let row = outcome.rows.iter().find(|row| row.site.point == Point::Generated);
    let worst = row.and_then(|row| row.accumulated.as_ref()).and_then(|found| found.worst.as_ref());
    let generated = dump.manifest.generated.as_deref().unwrap_or_default();
    let Some(worst) = worst.filter(|worst| worst.candidate != worst.reference) else { return Ok(None) };
    let (own, engine, other) = match outcome.subject.role {
        Role::Reference => (worst.candidate, "candidate", "reference"),
        Role::Candidate => (worst.reference, "reference", "candidate"),
    };
    let &[step] = &worst.index[..] else { return Ok(None) };
    let Some(tokenizer) = target.tokenizer()?.filter(|_| step < generated.len()) else { return Ok(None) };
    let before = [&dump.manifest.input.tokens, &generated[..step]].concat();
    let text = |after: &[u32]| text_after(&*tokenizer, &before, after);
    Ok(Some(format!(
        "the generated texts differ from step {step} on, after {:?}: the {engine} continues with {:?}, the \
            {other} with {:?}",
        end(&tokenizer.decode_lossy(&before)?),
        text(&[own as u32])?,
        start(&text(&generated[step..])?)
    )))
}

/// Returns the text that `after` adds to `before`.
fn text_after(tokenizer: &dyn Tokenizer, before: &[u32], after: &[u32]) -> Result<String> {
    let (all, before) = (tokenizer.decode_lossy(&[before, after].concat())?, tokenizer.decode_lossy(before)?);
    let same = all.chars().zip(before.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    Ok(all.get(same..).unwrap_or_default().to_owned())
}

fn start(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

fn end(text: &str) -> String {
    let skipped = text.chars().count().saturating_sub(SHOWN);
    text.chars().skip(skipped).collect()
}
