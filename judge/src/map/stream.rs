//! Arrays that hold one entry per layer: the hidden states of transformers, as a tuple or a stack, and stacks of a tap.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkpoint::{Point, TapScope};
use crate::format::EscapedText;
use crate::map::matched_array::MatchedArray;
use crate::map::rule::{FusedForm, MapRule};
use crate::weight::StoredTensor;

/// Assigns the entries of the residual stream to their taps, and splits stacks into one array per entry. `layers` is
/// the number of layers of the model, if known.
pub(super) fn spread(matched: Vec<MatchedArray>, layers: Option<usize>) -> Vec<MatchedArray> {
    let mut spread = Vec::new();
    for mut one in matched {
        if one.rule.written.last_layer {
            one.layer = layers.and_then(|layers| layers.checked_sub(1));
            one.problem =
                one.layer.is_none().then(|| "the number of layers is unknown; give --model".to_owned());
            spread.push(one);
        } else if one.layer.is_none() && counts_layers(one.rule) {
            let expected = layers.map(|layers| layers + usize::from(is_stream(one.rule)));
            spread.extend(unstacked(one, expected));
        } else {
            spread.push(one);
        }
    }
    let known = streams(&spread);
    for one in spread.iter_mut().filter(|one| is_stream(one.rule) && one.problem.is_none()) {
        assign(one, &known[&key(one)], layers);
    }
    spread
}

/// Returns a note on the hidden states, since their names do not show that the last one is normed.
pub(super) fn note(matched: &[MatchedArray]) -> Option<String> {
    let entries = matched.iter().filter(|one| is_stream(one.rule) && one.problem.is_none() && one.pass == 0);
    let of = |tap: Point| entries.clone().filter(move |one| one.taps[0] == tap).max_by_key(|one| one.layer);
    let taps = &entries.clone().next()?.rule.taps;
    let taps = [taps.first().copied()?, taps.last().copied()?];
    let (first, last) = (of(taps[0])?, of(taps[1])?);
    Some(format!(
        "hidden states are read as transformers saves them: '{}' is {}, '{}' is {}, and entry i is block_out of \
         layer i - 1; if yours differ, name their taps in a map",
        EscapedText(&first.name),
        taps[0],
        EscapedText(&last.name),
        taps[1]
    ))
}

fn is_stream(rule: &MapRule) -> bool {
    rule.form == Some(FusedForm::Stream)
}

/// Returns true if an array without a layer in its name is a stack with one entry per layer.
fn counts_layers(rule: &MapRule) -> bool {
    let is_plain = rule.form.is_none() && rule.written.of.is_none();
    is_stream(rule) || is_plain && rule.taps.iter().all(|tap| tap.scope() == TapScope::Layer)
}

type StreamKey = (*const MapRule, usize);

fn key(one: &MatchedArray) -> StreamKey {
    (std::ptr::from_ref(one.rule), one.pass)
}

/// Returns the numbers of the entries of each residual stream.
fn streams(matched: &[MatchedArray]) -> BTreeMap<StreamKey, BTreeSet<usize>> {
    let mut numbers: BTreeMap<StreamKey, BTreeSet<usize>> = BTreeMap::new();
    for one in matched.iter().filter(|one| is_stream(one.rule)) {
        numbers.entry(key(one)).or_default().extend(one.layer);
    }
    numbers
}

/// Assigns an entry of the residual stream to its tap: the first entry to the first tap, the last entry to the last tap,
/// and each other entry to the second tap.
fn assign(one: &mut MatchedArray, numbers: &BTreeSet<usize>, layers: Option<usize>) {
    let (Some(number), Some(&last)) = (one.layer, numbers.last()) else { return };
    let is_whole =
        layers.map_or(numbers.len() == last.saturating_add(1) && last > 0, |layers| layers == last);
    if !is_whole {
        one.problem = Some(wrong_count(last.saturating_add(1), layers));
        return;
    }
    let index = match number {
        0 => 0,
        number if number == last => one.taps.len() - 1,
        _ => 1,
    };
    let tap = one.taps[index];
    one.layer = (tap.scope() == TapScope::Layer).then(|| number.saturating_sub(1));
    (one.taps, one.form) = (vec![tap], None);
}

fn wrong_count(found: usize, layers: Option<usize>) -> String {
    let expected = match layers {
        Some(layers) => format!("{} (the embedding and the outputs of {layers} layers)", layers + 1),
        None => "all entries from 0 on, or --model for the number of layers".to_owned(),
    };
    format!("{found} hidden states, expected {expected}; name the taps in your own map")
}

/// Splits a stack along its first axis that is longer than 1.
fn unstacked(one: MatchedArray, expected: Option<usize>) -> Vec<MatchedArray> {
    let shape = &one.stored.shape;
    let axis = shape.iter().position(|&length| length != 1).unwrap_or(0);
    let count = shape.get(axis).copied().unwrap_or(0);
    let each = one.stored.data.len().checked_div(count).unwrap_or(0);
    let is_stack =
        count > 1 && each > 0 && shape.len() >= axis + 3 && expected.is_none_or(|expected| expected == count);
    // A tap that is no stack is refused like any other array: by its missing layer, or by its shape.
    if !is_stack && !is_stream(one.rule) {
        return vec![one];
    }
    if !is_stack || each * count != one.stored.data.len() {
        let expected =
            expected.map_or("an axis of layers".to_owned(), |count| format!("[{count}, tokens, ...]"));
        let problem = format!(
            "shape {shape:?}, expected one entry per layer: {expected}; name the taps in your own map"
        );
        return vec![MatchedArray { problem: Some(problem), ..one }];
    }
    let entry = |number: usize| MatchedArray {
        name: format!("{}[{number}]", one.name),
        stored: StoredTensor {
            dtype: one.stored.dtype,
            shape: shape[axis + 1..].to_vec(),
            data: one.stored.data.slice(number * each..(number + 1) * each),
        },
        layer: Some(number),
        ..one.clone()
    };
    (0..count).map(entry).collect()
}
