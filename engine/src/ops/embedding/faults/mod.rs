//! Changes of embeddings: other tokens, another factor, other position embeddings.

pub(crate) mod element;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, FactorEstimate, SiteContext, distance};
use crate::checkpoint::Point;
use crate::exact::{Float, node_of};
use crate::numerics::Numerics;
use crate::ops::addition::exact::Addition;
use crate::ops::embedding::exact::EmbeddingLookup;
use crate::ops::norm::LayerNorm;
use crate::ops::norm::exact::LayerNormalisation;
use crate::ops::scaling::Multiplier;
use crate::ops::scaling::exact::Scaling;
use crate::quant::decode_matrix_row;
use crate::tensor::Tensor;
use crate::weight::Matrix;

const EMBED: &[Point] = &[Point::Embed];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::TokensBos,
        at: EMBED,
        takes: "added:1|left-out:5",
        compute: |at, value| {
            let made = EmbeddingInputs::of(at)?;
            made.with(at, &shifted(at, &made.tokens, value.as_word()?)?)
        },
        read: |at, theirs| read_tokens(at, theirs).into_iter().filter(is_shift).collect(),
        usual: Some(|at| EmbeddingInputs::of(at).map_or(Vec::new(), |made| shifts(made.tokens[0]).into())),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::TokensPrompt,
        at: EMBED,
        takes: "1,15043,3186|each+3",
        compute: |at, value| {
            let made = EmbeddingInputs::of(at)?;
            made.with(at, &others(&made.tokens, value)?)
        },
        read: |at, theirs| read_tokens(at, theirs).into_iter().filter(|read| !is_shift(read)).collect(),
        usual: Some(|_| vec![ChangeValue::word("each+1")]),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::EmbedScale,
        at: EMBED,
        takes: "45.25483",
        own: |at| match at.stage::<Addition>() {
            Some(_) => ChangeValue::Nothing,
            None => ChangeValue::Number(at.stage::<Scaling>().map_or(1.0, |op| op.by.factor().into())),
        },
        compute: |at, value| scaled(at, value.number()? as f32),
        read: read_scale,
        usual: Some(|at| factors(at).into_iter().map(ChangeValue::Number).collect()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::PositionEmbedding,
        at: EMBED,
        takes: "1|restart|none",
        compute: at_position,
        read: read_position,
        usual: Some(|_| {
            let words = ["restart", "none"].map(ChangeValue::word);
            [1.0, 2.0].map(ChangeValue::Number).into_iter().chain(words).collect()
        }),
        ..CatalogueEntry::PLAIN
    },
];

pub(crate) struct EmbeddingInputs {
    table: Matrix,
    /// Token ids that are looked up in the table.
    pub(crate) tokens: Vec<u32>,
    factor: Option<Multiplier>,
    /// Position embeddings, if the model has them.
    positions: Option<Tensor>,
    /// Norm of the embeddings, if the model has one.
    norm: Option<LayerNorm>,
}

impl EmbeddingInputs {
    pub(crate) fn of(at: &SiteContext) -> Option<Self> {
        let rows = |x: &Tensor, factor, positions| {
            let (table, tokens) = looked_up(x)?;
            Some(Self { table, tokens, factor, positions, norm: None })
        };
        if let Some(LayerNormalisation { x, norm }) = at.stage() {
            return Some(Self { norm: Some(norm.clone()), ..rows(x, None, None)? });
        }
        if let Some(Scaling { x, by }) = at.stage() {
            return rows(x, Some(*by), None);
        }
        match at.stage() {
            Some(Addition { a, b }) => rows(a, None, Some(b.clone())),
            None => rows(at.value, None, None),
        }
    }

    /// Computes the embedding of other tokens.
    fn with(&self, at: &SiteContext, tokens: &[u32]) -> Option<Tensor> {
        if tokens.len() != self.tokens.len() || tokens.iter().any(|&id| id as usize >= self.table.rows) {
            return None;
        }
        Some(self.of_rows(at, at.n.embed(&self.table, tokens)))
    }

    /// Computes the embedding from these rows of the table.
    pub(crate) fn of_rows(&self, at: &SiteContext, rows: Tensor) -> Tensor {
        let rows = match self.factor {
            Some(factor) => at.n.scale(&rows, factor),
            None => rows,
        };
        match (&self.positions, &self.norm) {
            (Some(positions), _) => at.n.add(&rows, positions),
            (None, Some(norm)) => at.n.layer_norm(&rows, norm),
            (None, None) => rows,
        }
    }

    /// Returns true if embeddings are rows of the table times a factor, without learned positions and without a norm.
    fn is_plain(&self) -> bool {
        self.positions.is_none() && self.norm.is_none()
    }

    /// Returns the model's table rows for the tokens.
    pub(crate) fn rows(&self, at: &SiteContext) -> Tensor {
        at.n.embed(&self.table, &self.tokens)
    }

    /// Recovers the table rows from the engine's embeddings: divides by the factor and subtracts the position
    /// embeddings.
    ///
    /// Returns `None` for normed embeddings, from which rows cannot be recovered.
    pub(crate) fn rows_of(&self, theirs: &[f64]) -> Option<Vec<f64>> {
        if self.norm.is_some() {
            return None;
        }
        let factor = self.factor.map_or(1.0, |by| f64::from(by.factor()));
        let beside = |flat: usize| self.positions.as_ref().map_or(0.0, |x| f64::from(x.data()[flat]));
        Some(theirs.iter().enumerate().map(|(flat, value)| (value - beside(flat)) / factor).collect())
    }
}

/// Returns the embedding table and the token ids from which a tensor was looked up.
fn looked_up(x: &Tensor) -> Option<(Matrix, Vec<u32>)> {
    let [whole] = x.origins() else { return None };
    let node = node_of(whole)?;
    let EmbeddingLookup { table, tokens } = node.operation()?;
    Some((table.clone(), tokens.clone()))
}

fn shifts(first: u32) -> [ChangeValue; 2] {
    [ChangeValue::Word(format!("added:{first}")), ChangeValue::Word(format!("left-out:{first}"))]
}

fn is_shift(value: &ChangeValue) -> bool {
    value.as_word().is_some_and(|word| word.contains(':'))
}

/// Computes the first pass shifted by one token: with another token before it, or without its first token.
fn shifted(at: &SiteContext, tokens: &[u32], word: &str) -> Option<Vec<u32>> {
    let (how, id) = word.split_once(':')?;
    let (id, is_first) = (id.parse().ok()?, at.positions.start == 0 && tokens.len() > 1);
    match how {
        "added" if is_first => Some([&[id], &tokens[..tokens.len() - 1]].concat()),
        "left-out" if is_first => Some([&tokens[1..], &[id]].concat()),
        _ => None,
    }
}

/// Parses a list of token ids, or an offset that is added to each of the model's token ids.
fn others(tokens: &[u32], value: &ChangeValue) -> Option<Vec<u32>> {
    match value {
        // A list with one id is parsed as a number.
        ChangeValue::Number(id) if *id >= 0.0 => Some(vec![*id as u32]),
        ChangeValue::Word(word) => match word.strip_prefix("each") {
            Some(by) => {
                let by: i64 = by.parse().ok()?;
                tokens.iter().map(|&id| u32::try_from(i64::from(id) + by).ok()).collect()
            }
            None => word.split(',').map(|id| id.trim().parse().ok()).collect(),
        },
        _ => None,
    }
}

/// Returns the tokens whose table rows match the engine's rows. Returns nothing if a row matches no token, or all
/// tokens are the model's.
fn read_tokens(at: &SiteContext, theirs: &[f64]) -> Option<ChangeValue> {
    let made = EmbeddingInputs::of(at)?;
    let rows = made.rows_of(theirs)?;
    let width = made.table.cols;
    let own = made.table_rows();
    // Rows with the same direction as the model's have the right tokens and another factor.
    if own.chunks(width).zip(rows.chunks(width)).all(|(own, row)| cosine(own, row) > 0.99) {
        return None;
    }
    let tokens = nearest(&made.table, &rows)?;
    let (read, own, n) = (&tokens, &made.tokens, tokens.len());
    if at.positions.start == 0 && n > 2 && read[1..] == own[..n - 1] {
        return Some(ChangeValue::Word(format!("added:{}", read[0])));
    }
    if at.positions.start == 0 && n > 2 && read[..n - 1] == own[1..] {
        return Some(ChangeValue::Word(format!("left-out:{}", read[n - 1])));
    }
    let by = i64::from(read[0]) - i64::from(own[0]);
    let is_moved = read.iter().zip(own).all(|(&read, &own)| i64::from(read) - i64::from(own) == by);
    Some(match is_moved && n > 1 {
        true => ChangeValue::Word(format!("each{by:+}")),
        false => ChangeValue::Word(read.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
    })
}

impl EmbeddingInputs {
    fn table_rows(&self) -> Vec<f64> {
        let mut row = vec![0.0f32; self.table.cols];
        let of_token = |&token: &u32| {
            decode_matrix_row(&self.table, token as usize, &mut row);
            row.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()
        };
        self.tokens.iter().flat_map(of_token).collect()
    }
}

fn cosine(one: &[f64], other: &[f64]) -> f64 {
    let dot = |one: &[f64], other: &[f64]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f64>();
    dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
}

/// Returns the table row nearest to each row; `None` if a row matches no table row within rounding.
fn nearest(table: &Matrix, rows: &[f64]) -> Option<Vec<u32>> {
    let width = table.cols;
    // Stop comparing a row when its first values are far off.
    let first = width.min(16);
    let squared = |row: &[f64], known: &[f32]| -> f64 {
        row.iter().zip(known).map(|(a, &b)| (a - f64::from(b)).powi(2)).sum()
    };
    let mut found = vec![(f64::INFINITY, 0u32); rows.len() / width];
    let mut known = vec![0.0f32; width];
    for token in 0..table.rows {
        decode_matrix_row(table, token, &mut known);
        for (row, best) in rows.chunks(width).zip(&mut found) {
            if squared(&row[..first], &known[..first]) < best.0 {
                let off = squared(row, &known);
                if off < best.0 {
                    *best = (off, token as u32);
                }
            }
        }
    }
    let is_row =
        |(row, (off, _)): (&[f64], &(f64, u32))| *off < 0.01 * row.iter().map(|x| x * x).sum::<f64>();
    let all = rows.chunks(width).zip(&found).all(is_row);
    all.then(|| found.into_iter().map(|(_, token)| token).collect())
}

/// Computes the embedding with another factor.
fn scaled(at: &SiteContext, factor: f32) -> Option<Tensor> {
    let made = EmbeddingInputs::of(at).filter(EmbeddingInputs::is_plain)?;
    let rows = made.rows(at);
    let by = made.factor.unwrap_or(Multiplier::Element(1.0)).with(factor);
    Some(if factor == 1.0 { rows } else { at.n.scale(&rows, by) })
}

/// Returns the usual factors: 1, the root of the hidden size rounded to each stored type, and the model's factor
/// doubled and halved.
fn factors(at: &SiteContext) -> Vec<f64> {
    let Some(made) = EmbeddingInputs::of(at).filter(EmbeddingInputs::is_plain) else {
        return Vec::new();
    };
    let root = f64::from((made.table.cols as f32).sqrt());
    let short = Float::of(at.n.activation_type()).unwrap_or(Float::F32);
    let mut all: Vec<f64> = Vec::new();
    let own = made.factor.map_or(1.0, |by| f64::from(by.factor()));
    for factor in [1.0, root, Float::Bf16.round(root), Float::F16.round(root), own * 2.0, own / 2.0] {
        // Factors that round to the same number in the result type count once.
        if !all.iter().any(|known| short.round(*known) == short.round(factor)) {
            all.push(factor);
        }
    }
    all
}

/// Estimates `c` in `theirs = c · rows` by least squares.
fn read_scale(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(made) = EmbeddingInputs::of(at).filter(EmbeddingInputs::is_plain) else {
        return Vec::new();
    };
    let pairs = made.table_rows().into_iter().zip(theirs.iter().copied());
    FactorEstimate::read(pairs).map_or(Vec::new(), |scaled| scaled.values(at, &factors(at)))
}

/// Computes the embedding with the rows of other positions, or without positions.
fn at_position(at: &SiteContext, value: &ChangeValue) -> Option<Tensor> {
    let Addition { a, b } = at.stage()?;
    let (table, positions) = looked_up(b)?;
    let first = i64::from(*positions.first()?);
    let from = match value {
        ChangeValue::Number(offset) => first + *offset as i64,
        ChangeValue::Word(word) if word == "restart" => first_row(at, &positions)?.into(),
        ChangeValue::Word(word) if word == "none" => return Some(a.clone()),
        _ => return None,
    };
    let from = usize::try_from(from).ok()?;
    let moved = from..from + positions.len();
    if moved.end > table.rows {
        return None;
    }
    let moved: Vec<u32> = moved.map(|position| position as u32).collect();
    Some(at.n.add(a, &at.n.embed(&table, &moved)))
}

/// Returns the table row of a sequence's first position, if the pass begins later. Some architectures do not begin at
/// row 0.
fn first_row(at: &SiteContext, positions: &[u32]) -> Option<u32> {
    let start = u32::try_from(at.positions.start).ok().filter(|start| *start > 0)?;
    positions.first()?.checked_sub(start)
}

/// Returns the offset of the positions whose embeddings the engine added.
fn read_position(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(Addition { a, b }) = at.stage() else { return Vec::new() };
    let Some((table, positions)) = looked_up(b) else { return Vec::new() };
    let rows: Vec<f64> = theirs.iter().zip(a.data()).map(|(theirs, &a)| theirs - f64::from(a)).collect();
    let Some(found) = nearest(&table, &rows[..table.cols.min(rows.len())]) else { return Vec::new() };
    let value = match (found[0], positions[0]) {
        (found, _) if Some(found) == first_row(at, &positions) => ChangeValue::word("restart"),
        (found, own) => ChangeValue::Number(f64::from(found) - f64::from(own)),
    };
    let computed = at_position(at, &value);
    let is_near = computed.is_some_and(|computed| distance(&computed, theirs) < 0.1);
    if is_near { vec![value] } else { Vec::new() }
}
