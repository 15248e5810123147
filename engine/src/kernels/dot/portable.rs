//! Portable dot products, which define the summation order.

use super::{Kernel, LANES, LaneColumns, PanelSums, SIDE, filled_up};

pub(super) const KERNEL: Kernel = Kernel { name: "plain", block, tiles };

fn block(a: &[f32], b: &[f32]) -> f32 {
    let (a_steps, a_rest) = a.as_chunks::<LANES>();
    let (b_steps, b_rest) = b.as_chunks::<LANES>();
    let whole = a_steps.iter().zip(b_steps).fold([0.0; LANES], |lanes, (a, b)| added(lanes, a, b));
    sum(if a_rest.is_empty() { whole } else { added(whole, &filled_up(a_rest), &filled_up(b_rest)) })
}

fn tiles(weights: &[LaneColumns], len: usize, activations: &[LaneColumns], sums: &mut PanelSums) {
    for (group, weights) in weights.chunks(len).enumerate() {
        for (row, token) in (0..SIDE).flat_map(|row| (0..SIDE).map(move |token| (row, token))) {
            let steps = weights.iter().zip(activations);
            let lanes = steps.fold([0.0; LANES], |lanes, (LaneColumns(w), LaneColumns(x))| {
                added(lanes, &w[row], &x[token])
            });
            sums[token][group][row] = sum(lanes);
        }
    }
}

fn added(mut lanes: [f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) -> [f32; LANES] {
    for lane in 0..LANES {
        lanes[lane] = a[lane].mul_add(b[lane], lanes[lane]);
    }
    lanes
}

/// Adds the lanes by halves, so that each value is rounded only a few times.
fn sum(mut lanes: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}
