//! Two dumps of any producers. They are aligned by absolute position: a prompt fed token by token and one fed
//! whole hold the same rows, cut differently.

use std::ops::Range;

use crate::checkpoint::{Axis, Kind, Point, Site};
use crate::compare::align::{aligned, is_visible};
use crate::compare::{Measurement, Selection, measure, measure_tokens};
use crate::dump::{Dump, Pass, Values};
use crate::error::{Error, Result};
use crate::tensor::RopePairing;

/// What became of one place.
#[derive(Clone, Debug, PartialEq)]
pub enum Pairing {
    /// Both hold it.
    Measured(Measurement),
    /// One of the two does not; the sentence says which.
    Lacking(String),
}

/// Compares every selected value of `ours` with `theirs`, in data-flow order. A dump may leave out a tap point, and
/// that is passed over; but where both hold a tap point somewhere, a place that only one of them holds is lacking.
///
/// What a pass has once, for its last token, is passed over where the other's passes do not end at that token.
///
/// # Errors
/// If the two did not read the same tokens, or an array is damaged or of another shape.
pub fn compare_dumps(ours: &Dump, theirs: &Dump, selection: &Selection) -> Result<Vec<(Site, Pairing)>> {
    check_tokens(ours, theirs)?;
    let mut found = Vec::new();
    let (our_points, their_points) = (ours.points(), theirs.points());
    let common = |site: &Site| {
        selection.includes(*site) && our_points.contains(&site.point) && their_points.contains(&site.point)
    };
    for site in ours.sites().filter(common) {
        found.extend(compare_site(ours, theirs, site)?.map(|pairing| (site, pairing)));
    }
    for site in theirs.sites().filter(common) {
        found.extend(At::of(theirs, site, ours).lacking().map(|what| (site, Pairing::Lacking(what))));
    }
    found.sort_by_key(|(site, _)| site.flow_order());
    Ok(found)
}

/// The same tokens must stand at the positions that both have read.
fn check_tokens(ours: &Dump, theirs: &Dump) -> Result<()> {
    let read =
        |dump: &Dump| -> Vec<u32> { dump.manifest.passes.iter().flat_map(|p| &p.tokens).copied().collect() };
    let (our_tokens, their_tokens) = (read(ours), read(theirs));
    match our_tokens.iter().zip(&their_tokens).position(|(ours, theirs)| ours != theirs) {
        None => Ok(()),
        Some(position) => Err(Error::TokensDiffer {
            ours_name: ours.path.display().to_string(),
            ours: our_tokens,
            theirs_name: theirs.path.display().to_string(),
            theirs: their_tokens,
            position,
        }),
    }
}

/// `None` where the two cannot be compared because their passes are cut differently.
fn compare_site(ours: &Dump, theirs: &Dump, site: Site) -> Result<Option<Pairing>> {
    let at = At::of(ours, site, theirs);
    if let Some(what) = at.lacking() {
        return Ok(Some(Pairing::Lacking(what)));
    }
    let own = aligned(ours, site, at.pairing)?.expect("its site came from this dump");
    let Some(found) = at.values()? else { return Ok(None) };
    if own.shape == found.shape && site.point.kind() == Kind::Token {
        return Ok(Some(Pairing::Measured(measure_tokens(&own, &found))));
    }
    if own.shape == found.shape {
        let visible = |flat: usize| is_visible(site.point, &own.shape, at.positions.start, flat);
        return Ok(Some(Pairing::Measured(measure(&own, &found, visible))));
    }
    if site.point == Point::Generated {
        let (own, found) = (own.data.len(), found.data.len());
        return Ok(Some(Pairing::Lacking(format!("generated: {own} tokens against {found}"))));
    }
    let problem =
        format!("{site} has shape {:?}, {} has {:?}", own.shape, theirs.path.display(), found.shape);
    Err(Error::dump(&ours.path, problem))
}

/// A tap point of a dump at given positions, wherever the dump's passes are cut.
struct At<'d> {
    dump: &'d Dump,
    site: Site,
    positions: Range<usize>,
    pairing: Option<RopePairing>,
}

impl<'d> At<'d> {
    /// Where `dump` has what `other` has at `site`.
    fn of(other: &Dump, site: Site, dump: &'d Dump) -> Self {
        let pass = site.pass.map(|pass| &other.manifest.passes[pass]);
        let positions = pass.map_or(0..0, |pass| pass.position..pass.end());
        let pairing = other.manifest.layout.rope_pairing.or(dump.manifest.layout.rope_pairing);
        Self { dump, site, positions, pairing }
    }

    /// The passes that hold the positions between them: all they overlap for what has a row per token, the first
    /// that reaches them for a cache, the one that ends with them for what a pass has once.
    fn passes(&self) -> Vec<usize> {
        let indexed = || self.dump.manifest.passes.iter().enumerate();
        match self.site.point.axes() {
            [Axis::Token, ..] | [Axis::Head, Axis::Token, Axis::Key] => {
                let overlaps =
                    |pass: &Pass| pass.position < self.positions.end && pass.end() > self.positions.start;
                indexed().filter(|(_, pass)| overlaps(pass)).map(|(index, _)| index).collect()
            }
            [Axis::Key, ..] => indexed()
                .find(|(_, pass)| pass.end() >= self.positions.end)
                .map(|(index, _)| index)
                .into_iter()
                .collect(),
            _ => indexed()
                .filter(|(_, pass)| pass.end() == self.positions.end)
                .map(|(index, _)| index)
                .collect(),
        }
    }

    /// What the dump lacks there, if it does: it has not read that far, or has left out the place.
    fn lacking(&self) -> Option<String> {
        let path = self.dump.path.display();
        if self.site.pass.is_none() {
            return (!self.dump.holds(self.site)).then(|| format!("{}: not in {path}", self.site));
        }
        let read = self.dump.manifest.passes.last().map_or(0, Pass::end);
        if read < self.positions.end {
            return Some(format!("{}: {path} has read {read} tokens only", self.site));
        }
        let of_pass = |pass| Site { pass: Some(pass), ..self.site };
        let missing = self.passes().into_iter().map(of_pass).find(|&site| !self.dump.holds(site))?;
        Some(format!("{missing}: not in {path}"))
    }

    /// The values; `None` where no pass ends with the positions. What is lacking was looked at before.
    fn values(&self) -> Result<Option<Values>> {
        match self.site.point.axes() {
            _ if self.site.pass.is_none() => aligned(self.dump, self.site, self.pairing),
            [Axis::Token, ..] => self.rows(0),
            [Axis::Head, Axis::Token, Axis::Key] => self.rows(1),
            [Axis::Key, ..] => Ok(self.first()?.map(|values| slice(&values, 0, 0..self.positions.end))),
            _ => self.first(),
        }
    }

    /// Values of a pass of the dump.
    fn of_pass(&self, pass: usize) -> Result<Option<Values>> {
        aligned(self.dump, Site { pass: Some(pass), ..self.site }, self.pairing)
    }

    /// Of the first pass that holds them.
    fn first(&self) -> Result<Option<Values>> {
        self.passes().first().map_or(Ok(None), |&pass| self.of_pass(pass))
    }

    /// One row per token, in the order of positions; `outer` axes stand before the token axis.
    fn rows(&self, outer: usize) -> Result<Option<Values>> {
        let mut parts = Vec::new();
        for index in self.passes() {
            let pass = &self.dump.manifest.passes[index];
            let overlap = self.positions.start.max(pass.position)..self.positions.end.min(pass.end());
            let Some(values) = self.of_pass(index)? else { return Ok(None) };
            let part = slice(&values, outer, overlap.start - pass.position..overlap.end - pass.position);
            parts.push(if outer == 0 { part } else { with_keys(&part, self.positions.end) });
        }
        Ok(Some(joined(&parts, outer)))
    }
}

/// The entries `range` along `axis`.
fn slice(values: &Values, axis: usize, range: Range<usize>) -> Values {
    let inner: usize = values.shape[axis + 1..].iter().product();
    let block = values.shape[axis] * inner;
    let picked = values.data.chunks(block).flat_map(|block| &block[range.start * inner..range.end * inner]);
    let mut shape = values.shape.clone();
    shape[axis] = range.len();
    Values { data: picked.copied().collect(), shape }
}

/// Parts put behind each other along `axis`.
fn joined(parts: &[Values], axis: usize) -> Values {
    let mut shape = parts[0].shape.clone();
    shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
    let outer: usize = shape[..axis].iter().product();
    let rows = (0..outer).flat_map(|block| parts.iter().map(move |part| (block, part)));
    let data = rows.flat_map(|(block, part)| {
        let len = part.data.len() / outer;
        &part.data[block * len..][..len]
    });
    Values { data: data.copied().collect(), shape }
}

/// `[H, T, S]` cut or filled up to `keys` keys; what is filled is in the future and never compared.
fn with_keys(values: &Values, keys: usize) -> Values {
    let &[heads, tokens, found] = values.shape.as_slice() else { unreachable!("the caller has three axes") };
    let fill = std::iter::repeat_n(0.0, keys.saturating_sub(found));
    let rows = values.data.chunks(found);
    let data = rows.flat_map(|row| row[..found.min(keys)].iter().copied().chain(fill.clone()));
    Values { data: data.collect(), shape: vec![heads, tokens, keys] }
}
