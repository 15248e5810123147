//! The tokens that a dump's engine chose, from all records in the dump, and contradictions between them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::align::alignment::aligned;
use crate::checkpoint::{Point, Site};
use crate::dump::{DecodeMode, Dump, Pass};
use crate::error::{Error, Result};

/// The record that states a chosen token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChoiceSource {
    /// The tap `argmax`, recorded per pass.
    Argmax,
    /// The tap `generated`, the continuation.
    Generated,
    /// The next token read, in a dump whose `input.decode` is greedy.
    Read,
}

impl ChoiceSource {
    fn name(self) -> &'static str {
        match self {
            ChoiceSource::Argmax => "argmax",
            ChoiceSource::Generated => "generated",
            ChoiceSource::Read => "the next token read by the greedy run",
        }
    }
}

/// Greedy choices, by the position of the token before the choice.
#[derive(Clone, Debug, Default)]
pub(crate) struct GreedyChoices {
    chosen: BTreeMap<usize, (u32, ChoiceSource)>,
    contradictions: BTreeMap<usize, String>,
}

impl GreedyChoices {
    /// Reads a dump's choices and finds contradictions: two different tokens at one position, or a token
    /// without the largest logit.
    ///
    /// # Errors
    /// If an array cannot be read.
    pub(crate) fn of(dump: &Dump) -> Result<Self> {
        let mut choices = Self::default();
        choices.tell_argmax(dump)?;
        choices.tell_generated(dump)?;
        choices.tell_read(dump);
        choices.check_logits(dump)?;
        Ok(choices)
    }

    /// Returns the token chosen after the one at `position`.
    pub(crate) fn at(&self, position: usize) -> Option<u32> {
        self.chosen.get(&position).map(|(token, _)| *token)
    }

    /// Returns all choices with their positions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, u32)> {
        self.chosen.iter().map(|(&position, &(token, _))| (position, token))
    }

    /// Returns the positions at which the dump contradicts itself.
    pub(crate) fn contradictions(&self) -> impl Iterator<Item = usize> {
        self.contradictions.keys().copied()
    }

    pub(crate) fn contradiction(&self, position: usize) -> Option<&str> {
        self.contradictions.get(&position).map(String::as_str)
    }

    fn tell_argmax(&mut self, dump: &Dump) -> Result<()> {
        for (index, pass) in dump.manifest.passes.iter().enumerate() {
            let site = Site { point: Point::Argmax, layer: None, pass: Some(index) };
            if let Some(tokens) = dump.view(site)?.filter(|tokens| !tokens.is_empty()) {
                self.tell(pass.end() - 1, tokens.get(0) as u32, ChoiceSource::Argmax);
            }
        }
        Ok(())
    }

    /// Reads the generated tokens: one after the prompt, one after each later pass, and the tokens after the
    /// last pass.
    fn tell_generated(&mut self, dump: &Dump) -> Result<()> {
        let site = Site { point: Point::Generated, layer: None, pass: None };
        let Some(generated) = dump.read(site)? else { return Ok(()) };
        let (passes, prompt) = (&dump.manifest.passes, dump.manifest.input.tokens.len());
        let ends = passes.iter().map(Pass::end).filter(|&end| end >= prompt);
        let read = passes.last().map_or(0, Pass::end);
        let (told, chosen) = (generated.data.len(), ends.clone().count());
        if told < chosen {
            let problem = format!(
                "generated has {told} tokens, expected {chosen}: one after the prompt and one after each \
                 later pass; list every greedy choice in the array and in the manifest, or none"
            );
            return Err(Error::dump(&dump.path, problem));
        }
        for (end, &token) in ends.chain(read + 1..).zip(&generated.data) {
            self.tell(end - 1, token as u32, ChoiceSource::Generated);
        }
        Ok(())
    }

    fn tell_read(&mut self, dump: &Dump) {
        if dump.manifest.input.decode != DecodeMode::Greedy {
            return;
        }
        let read = dump.manifest.passes.iter().flat_map(|pass| &pass.tokens).copied().enumerate();
        for (position, token) in read.skip(dump.manifest.input.tokens.len().max(1)) {
            self.tell(position - 1, token, ChoiceSource::Read);
        }
    }

    fn tell(&mut self, position: usize, token: u32, teller: ChoiceSource) {
        match self.chosen.entry(position) {
            Entry::Vacant(place) => {
                place.insert((token, teller));
            }
            Entry::Occupied(told) => {
                let (before, by) = *told.get();
                if before != token {
                    let (one, other) = (by.name(), teller.name());
                    let what = format!("{one} is {before}, but {other} is {token}");
                    self.contradictions.entry(position).or_insert(what);
                }
            }
        }
    }

    /// Checks that each chosen token has the largest logit, ties included.
    fn check_logits(&mut self, dump: &Dump) -> Result<()> {
        for (position, token) in self.iter().collect::<Vec<_>>() {
            // Logits with NaN have no largest value and are skipped.
            let logits = logits_after(dump, position)?.filter(|logits| !logits.iter().any(|x| x.is_nan()));
            let Some(logits) = logits else { continue };
            let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let chosen = logits.get(token as usize).copied().unwrap_or(f64::NAN);
            if !(chosen >= best) {
                let by = self.chosen[&position].1;
                let given = match by {
                    ChoiceSource::Read => {
                        "; if the token was forced, add it to input.tokens, or set input.decode to \"forced\""
                    }
                    _ => "",
                };
                let what = format!(
                    "{} is {token} with logit {}, but the largest logit is {}{given}",
                    by.name(),
                    chosen as f32,
                    best as f32
                );
                self.contradictions.entry(position).or_insert(what);
            }
        }
        Ok(())
    }
}

/// Returns the logits after the token at `position`, `[V]`, if recorded: from `last_logits` of a pass that
/// ends there, or from a row of `logits`.
///
/// # Errors
/// If the array cannot be read.
pub(crate) fn logits_after(dump: &Dump, position: usize) -> Result<Option<Vec<f64>>> {
    let passes = &dump.manifest.passes;
    let Some(index) = Pass::reaching(passes, position + 1) else { return Ok(None) };
    let pass = &passes[index];
    let at = |point| Site { point, layer: None, pass: Some(index) };
    if let Some(last) = aligned(dump, at(Point::LastLogits))?.filter(|_| pass.end() == position + 1) {
        return Ok(Some(last.to_vec()));
    }
    let Some(all) = aligned(dump, at(Point::Logits))? else { return Ok(None) };
    let row = position - pass.position;
    // A dump may record only some rows of the pass.
    let held = match dump.held_rows(at(Point::Logits)) {
        Some(rows) => rows.iter().position(|&held| held == row),
        None => Some(row),
    };
    Ok(held.map(|row| all.slice(0, row..row + 1).to_vec()))
}
