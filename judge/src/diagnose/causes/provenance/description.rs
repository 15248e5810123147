//! Sentences about the provenance of rows.

use std::collections::BTreeSet;

use crate::checkpoint::{Point, Site};
use crate::diagnose::causes::operation_search::SearchContext;
use crate::diagnose::causes::provenance::{CACHES, RowOrigin};

/// Maximum number of spans that a sentence names.
const SHOWN: usize = 4;

/// Consecutive rows of a pass with consecutive origins.
#[derive(Clone, Debug)]
pub(super) struct RowSpan {
    pass: usize,
    /// Position of the first row.
    first: usize,
    /// Number of rows.
    rows: usize,
    /// Origin of the first row.
    origin: RowOrigin,
    /// Other origins of the first row that are as likely.
    others: Vec<RowOrigin>,
}

impl RowSpan {
    /// Makes a span that contains one row.
    pub(super) fn new(pass: usize, first: usize, origin: RowOrigin, others: Vec<RowOrigin>) -> Self {
        Self { pass, first, rows: 1, origin, others }
    }

    /// Joins neighbouring rows with neighbouring origins.
    pub(super) fn joined(all: Vec<Self>) -> Vec<Self> {
        let mut joined: Vec<Self> = Vec::new();
        for one in all {
            match joined.last_mut() {
                Some(last) if last.is_before(&one) => last.rows += 1,
                _ => joined.push(one),
            }
        }
        joined
    }

    fn is_before(&self, next: &Self) -> bool {
        let is_next = (self.pass, self.first + self.rows) == (next.pass, next.first);
        let is_certain = self.others.is_empty() && next.others.is_empty();
        is_next && is_certain && self.origin.after(self.rows) == next.origin
    }

    /// Returns the origin of a row of a pass, if the span contains the row.
    pub(super) fn origin(&self, pass: usize, position: usize) -> Option<RowOrigin> {
        let is_inside = pass == self.pass && (self.first..self.first + self.rows).contains(&position);
        is_inside.then(|| self.origin.after(position - self.first))
    }
}

impl RowOrigin {
    /// Returns the origin of a row this many rows later.
    fn after(&self, rows: usize) -> Self {
        match self {
            RowOrigin::Place { sequence, tap, layer, pass, position } => RowOrigin::Place {
                sequence: sequence.clone(),
                tap: *tap,
                layer: *layer,
                pass: *pass,
                position: position + rows,
            },
            other => other.clone(),
        }
    }
}

/// Describes where the rows of caches come from.
pub(super) fn described(search: &SearchContext, spans: &[RowSpan], sites: &[Site]) -> String {
    let is_cache = sites.iter().any(|site| CACHES.contains(&site.point));
    let sentence = |span| sentence(search, span, is_cache);
    let mut sentences: Vec<String> = spans.iter().take(SHOWN).map(sentence).collect();
    if spans.len() > SHOWN {
        sentences.push(format!("{} more row ranges are wrong", spans.len() - SHOWN));
    }
    format!("{} ({})", sentences.join("; "), extent(search, sites))
}

/// Names keys, values or both, and the layers.
fn extent(search: &SearchContext, sites: &[Site]) -> String {
    let points: BTreeSet<Point> = sites.iter().map(|site| site.point).collect();
    let layers: BTreeSet<usize> = sites.iter().filter_map(|site| site.layer).collect();
    let what = match (points.contains(&Point::KCache), points.contains(&Point::VCache)) {
        (true, true) => "keys and values",
        (true, false) => "keys",
        (false, true) => "values",
        _ => points.first().map_or("", |point| point.name()),
    };
    let list: Vec<String> = layers.iter().map(usize::to_string).collect();
    match list.len() {
        count if count == search.operations.n_layers() => format!("{what}, in all layers"),
        0 => what.to_owned(),
        1 => format!("{what}, in layer {}", list[0]),
        _ => format!("{what}, in layers {}", list.join(", ")),
    }
}

fn sentence(search: &SearchContext, span: &RowSpan, is_cache: bool) -> String {
    let (pass, rows) = (span.pass, positions(span.first, span.rows));
    let [row, verb, were] = if span.rows == 1 { ["row", "holds", "was"] } else { ["rows", "hold", "were"] };
    let start = search.context.held.passes().get(pass).map_or(0, |pass| pass.position);
    let subject = match is_cache {
        true => format!("from pass {pass} on (position {start}), the cache {row} of {rows}"),
        false => format!("in pass {pass}, the {row} of {rows}"),
    };
    match &span.origin {
        RowOrigin::Place { .. } => {
            let others = span.others.iter().map(|other| format!(" or {}", told(other, span)));
            format!("{subject} {verb} {}{}", told(&span.origin, span), others.collect::<String>())
        }
        RowOrigin::Zero => {
            format!(
                "{subject} {verb} zeros; until pass {} the {row} {were} right: something cleared the {row}",
                pass - 1
            )
        }
        RowOrigin::Unknown => format!(
            "{subject} {verb} no row of this text, and not zeros; until pass {} the {row} {were} right: something \
             overwrote the {row}, such as padding or another request",
            pass - 1
        ),
    }
}

fn told(origin: &RowOrigin, span: &RowSpan) -> String {
    let RowOrigin::Place { sequence, tap, layer, pass, position } = origin else { return String::new() };
    let ending = if span.rows == 1 { "" } else { "s" };
    let mut words = vec![match tap {
        Some(Point::K) => format!("the key{ending} before RoPE"),
        Some(Point::KNorm) => format!("the normed key{ending} before RoPE"),
        Some(other) => format!("the row{ending} of {other}"),
        None => format!("the row{ending}"),
    }];
    if let Some(layer) = layer {
        words.push(format!("of layer {layer}"));
    }
    if let Some(sequence) = sequence {
        words.push(format!("of sequence {sequence}"));
    }
    if let Some(pass) = pass {
        words.push(format!("of pass {pass}"));
    }
    let is_same = *position == span.first && sequence.is_none();
    let at = if words.len() > 1 { "at" } else { "of" };
    words.push(match is_same {
        true => format!("{at} the same position{ending}"),
        false => format!("{at} {}", positions(*position, span.rows)),
    });
    words.join(" ")
}

/// Names positions: "position 3" or "positions 3 to 5".
pub(super) fn positions(first: usize, rows: usize) -> String {
    match rows {
        1 => format!("position {first}"),
        _ => format!("positions {first} to {}", first + rows - 1),
    }
}
