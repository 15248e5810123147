//! However sequences stand in a pass, each is read as if it had been dumped alone.

use std::collections::BTreeSet;

use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;

use super::bed::{Owner, Stand, twice};
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
