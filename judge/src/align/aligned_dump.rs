//! A dump in a comparison: its values in canonical layout, and its greedy choices.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::align::alignment::{in_pairing, shown_pairing};
use crate::align::axis_slices::axis;
use crate::align::choices::GreedyChoices;
use crate::align::expert_slots;
use crate::checkpoint::{Point, Site, TapAxis, TapScope};
use crate::dump::{Dump, Pass, TensorRow};
use crate::error::{Error, Result};
use crate::tensor::RopePairing;
use crate::view::View;
use crate::weight::DType;

/// A dump with properties found during the comparison.
#[derive(Debug)]
pub struct AlignedDump<'d> {
    /// The recorded dump.
    pub(crate) dump: &'d Dump,
    /// The tokens that the dump's engine chose.
    pub(crate) choices: GreedyChoices,
    /// True if the chosen tokens are inferred from the tokens that the engine read next. They then serve as the tap
    /// `argmax`.
    pub(crate) tells_by_reading: bool,
    /// Order of the heads, stated in the manifest or shown by the values.
    pairing: Cell<Option<RopePairing>>,
    /// True if the values have shown the order of the heads.
    is_shown: Cell<bool>,
    /// True if the RoPE pairing is fixed by the model and not inferred from values.
    is_fixed: Cell<bool>,
    /// Type to which values were presumably rounded when they were stored, if smaller than the stored type.
    presumed: Option<DType>,
}

impl<'d> AlignedDump<'d> {
    /// Reads the dump's token choices.
    ///
    /// # Errors
    /// If an array cannot be read.
    pub fn new(dump: &'d Dump) -> Result<Self> {
        let pairing = Cell::new(dump.manifest.layout.rope_pairing);
        let points = dump.points();
        let tokens = [Point::Argmax, Point::Generated];
        let tells_by_reading = !points.is_empty() && !tokens.iter().any(|point| points.contains(point));
        let is_shown = Cell::new(false);
        Ok(Self {
            dump,
            choices: GreedyChoices::of(dump)?,
            tells_by_reading,
            pairing,
            is_shown,
            is_fixed: Cell::new(false),
            presumed: None,
        })
    }

    /// Sets the smaller type to which values were presumably rounded when they were stored.
    pub(crate) fn presumed(self, stored: DType) -> Self {
        Self { presumed: Some(stored), ..self }
    }

    /// Returns the forward passes.
    pub(crate) fn passes(&self) -> &'d [Pass] {
        &self.dump.manifest.passes
    }

    /// Returns all tokens that were read.
    pub(crate) fn read_tokens(&self) -> Vec<u32> {
        self.passes().iter().flat_map(|pass| &pass.tokens).copied().collect()
    }

    /// Returns the positions of a site: all positions of its pass, or the last one for a value that exists
    /// once per pass. Empty for a value of the whole run.
    pub(crate) fn positions(&self, site: Site) -> Range<usize> {
        let Some(pass) = site.pass.and_then(|pass| self.passes().get(pass)) else { return 0..0 };
        let has_rows = axis(site.point, TapAxis::Token).or(axis(site.point, TapAxis::Key)).is_some();
        if has_rows { pass.position..pass.end() } else { pass.end() - 1..pass.end() }
    }

    /// Returns true if the values of a site are known: recorded, or a choice that follows from the tokens
    /// read.
    pub(crate) fn holds(&self, site: Site) -> bool {
        self.dump.holds(site) || self.told(site).is_some()
    }

    /// Returns the sites with known values, in any order.
    pub(crate) fn sites(&self) -> impl Iterator<Item = Site> {
        let ends =
            (0..self.passes().len()).map(|pass| Site { point: Point::Argmax, layer: None, pass: Some(pass) });
        let told = ends.filter(|&site| !self.dump.holds(site) && self.told(site).is_some());
        self.dump.sites().chain(told)
    }

    /// Returns the taps with known values.
    pub(crate) fn points(&self) -> BTreeSet<Point> {
        self.sites().map(|site| site.point).collect()
    }

    /// Returns the values of a site with the requested order of heads. `None` if unknown.
    ///
    /// # Errors
    /// If the array cannot be read, has other axes, or its RoPE pairing is unknown.
    pub fn values(&self, site: Site, wanted: Option<RopePairing>) -> Result<Option<View<'static>>> {
        match self.told(site).filter(|_| !self.dump.holds(site)) {
            Some(token) => Ok(View::stored(&[], DType::U32, token.to_le_bytes().to_vec())),
            None => in_pairing(self.dump, site, self.pairing.get(), wanted),
        }
    }

    /// Returns the recorded rows of a site if the dump does not record all rows.
    pub(crate) fn recorded(&self, site: Site) -> Option<RecordedRows> {
        let rows = self.dump.held_rows(site)?;
        let first = self.positions(site).start;
        rows.last().map(|last| RecordedRows { rows: rows.len(), last_position: first + last })
    }

    /// Returns the type to which a site's values were rounded when stored. `None` if not recorded.
    pub(crate) fn stored(&self, site: Site) -> Option<DType> {
        let stored = self.dump.row(site)?.rounded_to()?;
        Some(self.presumed.filter(|_| stored == DType::F32).unwrap_or(stored))
    }

    /// Returns the decimal step to which a site's values were rounded, 0 if they were not.
    pub(crate) fn step(&self, site: Site) -> f64 {
        self.dump.row(site).and_then(|row| row.step).unwrap_or(0.0)
    }

    /// Returns true if the engine computes with the values of a site as they are stored.
    pub(crate) fn goes_on_with(&self, site: Site) -> bool {
        self.dump.row(site).is_some_and(TensorRow::is_computed_with)
    }

    /// Returns true if the engine computes with 8-bit values anywhere, e.g. in a cache.
    pub(crate) fn goes_on_with_eight_bits(&self) -> bool {
        self.dump.manifest.tensors.iter().any(TensorRow::is_computed_with)
    }

    /// Returns the order of the heads.
    pub(crate) fn pairing(&self) -> Option<RopePairing> {
        self.pairing.get()
    }

    /// Finds the RoPE pairing from the values of a site, unless an earlier site has shown it. `rel_l2` returns the
    /// relative error of the dump's values under the current pairing. Later sites are read with the pairing found.
    ///
    /// # Errors
    /// If `rel_l2` returns one.
    pub(crate) fn look_at_pairing(&self, site: Site, rel_l2: impl Fn(&Self) -> Result<f64>) -> Result<()> {
        if self.is_shown.get() || self.is_fixed.get() {
            return Ok(());
        }
        let declared = self.pairing.get();
        let as_if = |pairing| {
            self.pairing.set(Some(pairing));
            rel_l2(self)
        };
        let shown = shown_pairing(site.point, declared, as_if);
        self.pairing.set(declared);
        if let Some(shown) = shown? {
            self.pairing.set(Some(shown));
            self.is_shown.set(true);
        }
        Ok(())
    }

    /// Fixes the RoPE pairing to that of a model with latent attention. Only a part of each head rotates, so other pairings
    /// are not converted.
    ///
    /// # Errors
    /// If the manifest states another pairing.
    pub(crate) fn fix_pairing(&self, own: Option<RopePairing>) -> Result<()> {
        self.is_fixed.set(true);
        let has_heads = self.dump.points().iter().any(|point| point.follows_rope_pairing());
        let stated = self.dump.manifest.layout.rope_pairing;
        match (stated.filter(|stated| has_heads && Some(*stated) != own), own) {
            (Some(stated), Some(own)) => {
                let problem = format!(
                    "layout.rope_pairing is \"{}\", which is not converted for latent attention; record the rotated \
                     part of each head as the model's files pair it, and state \"{}\"",
                    stated.name(),
                    own.name()
                );
                Err(Error::dump(&self.dump.path, problem))
            }
            _ => Ok(()),
        }
    }

    /// Forgets the order of heads that values have shown, so that each judgement finds the order
    /// independently.
    pub(crate) fn forget_pairing(&self) {
        self.pairing.set(self.dump.manifest.layout.rope_pairing);
        self.is_shown.set(false);
    }

    /// Returns true if a site cannot be read because the order of its heads or experts is unknown.
    pub(crate) fn is_unaligned(&self, site: Site, wanted: Option<RopePairing>) -> bool {
        if site.point.is_of_chosen() {
            return self.dump.row(site).is_some() && !expert_slots::are_known(self.dump, site);
        }
        let follows = wanted.is_some() && site.point.follows_rope_pairing();
        follows && self.pairing.get().is_none() && self.dump.holds(site)
    }

    /// Returns true if `site` is the logits of every token and the dump records only those of the last token.
    /// Most engines record only the last.
    pub(crate) fn has_last_row_of(&self, site: Site) -> bool {
        let last = Site { point: Point::LastLogits, ..site };
        site.point == Point::Logits && !self.dump.holds(site) && self.dump.holds(last)
    }

    /// Returns a note if the manifest's pairing differs from the one that the values show.
    pub(crate) fn wrong_pairing(&self) -> Option<String> {
        let declared = self.dump.manifest.layout.rope_pairing;
        let shown = self.pairing.get().filter(|&shown| declared != Some(shown))?;
        let Some(declared) = declared else {
            let (path, shown) = (self.dump.path.display(), shown.name());
            return Some(format!(
                "the manifest of {path} has no layout.rope_pairing; its q and k values have the order \
                    \"{shown}\""
            ));
        };
        Some(format!(
            "the manifest of {} states layout.rope_pairing \"{}\", but its q and k values have the order \
             \"{}\", which is used; this happens if an engine rotates other pairs than its weights require",
            self.dump.path.display(),
            declared.name(),
            shown.name()
        ))
    }

    /// Returns the inferred choice at the end of a pass. `None` if the site is not `argmax`, or choices are not
    /// inferred from the tokens read.
    fn told(&self, site: Site) -> Option<u32> {
        let is_choice = self.tells_by_reading && site.point == Point::Argmax;
        let pass = self.passes().get(site.pass.filter(|_| is_choice)?)?;
        self.choices.at(pass.end() - 1)
    }
}

/// The rows of a pass that a dump records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedRows {
    pub(crate) rows: usize,
    /// The position of the last recorded row.
    pub(crate) last_position: usize,
}

/// Returns true if a value belongs to one pass.
pub(crate) fn is_of_a_pass(site: Site) -> bool {
    site.point.scope() != TapScope::Run
}
