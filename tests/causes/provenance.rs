//! Rows of the cache and of logits whose provenance is looked up: rows of another sequence, position, pass or of no
//! text, keys with another rotation, and what is no such row.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use xcheck::change::CauseKind;
use xcheck::checkpoint::{Point, Site, TapAxis};
use xcheck::dump::Dump;
use xcheck::engine::{self, PassInput, RunInput};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Finding, Verdict};

use super::planted::{Bed, RecordedTaps};
use crate::batched_sequences::bed::Written;
use crate::common::share::one_of;

/// Tokens of two sequences that a dump holds, and what each reads pass by pass.
const SEQUENCES: [&[&[u32]]; 2] = [
    &[&[44, 31, 88, 140, 26, 12, 17, 9, 25], &[88], &[126], &[23]],
    &[&[93, 95, 60, 17, 31, 20, 6], &[37], &[107], &[50]],
];

type Recorded = BTreeMap<(usize, Option<usize>, Point), Tensor>;

/// A tap that records values after `change` has changed them.
struct Recorder<F: Fn(Site, Tensor) -> Tensor> {
    change: F,
    recorded: Recorded,
}

impl<F: Fn(Site, Tensor) -> Tensor> Tap for Recorder<F> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let value = (self.change)(site, value).with_origins(Vec::new());
        if let Some(pass) = site.pass {
            self.recorded.insert((pass, site.layer, site.point), value.clone());
        }
        value
    }
}

fn run(bed: &Bed, passes: &[&[u32]], change: impl Fn(Site, Tensor) -> Tensor) -> Recorded {
    let passes: Vec<PassInput> = passes.iter().map(|tokens| PassInput::given(tokens)).collect();
    let script = RunInput { prompt_len: passes[0].tokens.as_ref().map_or(0, Vec::len), passes };
    let mut recorder = Recorder { change, recorded: BTreeMap::new() };
    engine::run(&*bed.model, &*bed.engine, &script, &mut recorder).expect("it runs");
    recorder.recorded
}

fn is_cache(point: Point) -> bool {
    matches!(point, Point::KCache | Point::VCache)
}

/// The values with rows of another tensor in place of their own.
fn with_rows(value: &Tensor, rows: impl Iterator<Item = (usize, Vec<f32>)>) -> Tensor {
    let (width, mut data) = (value.row_len(), value.data().to_vec());
    for (row, values) in rows {
        data[row * width..][..width].copy_from_slice(&values);
    }
    Tensor::new(value.shape(), data)
}

/// Taps of a dump: all but scores and weights, or as thinned.
fn keeps(thinned: RecordedTaps, site: (Option<usize>, Point)) -> bool {
    let (_, point) = site;
    let is_whole = point.axes().len() > 1 && !matches!(point, Point::AttnScores | Point::AttnWeights);
    is_whole
        && match thinned {
            RecordedTaps::Blocks => matches!(point, Point::Embed | Point::BlockOut | Point::Logits),
            RecordedTaps::Logits => point == Point::Logits,
            _ => point <= Point::Logits,
        }
}

/// One dump of two sequences.
fn joined(bed: &Bed, both: [&Recorded; 2], thinned: RecordedTaps) -> Vec<Dump> {
    let (empty, _) = bed.dump(&[], RecordedTaps::Logits);
    let mut written = Written::of(&empty);
    (written.arrays, written.manifest["generated"]) = (BTreeMap::new(), Value::Null);
    let prompts = SEQUENCES.map(|passes| json!({"tokens": passes[0], "decode": "forced"}));
    written.manifest["input"] = json!({"sequences": prompts});
    let passes: Vec<Value> = (0..SEQUENCES[0].len()).map(pass).collect();
    written.manifest["passes"] = json!(passes);
    let mut tensors = Vec::new();
    for (&(pass, layer, point), first) in both[0] {
        if !keeps(thinned, (layer, point)) {
            continue;
        }
        let second = &both[1][&(pass, layer, point)];
        let mut shape = first.shape().to_vec();
        assert!(matches!(point.axes()[0], TapAxis::Token | TapAxis::Key), "{point}");
        shape[0] += second.rows();
        let file = format!("{pass}-{}-{point}.npy", layer.map_or(99, |layer| layer));
        let mut row =
            json!({"tap": point.name(), "pass": pass, "dtype": "f32", "shape": shape, "file": file});
        if let Some(layer) = layer {
            row["layer"] = json!(layer);
        }
        tensors.push(row);
        written.arrays.insert(file, (shape, [first.data(), second.data()].concat()));
    }
    written.manifest["tensors"] = json!(tensors);
    written.open_all().expect("it is sound")
}

fn pass(index: usize) -> Value {
    let owners = |count: &dyn Fn(usize) -> std::ops::Range<usize>| -> [Vec<usize>; 2] {
        let each = (0..2).flat_map(|sequence| count(sequence).map(move |position| (sequence, position)));
        let (sequences, positions) = each.unzip();
        [sequences, positions]
    };
    let start = |sequence: usize, index: usize| -> usize {
        SEQUENCES[sequence][..index].iter().map(|tokens| tokens.len()).sum()
    };
    let [sequence, position] = owners(&|sequence| start(sequence, index)..start(sequence, index + 1));
    let [of_key, at] = owners(&|sequence| 0..start(sequence, index + 1));
    let tokens: Vec<u32> = SEQUENCES.iter().flat_map(|passes| passes[index].to_vec()).collect();
    json!({"tokens": tokens, "sequence": sequence, "position": position,
        "keys": {"sequence": of_key, "position": at}})
}

/// Judges the second sequence, whose run is changed by a tap that knows the first one's.
fn second(
    bed: &Bed,
    thinned: RecordedTaps,
    change: impl Fn(&Recorded, Site, Tensor) -> Tensor,
) -> (Verdict, Vec<Finding>) {
    let first = run(bed, SEQUENCES[0], |_, value| value);
    let other = run(bed, SEQUENCES[1], |site, value| change(&first, site, value));
    let dumps = joined(bed, [&first, &other], thinned);
    let right = bed.check(&dumps[0]);
    assert_eq!((right.verdict, right.findings.len()), (Verdict::Pass, 0), "{:?}", right.reason);
    let outcome = bed.check(&dumps[1]);
    (outcome.verdict, outcome.findings)
}

#[track_caller]
fn assert_one(findings: &[Finding], kind: CauseKind, words: &[&str], of: &str) {
    let [finding] = findings else { panic!("{of}: {findings:?}") };
    assert_eq!(finding.kind, kind, "{of}: {}", finding.what);
    for word in words {
        assert!(finding.what.contains(word), "{of}: {}", finding.what);
    }
}

#[test]
fn a_block_of_another_sequence_in_the_cache_is_found() {
    for (model, arithmetic, thinned) in [
        ("tiny-llama3-f32", "bf16", RecordedTaps::Full),
        ("tiny-gemma3-f32", "f32", RecordedTaps::Full),
        ("tiny-qwen3-f32", "f32", RecordedTaps::Blocks),
        ("tiny-gpt2-f32", "f32", RecordedTaps::Logits),
        ("tiny-llama2-f32", "bf16", RecordedTaps::Blocks),
    ] {
        let bed = Bed::new(model, arithmetic);
        let (_, findings) = second(&bed, thinned, |first, site, value| {
            let is_here = is_cache(site.point) && site.pass == Some(2);
            let rows = |other: &Tensor| (0..4).map(|row| (row, other.row(row).to_vec())).collect::<Vec<_>>();
            let other = first.get(&(1, site.layer, site.point)).filter(|_| is_here);
            other.map_or_else(|| value.clone(), |other| with_rows(&value, rows(other).into_iter()))
        });
        let words = ["from pass 2 on", "positions 0 to 3", "sequence 0 at positions 0 to 3", "all layers"];
        assert_one(&findings, CauseKind::CacheRow, &words, &format!("{model}, {arithmetic}, {thinned:?}"));
    }
}

/// A row that another request has overwritten.
fn overwritten(site: Site, value: Tensor, at: (usize, usize)) -> Tensor {
    let (pass, row) = at;
    if !is_cache(site.point) || site.pass != Some(pass) {
        return value;
    }
    let noise = |at: usize| ((at * 7919 + site.layer.unwrap_or(0)) % 101) as f32 / 32.0 - 1.5;
    let values = (0..value.row_len()).map(noise).collect();
    with_rows(&value, std::iter::once((row, values)))
}

#[test]
fn a_row_of_no_text_is_told_with_what_is_known_of_it() {
    let engines = [("tiny-llama3-f32", "f32"), ("tiny-qwen3-f32", "bf16"), ("tiny-gpt2-f32", "llama.cpp")];
    for (model, arithmetic) in one_of(3, engines) {
        let bed = Bed::new(model, arithmetic);
        let dump = bed.dump_with(&mut Recorder {
            change: |site, value| overwritten(site, value, (2, 7)),
            recorded: BTreeMap::new(),
        });
        let words =
            ["from pass 2 on", "position 7 holds no row of this text", "keys and values, in all layers"];
        let findings = bed.check(&dump).findings;
        assert_one(&findings, CauseKind::CacheRow, &words, &format!("{model}, {arithmetic}"));
    }
    // From less than that no cause is named, but the pass where it begins.
    let bed = Bed::new("tiny-llama3-f32", "f32");
    for thinned in one_of(2, [RecordedTaps::Blocks, RecordedTaps::Logits]) {
        let (_, findings) = second(&bed, thinned, |_, site, value| overwritten(site, value, (2, 5)));
        let words = ["earlier passes are correct", "that pass 2 reads"];
        assert_one(&findings, CauseKind::Unknown, &words, &format!("{thinned:?}"));
    }
}

#[test]
fn exchanged_and_repeated_rows_of_logits_are_found() {
    for (arithmetic, thinned) in [
        ("f32", RecordedTaps::Full),
        ("bf16", RecordedTaps::Full),
        ("f32", RecordedTaps::Blocks),
        ("bf16", RecordedTaps::Logits),
    ] {
        let bed = Bed::new("tiny-llama3-f32", arithmetic);
        let of = format!("{arithmetic}, {thinned:?}");
        let is_logits = |site: Site, pass: usize| site.point == Point::Logits && site.pass == Some(pass);
        let (_, findings) = second(&bed, thinned, |_, site, value| match is_logits(site, 0) {
            false => value,
            true => {
                let rows = [(4, value.row(5).to_vec()), (5, value.row(4).to_vec())];
                with_rows(&value, rows.into_iter())
            }
        });
        let words = ["position 4 holds the row of position 5", "position 5 holds the row of position 4"];
        assert_one(&findings, CauseKind::RowSource, &words, &of);
        let (_, findings) = second(&bed, thinned, |first, site, value| match is_logits(site, 2) {
            false => value,
            true => first[&(2, None, Point::Logits)].clone(),
        });
        assert_one(&findings, CauseKind::RowSource, &["in pass 2", "of sequence 0"], &of);
    }
}

#[test]
fn right_sequences_have_no_cause() {
    for (model, arithmetic) in [("tiny-llama3-f32", "bf16"), ("tiny-gemma3-f32", "f32")] {
        for thinned in [RecordedTaps::Full, RecordedTaps::Logits] {
            let (verdict, findings) = second(&Bed::new(model, arithmetic), thinned, |_, _, value| value);
            assert_eq!((verdict, findings.len()), (Verdict::Pass, 0), "{model}, {arithmetic}");
        }
    }
}
