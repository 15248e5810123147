//! Dumps that misstate their values, e.g. their layer numbers, storage types or tap names. The evidence: a
//! tap is wrong, but the operations computed from it are correct.

use std::collections::{BTreeSet, HashSet};

use crate::align::{AlignedDump, Selection};
use crate::change::CauseKind;
use crate::check::{ContinuationValues, RerunPart, UnexplainedOperation};
use crate::checkpoint::{Point, Site, TapAxis};
use crate::diagnose::causes::operation_search::SearchContext;
use crate::dump::{Dump, TensorRow};
use crate::engine::ModelSegment;
use crate::error::Result;
use crate::exact::Float;
use crate::measure::half_step;
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::verdict::{Cause, CauseContent, CauseSearch};
use crate::view::{View, orders};
use crate::weight::DType;

/// Maximum number of taps that are assumed to be misnamed together.
const MOST_TAPS: usize = 4;

/// Taps that copy another tap. A copy is correct under either reading.
const COPIES: [Point; 3] = [Point::KCache, Point::VCache, Point::LastLogits];

/// Finds a misstatement of the dump that explains why operations are wrong.
///
/// # Errors
/// The errors of a run of the model.
pub(super) fn of(search: &SearchContext, open: &[&UnexplainedOperation]) -> Result<Option<Cause>> {
    let looks = [layers_from_one, storage, taps];
    for look in looks.into_iter().filter(|_| !open.is_empty() && !search.deadline.is_over()) {
        if let Some(cause) = look(search, open)? {
            return Ok(Some(cause));
        }
    }
    Ok(None)
}

/// The sites that rounding explains if the dump is read differently, and the sites that rounding does not explain.
struct AlternativeReading {
    right: HashSet<Site>,
    wrong: HashSet<Site>,
}

impl AlternativeReading {
    fn of(search: &SearchContext, held: &AlignedDump) -> Result<Self> {
        let context = search.context.along(held);
        let (checks, _) = context.evaluate(&context.script(), ContinuationValues::Held, &mut ())?;
        let (wrong, right) = checks
            .iter()
            .filter(|check| check.explained.is_some())
            .map(|check| (check.site, check.unexplained.is_some()))
            .partition::<Vec<_>, _>(|(_, is_wrong)| *is_wrong);
        let sites = |all: Vec<(Site, bool)>| all.into_iter().map(|(site, _)| site).collect();
        Ok(Self { right: sites(right), wrong: sites(wrong) })
    }
}

/// Detects a dump that numbers its layers 1 to n instead of 0 to n-1.
fn layers_from_one(search: &SearchContext, open: &[&UnexplainedOperation]) -> Result<Option<Cause>> {
    let dump = search.context.held.dump;
    let layers: BTreeSet<usize> = dump.sites().filter_map(|site| site.layer).collect();
    let n_layers = search.operations.n_layers();
    if layers.first() != Some(&1) || layers.last() != Some(&n_layers) {
        return Ok(None);
    }
    let counted = |row: &TensorRow| Some(row.clone().of_layer(row.layer.map(|layer| layer - 1)));
    let dump = dump.read_as(counted)?;
    let rest = AlternativeReading::of(search, &AlignedDump::new(&dump)?)?.wrong;
    let before = format!("dump_layers: the dump numbers its layers from 1 to {n_layers}; numbered from 0, ");
    let what = [before, "; write layer numbers that start at 0".to_owned()];
    Ok(is_better(&rest, open).then(|| cause(CauseKind::DumpLayers, open, what, [rest.len(), open.len()])))
}

/// Detects values that fit a smaller type than the type that the run computes in.
fn storage(search: &SearchContext, open: &[&UnexplainedOperation]) -> Result<Option<Cause>> {
    if search.context.numerics.activation_type() != DType::F32 {
        return Ok(None);
    }
    // Embeddings of a file in a smaller type are that short, too.
    if open.iter().all(|one| one.site.point == Point::Embed) {
        return Ok(None);
    }
    // Values that fit bf16 usually fit f16, too, so bf16 is tried first.
    let mut counted = None;
    for dtype in [DType::BF16, DType::F16] {
        let Some(float) = Float::of(dtype) else { continue };
        let is_short =
            |one: &&UnexplainedOperation| one.theirs.iter().all(|&value| float.round(value) == value);
        if !open.iter().all(is_short) {
            continue;
        }
        let (right, wrong) = match counted {
            Some(counts) => counts,
            None => *counted.insert(readers(search, open)?),
        };
        let rounding = if right > 0 { rounds(search, open, dtype) } else { None };
        // If most later operations continue from the values as they are stored, the engine computed with them, and the
        // dump did not round them.
        if rounding.is_some() || right > wrong {
            return Ok(rounding);
        }
        let held = AlignedDump::new(search.context.held.dump)?.presumed(dtype);
        let rest = AlternativeReading::of(search, &held)?.wrong;
        if is_better(&rest, open) {
            let before = format!(
                "dump_storage: the values were rounded to {dtype} when they were stored, but the dump states \
                 f32; read as {dtype}, "
            );
            let after = format!(
                "; store them in f32, or if the model runs in {dtype}, set settings.dtype to \"{dtype}\""
            );
            let what = [before, after];
            return Ok(Some(cause(CauseKind::DumpStorage, open, what, [rest.len(), open.len()])));
        }
    }
    Ok(None)
}

/// Slack factor on half a rounding step, because our own results are rounded too.
const SLACK: f64 = 1.1;

/// Counts the later operations that are explained by the stored values, and the later operations that are not.
fn readers(search: &SearchContext, open: &[&UnexplainedOperation]) -> Result<(usize, usize)> {
    let tells =
        |site: &Site| !COPIES.contains(&site.point) && open.iter().any(|one| follows(*site, one.site));
    let AlternativeReading { right, wrong } = AlternativeReading::of(search, search.context.held)?;
    let count = |sites: HashSet<Site>| sites.iter().filter(|site| tells(site)).count();
    Ok((count(right), count(wrong)))
}

/// Detects an engine that rounds its values to a smaller type, and states another.
fn rounds(search: &SearchContext, open: &[&UnexplainedOperation], dtype: DType) -> Option<Cause> {
    // Each value must be our result rounded to nearest. Zeros alone would not prove rounding, because they
    // fit every type.
    let is_rounded = |(own, theirs): (&f32, &f64)| {
        (f64::from(*own) - theirs).abs() <= SLACK * half_step(Some(dtype), *theirs, 1.0)
    };
    let are_rounded = |one: &&UnexplainedOperation| one.traced.data().iter().zip(&one.theirs).all(is_rounded);
    open.iter().all(are_rounded).then(|| {
        let before = format!(
            "arithmetic: the {}'s engine rounds these values to {dtype} and computes with the result, but \
                the dump states f32",
            search.context.role.name()
        );
        let after = format!(
            "; compute them in f32, or set \"computed\": \"{dtype}\" on the tap, or \
            settings.dtype"
        );
        cause(CauseKind::Arithmetic, open, [before, after], [0, 0])
    })
}

/// Detects taps that hold the values of a different tap. If these taps are ignored, later operations are
/// correct.
fn taps(search: &SearchContext, open: &[&UnexplainedOperation]) -> Result<Option<Cause>> {
    let (dump, first) = (search.context.held.dump, open[0]);
    if !open.iter().any(|one| follows(one.site, first.site)) {
        return Ok(None);
    }
    let mut left_out: Vec<Point> = vec![first.site.point];
    while left_out.len() <= MOST_TAPS {
        let without =
            dump.read_as(|row| (!left_out.contains(&row.tap.parse().ok()?)).then(|| row.clone()))?;
        let AlternativeReading { right, wrong } =
            AlternativeReading::of(search, &AlignedDump::new(&without)?)?;
        // Every operation that reads the tap must be right without the tap, and close enough to be evaluated.
        let is_run = |site: &Site| search.context.unit.contains(*site, search.operations.n_layers());
        let reads_one = |site: &Site| is_run(site) && left_out.iter().any(|&point| reads(site.point, point));
        let readers: Vec<Site> = without.sites().filter(reads_one).collect();
        let is_new = |site: &Site| !open.iter().any(|one| one.site == *site);
        let are_right = !readers.is_empty() && readers.iter().all(|site| right.contains(site));
        // The engine itself computes with the tap's values if an operation behind its readers is wrong without it.
        let points = without.points();
        let is_behind = |site: &Site| left_out.iter().any(|&point| reads_through(site.point, point, &points));
        if are_right && !wrong.iter().any(is_behind) && !wrong.iter().any(is_new) {
            return Ok(Some(misnamed(search, open, &left_out, &without)?));
        }
        // The next wrong tap may be misnamed, too.
        let next = open.iter().map(|one| one.site).find(|site| wrong.contains(site));
        match next.filter(|next| !left_out.contains(&next.point)) {
            Some(next) => left_out.push(next.point),
            None => break,
        }
    }
    Ok(None)
}

/// Returns true if one tap is computed from the other.
fn reads(point: Point, from: Point) -> bool {
    point.inputs().iter().any(|inputs| inputs.contains(&from))
}

/// Returns true if one tap is computed from the other, possibly through copies and unrecorded taps.
fn reads_through(point: Point, from: Point, recorded: &BTreeSet<Point>) -> bool {
    let passes_on = |between: &Point| COPIES.contains(between) || !recorded.contains(between);
    point.inputs().iter().flat_map(|inputs| inputs.iter()).any(|&input| {
        input == from || passes_on(&input) && input < point && reads_through(input, from, recorded)
    })
}

/// Returns true if a site is computed directly from the other site in the same pass.
fn follows(site: Site, from: Site) -> bool {
    let is_next = match (from.point, site.layer, from.layer) {
        (Point::BlockOut, Some(layer), Some(before)) => layer == before + 1,
        (Point::BlockOut, None, _) => true,
        _ => site.layer == from.layer,
    };
    reads(site.point, from.point) && is_next && site.pass == from.pass
}

/// Describes the values of a misnamed tap: right values with swapped axes, the values of another tap, or
/// unknown.
fn misnamed(
    search: &SearchContext,
    open: &[&UnexplainedOperation],
    taps: &[Point],
    without: &Dump,
) -> Result<Cause> {
    let first = open[0];
    let names: Vec<&str> = taps.iter().map(|point| point.name()).collect();
    let names = names.join(", ");
    let right = "later operations are correct without";
    if let Some(order) = exchanged_axes(first) {
        let own: Vec<&str> = first.site.point.axes().iter().map(|axis| axis.name()).collect();
        let what = format!(
            "dump_axes: {names} have the axes [{}], but the dump states [{}]; {right} them; transpose them, \
                or correct \"axes\"",
            order.join(", "),
            own.join(", ")
        );
        return Ok(cause(CauseKind::DumpAxes, open, [what, String::new()], [0, 0]));
    }
    let searched = search.stage(first).search(open);
    let told = match (same_as(search, first, without)?, searched.fits.first()) {
        (Some(other), _) => format!("has the values of {other}"),
        (None, Some(changes)) => {
            let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
            format!(
                "has the values that {} would give: it was recorded one operation too early or too late",
                changes.join(" and ")
            )
        }
        (None, None) => "has values that do not match its name".to_owned(),
    };
    let what = format!("dump_tap: {names} {told}; {right} it");
    Ok(cause(CauseKind::DumpTap, open, [what, String::new()], [0, 0]))
}

/// Returns the order of axes in which our engine's values equal the dump's, if there is one.
fn exchanged_axes(one: &UnexplainedOperation) -> Option<Vec<&'static str>> {
    let (shape, axes) = (one.traced.shape(), one.site.point.axes());
    if shape.len() != axes.len() || shape.len() < 2 {
        return None;
    }
    orders(shape.len()).into_iter().skip(1).find_map(|order| {
        let moved = Tensor::from(&View::from(&one.traced).permuted(&order));
        let is_same = crate::change::distance(&moved, &one.theirs) < 1e-2;
        is_same.then(|| order.iter().map(|&axis| TapAxis::name(axes[axis])).collect())
    })
}

/// Returns the tap of the same layer whose values the misnamed tap contains.
fn same_as(search: &SearchContext, one: &UnexplainedOperation, without: &Dump) -> Result<Option<Site>> {
    let held = AlignedDump::new(without)?;
    let context = search.context.along(&held);
    let of_layer =
        |layer| RerunPart::Part(ModelSegment { embed: false, layers: layer..layer + 1, head: false });
    let part = one.site.layer.map_or(RerunPart::All, of_layer);
    let passes = one.site.pass.map_or(1, |pass| pass + 1);
    let mut looking = SiteSearch { one, found: None };
    // This run measures nothing. It continues with the dump's values.
    let nothing = Selection { checkpoints: Vec::new(), ..Selection::everything() };
    let comparison = context.comparing_of(&nothing, ContinuationValues::Held);
    context.rerun(&part, passes, &[], comparison, &mut looking)?;
    Ok(looking.found)
}

/// A tap that searches the run for a site with the same values as `one`.
struct SiteSearch<'l> {
    one: &'l UnexplainedOperation,
    found: Option<Site>,
}

impl Tap for SiteSearch<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let Self { one, found } = self;
        let may_be = site.pass == one.site.pass && site != one.site && value.data().len() == one.theirs.len();
        if found.is_none() && may_be && crate::change::distance(&value, &one.theirs) < 1e-2 {
            *found = Some(site);
        }
        value
    }
}

/// Returns true if another reading of the dump explains at least three quarters of the open operations,
/// including the first.
fn is_better(rest: &HashSet<Site>, open: &[&UnexplainedOperation]) -> bool {
    rest.len() * 4 <= open.len() && !rest.contains(&open[0].site)
}

fn cause(kind: CauseKind, open: &[&UnexplainedOperation], what: [String; 2], wrong: [usize; 2]) -> Cause {
    let sites = open.iter().map(|one| one.site).collect();
    Cause::new(CauseSearch::Stages, sites, CauseContent::Misread { kind, what, wrong })
}
