//! Conversion of a llama-perplexity file to dumps, one per chunk. Each dump has the log-probabilities of the
//! next token and of the top tokens.

use zerocopy::IntoBytes;

use crate::checkpoint::{Point, Site};
use crate::dump::{DecodeMode, Dump, DumpInput, Layout, Manifest, ModelInfo, Pass, Producer, TensorRow};
use crate::error::{Error, Result};
use crate::format::{FileBytes, TensorFile};
use crate::kld::logits_file::{LogitsFile, first_row, rows_of};
use crate::measure::Prediction;
use crate::weight::{DType, StoredTensor};

/// Number of top tokens that are compared at each position. The total probability of all other tokens is
/// compared too.
const MOST: usize = 1024;

/// The predictions of one chunk.
#[derive(Default)]
struct ChunkPredictions {
    /// Positions with a known next token, and the log-probability of that token.
    followed: (Vec<usize>, Vec<f32>),
    /// The top tokens of each position with their log-probabilities.
    likeliest: Vec<(usize, Vec<(u32, f32)>)>,
    /// Largest quantisation step of all rows.
    step: f64,
}

/// Makes the dumps of a file. `begins` is the token that replaced the first token of each chunk, if any.
///
/// # Errors
/// If a row cannot be read.
pub fn dumps(file: &LogitsFile, begins: Option<u32>) -> Result<Vec<Dump>> {
    let chunks = file.chunks().enumerate();
    chunks.map(|(chunk, tokens)| dump(file, chunk, &read_as(tokens, begins))).collect()
}

/// Returns the size in bytes of all dumps of a file; they are in memory at the same time.
pub fn size_of_dumps(file: &LogitsFile) -> u128 {
    let rows = file.chunks().len() as u128 * rows_of(file.n_ctx()) as u128;
    rows * MOST.min(file.n_vocab()) as u128 * (size_of::<u32>() + size_of::<f32>()) as u128
}

fn read_as(tokens: &[u32], begins: Option<u32>) -> Vec<u32> {
    begins.iter().chain(&tokens[usize::from(begins.is_some())..]).copied().collect()
}

fn dump(file: &LogitsFile, chunk: usize, tokens: &[u32]) -> Result<Dump> {
    let told = ChunkPredictions::of(file, chunk, tokens)?;
    file.release();
    let arrays = told.arrays();
    if arrays.is_empty() {
        return Err(Error::dump(
            file.path(),
            format!("chunk {chunk} has the same probability for every token"),
        ));
    }
    let producer = Producer { name: "llama.cpp".to_owned(), ..Producer::default() };
    let model = ModelInfo { name: String::new(), architecture: ModelInfo::UNKNOWN.to_owned(), sha256: None };
    let input = DumpInput { tokens: tokens.to_vec(), decode: DecodeMode::Forced, ..DumpInput::default() };
    let passes = vec![Pass { position: 0, tokens: tokens.to_vec(), temperature: None }];
    let mut manifest = Manifest::new(producer, model, Layout::default(), input, passes);
    manifest.version = Manifest::LATEST;
    manifest.sequence = Some(chunk.to_string());
    let source = FileBytes { path: file.path().to_owned(), data: Vec::new().into() };
    let (rows, entries): (_, Vec<_>) =
        arrays.into_iter().map(|(row, stored)| (row.clone(), (row.file, stored))).unzip();
    manifest.tensors = rows;
    Dump::of_arrays(file.path(), manifest, TensorFile::joined(&source, entries)?)
}

impl ChunkPredictions {
    fn of(file: &LogitsFile, chunk: usize, tokens: &[u32]) -> Result<Self> {
        let (mut found, mut row) = (Self::default(), Prediction::default());
        for index in 0..rows_of(file.n_ctx()) {
            let position = first_row(file.n_ctx()) + index;
            file.read(chunk, index, &mut row)?;
            found.step = found.step.max(row.step());
            if let Some(value) = row.told(tokens[position + 1] as usize) {
                found.followed.0.push(position);
                found.followed.1.push(value);
            }
            found.likeliest.push((position, row.likeliest(MOST)));
        }
        Ok(found)
    }

    /// Makes the arrays of a chunk. All rows get the same number of top tokens.
    fn arrays(&self) -> Vec<(TensorRow, StoredTensor)> {
        let mut made = Vec::new();
        let (rows, values) = &self.followed;
        if !rows.is_empty() {
            made.push(self.array(Point::TokenLogprobs, DType::F32, &[rows.len()], rows, values.as_bytes()));
        }
        let width = self.likeliest.iter().map(|(_, top)| top.len()).min().unwrap_or(0);
        if width > 0 {
            let rows: Vec<usize> = self.likeliest.iter().map(|(row, _)| *row).collect();
            let named = || self.likeliest.iter().flat_map(|(_, top)| &top[..width]);
            let ids: Vec<u32> = named().map(|(id, _)| *id).collect();
            let values: Vec<f32> = named().map(|(_, value)| *value).collect();
            let shape = [rows.len(), width];
            made.push(self.array(Point::TopIds, DType::U32, &shape, &rows, ids.as_bytes()));
            made.push(self.array(Point::TopLogprobs, DType::F32, &shape, &rows, values.as_bytes()));
        }
        made
    }

    fn array(
        &self,
        point: Point,
        dtype: DType,
        shape: &[usize],
        rows: &[usize],
        bytes: &[u8],
    ) -> (TensorRow, StoredTensor) {
        let site = Site { point, layer: None, pass: Some(0) };
        let row = TensorRow::new(site, dtype, shape, &format!("p0/{point}")).of_rows(rows);
        let row = if dtype == DType::F32 { row.known_to(self.step) } else { row };
        (row, StoredTensor { dtype, shape: shape.to_vec(), data: bytes.to_vec().into() })
    }
}
