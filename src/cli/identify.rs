//! `xcheck identify`: finds the taps of the arrays in a file without a manifest.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::atomic_write::UnfinishedFile;
use crate::checkpoint::{Site, TapAxis};
use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{FormatOptions, ModelOptions, RequestedModelOptions, ThreadOptions};
use crate::cli::prompt::PromptOptions;
use crate::cli::terminal::{plain_table, tell};
use crate::error::{Error, Result};
use crate::format::{Arrays, EscapedText};
use crate::identify::{ArraySite, IdentifiedArray, guesses_of, identify, map_of};
use crate::map::{MapDefinition, tokens_of};
use crate::verdict::Verdict;

/// Arguments of `xcheck identify`.
#[derive(Debug, Args)]
pub(crate) struct IdentifyArgs {
    /// File of activations without a manifest
    ///
    /// A .safetensors or .npz file, a file written by torch.save, or a folder of such files.
    file: PathBuf,
    #[command(flatten)]
    target: RequestedModelOptions,
    #[command(flatten)]
    prompt: PromptOptions,
    /// File to write the name map to, for --map of other commands
    #[arg(long, value_name = "FILE")]
    map_out: Option<PathBuf>,
    #[command(flatten)]
    output: FormatOptions,
    #[command(flatten)]
    numerics: NumericsOptions,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
}

/// Runs the model and reports the tap of each array.
pub(crate) fn run(args: &IdentifyArgs) -> Result<Verdict> {
    let target = args.target.find()?;
    let arrays = Arrays::open(&args.file)?;
    let tokens = tokens_of(&arrays, args.prompt.tokens(&target)?)?.ok_or_else(|| {
        Error::Usage(format!(
            "{}: the tokens that the model read are unknown; give --tokens 1,2,3 or --prompt",
            args.file.display()
        ))
    })?;
    let out = args.map_out.as_deref().map(MapFile::create).transpose()?;
    let loaded = args.model.load(&target.variants[0])?;
    let numerics = args.numerics.of(&*loaded.model, None)?;
    let identified = identify(&arrays, &tokens, &*loaded.model, &*numerics)?;
    let told = identified.iter().filter(|one| one.is_told()).count();
    args.output.line(shown(&identified, told, &args.file));
    args.output.document(|| identified.iter().flat_map(rows).collect());
    match out {
        Some(out) if identified.iter().any(|one| !one.places.is_empty() && !one.is_guess()) => {
            let map = map_of(&identified, &tokens, &*loaded.model);
            let path = out.path;
            let rules = guesses_of(&identified, &tokens, &*loaded.model);
            let guesses = MapDefinition { rules, ..MapDefinition::default() };
            out.write(&format!("{}{}", plain(&map), commented(&plain(&guesses))))?;
            let say = format!(
                "wrote the map {0}; use it with: xcheck check --model {2} --candidate {1} --map {0}",
                path.display(),
                args.file.display(),
                args.target.model
            );
            tell!("{say}");
        }
        Some(out) => tell!("{} was not written: no array was identified with certainty", out.path.display()),
        None => {}
    }
    let all = !identified.is_empty() && told == identified.len();
    Ok(if all { Verdict::Pass } else { Verdict::Inconclusive })
}

/// The name map to write. The path is checked before the work starts.
struct MapFile<'p> {
    path: &'p Path,
    beside: UnfinishedFile,
}

impl<'p> MapFile<'p> {
    fn create(path: &'p Path) -> Result<Self> {
        if path.exists() {
            return Err(Error::Usage(format!(
                "{} already exists; use another name or remove it",
                path.display()
            )));
        }
        let beside = UnfinishedFile::of(path).map_err(Error::io("create", path))?;
        Ok(Self { path, beside })
    }

    fn write(mut self, map: &str) -> Result<()> {
        self.beside.as_file().write_all(map.as_bytes()).map_err(Error::io("write", self.path))?;
        self.beside.finish_new().map_err(Error::io("create", self.path))
    }
}

fn plain(map: &MapDefinition) -> String {
    toml::to_string(map).expect("a map is plain data")
}

/// Returns the rules of best guesses as TOML comments that a user can uncomment.
fn commented(rules: &str) -> String {
    const HEAD: &str = "\n# Best guesses (rounding does not explain their errors). Uncomment a rule if you know it is right.\n";
    let lines = rules.lines().skip_while(|line| *line != "[[rule]]").filter(|line| !line.is_empty());
    let lines: String = lines.map(|line| format!("# {line}\n")).collect();
    if lines.is_empty() { lines } else { format!("{HEAD}{lines}") }
}

fn shown(identified: &[IdentifiedArray], told: usize, file: &Path) -> String {
    let mut table = plain_table(&["array", "shape", "is", "rel_l2", "how", "or"]);
    for array in identified {
        let (name, shape) = (EscapedText(&array.name).to_string(), format!("{:?}", array.shape));
        for place in &array.places {
            let others: Vec<String> = place.others.iter().map(ToString::to_string).collect();
            let row = [
                name.clone(),
                shape.clone(),
                if place.is_certain { place.site.to_string() } else { format!("best guess: {}", place.site) },
                figure(place),
                how(array, place),
                others.join("; "),
            ];
            table.add_row(row);
        }
        if array.places.is_empty() {
            let nearest = array.nearest.as_ref().map(|place| format!("nearest: {}", place.site));
            let what = if array.is_tokens() { "tokens" } else { "unknown" };
            let near = array.nearest.as_ref().map_or(String::new(), figure);
            let why =
                array.because.clone().or(nearest).unwrap_or_else(|| "no similar value in our run".to_owned());
            table.add_row([name, shape, what.to_owned(), near, why, String::new()]);
        }
    }
    format!("{}\n\n{}: {told} of {} arrays identified", table.trim_fmt(), file.display(), identified.len())
}

fn figure(place: &ArraySite) -> String {
    format!("{:.1e}", place.rel_l2)
}

/// Describes how an array stores a tap, if it differs from the default layout.
fn how(array: &IdentifiedArray, place: &ArraySite) -> String {
    let axes = axes(place);
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
    let rounded = array.rounded.map(|dtype| format!("values of {dtype}"));
    let all = [order, part, rows, pairing, scale, rounded, array.because.clone()];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn axes(place: &ArraySite) -> Vec<String> {
    TapAxis::names(place.axes.iter().map(|(axis, _)| *axis))
}

/// Returns a JSON object for each tap of an array.
fn rows(array: &IdentifiedArray) -> Vec<Value> {
    let blank = json!({
        "name": array.name, "tap": null, "layer": null, "pass": null, "rows": null, "axes": null, "of": null, "certain": null,
        "rope_pairing": null, "scale": null, "dtype": array.rounded.unwrap_or(array.dtype).name(),
        "rel_l2": null, "others": [],
    });
    let with = |fields: Value| {
        let mut row = blank.clone();
        if let (Value::Object(row), Value::Object(fields)) = (&mut row, fields) {
            row.extend(fields);
        }
        row
    };
    if array.places.is_empty() {
        let because = array.because.clone().unwrap_or_else(|| "unknown".to_owned());
        let tap = array.is_tokens().then_some("tokens");
        return vec![with(json!({"tap": tap, "because": because}))];
    }
    let row = |place: &ArraySite| {
        let place_of =
            |site: &Site| json!({"tap": site.point.name(), "layer": site.layer, "pass": site.pass});
        with(json!({
            "tap": place.site.point.name(), "layer": place.site.layer, "pass": place.site.pass,
            "rows": place.rows.map(|(first, count)| [first, first + count]),
            "axes": axes(place), "of": place.of.as_ref().map(|(of, _)| of),
            "rope_pairing": place.pairing.map(|pairing| pairing.name()),
            "scale": place.scale, "rel_l2": place.rel_l2, "certain": place.is_certain, "because": array.because,
            "others": place.others.iter().map(place_of).collect::<Vec<_>>(),
        }))
    };
    array.places.iter().map(row).collect()
}
