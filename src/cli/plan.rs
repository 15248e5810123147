//! `xcheck plan`: splits a comparison into shards for a scheduler.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::cli::mapped_files::{MapOptions, MappedFileContext};
use crate::cli::mode_options::ModeOptions;
use crate::cli::named_dump::NamedDump;
use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{ModelOptions, RequestedModelOptions, SelectionOptions};
use crate::cli::prompt::token_id;
use crate::cli::references::dumps_named;
use crate::cli::terminal::{self, say, tell};
use crate::error::{Error, Result};
use crate::plan::{Cost, Limit, Plan, Unit, shards};
use crate::verdict::Verdict;

/// Maximum number of jobs in a matrix of GitHub Actions.
const MOST_OF_GITHUB: usize = 256;

/// Arguments of `xcheck plan`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Without --shards and --per-shard, every unit is listed: the smallest part that can be judged by itself. \
Costs are estimates of one forward pass at 65 GFLOP/s and 1 GB/s; only their ratio matters. \
Options that narrow a run (--layer, --checkpoint, --from-reference, ...) narrow its plan.")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    target: RequestedModelOptions,
    /// Dump to judge, or to judge against: a path, a URL or a shipped name
    #[arg(long, short, visible_alias = "candidate", value_name = "DUMP")]
    reference: String,
    /// Number of shards to make, with equal work if possible
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..),
        conflicts_with = "per_shard",
        help_heading = "Shards"
    )]
    shards: Option<u16>,
    /// Largest shard: a size such as 2GB or a time such as 60s
    ///
    /// xcheck makes as many shards as this limit requires. A size counts weights and dump values.
    #[arg(long, value_name = "LIMIT", help_heading = "Shards")]
    per_shard: Option<Limit>,
    /// Output format
    #[arg(long, value_enum, default_value_t = PlanFormat::Jsonl, help_heading = "Output")]
    format: PlanFormat,
    #[command(flatten)]
    select: SelectionOptions,
    #[command(flatten)]
    mode: ModeOptions,
    #[command(flatten)]
    numerics: NumericsOptions,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    map: MapOptions,
    /// Token ids that the model read, e.g. 1,15043
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        value_parser = token_id,
        help_heading = "Files without a manifest"
    )]
    tokens: Option<Vec<u32>>,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PlanFormat {
    /// One line of JSON for each unit or shard
    Jsonl,
    /// One JSON document
    Json,
    /// A matrix for GitHub Actions; each job has matrix.shard
    Github,
    /// Options of sbatch for a job array
    Slurm,
}

/// Returns the only dump. A plan is about exactly one sequence.
fn only(mut dumps: Vec<NamedDump>) -> Result<NamedDump> {
    let names: Vec<String> = dumps.iter().map(|named| named.typed.clone()).collect();
    match (names.len(), dumps.pop()) {
        (1, Some(named)) => Ok(named),
        _ => Err(Error::Usage(format!("a plan needs a single sequence; name one of {}", names.join(", ")))),
    }
}

/// Makes the plan for a comparison and prints it.
pub(crate) fn run(args: &PlanArgs) -> Result<Verdict> {
    let target = args.target.find()?;
    let foreign = MappedFileContext::new(&args.map, args.tokens.clone(), Some(&target));
    let dumps = match target.references(std::slice::from_ref(&args.reference), &foreign) {
        Ok((dumps, _)) => dumps,
        Err(_) => dumps_named(&args.reference, &foreign)?,
    };
    let named = only(dumps)?;
    let loaded = args.model.load(target.variant_for(&named)?)?;
    let (choices, _) = args.numerics.of_dump(&*loaded.model, &named.dump.manifest.producer)?;
    let selection = args.mode.selection(&args.select);
    let passes = named.dump.manifest.passes.len();
    let read = named.dump.manifest.passes.last().map_or(0, |pass| pass.end());
    selection.check(loaded.model.dimensions().n_layers, passes, read)?;
    let plan = Plan::of(&*loaded.model, &named.dump, choices[0].activation_type(), &selection);
    for unit in &plan.units {
        if let Some(note) = why_together(unit) {
            tell!("note: {note}");
        }
    }
    let count = args.count(&plan);
    match (args.format, count) {
        (PlanFormat::Jsonl, None) => units(&plan).for_each(|line| terminal::document(&line.to_string())),
        (PlanFormat::Jsonl, Some(count)) => {
            of_shards(&plan, count, passes).for_each(|line| terminal::document(&line.to_string()));
        }
        (PlanFormat::Json, None) => {
            terminal::document(&format!("{:#}", json!({"units": units(&plan).collect::<Vec<_>>()})))
        }
        (PlanFormat::Json, Some(count)) => {
            let shards: Vec<_> = of_shards(&plan, count, passes).collect();
            terminal::document(&format!("{:#}", json!({"shards": shards})));
        }
        (PlanFormat::Github, count) => github(count.unwrap_or(plan.units.len()).max(1))?,
        (PlanFormat::Slurm, count) => slurm(count.unwrap_or(plan.units.len()).max(1)),
    }
    Ok(Verdict::Pass)
}

impl PlanArgs {
    /// Returns the requested number of shards.
    fn count(&self, plan: &Plan) -> Option<usize> {
        let limit = self.per_shard;
        let fits = |count: &usize| {
            let slices = shards(&plan.costs, *count);
            let costs = slices.into_iter().map(|slice| together(&plan.costs[slice]));
            limit.is_some_and(|limit| costs.into_iter().all(|cost| limit.holds(&cost)))
        };
        let most = plan.units.len().max(1);
        let needed = limit.map(|_| (1..=most).find(fits).unwrap_or(most));
        self.shards.map(usize::from).or(needed)
    }
}

fn together(costs: &[Cost]) -> Cost {
    costs.iter().copied().fold(Cost::default(), Cost::and)
}

/// Returns the reason why layers cannot be judged separately.
fn why_together(unit: &Unit) -> Option<String> {
    let part = unit.part().filter(|part| part.layers.len() > 1)?;
    let (first, last) = (part.layers.start, part.layers.end - 1);
    Some(format!(
        "layers {first}-{last} form one unit: the dump does not have the inputs of layers {}-{last} \
         (block_out of the layer before) for every pass in the computed type",
        first + 1
    ))
}

fn cost(cost: &Cost) -> Value {
    json!({
        "gflop": rounded(cost.gflop),
        "weights_bytes": cost.weights_bytes,
        "dump_bytes": cost.dump_bytes,
        "seconds": rounded(cost.seconds()),
    })
}

/// Rounds an estimate to four significant digits.
fn rounded(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}

fn with_cost(mut value: Value, costs: Value) -> Value {
    if let (Some(fields), Value::Object(costs)) = (value.as_object_mut(), costs) {
        fields.extend(costs);
    }
    value
}

fn units(plan: &Plan) -> impl Iterator<Item = Value> {
    plan.units.iter().zip(&plan.costs).enumerate().map(|(index, (unit, costs))| {
        let layers = unit.part().filter(|part| !part.layers.is_empty());
        let layers = layers.map(|part| [part.layers.start, part.layers.end - 1]);
        let value = json!({
            "unit": index + 1, "of": plan.units.len(), "part": unit.to_string(), "layers": layers, "plan": plan.hash,
        });
        with_cost(value, cost(costs))
    })
}

fn of_shards(plan: &Plan, count: usize, passes: usize) -> impl Iterator<Item = Value> {
    let slices = shards(&plan.costs, count);
    (0..count).map(move |index| {
        let slice = slices.get(index).cloned().unwrap_or(0..0);
        let parts: Vec<String> = plan.units[slice.clone()].iter().map(Unit::to_string).collect();
        let value = json!({
            "shard": format!("{}/{count}", index + 1),
            "units": if slice.is_empty() { json!([]) } else { json!([slice.start + 1, slice.end]) },
            "parts": parts,
            "passes": passes,
            "plan": plan.hash,
        });
        with_cost(value, cost(&together(&plan.costs[slice])))
    })
}

fn github(count: usize) -> Result<()> {
    if count > MOST_OF_GITHUB {
        return Err(Error::Usage(format!(
            "{count} shards exceed the limit of {MOST_OF_GITHUB} jobs in a GitHub matrix; use --shards \
                {MOST_OF_GITHUB}"
        )));
    }
    let include: Vec<_> =
        (1..=count).map(|index| json!({"shard": format!("{index}/{count}"), "index": index})).collect();
    terminal::document(&json!({"include": include}).to_string());
    Ok(())
}

/// Prints sbatch options. `XCHECK_SHARDS` keeps the shard count correct if only some shards are run again.
fn slurm(count: usize) {
    say!("--array=0-{} --export=ALL,XCHECK_SHARDS={count}", count - 1);
}
