//! Passes of a file that was read with a map.

use crate::checkpoint::{Point, TapAxis};
use crate::dump::Pass;
use crate::map::matched_array::MatchedArray;
use crate::map::tokens::MapTokens;

/// Returns the passes. If no array name has a pass number, one pass reads all tokens. Otherwise the number of
/// tokens per pass comes from the row counts of the arrays.
pub(super) fn passes(matched: &[MatchedArray], tokens: &MapTokens) -> std::result::Result<Vec<Pass>, String> {
    let (tokens, is_continued) = (tokens.ids.as_slice(), tokens.is_continued());
    let last = matched.iter().map(|one| one.pass).max().unwrap_or(0);
    if last >= tokens.len() {
        let read = tokens.len();
        return Err(format!(
            "the array names have passes up to {last}, but only {read} tokens are known; give --tokens of \
                all passes in order"
        ));
    }
    let told: Vec<Option<(usize, &str)>> = (0..=last).map(|pass| rows_of(matched, pass)).collect();
    let mut lengths: Vec<usize> = told.iter().map(|told| told.map_or(1, |(rows, _)| rows)).collect();
    if last == 0 && !is_continued {
        lengths = vec![tokens.len()];
    }
    let read = lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
    // No pass reads the last token that was generated.
    let tokens = match read {
        Some(read) if is_continued && read + 1 == tokens.len() => &tokens[..read],
        _ => tokens,
    };
    if read != Some(tokens.len()) {
        let tokens = tokens.len();
        let by = told.iter().rev().flatten().next();
        let by = by.map_or(String::new(), |(_, name)| format!(" (from the rows of arrays like '{name}')"));
        return Err(format!(
            "the passes read {lengths:?} tokens, but {tokens} are known{by}; give --tokens of all passes in \
             order, or state the axes of such arrays"
        ));
    }
    let mut position = 0;
    let pass = |length: usize| {
        let start = position;
        position += length;
        Pass { position: start, tokens: tokens[start..position].to_vec(), temperature: None }
    };
    Ok(lengths.into_iter().map(pass).collect())
}

/// Returns the number of tokens of a pass, and the name of the array that shows it: an array with one row per
/// token. Logits are used only if there is no other array, since many engines compute only their last row.
fn rows_of<'m>(matched: &'m [MatchedArray], pass: usize) -> Option<(usize, &'m str)> {
    let of = |one: &'m MatchedArray, is_row: fn(Point) -> bool| {
        let is_plain = matches!(one.taps[..], [point] if is_row(point)) && one.problem.is_none();
        let shape = &one.stored.shape;
        let says_no_more = one.rule.axes.is_none() && one.rule.written.rows.is_none();
        let outer = shape.len().checked_sub(2).filter(|_| is_plain && says_no_more)?;
        let is_one = shape[..outer].iter().all(|&length| length == 1);
        (is_one && shape[outer] > 0).then_some((shape[outer], one.name.as_str()))
    };
    let mut of_pass = matched.iter().filter(|one| one.pass == pass);
    of_pass
        .clone()
        .find_map(|one| of(one, is_of_stream))
        .or_else(|| of_pass.find_map(|one| of(one, is_of_vocabulary)))
}

/// Returns true if the tap has one row per token and belongs to the residual stream or the feed-forward
/// block. The attention context is excluded, since an array with one row per head looks like several tokens.
fn is_of_stream(point: Point) -> bool {
    matches!(point.axes(), [TapAxis::Token, TapAxis::Hidden | TapAxis::Ffn]) && point != Point::AttnContext
}

fn is_of_vocabulary(point: Point) -> bool {
    matches!(point.axes(), [TapAxis::Token, TapAxis::Vocab])
}
