//! Ternary matrices in bitnet.cpp's files, converted to rows of [`super::ternary`].
//!
//! TL1 and TL2 files store indices into tables of sums, in the order in which kernels read them. These kernels are
//! generated for one matrix shape, and the order depends on their tile sizes. No file states the tile sizes.

use super::ternary::{BLOCK, BLOCK_BYTES, encode_row};

/// Tile sizes of a generated kernel, called `bm`, `bk` and `bmm` in `kernel_config.ini`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Number of rows in a tile (BM).
    pub rows: usize,
    /// Number of columns in a tile (BK).
    pub columns: usize,
    /// Number of rows that a kernel reads together (bm).
    pub together: usize,
}

/// Rows of ternary weights that can be filled in any order.
struct TernaryRows {
    weights: Vec<i8>,
    columns: usize,
}

impl TernaryRows {
    fn new(rows: usize, columns: usize) -> Self {
        Self { weights: vec![0; rows * columns], columns }
    }

    /// Sets neighbouring weights of a row.
    fn set<const N: usize>(&mut self, row: usize, column: usize, weights: [i8; N]) {
        self.weights[row * self.columns + column..][..N].copy_from_slice(&weights);
    }

    /// Encodes the matrix as consecutive rows of [`super::ternary`].
    fn encoded(&self) -> Vec<u8> {
        let row_bytes = self.columns.div_ceil(BLOCK) * BLOCK_BYTES;
        let mut out = vec![0; self.weights.len() / self.columns * row_bytes];
        for (row, out) in self.weights.chunks(self.columns).zip(out.chunks_mut(row_bytes)) {
            encode_row(row.iter().copied(), out);
        }
        out
    }
}

/// Converts I2_S blocks of bitnet.cpp's ARM builds (64 weights in 16 bytes) to the blocks of x86 builds.
///
/// # Panics
/// If the rows are not whole blocks of 128 weights.
pub(crate) fn from_arm(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; data.len()];
    for (block, out) in data.chunks_exact(32).zip(out.chunks_exact_mut(32)) {
        for (index, byte) in out.iter_mut().enumerate() {
            let code = |quarter: usize| {
                let weight = 32 * quarter + index;
                let (half, at) = (weight / 64, weight % 64);
                block[16 * half + at % 16] >> (6 - 2 * (at / 16)) & 3
            };
            *byte = (code(0) << 6) | (code(1) << 4) | (code(2) << 2) | code(3);
        }
    }
    out
}

/// Returns the row (within a group of 32) that a byte belongs to in TL2's order.
fn row_of_byte(byte: usize) -> usize {
    [0, 16, 8, 24][byte / 8] + byte % 8
}

/// Returns true if TL2's kernels can use these tiles for a matrix, and its codes fit into `bytes` bytes.
pub(crate) fn tl2_fits(rows: usize, columns: usize, tiles: Tiles, bytes: usize) -> bool {
    let Tiles { rows: tile_rows, columns: tile_columns, together } = tiles;
    let divides = |part: usize, whole: usize| part > 0 && whole.is_multiple_of(part);
    divides(tile_rows, rows)
        && divides(32, tile_rows)
        && together == 32
        && divides(24, tile_columns)
        && (columns % tile_columns).is_multiple_of(32)
        && tl2_codes(rows, columns, tiles) <= bytes
}

/// Returns the number of bytes of indices, signs and pairs.
fn tl2_codes(rows: usize, columns: usize, tiles: Tiles) -> usize {
    let pairs = columns % tiles.columns;
    (columns - pairs) / 24 * rows * 5 + pairs / 4 * rows
}

/// Decodes the rows of a TL2 matrix, or returns the offset of the first byte with an invalid index.
///
/// # Panics
/// If the tiles do not fit, or `data` has too few bytes.
pub(crate) fn from_tl2(data: &[u8], rows: usize, columns: usize, tiles: Tiles) -> Result<Vec<u8>, usize> {
    let in_pairs = columns % tiles.columns;
    let in_triples = columns - in_pairs;
    let (indices, rest) = data.split_at(rows * in_triples / 6);
    let (signs, pairs) = rest.split_at(rows * in_triples / 24);
    let mut out = TernaryRows::new(rows, columns);
    let mut at = 0;
    for (row, column) in tiled(rows, in_triples, tiles, 32, 6) {
        for byte in 0..32 {
            let found = indices[at + byte];
            let row = row + row_of_byte(byte);
            for (part, index) in [found >> 4, found & 15].into_iter().enumerate() {
                let column = column + 3 * part;
                let negative = is_negative(signs, tiles, in_triples, row, column);
                out.set(row, column, triple(index, negative).ok_or(at + byte)?);
            }
        }
        at += 32;
    }
    let pairs_at = indices.len() + signs.len();
    let mut at = 0;
    for (row, column) in tiled(rows, in_pairs, Tiles { columns: 32, ..tiles }, 32, 4) {
        for byte in 0..32 {
            let found = pair_of_pairs(pairs[at + byte]).ok_or(pairs_at + at + byte)?;
            out.set(row + row_of_byte(byte), in_triples + column, found);
        }
        at += 32;
    }
    Ok(out.encoded())
}

/// Returns the first row and column of each group of `rows` and `columns`, in file order: by tiles of rows, then
/// tiles of columns, then rows that are read together.
fn tiled(
    all_rows: usize,
    all_columns: usize,
    tiles: Tiles,
    rows: usize,
    columns: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let tops = (0..all_rows).step_by(tiles.rows);
    let corners =
        tops.flat_map(move |top| (0..all_columns).step_by(tiles.columns).map(move |left| (top, left)));
    corners.flat_map(move |(top, left)| {
        let rows = (top..top + tiles.rows).step_by(rows);
        rows.flat_map(move |row| {
            (left..left + tiles.columns).step_by(columns).map(move |column| (row, column))
        })
    })
}

/// Returns true if the triple that starts at this column of a row is negative. The signs of 24 columns (8 triples) of all
/// rows of a tile are stored together, in 16 words.
fn is_negative(signs: &[u8], tiles: Tiles, columns: usize, row: usize, column: usize) -> bool {
    let (tile, in_tile) = (row / tiles.rows, row % tiles.rows);
    let (block, in_block) = (column / tiles.columns, column % tiles.columns);
    let before = tile * tiles.rows * columns
        + block * tiles.rows * tiles.columns
        + in_tile / 32 * 32 * tiles.columns
        + in_block / 24 * 24 * 32;
    let word = &signs[before / 24 + 2 * (row % 16)..][..2];
    let bit = 15 - (2 * (in_block % 24 / 3) + in_tile % 32 / 16);
    u16::from_le_bytes([word[0], word[1]]) >> bit & 1 == 1
}

/// Decodes three weights a, b and c from |9a + 3b + c| and the sign.
fn triple(index: u8, negative: bool) -> Option<[i8; 3]> {
    let index = i8::try_from(index).ok().filter(|index| *index <= 13)?;
    let digits = 13 + if negative { -index } else { index };
    Some([digits / 9 - 1, digits / 3 % 3 - 1, digits % 3 - 1])
}

/// Decodes four weights from two indices. Each index is 3a + b + 4 for weights a and b; the first index is in the
/// high 4 bits.
fn pair_of_pairs(byte: u8) -> Option<[i8; 4]> {
    let (first, second) = ((byte >> 4) as i8, (byte & 15) as i8);
    let fits = first <= 8 && second <= 8;
    fits.then_some([first / 3 - 1, first % 3 - 1, second / 3 - 1, second % 3 - 1])
}

/// Returns true if TL1's kernels can use these tiles for a matrix.
pub(crate) fn tl1_fits(rows: usize, columns: usize, tiles: Tiles) -> bool {
    let Tiles { rows: tile_rows, columns: tile_columns, together } = tiles;
    let divides = |part: usize, whole: usize| part > 0 && whole.is_multiple_of(part);
    divides(tile_rows, rows)
        && divides(together, tile_rows)
        && divides(16, together)
        && divides(together, 256)
        && divides(256 / together, tile_columns)
        && divides(4, 256 / together)
        && divides(tile_columns, columns)
}

/// Decodes the rows of a TL1 matrix, or returns the offset of the first byte with an invalid index.
///
/// # Panics
/// If the tiles do not fit, or `data` has too few bytes.
pub(crate) fn from_tl1(data: &[u8], rows: usize, columns: usize, tiles: Tiles) -> Result<Vec<u8>, usize> {
    let mut out = TernaryRows::new(rows, columns);
    let mut at = 0;
    for (top, left) in tiled(rows, columns, tiles, tiles.together, 256 / tiles.together) {
        let part = Tiles { rows: tiles.together, columns: 256 / tiles.together, ..tiles };
        for (row, column) in columns_first(part) {
            for byte in 0..16 {
                let weights = pair_of_pairs(data[at + byte]).ok_or(at + byte)?;
                out.set(top + row + byte, left + column, weights);
            }
            at += 16;
        }
    }
    Ok(out.encoded())
}

/// Returns the groups of 16 rows and 4 columns in a part whose rows are read together.
fn columns_first(part: Tiles) -> impl Iterator<Item = (usize, usize)> {
    (0..part.rows)
        .step_by(16)
        .flat_map(move |row| (0..part.columns).step_by(4).map(move |column| (row, column)))
}
