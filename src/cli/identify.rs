//! `xcheck identify`: what the arrays of a file are that has no manifest.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use comfy_table::{Table, presets};
use serde_json::{Value, json};

use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{FormatOptions, ModelOptions, TargetOptions, ThreadOptions};
use crate::cli::prompt::PromptOptions;
use crate::compare::Verdict;
use crate::error::{Error, Result};
use crate::format::Arrays;
use crate::identify::{Finding, Place, identify, map_of};
use crate::map::tokens_in;

/// Arguments of `xcheck identify`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// A file of activations: .safetensors, .npz, what torch.save wrote, or a folder of .npy
    file: PathBuf,
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    prompt: PromptOptions,
    /// Where to write the map by which --map reads the file as a dump
    #[arg(long, value_name = "FILE")]
    map_out: Option<PathBuf>,
    #[command(flatten)]
    numerics: NumericsOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    output: FormatOptions,
}

/// Runs the model and says which of its values each array has.
pub fn run(args: &Args) -> Result<Verdict> {
    let target = args.target.find()?;
    let arrays = Arrays::open(&args.file)?;
    let tokens = match args.prompt.tokens(&target)? {
        Some(tokens) => tokens,
        None => tokens_in(&arrays)?.ok_or_else(|| {
            Error::Usage(format!(
                "{}: which tokens the model read is not known: give --tokens 1,2,3 or --prompt",
                args.file.display()
            ))
        })?,
    };
    if let Some(out) = args.map_out.as_deref().filter(|out| out.exists()) {
        return Err(Error::Usage(format!("{} already exists; name another or remove it", out.display())));
    }
    let loaded = args.model.load(&target.variants[0])?;
    let numerics = args.numerics.of(&*loaded.model, None)?;
    let findings = identify(&arrays, &tokens, &*loaded.model, &*numerics)?;
    let told = findings.iter().filter(|one| one.is_told()).count();
    args.output.line(shown(&findings, told, &args.file));
    args.output.document(|| findings.iter().flat_map(rows).collect());
    if let Some(out) = args.map_out.as_deref().filter(|_| findings.iter().any(|one| !one.places.is_empty())) {
        let map = toml::to_string(&map_of(&findings, &tokens, &*loaded.model)).expect("a map is plain data");
        fs::write(out, map).map_err(Error::io("write", out))?;
        let say = format!(
            "the map is in {0}; xcheck check --model {2} --candidate {1} --map {0} reads the file by it",
            out.display(),
            args.file.display(),
            args.target.model
        );
        anstream::eprintln!("{say}");
    }
    let all = !findings.is_empty() && told == findings.len();
    Ok(if all { Verdict::Pass } else { Verdict::Inconclusive })
}

fn shown(findings: &[Finding], told: usize, file: &Path) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["array", "shape", "is", "rel_l2", "how", "or"]);
    for finding in findings {
        let (name, shape) = (plain(&finding.name), format!("{:?}", finding.shape));
        for place in &finding.places {
            let others: Vec<String> = place.others.iter().map(ToString::to_string).collect();
            let row = [
                name.clone(),
                shape.clone(),
                place.site.to_string(),
                figure(place),
                how(finding, place),
                others.join("; "),
            ];
            table.add_row(row);
        }
        if finding.places.is_empty() {
            let nearest = finding.nearest.as_ref().map(|place| format!("nearest: {}", place.site));
            let what = if finding.is_tokens() { "tokens" } else { "cannot tell" };
            let near = finding.nearest.as_ref().map_or(String::new(), figure);
            let why =
                finding.because.clone().or(nearest).unwrap_or_else(|| "near no value of our run".to_owned());
            table.add_row([name, shape, what.to_owned(), near, why, String::new()]);
        }
    }
    format!("{}\n\n{}: {told} of {} arrays told", table.trim_fmt(), file.display(), findings.len())
}

fn figure(place: &Place) -> String {
    format!("{:.1e}", place.rel_l2)
}

/// In which way an array holds a tap, where that is not the plain one.
fn how(finding: &Finding, place: &Place) -> String {
    let axes: Vec<&str> = place.axes.iter().map(|(axis, _)| axis.name()).collect();
    let order = (!place.is_in_order).then(|| format!("axes [{}]", axes.join(", ")));
    let part = place.of.as_ref().map(|(of, _)| {
        format!(
            "{:?} to {:?} of {:?}",
            of.start.clone().unwrap_or_default(),
            of.end.clone().unwrap_or_default(),
            of.shape
        )
    });
    let rows = place.rows.map(|(first, count)| format!("positions {first} to {}", first + count - 1));
    let pairing = place.pairing.map(|pairing| format!("heads {}", pairing.name()));
    let scale = (place.scale != 1.0).then(|| format!("times {:.6}", place.scale));
    let rounded = finding.rounded.map(|dtype| format!("values of {dtype}"));
    let all = [order, part, rows, pairing, scale, rounded, finding.because.clone()];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// An object for each tap of an array.
fn rows(finding: &Finding) -> Vec<Value> {
    let blank = json!({
        "name": finding.name, "tap": null, "layer": null, "pass": null, "rows": null, "axes": null, "of": null,
        "rope_pairing": null, "scale": null, "dtype": finding.rounded.unwrap_or(finding.dtype).name(),
        "rel_l2": null, "others": [],
    });
    let with = |fields: Value| {
        let mut row = blank.clone();
        if let (Value::Object(row), Value::Object(fields)) = (&mut row, fields) {
            row.extend(fields);
        }
        row
    };
    if finding.places.is_empty() {
        let because = finding.because.clone().unwrap_or_else(|| "cannot tell".to_owned());
        let tap = finding.is_tokens().then_some("tokens");
        return vec![with(json!({"tap": tap, "because": because}))];
    }
    let row = |place: &Place| {
        let place_of = |site: &crate::checkpoint::Site| json!({"tap": site.point.name(), "layer": site.layer, "pass": site.pass});
        let axes: Vec<&str> = place.axes.iter().map(|(axis, _)| axis.name()).collect();
        with(json!({
            "tap": place.site.point.name(), "layer": place.site.layer, "pass": place.site.pass,
            "rows": place.rows.map(|(first, count)| [first, first + count]),
            "axes": axes, "of": place.of.as_ref().map(|(of, _)| of),
            "rope_pairing": place.pairing.map(|pairing| pairing.name()),
            "scale": place.scale, "rel_l2": place.rel_l2, "because": finding.because,
            "others": place.others.iter().map(place_of).collect::<Vec<_>>(),
        }))
    };
    finding.places.iter().map(row).collect()
}

/// A text out of a file: what would command the terminal is written out.
fn plain(text: &str) -> String {
    text.chars()
        .map(|one| if one.is_control() { one.escape_default().to_string() } else { one.to_string() })
        .collect()
}
