//! Log-probabilities of tokens: log softmax(logits / temperature), `[T, V]` to the shape of the [`Picks`].

pub(crate) mod exact;
pub(crate) mod faults;

/// Vocabulary tokens to look up in each row of logits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picks {
    /// `[T]`, or `[T, k]`.
    pub shape: Vec<usize>,
    /// Token ids, row by row.
    pub ids: Vec<u32>,
    /// Row of logits for each row of ids.
    pub rows: Vec<usize>,
    /// Token before the first row's token; for other rows it is the token of the previous row.
    pub before: u32,
    /// True if the softmax covers only these ids instead of the vocabulary.
    pub is_closed: bool,
}

impl Picks {
    /// Creates a list of one or several tokens for each row.
    pub fn new(shape: &[usize], ids: Vec<u32>) -> Self {
        let rows = (0..shape[0]).collect();
        Self { shape: shape.to_vec(), ids, rows, before: 0, is_closed: false }
    }

    /// Returns the number of ids in a row.
    pub fn width(&self) -> usize {
        self.ids.len().checked_div(self.rows.len()).unwrap_or(0)
    }

    /// Returns the ids of a row.
    pub fn row(&self, row: usize) -> &[u32] {
        &self.ids[row * self.width()..][..self.width()]
    }
}

/// Computes log softmax(logits / temperature) of some tokens, in `f64`.
pub fn log_probabilities(logits: &[f32], ids: &[u32], is_closed: bool, temperature: f32) -> Vec<f64> {
    let scaled = |id: usize| f64::from(logits[id]) / f64::from(temperature);
    let sum_of = |among: &mut dyn Iterator<Item = usize>| {
        let all: Vec<f64> = among.map(scaled).collect();
        let max = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        max + all.iter().map(|z| (z - max).exp()).sum::<f64>().ln()
    };
    let ids = ids.iter().map(|&id| id as usize);
    let log_sum = match is_closed {
        true => sum_of(&mut ids.clone()),
        false => sum_of(&mut (0..logits.len())),
    };
    ids.map(|id| scaled(id) - log_sum).collect()
}
