//! However sequences stand in a pass, each is read as if it had been dumped alone.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use xcheck::checkpoint::{Point, Site, TapAxis};
use xcheck::dump::Dump;

use super::bed::{Owner, Stand, Written, twice, unravel};
use crate::common::reference_of;

fn own(whose: usize, tokens: usize) -> Vec<Owner> {
    (0..tokens).map(|at| Some((whose, at))).collect()
}

/// Ways in which two sequences of so many tokens stand in a pass.
fn packed(tokens: usize) -> Stand {
    Stand { is_batch: false, entries: vec![[own(0, tokens), vec![None], own(1, tokens)].concat()] }
}

fn interleaved(tokens: usize) -> Stand {
    let both = own(1, tokens).into_iter().zip(own(0, tokens));
    Stand { is_batch: false, entries: vec![both.flat_map(|(one, other)| [one, None, other]).collect()] }
}

fn padded(tokens: usize) -> Stand {
    let padding = if tokens > 1 { vec![None; 2] } else { Vec::new() };
    let (left, right) = ([padding.clone(), own(0, tokens)].concat(), [own(1, tokens), padding].concat());
    Stand { is_batch: true, entries: vec![left, right] }
}

fn assert_same_values(name: &str, alone: &Dump, sequence: &Dump, sign: f64) {
    let of_taps = |dump: &Dump| -> BTreeSet<_> {
        let sites = dump.sites().filter(|site| !matches!(site.point, Point::Argmax | Point::Generated));
        sites.map(Site::flow_order).collect()
    };
    assert_eq!(of_taps(alone), of_taps(sequence), "{name}");
    for site in alone.sites().filter(|site| !matches!(site.point, Point::Argmax | Point::Generated)) {
        let (one, other) =
            [alone, sequence].map(|dump| dump.read(site).expect("sound").expect("held")).into();
        assert_eq!(one.shape, other.shape, "{name}: {site}");
        let differs = one.data.iter().zip(&other.data).find(|(one, other)| **one != sign * **other);
        assert_eq!(differs, None, "{name}: {site}, with sign {sign}");
    }
    assert_eq!(alone.manifest.passes, sequence.manifest.passes, "{name}");
    assert_eq!(alone.manifest.input.tokens, sequence.manifest.input.tokens, "{name}");
    assert_eq!(alone.manifest.generated, sequence.manifest.generated, "{name}");
}

#[test]
fn sequences_are_read_as_if_alone() {
    for (model, name) in [
        ("tiny-llama2", "llama.cpp-f32"),
        ("tiny-qwen3", "transformers-f32"),
        ("tiny-gpt2", "transformers-f32"),
    ] {
        let alone = reference_of(model, name);
        for (way, stand) in
            [("packed", packed as fn(usize) -> Stand), ("interleaved", interleaved), ("padded", padded)]
        {
            let dumps = twice(&alone, stand).open_all().expect("it is sound");
            assert_eq!(dumps.len(), 2);
            for (sequence, sign) in dumps.iter().zip([1.0, -1.0]) {
                assert_same_values(&format!("{model}, {way}"), &alone, sequence, sign);
            }
        }
    }
}

/// A row-major array with other entries along an axis.
fn taken((shape, data): &(Vec<usize>, Vec<f32>), axis: usize, entries: &[usize]) -> (Vec<usize>, Vec<f32>) {
    let mut other = shape.clone();
    other[axis] = entries.len();
    let from = |flat: usize| {
        let mut index = unravel(flat, &other);
        index[axis] = entries[index[axis]];
        data[index.iter().zip(shape).fold(0, |at, (index, length)| at * length + index)]
    };
    (other.clone(), (0..other.iter().product()).map(from).collect())
}

/// Whose each key of a pass is, by its manifest: all that was read so far.
fn keys(written: &Written, pass: usize) -> [Vec<Value>; 2] {
    let passes = written.manifest["passes"].as_array().expect("passes");
    ["sequence", "position"].map(|field| {
        let of_pass = |pass: &Value| pass[field].as_array().expect("a list").clone();
        passes[..=pass].iter().flat_map(of_pass).collect()
    })
}

/// Changes every array with keys: which of them it has, of whose its pass knows, and in which order.
fn edit_keys(written: &mut Written, kept: impl Fn(Site, &[Vec<Value>; 2]) -> Vec<usize>) {
    let rows = written.manifest["tensors"].as_array().expect("rows").clone();
    for (at, row) in rows.iter().enumerate() {
        let point: Point = row["tap"].as_str().expect("a tap").parse().expect("it is one");
        let Some(axis) = point.axes().iter().position(|&axis| axis == TapAxis::Key) else { continue };
        let number = |field: &str| row[field].as_u64().map(|number| number as usize);
        let site = Site { point, layer: number("layer"), pass: number("pass") };
        let kept = kept(site, &keys(written, site.pass.expect("of a pass")));
        let array = written.arrays.get_mut(row["file"].as_str().expect("a file")).expect("it is there");
        *array = taken(array, axis, &kept);
        written.manifest["tensors"][at]["shape"] = json!(array.0);
    }
}

/// A paged cache has keys in the order of its pages.
#[test]
fn kv_cache_keys_are_read_in_the_order_that_a_pass_states() {
    let alone = reference_of("tiny-gpt2", "transformers-f32");
    let mut written = twice(&alone, interleaved);
    edit_keys(&mut written, |_, keys| (0..keys[0].len()).rev().collect());
    for pass in 0..alone.manifest.passes.len() {
        let [sequence, position] =
            keys(&written, pass).map(|list| list.into_iter().rev().collect::<Vec<_>>());
        written.manifest["passes"][pass]["keys"] = json!({"sequence": sequence, "position": position});
    }
    let dumps = written.open_all().expect("it is sound");
    for (sequence, sign) in dumps.iter().zip([1.0, -1.0]) {
        assert_same_values("in pages", &alone, sequence, sign);
    }
    written.manifest["passes"][0]["keys"]["position"][0] = json!(0);
    let refused = written.open_all().expect_err("a position is there twice").to_string();
    assert!(refused.contains("expected the latest positions up to"), "{refused}");
}

/// A layer with a window keeps the latest keys of each sequence.
#[test]
fn a_shorter_kv_cache_keeps_the_latest_keys_of_each_sequence() {
    let (alone, window) = (reference_of("tiny-gemma3", "transformers-f32"), 5);
    let own =
        |tokens: usize| Stand { is_batch: false, entries: vec![[own(0, tokens), own(1, tokens)].concat()] };
    let mut written = twice(&alone, own);
    let is_cut = |site: Site| site.layer == Some(0) && site.point == Point::KCache;
    edit_keys(&mut written, |site, [_, position]| {
        let last = position.iter().filter_map(Value::as_u64).max().expect("there are keys") as usize;
        let is_kept = |key: &usize| {
            !is_cut(site) || position[*key].as_u64().expect("a number") as usize + window > last
        };
        (0..position.len()).filter(is_kept).collect()
    });
    let dumps = written.open_all().expect("it is sound");
    let mut cut = 0;
    for (sequence, sign) in dumps.iter().zip([1.0, -1.0]) {
        for site in sequence.sites().filter(|&site| is_cut(site)) {
            let [all, latest] = [&alone, sequence].map(|dump| dump.read(site).expect("sound").expect("held"));
            let expected: Vec<f64> =
                all.data[all.data.len() - latest.data.len()..].iter().map(|value| sign * value).collect();
            assert_eq!((latest.shape[0], latest.data), (window, expected), "{site}");
            cut += 1;
        }
    }
    assert!(cut > 2, "{cut}");
    // So many that no sequence can have kept its latest alone.
    let mut odd = twice(&alone, own);
    edit_keys(&mut odd, |site, keys| (usize::from(is_cut(site))..keys[0].len()).collect());
    let refused = odd.open_all().expect_err("one has one key more than the other").to_string();
    assert!(refused.contains("describe them in"), "{refused}");
}
