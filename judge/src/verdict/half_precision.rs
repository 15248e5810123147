//! Doubts about two 16-bit dumps that are compared without a model: rounding may explain an error above the
//! tolerance.

use std::collections::HashMap;

use crate::align::AlignedDump;
use crate::checkpoint::{Point, Site, ValueKind};
use crate::error::Result;
use crate::measure::Errors;
use crate::verdict::site_result::{SiteResult, Verdict};
use crate::verdict::unit_rows::UnitRows;
use crate::weight::DType;

/// Maximum number of taps that are checked for 16-bit values.
const LOOKED_AT: usize = 64;
/// Relative L2 error from which rounding is no explanation: all zeros would be as near.
const BLIND: f64 = 1.0;
/// Maximum number of differing values if all others are bit-identical. Rounding that changes a few values
/// strongly would also change others.
const FEW: usize = 8;
/// Largest relative error of a value: 16 roundings to bf16, each at most 2⁻⁸.
const STEPS: f64 = 16.0 / 256.0;
/// Largest relative error added by RoPE in bf16: eight roundings of angles, tables, products and sums.
const ROPE: f64 = 8.0 / 256.0;
/// Largest ratio of RoPE's relative error to its input's. A rotation keeps lengths; the factor allows for
/// errors of other tokens.
const ROTATED: f64 = 4.0;

/// Returns true if most taps of a dump have 16-bit values, or its producer computes in a 16-bit type.
///
/// # Errors
/// If an array is damaged.
pub(crate) fn is_half_precision(held: &AlignedDump) -> Result<bool> {
    if matches!(held.dump.manifest.producer.dtype(), Some(DType::BF16 | DType::F16)) {
        return Ok(true);
    }
    // A cache may have a smaller type than the other taps.
    let is_looked_at = |site: &Site| {
        site.point.kind() == ValueKind::Real && !matches!(site.point, Point::KCache | Point::VCache)
    };
    let mut sites: Vec<Site> = held.dump.sites().filter(is_looked_at).collect();
    sites.sort_by_key(|site| site.flow_order());
    sites.truncate(LOOKED_AT);
    let mut short = 0;
    for &site in &sites {
        short += usize::from(is_short(held, site)?);
    }
    Ok(short * 2 > sites.len())
}

/// Returns true if the values of a tap fit 16 bits, regardless of the type in which they are stored.
fn is_short(held: &AlignedDump, site: Site) -> Result<bool> {
    if matches!(held.stored(site), Some(DType::BF16 | DType::F16)) {
        return Ok(true);
    }
    let Some(view) = held.values(site, None)? else { return Ok(false) };
    let values = view.to_vec();
    if values.iter().all(|value| *value == 0.0) {
        return Ok(false);
    }
    let fits = |short: fn(f64) -> f64| values.iter().all(|&value| short(value) == value || value.is_nan());
    Ok(fits(|value| half::bf16::from_f64(value).to_f64())
        || fits(|value| half::f16::from_f64(value).to_f64()))
}

impl UnitRows<'_> {
    /// Turns failures by the tolerance table into inconclusive verdicts if rounding to 16 bits may explain
    /// them.
    pub(crate) fn doubt_values(&mut self) {
        let error = |row: &SiteResult| Some((row.site, row.judged()?.errors.rel_l2));
        let errors: HashMap<Site, f64> = self.rows.iter().filter_map(error).collect();
        let is_doubtful = |row: &&mut SiteResult| row.verdict == Verdict::Fail && row.is_in_doubt();
        for row in self.rows.iter_mut().filter(is_doubtful) {
            let Some(found) = row.judged() else { continue };
            let Errors { rel_l2, max_scaled, .. } = found.errors;
            let are_few = found.elements - found.identical <= FEW;
            let is_rounding = rel_l2 < BLIND && !(are_few && max_scaled > STEPS);
            if is_rounding && rel_l2 <= most_of_rope(row.site, &errors) {
                doubt(row);
            }
        }
    }

    /// Turns differing token choices into inconclusive verdicts if rounding to 16 bits may explain them. This
    /// applies if the logits are inconclusive or not recorded. Passing logits show by themselves how near a
    /// choice was.
    pub(crate) fn doubt_choices(&mut self) {
        let logits: HashMap<usize, Verdict> = self
            .rows
            .iter()
            .filter(|row| matches!(row.site.point, Point::LastLogits | Point::Logits))
            .map(|row| (row.positions.end, row.verdict))
            .collect();
        let is_behind = |row: &SiteResult| match row.site.point {
            Point::Argmax | Point::TopIds => {
                !matches!(logits.get(&row.positions.end), Some(Verdict::Pass | Verdict::Fail))
            }
            _ => !logits.values().any(|verdict| *verdict == Verdict::Fail),
        };
        let doubtful: Vec<bool> = self.rows.iter().map(is_behind).collect();
        for (row, is_behind) in self.rows.iter_mut().zip(doubtful) {
            if row.verdict == Verdict::Fail && row.site.point.kind() == ValueKind::Token && is_behind {
                doubt(row);
            }
        }
    }
}

/// Returns the largest relative error that rounding may explain at a tap after RoPE. Infinite for other taps,
/// and if the tap before RoPE is not recorded.
fn most_of_rope(site: Site, errors: &HashMap<Site, f64>) -> f64 {
    let from: &[Point] = match site.point {
        Point::QRope => &[Point::QNorm, Point::Q],
        Point::KRope => &[Point::KNorm, Point::K],
        _ => &[],
    };
    let input = from.iter().find_map(|&point| errors.get(&Site { point, ..site }));
    input.map_or(f64::INFINITY, |input| ROTATED * input + ROPE)
}

fn doubt(row: &mut SiteResult) {
    let what = row.reason.take().unwrap_or_else(|| "the values differ".to_owned());
    let told = format!(
        "{what}, which rounding to 16 bits may explain; use --model to evaluate rounding, or --gate \
            tolerance to decide by the tolerance table"
    );
    (row.verdict, row.reason) = (Verdict::Inconclusive, Some(told));
}
