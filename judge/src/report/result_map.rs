//! Result map of a comparison: one line per tap, one column per layer, one character per cell.

use std::collections::{BTreeMap, BTreeSet};

use anstyle::Ansi256Color;

use crate::checkpoint::{Point, TapScope};
use crate::measure::Measurement;
use crate::report::terminal_style::TerminalStyle;
use crate::report::text;
use crate::verdict::{Outcome, SiteResult, Verdict};

/// Worst result of a cell. Later variants are worse.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) enum ResultMark {
    /// Every value is bit-identical.
    Same,
    /// Rounding explains the difference, or it is a tie.
    Fine,
    /// The failure is waived.
    Known,
    /// The result is undetermined.
    Doubtful,
    /// Failure, with the power of ten of its bound ratio; 0 if unknown.
    Fails(u8),
}

impl ResultMark {
    fn of(row: &SiteResult) -> Self {
        match row.verdict {
            Verdict::Fail => {
                let decades = row.bound_ratio().unwrap_or(1.0).log10();
                Self::Fails(if decades.is_nan() { u8::MAX } else { decades as u8 }) // saturates
            }
            Verdict::Inconclusive => Self::Doubtful,
            Verdict::Known => Self::Known,
            _ if row.judged().is_some_and(Measurement::is_identical) => Self::Same,
            _ => Self::Fine,
        }
    }

    /// Returns the cells in a colour by bound ratio. The characters give the same information without colour.
    fn painted(self, paint: TerminalStyle, cells: &str) -> String {
        const HEAT: [u8; 4] = [208, 202, 196, 160];
        let (text, block) = match self {
            Self::Same => (250, 22),
            Self::Fine => (255, 28),
            Self::Known => (16, 252),
            Self::Doubtful => (16, 220),
            Self::Fails(decades) => (231, HEAT[usize::from(decades / 2).min(HEAT.len() - 1)]),
        };
        paint.paint(Ansi256Color(text).on(Ansi256Color(block)), cells)
    }

    fn character(self) -> char {
        match self {
            Self::Same => '=',
            Self::Fine => '.',
            Self::Known => 'k',
            Self::Doubtful => '?',
            Self::Fails(_) => 'x',
        }
    }
}

/// Meaning of the characters of a map.
pub(crate) const LEGEND: &str = "= same bits  . explained  k waived  ? undetermined  x fails  blank: no data";

/// Worst result of every tap and layer, over all passes.
pub(crate) struct ResultMap {
    /// Layers with results, in order, one per column.
    layers: Vec<usize>,
    taps: BTreeMap<Point, BTreeMap<usize, ResultMark>>,
    outside: BTreeMap<Point, ResultMark>,
}

impl ResultMap {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let (mut taps, mut outside): (BTreeMap<_, BTreeMap<_, ResultMark>>, BTreeMap<_, ResultMark>) =
            Default::default();
        for row in &outcome.rows {
            let (point, mark) = (row.site.point, ResultMark::of(row));
            let worst = match row.site.layer.filter(|_| point.scope() == TapScope::Layer) {
                Some(layer) => taps.entry(point).or_default().entry(layer).or_insert(mark),
                None => outside.entry(point).or_insert(mark),
            };
            *worst = worse(*worst, mark);
        }
        let layers: BTreeSet<usize> = taps.values().flat_map(BTreeMap::keys).copied().collect();
        Self { layers: layers.into_iter().collect(), taps, outside }
    }

    /// Returns true if the map has layers.
    pub(crate) fn has_layers(&self) -> bool {
        !self.layers.is_empty()
    }

    /// Returns the map in lines of at most `width` columns. If there are too many layers, several share a
    /// column, which shows the worst result.
    pub(crate) fn lines(&self, width: usize, paint: TerminalStyle) -> Vec<String> {
        let points = self.taps.keys().chain(self.outside.keys());
        let label = points.map(|point| point.name().len()).fold("layer".len(), usize::max) + 2;
        let share = self.layers.len().div_ceil(width.saturating_sub(label).max(1)).max(1);
        let columns: Vec<&[usize]> = self.layers.chunks(share).collect();
        let mut lines = Vec::new();
        if self.has_layers() {
            let head = format!("{:<label$}{}", "layer", scale(&columns, width.saturating_sub(label)));
            lines.push(paint.faint(head.trim_end()));
        }
        let taps = self.taps.iter().map(|(point, marks)| {
            let worst = |layers: &&[usize]| worst(layers.iter().filter_map(|layer| marks.get(layer)));
            let cells: Vec<Option<ResultMark>> = columns.iter().map(worst).collect();
            format!("{:<label$}{}", point.name(), painted(&cells, paint))
        });
        let outside = self
            .outside
            .iter()
            .map(|(point, &mark)| format!("{:<label$}{}", point.name(), painted(&[Some(mark)], paint)));
        lines.extend(taps);
        if self.has_layers() && !self.outside.is_empty() {
            lines.push(paint.faint("outside the layers"));
        }
        lines.extend(outside);
        if share > 1 {
            lines.push(
                paint.faint(&format!("{} per column, the worst is shown", text::count(share, "layer"))),
            );
        }
        lines
    }
}

fn worse(one: ResultMark, other: ResultMark) -> ResultMark {
    if other > one { other } else { one }
}

fn worst<'m>(marks: impl Iterator<Item = &'m ResultMark>) -> Option<ResultMark> {
    marks.copied().reduce(worse)
}

/// Combines the rows that two reports contain for the same unit. A row fails if the two reports differ in any bit.
fn scale(columns: &[&[usize]], width: usize) -> String {
    let mut scale = String::new();
    for (column, layers) in columns.iter().enumerate().step_by(5) {
        let number = layers[0].to_string();
        let is_free = scale.is_empty() || scale.len() < column;
        if is_free && column + number.len() <= width {
            scale = format!("{scale:<column$}{number}");
        }
    }
    scale
}

/// Colours the cells, with one escape sequence per group of equal neighbours.
fn painted(cells: &[Option<ResultMark>], paint: TerminalStyle) -> String {
    let of = |run: &[Option<ResultMark>]| match run[0] {
        None => " ".repeat(run.len()),
        Some(mark) => mark.painted(paint, &mark.character().to_string().repeat(run.len())),
    };
    cells.chunk_by(|one, other| one == other).map(of).collect::<String>().trim_end().to_owned()
}
