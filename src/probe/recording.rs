//! Dump of a server's answers: log-probabilities of a prompt and of its greedy continuation.

use std::collections::HashMap;
use std::path::Path;

use serde_json::json;
use zerocopy::IntoBytes;

use crate::checkpoint::{Point, Site};
use crate::dump::{Dump, DumpInput, Layout, Manifest, ModelInfo, Pass, Producer, TensorRow};
use crate::error::{Error, Result};
use crate::format::FileBytes;
use crate::probe::answer::{GreedyContinuation, TokenLogprob, TokenPosition};
use crate::probe::difference::decimals;
use crate::probe::server_identity::ServerIdentity;
use crate::tokenizer::Tokenizer;
use crate::weight::DType;

/// Settings of a server's computation, as in a dump's `producer.settings`.
type ProducerSettings = serde_json::Map<String, serde_json::Value>;

/// Answers of a server to one prompt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recording {
    /// Text of the prompt; empty for a prompt of ids.
    pub(crate) text: String,
    /// Token ids of the prompt.
    pub(crate) prompt: Vec<u32>,
    /// Log-probabilities of each prompt token; empty if the server gave none.
    pub(crate) read: Vec<Option<TokenPosition>>,
    /// Greedy continuation with its log-probabilities.
    pub(crate) generated: Vec<TokenPosition>,
}

pub(crate) struct TokenTextIds(HashMap<String, Option<u32>>);

impl TokenTextIds {
    /// Reads the vocabulary of a tokenizer. A text that several tokens share has no id.
    pub(crate) fn of(tokenizer: &dyn Tokenizer) -> Self {
        let mut ids = HashMap::new();
        // Some tokenizers omit a space at the start of a text, so each token is decoded after another one.
        let before = tokenizer.encode("a", false).ok().and_then(|ids| ids.last().copied());
        let before: Vec<u32> = before.into_iter().collect();
        let length = tokenizer.decode(&before).map_or(0, |text| text.len());
        for id in 0..tokenizer.vocab_size() as u32 {
            let Ok(text) = tokenizer.decode(&[before.as_slice(), &[id]].concat()) else { continue };
            let Some(text) = text.get(length..).and_then(|text| std::str::from_utf8(text).ok()) else {
                continue;
            };
            let text = text.to_owned();
            ids.entry(text).and_modify(|id| *id = None).or_insert(Some(id));
        }
        Self(ids)
    }

    fn name(&self, named: &mut TokenLogprob) {
        if named.id.is_none() {
            named.id = self.0.get(&named.text).copied().flatten();
        }
    }

    /// Sets the ids of tokens whose text identifies them.
    pub(crate) fn name_all<'p>(&self, places: impl IntoIterator<Item = &'p mut TokenPosition>) {
        for place in places {
            place.top.iter_mut().chain(&mut place.token).for_each(|named| self.name(named));
        }
    }
}

impl Recording {
    /// Returns the recording of an answer. The log-probabilities of the prompt are assigned to these tokens, regardless
    /// of the ids that the server gives.
    pub(crate) fn new(
        text: &str,
        prompt: &[u32],
        mut read: Vec<Option<TokenPosition>>,
        generated: GreedyContinuation,
    ) -> Self {
        for (&id, place) in prompt.iter().zip(&mut read) {
            if let Some(token) = place.as_mut().and_then(|place| place.token.as_mut()) {
                token.id = Some(id);
            }
        }
        // The known continuation ends at the first token without an id.
        let is_known = |place: &TokenPosition| place.token.as_ref().is_some_and(|token| token.id.is_some());
        let generated = generated.places.into_iter().take_while(is_known).collect();
        Self { text: text.to_owned(), prompt: prompt.to_vec(), read, generated }
    }

    /// Returns all tokens: the prompt and the generated ones.
    pub(crate) fn tokens(&self) -> Vec<u32> {
        let generated = self.generated.iter().filter_map(|place| place.token.as_ref()?.id);
        self.prompt.iter().copied().chain(generated).collect()
    }

    /// Returns the ids and log-probabilities that the server gave for the position after each token.
    pub fn told(&self) -> Vec<Vec<(u32, f64)>> {
        let of = |place: Option<&TokenPosition>| {
            let named = place.into_iter().flat_map(|place| place.top.iter().chain(&place.token));
            named.filter_map(|named| Some((named.id?, named.logprob?))).collect()
        };
        let read = (1..self.prompt.len()).map(|index| of(self.read.get(index).and_then(Option::as_ref)));
        read.chain(self.generated.iter().map(|place| of(Some(place)))).collect()
    }

    /// Returns true if there is nothing to compare.
    pub(crate) fn is_empty(&self) -> bool {
        self.read.iter().flatten().next().is_none() && self.generated.is_empty()
    }

    /// Returns the dump and its bytes as a `.safetensors` file. `dtype` is the server's computed type, if
    /// known.
    ///
    /// # Errors
    /// If the recording is empty.
    pub(crate) fn dump(
        &self,
        server: &ServerIdentity,
        model: ModelInfo,
        dtype: Option<&str>,
        path: &Path,
    ) -> Result<(Dump, Vec<u8>)> {
        let dtype = dtype.map(|dtype| ("dtype".to_owned(), json!(dtype)));
        self.dump_with(server, model, dtype.into_iter().collect(), path)
    }

    /// Returns the dump and its bytes, with all known settings of the server.
    ///
    /// # Errors
    /// Errors of [`Recording::dump`].
    pub(crate) fn dump_with(
        &self,
        server: &ServerIdentity,
        model: ModelInfo,
        settings: ProducerSettings,
        path: &Path,
    ) -> Result<(Dump, Vec<u8>)> {
        if self.is_empty() || self.prompt.is_empty() {
            let problem = "the server returned no token with a known id, and nothing about the prompt: there is nothing \
                           to record";
            return Err(Error::dump(path, problem));
        }
        let (manifest, arrays) = self.written(server, model, settings);
        let bytes = manifest.packed(&arrays);
        let dump = Dump::from_source(FileBytes { path: path.to_owned(), data: bytes.clone().into() })?;
        Ok((dump, bytes))
    }

    fn written(
        &self,
        server: &ServerIdentity,
        model: ModelInfo,
        mut settings: ProducerSettings,
    ) -> (Manifest, Vec<Vec<u8>>) {
        settings.insert("served_model".to_owned(), json!(server.model));
        let producer = Producer {
            name: server.kind.name().to_owned(),
            version: server.version.clone(),
            settings,
            rounding: None,
        };
        let input =
            DumpInput { prompt: self.text.clone(), tokens: self.prompt.clone(), ..DumpInput::default() };
        let generated: Vec<u32> =
            self.generated.iter().filter_map(|place| place.token.as_ref()?.id).collect();
        let mut manifest = Manifest::new(producer, model, Layout::default(), input, self.passes(&generated));
        manifest.version = Manifest::LATEST;
        let mut arrays = Vec::new();
        // The log-probability of a token belongs to the row before it.
        let read = |row: usize| self.read.get(row + 1).and_then(Option::as_ref);
        let first = (0..self.prompt.len() - 1).map(read).chain([self.generated.first()]).collect();
        let passes = std::iter::once::<Vec<Option<&TokenPosition>>>(first)
            .chain(self.generated.iter().skip(1).map(|place| vec![Some(place)]));
        let step = decimals(self.read.iter().flatten().chain(&self.generated));
        for (pass, rows) in passes.enumerate() {
            arrays.extend(tensors(pass, &rows).into_iter().map(|(mut row, bytes)| {
                row.step = step.filter(|_| row.dtype == DType::F32.name()).map(|half| 2.0 * half);
                manifest.tensors.push(row);
                bytes
            }));
        }
        manifest.generated = (!generated.is_empty()).then_some(generated);
        (manifest, arrays)
    }

    /// Returns the passes: the whole prompt, then one pass per token.
    fn passes(&self, generated: &[u32]) -> Vec<Pass> {
        let end = self.prompt.len();
        let mut passes = vec![Pass { position: 0, tokens: self.prompt.clone(), temperature: None }];
        let read = generated.len().saturating_sub(1);
        passes.extend(generated[..read].iter().enumerate().map(|(index, &id)| Pass {
            position: end + index,
            tokens: vec![id],
            temperature: None,
        }));
        passes
    }
}

/// Returns the arrays of a pass with their manifest rows.
fn tensors(pass: usize, places: &[Option<&TokenPosition>]) -> Vec<(TensorRow, Vec<u8>)> {
    let all = places.len();
    let at = |point: Point| Site { point, layer: None, pass: Some(pass) };
    let row = |point: Point, dtype, shape: &[usize], rows: &[usize]| {
        let key = format!("p{pass}/{point}.npy");
        let mut row = TensorRow::new(at(point), dtype, shape, &key);
        row.rows = (rows.len() < all).then(|| rows.to_vec());
        row
    };
    let mut written = Vec::new();
    let own = |place: &Option<&TokenPosition>| {
        let token = place.as_ref()?.token.as_ref()?;
        token.logprob.filter(|value| value.is_finite())
    };
    let (rows, values): (Vec<usize>, Vec<f32>) =
        places.iter().enumerate().filter_map(|(row, place)| Some((row, own(place)? as f32))).unzip();
    if !rows.is_empty() {
        written
            .push((row(Point::TokenLogprobs, DType::F32, &[rows.len()], &rows), values.as_bytes().to_vec()));
    }
    let tops: Vec<(usize, Vec<(u32, f32)>)> = places
        .iter()
        .enumerate()
        .map(|(row, place)| (row, place.map(top).unwrap_or_default()))
        .filter(|(_, top)| !top.is_empty())
        .collect();
    let k = tops.iter().map(|(_, top)| top.len()).min().unwrap_or(0);
    if k > 0 {
        let rows: Vec<usize> = tops.iter().map(|(row, _)| *row).collect();
        let named = || tops.iter().flat_map(|(_, top)| &top[..k]);
        let ids: Vec<u32> = named().map(|(id, _)| *id).collect();
        let values: Vec<f32> = named().map(|(_, value)| *value).collect();
        let shape = [rows.len(), k];
        written.push((row(Point::TopIds, DType::U32, &shape, &rows), ids.as_bytes().to_vec()));
        written.push((row(Point::TopLogprobs, DType::F32, &shape, &rows), values.as_bytes().to_vec()));
    }
    written
}

/// Returns the top tokens with known ids, each once. Stops at the first token with an unknown id.
fn top(place: &TokenPosition) -> Vec<(u32, f32)> {
    let mut sorted: Vec<&TokenLogprob> =
        place.top.iter().filter(|named| named.logprob.is_some_and(f64::is_finite)).collect();
    sorted.sort_by(|a, b| b.logprob.unwrap_or(f64::NAN).total_cmp(&a.logprob.unwrap_or(f64::NAN)));
    let mut top: Vec<(u32, f32)> = Vec::new();
    for named in sorted {
        let (Some(id), Some(value)) = (named.id, named.logprob) else { break };
        if !top.iter().any(|(known, _)| *known == id) {
            top.push((id, value as f32));
        }
    }
    top
}
