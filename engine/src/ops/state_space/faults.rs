//! Changes of Mamba-2's recurrence: steps, decay, the skip connection, and the recurrent state that a layer keeps between passes.

use crate::change::{CatalogueEntry, CauseKind, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::state_space::exact::{Scan, ScanOutput, ScanState, StepSizes};
use crate::ops::state_space::{StateSpace, StepRule};
use crate::tensor::Tensor;

const SCANNED: &[Point] = &[Point::RecurrentState, Point::RecurrentOut];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::StepSize,
        at: &[Point::StepSize],
        takes: "unbiased|biased-twice|linear|unlimited",
        compute: |at, value| {
            let StepSizes { dt, rule, is_single } = at.stage()?;
            let bias = &rule.bias;
            let with = |factor: f32| {
                let bias = bias.iter().map(|bias| factor * bias).collect();
                at.n.step_sizes(dt, &StepRule { bias, ..rule.clone() }, *is_single)
            };
            match value.as_word()? {
                "unbiased" => Some(with(0.0)),
                "biased-twice" => Some(with(2.0)),
                "unlimited" if rule.limits.is_some() => {
                    Some(at.n.step_sizes(dt, &StepRule { limits: None, ..rule.clone() }, *is_single))
                }
                // Without softplus.
                "linear" => {
                    let rows = (0..dt.rows()).flat_map(|_| bias.iter().copied()).collect();
                    Some(at.n.add(dt, &Tensor::new(dt.shape(), rows)))
                }
                _ => None,
            }
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::StateDecay,
        at: SCANNED,
        takes: "none|growing|log",
        compute: |at, value| {
            let scan = scan(at)?;
            let decay: fn(f32) -> f32 = match value.as_word()? {
                "none" => |_| 0.0,
                // A without its sign.
                "growing" => |a| -a,
                // ln(-A), which Hugging Face files store (`A_log`), in place of A.
                "log" => |a| (-a).ln(),
                _ => return None,
            };
            let weights = at.n.profile().weights;
            let rates = scan.space.rates(|log| weights.round(log.into()) as f32);
            let decay = rates.into_iter().map(decay).collect();
            let space = StateSpace { decay, is_log: false, ..scan.space.clone() };
            with(at, &Scan { space, ..scan.clone() })
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::StateSkip,
        at: &[Point::RecurrentOut],
        takes: "none|one",
        compute: |at, value| {
            let scan = scan(at)?;
            let factor = match value.as_word()? {
                "none" => 0.0,
                "one" => 1.0,
                _ => return None,
            };
            let skip = vec![factor; scan.space.skip.len()];
            with(at, &Scan { space: StateSpace { skip, ..scan.space.clone() }, ..scan.clone() })
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::StateGroups,
        at: SCANNED,
        takes: "first|alternating",
        compute: |at, value| {
            let scan = scan(at)?;
            let (groups, heads) = (scan.space.groups, scan.space.heads());
            let group: fn(usize, usize) -> usize = match value.as_word()? {
                // All heads read B and C of the first group.
                "first" => |_, _| 0,
                // Head h reads B and C of group h mod G.
                "alternating" => |head, groups| head % groups,
                _ => return None,
            };
            if groups == 1 {
                return None;
            }
            // B and C of each head, so that each head is a group.
            let (columns, inner) = (scan.space.columns, heads * scan.space.head_dim);
            let width = inner + 2 * heads * columns;
            let from = |flat: usize| {
                let (token, at) = (flat / width, flat % width);
                let column = match at.checked_sub(inner) {
                    None => at,
                    Some(shared) => {
                        let (part, head) = (shared / columns / heads, shared / columns % heads);
                        inner + (part * groups + group(head, groups)) * columns + shared % columns
                    }
                };
                (0, token * scan.x.row_len() + column)
            };
            let x = at.n.gathered(&[&scan.x], &[scan.x.rows(), width], from);
            with(at, &Scan { x, space: StateSpace { groups: heads, ..scan.space.clone() }, ..scan.clone() })
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::StateKept,
        at: SCANNED,
        takes: "none",
        compute: |at, value| {
            let scan = scan(at)?;
            let zeros = || Tensor::new(scan.before.shape(), vec![0.0; scan.before.data().len()]);
            (value.as_word()? == "none").then(|| with(at, &Scan { before: zeros(), ..scan.clone() }))?
        },
        ..CatalogueEntry::PLAIN
    },
];

/// Returns the recurrence of a site.
fn scan<'a>(at: &'a SiteContext) -> Option<&'a Scan> {
    let state = || at.stage().map(|ScanState(scan)| &**scan);
    at.stage().map(|ScanOutput(scan)| &**scan).or_else(state)
}

/// Computes the value of a site with a changed recurrence.
fn with(at: &SiteContext, scan: &Scan) -> Option<Tensor> {
    let Scan { x, steps, before, space, is_single } = scan;
    let [out, after] = at.n.recurrence(x, steps, before, space, *is_single);
    Some(if at.site.point == Point::RecurrentOut { out } else { after })
}
