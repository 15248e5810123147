//! Faults of tensor parallelism in which shards of a weight are in another order or repeated, along outputs or
//! inputs.

use crate::change::{
    CatalogueEntry, CauseKind, ChangeValue, LeastSquares, SiteContext, distance, plain_gain,
};
use crate::checkpoint::Point;
use crate::ops::linear::faults::{PRODUCTS, input, multiplied, own};
use crate::quant::decode_matrix_row;
use crate::tensor::Tensor;

/// Projections that engines fuse, so that shards of both are wrong together.
const GATE_UP: &[Point] = &[Point::FfnGate, Point::FfnUp];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::WeightShards,
        at: PRODUCTS,
        takes: "1,0|0,0|columns:1,0",
        compute: |at, value| match value.as_word()?.strip_prefix("columns:") {
            Some(order) => {
                let x = input(at)?;
                multiplied(at, &in_order(at, x, &order_of(order)?)?, &own(at)?)
            }
            None => outputs(at, value.as_word()?),
        },
        read: |at, theirs| {
            read_outputs(at, theirs).or_else(|| read_columns(at, theirs)).into_iter().collect()
        },
        usual: Some(|_| Vec::new()),
        ..CatalogueEntry::PLAIN
    },
    // Tried if neither projection is recorded.
    CatalogueEntry {
        kind: CauseKind::WeightShards,
        at: GATE_UP,
        takes: "gate-up:0,0",
        compute: |at, value| outputs(at, value.as_word()?.strip_prefix("gate-up:")?),
        usual: Some(|_| Vec::new()),
        sweep: |_| ["gate-up:0,0", "gate-up:1,0"].map(ChangeValue::word).into(),
        ..CatalogueEntry::PLAIN
    },
];

/// Replaces shards of the outputs.
fn outputs(at: &SiteContext, order: &str) -> Option<Tensor> {
    own(at)?;
    in_order(at, at.value, &order_of(order)?)
}

/// Numbers of equal shards that are searched.
const COUNTS: [usize; 6] = [2, 4, 8, 3, 6, 16];

/// Parses a list with the shard that replaces each shard.
fn order_of(word: &str) -> Option<Vec<usize>> {
    let order: Vec<usize> = word.split(',').map(|shard| shard.trim().parse().ok()).collect::<Option<_>>()?;
    let is_one = order.len() > 1 && order.iter().all(|&shard| shard < order.len());
    (is_one && order.iter().enumerate().any(|(place, &shard)| place != shard)).then_some(order)
}

/// Replaces each shard of every row by another one.
fn in_order(at: &SiteContext, x: &Tensor, order: &[usize]) -> Option<Tensor> {
    let columns = x.row_len();
    let width = columns.is_multiple_of(order.len()).then(|| columns / order.len())?;
    let from = |flat: usize| {
        let column = flat % columns;
        (0, flat - column + order[column / width] * width + column % width)
    };
    Some(at.n.gathered(&[x], x.shape(), from))
}

fn named(prefix: &str, order: &[usize]) -> Option<ChangeValue> {
    let is_own = order.iter().enumerate().all(|(place, &shard)| place == shard);
    let list: Vec<String> = order.iter().map(usize::to_string).collect();
    (!is_own).then(|| ChangeValue::Word(format!("{prefix}{}", list.join(","))))
}

/// Largest relative difference between a shard and the shard that replaces it.
const NEAR: f64 = 0.05;

/// Finds, for each shard of the dump's outputs, the equal shard of our outputs.
fn read_outputs(at: &SiteContext, theirs: &[f64]) -> Option<ChangeValue> {
    own(at)?;
    let columns = at.value.row_len();
    let of_count = |count: usize| {
        let width = columns.is_multiple_of(count).then(|| columns / count)?;
        let shard = |shard: usize| {
            let flat = move |index: usize| index / width * columns + shard * width + index % width;
            (0..at.value.rows() * width).map(flat)
        };
        let nearest = |place: usize| {
            let wanted: Vec<f64> = shard(place).map(|flat| theirs[flat]).collect();
            let off = |other: usize| {
                let ours: Vec<f32> = shard(other).map(|flat| at.value.data()[flat]).collect();
                distance(&Tensor::new(&[ours.len()], ours), &wanted)
            };
            let near = (0..count).map(|other| (other, off(other))).filter(|(_, off)| *off < NEAR);
            near.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(other, _)| other)
        };
        named("", &(0..count).map(nearest).collect::<Option<Vec<usize>>>()?)
    };
    COUNTS.into_iter().find_map(of_count)
}

/// Finds, for each shard of the weight's columns, the shard of the inputs that it is multiplied with. Uses least
/// squares over all pairs of shards.
fn read_columns(at: &SiteContext, theirs: &[f64]) -> Option<ChangeValue> {
    let (x, w) = (input(at)?, own(at)?.w);
    let few = [2, 4, 8];
    few.into_iter().filter(|count| w.cols.is_multiple_of(*count)).find_map(|count| {
        let (width, mut row) = (w.cols / count, vec![0.0f32; w.cols]);
        let outputs = (8 * count * count).div_ceil(x.rows()).clamp(1, w.rows);
        let mut system = LeastSquares::new(count * count);
        for output in (0..outputs).map(|output| output * w.rows / outputs) {
            decode_matrix_row(&w, output, &mut row);
            for token in 0..x.rows() {
                let pairs = row.chunks(width).flat_map(|w| x.row(token).chunks(width).map(move |x| (x, w)));
                let sum = |(x, w): (&[f32], &[f32])| x.iter().zip(w).map(|(x, w)| f64::from(x * w)).sum();
                let features: Vec<f64> = pairs.map(sum).collect();
                let own: f64 = (0..count).map(|shard| features[shard * count + shard]).sum();
                let flat = token * w.rows + output;
                // What is not in the product, such as the bias, is the same in both engines.
                let wanted = theirs[flat] - f64::from(at.value.data()[flat]) + own;
                system.add(&features, wanted);
            }
        }
        let gains = (system.equations >= 4 * count * count).then(|| system.solution())??;
        let of_shard = |gains: &[f64]| {
            let plain: Vec<f64> = gains.iter().map(|&gain| plain_gain(gain)).collect::<Option<_>>()?;
            let one = plain.iter().position(|gain| *gain == 1.0)?;
            (plain.iter().filter(|gain| **gain != 0.0).count() == 1).then_some(one)
        };
        named("columns:", &gains.chunks(count).map(of_shard).collect::<Option<Vec<usize>>>()?)
    })
}
