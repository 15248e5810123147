//! Log-probabilities of listed ids: the ids to request from our engine, and the comparison of top tokens.

use std::collections::HashSet;

use crate::align::AlignedDump;
use crate::checkpoint::{Point, Site};
use crate::error::{Error, Result};
use crate::measure::{Measurement, measure_placed};
use crate::ops::log_probabilities::Picks;
use crate::tensor::Tensor;
use crate::view::View;

/// The token ids whose log-probabilities a dump lists for a pass.
#[derive(Clone, Debug)]
pub(crate) struct ListedIds {
    /// The next tokens and the top tokens, each with the site of its log-probabilities.
    pub(crate) picks: Vec<(Site, Picks)>,
    /// Temperature: the divisor of the logits.
    pub(crate) temperature: f32,
    /// Site of the top ids, if the dump lists any.
    ids: Option<Site>,
    /// The rows for which top ids are listed.
    rows: Vec<usize>,
}

impl ListedIds {
    /// Reads the ids that a dump lists for the pass of these logits.
    ///
    /// # Errors
    /// If an array cannot be read, an id is outside the vocabulary, or a row lists an id twice.
    pub(crate) fn of(held: &AlignedDump, logits: Site, vocabulary: usize) -> Result<Self> {
        let at = |point| Site { point, ..logits };
        let pass = &held.passes()[logits.pass.unwrap_or(0)];
        let tokens = pass.tokens.len();
        let mut named = Self {
            picks: Vec::new(),
            temperature: pass.temperature.unwrap_or(1.0),
            ids: None,
            rows: rows_of(held, at(Point::TopIds), tokens),
        };
        let is_there = |site| held.dump.holds(site) || held.dump.held_rows(site).is_some();
        if is_there(at(Point::TokenLogprobs)) {
            // Rows that are not recorded are not compared, so any id can be used.
            let next = |row| held.dump.manifest.token_at(pass.position + row + 1).unwrap_or(0);
            let ids: Vec<u32> = (0..tokens).map(next).collect();
            if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
                return Err(Error::dump(&held.dump.path, no_such_id(*id, vocabulary)));
            }
            let picks = Picks { before: pass.tokens[0], ..Picks::new(&[tokens], ids) };
            named.picks.push((at(Point::TokenLogprobs), picks));
        }
        if let Some(view) = held.values(at(Point::TopIds), None)?.filter(|_| is_there(at(Point::TopLogprobs)))
        {
            let picks = top_picks(&view, &named.rows, tokens, vocabulary);
            let picks = picks.map_err(|problem| Error::dump(&held.dump.path, problem))?;
            named.ids = Some(at(Point::TopIds));
            named.picks.push((at(Point::TopLogprobs), picks));
        }
        Ok(named)
    }

    /// Ranks the listed top ids by our engine's logits `[T, V]`. Returns the ranking with the site of the
    /// ids.
    pub(crate) fn ranked(&self, logits: &Tensor) -> Option<(Site, TopIds)> {
        let (_, picks) = self.picks.iter().find(|(site, _)| site.point == Point::TopLogprobs)?;
        Some((self.ids?, TopIds::of(logits, picks, &self.rows)))
    }
}

/// Returns the recorded rows of a site.
fn rows_of(held: &AlignedDump, site: Site, tokens: usize) -> Vec<usize> {
    held.dump.held_rows(site).map_or_else(|| (0..tokens).collect(), <[usize]>::to_vec)
}

fn no_such_id(id: u32, vocabulary: usize) -> String {
    format!("token id {id} is outside the vocabulary of {vocabulary} tokens")
}

fn top_picks(view: &View, rows: &[usize], tokens: usize, vocabulary: usize) -> Result<Picks, String> {
    let width = view.width();
    if width > vocabulary {
        return Err(format!(
            "top_ids has {width} ids per row, more than the vocabulary of {vocabulary} tokens"
        ));
    }
    let mut ids: Vec<u32> = (0..tokens).flat_map(|_| 0..width as u32).collect();
    let listed = view.to_vec();
    for (listed, &row) in listed.chunks(width).zip(rows) {
        for (id, &value) in ids[row * width..].iter_mut().zip(listed) {
            *id = value as u32;
            if f64::from(*id) != value || *id as usize >= vocabulary {
                return Err(format!(
                    "top_ids, row {row}: invalid token id {value} for a vocabulary of {vocabulary} tokens"
                ));
            }
        }
    }
    Ok(Picks::new(&[tokens, width], ids))
}

/// The listed top ids, compared with our engine's own top ids.
#[derive(Clone, Debug)]
pub(crate) struct TopIds {
    /// Our engine's top ids, `[T, k]`. Ids that the dump lists are in the dump's columns.
    pub(crate) own: Tensor,
    /// The largest margin by which our engine prefers an unlisted token to a listed one. 0 if our top tokens
    /// are all listed.
    pub(crate) margin: f64,
    /// One entry per listed id: true if it has the row's largest logit, ties included.
    is_best: Vec<bool>,
}

impl TopIds {
    fn of(logits: &Tensor, picks: &Picks, rows: &[usize]) -> Self {
        let (mut own, mut is_best, mut margin) = (Vec::new(), Vec::new(), 0.0f64);
        for (row, ids) in picks.ids.chunks(picks.width()).enumerate() {
            let logits = logits.row(row);
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            let descending =
                |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
            order.select_nth_unstable_by(ids.len() - 1, descending);
            let mut likeliest = order[..ids.len()].to_vec();
            likeliest.sort_by(descending);
            let best = logits[likeliest[0] as usize];
            is_best.extend(ids.iter().map(|&id| logits[id as usize] == best));
            let (named, ours) = (sorted(ids), sorted(&likeliest));
            let mut others = likeliest.iter().filter(|id| named.binary_search(id).is_err());
            let in_place = ids
                .iter()
                .map(|id| if ours.binary_search(id).is_ok() { *id } else { *others.next().unwrap_or(id) });
            own.extend(in_place.map(|id| id as f32));
            if rows.binary_search(&row).is_ok() {
                let least = likeliest.last().map_or(0.0, |&id| f64::from(logits[id as usize]));
                let named =
                    ids.iter().map(|&id| f64::from(logits[id as usize])).fold(f64::INFINITY, f64::min);
                margin = margin.max(least - named);
            }
        }
        Self { own: Tensor::new(&picks.shape, own), margin, is_best }
    }
}

/// Returns the ids in ascending order, for a binary search.
fn sorted(ids: &[u32]) -> Vec<u32> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids
}

/// Compares the sets of top ids in rows, ignoring their order.
pub(crate) fn measure_ids(candidate: &View, reference: &View, rows: &[usize]) -> Measurement {
    let width = reference.width();
    let [one, other] = [candidate, reference].map(|view| {
        let all = view.to_vec();
        rows.iter().flat_map(|&row| all[row * width..][..width].to_vec()).collect::<Vec<f64>>()
    });
    let places: Vec<[usize; 2]> =
        rows.iter().flat_map(|&row| (0..width).map(move |rank| [row, rank])).collect();
    measure_placed(&one, &other, &places)
}

/// Compares the sets of chosen experts in these rows, ignoring their order.
pub(crate) fn measure_experts(candidate: &View, reference: &View, rows: &[usize]) -> Measurement {
    let (mut ours, mut theirs, mut places) = (Vec::new(), Vec::new(), Vec::new());
    let used = reference.width();
    let [one, other] = [candidate, reference].map(View::to_vec);
    for &row in rows {
        let [one, other] = [&one, &other].map(|all| &all[row * used..][..used]);
        let [ones, known] =
            [one, other].map(|row| row.iter().map(|number| number.to_bits()).collect::<HashSet<_>>());
        let mut others = other.iter().filter(|number| !ones.contains(&number.to_bits()));
        let in_place = |number: &f64| match known.contains(&number.to_bits()) {
            true => *number,
            false => *others.next().unwrap_or(number),
        };
        theirs.extend(one.iter().map(in_place));
        ours.extend(one);
        places.extend((0..used).map(|slot| [row, slot]));
    }
    measure_placed(&ours, &theirs, &places)
}

/// Returns the column with a row's largest log-probability.
pub(crate) fn likeliest(view: &View, row: usize) -> Option<usize> {
    let width = view.width();
    let values: Vec<f64> = (0..width).map(|column| view.get(row * width + column)).collect();
    let best = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.iter().position(|&value| value == best)
}

impl TopIds {
    /// Returns true if both sides have the same most likely token in a row.
    pub(crate) fn same_top(&self, dumped: &View, row: usize) -> Option<bool> {
        likeliest(dumped, row).and_then(|column| self.is_best.get(row * dumped.width() + column).copied())
    }
}
