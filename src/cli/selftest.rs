//! `xcheck selftest`: tests the judge with injected faults and correct dumps.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use clap::Args;
use clap::builder::PossibleValuesParser;
use rayon::ThreadPoolBuilder;
use serde_json::{Value, json};

use crate::atomic_write::write_whole;
use crate::cli::options::{FormatOptions, ModelOptions, RequestedModelOptions, ThreadOptions};
use crate::cli::progress::StepProgress;
use crate::cli::terminal::plain_table;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::selftest::{
    ARITHMETICS, ExpectedFigures, FaultCounts, FigureRegression, InjectedFault, Judged, MODELS,
    OTHER_KERNELS, RecordedTaps, SelfTestJob, SelfTestTable, Sensitivity, TWINS, TestModel, every_fault,
    other_kernels, sampled_faults, sensitivities,
};
use crate::verdict::Verdict;

/// The shipped model for tests with other kernels and with faults of every size.
const DETAILED: &str = "tiny-llama3-f32";

/// Values of `--recorded`, with the reduced sets of taps that they select.
const FEWER_TAPS: [(&str, RecordedTaps); 2] =
    [("layers", RecordedTaps::Blocks), ("logits", RecordedTaps::Logits)];

/// Arguments of `xcheck selftest`.
#[derive(Debug, Args)]
pub(crate) struct SelftestArgs {
    /// Model to test with, instead of the shipped ones
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// Arithmetics to test with [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = PossibleValuesParser::new(ARITHMETICS))]
    arithmetic: Vec<String>,
    /// Inject every value of every fault into every model
    ///
    /// This makes thousands of dumps. By default, one fault of each kind is injected in each arithmetic.
    #[arg(long)]
    all: bool,
    /// Also judge each fault's dump with fewer taps
    ///
    /// With fewer taps, searches for causes take longer: minutes for the shipped models.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = PossibleValuesParser::new(FEWER_TAPS.map(|(name, _)| name)))]
    recorded: Vec<String>,
    /// Skip other kernels and the table of the largest missed faults
    ///
    /// They take half of the time.
    #[arg(long, requires = "model")]
    quick: bool,
    /// File of minimum detection counts [default: the built-in file]
    #[arg(long, value_name = "FILE")]
    figures: Option<PathBuf>,
    /// Write the measured figures to a file, as the new minimum
    #[arg(long, value_name = "FILE", conflicts_with = "figures")]
    write: Option<PathBuf>,
    #[command(flatten)]
    output: FormatOptions,
    #[command(flatten)]
    model_options: ModelOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
}

/// Injects the faults, judges the dumps, and counts the results.
pub(crate) fn run(args: &SelftestArgs) -> Result<Verdict> {
    let promise = args.promise()?;
    let beds = args.beds()?;
    let jobs = args.jobs(&beds)?;
    let table = SelfTestTable::of(judged(&jobs)?);
    let broken = promise.broken_by(&table);
    let sensitive = if args.quick { Vec::new() } else { args.sensitivities(&beds)? };
    let verdict = match verdict(&table, &broken, &sensitive) {
        // For the shipped models, the largest missed faults must have been measured.
        Verdict::Pass if sensitive.is_empty() && args.is_of_all_that_ships() => Verdict::Inconclusive,
        verdict => verdict,
    };
    if let Some(file) = &args.write {
        write_whole(file, ExpectedFigures::of(&table).text().as_bytes()).map_err(Error::io("write", file))?;
    }
    args.output.line(format!("{}\n\n{}", shown_sensitivities(&sensitive), shown(&table, &broken, verdict)));
    args.output.document(|| document(&table, &broken, &sensitive, verdict));
    Ok(verdict)
}

impl SelftestArgs {
    fn arithmetics(&self) -> impl Iterator<Item = &'static str> + Clone {
        let is_wanted =
            |name: &&str| self.arithmetic.is_empty() || self.arithmetic.iter().any(|asked| asked == name);
        ARITHMETICS.into_iter().filter(is_wanted)
    }

    /// Returns the test models: each model with each arithmetic that can compute its weights.
    fn beds(&self) -> Result<Vec<TestModel>> {
        let names = self.model.as_deref().map_or(MODELS.to_vec(), |typed| vec![typed]);
        let loaded = |typed: &str| {
            let target = RequestedModelOptions::of(typed).find()?;
            let model: Arc<dyn Model> = self.model_options.load(&target.variants[0])?.model.into();
            Ok((target.name, model))
        };
        let models = names.into_iter().map(loaded).collect::<Result<Vec<_>>>()?;
        // The detailed model is also tested with f16 kernels.
        let in_f16 = |name: &str| self.is_of_all_that_ships() && name == DETAILED;
        let beds = models.iter().flat_map(|(name, model)| {
            let f16 = in_f16(name).then_some("f16");
            self.arithmetics()
                .chain(f16)
                .map(move |arithmetic| TestModel::new(name, model.clone(), arithmetic))
        });
        let beds: Vec<TestModel> = beds.filter(can_compute).collect();
        match beds.is_empty() {
            true => Err(Error::Usage(
                "none of the requested arithmetics can compute with this model's weights".into(),
            )),
            false => Ok(beds),
        }
    }

    fn jobs<'b>(&self, beds: &'b [TestModel]) -> Result<Vec<SelfTestJob<'b>>> {
        let is_sampled = |bed: &&TestModel| ARITHMETICS.contains(&bed.arithmetic);
        let faults = match self.all {
            true => every_fault(beds.iter().filter(is_sampled))?,
            false => sampled_faults(beds)?,
        };
        let is_wanted = |(name, _): &(&str, _)| self.recorded.iter().any(|asked| asked == name);
        let fewer = FEWER_TAPS.into_iter().filter(is_wanted).map(|(_, taps)| taps);
        let all: Vec<_> = [RecordedTaps::Full].into_iter().chain(fewer).collect();
        let of_fault = |(bed, fault): &(&'b TestModel, InjectedFault)| {
            all.iter().map(|&taps| SelfTestJob::Change(bed, fault.clone(), taps)).collect::<Vec<_>>()
        };
        let mut jobs: Vec<SelfTestJob> = faults.iter().flat_map(of_fault).collect();
        let twins = beds.iter().flat_map(|bed| TWINS.map(|(name, twin)| SelfTestJob::Twin(bed, name, twin)));
        jobs.extend(twins);
        let kernels = beds.iter().filter(|bed| self.is_detailed(bed) && !self.quick).flat_map(|bed| {
            other_kernels(bed).into_iter().map(move |twin| SelfTestJob::Twin(bed, OTHER_KERNELS, twin))
        });
        jobs.extend(kernels);
        Ok(jobs)
    }

    /// Measures the largest fault of each kind that passes, in f32 and bf16. Uses the requested model, or else
    /// `DETAILED`.
    fn sensitivities(&self, beds: &[TestModel]) -> Result<Vec<Sensitivity>> {
        let is_wanted = |bed: &&TestModel| ["f32", "bf16"].contains(&bed.arithmetic);
        let mut found = Vec::new();
        for bed in beds.iter().filter(is_wanted).filter(|bed| self.is_detailed(bed)) {
            found.extend(sensitivities(bed, false)?);
            if bed.arithmetic == "f32" {
                found.extend(sensitivities(bed, true)?);
            }
        }
        Ok(found)
    }

    /// Returns true if the model is tested with other kernels and with faults of every size: the requested model, or
    /// else `DETAILED`.
    fn is_detailed(&self, bed: &TestModel) -> bool {
        self.model.is_some() || bed.name == DETAILED
    }

    fn is_of_all_that_ships(&self) -> bool {
        self.model.is_none() && self.arithmetic.is_empty()
    }

    /// Returns the expected figures. They apply to a self-test of all shipped models and arithmetics.
    fn promise(&self) -> Result<ExpectedFigures> {
        let is_whole = self.is_of_all_that_ships() && !self.all;
        match &self.figures {
            Some(file) => ExpectedFigures::open(file),
            None if is_whole && self.write.is_none() => Ok(ExpectedFigures::shipped()),
            None => Ok(ExpectedFigures::default()),
        }
    }
}

fn can_compute(bed: &TestModel) -> bool {
    let types = [&bed.numerics, &bed.engine].map(|numerics| numerics.weight_types());
    let matrices = bed.model.matrices();
    matrices.iter().all(|(_, matrix)| types.iter().all(|types| types.contains(&matrix.dtype)))
}

/// Judges all dumps in parallel, each in a pool of one thread, since small models have too little work for several
/// threads per dump. The main thread waits outside of the pool.
fn judged(jobs: &[SelfTestJob]) -> Result<Vec<Judged>> {
    let (next, steps) = (AtomicUsize::new(0), Mutex::new(StepProgress::new("change", jobs.len())));
    let work = || {
        let mut results = Vec::new();
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            results.extend(job.judged()?);
            steps
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .reached(next.load(Ordering::Relaxed).min(jobs.len()));
        }
        Ok(results)
    };
    let alone = || {
        let pool = ThreadPoolBuilder::new().num_threads(1).build();
        pool.expect("a pool of one thread can be started").install(work)
    };
    let parts: Vec<Result<Vec<Judged>>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..rayon::current_num_threads()).map(|_| scope.spawn(alone)).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.map(|part| part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let parts = parts.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(parts.into_iter().flatten().collect())
}

/// Returns fail if a wrong cause is named, a figure became worse, or a missed fault is harmful. Returns
/// inconclusive if no fault was detected.
fn verdict(table: &SelfTestTable, broken: &[FigureRegression], sensitive: &[Sensitivity]) -> Verdict {
    let all = table.all();
    let is_harmful = !sensitive.iter().all(Sensitivity::is_harmless);
    // With all taps, each fault must have a name.
    let is_misnamed = all.unnamed > 0 || table.recorded.values().any(|counts| counts.misnamed > 0);
    match () {
        () if !broken.is_empty() || is_misnamed || is_harmful => Verdict::Fail,
        () if all.detected == 0 => Verdict::Inconclusive,
        () => Verdict::Pass,
    }
}

fn shown(table: &SelfTestTable, broken: &[FigureRegression], verdict: Verdict) -> String {
    let mut lines = plain_table(&[
        "change",
        "planted",
        "detected",
        "located",
        "named",
        "among",
        "hidden",
        "in doubt",
        "misnamed",
        "no name",
        "no effect",
    ]);
    let all = table.all();
    for (kind, count) in
        table.changes.iter().map(|(kind, count)| (kind.as_str(), count)).chain([("all", &all)])
    {
        lines.add_row([vec![kind.to_owned()], numbers(count)].concat());
    }
    let families = [shown_families(table), shown_recorded(table)].join("\n\n");
    let mut twins = plain_table(&["correct dump", "judged", "passed", "in doubt", "false alarms"]);
    for (name, found) in &table.twins {
        let numbers =
            [found.judged, found.passed, found.in_doubt, found.false_alarms].map(|number| number.to_string());
        twins.add_row([vec![(*name).to_owned()], numbers.to_vec()].concat());
    }
    let remarks: String = table.remarks.iter().map(|remark| format!("\n  {remark}")).collect();
    let broken: String = broken.iter().map(|broken| format!("\n  {broken}")).collect();
    let section =
        |title: &str, lines: String| if lines.is_empty() { lines } else { format!("\n\n{title}{lines}") };
    format!(
        "{}\n\n{families}\n\n{}{}{}\n\n{}  {} of {} changes detected, {} located, {} named, {} false alarms",
        lines.trim_fmt(),
        twins.trim_fmt(),
        section("not in the state recorded", remarks),
        section("worse than promised", broken),
        verdict.name().to_uppercase(),
        all.detected,
        all.planted,
        all.located,
        all.named,
        table.false_alarms()
    )
}

/// Formats the counts of each family of causes.
fn shown_families(table: &SelfTestTable) -> String {
    let mut lines = plain_table(&["family", "injected", "detected", "located", "named"]);
    for (family, FaultCounts { planted, detected, located, named, .. }) in &table.families {
        let numbers = [planted, detected, located, named].map(ToString::to_string);
        lines.add_row([vec![family.name().to_owned()], numbers.to_vec()].concat());
    }
    lines.trim_fmt()
}

/// Formats how many faults are named, by recorded taps and arithmetic.
fn shown_recorded(table: &SelfTestTable) -> String {
    let mut lines = plain_table(&[
        "recorded",
        "arithmetic",
        "injected",
        "detected",
        "located",
        "named",
        "among",
        "no name",
        "wrong name",
        "hidden",
        "in doubt",
    ]);
    for ((recorded, arithmetic), count) in &table.recorded {
        let numbers = [
            count.planted,
            count.detected,
            count.located,
            count.named,
            count.among,
            count.unnamed,
            count.misnamed,
            count.hidden,
            count.in_doubt,
        ];
        let names = [recorded.name(), arithmetic].map(str::to_owned);
        lines.add_row([names.to_vec(), numbers.map(|number| number.to_string()).to_vec()].concat());
    }
    lines.trim_fmt()
}

/// Formats the largest fault of each kind that passes, by arithmetic and recorded taps.
fn shown_sensitivities(sensitive: &[Sensitivity]) -> String {
    let mut lines = plain_table(&[
        "largest fault that passes",
        "stated",
        "recorded",
        "off by",
        "KL",
        "KL by rounding",
        "token changes",
    ]);
    for one in sensitive {
        let token = match (one.lost_lead, one.is_harmless()) {
            (0.0, true) => "no",
            (_, true) => "a tie",
            (_, false) => "HARMFUL",
        };
        let figures = [one.size, one.divergence, one.noise].map(|figure| match figure {
            0.0 => "-".to_owned(),
            figure => format!("{figure:.1e}"),
        });
        let names = [one.fault.name(), one.arithmetic, one.recorded].map(str::to_owned);
        lines.add_row([names.to_vec(), figures.to_vec(), vec![token.to_owned()]].concat());
    }
    lines.trim_fmt()
}

fn numbers(count: &FaultCounts) -> Vec<String> {
    let FaultCounts {
        planted,
        detected,
        located,
        named,
        among,
        hidden,
        in_doubt,
        misnamed,
        unnamed,
        no_effect,
    } = *count;
    let all = [planted, detected, located, named, among, hidden, in_doubt, misnamed, unnamed, no_effect];
    all.map(|number| if number == 0 { "-".to_owned() } else { number.to_string() }).to_vec()
}

fn document(
    table: &SelfTestTable,
    broken: &[FigureRegression],
    sensitive: &[Sensitivity],
    verdict: Verdict,
) -> Value {
    let twins: serde_json::Map<String, Value> =
        table.twins.iter().map(|(name, found)| ((*name).to_owned(), json!(found))).collect();
    json!({
        "verdict": verdict.name(),
        "changes": table.changes,
        "families": table.families,
        "recorded": table.recorded.iter().map(recorded_document).collect::<Vec<_>>(),
        "all": table.all(),
        "twins": twins,
        "sensitivity": sensitive.iter().map(document_of).collect::<Vec<_>>(),
        "remarks": table.remarks,
        "broken": broken.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn recorded_document(((recorded, arithmetic), counts): (&(RecordedTaps, &str), &FaultCounts)) -> Value {
    json!({"recorded": recorded.name(), "arithmetic": arithmetic, "counts": counts})
}

fn document_of(one: &Sensitivity) -> Value {
    json!({
        "fault": one.fault.name(),
        "arithmetic": one.arithmetic,
        "recorded": one.recorded,
        "largest_passing": one.size,
        "kl": one.divergence,
        "kl_of_rounding": one.noise,
        "lost_lead": one.lost_lead,
        "harmless": one.is_harmless(),
    })
}
