//! Coverage of a comparison: the expected sites, units and checkpoints that were not compared. A pass needs all
//! of them.

use std::collections::BTreeSet;

use crate::checkpoint::{Checkpoint, Point, TapScope};
use crate::verdict::evidence::{Basis, Evidence, OUR_ENGINE, SideTaps};
use crate::verdict::outcome::{ComparisonSubject, Coverage};
use crate::verdict::site_result::SiteResult;

/// Start of the note on taps that our engine computes and the dump does not record.
pub const NOT_RECORDED: &str = "not recorded in the dump: ";

/// Returns true if the results of all units of the plan are present.
pub(super) fn is_complete(basis: &Basis) -> bool {
    basis.is_whole && basis.evidence.len() == basis.wanted.len()
}

/// The results of all units, from which the verdict is made.
pub(super) struct ComparisonResults<'c> {
    pub(super) subject: &'c ComparisonSubject,
    pub(super) basis: &'c Basis,
    pub(super) rows: &'c [SiteResult],
}

impl ComparisonResults<'_> {
    pub(super) fn found(&self) -> impl Iterator<Item = &Evidence> {
        self.basis.evidence.iter().map(|(_, found)| found)
    }

    pub(super) fn coverage(&self, skipped: Vec<String>) -> Coverage {
        let judged = || self.rows.iter().filter_map(SiteResult::judged);
        let compared = |row: &SiteResult| row.recorded.map_or(row.positions.len(), |recorded| recorded.rows);
        Coverage {
            taps_in_part: self.rows.iter().filter(|row| row.recorded.is_some()).count(),
            rows: self.rows.iter().map(compared).sum(),
            rows_expected: self.rows.iter().map(|row| row.positions.len()).sum(),
            taps_compared: self.rows.len(),
            taps_expected: self.found().map(|found| found.expected).sum(),
            elements: judged().map(|found| found.elements).sum(),
            taps_identical: judged().filter(|found| found.is_identical()).count(),
            elements_identical: judged().map(|found| found.identical).sum(),
            skipped,
        }
    }

    /// Returns the expected sites that were not compared, the missing units, and the requested checkpoints
    /// without any comparison.
    pub(super) fn skipped(&self) -> Vec<String> {
        let mut missing: Vec<_> = self.found().flat_map(|found| &found.missing).collect();
        if self.basis.evidence.len() > 1 {
            missing.sort_by_key(|missing| missing.site.flow_order());
        }
        let mut skipped: Vec<String> = missing.into_iter().map(|missing| missing.why.clone()).collect();
        skipped.extend(once_each(self.found().flat_map(|found| &found.lacking)));
        let is_there = |number: usize| self.basis.evidence.iter().any(|(there, _)| *there == number);
        let absent = self.basis.wanted.iter().filter(|(number, _)| !is_there(*number));
        skipped.extend(absent.map(|(number, unit)| format!("unit {} ({unit}): not examined", number + 1)));
        if is_complete(self.basis) {
            skipped.extend(self.absent_checkpoints());
            skipped.extend(self.blindness());
        }
        skipped
    }

    /// Returns the taps of each side over all units.
    pub(super) fn sides(&self) -> Vec<(&str, BTreeSet<Point>)> {
        let mut sides: Vec<(&str, BTreeSet<Point>)> = Vec::new();
        for SideTaps { name, taps } in self.found().flat_map(|found| &found.sides) {
            match sides.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => known.extend(taps),
                None => sides.push((name, taps.clone())),
            }
        }
        sides
    }

    /// Returns notes on taps that only one side has. They do not change the verdict.
    pub(super) fn one_sided(&self) -> Vec<String> {
        let sides = self.sides();
        let [(first, one), (second, other)] = sides.as_slice() else { return Vec::new() };
        let is_engine = [*first, *second].contains(&OUR_ENGINE);
        let asked = |point: &&Point| self.basis.selection.checkpoints.contains(&point.checkpoint());
        let told = [(one, other, *second), (other, one, *first)].map(|(points, others, lacking)| {
            let names: Vec<_> = points.difference(others).filter(asked).map(|point| point.name()).collect();
            (lacking, names)
        });
        let sentence = |(lacking, names): (&str, Vec<&str>)| {
            let names = names.join(", ");
            match lacking {
                OUR_ENGINE => format!("not computed by our engine: {names}"),
                _ if is_engine => format!("{NOT_RECORDED}{names}"),
                path => format!("not recorded in {path}: {names}"),
            }
        };
        told.into_iter().filter(|(_, names)| !names.is_empty()).map(sentence).collect()
    }

    /// Returns requested checkpoints without any comparison.
    pub(super) fn absent_checkpoints(&self) -> Vec<String> {
        let selection = &self.basis.selection;
        let compared = |asked: Checkpoint| self.rows.iter().any(|row| row.checkpoint() == asked);
        let asked = selection.checkpoints.iter().copied().filter(|_| selection.explicit);
        let absent = asked.filter(|&asked| {
            let alone = selection.checkpoints == [Checkpoint::Input];
            (alone || asked != Checkpoint::Input) && !compared(asked) && self.is_of_model(asked)
        });
        let sides = self.sides();
        absent
            .map(|asked| {
                let has_none = |(_, points): &&(&str, BTreeSet<Point>)| {
                    !points.iter().any(|point| point.checkpoint() == asked)
                };
                let lacking: Vec<_> = sides.iter().filter(has_none).map(|(side, _)| *side).collect();
                match lacking.as_slice() {
                    [] => format!("checkpoint {asked}: no tap was compared"),
                    sides => format!("checkpoint {asked}: no tap in {}", sides.join(" or in ")),
                }
            })
            .collect()
    }

    /// Returns a note if the compared values cannot reveal certain faults. At the first position, attention
    /// sees only one key and RoPE does not rotate, so scale, base and mask have no effect.
    pub(super) fn blindness(&self) -> Option<String> {
        use Point::{AttnNorm, Embed, K, KNorm, Q, QNorm, V};
        let is_before = |row: &&SiteResult| {
            matches!(row.site.point, Embed | AttnNorm | Q | K | V | QNorm | KNorm)
                && row.site.layer.unwrap_or(0) == 0
        };
        let mut last =
            self.rows.iter().filter(|row| !is_before(row)).filter_map(SiteResult::last_position).peekable();
        let is_blind = last.peek().is_some() && last.all(|position| position == 0);
        is_blind.then(|| {
            "after the first attention, only position 0 was compared, where RoPE, the attention scale, the \
             mask and softmax have no effect; record a later position"
                .to_owned()
        })
    }

    /// Returns true if the architecture has taps of this checkpoint. A layer tap that our own complete run
    /// never visits does not exist in the model.
    pub(super) fn is_of_model(&self, checkpoint: Checkpoint) -> bool {
        let sides = self.sides();
        let own = sides.iter().find(|(side, _)| *side == OUR_ENGINE).filter(|_| self.basis.is_whole);
        let is_in_layers = checkpoint.points().all(|point| point.scope() == TapScope::Layer);
        let holds = |points: &BTreeSet<Point>| points.iter().any(|point| point.checkpoint() == checkpoint);
        !is_in_layers || own.is_none_or(|_| sides.iter().any(|(_, points)| holds(points)))
    }

    /// Returns true if only inputs were compared although more was requested. Inputs are embeddings, and
    /// choices known only because they were read as tokens.
    pub(super) fn is_input_alone(&self) -> bool {
        let is_input = |row: &SiteResult| match row.site.point {
            point if point.is_before_layers() => true,
            Point::Module(_) => row.checkpoint() == Checkpoint::Input,
            Point::Argmax => self.basis.choices_are_read,
            _ => false,
        };
        let is_asked = self.basis.selection.checkpoints == [Checkpoint::Input];
        is_complete(self.basis) && !is_asked && self.rows.iter().all(is_input)
    }
}

/// Returns each sentence once, in order of first occurrence.
pub(crate) fn once_each<'s>(said: impl Iterator<Item = &'s String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for what in said {
        if !all.contains(what) {
            all.push(what.clone());
        }
    }
    all
}
