//! `xcheck inspect --verify`: compares the weights of a quantised checkpoint with the original weights.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::options::FormatOptions;
use crate::cli::terminal::plain_table;
use crate::error::{Error, Result};
use crate::format::plain;
use crate::model::ModelFiles;
use crate::model::dequantisation::{WeightFinding, WeightFit};
use crate::verdict::Verdict;

/// Compares every quantised weight of a Hugging Face directory with the original's.
///
/// # Errors
/// If either path is not a model, or the first is not quantised.
pub(super) fn verify(path: &Path, original: &Path, output: FormatOptions) -> Result<(Verdict, Value)> {
    let (quantised, plain_files) = (ModelFiles::open(path)?, ModelFiles::open(original)?);
    let Some(settings) = quantised.dequantisation()? else {
        let problem = "--verify needs a quantised Hugging Face directory: quantization_config in config.json, hf_quant_config.json or \
             quanto_qmap.json";
        return Err(Error::Usage(format!("{}: {problem}", path.display())));
    };
    let (tensors, originals) = (quantised.tensors()?, plain_files.tensors()?);
    let fits = settings.compare(&tensors, &originals)?;
    let is_lost = |name: &&str| {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        tensors.get(name).is_none() && !fits.iter().any(|fit| fit.module == module)
    };
    let lost: Vec<&str> = originals.iter().map(|(name, _)| name).filter(is_lost).collect();
    output.line(format_args!("{}: {}", path.display(), plain(settings.name())));
    let mut table = plain_table(&["weight", "error", "allowed", "finding"]);
    for fit in &fits {
        let numbers = [fit.error, fit.largest].map(|number| format!("{number:.2e}"));
        let [error, largest] = numbers;
        table.add_row([plain(&fit.module), error, largest, finding(fit)]);
    }
    output.line(table.trim_fmt());
    let count = |found: WeightFinding| fits.iter().filter(|fit| fit.finding == found).count();
    let (factors, coarse) = (count(WeightFinding::FitsWithFactors), count(WeightFinding::TooCoarse));
    let wrong = fits.iter().filter(|fit| !fit.finding.is_right()).count() - coarse;
    let verdict = match () {
        () if fits.is_empty() => Verdict::Inconclusive,
        () if wrong > 0 => Verdict::Fail,
        () if factors + coarse > 0 || !lost.is_empty() => Verdict::Inconclusive,
        () => Verdict::Pass,
    };
    output.line(format_args!("{wrong} of {} quantised weights differ from the original", fits.len()));
    if factors > 0 {
        output.line(format_args!(
            "{factors} weights fit only with a factor for each input or output (AWQ, SmoothQuant); xcheck did not check that another layer has the inverse factor"
        ));
    }
    if coarse > 0 {
        output.line(format_args!(
            "{coarse} weights of 1 or 2 bits differ from the original; with so few bits, correct weights may, too"
        ));
    }
    if !lost.is_empty() {
        let shown: Vec<String> = lost.iter().take(5).copied().map(plain).collect();
        output.line(format_args!("{} tensors of the original are missing: {}", lost.len(), shown.join(", ")));
    }
    Ok((verdict, json!({"verification": fits.iter().map(of_fit).collect::<Vec<_>>(), "missing": lost})))
}

fn finding(fit: &WeightFit) -> String {
    match fit.finding {
        WeightFinding::Fits => "fits".to_owned(),
        WeightFinding::FitsWithFactors => {
            "fits with a factor for each input or output (AWQ, SmoothQuant)".to_owned()
        }
        WeightFinding::Scaled(factor) => format!("is the original times {factor:.4}: its scales are wrong"),
        WeightFinding::FitsIn(reading, error) => {
            format!("{} (the error with this reading: {error:.2e})", reading.fault())
        }
        WeightFinding::Differs => "differs, and fits in no known reading".to_owned(),
        WeightFinding::TooCoarse => "differs, but has too few bits to tell".to_owned(),
        WeightFinding::HasNoOriginal => "the original has no weight of this name and shape".to_owned(),
    }
}

fn of_fit(fit: &WeightFit) -> Value {
    let number = |number: f64| if number.is_finite() { json!(number) } else { Value::Null };
    json!({
        "weight": fit.module,
        "error": number(fit.error),
        "largest": number(fit.largest),
        "fits": fit.finding.is_right(),
        "finding": finding(fit),
    })
}
