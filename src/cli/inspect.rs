//! `xcheck inspect`: shows the content of a model file or a dump.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::Args;
use comfy_table::{Cell, CellAlignment};
use serde_json::{Value, json};

use crate::align::{Ranges, Selection};
use crate::checkpoint::{Point, Site};
use crate::cli::mapped_files::{MapOptions, MappedFileContext, is_foreign};
use crate::cli::options::{FormatOptions, RequestedModelOptions};
use crate::cli::prompt::token_id;
use crate::cli::remote_files::{refuse_loose_arrays, remote};
use crate::cli::sequence::{asked_for, parts_of};
use crate::cli::terminal::plain_table;
use crate::cli::weight_verification::verify;
use crate::dump::{ArrayValues, Dump};
use crate::error::{Error, Result};
use crate::format::{
    FileBytes, FileStore, Format, Gguf, Llama2cFile, Pytorch, Safetensors, TensorFile, gguf, plain,
};
use crate::measure::larger;
use crate::model::ModelFiles;
use crate::remote::Url;
use crate::shipped_models;
use crate::verdict::Verdict;
use crate::view::View;

/// Arguments of `xcheck inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Model or dump: a file, a folder, a URL or a shipped name
    ///
    /// A model is a GGUF, safetensors or PyTorch file, or a Hugging Face model folder.
    path: PathBuf,
    /// Taps to show, e.g. q_rope,k_rope [default: all]
    #[arg(long, short, value_name = "LIST", value_delimiter = ',', help_heading = "Dumps")]
    tap: Vec<Point>,
    /// Layers to show, e.g. 0,2-3 [default: all]
    #[arg(long, short, value_name = "LIST", allow_negative_numbers = true, help_heading = "Dumps")]
    layer: Option<Ranges>,
    /// Forward passes to show; 0 is the prompt [default: all]
    #[arg(long, short, value_name = "LIST", allow_negative_numbers = true, help_heading = "Dumps")]
    pass: Option<Ranges>,
    /// Unquantised model to compare the weights with
    ///
    /// PATH is a quantised Hugging Face model folder that was made of this model. Exits with 1 if a weight differs by more than its format explains.
    #[arg(long, value_name = "ORIGINAL", help_heading = "Quantised checkpoints")]
    verify: Option<PathBuf>,
    #[command(flatten)]
    map: MapOptions,
    /// Model that computed the activations
    #[arg(long, short, value_name = "MODEL", help_heading = "Files without a manifest")]
    model: Option<String>,
    /// Token ids that the model read, e.g. 1,15043
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        value_parser = token_id,
        help_heading = "Files without a manifest"
    )]
    tokens: Option<Vec<u32>>,
    #[command(flatten)]
    output: FormatOptions,
}

impl InspectArgs {
    /// Returns true if an option about files without a manifest was given.
    fn reads_by_map(&self) -> bool {
        !self.map.maps.is_empty() || self.model.is_some() || self.tokens.is_some()
    }

    fn asks_for_some(&self) -> bool {
        !self.tap.is_empty() || self.layer.is_some() || self.pass.is_some()
    }

    fn asks_for(&self, site: Site) -> bool {
        let places =
            Selection { layers: self.layer.clone(), passes: self.pass.clone(), ..Selection::everything() };
        (self.tap.is_empty() || self.tap.contains(&site.point)) && places.takes(site, &(0..0))
    }
}

/// Shows a model's metadata and tensors, or a dump's manifest and the statistics of every tap.
pub(crate) fn run(args: &InspectArgs) -> Result<Verdict> {
    if let Some(original) = &args.verify {
        let (verdict, found) = verify(&args.path, original, args.output)?;
        args.output.document(|| found);
        return Ok(verdict);
    }
    let found = look(args)?;
    args.output.document(|| json!({"found": found}));
    Ok(Verdict::Pass)
}

/// Shows the content of the path, and returns it as JSON.
fn look(args: &InspectArgs) -> Result<Vec<Value>> {
    let path = args.path.to_str().map_or(args.path.as_path(), |typed| Path::new(parts_of(typed).0));
    if let Some(url) = path.to_str().map_or(Ok(None), Url::of)? {
        return look_elsewhere(&url, args);
    }
    if path.join("manifest.json").is_file() {
        return look_at_dumps(&Dump::open_all(path)?, args);
    }
    if path.exists() && args.reads_by_map() && is_foreign(path)? {
        return look_at_foreign(path, args);
    }
    if path.is_dir() {
        return look_at_files(ModelFiles::open(path)?.weights().to_vec(), args);
    }
    let name = path.to_str().filter(|_| !path.exists());
    if let Some(model) = name.and_then(shipped_models::model) {
        let weights = model.variants()?.into_iter().flat_map(|(_, files)| files.weights().to_vec());
        return look_at_files(weights.collect(), args);
    }
    let shipped = name.map_or(Ok(None), shipped_models::source)?;
    look_at_file(shipped.map_or_else(|| FileBytes::open(path), Ok)?, args)
}

/// Shows a file without a manifest as the dump that a map makes of it.
fn look_at_foreign(path: &Path, args: &InspectArgs) -> Result<Vec<Value>> {
    let target = args.model.as_deref().map(|model| RequestedModelOptions::of(model).find()).transpose()?;
    let foreign = MappedFileContext::new(&args.map, args.tokens.clone(), target.as_ref());
    let Some(read) = foreign.open(path)? else { return Ok(Vec::new()) };
    let mut found = look_at_dump(&read.dump, args)?;
    read.notes.iter().for_each(|note| args.output.line(format_args!("note: {}", plain(note))));
    found["notes"] = json!(read.notes);
    Ok(vec![found])
}

/// Shows a file behind a URL and reads only the displayed parts.
fn look_elsewhere(url: &Url, args: &InspectArgs) -> Result<Vec<Value>> {
    let (place, path) = (remote(url)?, Path::new(url.shown()));
    refuse_loose_arrays(&place, url)?;
    let files = match place.is_folder(path) || url.name().ends_with(".index.json") {
        true => ModelFiles::open_in(&place, path)?.weights().to_vec(),
        false => vec![place.open()?],
    };
    let pinned = |file: FileBytes| {
        args.output.line(format_args!("read in parts, {}", plain(file.data.pin().unwrap_or_default())));
        look_at_file(file, args)
    };
    files.into_iter().map(pinned).collect::<Result<Vec<_>>>().map(|found| found.concat())
}

fn look_at_files(files: Vec<FileBytes>, args: &InspectArgs) -> Result<Vec<Value>> {
    let found = files.into_iter().map(|file| look_at_file(file, args)).collect::<Result<Vec<_>>>();
    found.map(|found| found.concat())
}

fn look_at_file(source: FileBytes, args: &InspectArgs) -> Result<Vec<Value>> {
    let format = Format::detect(&source)?;
    if args.asks_for_some() && matches!(format, Format::Gguf | Format::Pytorch | Format::Llama2c) {
        let problem = "--tap, --layer and --pass need a dump, and this is a file of weights; omit them, or \
            use --map to read the arrays as a dump";
        return Err(Error::Usage(format!("{}: {problem}", source.path.display())));
    }
    let found = match format {
        Format::Gguf => look_at_gguf(&Gguf::read(&source)?, args.output),
        Format::Safetensors => return look_at_safetensors(&source, args),
        Format::Pytorch => {
            let tensors = Pytorch::read(&source)?.tensors;
            args.output.line(format_args!("{}: PyTorch", tensors.path().display()));
            weights("pytorch", Value::Null, &tensors, args.output)
        }
        Format::Llama2c => look_at_llama2c(&Llama2cFile::read(&source)?, args.output),
        Format::Npz | Format::Npy => return look_at_dumps(&Dump::all_from_source(source)?, args),
    };
    Ok(vec![found])
}

fn look_at_gguf(file: &Gguf, output: FormatOptions) -> Value {
    output.line(format_args!("{}: GGUF version {}", file.tensors.path().display(), file.version));
    output.line("\nmetadata");
    let mut metadata = json!({});
    for (key, value) in file.metadata().iter() {
        show_entry(output, key, value);
        metadata[key] = of_metadata(value);
    }
    weights("gguf", metadata, &file.tensors, output)
}

/// Returns a number, a boolean or a string as JSON; for an array, a description instead of its values.
fn of_metadata(value: &gguf::GgufValue) -> Value {
    match value {
        gguf::GgufValue::Number(number) => number.to_string().parse().unwrap_or(Value::Null),
        gguf::GgufValue::Bool(truth) => json!(truth),
        gguf::GgufValue::String(text) => json!(text),
        array => json!({"array": array.to_string()}),
    }
}

/// Shows a safetensors file: a dump if its metadata has a manifest, otherwise weights.
fn look_at_safetensors(source: &FileBytes, args: &InspectArgs) -> Result<Vec<Value>> {
    let file = Safetensors::read(source)?;
    if Dump::is_inside(&file) {
        return look_at_dumps(&Dump::all_from_source(source.clone())?, args);
    }
    args.output.line(format_args!("{}: safetensors", source.path.display()));
    file.metadata.iter().for_each(|(key, value)| show_entry(args.output, key, value));
    Ok(vec![weights("safetensors", json!(file.metadata), &file.tensors, args.output)])
}

fn look_at_llama2c(file: &Llama2cFile, output: FormatOptions) -> Value {
    let h = &file.header;
    output.line(format_args!("{}: llama2.c version {}", file.tensors.path().display(), h.version));
    let sizes = [
        ("dim", h.dim),
        ("hidden_dim", h.hidden_dim),
        ("n_layers", h.n_layers),
        ("n_heads", h.n_heads),
        ("n_kv_heads", h.n_kv_heads),
        ("vocab_size", h.vocab_size),
        ("seq_len", h.seq_len),
    ];
    sizes.iter().for_each(|(name, size)| output.line(format_args!("  {name} = {size}")));
    output.line(format_args!("  shared_classifier = {}", h.shared_classifier));
    h.group_size.iter().for_each(|size| output.line(format_args!("  group_size = {size}")));
    let sizes = sizes.iter().map(|(name, size)| ((*name).to_owned(), json!(size)));
    let mut metadata: Value = sizes.collect();
    metadata["shared_classifier"] = json!(h.shared_classifier);
    metadata["group_size"] = json!(h.group_size);
    weights("llama2.c", metadata, &file.tensors, output)
}

/// Maximum number of rows of a table. Each row takes some thousand bytes of memory.
const MOST_ROWS: usize = 10_000;

/// Shows the tensors of a weight file.
fn weights(format: &str, metadata: Value, file: &TensorFile, output: FormatOptions) -> Value {
    let elements: usize = file.iter().map(|(_, tensor)| tensor.elements()).sum();
    output.line(format_args!("\n{} tensors, {elements} elements", file.len()));
    let mut table = plain_table(&["tensor", "type", "shape", "bytes"]);
    let mut tensors = Vec::new();
    for (index, (name, tensor)) in file.iter().enumerate() {
        let (dtype, shape, bytes) = (tensor.dtype.to_string(), &tensor.shape, tensor.data.len());
        tensors.push(json!({"tensor": name, "type": dtype, "shape": shape, "bytes": bytes}));
        if index < MOST_ROWS {
            table.add_row([plain(name), dtype, format!("{shape:?}"), bytes.to_string()]);
        }
    }
    output.line(table.trim_fmt());
    if let Some(more @ 1..) = file.len().checked_sub(MOST_ROWS) {
        output.line(format_args!("and {more} more; --format json lists all"));
    }
    let path = file.path().display().to_string();
    json!({"kind": "weights", "format": format, "path": path, "metadata": metadata, "tensors": tensors})
}

/// Shows each sequence of a dump as a separate dump.
fn look_at_dumps(dumps: &[Dump], args: &InspectArgs) -> Result<Vec<Value>> {
    let asked = args.path.to_str().map_or(Ok(None), |typed| asked_for(typed, dumps))?;
    let shown = asked.map_or(dumps, |number| &dumps[number..=number]);
    let one = |(index, dump): (usize, &Dump)| {
        if index > 0 {
            args.output.line("");
        }
        if let Some(sequence) = &dump.manifest.sequence {
            args.output.line(format_args!("sequence {}", plain(sequence)));
        }
        look_at_dump(dump, args)
    };
    shown.iter().enumerate().map(one).collect()
}

fn look_at_dump(dump: &Dump, args: &InspectArgs) -> Result<Value> {
    show_manifest(dump, &dump.path, args.output);
    let mut sites: Vec<Site> = dump.sites().filter(|&site| args.asks_for(site)).collect();
    sites.sort_by_key(|site| site.flow_order());
    let lacks_layers = args.layer.is_some() && sites.iter().all(|site| site.layer.is_none());
    if lacks_layers || sites.is_empty() && args.asks_for_some() {
        let held: Vec<_> = dump.points().into_iter().map(Point::name).collect();
        let problem =
            format!("no value matches --tap, --layer and --pass; the dump has the taps {}", held.join(", "));
        return Err(Error::dump(&dump.path, problem));
    }
    let mut table = plain_table(&["tap", "layer", "pass", "shape", "min", "max", "mean", "rms", "odd"]);
    let mut taps = Vec::new();
    for site in sites {
        let shape = &dump.row(site).expect("the dump has a row of each listed site").shape;
        dump.check_content(site)?;
        let figures = match dump.sketch(site)? {
            Some(sketch) => figures_of_sketch(&sketch, shape.iter().product()),
            None => statistics(&dump.read(site)?.expect("a site without a sketch has values")),
        };
        let number = |number: Option<usize>| number.map_or(String::new(), |number| number.to_string());
        let mut row =
            vec![site.point.to_string(), number(site.layer), number(site.pass), format!("{shape:?}")];
        row.extend(figures.cells());
        table.add_row(row.into_iter().enumerate().map(|(column, text)| {
            Cell::new(text).set_alignment(if column < 4 { CellAlignment::Left } else { CellAlignment::Right })
        }));
        let TapStatistics { min, max, mean, rms, odd, .. } = figures;
        taps.push(json!({
            "tap": site.point.name(), "layer": site.layer, "pass": site.pass, "shape": shape,
            "min": min, "max": max, "mean": mean, "rms": rms, "odd": odd,
        }));
    }
    args.output.line(format_args!("\n{}", table.trim_fmt()));
    let manifest = &dump.manifest;
    let passes = manifest.passes.iter().map(|pass| json!({"position": pass.position, "tokens": pass.tokens}));
    Ok(json!({
        "kind": "dump",
        "path": dump.path.display().to_string(),
        "sequence": manifest.sequence,
        "producer": {
            "name": manifest.producer.name,
            "version": manifest.producer.version,
            "settings": manifest.producer.settings,
        },
        "model": {
            "name": manifest.model.name,
            "architecture": manifest.model.architecture,
            "sha256": manifest.model.sha256,
        },
        "prompt": manifest.input.prompt,
        "tokens": manifest.input.tokens,
        "passes": passes.collect::<Vec<_>>(),
        "generated": manifest.generated,
        "taps": taps,
    }))
}

fn show_manifest(dump: &Dump, path: &Path, output: FormatOptions) {
    let manifest = &dump.manifest;
    let producer = &manifest.producer;
    let program = plain(format_args!("{} {}", producer.name, producer.version));
    output.line(format_args!("{}: dump made by {program}", path.display()));
    for (key, value) in &producer.settings {
        show_entry(output, key, value);
    }
    let model = format_args!("{} ({})", manifest.model.name, manifest.model.architecture);
    output.line(format_args!("model     {}", plain(model)));
    if let Some(sha256) = &manifest.model.sha256 {
        output.line(format_args!("sha256    {}", plain(sha256)));
    }
    let (prompt, tokens) = (&manifest.input.prompt, &manifest.input.tokens);
    output.line(format_args!("prompt    {prompt:?}\ntokens    {tokens:?}"));
    for (index, pass) in manifest.passes.iter().enumerate() {
        output.line(format_args!("pass {index:<4} position {}, tokens {:?}", pass.position, pass.tokens));
    }
    if let Some(generated) = &manifest.generated {
        output.line(format_args!("generated {generated:?}"));
    }
}

/// The statistics of a tap's values; a missing figure is `None`.
struct TapStatistics {
    min: Option<f64>,
    max: f64,
    mean: f64,
    rms: f64,
    odd: String,
    is_sketch: bool,
}

impl TapStatistics {
    fn cells(&self) -> [String; 5] {
        let of = |figure: f64| format!("{figure:.4}");
        let min = match self.is_sketch {
            true => format!("±{}", of(self.max)),
            false => of(self.min.unwrap_or(f64::NAN)),
        };
        let max = if self.is_sketch { String::new() } else { of(self.max) };
        [min, max, of(self.mean), of(self.rms), self.odd.clone()]
    }
}

/// Returns minimum, maximum, mean and root mean square of the finite values. Also notes non-finite values, or that all
/// values are zero.
fn statistics(values: &ArrayValues) -> TapStatistics {
    let finite: Vec<f64> = values.data.iter().copied().filter(|value| value.is_finite()).collect();
    let count = finite.len() as f64;
    let min = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let max = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mean = finite.iter().sum::<f64>() / count;
    let rms = (finite.iter().map(|value| value * value).sum::<f64>() / count).sqrt();
    let odd = match values.data.len() - finite.len() {
        0 if rms == 0.0 => "all zero".to_owned(),
        0 => String::new(),
        nonfinite => format!("{nonfinite} non-finite"),
    };
    TapStatistics { min: Some(min), max, mean, rms, odd, is_sketch: false }
}

/// Returns the statistics that a sketch provides. Of extremes, a sketch has only the absolute values.
fn figures_of_sketch(sketch: &View, elements: usize) -> TapStatistics {
    let column = |column: usize| (0..sketch.rows()).map(move |row| sketch.get(row * sketch.width() + column));
    let count = elements as f64;
    let (mean, rms) = (column(1).sum::<f64>() / count, (column(2).sum::<f64>() / count).sqrt());
    let max = column(3).fold(0.0, larger);
    TapStatistics { min: None, max, mean, rms, odd: "sketch".to_owned(), is_sketch: true }
}

fn show_entry(output: FormatOptions, key: &str, value: impl Display) {
    output.line(format_args!("  {} = {}", plain(key), plain(value)));
}
