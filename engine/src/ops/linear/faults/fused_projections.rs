//! Faults in splitting fused projections (q, k and v; gate and up): the wrong layout of the fused matrix.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext, distance};
use crate::checkpoint::Point;
use crate::ops::l2_norm::exact::L2Normalisation;
use crate::ops::linear::faults::{own, with};
use crate::tensor::Tensor;

const QKV: &[Point] = &[Point::Q, Point::K, Point::V];
const GATE_UP: &[Point] = &[Point::FfnGate, Point::FfnUp];
const QUERIES_AND_GATE: &[Point] = &[Point::Q, Point::AttnGate];
const BETA_AND_DECAY: &[Point] = &[Point::BetaLogit, Point::DecayLogit];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        at: QKV,
        compute: |at, value| cut(at, QKV, value.as_word()?),
        read: |at, theirs| read_shards(at, QKV, theirs),
        ..FUSED
    },
    CatalogueEntry {
        at: GATE_UP,
        compute: |at, value| cut(at, GATE_UP, value.as_word()?),
        read: |at, theirs| read_shards(at, GATE_UP, theirs),
        ..FUSED
    },
    CatalogueEntry {
        at: QUERIES_AND_GATE,
        compute: |at, value| cut(at, QUERIES_AND_GATE, value.as_word()?),
        ..FUSED
    },
    CatalogueEntry {
        at: BETA_AND_DECAY,
        compute: |at, value| cut(at, BETA_AND_DECAY, value.as_word()?),
        ..FUSED
    },
];

const FUSED: CatalogueEntry = CatalogueEntry {
    kind: CauseKind::FusedOrder,
    takes: "interleaved|concatenated|interleaved:2|concatenated:2",
    usual: Some(|_| ["interleaved", "concatenated", "concatenated:2"].map(ChangeValue::word).into()),
    ..CatalogueEntry::PLAIN
};

/// Layout of several projections in one matrix.
struct FusedLayout {
    /// Number of groups. Contents of a group:
    ///
    /// - q, k, v: a key head with its query heads and its value head;
    /// - gate and up: one row of each;
    /// - queries and output gate: one head of each;
    /// - beta and decay: the rows of both for the value heads that share a key head;
    /// - with shards: the rows of all projections on one device.
    groups: usize,
    /// Rows of each projection in one group.
    rows: Vec<usize>,
}

impl FusedLayout {
    /// Returns the index that a row of a projection has in the fused matrix: interleaved by group (q q k v q q k v), or
    /// concatenated (q q q q k k v v).
    fn place(&self, is_interleaved: bool, part: usize, row: usize) -> usize {
        let before: usize = self.rows[..part].iter().sum();
        match is_interleaved {
            true => row / self.rows[part] * self.rows.iter().sum::<usize>() + before + row % self.rows[part],
            false => self.groups * before + row,
        }
    }

    /// Returns the projection, and its row, that each row of the fused matrix contains.
    fn places(&self, is_interleaved: bool) -> Vec<(usize, usize)> {
        let mut places = vec![(0, 0); self.groups * self.rows.iter().sum::<usize>()];
        for (part, &rows) in self.rows.iter().enumerate() {
            (0..self.groups * rows)
                .for_each(|row| places[self.place(is_interleaved, part, row)] = (part, row));
        }
        places
    }
}

/// Numbers of devices to try.
const SHARDS: [usize; 5] = [2, 4, 8, 3, 16];

/// Largest relative error of a layout for which an exact evaluation is made.
const NEAR: f64 = 0.05;

/// Returns the layouts of shards whose results are near the dump's values.
fn read_shards(at: &SiteContext, parts: &[Point], theirs: &[f64]) -> Vec<ChangeValue> {
    let words = SHARDS
        .into_iter()
        .flat_map(|shards| ["concatenated", "interleaved"].map(|cut| format!("{cut}:{shards}")));
    // Both cuts give the same rows for as many equal parts as shards.
    let is_other = |word: &String| parts != GATE_UP || word != "interleaved:2";
    let is_near = |word: &String| cut(at, parts, word).is_some_and(|made| distance(&made, theirs) < NEAR);
    words.filter(is_other).filter(is_near).map(ChangeValue::Word).collect()
}

/// Returns one of `parts`, cut from the fused matrix in the wrong layout: interleaved instead of concatenated, or
/// the reverse. With a number of shards, the fused matrix contains each device's parts in turn.
fn cut(at: &SiteContext, parts: &[Point], word: &str) -> Option<Tensor> {
    own(at)?;
    let part = parts.iter().position(|&part| part == at.site.point)?;
    let product = |&point: &Point| with(at, &at.operations.product(point, at.site.layer)?);
    let products: Vec<Tensor> = parts.iter().map(product).collect::<Option<_>>()?;
    let widths: Vec<usize> = products.iter().map(Tensor::row_len).collect();
    let (word, groups) = match word.split_once(':') {
        Some((word, shards)) => (word, shards.parse().ok().filter(|shards| *shards > 1)?),
        None if parts == QKV => (word, widths[1] / *at.value.shape().get(2)?),
        None if parts == QUERIES_AND_GATE => {
            (word, widths[0] / at.operations.norm(Point::QNorm, at.site.layer)?.weight.len())
        }
        None if parts == BETA_AND_DECAY => {
            let keys: &L2Normalisation = at.operations.stage(Point::KUnit, at.site.layer)?;
            (word, *keys.x.shape().get(1)?)
        }
        None => (word, widths[1]),
    };
    let is_even = groups > 0 && widths.iter().all(|width| width.is_multiple_of(groups));
    let rows: Vec<usize> = is_even.then(|| widths.iter().map(|width| width / groups).collect())?;
    let fused = FusedLayout { groups, rows };
    let is_cut_interleaved = match word {
        "interleaved" => true,
        "concatenated" => false,
        _ => return None,
    };
    let (places, width) = (fused.places(!is_cut_interleaved), widths[part]);
    let all: Vec<&Tensor> = products.iter().collect();
    Some(at.n.gathered(&all, at.value.shape(), |flat| {
        let (other, row) = places[fused.place(is_cut_interleaved, part, flat % width)];
        (other, flat / width * widths[other] + row)
    }))
}
