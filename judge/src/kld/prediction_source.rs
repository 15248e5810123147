//! Sources of predictions: files, dumps, and models that are run.

use rayon::prelude::*;

use crate::align::aligned;
use crate::checkpoint::{Point, Site};
use crate::dump::Dump;
use crate::engine::{PassInput, RunInput, Transcript};
use crate::error::{Error, Result, RunError};
use crate::kld::figures::TokenDivergences;
use crate::kld::logits_file::{LogitsFile, first_row, rows_of};
use crate::measure::{Prediction, PredictionDifference};
use crate::tap::Tap;
use crate::tensor::Tensor;

/// Source of predictions for chunks of tokens.
pub trait PredictionSource {
    /// Returns the name of the source for messages.
    fn name(&self) -> String;

    /// Returns the tokens of each chunk.
    fn chunks(&self) -> Vec<&[u32]>;

    /// Returns true if the model may have read another first token (BOS) than the source lists.
    fn hides_first(&self) -> bool;

    /// Returns the positions of a chunk with a prediction of the next token, ascending.
    fn positions(&self, chunk: usize) -> Vec<usize>;

    /// Opens the predictions of a chunk.
    ///
    /// # Errors
    /// If the predictions cannot be read or computed.
    fn open(&self, chunk: usize) -> Result<PredictionReader<'_>>;
}

/// Reads the prediction after a position of a chunk. It fails if the values are invalid.
pub(crate) type PredictionReader<'s> = Box<dyn Fn(usize, &mut Prediction) -> Result<()> + Sync + 's>;

impl PredictionSource for LogitsFile {
    fn name(&self) -> String {
        self.path().display().to_string()
    }

    fn chunks(&self) -> Vec<&[u32]> {
        LogitsFile::chunks(self).collect()
    }

    fn hides_first(&self) -> bool {
        true
    }

    fn positions(&self, _: usize) -> Vec<usize> {
        let first = first_row(self.n_ctx());
        (first..first + rows_of(self.n_ctx())).collect()
    }

    fn open(&self, chunk: usize) -> Result<PredictionReader<'_>> {
        let rows = FileRows { file: self, chunk };
        Ok(Box::new(move |position, into| rows.read(position, into)))
    }
}

struct FileRows<'f> {
    file: &'f LogitsFile,
    chunk: usize,
}

impl FileRows<'_> {
    fn read(&self, position: usize, into: &mut Prediction) -> Result<()> {
        self.file.read(self.chunk, position - first_row(self.file.n_ctx()), into)
    }
}

impl Drop for FileRows<'_> {
    /// Releases the pages that were read, since a file may be larger than memory.
    fn drop(&mut self) {
        self.file.release();
    }
}

/// Predictions from dumps with logits, one chunk per sequence.
pub struct DumpPredictions {
    dumps: Vec<Dump>,
    tokens: Vec<Vec<u32>>,
    places: Vec<Vec<LogitsSite>>,
}

/// The site and row of the logits after a position.
#[derive(Clone, Copy)]
struct LogitsSite {
    position: usize,
    site: Site,
    row: usize,
}

impl DumpPredictions {
    /// Creates a source from the sequences of one dump, or of several dumps.
    ///
    /// # Errors
    /// If a sequence has no logits with a known next token.
    pub fn new(dumps: Vec<Dump>) -> Result<Self> {
        let places: Vec<Vec<LogitsSite>> = dumps.iter().map(places).collect();
        if let Some(none) = places.iter().position(Vec::is_empty) {
            let problem = "no logits with a known next token, so there is nothing to compute statistics of";
            return Err(Error::dump(&dumps[none].path, problem));
        }
        let read = |dump: &Dump| (0..).map_while(|position| dump.manifest.token_at(position)).collect();
        Ok(Self { tokens: dumps.iter().map(read).collect(), places, dumps })
    }
}

/// Returns every position that has logits and a known next token.
fn places(dump: &Dump) -> Vec<LogitsSite> {
    let mut found = Vec::new();
    for (number, pass) in dump.manifest.passes.iter().enumerate() {
        let site = |point| Site { point, layer: None, pass: Some(number) };
        let (logits, last) = (site(Point::Logits), site(Point::LastLogits));
        if let Some(rows) = dump.held_rows(logits) {
            let place = |(row, held): (usize, &usize)| LogitsSite {
                position: pass.position + held,
                site: logits,
                row,
            };
            found.extend(rows.iter().enumerate().map(place));
        } else if dump.holds(logits) {
            let place = |row| LogitsSite { position: pass.position + row, site: logits, row };
            found.extend((0..pass.tokens.len()).map(place));
        } else if dump.holds(last) {
            found.push(LogitsSite { position: pass.end() - 1, site: last, row: 0 });
        }
    }
    found.retain(|place| dump.manifest.token_at(place.position + 1).is_some());
    found
}

impl PredictionSource for DumpPredictions {
    fn name(&self) -> String {
        self.dumps[0].path.display().to_string()
    }

    fn chunks(&self) -> Vec<&[u32]> {
        self.tokens.iter().map(Vec::as_slice).collect()
    }

    fn hides_first(&self) -> bool {
        false
    }

    fn positions(&self, chunk: usize) -> Vec<usize> {
        self.places[chunk].iter().map(|place| place.position).collect()
    }

    fn open(&self, chunk: usize) -> Result<PredictionReader<'_>> {
        let dump = &self.dumps[chunk];
        let view = |place: &LogitsSite| {
            let view = aligned(dump, place.site)?.expect("every listed site is recorded");
            Ok((*place, view))
        };
        let views = self.places[chunk].iter().map(view).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(move |position, into| {
            let at = views.partition_point(|(place, _)| place.position < position);
            let (place, view) = &views[at];
            let mut logits = vec![0.0; view.width()];
            view.read(place.row, 0..view.width(), &mut logits);
            let set = into.set_logits(logits.into_iter().map(|logit| logit as f32));
            set.map_err(|problem| {
                Error::dump(&dump.path, format!("{}, row {}: {problem}", place.site, place.row))
            })
        }))
    }
}

/// Runs a model on a script with a tap.
pub type ScriptRunner<'r> = dyn Fn(&RunInput, &mut dyn Tap) -> Result<Transcript> + 'r;

/// A model that is run on chunks, each in one pass from an empty cache.
pub struct ModelPredictions<'r> {
    name: String,
    chunks: Vec<Vec<u32>>,
    /// Token that replaces the first token of each chunk.
    bos: Option<u32>,
    run: Box<ScriptRunner<'r>>,
}

impl<'r> ModelPredictions<'r> {
    /// Makes a source from a function that runs a model. `bos` replaces each chunk's first token.
    pub fn new(name: String, chunks: Vec<Vec<u32>>, bos: Option<u32>, run: Box<ScriptRunner<'r>>) -> Self {
        Self { name, chunks, bos, run }
    }

    /// Runs the model on a chunk and returns the logits of all positions, `[T, V]`.
    fn logits(&self, chunk: usize) -> Result<Tensor> {
        let mut tokens = self.chunks[chunk].clone();
        if let (Some(first), Some(bos)) = (tokens.first_mut(), self.bos) {
            *first = bos;
        }
        let mut kept = PassLogits::default();
        let script = RunInput { passes: vec![PassInput::given(&tokens)], prompt_len: tokens.len() };
        (self.run)(&script, &mut kept)?;
        Ok(kept.0.expect("a pass has logits"))
    }
}

/// A tap that stores only the logits of a pass.
#[derive(Default)]
struct PassLogits(Option<Tensor>);

impl Tap for PassLogits {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if self.wants(site) {
            self.0 = Some(value.clone());
        }
        value
    }

    fn wants(&self, site: Site) -> bool {
        site.point == Point::Logits
    }
}

impl PredictionSource for ModelPredictions<'_> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn chunks(&self) -> Vec<&[u32]> {
        self.chunks.iter().map(Vec::as_slice).collect()
    }

    fn hides_first(&self) -> bool {
        true
    }

    fn positions(&self, chunk: usize) -> Vec<usize> {
        (0..self.chunks[chunk].len() - 1).collect()
    }

    fn open(&self, chunk: usize) -> Result<PredictionReader<'_>> {
        let (name, logits) = (&self.name, self.logits(chunk)?);
        Ok(Box::new(move |position, into| {
            let set = into.set_logits(logits.row(position).iter().copied());
            let place = || format!("{name}, chunk {chunk}, position {position}");
            set.map_err(|problem| RunError::BadLogits { problem: format!("{}: {problem}", place()) }.into())
        }))
    }
}

/// Compares predictions with those of a base, chunk by chunk, at every position where both have one.
///
/// # Errors
/// If the two sources have different texts or vocabularies, have no position in common, or cannot be read.
pub fn compare(
    base: &dyn PredictionSource,
    other: &dyn PredictionSource,
    most_chunks: usize,
    mut done: impl FnMut(usize),
) -> Result<TokenDivergences> {
    let (chunks, other_chunks) = (base.chunks(), other.chunks());
    let counted = most_chunks.min(chunks.len());
    if other_chunks.len() < counted || (other_chunks.len() > chunks.len() && most_chunks > chunks.len()) {
        return Err(Error::Usage(format!(
            "{} has {} chunks, but {} has {}; use --chunks N to compare the first N of both",
            base.name(),
            chunks.len(),
            other.name(),
            other_chunks.len()
        )));
    }
    let mut tally = TokenDivergences::default();
    for chunk in 0..counted {
        check_tokens(chunk, [(base, chunks[chunk]), (other, other_chunks[chunk])])?;
        let judged = compare_chunk(base, other, chunk, chunks[chunk])?;
        let of_base = base.positions(chunk).into_iter().filter(|position| position + 1 < chunks[chunk].len());
        tally.left_out += of_base.count() - judged.len();
        tally.add(judged);
        done(chunk + 1);
    }
    Ok(tally)
}

fn compare_chunk(
    base: &dyn PredictionSource,
    other: &dyn PredictionSource,
    chunk: usize,
    tokens: &[u32],
) -> Result<Vec<PredictionDifference>> {
    let others = other.positions(chunk);
    let mut positions = base.positions(chunk);
    positions.retain(|position| others.binary_search(position).is_ok() && position + 1 < tokens.len());
    if positions.is_empty() {
        return Err(Error::Usage(format!(
            "{} and {} have no predictions at a common position of chunk {chunk}, so there is nothing to \
                compare",
            base.name(),
            other.name()
        )));
    }
    let (base_rows, other_rows, names) = (base.open(chunk)?, other.open(chunk)?, [base.name(), other.name()]);
    let judge = |rows: &mut (Prediction, Prediction), position: &usize| {
        base_rows(*position, &mut rows.0)?;
        other_rows(*position, &mut rows.1)?;
        let next = tokens[position + 1];
        let [ours, theirs] = [rows.0.len(), rows.1.len()];
        if ours != theirs || next as usize >= ours {
            return Err(Error::Usage(format!(
                "{} has a vocabulary of {ours} tokens, but {} one of {theirs}, and the text has token \
                 {next}; compare files of the same model",
                names[0], names[1]
            )));
        }
        Ok(rows.0.judge(&rows.1, next))
    };
    let judged: Vec<Result<PredictionDifference>> =
        positions.par_iter().map_init(Default::default, judge).collect();
    judged.into_iter().collect()
}

/// Checks that both sources have the same tokens, except for the first token if one source hides it.
fn check_tokens(
    chunk: usize,
    [(one, tokens), (other, others)]: [(&dyn PredictionSource, &[u32]); 2],
) -> Result<()> {
    let first = usize::from(one.hides_first() || other.hides_first());
    let mut pairs = tokens.iter().zip(others).enumerate().skip(first);
    match pairs.find(|(_, (token, other))| token != other) {
        None => Ok(()),
        Some((position, (token, other_token))) => Err(Error::Usage(format!(
            "chunk {chunk}, position {position}: {} has read token {token}, but {} {other_token}; compare \
                files of the same text",
            one.name(),
            other.name()
        ))),
    }
}
