//! Hypotheses on rows of the cache, for dumps that record no cache: starting with some pass, some cache rows contain
//! zeros, or the rows of another sequence or position. Our engine computes the recorded values under each hypothesis.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::align::Selection;
use crate::catalogue::{OperationChange, catalogue};
use crate::change::{CauseKind, ChangeValue, SiteContext};
use crate::check::{ArrayComparison, ContinuationValues, RerunPart, SiteCheck};
use crate::checkpoint::{Point, Site};
use crate::diagnose::causes::cause_text::CauseText;
use crate::diagnose::causes::operation_search::{SearchContext, SearchResult};
use crate::diagnose::causes::provenance::CACHES;
use crate::diagnose::causes::provenance::description::positions;
use crate::diagnose::causes::provenance::known_rows::KnownRows;
use crate::diagnose::causes::rerun::Rerun;
use crate::error::Result;
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::verdict::{Cause, CauseSearch, SiteResult, Verdict};

/// Numbers of rows in a block of a cache.
const BLOCKS: [usize; 5] = [1, 2, 4, 8, 16];

/// Maximum number of hypotheses.
const MOST: usize = 2048;

/// Factor by which the error of a correct row may grow under a hypothesis.
const AS_WELL: f64 = 3.0;

/// The wrong content of a block of the cache.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    /// Rows of another sequence, starting at this position.
    Sequence(String, usize),
    /// Rows of the own sequence, starting at this position.
    Own(usize),
    /// Zeros.
    Zeros,
}

/// A block of the cache that contains wrong rows, starting with some pass.
#[derive(Clone, Debug, PartialEq)]
struct BlockHypothesis {
    pass: usize,
    rows: Range<usize>,
    content: Content,
}

/// Finds the only content of cache rows that explains all wrong rows of the dump and leaves the other rows correct.
/// Tries the rows of other sequences at the same positions, and zeros; if `is_thorough`, all other contents too.
///
/// # Errors
/// The errors of a run of the model.
pub(in crate::diagnose::causes) fn of_blocks(
    search: &SearchContext,
    rows: &[SiteResult],
    coarse: &[&SiteResult],
    is_thorough: bool,
) -> Result<Option<Cause>> {
    let Some(first) = onset(rows, coarse) else { return Ok(None) };
    let pass = first.site.pass.unwrap_or(0);
    if search.deadline.is_over() {
        return Ok(None);
    }
    let others = KnownRows::computed(search, &CACHES)?;
    let written = first.positions.start;
    let all = hypotheses(search, &others, pass, written, is_thorough);
    let rerun = Rerun::new(search, first);
    // Layers whose window does not reach the rows are right with or without the change.
    let mut extents: Vec<BTreeSet<usize>> = vec![(0..search.operations.n_layers()).collect()];
    extents.extend(Some(layers_at(search, coarse, pass)).filter(|layers| *layers != extents[0]));
    let mut found: Vec<(BlockHypothesis, &BTreeSet<usize>)> = Vec::new();
    for one in all.into_iter().take(MOST) {
        if search.deadline.is_over() {
            return Ok(None);
        }
        let tap = |layers| BlockTap { one: &one, known: &others, layers };
        if !rerun.is_near_with(&mut tap(&extents[0]))? {
            continue;
        }
        for layers in &extents {
            if explains_all(search, rows, coarse, &mut tap(layers))? {
                found.push((one.clone(), layers));
                break;
            }
        }
    }
    let Some(&(_, layers)) = found.first() else { return Ok(None) };
    let found = found.into_iter().filter(|(_, others)| *others == layers);
    let found: Vec<BlockHypothesis> = found.map(|(one, _)| one).collect();
    Ok(cause(search, coarse, &found, layers))
}

/// Makes the cause of the hypotheses that explain the dump.
fn cause(
    search: &SearchContext,
    coarse: &[&SiteResult],
    found: &[BlockHypothesis],
    layers: &BTreeSet<usize>,
) -> Option<Cause> {
    let one = found.first()?;
    let sites: Vec<Site> = coarse.iter().map(|row| row.site).collect();
    let is_everywhere = layers.len() == search.operations.n_layers();
    let changes: Option<Vec<OperationChange>> = found.iter().map(BlockHypothesis::change).collect();
    let (pass, start) = (one.pass, search.context.held.passes().get(one.pass)?.position);
    if let Some(changes) = changes.filter(|_| is_everywhere) {
        let nothing = Tensor::scalar(0.0);
        let positions = search.context.held.positions(sites[0]);
        let at = SiteContext::new(sites[0], positions, &nothing, search.traced, search.operations);
        let fits = changes.into_iter().map(|change| vec![change]).collect();
        let searched = SearchResult { fits, excluded: Vec::new() };
        return Some(CauseText::of(search, &at).told(CauseSearch::Parts, &searched, sites, None));
    }
    let told: Vec<String> = found.iter().skip(1).take(3).map(BlockHypothesis::told).collect();
    let alternatives = told.iter().map(|told| format!(", or {told}")).collect::<String>();
    let extent = match is_everywhere {
        true => "in all layers".to_owned(),
        false => format!("in layers {}", layers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    };
    let what = format!(
        "cache_row: from pass {pass} on (position {start}), {}{alternatives} (keys and values, {extent}); earlier \
         passes are correct",
        one.told()
    );
    Some(Cause::described(CauseSearch::Parts, CauseKind::CacheRow, sites, what))
}

/// Returns the first wrong row, provided that earlier passes were compared and are correct, and that later passes
/// are wrong.
pub(in crate::diagnose::causes) fn onset<'r>(
    rows: &[SiteResult],
    coarse: &[&'r SiteResult],
) -> Option<&'r SiteResult> {
    let first = coarse.iter().min_by_key(|row| (row.site.pass, row.site.flow_order()))?;
    let is_right = |row: &SiteResult| row.verdict != Verdict::Fail && row.judged().is_some();
    let is_before = |row: &&SiteResult| row.site.pass < first.site.pass && row.site.pass.is_some();
    let alike = |row: &&SiteResult| row.site.point == first.site.point && row.site.layer == first.site.layer;
    let mut before = rows.iter().filter(is_before).filter(alike).peekable();
    (first.site.pass > Some(0) && before.peek().is_some() && before.all(is_right)).then_some(*first)
}

/// Returns the layers whose output is wrong at a pass; all layers if outputs of layers are not recorded.
fn layers_at(search: &SearchContext, coarse: &[&SiteResult], pass: usize) -> BTreeSet<usize> {
    let at_pass = coarse.iter().filter(|row| row.site.pass == Some(pass));
    let layers: BTreeSet<usize> =
        at_pass.filter(|row| row.local.is_some()).filter_map(|row| row.site.layer).collect();
    if layers.is_empty() { (0..search.operations.n_layers()).collect() } else { layers }
}

/// Returns the hypotheses on the rows written before a pass, the likeliest first.
fn hypotheses(
    search: &SearchContext,
    known: &KnownRows,
    pass: usize,
    written: usize,
    is_thorough: bool,
) -> Vec<BlockHypothesis> {
    let blocks: BTreeSet<(usize, usize)> = BLOCKS.iter().flat_map(|&size| blocks(size, written)).collect();
    let sequences = known.sequences();
    let mut all = Vec::new();
    for &(start, end) in &blocks {
        let block = |content| BlockHypothesis { pass, rows: start..end, content };
        for (sequence, length) in &sequences {
            let starts: Vec<usize> = match is_thorough {
                true => (0..*length).step_by(end - start).collect(),
                false => vec![start],
            };
            let fits = starts.into_iter().filter(|from| from + end - start <= *length);
            all.extend(fits.map(|from| block(Content::Sequence(sequence.clone(), from))));
        }
        // A cache of zeros alone is a change of the catalogue.
        if !is_thorough && end - start < written {
            all.push(block(Content::Zeros));
        }
        if is_thorough {
            let held = search.context.held.read_tokens().len().min(written);
            let others = (0..held).step_by(end - start).filter(|&from| from != start);
            all.extend(
                others.filter(|from| from + end - start <= held).map(|from| block(Content::Own(from))),
            );
        }
    }
    all
}

/// Returns the blocks of a size among the first `rows` rows, the last one cut off.
fn blocks(size: usize, rows: usize) -> Vec<(usize, usize)> {
    (0..rows).step_by(size).map(|start| (start, (start + size).min(rows))).collect()
}

impl BlockHypothesis {
    /// Returns the change that `--suppose` takes, if our engine can compute it from the sequence alone.
    fn change(&self) -> Option<OperationChange> {
        let span = |rows: Range<usize>| match rows.len() {
            1 => rows.start.to_string(),
            _ => format!("{}-{}", rows.start, rows.end - 1),
        };
        let from = match &self.content {
            Content::Sequence(..) => return None,
            Content::Own(from) => span(*from..from + self.rows.len()),
            Content::Zeros => "zero".to_owned(),
        };
        let entry = catalogue().find(|entry| entry.kind == CauseKind::CacheRow)?;
        let value = format!("pass{}:{}:{from}", self.pass, span(self.rows.clone()));
        Some(OperationChange::new(entry, ChangeValue::Word(value)))
    }

    fn told(&self) -> String {
        let count = self.rows.len();
        let (rows, noun) = (positions(self.rows.start, count), if count == 1 { "row" } else { "rows" });
        let holds = if count == 1 { "holds" } else { "hold" };
        let content = match &self.content {
            Content::Sequence(sequence, from) => {
                format!("the {noun} of sequence {sequence} at {}", positions(*from, count))
            }
            Content::Own(from) => format!("the {noun} of {}", positions(*from, count)),
            Content::Zeros => "zeros".to_owned(),
        };
        format!("the cache {noun} of {rows} {holds} {content}")
    }
}

/// A tap that replaces a block of the cache.
struct BlockTap<'b> {
    one: &'b BlockHypothesis,
    known: &'b KnownRows,
    layers: &'b BTreeSet<usize>,
}

impl Tap for BlockTap<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let is_here = CACHES.contains(&site.point) && site.pass == Some(self.one.pass);
        let is_changed = is_here && site.layer.is_some_and(|layer| self.layers.contains(&layer));
        if is_changed { self.changed(site, &value).unwrap_or(value) } else { value }
    }
}

impl BlockTap<'_> {
    fn changed(&self, site: Site, value: &Tensor) -> Option<Tensor> {
        let width = value.row_len();
        let mut data = value.data().to_vec();
        for (index, row) in self.one.rows.clone().enumerate() {
            let source = match &self.one.content {
                Content::Zeros => vec![0.0; width],
                Content::Own(from) => value.row(from + index).to_vec(),
                Content::Sequence(sequence, from) => {
                    self.known.cached(sequence, site.point, site.layer, from + index)?.to_vec()
                }
            };
            data.get_mut(row * width..(row + 1) * width)?.copy_from_slice(&source);
        }
        Some(Tensor::new(value.shape(), data))
    }
}

/// Returns true if a run with replaced rows matches all wrong rows and leaves the correct rows unchanged.
fn explains_all(
    search: &SearchContext,
    rows: &[SiteResult],
    coarse: &[&SiteResult],
    tap: &mut dyn Tap,
) -> Result<bool> {
    let context = search.context;
    let is_local = coarse.iter().any(|row| row.local.is_some());
    let go_on = if is_local { ContinuationValues::Held } else { ContinuationValues::Own };
    let everything = Selection::everything();
    let comparison = context.comparing_of(&everything, go_on);
    let checks = context.rerun(&RerunPart::All, context.held.passes().len(), &[], comparison, tap)?;
    let found: BTreeMap<_, SiteCheck> =
        checks.into_iter().map(|check| (check.site.flow_order(), check)).collect();
    let is_real = |row: &&SiteResult| !matches!(row.site.point, Point::Argmax | Point::Generated);
    let mut judged = rows.iter().filter(is_real).filter(|row| row.judged().is_some());
    Ok(judged.all(|row| is_right_with(row, found.get(&row.site.flow_order()))))
}

fn is_right_with(row: &SiteResult, check: Option<&SiteCheck>) -> bool {
    let Some(ArrayComparison::Measured(found)) = check.and_then(|check| check.found.as_ref()) else {
        return row.verdict != Verdict::Fail;
    };
    let is_near = row.floor.or(row.accumulated_floor).is_some_and(|floor| floor.is_near(&found.errors));
    let before = row.judged().map_or(f64::INFINITY, |found| found.errors.rel_l2);
    let stays = row.verdict != Verdict::Fail && found.errors.rel_l2 <= AS_WELL * before + 1e-6;
    is_near || stays
}
