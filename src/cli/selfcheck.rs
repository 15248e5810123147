//! `xcheck selfcheck`: checks the engine without a reference.

use clap::Args;
use serde_json::json;

use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{FormatOptions, ModelOptions, RequestedModelOptions, ThreadOptions};
use crate::cli::requested_model::{ModelVariant, RequestedModel};
use crate::cli::terminal::plain_table;
use crate::error::Result;
use crate::model::LoadedModel;
use crate::numerics::{BitnetCpp, F32, Llama2C, LlamaCpp, Numerics, Transformers};
use crate::selfcheck::{CheckResult, CheckSubject, check_all, formats_agree};
use crate::verdict::Verdict;

/// Arguments of `xcheck selfcheck`.
#[derive(Debug, Args)]
pub(crate) struct SelfcheckArgs {
    #[command(flatten)]
    target: RequestedModelOptions,
    #[command(flatten)]
    output: FormatOptions,
    #[command(flatten)]
    numerics: NumericsOptions,
    #[command(flatten)]
    model_options: ModelOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
}

/// The result of a check with its subject.
struct SelfcheckRow {
    model: String,
    numerics: String,
    checked: CheckResult,
}

/// Checks each format of a model, in f32 and in the numerics of the format's engines, and compares the
/// formats.
pub(crate) fn run(args: &SelfcheckArgs) -> Result<Verdict> {
    let target = args.target.find()?;
    let mut rows = Vec::new();
    let mut loaded = Vec::new();
    for variant in &target.variants {
        let model = args.model_options.load(variant)?;
        for numerics in args.numerics_of(&model)? {
            rows.extend(check(variant, &model, &*numerics)?);
        }
        loaded.push((variant, model));
    }
    rows.extend(across_formats(&target, &loaded)?);
    args.output.line(table(&rows));
    args.output.document(|| as_json(&target.name, &rows));
    Ok(verdict(&rows))
}

impl SelfcheckArgs {
    /// Returns the requested numerics, or otherwise f32 and the usual numerics for the file's type.
    fn numerics_of(&self, model: &LoadedModel) -> Result<Vec<Box<dyn Numerics>>> {
        if self.numerics.is_named() {
            return Ok(vec![self.numerics.of(&*model.model, None)?]);
        }
        let mut usable = usual(model.format);
        usable.retain(|numerics| can_compute(model, &**numerics));
        usable.truncate(2);
        Ok(usable)
    }
}

/// Returns `f32`, then the numerics of the engines that use this file format.
fn usual(format: &str) -> Vec<Box<dyn Numerics>> {
    match format {
        "gguf" => vec![Box::new(F32), Box::new(LlamaCpp::default()), Box::new(BitnetCpp::default())],
        "llama2.c" => vec![Box::new(F32), Box::new(Llama2C)],
        _ => vec![Box::new(F32), Box::new(Transformers::F32)],
    }
}

fn can_compute(model: &LoadedModel, numerics: &dyn Numerics) -> bool {
    let mut matrices = model.model.matrices().into_iter();
    matrices.all(|(_, matrix)| numerics.weight_types().contains(&matrix.dtype))
}

fn check(variant: &ModelVariant, model: &LoadedModel, numerics: &dyn Numerics) -> Result<Vec<SelfcheckRow>> {
    let checked = check_all(CheckSubject { model: &*model.model, numerics })?;
    let row =
        |checked| SelfcheckRow { model: variant.name.clone(), numerics: numerics.name().to_owned(), checked };
    Ok(checked.into_iter().map(row).collect())
}

/// Compares the first format with every other kind of format that has the same weight type.
fn across_formats(
    target: &RequestedModel,
    loaded: &[(&ModelVariant, LoadedModel)],
) -> Result<Vec<SelfcheckRow>> {
    let is_gguf = |model: &LoadedModel| model.format == "gguf";
    let (first, rest) = loaded.split_first().expect("a target has at least one variant");
    let others: Vec<_> = rest
        .iter()
        .filter(|other| is_gguf(&other.1) != is_gguf(&first.1) && other.1.precision == first.1.precision)
        .collect();
    if others.is_empty() {
        let why = "the model is available in one format only, or with different weight types";
        let checked = CheckResult::not_applicable("safetensors equals GGUF", why);
        return Ok(vec![SelfcheckRow {
            model: target.name.clone(),
            numerics: F32.name().to_owned(),
            checked,
        }]);
    }
    let mut rows = Vec::new();
    for other in others {
        let [one, another] =
            [&first.1, &other.1].map(|loaded| CheckSubject { model: &*loaded.model, numerics: &F32 });
        let checked = formats_agree(one, another)?;
        let model = format!("{} and {}", first.0.name, other.0.name);
        rows.push(SelfcheckRow { model, numerics: F32.name().to_owned(), checked });
    }
    Ok(rows)
}

/// Returns the verdict. Checks that do not apply are ignored.
fn verdict(rows: &[SelfcheckRow]) -> Verdict {
    Verdict::over(rows.iter().filter_map(|row| row.checked.verdict))
}

fn word(checked: &CheckResult) -> &'static str {
    checked.verdict.map_or("none", Verdict::name)
}

fn table(rows: &[SelfcheckRow]) -> String {
    let mut table = plain_table(&["model", "numerics", "check", "verdict", "found"]);
    for SelfcheckRow { model, numerics, checked } in rows {
        table.add_row([model, numerics, checked.check, word(checked), checked.detail.as_str()]);
    }
    let count = |wanted| rows.iter().filter(|row| row.checked.verdict == Some(wanted)).count();
    format!(
        "{}\n\n{}  {} checks passed, {} failed, {} inconclusive",
        table.trim_fmt(),
        verdict(rows).name().to_uppercase(),
        count(Verdict::Pass),
        count(Verdict::Fail),
        count(Verdict::Inconclusive)
    )
}

fn as_json(model: &str, rows: &[SelfcheckRow]) -> serde_json::Value {
    let row = |SelfcheckRow { model, numerics, checked }: &SelfcheckRow| {
        json!({
            "model": model,
            "numerics": numerics,
            "check": checked.check,
            "verdict": checked.verdict.map(Verdict::name),
            "found": checked.detail,
        })
    };
    json!({
        "model": model,
        "verdict": verdict(rows).name(),
        "checks": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
