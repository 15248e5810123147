//! Entry points of a comparison: a model against a dump, or two dumps. Judges the results and makes one
//! verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use sha2::{Digest, Sha256};

use crate::align::{AlignedDump, Selection};
use crate::check::{
    DumpPair, Gate, LayerInputs, Mode, Preferences, RankMargins, Rules, RunContext, RunResults, SegmentSpan,
    SiteCheck, StartingValueFinder, continues, preferences, rank_margins,
};
use crate::checkpoint::{Checkpoint, Point, Site};
use crate::diagnose::causes;
use crate::diagnose::integers::integers_of;
use crate::diagnose::longrope::check_by_rule;
use crate::dump::{Dump, ModelInfo};
use crate::engine;
use crate::error::{Error, Result};
use crate::measure::sketch::PROJECTIONS;
use crate::model::Model;
use crate::numerics::{self, Numerics};
use crate::plan::{self, Crossing, Unit, input_of};
use crate::tap::Tap;
use crate::verdict::{
    Basis, ComparisonSubject, Evidence, LogitSource, OUR_ENGINE, Outcome, SideTaps, SiteResult, TieEvidence,
    UnitRows, conclude, is_half_precision,
};
use crate::weight::DType;

/// Runs `model` on the dump's own input and compares every selected value.
///
/// `onlooker` sees each value before it is compared and may change it. It can show progress or inject a
/// fault; `&mut ()` does nothing.
///
/// # Errors
/// If the model cannot read the dump's tokens, the dump is damaged or has another architecture, or a
/// requested layer, pass or position does not exist.
pub fn cross_check(
    name: &str,
    model: &dyn Model,
    numerics: &dyn Numerics,
    dump: &Dump,
    rules: Rules,
    onlooker: &mut dyn Tap,
) -> Result<Outcome> {
    cross_check_units(name, model, numerics, dump, rules, UnitWork::default(), onlooker)
}

/// Callback for the outcome so far.
pub(crate) type OutcomeCallback<'w> = dyn FnMut(&Outcome) -> Result<()> + 'w;

/// The requested units of a comparison, and the results so far.
#[derive(Default)]
pub struct UnitWork<'w> {
    /// Requested units by their index in the plan. Default: all units.
    pub wanted: Option<Range<usize>>,
    /// Results of an earlier run, by unit index. These units are not computed again.
    pub done: Vec<(usize, Evidence)>,
    /// Callback after each unit except the last.
    pub finished: Option<&'w mut OutcomeCallback<'w>>,
}

/// Compares the requested units of the plan. If accumulated errors are measured, the whole model is one unit.
///
/// # Errors
/// The errors of [`cross_check`], and those of [`UnitWork::finished`].
pub fn cross_check_units(
    name: &str,
    model: &dyn Model,
    numerics: &dyn Numerics,
    dump: &Dump,
    rules: Rules,
    work: UnitWork,
    onlooker: &mut dyn Tap,
) -> Result<Outcome> {
    let (is_whole, mut work) = (work.wanted.is_none(), Some(work));
    check_by_rule(model, dump, rules, is_whole, &mut |model, rules| {
        let work = work.take().unwrap_or_default();
        check_units(name, model, numerics, dump, rules, work, &mut *onlooker)
    })
}

fn check_units(
    name: &str,
    model: &dyn Model,
    numerics: &dyn Numerics,
    dump: &Dump,
    rules: Rules,
    work: UnitWork,
    onlooker: &mut dyn Tap,
) -> Result<Outcome> {
    let held = AlignedDump::new(dump)?;
    check_architecture(model, dump)?;
    let (read, n_layers) = (held.read_tokens().len(), model.dimensions().n_layers);
    rules.selection.check(n_layers, held.passes().len(), read)?;
    let context = RunContext::new(model, numerics, &held, rules)?;
    let units = match rules.mode {
        Mode::Both | Mode::Accumulated => vec![Unit::Whole],
        Mode::Local | Mode::Layers => plan::units(model, dump, numerics.activation_type(), rules.selection),
    };
    let UnitWork { wanted, mut done, mut finished } = work;
    let is_part = wanted.is_some();
    let wanted = wanted.unwrap_or(0..units.len());
    let subject = subject(name, &context, rules, dump);
    let basis = Basis {
        is_whole: wanted == (0..units.len()),
        wanted: wanted.clone().map(|number| (number, units[number].clone())).collect(),
        ..basis(&context, rules)
    };
    done.retain(|(number, _)| wanted.contains(number));
    let mut left: Vec<usize> =
        wanted.filter(|number| !done.iter().any(|(there, _)| there == number)).collect();
    while !left.is_empty() {
        let number = left.remove(0);
        let (mut found, _) = examine(&context, &units[number], rules, &mut *onlooker)?;
        // The hashes at the unit's edges let a later merge check that neighbouring units come from one dump.
        if is_part {
            found.edges = edges(&held, &units[number])?;
        }
        done.push((number, found));
        if let Some(finished) = finished.as_mut().filter(|_| !left.is_empty()) {
            finished(&conclude(subject.clone(), basis.clone(), done.clone()))?;
        }
    }
    if basis.is_whole {
        context.check_suppositions(done.iter().map(|(_, found)| found.made).sum())?;
    }
    Ok(conclude(subject, basis, done))
}

pub(super) fn subject(name: &str, context: &RunContext, rules: Rules, dump: &Dump) -> ComparisonSubject {
    ComparisonSubject {
        name: name.to_owned(),
        producer: dump.manifest.producer.clone(),
        numerics: context.numerics.name().to_owned(),
        role: rules.role,
        is_case: false,
        gate: rules.gate,
        mode: rules.mode,
    }
}

/// Returns the basis of a verdict over the whole model, without results.
pub(super) fn basis(context: &RunContext, rules: Rules) -> Basis {
    let layers = 0..context.model.dimensions().n_layers;
    Basis {
        selection: rules.selection.clone(),
        choices_are_read: context.held.tells_by_reading,
        slides: layers.map(|layer| context.model.window(layer).is_some()).collect(),
        ..Basis::default()
    }
}

/// Returns the results of a unit and the sites that its runs visited.
pub(super) fn examine(
    context: &RunContext,
    unit: &Unit,
    rules: Rules,
    onlooker: &mut dyn Tap,
) -> Result<(Evidence, Vec<Site>)> {
    let (context, held) = (context.of_unit(unit), context.held);
    held.forget_pairing();
    let (architecture, computed) = (context.model.architecture(), context.numerics.activation_type());
    let mut judge = UnitRows::new(rules, architecture, computed);
    let runs = run_and_judge(&mut judge, &context, rules, onlooker)?;
    if !runs.visited.is_empty() {
        let visited = runs.visited.iter().map(|site| site.point).collect();
        judge.found.sides = vec![SideTaps { name: OUR_ENGINE.to_owned(), taps: visited }, taps_of(held)];
    }
    let visited = runs.visited.clone();
    Ok((evidence(judge, &context, runs)?, visited))
}

fn taps_of(held: &AlignedDump) -> SideTaps {
    SideTaps { name: held.dump.path.display().to_string(), taps: held.points() }
}

/// Returns hashes of the dump's values at the start and end of a unit. They detect units from different
/// recordings of a dump, which its manifest does not show.
fn edges(held: &AlignedDump, unit: &Unit) -> Result<[Option<String>; 2]> {
    let Some(part) = unit.part() else { return Ok([None, None]) };
    let begins = if part.embed { None } else { edge(held, part.layers.start)? };
    let ends = if part.head { None } else { edge(held, part.layers.end)? };
    Ok([begins, ends])
}

/// Returns the hash of a layer's input in all passes. `None` if the dump lacks the input in a pass.
pub(super) fn edge(held: &AlignedDump, layer: usize) -> Result<Option<String>> {
    let mut hash = Sha256::new();
    for pass in 0..held.passes().len() {
        let Some(values) = held.values(input_of(layer, pass), None)? else { return Ok(None) };
        values.to_vec().iter().for_each(|value| hash.update(value.to_le_bytes()));
    }
    Ok(Some(hex::encode(hash.finalize())))
}

/// Checks that the dump has the model's architecture and vocabulary. Otherwise equal tap names mean different
/// operations, and token ids mean different tokens.
pub(super) fn check_architecture(model: &dyn Model, dump: &Dump) -> Result<()> {
    let (dumped, run) = (dump.manifest.architecture(), model.architecture());
    let size = model.dimensions().vocab_size;
    let mut read = dump.manifest.passes.iter().flat_map(|pass| &pass.tokens);
    let problem = match read.find(|&&id| id as usize >= size) {
        _ if dumped != run && dumped != ModelInfo::UNKNOWN => {
            format!("the dump has architecture '{dumped}', the model '{run}'")
        }
        Some(id) => {
            format!("the dump has read token {id}, which is outside the model's vocabulary of {size}")
        }
        None => return Ok(()),
    };
    Err(Error::dump(&dump.path, format!("{problem}; check that the dump was made from this model")))
}

/// Judges the results of a unit's runs.
fn evidence(judge: UnitRows, context: &RunContext, runs: RunResults) -> Result<Evidence> {
    let integers = integers_of(context, &runs, &judge.rows);
    let RunResults { margins, read_on, rank_margins, choices, unexplained, preferences, .. } = runs;
    let sides = LogitSource::Engine { held: context.held, role: context.role, margins, read_on };
    let parties = TieEvidence { sides, context: Some(context), choices, rank_margins, preferences };
    // The search for causes runs the whole model. It is skipped if some weights are not on this machine,
    // because it would download all of them.
    let is_here = !context.model.matrices().iter().any(|(_, matrix)| matrix.is_elsewhere());
    let (are_sought, budget) = (judge.rules.causes && is_here, judge.rules.budget);
    let found = judge.examine(&context.unit, parties, |rows| match are_sought {
        true => causes::of_engine(context, rows, &unexplained, budget),
        false => Ok(Vec::new()),
    })?;
    Ok(Evidence { integers, ..found })
}

/// Makes the outcome of a comparison that runs as one unit.
pub(super) fn finish(
    judge: UnitRows,
    subject: ComparisonSubject,
    context: &RunContext,
    rules: Rules,
    runs: RunResults,
) -> Result<Outcome> {
    Ok(conclude(subject, basis(context, rules), vec![(0, evidence(judge, context, runs)?)]))
}

/// Runs the model and passes the results at each site to `judge`. Returns the remaining results, which are
/// needed to judge choices.
pub(super) fn run_and_judge(
    judge: &mut UnitRows,
    context: &RunContext,
    rules: Rules,
    onlooker: &mut dyn Tap,
) -> Result<RunResults> {
    let held = context.held;
    if let Some(what) = decoded(context.model, context.numerics) {
        judge.note(what);
    }
    note_unread_prompt(judge, held);
    judge_prompt(judge, context);
    let mut runs = RunResults::of(context, rules.mode, onlooker)?;
    if context.unit == Unit::Whole {
        context.check_suppositions(context.made())?;
    }
    for supposed in rules.suppositions {
        judge.note(format!("our engine computes with {}, as --suppose asks", supposed.change[0]));
    }
    let n_layers = context.model.dimensions().n_layers;
    let visited = [entered(context), runs.visited.clone()].concat();
    let crossing = Crossing::of(context.model, &held.dump.manifest);
    let segments = StartingValueFinder::new(context.model, &visited, held, continues(rules.mode));
    let segments = segments.anew_at(crossing);
    let inputs = LayerInputs::new(held.dump, n_layers);
    let mut expected = expected_sites(&runs.visited, held, rules.selection);
    expected.retain(|(site, _)| context.unit.contains(*site, n_layers));
    leave_out_covered(judge, &mut expected, &segments, &runs, held);
    for (site, positions) in expected {
        judge.expect(site, positions.clone());
        let missing = inputs.missing(site).filter(|_| rules.mode == Mode::Layers);
        if let Some(input) = missing {
            let why = format!("{site}: starts from {input}, which is not recorded in the dump");
            judge.skip(site, positions, why);
            continue;
        }
        let segment = segments.of(site);
        let (mut accumulated, mut local) = (runs.accumulated.remove(&site), runs.local.remove(&site));
        let explained = local.as_mut().and_then(|check| check.explained.take());
        let uniform = [&local, &accumulated].into_iter().flatten().find_map(|check| check.uniform);
        let found = |check: &mut Option<SiteCheck>| check.as_mut().and_then(|check| check.found.take());
        let (accumulated, local) = (found(&mut accumulated), found(&mut local));
        // If the local run also starts at the tokens, its error counts as accumulated error. An 8-bit cache
        // that the dump's engine continues with is an exception: no other engine computes exactly these
        // values from the tokens.
        let since_the_tokens = segment.from_tokens
            && segment.span == SegmentSpan::Run
            && rules.mode != Mode::Layers
            && !held.goes_on_with_eight_bits();
        let (accumulated, local) = match since_the_tokens {
            true => (accumulated.or(local), None),
            false => (accumulated, local),
        };
        judge.lies_behind(site, segment.choices);
        let (since, recorded) = (segment.since, held.recorded(site));
        let row = SiteResult { since, explained, uniform, recorded, ..judge.unjudged(site, positions) };
        judge.add(row, accumulated, local, segment.span);
    }
    held.wrong_pairing().into_iter().for_each(|what| judge.note(what));
    note_sketches(judge, held);
    Ok(runs)
}

/// Removes sites from `expected` that the dump records in no pass and that a later tap judges instead. Adds a
/// note for each.
fn leave_out_covered(
    judge: &mut UnitRows,
    expected: &mut Vec<(Site, Range<usize>)>,
    segments: &StartingValueFinder,
    runs: &RunResults,
    held: &AlignedDump,
) {
    let sites: Vec<Site> = expected.iter().map(|(site, _)| *site).collect();
    let is_compared = |site| runs.local.get(&site).is_some_and(|check| check.found.is_some());
    let is_judged = |site: Site| sites.contains(&site) && is_compared(site);
    let mut covered = segments.covered(&sites, is_judged);
    // A tap with some recorded rows or a sketch is compared, so it stays expected.
    covered.retain(|site, _| held.dump.row(*site).is_none());
    expected.retain(|(site, _)| !covered.contains_key(site));
    let mut judges: BTreeMap<(Option<usize>, Point), BTreeSet<Point>> = BTreeMap::new();
    for (site, points) in covered {
        judges.entry((site.layer, site.point)).or_default().extend(points);
    }
    for ((layer, point), points) in judges {
        let names: Vec<&str> = points.into_iter().map(Point::name).collect();
        let site = Site { point, layer, pass: None };
        judge.note(format!("not recorded: {site}; {} covers its operation", names.join(", ")));
    }
}

/// Returns the sites of a unit's input values.
fn entered(context: &RunContext) -> Vec<Site> {
    let part = context.unit.part().filter(|part| !part.embed);
    let passes = 0..context.held.passes().len();
    part.map_or(Vec::new(), |part| passes.map(|pass| input_of(part.layers.start, pass)).collect())
}

/// Adds a note if the run read only a part of the prompt.
fn note_unread_prompt(judge: &mut UnitRows, held: &AlignedDump) {
    let (read, prompt) = (held.read_tokens().len(), held.dump.manifest.input.tokens.len());
    if read < prompt {
        let path = held.dump.path.display();
        judge.lack(format!("{path}: the passes read only {read} of the {prompt} prompt tokens"));
    }
}

/// Judges the tokens of the prompt against those of the requested text.
fn judge_prompt(judge: &mut UnitRows, context: &RunContext) {
    let tokens = Site { point: Point::Tokens, layer: None, pass: None };
    let begins = context.unit.part().is_none_or(|part| part.embed);
    let dump = context.held.dump;
    if let Some(expected) = dump.expected_tokens.as_ref().filter(|_| begins) {
        let read = &dump.manifest.input.tokens;
        judge.expect(tokens, 0..0);
        judge.add_tokens(tokens, read, expected, causes::of_prompt(tokens, read, expected));
    }
}

/// Adds a note if values are recorded as sketches, because their errors are not in the values' own units.
fn note_sketches(judge: &mut UnitRows, held: &AlignedDump) {
    let sketched = held.sites().filter(|&site| held.dump.sketches(site)).count();
    if sketched > 0 {
        judge.note(format!(
            "{sketched} taps of {} are sketches: if bits differ, errors are RMS values per token, estimated \
                from {PROJECTIONS} projections",
            held.dump.path.display()
        ));
    }
}

/// Returns a note if weights are decoded to another type before they are multiplied.
fn decoded(model: &dyn Model, numerics: &dyn Numerics) -> Option<String> {
    let types: BTreeSet<_> = engine::decoded(model, numerics).into_iter().map(|(_, dtype)| dtype).collect();
    let first = *types.first()?;
    let native = numerics::ALL.iter().find(|numerics| numerics.native_types().contains(&first))?;
    let names: Vec<_> = types.into_iter().map(|dtype| dtype.name()).collect();
    Some(format!(
        "weights of type {} were decoded to floats, which {} does not do",
        names.join(", "),
        native.name()
    ))
}

/// Compares two dumps. `candidate` is judged against `reference` by the tolerance table. Unless the gate is
/// [`Gate::Tolerance`], errors above the tolerance that rounding to 16 bits may explain are inconclusive.
///
/// # Errors
/// If the prompts or architectures differ, a dump is damaged, or a requested layer, pass or position does not
/// exist.
pub fn cross_check_dumps(name: &str, candidate: &Dump, reference: &Dump, rules: Rules) -> Result<Outcome> {
    let (one, other) = (AlignedDump::new(candidate)?, AlignedDump::new(reference)?);
    if candidate.manifest.architecture() != reference.manifest.architecture() {
        let (dumped, known) = (candidate.manifest.architecture(), reference.manifest.architecture());
        let problem =
            format!("the dump has architecture '{dumped}', but {} has '{known}'", reference.path.display());
        return Err(Error::dump(&candidate.path, problem));
    }
    let computed = computed_in(rules.precision);
    let pair = DumpPair::new(&one, &other, computed)?;
    let layers = [&one, &other].into_iter().flat_map(AlignedDump::sites).filter_map(|site| site.layer).max();
    rules.selection.check(layers.map_or(0, |last| last + 1), one.passes().len(), pair.common)?;
    let is_table_asked = rules.gate == Gate::Tolerance;
    let rules = Rules { gate: Gate::Tolerance, ..rules };
    let mut judge = UnitRows::new(rules, reference.manifest.architecture(), computed);
    judge.may_be_half = !is_table_asked && (is_half_precision(&one)? || is_half_precision(&other)?);
    [&one, &other].into_iter().for_each(|held| note_unread_prompt(&mut judge, held));
    let checks = pair.compare(rules.selection)?;
    let rank_margins = RankMargins { accumulated: rank_margins(&checks), ..RankMargins::default() };
    let preferences = Preferences { accumulated: preferences(&checks), ..Preferences::default() };
    for SiteCheck { site, positions, found, missing, uniform, recorded, .. } in checks {
        judge.expect(site, positions.clone());
        if let Some(what) = missing {
            judge.skip(site, positions, what);
            continue;
        }
        let row = SiteResult { uniform, recorded, ..judge.unjudged(site, positions) };
        judge.add(row, found, None, SegmentSpan::Run);
        if [&one, &other].iter().any(|held| held.dump.sketches(site)) {
            judge.doubt_sketch();
        }
    }
    pair.note().into_iter().for_each(|what| judge.note(what));
    let generates = rules.selection.checkpoints.contains(&Checkpoint::Generation);
    let both_tell = [&one, &other].iter().all(|held| held.points().contains(&Point::Generated));
    match pair.untold().filter(|_| generates && both_tell) {
        Some(what) if rules.selection.explicit => judge.lack(what),
        what => what.into_iter().for_each(|what| judge.note(what)),
    }
    [&one, &other].into_iter().filter_map(AlignedDump::wrong_pairing).for_each(|what| judge.note(what));
    [&one, &other].into_iter().for_each(|held| note_sketches(&mut judge, held));
    judge.found.sides = [&one, &other].map(taps_of).into();
    let sides = LogitSource::Dumps { candidate: &one, reference: &other };
    let parties = TieEvidence { sides, context: None, choices: Vec::new(), rank_margins, preferences };
    let choices_are_read = parties.sides.tell_by_reading();
    let producer = &candidate.manifest.producer;
    let subject = ComparisonSubject {
        name: name.to_owned(),
        producer: reference.manifest.producer.clone(),
        numerics: format!("{} {}", producer.name, producer.version),
        role: rules.role,
        is_case: false,
        gate: rules.gate,
        mode: rules.mode,
    };
    let causes = |rows: &[SiteResult]| match rules.causes {
        true => causes::of_dumps(candidate, reference, rows),
        false => Ok(Vec::new()),
    };
    let found = judge.examine(&Unit::Whole, parties, causes)?;
    let basis = Basis { selection: rules.selection.clone(), choices_are_read, ..Basis::default() };
    Ok(conclude(subject, basis, vec![(0, found)]))
}

/// Returns the type to which operations round in a run with this precision name.
fn computed_in(precision: &str) -> DType {
    match precision {
        "torch-bf16" => DType::BF16,
        "torch-f16" => DType::F16,
        _ => DType::F32,
    }
}

/// Returns the sites to compare: every selected site of the run whose tap the dump records anywhere, and
/// every selected site of the dump.
fn expected_sites(visited: &[Site], held: &AlignedDump, selection: &Selection) -> Vec<(Site, Range<usize>)> {
    // Choices that the dump gives only by its tokens are not expected in every pass.
    let points = held.dump.points();
    let own =
        visited.iter().copied().filter(|site| points.contains(&site.point) && !held.has_last_row_of(*site));
    let mut sites: Vec<Site> = own.chain(held.sites()).collect();
    sites.sort_by_key(|site| site.flow_order());
    sites.dedup();
    let with_positions = sites.into_iter().map(|site| (site, held.positions(site)));
    with_positions.filter(|(site, positions)| selection.takes(*site, positions)).collect()
}
