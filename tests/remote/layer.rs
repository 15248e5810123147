//! One layer of a model and of a dump that are elsewhere: its bytes come, and those of no other layer.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use serde_json::Value;

use super::machine::{BLOCK, Machine};
use super::server::Given;

const MODEL: &str = "tiny-llama2/hf";
const WEIGHTS: &str = "tiny-llama2/hf/model.safetensors";
/// Its arrays are longer than what is brought as one and than what is brought ahead of a reader who goes on, so that it
/// shows which of them was read.
const DUMP: &str = "long.safetensors";
/// By so much of its beginning it is told what a file is.
const START: usize = 1 << 17;
const LAYERS: usize = 4;
const LAYER: usize = 2;

/// Where the tensors of a safetensors file stand, as its header has it, and the end of the header.
struct Places {
    header: Range<usize>,
    tensors: BTreeMap<String, Range<usize>>,
}

impl Places {
    fn of(file: &[u8]) -> Self {
        let (len, rest) = file.split_at(8);
        let start = 8 + u64::from_le_bytes(len.try_into().expect("8 bytes")) as usize;
        let header: Value = serde_json::from_slice(&rest[..start - 8]).expect("JSON");
        let place = |tensor: &Value| {
            let at =
                |index: usize| start + tensor["data_offsets"][index].as_u64().expect("a number") as usize;
            at(0)..at(1)
        };
        let tensors = header.as_object().expect("tensors").iter().filter(|(name, _)| *name != "__metadata__");
        let tensors = tensors.map(|(name, tensor)| (name.clone(), place(tensor))).collect();
        Self { header: 0..start, tensors }
    }

    /// The tensors whose names are so.
    fn named(&self, is_one: impl Fn(&str) -> bool) -> Vec<Range<usize>> {
        let tensors = self.tensors.iter().filter(|(name, _)| is_one(name));
        tensors.map(|(_, place)| place.clone()).collect()
    }
}

/// The numbers of the blocks that bytes lie in.
fn blocks(range: &Range<usize>) -> Range<usize> {
    range.start / BLOCK..range.end.div_ceil(BLOCK)
}

/// The blocks of a file that were given and hold nothing of what may be read.
fn unasked(given: &[Given], path: &str, may_be_read: &[Range<usize>]) -> Vec<usize> {
    let given = given.iter().filter(|given| given.path == path).flat_map(|given| blocks(&given.range));
    given.filter(|block| !may_be_read.iter().any(|range| blocks(range).contains(block))).collect()
}

/// A machine with a dump of 256 tokens beside the model.
fn machine() -> Machine {
    let machine = Machine::new(&["tiny-llama2"]);
    let tokens: Vec<String> = (1..=256).map(|token| token.to_string()).collect();
    let model = super::machine::shipped(MODEL).display().to_string();
    machine.succeeds(&[
        "dump",
        "--model",
        &model,
        "--tokens",
        &tokens.join(","),
        "--decode",
        "0",
        "--out",
        DUMP,
    ]);
    machine.server.put(DUMP, fs::read(machine.folder.path().join(DUMP)).expect("written"));
    machine
}

/// What the server gave for these layers, judged by themselves up to their outputs.
fn given_for(machine: &Machine, layers: &str, more: &[&str]) -> Vec<Given> {
    let arguments = ["--layer", layers, "--introduced", "--no-report"];
    let report = machine.report(&machine.url(MODEL), &machine.url(DUMP), &[&arguments, more].concat());
    assert_eq!(report["verdict"], "pass", "{report}");
    machine.server.given()
}

/// Of the weights: the beginning with the header, what is a vector, and that layer.
fn weights_of(layer: usize, weights: &Places) -> Vec<Range<usize>> {
    let prefix = format!("model.layers.{layer}.");
    let mut places = weights.named(|name| name.contains("norm") || name.starts_with(&prefix));
    places.push(0..weights.header.end.max(START));
    places
}

/// Of the dump: the header, that layer, what enters it, and what was chosen, which must agree with itself.
fn arrays_of(layer: usize, dump: &Places) -> Vec<Range<usize>> {
    let (prefix, input) = (format!("p0/l{layer:02}/"), format!("p0/l{:02}/block_out", layer - 1));
    let mut places = dump.named(|name| name.starts_with(&prefix) || name == input);
    places.extend(dump.named(|name| name == "generated" || name == "p0/argmax"));
    places.push(dump.header.clone());
    places
}

#[test]
fn teacher_forcing_one_layer_reads_that_layer_of_weights_and_dump_and_no_other() {
    let machine = machine();
    let (weights, dump) = (Places::of(&machine.server.file(WEIGHTS)), Places::of(&machine.server.file(DUMP)));
    let (of_weights, of_dump) = (weights_of(LAYER, &weights), arrays_of(LAYER, &dump));
    let given = given_for(&machine, &LAYER.to_string(), &["--checkpoint", "1-7"]);
    assert_eq!(unasked(&given, WEIGHTS, &of_weights), Vec::<usize>::new(), "blocks of other weights");
    assert_eq!(unasked(&given, DUMP, &of_dump), Vec::<usize>::new(), "blocks of other arrays");
    // All of the layer came: what was counted is the reading.
    for (path, places) in [(WEIGHTS, &of_weights), (DUMP, &of_dump)] {
        let came =
            |block| given.iter().any(|given| given.path == path && blocks(&given.range).contains(&block));
        assert!(places.iter().flat_map(blocks).all(came), "{path}");
    }
}

#[test]
fn whoever_asks_for_all_checkpoints_gets_the_head_but_no_other_layer() {
    let machine = machine();
    let weights = Places::of(&machine.server.file(WEIGHTS));
    let mut of_weights = weights_of(LAYER, &weights);
    of_weights
        .extend(weights.named(|name| name.starts_with("lm_head") || name.starts_with("model.embed_tokens")));
    let given = given_for(&machine, &LAYER.to_string(), &[]);
    assert_eq!(unasked(&given, WEIGHTS, &of_weights), Vec::<usize>::new(), "blocks of other weights");
}

#[test]
fn another_layers_matrix_or_array_would_have_been_seen() {
    let machine = machine();
    let (weights, dump) = (Places::of(&machine.server.file(WEIGHTS)), Places::of(&machine.server.file(DUMP)));
    let (of_weights, of_dump) = (weights_of(LAYER, &weights), arrays_of(LAYER, &dump));
    let whole = |path: &str, range: &Range<usize>| {
        [Given { path: path.to_owned(), range: range.clone(), authorization: None }]
    };
    for layer in (0..LAYERS).filter(|layer| *layer != LAYER) {
        let prefix = format!("model.layers.{layer}.");
        let matrices = weights.named(|name| name.starts_with(&prefix) && !name.contains("norm"));
        assert_eq!(matrices.len(), 7);
        for matrix in &matrices {
            assert!(
                !unasked(&whole(WEIGHTS, matrix), WEIGHTS, &of_weights).is_empty(),
                "{layer}: {matrix:?}"
            );
        }
        let prefix = format!("p0/l{layer:02}/attn_");
        for array in dump.named(|name| name.starts_with(&prefix) && !name.ends_with("norm")) {
            assert!(!unasked(&whole(DUMP, &array), DUMP, &of_dump).is_empty(), "{layer}: {array:?}");
        }
    }
    // And for real: two layers are more than one.
    let given = given_for(&machine, &format!("{},{LAYER}", LAYER - 2), &["--checkpoint", "1-7"]);
    assert!(!unasked(&given, WEIGHTS, &of_weights).is_empty() && !unasked(&given, DUMP, &of_dump).is_empty());
}
