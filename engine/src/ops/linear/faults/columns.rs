//! Faults in which a product sums only some of its input columns, or some columns several times: a missing
//! all-reduce, a shard that is counted twice, or a loop that drops the tail of a row.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::Range;

use crate::change::{
    CatalogueEntry, CauseKind, ChangeValue, LeastSquares, SiteContext, distance, index_range, plain_gain,
};
use crate::numerics::Numerics;
use crate::ops::linear::faults::{PRODUCTS, ROW_PARALLEL, input, multiplied, own};
use crate::ops::scaling::Multiplier;
use crate::quant::decode_matrix_row;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    // A missing all-reduce: every device continues with its own sum.
    CatalogueEntry {
        kind: CauseKind::PartialSum,
        at: ROW_PARALLEL,
        takes: "rank:1/2",
        compute: |at, value| added(at, value.as_word()?.strip_prefix("rank:")?),
        read: |at, theirs| read_gains(at, theirs).iter().filter_map(|word| of_rank(word)).collect(),
        usual: Some(|at| match own(at) {
            Some(_) => ["rank:1/2", "rank:2/2", "rank:1/4"].map(ChangeValue::word).into(),
            None => Vec::new(),
        }),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::PartialSum,
        at: PRODUCTS,
        takes: "1/2|0-47|1/2x2|without-last:4|multiples-of:32",
        compute: |at, value| added(at, value.as_word()?),
        read: |at, theirs| {
            let is_row_parallel = ROW_PARALLEL.contains(&at.site.point);
            let words = read_gains(at, theirs).into_iter();
            words.filter(|word| !is_row_parallel || of_rank(word).is_none()).map(ChangeValue::Word).collect()
        },
        usual: Some(|_| Vec::new()),
        ..CatalogueEntry::PLAIN
    },
];

/// Computes the product from the columns that `--suppose` lists.
fn added(at: &SiteContext, word: &str) -> Option<Tensor> {
    let x = input(at)?;
    multiplied(at, &scaled(at, x, &gains(word, x.row_len())?), &own(at)?)
}

/// Returns the value of `--suppose` for the columns of one device.
fn of_rank(word: &str) -> Option<ChangeValue> {
    let is_one = word.contains('/') && !word.contains([',', 'x']);
    is_one.then(|| ChangeValue::Word(format!("rank:{word}")))
}

/// Returns how often each column is included in the sum.
fn gains(word: &str, columns: usize) -> Option<Vec<f32>> {
    let mut gains = vec![0.0; columns];
    let kept = |kept: usize| (kept > 0 && kept < columns).then_some(0..kept);
    if let Some(last) = word.strip_prefix("without-last:") {
        gains[kept(columns.checked_sub(last.parse().ok()?)?)?].fill(1.0);
        return Some(gains);
    }
    if let Some(step) = word.strip_prefix("multiples-of:") {
        let step: usize = step.parse().ok().filter(|step| *step > 0)?;
        gains[kept(columns / step * step)?].fill(1.0);
        return Some(gains);
    }
    for part in word.split(',') {
        let (range, times) = part.split_once('x').unwrap_or((part, "1"));
        let times: f32 = times.parse().ok().filter(|times: &f32| times.is_finite())?;
        gains.get_mut(range_of(range, columns)?)?.fill(times);
    }
    gains.iter().any(|gain| *gain != 1.0).then_some(gains)
}

/// Parses `2/4`, the second of four equal parts, or `32-47`.
fn range_of(word: &str, columns: usize) -> Option<Range<usize>> {
    if let Some((part, parts)) = word.split_once('/') {
        let (part, parts): (usize, usize) = (part.trim().parse().ok()?, parts.trim().parse().ok()?);
        let width = (parts > 1 && columns.is_multiple_of(parts)).then(|| columns / parts)?;
        return (1..=parts).contains(&part).then(|| (part - 1) * width..part * width);
    }
    index_range(word)
}

/// Multiplies each column of activations by its gain.
fn scaled(at: &SiteContext, x: &Tensor, gains: &[f32]) -> Tensor {
    let mut distinct: Vec<f32> = Vec::new();
    gains.iter().filter(|gain| **gain != 0.0).for_each(|gain| {
        if !distinct.contains(gain) {
            distinct.push(*gain);
        }
    });
    let times = |&gain: &f32| {
        if gain == 1.0 { x.clone() } else { at.n.scale(x, Multiplier::Number(gain)) }
    };
    let scaled: Vec<Tensor> = distinct.iter().map(times).collect();
    let zero = Tensor::scalar(0.0);
    let all: Vec<&Tensor> = scaled.iter().chain([&zero]).collect();
    let place = |flat: usize| distinct.iter().position(|gain| *gain == gains[flat % gains.len()]);
    at.n.gathered(&all, x.shape(), |flat| place(flat).map_or((distinct.len(), 0), |tensor| (tensor, flat)))
}

/// Maximum number of unknown gains.
const MOST_GAINS: usize = 128;

/// Number of equations for each unknown gain.
const EQUATIONS: usize = 4;

/// Maximum number of column ranges with different gains. A longer list is not evidence of a fault.
const MOST_RANGES: usize = 6;

/// Maximum number of group widths that are tried, smallest first.
const MOST_WIDTHS: usize = 5;

/// Smallest relative error of a product for which gains are estimated.
const SMALL: f64 = 0.01;

/// Finds the gain of each column, or of each group of columns, by least squares.
fn read_gains(at: &SiteContext, theirs: &[f64]) -> Vec<String> {
    let Some(x) = input(at).filter(|_| own(at).is_some()) else { return Vec::new() };
    let columns = x.row_len();
    if theirs.len() != at.value.data().len() || distance(at.value, theirs) < SMALL {
        return Vec::new();
    }
    let most = MOST_GAINS.min(theirs.len() / EQUATIONS);
    let powers = (0..12).map(|power| 1 << power);
    let parts = [2, 3, 4, 6, 8].into_iter().filter(|parts| columns.is_multiple_of(*parts));
    let widths: BTreeSet<usize> = powers.chain(parts.map(|parts| columns / parts)).collect();
    let may_be = |width: &usize| columns.is_multiple_of(*width) && (2..=most).contains(&(columns / width));
    let widths = widths.into_iter().filter(may_be).take(MOST_WIDTHS);
    let read = |width: usize| words(&gains_of(at, theirs, columns / width)?, columns);
    widths.into_iter().find_map(read).unwrap_or_default()
}

/// Returns the gains of equal groups of columns, rounded to plain numbers.
fn gains_of(at: &SiteContext, theirs: &[f64], groups: usize) -> Option<Vec<f64>> {
    let (x, w) = (input(at)?, own(at)?.w);
    let width = w.cols / groups;
    let (tokens, mut row) = (x.rows(), vec![0.0f32; w.cols]);
    let outputs = (2 * EQUATIONS * groups).div_ceil(tokens).clamp(1, w.rows);
    let mut system = LeastSquares::new(groups);
    for output in (0..outputs).map(|output| output * w.rows / outputs) {
        decode_matrix_row(&w, output, &mut row);
        for token in 0..tokens {
            let sum = |(x, w): (&[f32], &[f32])| {
                x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>()
            };
            let sums: Vec<f64> = x.row(token).chunks(width).zip(row.chunks(width)).map(sum).collect();
            let flat = token * w.rows + output;
            system.add(&sums, theirs[flat] - f64::from(at.value.data()[flat]));
        }
    }
    let more = (system.equations >= EQUATIONS * groups).then(|| system.solution())??;
    more.into_iter().map(|more| plain_gain(1.0 + more)).collect()
}

/// Describes the gains of equal groups of columns. `None` if all gains are equal, or form no pattern.
fn words(gains: &[f64], columns: usize) -> Option<Vec<String>> {
    let width = columns / gains.len();
    let mut ranges: Vec<(Range<usize>, f64)> = Vec::new();
    for (group, &gain) in gains.iter().enumerate() {
        match ranges.last_mut() {
            Some((range, last)) if *last == gain => range.end += width,
            _ => ranges.push((group * width..(group + 1) * width, gain)),
        }
    }
    if ranges.len() < 2 || ranges.len() > MOST_RANGES {
        return None;
    }
    let mut words = Vec::new();
    if let [(kept, 1.0), (lost, 0.0)] = ranges.as_slice() {
        let mut steps =
            (2..=256).filter(|step: &usize| step.is_power_of_two() && columns % step == lost.len());
        words.extend(
            steps.next_back().filter(|step| *step <= kept.len()).map(|step| format!("multiples-of:{step}")),
        );
        if 4 * lost.len() <= columns {
            words.push(format!("without-last:{}", lost.len()));
        }
    }
    words.push(listed(&ranges, columns));
    Some(words)
}

/// Lists the ranges with a gain other than 0.
fn listed(ranges: &[(Range<usize>, f64)], columns: usize) -> String {
    let mut list = String::new();
    for (range, gain) in ranges.iter().filter(|(_, gain)| *gain != 0.0) {
        let width = range.len();
        let is_part = columns.is_multiple_of(width) && range.start.is_multiple_of(width);
        let separator = if list.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        _ = match is_part {
            true => write!(list, "{separator}{}/{}", range.start / width + 1, columns / width),
            false => write!(list, "{separator}{}-{}", range.start, range.end - 1),
        };
        if *gain != 1.0 {
            _ = write!(list, "x{gain}");
        }
    }
    list
}
