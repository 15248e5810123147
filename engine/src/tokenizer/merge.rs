//! Byte-pair merging: starting from characters, the best pair of neighbours is merged until no pair is left.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

/// Splits `text` into pieces. `score` returns the score of the piece that two neighbours would form, given its text and
/// the left part's length; `None` if it is not a piece. The pair with the highest score is merged first, the leftmost
/// on ties.
///
/// Every merge removes one symbol and adds at most two pairs: O(n log n) in the length of the text.
pub fn merge<'t>(text: &'t str, score: impl FnMut(&'t str, usize) -> Option<f32>) -> Vec<&'t str> {
    let ends: Vec<usize> = text.char_indices().map(|(start, one)| start + one.len_utf8()).collect();
    merge_from(text, &ends, score)
}

/// Splits `text` like [`merge`], but starts from the parts of `text` that end at `ends` instead of characters.
pub(crate) fn merge_from<'t>(
    text: &'t str,
    ends: &[usize],
    score: impl FnMut(&'t str, usize) -> Option<f32>,
) -> Vec<&'t str> {
    let mut merging = MergeState { text, score, symbols: symbols(ends), queue: BinaryHeap::new() };
    for right in 1..merging.symbols.len() {
        merging.propose(Some(right - 1), Some(right));
    }
    while let Some(pair) = merging.queue.pop() {
        if merging.is_current(&pair) {
            merging.join(&pair);
        }
    }
    let alive = merging.symbols.into_iter().filter(|symbol| !symbol.span.is_empty());
    alive.map(|symbol| &text[symbol.span]).collect()
}

/// A part of the text with links to its neighbours. Empty after it was merged into its left neighbour.
struct Symbol {
    span: Range<usize>,
    previous: Option<usize>,
    next: Option<usize>,
}

fn symbols(ends: &[usize]) -> Vec<Symbol> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let spans = starts.zip(ends).enumerate();
    spans
        .map(|(number, (start, &end))| Symbol {
            span: start..end,
            previous: number.checked_sub(1),
            next: (number + 1 < ends.len()).then_some(number + 1),
        })
        .collect()
}

/// Two neighbouring symbols that form a piece.
struct SymbolPair {
    score: f32,
    left: usize,
    right: usize,
    /// Combined length in bytes at the time when the pair was found.
    length: usize,
}

struct MergeState<'t, S> {
    text: &'t str,
    score: S,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<SymbolPair>,
}

impl<'t, S: FnMut(&'t str, usize) -> Option<f32>> MergeState<'t, S> {
    fn propose(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let span = self.symbols[left].span.start..self.symbols[right].span.end;
        let (length, left_length) = (span.len(), self.symbols[left].span.len());
        if let Some(score) = (self.score)(&self.text[span], left_length) {
            self.queue.push(SymbolPair { score, left, right, length });
        }
    }

    /// Returns true if both symbols are unchanged since the pair was found.
    fn is_current(&self, pair: &SymbolPair) -> bool {
        let (left, right) = (&self.symbols[pair.left].span, &self.symbols[pair.right].span);
        !left.is_empty() && !right.is_empty() && left.len() + right.len() == pair.length
    }

    fn join(&mut self, pair: &SymbolPair) {
        let right = &mut self.symbols[pair.right];
        let (end, next) = (right.span.end, right.next);
        right.span.start = end;
        let left = &mut self.symbols[pair.left];
        left.span.end = end;
        left.next = next;
        let previous = left.previous;
        if let Some(next) = next {
            self.symbols[next].previous = Some(pair.left);
        }
        self.propose(previous, Some(pair.left));
        self.propose(Some(pair.left), next);
    }
}

impl Ord for SymbolPair {
    /// Orders by score, then leftmost first.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(Reverse(self.left).cmp(&Reverse(other.left)))
    }
}

impl PartialOrd for SymbolPair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SymbolPair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for SymbolPair {}
