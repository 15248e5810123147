//! What the writer refuses, and what it leaves.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use xcheck_dump::{Axis, Decode, Dump, Meta, Options, Part, Result, Row, Sequence, Values};

const X: Values = Values::F32(&[0.5; 12]);
const CONTAINERS: [&str; 2] = ["run", "run.safetensors"];

fn meta() -> Meta {
    Meta::new("test", "llama")
}

/// Names in a folder.
fn names(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("it is listed").path()).collect()
}

/// Three tokens were begun; the act is refused with a message that holds `expected`, and nothing is left.
#[track_caller]
fn refused(expected: &str, act: impl Fn(&mut Dump) -> Result<()>) {
    for container in CONTAINERS {
        let folder = TempDir::new().expect("a folder");
        let mut dump = Dump::create(folder.path().join(container), meta()).expect("it begins");
        dump.pass(&[1, 2, 3]).expect("a pass");
        dump.tap("embed", None, &[3, 4], X).expect("a value");
        let message = act(&mut dump).expect_err("it is refused").to_string();
        assert!(message.contains(expected), "'{expected}' is not in: {message}");
        let later = dump.tap("block_out", Some(0), &[3, 4], X).expect_err("nothing more is taken");
        assert_eq!(later.to_string(), message);
        assert_eq!(dump.finish().expect_err("it is no dump").to_string(), message);
        assert_eq!(names(folder.path()), Vec::<PathBuf>::new());
    }
}

#[test]
fn taps_that_there_are_none_of_are_refused_with_the_nearest_name() {
    let expected = "no tap is named 'attn_nrom'; did you mean 'attn_norm'?";
    refused(expected, |dump| dump.tap("attn_nrom", Some(0), &[3, 4], X));
    refused("Dump::generated", |dump| dump.tap("generated", None, &[1], Values::U32(&[1])));
    refused("no tap is named ''", |dump| dump.tap("", None, &[1], X));
}

#[test]
fn layers_that_are_missing_or_too_much_are_refused() {
    refused("tap 'q' is of a layer; give its number", |dump| dump.tap("q", None, &[3, 2, 2], X));
    refused("tap 'logits' is of no layer; give None in place of 1", |dump| {
        dump.tap("logits", Some(1), &[3, 4], X)
    });
    refused("no model has a layer 70000", |dump| dump.tap("q", Some(70_000), &[3, 2, 2], X));
}

#[test]
fn shapes_that_are_not_the_taps_are_refused() {
    let expected = "attn_norm, layer 0, pass 0: axis 'token' has length 2, expected 3 rows";
    refused(expected, |dump| dump.tap("attn_norm", Some(0), &[2, 6], X));
    refused("2 axes were given, expected 3 (token, head, head_dim)", |dump| {
        dump.tap("q", Some(0), &[3, 4], X)
    });
    refused("axis 'hidden' has length 0", |dump| dump.tap("attn_norm", Some(0), &[3, 0], X));
    refused("12 values do not have the shape [3, 5]", |dump| dump.tap("attn_norm", Some(0), &[3, 5], X));
    refused("do not have the shape", |dump| dump.tap("attn_norm", Some(0), &[3, usize::MAX], X));
    refused("there are no values", |dump| dump.tap("logits", None, &[3, 1], Values::F32(&[])));
}

#[test]
fn axes_that_are_not_the_taps_are_refused() {
    let with = |axes: &'static [Axis]| {
        move |dump: &mut Dump| {
            let options = Options { axes: Some(axes), ..Options::default() };
            dump.tap_with("attn_norm", Some(0), &[3, 4], X, options)
        }
    };
    refused("axis 'token' is named twice", with(&[Axis::Token, Axis::Token]));
    refused("lack 'hidden'", with(&[Axis::Token, Axis::Ffn]));
    refused("expected 1 (token)", with(&[Axis::Token]));
    refused("axis 'ffn' of length 2 is none of attn_norm", |dump| {
        let axes = [Axis::Token, Axis::Hidden, Axis::Ffn];
        let options = Options { axes: Some(&axes), ..Options::default() };
        dump.tap_with("attn_norm", Some(0), &[3, 2, 2], X, options)
    });
}

#[test]
fn types_that_cannot_be_are_refused() {
    refused("f32 is no type for token ids; give u32 or i32", |dump| {
        dump.tap("argmax", None, &[], Values::F32(&[1.0]))
    });
    refused("i32 is no type for activations", |dump| {
        dump.tap("attn_norm", Some(0), &[3, 1], Values::I32(&[1; 3]))
    });
    refused("'int8', expected f32, f16 or bf16", |dump| {
        let options = Options { computed: Some("int8"), ..Options::default() };
        dump.tap_with("attn_norm", Some(0), &[3, 4], X, options)
    });
}

#[test]
fn steps_that_values_are_no_multiples_of_are_refused() {
    let with = |tap: &'static str, step: f64, value: f32| {
        move |dump: &mut Dump| {
            let options = Options { step: Some(step), ..Options::default() };
            dump.tap_with(tap, None, &[2], Values::F32(&[value; 2]), options)
        }
    };
    refused("is no multiple of Options::step, 0.01", with("token_logprobs", 0.01, -1.255));
    for step in [0.0, -0.01, f64::NAN, 1e6] {
        refused("expected a positive number of at most 0.05", with("token_logprobs", step, -1.0));
    }
    refused("of token_logprobs and top_logprobs alone", |dump| {
        let options = Options { step: Some(0.01), ..Options::default() };
        dump.tap_with("attn_norm", Some(0), &[3, 4], X, options)
    });
    let folder = TempDir::new().expect("a folder");
    let mut dump = Dump::create(folder.path().join("run"), meta()).expect("it begins");
    dump.pass(&[1, 2, 3]).expect("a pass");
    with("token_logprobs", 0.01, -1.25)(&mut dump).expect("multiples");
    dump.finish().expect("it is a dump");
    let manifest = fs::read_to_string(folder.path().join("run/manifest.json")).expect("it is there");
    let manifest: serde_json::Value = serde_json::from_str(&manifest).expect("JSON");
    assert_eq!((&manifest["version"], &manifest["tensors"][0]["step"]), (&2.into(), &0.01.into()));
}

#[test]
fn places_and_passes_that_cannot_be_are_refused() {
    refused("embed, pass 0: it comes twice", |dump| dump.tap("embed", None, &[3, 4], X));
    refused("pass 1 reads no tokens", |dump| dump.pass(&[]));
    refused("there are 1", |dump| dump.generated_of(1, &[1]));
    refused("the continuation comes twice", |dump| dump.generated(&[1]).and_then(|()| dump.generated(&[1])));
    refused("expected a positive number", |dump| dump.temperature(f32::NAN));
    refused("its temperature comes twice", |dump| dump.temperature(1.0).and_then(|()| dump.temperature(1.0)));
}

#[test]
fn rows_that_the_pass_has_not_are_refused() {
    for rows in [[1, 0], [1, 1], [1, 3]] {
        refused("expected some of 3 rows, in ascending order", |dump| {
            let options = Options { rows: Some(&rows), ..Options::default() };
            dump.tap_with("attn_norm", Some(0), &[2, 6], X, options)
        });
    }
    refused("it has no axis token", |dump| {
        let options = Options { rows: Some(&[0]), ..Options::default() };
        dump.tap_with("k_cache", Some(0), &[3, 2, 2], X, options)
    });
}

#[test]
fn parts_that_an_array_has_not_are_refused() {
    let fused = |name: &'static str, part: Part<'static>| {
        move |dump: &mut Dump| dump.fused(name, Some(0), &[3, 4], X, &[part])
    };
    refused("which is no part of [3, 2, 2]", fused("qk", Part::new("q", &[3, 2, 2], &[0, 1, 0], &[3, 3, 2])));
    refused("which is no part of", fused("qk", Part::new("q", &[3, 2, 2], &[0, 1], &[3, 2])));
    refused("cannot be seen as [3, 2, 3]", fused("qk", Part::new("q", &[3, 2, 3], &[0; 3], &[3, 2, 3])));
    let whole = Part::new("q", &[3, 2, 2], &[0; 3], &[3, 2, 2]);
    refused("an array is named '../qk'", fused("../qk", whole));
    refused("as a tap is; give it another name", fused("q", whole));
    refused("is of no tap", |dump| dump.fused("qk", Some(0), &[3, 4], X, &[]));
    refused("comes twice", |dump| {
        fused("qk", whole)(dump)?;
        fused("qk", Part { tap: "k", ..whole })(dump)
    });
}

#[test]
fn what_is_not_the_prompt_or_comes_outside_a_pass_is_refused() {
    let folder = TempDir::new().expect("a folder");
    let create = |meta| Dump::create(folder.path().join("run"), meta);
    let message = |result: Result<()>| result.expect_err("it is refused").to_string();
    let early = message(create(meta()).expect("it begins").tap("embed", None, &[3, 4], X));
    assert!(early.contains("'embed' comes before the first pass"), "{early}");
    let early = message(create(meta()).expect("it begins").generated(&[1]));
    assert!(early.contains("comes before the prompt"), "{early}");
    let prompt = Meta { sequences: vec![Sequence::new(&[1, 2])], ..meta() };
    let other = message(create(prompt).expect("it begins").pass(&[1, 3]));
    assert!(other.contains("row 1 reads token 3 at position 1, the prompt has 2 there"), "{other}");
    for (meta, expected) in [
        (Meta { sequences: vec![Sequence::default()], ..meta() }, "sequence 0 has no tokens"),
        (Meta { sha256: Some("12".into()), ..meta() }, "expected 64 digits"),
        (Meta::new("", "llama"), "Meta::producer is empty"),
    ] {
        let message = create(meta).expect_err("it is refused").to_string();
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(names(folder.path()), Vec::<PathBuf>::new());
}

#[test]
fn batches_that_cannot_be_are_refused() {
    let folder = TempDir::new().expect("a folder");
    let several = |rows: &[Row], tap: &str, shape: &[usize], expected: &str| {
        let sequences =
            vec![Sequence::new(&[1, 2]), Sequence { decode: Decode::Forced, ..Sequence::new(&[1]) }];
        let meta = Meta { sequences, ..meta() };
        let mut dump = Dump::create(folder.path().join("run"), meta).expect("it begins");
        let values = vec![0.5; shape.iter().product()];
        let done = dump.pass_of(rows).and_then(|()| dump.tap(tap, None, shape, Values::F32(&values)));
        let message = done.expect_err("it is refused").to_string();
        assert!(message.contains(expected), "'{expected}' is not in: {message}");
    };
    let one = [Row::new(0, 0, 1), Row::new(0, 1, 2)];
    let hole = [Row::new(0, 0, 1), Row::new(0, 2, 2)];
    several(&hole, "embed", &[2, 4], "sequence 0 is at position 2, expected 1");
    several(&[Row::new(2, 0, 1)], "embed", &[1, 4], "there is no sequence 2; there are 2");
    several(&[Row::padding(0)], "embed", &[1, 4], "reads no row of a sequence");
    several(&one, "last_logits", &[2, 4], "it has a row for 2 sequences, expected 1");
    several(&one, "embed", &[2, 2, 4], "axis 'token' has length 2 in 2 entries of a batch, expected 2 rows");
    let meta = Meta { sequences: vec![Sequence::new(&[1]); 2], ..meta() };
    let mut dump = Dump::create(folder.path().join("run"), meta).expect("it begins");
    let message = dump.pass(&[1]).expect_err("it is refused").to_string();
    assert!(message.contains("whose are the rows of the pass?"), "{message}");
}

#[test]
fn a_dump_has_its_name_when_it_is_finished_and_leaves_nothing_otherwise() {
    for container in CONTAINERS {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join(container);
        let begin = || {
            let mut dump = Dump::create(&path, meta()).expect("it begins");
            dump.pass(&[1, 2, 3]).expect("a pass");
            dump.tap("attn_norm", Some(0), &[3, 4], X).expect("a value");
            dump
        };
        let dump = begin();
        assert!(!path.exists() && !names(folder.path()).is_empty(), "it goes to the disk as it comes");
        drop(dump);
        assert_eq!(names(folder.path()), Vec::<PathBuf>::new());
        begin().finish().expect("it is whole");
        assert_eq!(names(folder.path()), [path.as_path()]);
        let message = Dump::create(&path, meta()).expect_err("it is there").to_string();
        assert!(message.contains("already exists; name another or remove it"), "{message}");
        assert!(path.exists(), "it is left as it is");
    }
}

#[test]
fn an_empty_dump_and_a_folder_that_is_not_there_are_errors() {
    let folder = TempDir::new().expect("a folder");
    let empty = Dump::create(folder.path().join("run"), meta()).expect("it begins");
    let message = empty.finish().expect_err("it holds nothing").to_string();
    assert!(message.contains("holds no value"), "{message}");
    for container in CONTAINERS {
        let path = folder.path().join("none").join(container);
        let message = Dump::create(path, meta()).expect_err("no folder").to_string();
        assert!(message.starts_with("cannot create ") && message.contains("none/run"), "{message}");
    }
}

/// What ends a run of three tokens and then one; `act` writes in the first pass.
fn ended(act: impl Fn(&mut Dump) -> Result<()>, then: impl Fn(&mut Dump) -> Result<()>) -> Result<()> {
    let folder = TempDir::new().expect("a folder");
    let mut dump = Dump::create(folder.path().join("run"), meta()).expect("it begins");
    dump.pass(&[1, 2, 3])?;
    act(&mut dump)?;
    dump.pass(&[4])?;
    dump.tap("embed", None, &[1, 4], Values::F32(&[0.5; 4]))?;
    then(&mut dump)?;
    dump.finish()
}

#[track_caller]
fn says(expected: &str, found: Result<()>) {
    let message = found.expect_err("it is refused").to_string();
    assert!(message.contains(expected), "'{expected}' is not in: {message}");
}

#[test]
fn log_probabilities_are_of_tokens_that_are_known() {
    let of = |count| {
        move |dump: &mut Dump| dump.tap("token_logprobs", None, &[count], Values::F32(&[-0.5; 3][..count]))
    };
    let nothing = |_: &mut Dump| Ok(());
    ended(of(3), nothing).expect("the next pass tells what follows");
    ended(of(2), nothing).expect("one less is of those before the last");
    says("axis 'token' has length 1, expected 3", ended(of(1), nothing));
    says("of the token at position 4 of sequence 0, and none is known", ended(nothing, of(1)));
    ended(nothing, |dump| of(1)(dump).and_then(|()| dump.generated(&[4, 5])))
        .expect("the continuation tells it");
}

#[test]
fn likely_tokens_come_with_their_log_probabilities() {
    let ids = |dump: &mut Dump| dump.tap("top_ids", None, &[3, 2], Values::U32(&[1; 6]));
    let nothing = |_: &mut Dump| Ok(());
    says("top_ids of pass 0 needs top_logprobs", ended(ids, nothing));
    let with = |ranks: usize| {
        move |dump: &mut Dump| {
            ids(dump)?;
            dump.tap("top_logprobs", None, &[3, ranks], Values::F32(&[-0.5; 6][..3 * ranks]))
        }
    };
    says("of the same shape and rows", ended(with(1), nothing));
    ended(with(2), nothing).expect("both are there");
}

#[test]
fn sequences_are_read_and_have_names_of_their_own() {
    let folder = TempDir::new().expect("a folder");
    let named = |name: Option<&str>| Sequence { name: name.map(str::to_owned), ..Sequence::new(&[1, 2]) };
    let begin =
        |sequences: Vec<Sequence>| Dump::create(folder.path().join("run"), Meta { sequences, ..meta() });
    says("two sequences are '1'", begin(vec![named(Some("1")), named(None)]).map(drop));
    let mut dump = begin(vec![named(None), named(None)]).expect("it begins");
    dump.pass_of(&[Row::new(0, 0, 1), Row::new(0, 1, 2)]).expect("a pass");
    dump.tap("embed", None, &[2, 4], Values::F32(&[0.5; 8])).expect("a value");
    says("sequence 1 is read by no pass", dump.finish());
}
