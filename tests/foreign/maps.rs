//! Maps: what they say, and what they refuse.

use std::path::Path;

use xcheck::dump::Dump;
use xcheck::error::Error;
use xcheck::format::Arrays;
use xcheck::map::{HeadSizes, MapContext, MappedDump, NameMap, by_shipped, tokens_of};

use super::disguised::stored;
use crate::common::terminal::Terminal;

/// Arrays of a pass of three tokens: two heads of two, one key-value head.
fn some(names: &[(&str, &[usize])]) -> Arrays {
    let array = |(name, shape): &(&str, &[usize])| {
        let elements: usize = shape.iter().product();
        let values: Vec<f64> = (0..elements).map(|at| at as f64 + name.len() as f64).collect();
        ((*name).to_owned(), stored(shape, &values))
    };
    Arrays::of(Path::new("some.npz"), names.iter().map(array).collect(), Vec::new()).expect("names differ")
}

fn known() -> MapContext {
    let sizes = HeadSizes { heads: Some(2), kv_heads: Some(1), head_dim: Some(2) };
    MapContext {
        tokens: Some(vec![1, 2, 3]),
        sizes,
        architecture: Some("llama".to_owned()),
        model: "m".to_owned(),
        ignore: Vec::new(),
        ..MapContext::default()
    }
}

fn rules(text: &str) -> NameMap {
    NameMap::of_text("mine", text).expect("a map")
}

#[track_caller]
fn assert_refused(map: &str, arrays: &Arrays, expected: &str) {
    let refused = rules(map).read(arrays, &known()).expect_err("it cannot be read").to_string();
    assert!(refused.contains(expected), "{refused}");
}

#[test]
fn every_map_that_ships_is_one() {
    assert_eq!(NameMap::shipped().count(), 7);
}

#[test]
fn a_fused_qkv_array_is_split_as_the_map_says() {
    // Rows of queries, key and value: 4 + 2 + 2.
    let arrays = some(&[("b0.qkv", &[1, 3, 8]), ("b0.gu", &[3, 10])]);
    let map = "[[rule]]\nname = \"b{layer}.qkv\"\nfused = [\"q\", \"k\", \"v\"]\n[[rule]]\nname = \"b{layer}.gu\"\nfused = [\"ffn_gate\", \"ffn_up\"]\nform = \"interleaved\"\n";
    let dump = rules(map).read(&arrays, &known()).expect("it is read").dump;
    let value = |tap: &str| {
        let site = dump.sites().find(|site| site.point.name() == tap).expect("it is there");
        super::disguised::view(&dump, site).to_vec()
    };
    assert_eq!(value("k"), [10.0, 11.0, 18.0, 19.0, 26.0, 27.0]);
    assert_eq!(value("v"), [12.0, 13.0, 20.0, 21.0, 28.0, 29.0]);
    assert_eq!(value("ffn_up")[..3], [6.0, 8.0, 10.0]);
}

/// The values of a tap of layer 0, or of no layer.
fn values(dump: &Dump, tap: &str) -> Vec<f64> {
    let site = dump.sites().find(|site| site.point.name() == tap).expect("it is there");
    super::disguised::view(dump, site).to_vec()
}

#[test]
fn projections_head_by_head_are_taken_apart() {
    // Two key-value heads, each behind its two query heads and before its value: 2 + 1 + 1 heads of two values.
    let arrays = some(&[("x", &[1, 3, 16])]);
    let map = "heads = 4\nkv_heads = 2\nhead_dim = 2\n[[rule]]\nname = \"x\"\nfused = [\"q\", \"k\", \"v\"]\nform = \"heads\"\nlayer = 0\n";
    let known = MapContext { sizes: HeadSizes::default(), ..known() };
    let dump = rules(map).read(&arrays, &known).expect("it is read").dump;
    assert_eq!(values(&dump, "q")[..8], [1.0, 2.0, 3.0, 4.0, 9.0, 10.0, 11.0, 12.0]);
    assert_eq!(values(&dump, "k")[..6], [5.0, 6.0, 13.0, 14.0, 21.0, 22.0]);
    assert_eq!(values(&dump, "v")[..6], [7.0, 8.0, 15.0, 16.0, 23.0, 24.0]);
}

#[test]
fn stacked_taps_are_taken_apart_in_the_axes_that_are_said() {
    // Three tokens of two heads of two values, heads first: queries, then keys.
    let arrays = some(&[("x", &[2, 2, 3, 2])]);
    let map = "heads = 2\nkv_heads = 2\nhead_dim = 2\n[[rule]]\nname = \"x\"\nfused = [\"q\", \"k\"]\nform = \"stacked\"\nlayer = 0\n";
    let known = MapContext { sizes: HeadSizes::default(), ..known() };
    let said = format!("{map}axes = [\"head\", \"token\", \"head_dim\"]\n");
    let dump = rules(&said).read(&arrays, &known).expect("it is read").dump;
    assert_eq!(values(&dump, "q"), [1.0, 2.0, 7.0, 8.0, 3.0, 4.0, 9.0, 10.0, 5.0, 6.0, 11.0, 12.0]);
    assert_eq!(values(&dump, "k")[..4], [13.0, 14.0, 19.0, 20.0]);
    // The axes count: these are of an array of another shape.
    let other = format!("{map}axes = [\"token\", \"head\", \"head_dim\"]\n");
    let refused = rules(&other).read(&arrays, &known).expect_err("three heads are not two").to_string();
    assert!(refused.contains("shape [2, 3, 2] is not [token, head, head_dim]"), "{refused}");
}

#[test]
fn one_value_under_two_names_is_of_the_same_rows_and_axes() {
    let rule = |name: &str, more: &str| format!("[[rule]]\nname = \"{name}\"\ntap = \"logits\"\n{more}\n");
    let arrays = some(&[("a", &[1, 4]), ("b", &[1, 4])]);
    let both = |one: &str, other: &str| rule("a", one) + &rule("b", other);
    let reading =
        rules(&both("rows = [2]", "rows = [2]")).read(&arrays, &known()).expect("they are one value");
    assert!(reading.notes.join("\n").contains("under two names"), "{:?}", reading.notes);
    assert_refused(&both("rows = [0]", "rows = [2]"), &arrays, "both match logits");
    let arrays = some(&[("a", &[3, 4]), ("b", &[3, 4])]);
    let of = |start: usize| {
        format!("of = {{ shape = [3, 2, 2], start = [0, {start}, 0], end = [3, {}, 2] }}", start + 1)
    };
    assert_refused(&both(&of(0), &of(1)), &arrays, "both match logits");
    let narrow = "of = { shape = [3, 4], start = [0, 0], end = [3, 2] }";
    let wide = "of = { shape = [6, 2], start = [0, 0], end = [3, 2] }";
    assert_refused(&both(narrow, wide), &arrays, "both match logits");
}

#[test]
fn rules_of_parts_of_one_name_count_together() {
    let part = |tap: &str, from: usize, to: usize| {
        format!(
            "[[rule]]\nname = \"b{{layer}}\"\ntap = \"{tap}\"\naxes = [\"token\", \"ffn\"]\nof = {{ shape = [3, 10], start = [0, {from}], end = [3, {to}] }}\n"
        )
    };
    let parts = part("ffn_gate", 0, 5) + &part("ffn_up", 5, 10);
    let arrays = some(&[("b0", &[3, 10])]);
    let reading = rules(&parts).read(&arrays, &known()).expect("it is read");
    assert_eq!(values(&reading.dump, "ffn_gate")[..2], [2.0, 3.0]);
    assert_eq!(values(&reading.dump, "ffn_up")[..2], [7.0, 8.0]);
    assert_eq!(reading.placed, 1);
    assert!(!reading.notes.join("\n").contains("match no array"), "{:?}", reading.notes);
    // A rule of other names is behind the first, as ever.
    let general = "[[rule]]\nname = \"b*\"\ntap = \"ffn_act\"\nlayer = 0\n";
    let reading = rules(&(parts.clone() + general)).read(&arrays, &known()).expect("it is read");
    assert_eq!(reading.dump.manifest.tensors.len(), 2);
    assert_refused(&part("ffn_up", 7, 5), &arrays, "[0, 7] to [3, 5] is outside");
}

/// Arrays of f32 of which the products hold numbers of bf16 alone do not say f32; and a map may say how an engine rounds.
#[test]
fn products_of_a_shorter_type_leave_open_what_is_computed_in() {
    let (short, whole) = ([1.5; 12], [0.1; 12]);
    let of = |name: &str, values: [f64; 12]| (name.to_owned(), stored(&[3, 4], &values));
    let map = "rounding = { like = \"bf16-autocast\" }\n[[rule]]\nname = \"out\"\ntap = \"attn_out\"\nlayer = 0\n[[rule]]\nname = \"norm\"\ntap = \"attn_norm\"\nlayer = 0\n";
    let producer = |out, norm| {
        let both = [of("out", out), of("norm", norm)].into();
        let arrays = Arrays::of(Path::new("some.npz"), both, Vec::new()).expect("names differ");
        rules(map).read(&arrays, &known()).expect("it is read").dump.manifest.producer
    };
    assert_eq!(producer(short, whole).setting("dtype"), None);
    assert_eq!(producer(whole, short).setting("dtype"), Some("f32"));
    assert_eq!(producer(short, short).setting("dtype"), Some("bf16"));
    assert_eq!(producer(short, whole).rounding.expect("it is said")["like"], "bf16-autocast");
}

#[test]
fn a_pass_of_no_rows_is_refused() {
    let arrays = some(&[("e_0", &[3, 4]), ("e_1", &[0, 4]), ("gu_1", &[0, 8])]);
    let map = "[[rule]]\nname = \"e_{pass}\"\ntap = \"embed\"\n[[rule]]\nname = \"gu_{pass}\"\nfused = [\"ffn_gate\", \"ffn_up\"]\nlayer = 0\n";
    assert_refused(map, &arrays, "the passes read [3, 1] tokens, but 3 are known");
}

#[test]
fn some_rows_are_read_in_any_axes() {
    let arrays = some(&[("q", &[2, 2, 2])]);
    let map = "[[rule]]\nname = \"q\"\ntap = \"q\"\nlayer = 0\nrows = [0, 2]\naxes = [\"head\", \"token\", \"head_dim\"]\n";
    let dump = rules(map).read(&arrays, &known()).expect("it is read").dump;
    let site = dump.sites().next().expect("one");
    assert_eq!(dump.held_rows(site), Some([0, 2].as_slice()));
    assert_eq!(values(&dump, "q")[..4], [1.0, 2.0, 5.0, 6.0]);
}

#[test]
fn names_send_no_terminal_escape_sequence() {
    let (evil, other) = ("\u{1b}[31mevil", "\u{1b}[31mevil2");
    let rule = |said: &str| format!("[[rule]]\nname = \"*\"\n{said}\n");
    let one = some(&[(evil, &[3, 4])]);
    let both = some(&[(evil, &[3, 4]), (other, &[3, 4])]);
    let tokens = MapContext { tokens: None, ..known() };
    let ids = "tokens = \"*\"\n".to_owned() + &rule("tap = \"embed\"");
    let idle = "[[rule]]\nname = \"\\u001b[0m\"\ntap = \"logits\"\n".to_owned() + &rule("tap = \"embed\"");
    let message = |read: Result<MappedDump, Error>| match read {
        Ok(reading) => reading.notes.join("\n"),
        Err(error) => error.to_string(),
    };
    let messages = [
        message(by_shipped(&both, &known())),
        message(rules(&rule("tap = \"k\"\nlayer = 0")).read(&one, &known())),
        message(rules(&rule("tap = \"embed\"")).read(&both, &known())),
        message(rules(&ids).read(&one, &tokens)),
        message(rules(&idle).read(&one, &known())),
        message(
            NameMap::of_text("mine", "[[rule]]\nname = \"(\\u001b\"\ntap = \"q\"\n")
                .map(|_| panic!("no map")),
        ),
    ];
    for message in messages {
        assert!(!message.contains('\u{1b}') && message.contains("u{1b}"), "{message}");
    }
}

#[test]
fn tokens_of_the_file_are_held_against_those_told() {
    let ids = |ids: &[u32]| {
        let values: Vec<f64> = ids.iter().map(|&id| f64::from(id)).collect();
        let arrays = vec![
            ("e".to_owned(), stored(&[3, 4], &[0.5; 12])),
            ("input_ids".to_owned(), stored(&[1, ids.len()], &values)),
        ];
        Arrays::of(Path::new("some.npz"), arrays, Vec::new()).expect("names differ")
    };
    let map = rules("[[rule]]\nname = \"e\"\ntap = \"embed\"\n");
    assert!(map.read(&ids(&[1, 2, 3]), &known()).is_ok());
    for other in [&[1, 2, 4][..], &[1, 2], &[1, 2, 3, 4]] {
        let refused = map.read(&ids(other), &known()).expect_err("other tokens").to_string();
        assert!(refused.contains("the input tokens differ") && refused.contains("input_ids"), "{refused}");
    }
    let said = rules("tokens = [1, 2, 4]\n[[rule]]\nname = \"e\"\ntap = \"embed\"\n");
    let known = MapContext { tokens: None, ..known() };
    assert!(said.read(&ids(&[1, 2, 3]), &known).is_err());
    // Of a run that went on, these may be its prompt.
    assert_eq!(tokens_of(&ids(&[1, 2]), Some(vec![1, 2, 3])).expect("they begin so"), Some(vec![1, 2, 3]));
    assert!(tokens_of(&ids(&[1, 3]), Some(vec![1, 2, 3])).is_err());
    assert_eq!(tokens_of(&ids(&[1, 3]), None).expect("they are ids"), Some(vec![1, 3]));
}

#[test]
fn an_attention_scale_and_padded_keys_are_undone() {
    let arrays = some(&[("s", &[2, 3, 8]), ("e", &[3, 4])]);
    let map = "[[rule]]\nname = \"s\"\ntap = \"attn_weights\"\nlayer = 0\npadded = true\n[[rule]]\nname = \"e\"\ntap = \"embed\"\nscale = 0.5\n";
    let dump = rules(map).read(&arrays, &known()).expect("it is read").dump;
    let shapes: Vec<_> = dump.manifest.tensors.iter().map(|row| row.shape.clone()).collect();
    assert_eq!(shapes, [vec![2, 3, 3], vec![3, 4]]);
    let embed = dump.sites().find(|site| site.point.name() == "embed").expect("it is there");
    assert_eq!(super::disguised::view(&dump, embed).to_vec()[..2], [0.5, 1.0]);
}

#[test]
fn what_has_no_place_and_rules_of_nothing_are_told() {
    let arrays = some(&[("e", &[3, 4]), ("left.over", &[2])]);
    let map = "[[rule]]\nname = \"e\"\ntap = \"embed\"\n[[rule]]\nname = \"nothing\"\ntap = \"logits\"\n";
    let reading = rules(map).read(&arrays, &known()).expect("it is read");
    let (notes, unplaced) = (reading.notes.join("\n"), reading.unplaced.join("\n"));
    assert!(
        unplaced.contains("left.over") && notes.contains("that match no array: nothing"),
        "{unplaced} {notes}"
    );
    let on_purpose = MapContext { ignore: vec!["left.*".to_owned()], ..known() };
    let reading = rules(map).read(&arrays, &on_purpose).expect("it is read");
    assert_eq!(reading.unplaced, [""; 0]);
}

#[test]
fn two_names_for_one_place_are_refused() {
    let arrays = some(&[("e", &[3, 4]), ("ee", &[3, 4])]);
    assert_refused(
        "[[rule]]\nname = \"e*\"\ntap = \"embed\"\n",
        &arrays,
        "'e' and 'ee' both match embed, pass 0",
    );
}

#[test]
fn an_array_of_another_shape_is_refused() {
    let map = "[[rule]]\nname = \"q\"\ntap = \"q\"\nlayer = 0\n";
    assert_refused(
        map,
        &some(&[("q", &[5, 4])]),
        "shape [5, 4] is not [token, head, head_dim], as expected for q in a pass of 3 tokens",
    );
    assert_refused(
        "[[rule]]\nname = \"q\"\ntap = \"q\"\n",
        &some(&[("q", &[3, 4])]),
        "use {layer} in the name pattern",
    );
}

#[test]
fn no_tokens_no_dump() {
    let arrays = some(&[("e", &[3, 4])]);
    let known = MapContext { tokens: None, ..known() };
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
        let refused = NameMap::of_text("mine", text).expect_err("no map").to_string();
        assert!(refused.contains(expected), "{refused}");
    };
    refuse("", "missing [[rule]]");
    refuse("[[rule]]\nname = \"x\"\n", "either tap");
    refuse("[[rule]]\nname = \"x\"\ntap = \"qq\"\n", "no tap is named 'qq'");
    refuse("[[rule]]\nname = \"{head}\"\ntap = \"q\"\n", "expected {layer} or {pass}");
    refuse("[[rule]]\nname = \"(x\"\ntap = \"q\"\n", "unbalanced brackets");
    refuse("[[rule]]\nname = \"x\"\ntap = \"q\"\naxes = [\"row\"]\n", "unknown axis 'row'");
    refuse("[[rule]]\nname = \"x\"\ntap = \"q\"\nscale = 0.0\n", "scale");
    let rule = |said: &str| format!("[[rule]]\nname = \"x\"\n{said}\n");
    let fused = |taps: &str, said: &str| rule(&format!("fused = [{taps}]\n{said}"));
    refuse(&fused("\"q\", \"ffn_up\"", ""), "rows of heads, or rows of one width, which q, ffn_up are not");
    refuse(&fused("\"attn_out\", \"ffn_up\"", ""), "rows of one width");
    refuse(&fused("\"k_cache\", \"v_cache\"", ""), "rows of heads");
    refuse(&fused("\"ffn_gate\", \"ffn_up\"", "form = \"heads\""), "rows of heads");
    refuse(&fused("\"q\", \"q_norm\"", "form = \"interleaved\""), "not of heads");
    refuse(&fused("\"q\", \"k\"", "of = { shape = [3, 4] }"), "one rule with this name per tap");
    refuse(&fused("\"q\", \"k\"", "padded = true"), "padded");
    refuse(&rule("tap = \"q\"\nform = \"heads\""), "form needs fused taps");
    refuse(&rule("tap = \"q\"\nrows = []"), "rows is empty");
    refuse(&format!("heads = 0\n{}", rule("tap = \"q\"")), "invalid heads 0, expected 1 to 65536");
    refuse(&format!("head_dim = 9223372036854775807\n{}", rule("tap = \"q\"")), "expected 1 to 65536");
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
    terminal.assert_refused(&words, "omit --map");
}
