//! `xcheck inspect`: what a model file or a dump holds.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use comfy_table::{Cell, CellAlignment, Table, presets};

use crate::checkpoint::{Point, Site};
use crate::cli::elsewhere::{refuse_loose_arrays, remote};
use crate::cli::foreign::{Foreign, MapOptions, is_foreign};
use crate::cli::options::TargetOptions;
use crate::cli::sequence::{asked_for, parts_of};
use crate::compare::{Ranges, Selection, Verdict, larger};
use crate::dump::{Dump, Values};
use crate::error::Result;
use crate::format::{Format, Gguf, Llama2c, Place, Pytorch, Safetensors, Source, TensorFile, plain};
use crate::model::ModelFiles;
use crate::remote::Url;
use crate::shipped;
use crate::view::View;

/// Arguments of `xcheck inspect`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// A GGUF, safetensors or PyTorch file, a Hugging Face directory, a dump, the URL of any of these, or the name of one that ships
    path: PathBuf,
    /// Of a dump, only these taps, e.g. q_rope,k_rope
    #[arg(long, short, value_name = "LIST", value_delimiter = ',')]
    tap: Vec<Point>,
    /// Of a dump, only these layers, e.g. 0,2-3
    #[arg(long, short, value_name = "LIST")]
    layer: Option<Ranges>,
    /// Of a dump, only these forward passes; 0 is the prompt
    #[arg(long, short, value_name = "LIST")]
    pass: Option<Ranges>,
    #[command(flatten)]
    map: MapOptions,
    /// Of a file that is no dump: the model that it is of
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// Of a file that is no dump: what the model read, e.g. 1,15043
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    tokens: Option<Vec<u32>>,
}

impl Args {
    /// Whether anything is said of how a file that is no dump is to be read.
    fn reads_by_map(&self) -> bool {
        self.map.map.is_some() || self.model.is_some() || self.tokens.is_some()
    }

    fn asks_for(&self, site: Site) -> bool {
        let places =
            Selection { layers: self.layer.clone(), passes: self.pass.clone(), ..Selection::everything() };
        (self.tap.is_empty() || self.tap.contains(&site.point)) && places.takes(site, &(0..0))
    }
}

/// Shows a model's metadata and tensors, or a dump's manifest and statistics of every tap.
pub fn run(args: &Args) -> Result<Verdict> {
    let path = args.path.to_str().map_or(args.path.as_path(), |typed| Path::new(parts_of(typed).0));
    if let Some(url) = path.to_str().map_or(Ok(None), Url::of)? {
        return show_elsewhere(&url, args);
    }
    if path.join("manifest.json").is_file() {
        return show_dumps(&Dump::open_all(path)?, args);
    }
    if path.exists() && args.reads_by_map() && is_foreign(path)? {
        return show_foreign(path, args);
    }
    if path.is_dir() {
        ModelFiles::open(path)?
            .weights()
            .iter()
            .try_for_each(|file| show_file(file.clone(), args).map(drop))?;
        return Ok(Verdict::Pass);
    }
    match path.to_str().and_then(shipped::source) {
        Some(shipped) if !path.exists() => show_file(shipped, args),
        _ => show_file(Source::open(path)?, args),
    }
}

/// A file of arrays as the dump that it is by a map.
fn show_foreign(path: &Path, args: &Args) -> Result<Verdict> {
    let target = args.model.as_deref().map(|model| TargetOptions::of(model).find()).transpose()?;
    let foreign = Foreign::new(&args.map, args.tokens.clone(), target.as_ref());
    if let Some(read) = foreign.open(path)? {
        show_dump(&read.dump, args)?;
        read.notes.iter().for_each(|note| anstream::println!("note: {}", plain(note)));
    }
    Ok(Verdict::Pass)
}

/// What is behind a URL: only what is shown is read.
fn show_elsewhere(url: &Url, args: &Args) -> Result<Verdict> {
    let (place, path) = (remote(url)?, Path::new(url.shown()));
    refuse_loose_arrays(&place, url)?;
    let files = match place.is_folder(path) || url.name().ends_with(".index.json") {
        true => ModelFiles::open_in(&place, path)?.weights().to_vec(),
        false => vec![place.open()?],
    };
    for file in files {
        anstream::println!("read in parts, {}", plain(file.data.pin().unwrap_or_default()));
        show_file(file, args)?;
    }
    Ok(Verdict::Pass)
}

fn show_file(source: Source, args: &Args) -> Result<Verdict> {
    match Format::detect(&source)? {
        Format::Gguf => show_gguf(&Gguf::read(&source)?),
        Format::Safetensors => show_safetensors(&source, args),
        Format::Pytorch => show_pytorch(&Pytorch::read(&source)?.tensors),
        Format::Llama2c => show_llama2c(&Llama2c::read(&source)?),
        Format::Npz | Format::Npy => show_dumps(&Dump::all_from_source(source)?, args),
    }
}

fn show_gguf(file: &Gguf) -> Result<Verdict> {
    anstream::println!("{}: GGUF version {}", file.tensors.path().display(), file.version);
    anstream::println!("\nmetadata");
    for (key, value) in file.metadata().iter() {
        show_entry(key, value);
    }
    show_tensors(&file.tensors);
    Ok(Verdict::Pass)
}

/// A safetensors file is a dump if its metadata holds a manifest.
fn show_safetensors(source: &Source, args: &Args) -> Result<Verdict> {
    let file = Safetensors::read(source)?;
    if Dump::is_inside(&file) {
        return show_dumps(&Dump::all_from_source(source.clone())?, args);
    }
    anstream::println!("{}: safetensors", source.path.display());
    for (key, value) in &file.metadata {
        show_entry(key, value);
    }
    show_tensors(&file.tensors);
    Ok(Verdict::Pass)
}

fn show_pytorch(tensors: &TensorFile) -> Result<Verdict> {
    anstream::println!("{}: PyTorch", tensors.path().display());
    show_tensors(tensors);
    Ok(Verdict::Pass)
}

fn show_llama2c(file: &Llama2c) -> Result<Verdict> {
    let h = &file.header;
    anstream::println!("{}: llama2.c version {}", file.tensors.path().display(), h.version);
    let sizes = [
        ("dim", h.dim),
        ("hidden_dim", h.hidden_dim),
        ("n_layers", h.n_layers),
        ("n_heads", h.n_heads),
        ("n_kv_heads", h.n_kv_heads),
        ("vocab_size", h.vocab_size),
        ("seq_len", h.seq_len),
    ];
    sizes.iter().for_each(|(name, size)| anstream::println!("  {name} = {size}"));
    anstream::println!("  shared_classifier = {}", h.shared_classifier);
    h.group_size.iter().for_each(|size| anstream::println!("  group_size = {size}"));
    show_tensors(&file.tensors);
    Ok(Verdict::Pass)
}

fn show_tensors(file: &TensorFile) {
    let elements: usize = file.iter().map(|(_, tensor)| tensor.elements()).sum();
    anstream::println!("\n{} tensors, {elements} elements", file.len());
    let mut table = plain_table(&["tensor", "type", "shape", "bytes"]);
    for (name, tensor) in file.iter() {
        let cells = [
            plain(name),
            tensor.dtype.to_string(),
            format!("{:?}", tensor.shape),
            tensor.data.len().to_string(),
        ];
        table.add_row(cells);
    }
    anstream::println!("{}", table.trim_fmt());
}

/// Of several sequences each as if it were a dump.
fn show_dumps(dumps: &[Dump], args: &Args) -> Result<Verdict> {
    let asked = args.path.to_str().map_or(Ok(None), |typed| asked_for(typed, dumps))?;
    let shown = asked.map_or(dumps, |number| &dumps[number..=number]);
    for (index, dump) in shown.iter().enumerate() {
        if index > 0 {
            anstream::println!();
        }
        if let Some(sequence) = &dump.manifest.sequence {
            anstream::println!("sequence {}", plain(sequence));
        }
        show_dump(dump, args)?;
    }
    Ok(Verdict::Pass)
}

fn show_dump(dump: &Dump, args: &Args) -> Result<()> {
    show_manifest(dump, &dump.path);
    let mut sites: Vec<Site> = dump.sites().filter(|&site| args.asks_for(site)).collect();
    sites.sort_by_key(|site| site.flow_order());
    let mut table = plain_table(&["tap", "layer", "pass", "shape", "min", "max", "mean", "rms", "odd"]);
    for site in sites {
        let shape = &dump.row(site).expect("its site came from this dump").shape;
        dump.check_content(site)?;
        let figures = match dump.sketch(site)? {
            Some(sketch) => figures_of_sketch(&sketch, shape.iter().product()),
            None => statistics(&dump.read(site)?.expect("what is no sketch is held")),
        };
        let number = |number: Option<usize>| number.map_or(String::new(), |number| number.to_string());
        let mut row =
            vec![site.point.to_string(), number(site.layer), number(site.pass), format!("{shape:?}")];
        row.extend(figures);
        table.add_row(row.into_iter().enumerate().map(|(column, text)| {
            Cell::new(text).set_alignment(if column < 4 { CellAlignment::Left } else { CellAlignment::Right })
        }));
    }
    anstream::println!("\n{}", table.trim_fmt());
    Ok(())
}

fn show_manifest(dump: &Dump, path: &Path) {
    let manifest = &dump.manifest;
    let producer = &manifest.producer;
    let program = plain(format_args!("{} {}", producer.name, producer.version));
    anstream::println!("{}: a dump by {program}", path.display());
    for (key, value) in &producer.settings {
        show_entry(key, value);
    }
    let model = format_args!("{} ({})", manifest.model.name, manifest.model.architecture);
    anstream::println!("model     {}", plain(model));
    if let Some(sha256) = &manifest.model.sha256 {
        anstream::println!("sha256    {}", plain(sha256));
    }
    anstream::println!("prompt    {:?}\ntokens    {:?}", manifest.input.prompt, manifest.input.tokens);
    for (index, pass) in manifest.passes.iter().enumerate() {
        anstream::println!("pass {index:<4} position {}, tokens {:?}", pass.position, pass.tokens);
    }
    if let Some(generated) = &manifest.generated {
        anstream::println!("generated {generated:?}");
    }
}

/// Smallest, largest, mean, root mean square of the finite values, and what is odd about them.
fn statistics(values: &Values) -> [String; 5] {
    let finite: Vec<f64> = values.data.iter().copied().filter(|value| value.is_finite()).collect();
    let count = finite.len() as f64;
    let min = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let max = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mean = finite.iter().sum::<f64>() / count;
    let rms = (finite.iter().map(|value| value * value).sum::<f64>() / count).sqrt();
    let odd = match values.data.len() - finite.len() {
        0 if rms == 0.0 => "all zero".to_owned(),
        0 => String::new(),
        nonfinite => format!("{nonfinite} not finite"),
    };
    let [min, max, mean, rms] = [min, max, mean, rms].map(|figure| format!("{figure:.4}"));
    [min, max, mean, rms, odd]
}

/// The same as far as a sketch tells: of the smallest and the largest their size.
fn figures_of_sketch(sketch: &View, elements: usize) -> [String; 5] {
    let column = |column: usize| (0..sketch.rows()).map(move |row| sketch.get(row * sketch.width() + column));
    let count = elements as f64;
    let (mean, rms) = (column(1).sum::<f64>() / count, (column(2).sum::<f64>() / count).sqrt());
    let most = column(3).fold(0.0, larger);
    let [most, mean, rms] = [most, mean, rms].map(|figure| format!("{figure:.4}"));
    [format!("±{most}"), String::new(), mean, rms, "sketch".to_owned()]
}

fn show_entry(key: &str, value: impl Display) {
    anstream::println!("  {} = {}", plain(key), plain(value));
}

fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    table
}
