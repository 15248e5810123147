//! Texts of the tokens in a comparison.

use std::collections::BTreeSet;

use crate::checkpoint::ValueKind;
use crate::cli::requested_model::RequestedModel;
use crate::dump::Manifest;
use crate::measure::{Measurement, NO_TOKEN};
use crate::report::PromptTokens;
use crate::verdict::Outcome;

/// Returns the input tokens and the chosen tokens, with texts if a tokenizer is available. Errors do not affect the
/// verdict.
pub(crate) fn texts(target: Option<&RequestedModel>, outcome: &Outcome, manifest: &Manifest) -> PromptTokens {
    let prompt = manifest.input.tokens.clone();
    let tokenizer = target.and_then(|target| target.tokenizer().ok().flatten());
    let Some(tokenizer) = tokenizer else { return PromptTokens { prompt, ..PromptTokens::default() } };
    let mut ids: BTreeSet<u32> = prompt.iter().copied().collect();
    ids.extend(manifest.passes.iter().flat_map(|pass| &pass.tokens));
    ids.extend(manifest.generated.iter().flatten());
    for row in &outcome.rows {
        let chosen = row.judged().filter(|_| row.site.point.kind() == ValueKind::Token);
        ids.extend(chosen.into_iter().flat_map(chosen_ids));
        let tops =
            [&row.accumulated, &row.local].into_iter().flatten().filter_map(|found| found.tops.as_ref());
        ids.extend(
            tops.flat_map(|tops| tops.candidate.iter().chain(&tops.reference)).map(|likely| likely.token),
        );
    }
    let text = |id: u32| Some((id, tokenizer.decode_lossy(&[id]).ok()?));
    PromptTokens { prompt, texts: ids.into_iter().filter_map(text).collect() }
}

fn chosen_ids(found: &Measurement) -> impl Iterator<Item = u32> {
    let worst = found.worst.iter().flat_map(|worst| [worst.candidate, worst.reference]);
    worst.filter(|&id| id != NO_TOKEN).map(|id| id as u32)
}
