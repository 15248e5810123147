//! A dump while it is written.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{json, Value};

use crate::axes::splits;
use crate::container::Container;
use crate::error::{refuse, Error, Result};
use crate::likelihoods::Likelihoods;
use crate::manifest::manifest;
use crate::meta::Meta;
use crate::passes::{slots, Pass, Passes, Place, Row};
use crate::taps::Tap;
use crate::value::{check_array_name, check_count, check_value, Options, Part};
use crate::values::Values;

const BEFORE: &str = "it comes before the first pass; begin one with Dump::pass";

/// A dump that is being written. Dropped before [`Dump::finish`] it leaves nothing.
#[derive(Debug)]
pub struct Dump {
    meta: Meta,
    container: Container,
    passes: Passes,
    likelihoods: Likelihoods,
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
        let likelihoods = Likelihoods::default();
        Ok(Self {
            meta,
            container,
            passes,
            likelihoods,
            generated,
            rows,
            seen,
            is_several,
            is_version_2,
            failed,
        })
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
            dump.passes.check_all_read()?;
            dump.likelihoods.check(&dump.passes, &dump.generated)?;
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
            None => refuse(BEFORE),
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
        let Some(pass) = &self.passes.current else { return refuse(BEFORE) };
        let index = pass.index;
        let place =
            |problem: String| Error::Refused(format!("{}{in_layer}, pass {index}: {problem}", tap.name));
        let checked = check_value(tap, pass, shape, values, options, is_several);
        let held = checked.map_err(|error| place(error.to_string()))?;
        self.likelihoods.note(tap, pass, shape, &held);
        if !self.seen.insert((tap.name, layer)) {
            let problem = "it comes twice; begin the next pass before its values, or tap it once";
            return Err(place(problem.into()));
        }
        let is_split = options.axes.is_some_and(|axes| splits(tap, axes));
        self.is_version_2 |= is_split || options.rows.is_some();
        self.is_version_2 |= options.computed.is_some() || options.step.is_some();
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
        if let Some(step) = options.step {
            row["step"] = json!(step);
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
