//! Changes of the KV cache: rows written at the wrong index, and rows of another position or pass.

pub(crate) mod scale;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext, distance, index_range};
use crate::checkpoint::Point;
use crate::tensor::Tensor;

const CACHES: &[Point] = &[Point::KCache, Point::VCache];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::CacheStale,
        at: CACHES,
        takes: "repeated|unwritten|first-lost|past-lost",
        compute: |at, value| with_rows(at, &stale(at, value.as_word()?)?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::CachePosition,
        at: CACHES,
        takes: "one-early|one-late|reversed|10:9,11:10",
        compute: |at, value| with_rows(at, &moved(at, value.as_word()?)?),
        read: read_rows,
        usual: Some(|_| ["one-early", "one-late", "reversed"].map(ChangeValue::word).into()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::CacheRow,
        at: CACHES,
        takes: "pass3:15:zero|pass2:0-3:4-7",
        compute: |at, value| with_rows(at, &overwritten(at, value.as_word()?)?),
        read: read_overwritten,
        usual: Some(|_| Vec::new()),
        ..CatalogueEntry::PLAIN
    },
];

/// Row of the cache at each index; `None` for a zero row, which was never written.
type CacheRows = Vec<Option<usize>>;

/// Returns the number of cache rows, and the first row that this pass writes.
fn extent(at: &SiteContext) -> (usize, usize) {
    let rows = at.value.rows();
    (rows, rows.saturating_sub(at.positions.len()))
}

fn stale(at: &SiteContext, what: &str) -> Option<CacheRows> {
    let (rows, first) = extent(at);
    let mut all: CacheRows = (0..rows).map(Some).collect();
    match what {
        // Attention reads a cache that is one token old: the last row repeats the row before it.
        "repeated" if rows > 1 => all[rows - 1] = Some(rows - 2),
        "unwritten" if rows > 1 => all[rows - 1] = None,
        "first-lost" if rows > 1 => all[0] = None,
        // Every pass starts with an empty cache.
        "past-lost" if first > 0 => all[..first].fill(None),
        _ => return None,
    }
    Some(all)
}

fn moved(at: &SiteContext, how: &str) -> Option<CacheRows> {
    let (rows, first) = extent(at);
    let mut all: CacheRows = (0..rows).map(Some).collect();
    match how {
        // The first new row overwrites the last old row, and the last row stays unwritten.
        "one-early" if rows > 1 => {
            all.remove(first.max(1) - 1);
            all.push(None);
        }
        // The last new row lies beyond the rows that attention reads.
        "one-late" if rows > first + 1 => {
            all.remove(rows - 1);
            all.insert(first, None);
        }
        "reversed" if rows > first + 1 => {
            all[first..].reverse();
        }
        "one-early" | "one-late" | "reversed" => return None,
        list => {
            for place in list.split(',') {
                let (to, from) = place.split_once(':')?;
                let (to, from) = (to.parse::<usize>().ok()?, from.parse::<usize>().ok()?);
                *all.get_mut(to)? = Some(from).filter(|&from| from < rows);
            }
        }
    }
    Some(all)
}

/// Parses `pass3:15:zero` or `pass2:0-3:4-7`: from a pass on, cache rows are cleared, or contain other rows.
fn overwritten(at: &SiteContext, word: &str) -> Option<CacheRows> {
    let (pass, rows) = word.strip_prefix("pass")?.split_once(':')?;
    let (to, from) = rows.split_once(':')?;
    if at.site.pass != pass.parse().ok() {
        return None;
    }
    let mut all: CacheRows = (0..at.value.rows()).map(Some).collect();
    let to = index_range(to)?;
    let from: Vec<Option<usize>> = match from {
        "zero" => to.clone().map(|_| None).collect(),
        rows => index_range(rows)?.map(Some).collect(),
    };
    let is_there = |row: &Option<usize>| row.is_none_or(|row| row < at.value.rows());
    if from.len() != to.len() || to.end > all.len() || !from.iter().all(is_there) {
        return None;
    }
    all[to].copy_from_slice(&from);
    Some(all)
}

fn with_rows(at: &SiteContext, rows: &CacheRows) -> Option<Tensor> {
    let (width, nothing) = (at.value.row_len(), Tensor::new(&[1], vec![0.0]));
    let is_own = rows.iter().enumerate().all(|(row, from)| *from == Some(row));
    (!is_own).then(|| {
        at.n.gathered(&[at.value, &nothing], at.value.shape(), |flat| match rows[flat / width] {
            Some(row) => (0, row * width + flat % width),
            None => (1, 0),
        })
    })
}

/// Maximum number of rows that are compared with each other.
const MOST_ROWS: usize = 512;

/// Largest error of two rows that still match.
const NEAR: f64 = 0.01;

/// Returns our nearest row for each wrong row of the dump, and `None` for rows of zeros. Empty if a row has no
/// match.
fn nearest_rows(at: &SiteContext, theirs: &[f64]) -> Vec<(usize, Option<usize>)> {
    let (rows, width) = (at.value.rows(), at.value.row_len());
    if rows > MOST_ROWS {
        return Vec::new();
    }
    let off = |row: usize, other: usize| {
        let pairs = at.value.row(other).iter().zip(&theirs[row * width..][..width]);
        let (mut up, mut down) = (0.0, 0.0);
        for (&ours, &theirs) in pairs {
            up += (f64::from(ours) - theirs).powi(2);
            down += theirs * theirs;
        }
        (up / down).sqrt()
    };
    let is_zero = |row: usize| theirs[row * width..][..width].iter().all(|&value| value == 0.0);
    let mut places = Vec::new();
    for row in (0..rows).filter(|&row| !(off(row, row) < NEAR)) {
        let nearest = (0..rows).min_by(|&a, &b| off(row, a).total_cmp(&off(row, b)));
        match nearest.filter(|&nearest| off(row, nearest) < NEAR) {
            Some(nearest) => places.push((row, Some(nearest))),
            None if is_zero(row) => places.push((row, None)),
            None => return Vec::new(),
        }
    }
    places
}

/// Returns the list of rows that contain the row of another position, unless rows of earlier passes were
/// overwritten.
fn read_rows(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let places = nearest_rows(at, theirs);
    if overwriting(at, &places).is_some() {
        return Vec::new();
    }
    let list: Option<Vec<String>> =
        places.iter().map(|(to, from)| Some(format!("{to}:{}", (*from)?))).collect();
    match list {
        Some(list) if !list.is_empty() => not_named(at, theirs, list.join(",")),
        _ => Vec::new(),
    }
}

/// Returns consecutive rows of earlier passes that contain consecutive other rows, or zeros.
fn read_overwritten(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let value = overwriting(at, &nearest_rows(at, theirs));
    value.map_or(Vec::new(), |value| not_named(at, theirs, value))
}

fn overwriting(at: &SiteContext, places: &[(usize, Option<usize>)]) -> Option<String> {
    let (&(to, from), &(last, _)) = (places.first()?, places.last()?);
    let is_span =
        places.iter().enumerate().all(|(index, &place)| place == (to + index, from.map(|from| from + index)));
    let rows = |first: usize| match places.len() {
        1 => first.to_string(),
        count => format!("{first}-{}", first + count - 1),
    };
    let pass = at.site.pass.filter(|_| is_span && last < extent(at).1)?;
    Some(format!("pass{pass}:{}:{}", rows(to), from.map_or("zero".to_owned(), rows)))
}

/// Returns a value, unless another change in the catalogue has the same result under its own name.
fn not_named(at: &SiteContext, theirs: &[f64], value: String) -> Vec<ChangeValue> {
    let named = ENTRIES.iter().flat_map(|entry| {
        let words = entry.usual(at).into_iter();
        words.filter_map(move |word| (entry.compute)(at, &word))
    });
    let is_named = named.into_iter().any(|known| distance(&known, theirs) < NEAR);
    if is_named { Vec::new() } else { vec![ChangeValue::Word(value)] }
}
