//! A dump while it is written.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{json, Value};

use crate::axes::{axes_of, Axis};
use crate::container::Container;
use crate::error::{refuse, Error, Result};
use crate::manifest::manifest;
use crate::meta::Meta;
use crate::passes::{slots, Pass, Passes, Place, Row};
use crate::taps::{Scope, Tap};
use crate::values::Values;

/// A dump that is being written. Dropped before [`Dump::finish`] it leaves nothing.
#[derive(Debug)]
pub struct Dump {
    meta: Meta,
    container: Container,
    passes: Passes,
    generated: Vec<Option<Vec<u32>>>,
    /// Rows of the manifest, in JSON.
    rows: String,
    /// The places of this pass.
    seen: HashSet<(&'static str, Option<usize>)>,
    is_several: bool,
    is_version_2: bool,
    /// The first error: nothing is taken after it.
    failed: Option<String>,
}

/// What may be said of a value besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'o> {
    /// What the axes are, where they are not the tap's.
    pub axes: Option<&'o [Axis]>,
    /// The rows of the pass that the array holds, in ascending order, if not all (version 2).
    pub rows: Option<&'o [usize]>,
    /// The type that values were rounded to before they were stored in a longer one: f32, f16 or bf16 (version 2).
    pub computed: Option<&'o str>,
}

/// A tap that is a part of an array.
#[derive(Clone, Copy, Debug)]
pub struct Part<'p> {
    /// The tap.
    pub tap: &'p str,
    /// The shape by which the array is cut: of as many elements.
    pub of: &'p [usize],
    /// Where the part begins along each axis.
    pub start: &'p [usize],
    /// Where it ends, the end not included.
    pub end: &'p [usize],
    /// What may be said besides.
    pub options: Options<'p>,
}

impl Dump {
    /// Starts a dump at a path where nothing is yet.
    ///
    /// # Errors
    /// If something is there, `meta` lacks what has to be said, or the file cannot be made.
    pub fn create(path: impl AsRef<Path>, meta: Meta) -> Result<Self> {
        for (what, text) in [("producer", &meta.producer), ("architecture", &meta.architecture)] {
            if text.is_empty() {
                return refuse(format!("Meta::{what} is empty; a dump has to say it"));
            }
        }
        let is_hash =
            |text: &String| text.len() == 64 && text.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
        if let Some(text) = meta.sha256.as_ref().filter(|text| !is_hash(text)) {
            return refuse(format!("Meta::sha256 is '{text}', expected 64 digits, 0 to 9 and a to f"));
        }
        let passes = Passes::new(meta.sequences.clone())?;
        let several = meta.sequences.len() > 1;
        let (container, generated) = (Container::create(path.as_ref())?, vec![None; meta.sequences.len()]);
        let (rows, seen) = (String::new(), HashSet::new());
        let (is_several, is_version_2, failed) = (several, several, None);
        Ok(Self { meta, container, passes, generated, rows, seen, is_several, is_version_2, failed })
    }

    /// Begins a forward pass over these tokens, which go on where the pass before stopped.
    ///
    /// # Errors
    /// If there are none, they are not the prompt's, or there are several sequences.
    pub fn pass(&mut self, tokens: &[u32]) -> Result<()> {
        self.attempt(|dump| {
            dump.passes.begin(tokens)?;
            dump.generated.resize(dump.passes.sequences.len(), None);
            dump.seen.clear();
            Ok(())
        })
    }

    /// Begins a forward pass over rows of several sequences, of padded, packed or continuous batches (version 2).
    ///
    /// # Errors
    /// If a row does not go on where its sequence stopped, or reads another token than its prompt.
    pub fn pass_of(&mut self, rows: &[Row]) -> Result<()> {
        self.attempt(|dump| {
            dump.passes.begin_rows(rows)?;
            (dump.is_several, dump.is_version_2) = (true, true);
            dump.seen.clear();
            Ok(())
        })
    }

    /// What attention sees along the axis `key` in this pass, if that is not all that the cache has been given, in its order.
    ///
    /// # Errors
    /// Outside a pass, or twice in one.
    pub fn keys(&mut self, keys: &[Place]) -> Result<()> {
        self.attempt(|dump| {
            dump.is_version_2 = true;
            dump.current()?.say("keys", slots(keys).into_iter().collect())
        })
    }

    /// The same of each entry of a batch.
    ///
    /// # Errors
    /// As [`Dump::keys`].
    pub fn keys_of_entries(&mut self, entries: &[Vec<Place>]) -> Result<()> {
        self.attempt(|dump| {
            dump.is_version_2 = true;
            let entries = entries.iter().map(|keys| slots(keys).into_iter().collect());
            dump.current()?.say("keys", Value::Array(entries.collect()))
        })
    }

    /// The temperature of this pass's `probs`; 1 if it is not said.
    ///
    /// # Errors
    /// If it is no positive number, outside a pass, or twice in one.
    pub fn temperature(&mut self, temperature: f32) -> Result<()> {
        self.attempt(|dump| match temperature > 0.0 && temperature.is_finite() {
            true => dump.current()?.say("temperature", json!(temperature)),
            false => refuse(format!("a temperature of {temperature}, expected a positive number")),
        })
    }

    /// Writes a value of this pass, with the tap's own axes.
    ///
    /// # Errors
    /// If it has no such place or shape, comes twice or outside a pass, or cannot be written.
    pub fn tap(&mut self, name: &str, layer: Option<usize>, shape: &[usize], values: Values) -> Result<()> {
        self.tap_with(name, layer, shape, values, Options::default())
    }

    /// Writes a value of this pass.
    ///
    /// # Errors
    /// As [`Dump::tap`], or if `options` do not fit it.
    pub fn tap_with(
        &mut self,
        name: &str,
        layer: Option<usize>,
        shape: &[usize],
        values: Values,
        options: Options,
    ) -> Result<()> {
        self.attempt(|dump| {
            let tap = Tap::named(name)?;
            let key = dump.key(name, layer)?;
            let row = dump.row(tap, layer, shape, values, options, &key)?;
            check_count(shape, values, &key)?;
            dump.container.store(&key, shape, values)?;
            dump.list(row);
            Ok(())
        })
    }

    /// Writes an array once that several taps are parts of, under a name of your own: a fused projection (version 2).
    ///
    /// ```
    /// # use xcheck_dump::{Dump, Meta, Part, Values};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let mut dump = Dump::create(folder.path().join("run"), Meta::new("my-engine", "gpt2"))?;
    /// # let qkv = [0.0f32; 5 * 3 * 8];
    /// dump.pass(&[1, 2, 3, 4, 5])?;
    /// let of = [5, 6, 4]; // token; two heads each of q, k and v; head_dim
    /// dump.fused("qkv", Some(0), &[5, 24], Values::F32(&qkv), &[
    ///     Part::new("q", &of, &[0, 0, 0], &[5, 2, 4]),
    ///     Part::new("k", &of, &[0, 2, 0], &[5, 4, 4]),
    ///     Part::new("v", &of, &[0, 4, 0], &[5, 6, 4]),
    /// ])?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Dump::tap`], or if a part is none of the array.
    pub fn fused(
        &mut self,
        name: &str,
        layer: Option<usize>,
        shape: &[usize],
        values: Values,
        parts: &[Part],
    ) -> Result<()> {
        self.attempt(|dump| {
            check_array_name(name)?;
            let key = dump.key(name, layer)?;
            check_count(shape, values, &key)?;
            if dump.container.holds(&key) {
                return refuse(format!("array {key} comes twice; store it once"));
            }
            if parts.is_empty() {
                return refuse(format!("array {key} is of no tap; give its parts"));
            }
            dump.is_version_2 = true;
            let mut rows = Vec::new();
            for part in parts {
                let tap = Tap::named(part.tap)?;
                let cut = part.cut(values.len(), &key)?;
                let mut row = dump.row(tap, layer, &cut, values, part.options, &key)?;
                row["of"] = json!({"shape": part.of, "start": part.start, "end": part.end});
                rows.push(row);
            }
            dump.container.store(&key, shape, values)?;
            rows.into_iter().for_each(|row| dump.list(row));
            Ok(())
        })
    }

    /// The greedy continuation: one token after the prompt and one after each later pass.
    ///
    /// # Errors
    /// Before the prompt, twice, or of several sequences.
    pub fn generated(&mut self, tokens: &[u32]) -> Result<()> {
        self.attempt(|dump| match dump.generated.len() {
            0 => refuse("the continuation comes before the prompt; begin a pass first"),
            1 => dump.continue_with(0, tokens),
            _ => refuse("whose continuation is it? of several sequences call Dump::generated_of"),
        })
    }

    /// The greedy continuation of one of several sequences.
    ///
    /// # Errors
    /// If there is no such sequence, or twice.
    pub fn generated_of(&mut self, sequence: usize, tokens: &[u32]) -> Result<()> {
        self.attempt(|dump| dump.continue_with(sequence, tokens))
    }

    /// Writes what is left, and gives the dump its name.
    ///
    /// # Errors
    /// The first that there was, if it holds nothing, or if it cannot be written. Nothing is left then.
    pub fn finish(mut self) -> Result<()> {
        self.attempt(|dump| {
            if dump.rows.is_empty() {
                return refuse("the dump holds no value; tap at least one");
            }
            let passes = dump.passes.json();
            let version = if dump.is_version_2 { 2 } else { 1 };
            let (read, generated) = (&dump.passes.sequences, &dump.generated);
            let text = manifest(&dump.meta, dump.is_several, version, read, generated, &passes, &dump.rows);
            dump.container.finish(&text)
        })
    }

    /// Does what is asked for, unless something failed before: an error that was overlooked must not become a dump.
    fn attempt(&mut self, act: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if let Some(first) = &self.failed {
            return Err(Error::Refused(first.clone()));
        }
        act(self).inspect_err(|error| self.failed = Some(error.to_string()))
    }

    fn current(&mut self) -> Result<&mut Pass> {
        match &mut self.passes.current {
            Some(pass) => Ok(pass),
            None => refuse("it comes before the first pass; begin one with Dump::pass"),
        }
    }

    fn continue_with(&mut self, sequence: usize, tokens: &[u32]) -> Result<()> {
        let known = self.generated.len();
        let Some(generated) = self.generated.get_mut(sequence) else {
            return refuse(format!("there is no sequence {sequence}; there are {known}"));
        };
        match generated.replace(tokens.to_vec()) {
            None => Ok(()),
            Some(_) => refuse("the continuation comes twice; give the whole of it once"),
        }
    }

    /// p0/l00/q, p0/logits
    fn key(&mut self, name: &str, layer: Option<usize>) -> Result<String> {
        let Some(pass) = &self.passes.current else {
            return refuse(format!("'{name}' comes before the first pass; begin one with Dump::pass"));
        };
        let layer = layer.map_or(String::new(), |layer| format!("l{layer:02}/"));
        Ok(format!("p{}/{layer}{name}", pass.index))
    }

    /// What the manifest says of a value, if it can be right.
    fn row(
        &mut self,
        tap: &'static Tap,
        layer: Option<usize>,
        shape: &[usize],
        values: Values,
        options: Options,
        key: &str,
    ) -> Result<Value> {
        tap.check_layer(layer)?;
        let in_layer = layer.map_or(String::new(), |layer| format!(", layer {layer}"));
        let is_several = self.is_several;
        let pass = self.current()?;
        let index = pass.index;
        let place =
            |problem: String| Error::Refused(format!("{}{in_layer}, pass {index}: {problem}", tap.name));
        let checked = check_value(tap, pass, shape, values, options, is_several);
        checked.map_err(|error| place(error.to_string()))?;
        if !self.seen.insert((tap.name, layer)) {
            let problem = "it comes twice; begin the next pass before its values, or tap it once";
            return Err(place(problem.into()));
        }
        self.is_version_2 |= options.rows.is_some() || options.computed.is_some();
        let [dtype, ..] = values.names();
        let file = format!("{key}.npy");
        let mut row = json!({"tap": tap.name, "pass": index, "dtype": dtype, "shape": shape, "file": file});
        if let Some(layer) = layer {
            row["layer"] = json!(layer);
        }
        if let Some(axes) = options.axes {
            row["axes"] = axes.iter().map(|axis| axis.name()).collect();
        }
        if let Some(rows) = options.rows {
            row["rows"] = json!(rows);
        }
        if let Some(computed) = options.computed {
            row["computed"] = json!(computed);
        }
        Ok(row)
    }

    fn list(&mut self, row: Value) {
        if !self.rows.is_empty() {
            self.rows += ",\n";
        }
        self.rows += &row.to_string();
    }
}

impl<'p> Part<'p> {
    /// The part from `start` to before `end` of the array, seen as of shape `of`.
    pub fn new(tap: &'p str, of: &'p [usize], start: &'p [usize], end: &'p [usize]) -> Self {
        Self { tap, of, start, end, options: Options::default() }
    }

    /// The shape that is left.
    fn cut(&self, elements: usize, key: &str) -> Result<Vec<usize>> {
        let tap = self.tap;
        if count(self.of) != Some(elements) {
            let of = self.of;
            return refuse(format!(
                "tap '{tap}': {key} has {elements} elements, which cannot be seen as {of:?}"
            ));
        }
        let fits = [self.start, self.end].iter().all(|ends| ends.len() == self.of.len());
        let mut ends = self.start.iter().zip(self.end).zip(self.of);
        if !(fits && ends.all(|((start, end), length)| start < end && end <= length)) {
            let (start, end, of) = (self.start, self.end, self.of);
            return refuse(format!(
                "tap '{tap}' is cut from {start:?} to {end:?}, which is no part of {of:?}"
            ));
        }
        Ok(self.start.iter().zip(self.end).map(|(start, end)| end - start).collect())
    }
}

/// How many elements a shape has, if that is a number.
fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |count, &length| count.checked_mul(length))
}

fn check_count(shape: &[usize], values: Values, key: &str) -> Result<()> {
    if values.is_empty() {
        return refuse(format!("{key}: there are no values"));
    }
    if count(shape) != Some(values.len()) {
        return refuse(format!("{key}: {} values do not have the shape {shape:?}", values.len()));
    }
    Ok(())
}

/// A name that is no tap's becomes a path.
fn check_array_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.len() > 40 || !name.chars().all(is_plain) {
        let name = name.escape_debug();
        return refuse(format!("an array is named '{name}', expected 1 to 40 letters, digits and _"));
    }
    if Tap::named(name).is_ok() {
        return refuse(format!("an array is named '{name}' as a tap is; give it another name"));
    }
    Ok(())
}

/// Its type, axes and lengths, as the pass has them.
fn check_value(
    tap: &Tap,
    pass: &Pass,
    shape: &[usize],
    values: Values,
    options: Options,
    is_several: bool,
) -> Result<()> {
    if tap.is_tokens() != values.are_integers() {
        let wanted = if tap.is_tokens() {
            "token ids; give u32 or i32"
        } else {
            "activations; give f32, f64, f16 or bf16"
        };
        return refuse(format!("{} is no type for {wanted}", values.names()[0]));
    }
    if let Some(computed) = options.computed.filter(|name| !["f32", "f16", "bf16"].contains(name)) {
        return refuse(format!("Options::computed is '{computed}', expected f32, f16 or bf16"));
    }
    let axes = axes_of(tap, shape, options.axes, is_several)?;
    if let Some(empty) = shape.iter().position(|&length| length == 0) {
        return refuse(format!("axis '{}' has length 0", axes[empty].name()));
    }
    let length = |wanted| axes.iter().position(|&axis| axis == wanted).map(|at| shape[at]);
    let (entries, token) = (length(Axis::Batch).unwrap_or(1), length(Axis::Token));
    let rows = check_rows(pass, options.rows, token.is_some(), entries)?;
    if let Some(found) = token.filter(|&found| found.checked_mul(entries) != Some(rows)) {
        let whose = if options.rows.is_some() { "Options::rows" } else { "its pass" };
        let times = if entries > 1 { format!(" in {entries} entries of a batch") } else { String::new() };
        return refuse(format!(
            "axis 'token' has length {found}{times}, expected {rows} rows: those of {whose}"
        ));
    }
    if tap.scope == Scope::Pass && token.is_none() && entries != pass.sequences {
        let expected = pass.sequences;
        return refuse(format!(
            "it has a row for {entries} sequences, expected {expected}: those that its pass reads"
        ));
    }
    Ok(())
}

/// How many rows an array holds: all of the pass, or those that are listed.
fn check_rows(pass: &Pass, listed: Option<&[usize]>, has_tokens: bool, entries: usize) -> Result<usize> {
    let Some(listed) = listed else { return Ok(pass.rows) };
    if !has_tokens {
        return refuse("it has no axis token, so it cannot hold some rows");
    }
    if entries > 1 {
        return refuse("Options::rows counts rows of the pass; leave out the axis batch");
    }
    if !listed.windows(2).all(|two| two[0] < two[1]) || listed.last().is_none_or(|&last| last >= pass.rows) {
        let rows = pass.rows;
        return refuse(format!(
            "Options::rows are {listed:?}, expected some of {rows} rows, in ascending order"
        ));
    }
    Ok(listed.len())
}
