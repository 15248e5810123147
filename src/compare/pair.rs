//! Two dumps of any producers. They are aligned by absolute position: a prompt fed token by token and one fed
//! whole hold the same rows, cut differently.

use std::ops::Range;

use crate::checkpoint::{Axis, Point, Site};
use crate::compare::align::{aligned, is_visible};
use crate::compare::{Measurement, Selection, measure};
use crate::dump::{Dump, Values};
use crate::error::{Error, Result};
use crate::tensor::RopePairing;

/// What became of one place of the first dump.
#[derive(Clone, Debug, PartialEq)]
pub enum Pairing {
    /// Both hold it.
    Measured(Measurement),
    /// The second does not; the sentence says what is lacking.
    Lacking(String),
}

/// Compares every selected value of `ours` with `theirs`, in data-flow order.
///
/// # Errors
/// If the two did not read the same tokens, or an array is damaged or of another shape.
pub fn compare_dumps(ours: &Dump, theirs: &Dump, selection: &Selection) -> Result<Vec<(Site, Pairing)>> {
    check_tokens(ours, theirs)?;
    let mut sites: Vec<Site> = ours.sites().filter(|&site| selection.includes(site)).collect();
    sites.sort_by_key(|site| site.flow_order());
    sites.into_iter().map(|site| Ok((site, compare_site(ours, theirs, site)?))).collect()
}

/// The same tokens must stand at the positions that both have read.
fn check_tokens(ours: &Dump, theirs: &Dump) -> Result<()> {
    let read = |dump: &Dump| -> Vec<u32> { dump.manifest.passes.iter().flat_map(|p| &p.tokens).copied().collect() };
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

fn compare_site(ours: &Dump, theirs: &Dump, site: Site) -> Result<Pairing> {
    let pass = site.pass.map(|pass| &ours.manifest.passes[pass]);
    let positions = pass.map_or(0..0, |pass| pass.position..pass.end());
    let pairing = ours.manifest.layout.rope_pairing.or(theirs.manifest.layout.rope_pairing);
    let own = aligned(ours, site, pairing)?.expect("its site came from this dump");
    let Some(found) = At { dump: theirs, site, positions: positions.clone(), pairing }.values()? else {
        let place = if positions.is_empty() { String::new() } else { format!(", positions {positions:?}") };
        return Ok(Pairing::Lacking(format!("{}{place}: not in {}", site, theirs.path.display())));
    };
    if own.shape == found.shape {
        let visible = |flat: usize| is_visible(site.point, &own.shape, positions.start, flat);
        return Ok(Pairing::Measured(measure(&own, &found, visible)));
    }
    if site.point == Point::Generated {
        return Ok(Pairing::Lacking(format!("generated: {} tokens against {}", own.data.len(), found.data.len())));
    }
    let problem = format!("{site} has shape {:?}, {} has {:?}", own.shape, theirs.path.display(), found.shape);
    Err(Error::dump(&ours.path, problem))
}

/// The values of a tap point at given positions, wherever the dump's passes are cut.
struct At<'d> {
    dump: &'d Dump,
    site: Site,
    positions: Range<usize>,
    pairing: Option<RopePairing>,
}

impl At<'_> {
    fn values(&self) -> Result<Option<Values>> {
        match self.site.point.axes() {
            _ if self.site.pass.is_none() => aligned(self.dump, self.site, self.pairing),
            [Axis::Token, ..] => self.rows(0),
            [Axis::Head, Axis::Token, Axis::Key] => self.rows(1),
            [Axis::Key, ..] => self.cache(),
            _ => self.after_last_token(),
        }
    }

    /// Values of a pass of the dump.
    fn of_pass(&self, pass: usize) -> Result<Option<Values>> {
        aligned(self.dump, Site { pass: Some(pass), ..self.site }, self.pairing)
    }

    /// What the dump has one row of per token, in the order of positions; `outer` axes stand before the token axis.
    fn rows(&self, outer: usize) -> Result<Option<Values>> {
        let mut parts = Vec::new();
        for (index, pass) in self.dump.manifest.passes.iter().enumerate() {
            let overlap = self.positions.start.max(pass.position)..self.positions.end.min(pass.end());
            if overlap.is_empty() {
                continue;
            }
            let Some(values) = self.of_pass(index)? else { return Ok(None) };
            parts.push(slice(&values, outer, overlap.start - pass.position..overlap.end - pass.position));
        }
        let covered: usize = parts.iter().map(|part| part.shape[outer]).sum();
        if covered < self.positions.len() {
            return Ok(None);
        }
        let parts: Vec<Values> = match outer {
            0 => parts,
            _ => parts.iter().map(|part| with_keys(part, self.positions.end)).collect(),
        };
        Ok(Some(joined(&parts, outer)))
    }

    /// The first positions of a cache that has at least as many.
    fn cache(&self) -> Result<Option<Values>> {
        let passes = &self.dump.manifest.passes;
        let Some(pass) = passes.iter().position(|pass| pass.end() >= self.positions.end) else { return Ok(None) };
        Ok(self.of_pass(pass)?.map(|values| slice(&values, 0, 0..self.positions.end)))
    }

    /// What a pass has once, for its last token.
    fn after_last_token(&self) -> Result<Option<Values>> {
        let passes = &self.dump.manifest.passes;
        match passes.iter().position(|pass| pass.end() == self.positions.end) {
            Some(pass) => self.of_pass(pass),
            None => Ok(None),
        }
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
