//! Maps: what they say, and what they refuse.

use std::path::Path;

use xcheck::format::Arrays;
use xcheck::map::{Known, Map, Sizes, by_shipped};

use crate::common::terminal::Terminal;
use crate::disguised::stored;

/// Arrays of a pass of three tokens: two heads of two, one key-value head.
fn some(names: &[(&str, &[usize])]) -> Arrays {
    let array = |(name, shape): &(&str, &[usize])| {
        let elements: usize = shape.iter().product();
        let values: Vec<f64> = (0..elements).map(|at| at as f64 + name.len() as f64).collect();
        ((*name).to_owned(), stored(shape, &values))
    };
    Arrays::of(Path::new("some.npz"), names.iter().map(array).collect(), Vec::new()).expect("names differ")
}

fn known() -> Known {
    let sizes = Sizes { heads: Some(2), kv_heads: Some(1), head_dim: Some(2) };
    Known {
        tokens: Some(vec![1, 2, 3]),
        sizes,
        architecture: Some("llama".to_owned()),
        model: "m".to_owned(),
    }
}

fn rules(text: &str) -> Map {
    Map::of_text("mine", text).expect("a map")
}

#[track_caller]
fn assert_refused(map: &str, arrays: &Arrays, expected: &str) {
    let refused = rules(map).read(arrays, &known()).expect_err("it cannot be read").to_string();
    assert!(refused.contains(expected), "{refused}");
}

#[test]
fn every_map_that_ships_is_one() {
    assert_eq!(Map::shipped().count(), 6);
}

#[test]
fn a_fused_array_is_cut_as_the_map_says() {
    // Rows of queries, key and value: 4 + 2 + 2.
    let arrays = some(&[("b0.qkv", &[1, 3, 8]), ("b0.gu", &[3, 10])]);
    let map = "[[rule]]\nname = \"b{layer}.qkv\"\nfused = [\"q\", \"k\", \"v\"]\n[[rule]]\nname = \"b{layer}.gu\"\nfused = [\"ffn_gate\", \"ffn_up\"]\nform = \"interleaved\"\n";
    let dump = rules(map).read(&arrays, &known()).expect("it is read").dump;
    let value = |tap: &str| {
        let site = dump.sites().find(|site| site.point.name() == tap).expect("it is there");
        crate::disguised::view(&dump, site).to_vec()
    };
    assert_eq!(value("k"), [10.0, 11.0, 18.0, 19.0, 26.0, 27.0]);
    assert_eq!(value("v"), [12.0, 13.0, 20.0, 21.0, 28.0, 29.0]);
    assert_eq!(value("ffn_up")[..3], [6.0, 8.0, 10.0]);
}

#[test]
fn a_scale_and_padded_keys_are_undone() {
    let arrays = some(&[("s", &[2, 3, 8]), ("e", &[3, 4])]);
    let map = "[[rule]]\nname = \"s\"\ntap = \"attn_weights\"\nlayer = 0\npadded = true\n[[rule]]\nname = \"e\"\ntap = \"embed\"\nscale = 0.5\n";
    let dump = rules(map).read(&arrays, &known()).expect("it is read").dump;
    let shapes: Vec<_> = dump.manifest.tensors.iter().map(|row| row.shape.clone()).collect();
    assert_eq!(shapes, [vec![2, 3, 3], vec![3, 4]]);
    let embed = dump.sites().find(|site| site.point.name() == "embed").expect("it is there");
    assert_eq!(crate::disguised::view(&dump, embed).to_vec()[..2], [0.5, 1.0]);
}

#[test]
fn what_has_no_place_and_rules_of_nothing_are_told() {
    let arrays = some(&[("e", &[3, 4]), ("left.over", &[2])]);
    let map = "[[rule]]\nname = \"e\"\ntap = \"embed\"\n[[rule]]\nname = \"nothing\"\ntap = \"logits\"\n";
    let notes = rules(map).read(&arrays, &known()).expect("it is read").notes.join("\n");
    assert!(notes.contains("left.over") && notes.contains("of no array: nothing"), "{notes}");
}

#[test]
fn two_names_for_one_place_are_refused() {
    let arrays = some(&[("e", &[3, 4]), ("ee", &[3, 4])]);
    assert_refused(
        "[[rule]]\nname = \"e*\"\ntap = \"embed\"\n",
        &arrays,
        "'e' and 'ee' would both be embed, pass 0",
    );
}

#[test]
fn an_array_of_another_shape_is_refused() {
    let map = "[[rule]]\nname = \"q\"\ntap = \"q\"\nlayer = 0\n";
    assert_refused(
        map,
        &some(&[("q", &[5, 4])]),
        "shape [5, 4] is not [token, head, head_dim] of q in a pass of 3 tokens",
    );
    assert_refused("[[rule]]\nname = \"q\"\ntap = \"q\"\n", &some(&[("q", &[3, 4])]), "say which by {layer}");
}

#[test]
fn no_tokens_no_dump() {
    let arrays = some(&[("e", &[3, 4])]);
    let known = Known { tokens: None, ..known() };
    let refused = rules("[[rule]]\nname = \"e\"\ntap = \"embed\"\n")
        .read(&arrays, &known)
        .expect_err("no tokens")
        .to_string();
    assert!(refused.contains("--tokens 1,2,3"), "{refused}");
}

#[test]
fn a_file_that_no_map_places_is_refused_with_what_to_do() {
    let refused =
        by_shipped(&some(&[("x1", &[3, 4]), ("x2", &[3, 4])]), &known()).expect_err("no map").to_string();
    assert!(
        refused.contains("x1, x2") && refused.contains("xcheck identify") && refused.contains("--map"),
        "{refused}"
    );
}

#[test]
fn a_map_that_says_what_cannot_be_is_refused() {
    let refuse = |text: &str, expected: &str| {
        let refused = Map::of_text("mine", text).expect_err("no map").to_string();
        assert!(refused.contains(expected), "{refused}");
    };
    refuse("", "no [[rule]]");
    refuse("[[rule]]\nname = \"x\"\n", "either tap");
    refuse("[[rule]]\nname = \"x\"\ntap = \"qq\"\n", "no tap is named 'qq'");
    refuse("[[rule]]\nname = \"{head}\"\ntap = \"q\"\n", "{layer} and {pass} are known");
    refuse("[[rule]]\nname = \"(x\"\ntap = \"q\"\n", "unpaired brackets");
    refuse("[[rule]]\nname = \"x\"\ntap = \"q\"\naxes = [\"row\"]\n", "no axis is named 'row'");
    refuse("[[rule]]\nname = \"x\"\ntap = \"q\"\nscale = 0.0\n", "scale");
    refuse("[[rule]]\nnames = \"x\"\ntap = \"q\"\n", "names");
}

#[test]
fn a_map_for_a_dump_is_refused() {
    let terminal = Terminal::new();
    let words = [
        "audit",
        "tiny-qwen3/transformers-f32",
        "--model",
        "tiny-qwen3",
        "--map",
        "transformers",
        "--no-report",
    ];
    terminal.assert_refused(&words, "leave --map out");
}
