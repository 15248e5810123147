//! Compares the recorded outputs of modules with the worker's exact values, and makes the verdict.

use std::collections::HashSet;
use std::iter;
use std::path::Path;

use crate::align::Selection;
use crate::change::CauseKind;
use crate::check::{ArrayComparison, Gate, Mode, Role, RoundingEvaluation, Tolerances};
use crate::checkpoint::Site;
use crate::dump::{ArrayValues, Dump, TensorRow};
use crate::error::{Error, Result};
use crate::evaluator::connection::{AnswerMessage, EvaluatorConnection};
use crate::evaluator::message::{
    EvaluatorAnswer, EvaluatorRequest, ExactOutput, FoundCause, OutputKind, PROTOCOL, ValueName, WorkerFacts,
};
use crate::evaluator::module_coverage;
use crate::exact::{EngineErrors, ExactValue, Float, K, LAMBDA, errors_of, rms_in_sigmas};
use crate::measure::{ColumnSelection, ValuePrecision, coarser, measure};
use crate::verdict::{
    Basis, Cause, CauseSearch, ComparisonSubject, Evidence, Finding, MissingSite, Outcome, SideTaps,
    SiteResult, Verdict, conclude,
};
use crate::view::View;
use crate::weight::DType;

/// Number of runs with rounding noise. Four are enough, because the spread is taken over all values of a row.
const RUNS: u32 = 4;

/// The rules of a check by modules.
#[derive(Clone, Copy, Debug)]
pub struct ModuleRules<'r> {
    /// The values to compare.
    pub selection: &'r Selection,
    /// Tolerances, shown next to the result.
    pub tolerances: &'r Tolerances,
    /// Time limit of the search for a cause in seconds; `None` if no cause is searched for.
    pub seconds: Option<u64>,
}

/// Judges a dump of module outputs. Reports the worker's progress to `follow`.
///
/// # Errors
/// If the worker cannot evaluate the model or the dump, or ends early.
pub fn check_modules(
    name: &str,
    (dump, at): (&Dump, &Path),
    model: &Path,
    connection: &mut EvaluatorConnection,
    rules: ModuleRules,
    follow: &mut dyn FnMut(&str),
) -> Result<Outcome> {
    let mut check = ModuleCheck::new(dump, rules)?;
    connection.ask(&EvaluatorRequest::evaluate(model, at, RUNS))?;
    while let Some(message) = connection.take()? {
        check.take(message, follow)?;
    }
    let wrong = check.first_wrong();
    let (causes, facts) = match rules.seconds.filter(|_| !wrong.is_empty()) {
        None => Default::default(),
        Some(seconds) => {
            follow("searching for the cause");
            // The values are wrong whether or not the search for the cause succeeds.
            causes(connection, dump, wrong, seconds).unwrap_or_else(|error| {
                (Vec::new(), Some(format!("the search for the cause failed: {error}")))
            })
        }
    };
    check.outcome(name, causes, facts)
}

/// Returns the type that the candidate computes in. llama.cpp states none: it computes in f32 if all weights and the KV
/// cache are f32.
fn computed_type(dump: &Dump) -> Result<DType> {
    let producer = &dump.manifest.producer;
    let is_llama_cpp = producer.name == "llama.cpp" && producer.dtype().is_none();
    let plain = ["weights", "kv_cache"].iter().all(|key| producer.setting(key) == Some("f32"));
    if is_llama_cpp && plain {
        return Ok(DType::F32);
    }
    producer.dtype().filter(|dtype| Float::of(*dtype).is_some()).ok_or_else(|| {
        let stated = |key| producer.setting(key).unwrap_or("nothing");
        let problem = if is_llama_cpp {
            format!(
                "llama.cpp ran with weights {} and kv_cache {}, and torch judges f32 only: convert the model to F32 \
                 GGUF, and record it with dump_llama_cpp --kv f32",
                stated("weights"),
                stated("kv_cache")
            )
        } else {
            format!(
                "producer.settings.dtype is {}, expected f32, bf16 or f16: state the type that the engine computes in",
                stated("dtype")
            )
        };
        Error::dump(&dump.path, problem)
    })
}

/// Collects the results of the modules while the worker sends them.
struct ModuleCheck<'d> {
    dump: &'d Dump,
    rules: ModuleRules<'d>,
    /// Type that the candidate computes in.
    computed: DType,
    facts: WorkerFacts,
    rows: Vec<SiteResult>,
    missing: Vec<MissingSite>,
    seen: HashSet<Site>,
}

impl<'d> ModuleCheck<'d> {
    fn new(dump: &'d Dump, rules: ModuleRules<'d>) -> Result<Self> {
        let computed = computed_type(dump)?;
        let (facts, rows, missing, seen) = Default::default();
        Ok(Self { dump, rules, computed, facts, rows, missing, seen })
    }

    /// Takes an answer of the worker.
    fn take(&mut self, message: AnswerMessage, follow: &mut dyn FnMut(&str)) -> Result<()> {
        match &message.answer {
            EvaluatorAnswer::Hello(facts) if facts.protocol != PROTOCOL => Err(Error::Usage(format!(
                "the evaluator speaks version {} of the protocol, expected {PROTOCOL}; install the Python package of \
                 this version of xcheck",
                facts.protocol
            ))),
            EvaluatorAnswer::Hello(facts) => {
                self.facts = facts.clone();
                Ok(())
            }
            EvaluatorAnswer::Progress { done, total, what } => {
                follow(&format!("{what} ({done} of {total})"));
                Ok(())
            }
            EvaluatorAnswer::Site(output) => self.compare(output, &message),
            EvaluatorAnswer::Missing { value, why } => {
                let site = value.site()?;
                if self.is_wanted(site) {
                    self.missing.push(MissingSite { site, why: format!("{site}: {why}") });
                }
                Ok(())
            }
            EvaluatorAnswer::Cause(_) | EvaluatorAnswer::Facts { .. } | EvaluatorAnswer::Error { .. } => {
                Ok(())
            }
        }
    }

    /// Returns true if a recorded site is selected and was not answered yet.
    fn is_wanted(&mut self, site: Site) -> bool {
        let positions = self.positions(site);
        let is_selected = self.dump.holds(site) && self.rules.selection.takes(site, &positions);
        is_selected && self.seen.insert(site)
    }

    fn positions(&self, site: Site) -> std::ops::Range<usize> {
        let pass = site.pass.and_then(|pass| self.dump.manifest.passes.get(pass));
        pass.map_or(0..0, |pass| pass.position..pass.end())
    }

    /// Compares a recorded output with the exact values.
    fn compare(&mut self, output: &ExactOutput, message: &AnswerMessage) -> Result<()> {
        let site = output.value.site()?;
        if !self.is_wanted(site) {
            return Ok(());
        }
        let (Some(theirs), Some(row)) = (self.dump.view(site)?, self.dump.row(site)) else { return Ok(()) };
        let (exact, sigma) = (message.array("exact")?, message.array("sigma")?);
        if exact.shape != theirs.shape() || sigma.shape != exact.shape {
            let why = format!(
                "{site} has shape {:?}, expected {:?} (with a batch axis of 1); record this shape, or judge with the model \
                 that made the dump",
                theirs.shape(),
                exact.shape
            );
            self.missing.push(MissingSite { site, why });
            return Ok(());
        }
        let judged = self.judged(site, row, (&theirs, &exact, &sigma.data));
        self.rows.push(match judged.verdict {
            Verdict::Fail if output.is_tie && output.kind == OutputKind::Ids => judged.undetermined(TIE),
            Verdict::Fail if output.is_tie => judged.undetermined(&self.unrecorded_choice(output)),
            _ => judged,
        });
        Ok(())
    }

    /// Returns the reason for doubt about values that depend on a choice which the dump does not record.
    fn unrecorded_choice(&self, output: &ExactOutput) -> String {
        let maker = output.choice.as_ref();
        let is_recorded = |maker: &&String| {
            let rows = &self.dump.manifest.tensors;
            rows.iter().any(|row| row.module.as_ref() == Some(maker) && row.pass == Some(output.value.pass))
        };
        let advice = match maker {
            Some(maker) if !is_recorded(&maker) => format!("; record the output of {maker}"),
            _ => ", and the recorded values do not tell xcheck which choice was made; record a run in f32, in which rounding \
                 decides fewer choices"
                .to_owned(),
        };
        format!(
            "rounding can decide the choice that these values depend on, e.g. the experts of a token{advice}"
        )
    }

    fn judged(
        &self,
        site: Site,
        row: &TensorRow,
        (theirs, exact, sigma): (&View, &ArrayValues, &[f64]),
    ) -> SiteResult {
        let stored = row.dtype().ok().and_then(|dtype| coarser(dtype, self.computed));
        let precision =
            ValuePrecision { computed: self.computed, candidate: stored, reference: None, steps: [0.0; 2] };
        let measured = measure(theirs.clone(), View::from(exact), precision, |_| ColumnSelection::All);
        let evaluated = evaluation(row, stored, (theirs, exact, sigma));
        let precision = self.dump.manifest.producer.precision().unwrap_or("f32");
        let checkpoint = site.point.checkpoint();
        let tolerance = self.rules.tolerances.get(&self.facts.architecture, precision, checkpoint).clone();
        let row = SiteResult {
            explained: Some(evaluated.evaluation),
            computed: self.computed,
            is_single_operation: true,
            ..SiteResult::new(site, self.positions(site), tolerance)
        };
        let judged = row.judge(None, Some(ArrayComparison::Measured(measured)));
        match evaluated.doubt.filter(|_| judged.verdict == Verdict::Pass) {
            Some(why) => judged.undetermined(&why),
            None => judged,
        }
    }

    /// Returns the first wrong site, and the wrong sites of the same module in other passes.
    fn first_wrong(&self) -> Vec<Site> {
        let wrong = || self.rows.iter().filter(|row| row.verdict == Verdict::Fail).map(|row| row.site);
        let Some(first) = wrong().next() else { return Vec::new() };
        wrong().filter(|site| (site.point, site.layer) == (first.point, first.layer)).collect()
    }

    fn outcome(mut self, name: &str, causes: Vec<Cause>, facts: Option<String>) -> Result<Outcome> {
        let (manifest, selection) = (&self.dump.manifest, self.rules.selection);
        let mut recorded: Vec<Site> = self.dump.sites().filter(|site| site.pass.is_some()).collect();
        recorded.retain(|site| selection.takes(*site, &self.positions(*site)));
        recorded.sort_by_key(|site| site.flow_order());
        for &site in recorded.iter().filter(|site| !self.seen.contains(site)) {
            let why = format!("{site}: {}", module_coverage::NOT_EVALUATED);
            self.missing.push(MissingSite { site, why });
        }
        let absent = module_coverage::absent(&self.facts.modules, &recorded, |site| {
            selection.takes(site, &self.positions(site))
        })?;
        let own = SideTaps {
            name: self.dump.path.display().to_string(),
            taps: recorded.iter().map(|site| site.point).collect(),
        };
        let evidence = Evidence {
            rows: self.rows,
            expected: recorded.len() + absent.len(),
            missing: self.missing.into_iter().chain(absent).collect(),
            lacking: module_coverage::gaps(self.dump, self.computed, &recorded)?,
            sides: vec![own],
            notes: iter::once(self.facts.note()).chain(facts).collect(),
            causes,
            ..Evidence::default()
        };
        let subject = ComparisonSubject {
            name: name.to_owned(),
            producer: manifest.producer.clone(),
            numerics: "torch, f64".to_owned(),
            role: Role::Candidate,
            is_case: false,
            gate: Gate::Rounding,
            mode: Mode::Local,
        };
        let basis = Basis { selection: selection.clone(), ..Basis::default() };
        Ok(conclude(subject, basis, vec![(0, evidence)]))
    }
}

impl WorkerFacts {
    /// Returns a note that names the reference code.
    fn note(&self) -> String {
        let Self { torch, transformers, model_class, source, .. } = self;
        let source = if source.is_empty() { String::new() } else { format!(" in {source}") };
        format!(
            "reference: {model_class}{source}, transformers {transformers}, torch {torch}, computed in f64"
        )
    }
}

/// Reason for doubt about indices that differ, possibly without a fault.
const TIE: &str = "rounding can decide some of these choices, so wrong ones among them would not show";

/// Reason for doubt about values that would pass regardless of their content.
const BLIND: &str = "the error bounds are as large as the values, so any values would pass; record more modules before this \
                     one";

/// Returns true if a value has no bound, or if zeros would pass in place of most rows. `width` is the length of a
/// row.
fn is_blind(exacts: &[ExactValue], width: usize) -> bool {
    let is_unbounded = |exact: &ExactValue| !(exact.radius.is_finite() && exact.sigma >= 0.0);
    let is_blind_row = |row: &&[ExactValue]| {
        row.iter().any(|exact| exact.value != 0.0)
            && row.iter().all(|exact| exact.value.abs() <= exact.radius)
    };
    let rows = exacts.chunks(width.max(1));
    let (count, blind) = (rows.len(), rows.filter(is_blind_row).count());
    2 * blind > count || exacts.iter().any(is_unbounded)
}

/// Returns the largest RMS of a correct engine's errors, in units of their expected standard deviation, for an
/// array of `rows` rows. [`K`] is an average over mantissas; the least favourable mantissa has 1/√3. An engine may
/// round twice where torch rounds once, which adds a factor √2. The errors in a row may depend on each other, so
/// only rows count as samples. The RMS of n independent values has a standard deviation of 1/√(2n).
fn largest_rms(rows: usize) -> f64 {
    let of_roundings = (2.0f64 / 3.0).sqrt() / K;
    of_roundings * (1.0 + LAMBDA / (2.0 * rows.max(1) as f64).sqrt())
}

/// The evaluation of a module's values.
struct ModuleEvaluation {
    evaluation: RoundingEvaluation,
    /// The reason why the values prove nothing although each is within its bound.
    doubt: Option<String>,
}

/// Compares recorded values with the exact ones. `stored` is the type that they were rounded to when stored, if
/// shorter than the engine's.
fn evaluation(
    row: &TensorRow,
    stored: Option<DType>,
    (theirs, exact, sigma): (&View, &ArrayValues, &[f64]),
) -> ModuleEvaluation {
    // An output of a longer type than the engine's was computed in that type.
    let results = row.dtype().ok().and_then(Float::of).unwrap_or(Float::F32);
    // The last rounding is not part of sigma. Types shorter than f32 have it in their cells.
    let last = if results == Float::F32 { f64::from(f32::EPSILON) / 2.0 } else { 0.0 };
    let bounded = |(&value, &sigma): (&f64, &f64)| ExactValue {
        value,
        sigma,
        radius: LAMBDA * sigma + last * value.abs(),
    };
    let exacts: Vec<ExactValue> = exact.data.iter().zip(sigma).map(bounded).collect();
    let evaluation = RoundingEvaluation {
        candidate: errors_of(theirs, &exacts, results, stored.and_then(Float::of)),
        reference: EngineErrors::default(),
        evaluated: exacts.len(),
        found: Vec::new(),
        alternatives: Vec::new(),
        reads_unrounded: None,
        is_fused: false,
        is_tf32: false,
        is_in_parts: false,
        is_impossible: false,
        shape: exact.shape.clone(),
    };
    let width = exact.shape.last().copied().unwrap_or(1);
    let (rms, limit) =
        (rms_in_sigmas(&theirs.to_vec(), &exacts, results), largest_rms(exacts.len() / width.max(1)));
    let doubt = match () {
        () if is_blind(&exacts, width) => Some(BLIND.to_owned()),
        () if !(rms <= limit) => Some(format!(
            "each value is within its error bound, but their RMS error is {rms:.1} times the expected one, and rounding \
             gives at most {limit:.1}: a small systematic fault is possible"
        )),
        () => None,
    };
    ModuleEvaluation { evaluation, doubt }
}

/// Asks the worker for the cause of a wrong value, which was found at these sites. If there is no cause, also
/// returns facts about the value.
fn causes(
    connection: &mut EvaluatorConnection,
    dump: &Dump,
    wrong: Vec<Site>,
    seconds: u64,
) -> Result<(Vec<Cause>, Option<String>)> {
    let Some(row) = wrong.first().and_then(|site| dump.row(*site)) else { return Ok(Default::default()) };
    connection.ask(&EvaluatorRequest::causes(ValueName::from(row), seconds))?;
    let (mut found, mut facts) = (Vec::new(), None);
    while let Some(message) = connection.take()? {
        match message.answer {
            EvaluatorAnswer::Cause(cause) => found.push(cause),
            EvaluatorAnswer::Facts { text } => facts = Some(format!("at {}: {text}", wrong[0])),
            _ => {}
        }
    }
    let mut found = found.into_iter();
    let Some(first) = found.next() else { return Ok((Vec::new(), facts)) };
    let others: Vec<String> = found.map(FoundCause::told).collect();
    Ok((vec![Cause::once(CauseSearch::Stages, finding(wrong, first, others))], None))
}

fn finding(wrong: Vec<Site>, cause: FoundCause, others: Vec<String>) -> Finding {
    let or = if others.is_empty() { String::new() } else { format!("; or {}", others.join(", or ")) };
    let (site, told) = (wrong[0], cause.clone().told());
    Finding {
        key: cause.key,
        reference: cause.expected,
        candidate: cause.found,
        remaining: others,
        ..Finding::new(CauseKind::ModelCode, site, format!("{told}; seen at {site}{or}")).of(wrong)
    }
}

impl FoundCause {
    /// Describes the cause, with the place in the modelling code.
    fn told(self) -> String {
        let Self { what, file, line, .. } = self;
        match file.filter(|file| !what.contains(file.as_str())) {
            None => what,
            Some(file) => format!("{what} ({file}{})", line.map_or(String::new(), |line| format!(":{line}"))),
        }
    }
}
