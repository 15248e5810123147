//! Tokenizers against what transformers and llama.cpp make of the same texts, and against files that contradict
//! themselves.

use std::path::{Path, PathBuf};

use crate::common::share::share;
use crate::common::variant;
use crate::format::builder::{GgufBuilder, array, string, strings, u32, value};
use proptest::prelude::*;
use proptest::sample::Index;
use serde::Deserialize;
use serde_json::{Value, json};
use xcheck::error::{Error, Result, TokenizerError};
use xcheck::format::{FileBytes, Gguf};
use xcheck::shipped_models;
use xcheck::tokenizer::{
    HuggingFaceFiles, SettingsFiles, Tokenizer, TokenizerFiles, from_gguf, from_hugging_face,
};

const KINDS: [&str; 4] = ["gpt2", "llama3", "qwen2", "smollm"];

/// What `reference-scripts/vectors/make_byte_level_vectors.py` wrote.
#[derive(Deserialize)]
struct Vectors {
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    text: String,
    transformers: Vec<u32>,
    #[serde(rename = "llama.cpp")]
    llama_cpp: Vec<u32>,
    decoded: String,
    with_bos_and_eos: Option<Vec<u32>>,
}

fn path(kind: &str, file: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/data/tokenizers", kind, file].iter().collect()
}

fn open(path: &Path) -> FileBytes {
    FileBytes::open(path).expect("it is committed")
}

fn vectors(kind: &str) -> Vec<Vector> {
    let file = open(&path(kind, "vectors.json"));
    let vectors = serde_json::from_slice::<Vectors>(&file.data).expect("the script writes JSON").vectors;
    assert!(vectors.len() > 80, "{kind}");
    vectors
}

fn files(kind: &str) -> HuggingFaceFiles {
    let [tokenizer, config] = ["tokenizer.json", "tokenizer_config.json"].map(|file| open(&path(kind, file)));
    HuggingFaceFiles { tokenizer, settings: SettingsFiles::of_config(Some(config)) }
}

fn hugging_face(kind: &str) -> Box<dyn Tokenizer> {
    match kind {
        "llama2" => variant("tiny-llama2-hf").tokenizer().expect("it is sound").expect("it ships"),
        kind => from_hugging_face(&files(kind)).expect("it is sound"),
    }
}

fn gguf(kind: &str) -> Box<dyn Tokenizer> {
    match kind {
        "llama2" => variant("tiny-llama2-q8_0").tokenizer(),
        kind => from_gguf(&Gguf::read(&open(&path(kind, "vocabulary.gguf"))).expect("it is sound")),
    }
    .expect("it is sound")
    .expect("there is one")
}

// ---- the real ones --------------------------------------------------------------------------------------

#[test]
fn every_text_has_the_ids_that_transformers_gives_it() {
    for kind in KINDS.into_iter().chain(["llama2"]) {
        let tokenizer = hugging_face(kind);
        for Vector { text, transformers, decoded, .. } in vectors(kind) {
            assert_eq!(tokenizer.encode(&text, true).unwrap(), transformers, "{kind}: {text:?}");
            assert_eq!(tokenizer.decode_lossy(&transformers).unwrap(), decoded, "{kind}: {text:?}");
        }
    }
}

#[test]
fn every_text_has_the_ids_that_llama_cpp_gives_it() {
    for kind in KINDS.into_iter().chain(["llama2"]) {
        let tokenizer = gguf(kind);
        for Vector { text, llama_cpp, .. } in vectors(kind) {
            assert_eq!(tokenizer.encode(&text, true).unwrap(), llama_cpp, "{kind}: {text:?}");
        }
    }
}

/// Otherwise the tests above could not tell one kind from another.
#[test]
fn bpe_pre_tokenizers_split_texts_differently() {
    let [gpt2, llama3, qwen2, smollm] = KINDS.map(|kind| gguf(kind).encode("9999", false).unwrap());
    assert_ne!(gpt2, llama3);
    assert_ne!(llama3, qwen2);
    assert_ne!(gpt2, smollm);
    assert!(
        vectors("qwen2").iter().any(|vector| vector.transformers != vector.llama_cpp),
        "NFC is one's alone"
    );
}

/// Each by the tokenizer of the very files that the reference's producer has read.
#[test]
fn the_prompts_of_the_shipped_references_have_their_tokens() {
    let mut compared = 0;
    for model in shipped_models::MODELS {
        let variants: Vec<_> = model
            .variants()
            .expect("it ships")
            .into_iter()
            .map(|(_, files)| (files.sha256(), files))
            .collect();
        for (name, reference) in model.references().unwrap() {
            let (model, input) = (reference.manifest.model, reference.manifest.input);
            let read = variants.iter().find(|(sha256, _)| Some(sha256) == model.sha256.as_ref());
            let (_, files) = read.expect("what a reference was made from ships");
            if input.prompt.is_empty() {
                continue;
            }
            if let Some(tokenizer) = files.tokenizer().unwrap() {
                assert_eq!(tokenizer.encode(&input.prompt, true).unwrap(), input.tokens, "{name}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 5, "{compared}");
}

proptest! {
    #[test]
    fn any_text_comes_back(text in any::<String>()) {
        for tokenizer in [hugging_face("gpt2"), gguf("gpt2"), gguf("llama3"), gguf("qwen2"), gguf("smollm")] {
            let ids = tokenizer.encode(&text, true).unwrap();
            prop_assert_eq!(tokenizer.decode_lossy(&ids).unwrap(), text.as_str());
        }
    }
}

#[test]
fn an_id_outside_the_vocabulary_has_no_text() {
    for tokenizer in [hugging_face("qwen2"), gguf("qwen2")] {
        assert_eq!(tokenizer.vocab_size(), 512);
        let refused = tokenizer.decode(&[1, 512]).unwrap_err();
        assert!(
            matches!(
                refused,
                Error::Tokenizer(TokenizerError::BadToken { id: 512, position: 1, vocab_size: 512 })
            ),
            "{refused}"
        );
    }
}

#[test]
fn without_special_tokens_nothing_is_put_around_a_text() {
    for tokenizer in [hugging_face("llama3"), gguf("llama3")] {
        let (with, without) =
            (tokenizer.encode("Lily", true).unwrap(), tokenizer.encode("Lily", false).unwrap());
        assert_eq!(with[1..], without);
    }
}

// ---- Hugging Face directories ---------------------------------------------------------------------------

fn source(name: &str, json: &Value) -> FileBytes {
    FileBytes { path: name.into(), data: json.to_string().into_bytes().into() }
}

fn parsed(source: &FileBytes) -> Value {
    serde_json::from_slice(&source.data).expect("it is JSON")
}

/// The tokenizer of a kind with its files changed.
fn edited(
    kind: &str,
    tokenizer: impl FnOnce(&mut Value),
    config: impl FnOnce(&mut Value),
) -> Result<Box<dyn Tokenizer>> {
    let files = files(kind);
    let (mut json, mut settings) =
        (parsed(&files.tokenizer), parsed(files.settings.config.as_ref().expect("it is there")));
    tokenizer(&mut json);
    config(&mut settings);
    let config = Some(source("tokenizer_config.json", &settings));
    from_hugging_face(&HuggingFaceFiles {
        tokenizer: source("tokenizer.json", &json),
        settings: SettingsFiles::of_config(config),
    })
}

fn assert_refused(kind: &str, edit: impl FnOnce(&mut Value), part: &str) {
    let Err(error) = edited(kind, edit, |_| ()) else { panic!("this must be refused: {part}") };
    assert!(error.to_string().contains(part), "{error}");
}

/// Asks for BOS and EOS around texts.
fn both(config: &mut Value) {
    config["add_bos_token"] = json!(true);
    config["add_eos_token"] = json!(true);
}

/// GPT-2's two files, with the vocabulary and the merges of its tokenizer.json.
fn two_files(config: impl FnOnce(&mut Value)) -> Box<dyn Tokenizer> {
    let files = files("gpt2");
    let (json, mut settings) =
        (parsed(&files.tokenizer), parsed(files.settings.config.as_ref().expect("it is there")));
    config(&mut settings);
    let line = |pair: &Value| match pair.as_array() {
        Some(pair) => pair.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        None => pair.as_str().unwrap_or_default().to_owned(),
    };
    let mut vocab = json["model"]["vocab"].clone();
    for token in json["added_tokens"].as_array().expect("a list") {
        vocab[token["content"].as_str().expect("a text")] = token["id"].clone();
    }
    let merges: Vec<String> = json["model"]["merges"].as_array().expect("a list").iter().map(line).collect();
    let merges = FileBytes { path: "merges.txt".into(), data: merges.join("\n").into_bytes().into() };
    let settings = SettingsFiles::of_config(Some(source("tokenizer_config.json", &settings)));
    TokenizerFiles::Gpt2 { pieces: source("vocab.json", &vocab), merges, settings }.read().unwrap()
}

#[test]
fn the_configuration_says_what_is_put_around_texts_of_two_files() {
    let tokenizer = two_files(both);
    for Vector { text, with_bos_and_eos, .. } in vectors("gpt2") {
        let expected = with_bos_and_eos.expect("GPT-2 has that column");
        assert_eq!(tokenizer.encode(&text, true).unwrap(), expected, "{text:?}");
    }
}

/// transformers 5 no longer reads these settings beside a `tokenizer.json`.
#[test]
fn tokenizer_json_alone_says_what_is_put_around_texts() {
    for kind in ["gpt2", "llama3"] {
        let tokenizer = edited(kind, |_| (), both).unwrap();
        for Vector { text, transformers, .. } in vectors(kind) {
            assert_eq!(tokenizer.encode(&text, true).unwrap(), transformers, "{kind}: {text:?}");
        }
    }
}

#[test]
fn texts_are_neither_cut_nor_filled_up() {
    let limits = |json: &mut Value| {
        json["truncation"] =
            json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        json["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    };
    let tokenizer = edited("gpt2", limits, |_| ()).unwrap();
    let text = "Lily went home.";
    assert_eq!(tokenizer.encode(text, true).unwrap(), hugging_face("gpt2").encode(text, true).unwrap());
}

#[test]
fn tokenizers_that_would_fail_later_are_refused() {
    assert_refused("gpt2", |json| json["model"]["dropout"] = json!(0.1), "random");
    let longer =
        |json: &mut Value| json["model"]["merges"].as_array_mut().unwrap().push(json!(["Lily", "Lily"]));
    assert_refused("gpt2", longer, "is not a piece");
    let legacy = |json: &mut Value| json["model"]["merges"] = json!(["Ġ Ġ Ġ", "a b"]);
    assert_refused("gpt2", legacy, "is not a piece");
    assert_refused(
        "gpt2",
        |json| json["model"]["continuing_subword_prefix"] = json!("###"),
        "is not a piece",
    );
    assert_refused("gpt2", |json| json["model"] = json!({"type": "Nobody"}), "tokenizer.json");
    assert_refused("gpt2", |json| *json = json!([]), "tokenizer.json: not a valid tokenizer file");
    let text = FileBytes { path: "tokenizer.json".into(), data: "{\"model\"".into() };
    let Err(error) =
        from_hugging_face(&HuggingFaceFiles { tokenizer: text, settings: SettingsFiles::default() })
    else {
        panic!("half a file is refused");
    };
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: share(4, 256), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_file_is_sound_or_refused(
        kind in prop::sample::select(KINDS.to_vec()),
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..4),
        end in any::<Option<Index>>(),
    ) {
        let mut bytes = files(kind).tokenizer.data.to_vec();
        changes.iter().for_each(|(at, byte)| { let at = at.index(bytes.len()); bytes[at] = *byte; });
        if let Some(end) = end {
            bytes.truncate(end.index(bytes.len()));
        }
        let tokenizer = FileBytes { path: "tokenizer.json".into(), data: bytes.into() };
        if let Ok(tokenizer) = from_hugging_face(&HuggingFaceFiles { tokenizer, settings: SettingsFiles::default() }) {
            let _ = tokenizer.encode("Lily's 3 <|endoftext|> dogs.\n", true).map(|ids| tokenizer.decode(&ids));
        }
    }

    /// Anything in the place of anything: what is still JSON comes further than random bytes.
    #[test]
    fn a_file_with_another_value_is_sound_or_refused(
        kind in prop::sample::select(KINDS.to_vec()),
        at in any::<Index>(),
        other in prop::sample::select(vec![json!(null), json!(0), json!(-1), json!(1u64 << 40), json!(""), json!("a"),
            json!("(?"), json!([]), json!({}), json!(true), json!({"a": 4_000_000_000u32}), json!([["a", "b"]])]),
    ) {
        let small = |json: &mut Value| {
            let pointers = pointers(json);
            *json.pointer_mut(at.get::<String>(&pointers)).expect("it was found there") = other;
        };
        if let Ok(tokenizer) = edited(kind, small, |_| ()) {
            let _ = tokenizer.encode("Lily's 3 <|endoftext|> dogs.\n", true).map(|ids| tokenizer.decode(&ids));
        }
    }
}

/// Where everything but the single pieces and merges is.
fn pointers(json: &Value) -> Vec<String> {
    let children: Vec<(String, &Value)> = match json {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(list) => {
            list.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect()
        }
        _ => Vec::new(),
    };
    let inside = children.into_iter().take(16).flat_map(|(key, value)| {
        let key = key.replace('~', "~0").replace('/', "~1");
        let below = pointers(value).into_iter().map(move |rest| format!("/{key}{rest}"));
        below.collect::<Vec<_>>()
    });
    std::iter::once(String::new()).chain(inside).collect()
}

// ---- GGUF files -----------------------------------------------------------------------------------------

const PIECES: [&str; 8] = ["a", "b", "ab", "Ġ", "Ġa", "", "<|end|>", "abc"];
const TYPES: [i32; 8] = [1, 1, 1, 1, 1, 1, 3, 4];

fn types(types: &[i32]) -> Vec<u8> {
    array(5, types.len() as u64, &types.iter().flat_map(|kind| kind.to_le_bytes()).collect::<Vec<_>>())
}

/// A vocabulary of a few pieces; later keys of one name stand in for earlier ones.
fn read(keys: &[(&str, Vec<u8>)]) -> Result<Box<dyn Tokenizer>> {
    let mut all = vec![
        ("model", string("gpt2")),
        ("pre", string("gpt-2")),
        ("tokens", strings(&PIECES)),
        ("token_type", types(&TYPES)),
        ("merges", strings(&["a b", "Ġ a"])),
        ("bos_token_id", u32(6)),
    ];
    for (name, value) in keys {
        all.retain(|(known, _)| known != name);
        all.push((name, value.clone()));
    }
    let keys = all.into_iter().filter(|(_, value)| !value.is_empty());
    let file = keys
        .fold(GgufBuilder::new(), |file, (name, value)| file.key(&format!("tokenizer.ggml.{name}"), value));
    let source = FileBytes { path: "vocabulary.gguf".into(), data: file.build().into() };
    from_gguf(&Gguf::read(&source)?).map(|tokenizer| tokenizer.expect("there is one"))
}

#[track_caller]
fn assert_gguf_refused(key: &str, value: Vec<u8>, part: &str) {
    let Err(error) = read(&[(key, value)]) else { panic!("this must be refused: {part}") };
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn a_small_vocabulary_is_read_as_it_is_written() {
    let tokenizer = read(&[]).unwrap();
    assert_eq!(tokenizer.encode("ab a<|end|>abcb", true).unwrap(), [2, 4, 6, 7, 1]);
    assert_eq!(tokenizer.decode_lossy(&[2, 4, 6, 7]).unwrap(), "ab aabc");
}

#[test]
fn bos_and_eos_are_added_as_the_file_says_or_the_kind_is_known_for() {
    let ids = |keys: &[(&str, Vec<u8>)]| read(keys).unwrap().encode("a", true).unwrap();
    let (yes, no) = (value(7, &[1]), value(7, &[0]));
    assert_eq!(ids(&[("add_bos_token", yes.clone())]), [6, 0]);
    assert_eq!(ids(&[("pre", string("llama-bpe"))]), [6, 0]);
    assert_eq!(ids(&[("pre", string("llama-bpe")), ("add_bos_token", no)]), [0]);
    assert_eq!(ids(&[("pre", string("qwen2"))]), [0]);
    assert_eq!(ids(&[("add_eos_token", yes), ("eos_token_id", u32(7))]), [0, 7]);
}

#[test]
fn a_word_that_is_a_piece_has_no_bpe_merges_in_llama_3() {
    let keys = |pre: &str| [("pre", string(pre)), ("token_type", types(&[1; 8]))];
    assert_eq!(read(&keys("llama-bpe")).unwrap().encode("abc", false).unwrap(), [7]);
    assert_eq!(read(&keys("gpt-2")).unwrap().encode("abc", false).unwrap(), [2], "there is no piece c");
}

#[test]
fn vocabularies_that_contradict_themselves_are_refused() {
    assert_gguf_refused("pre", string("another"), "'tokenizer.ggml.pre' is another, expected one of gpt-2");
    assert_gguf_refused("pre", Vec::new(), "'tokenizer.ggml.pre' is missing");
    assert_gguf_refused("model", string("t5"), "give --tokens instead of --prompt");
    assert_gguf_refused("merges", Vec::new(), "'tokenizer.ggml.merges' is missing");
    assert_gguf_refused("tokens", strings(&[]), "types");
    assert_gguf_refused("token_type", types(&[1; 7]), "8 pieces, but 7 types");
    assert_gguf_refused(
        "tokens",
        strings(&["a", "b", "ab", "a", "Ġa", "", "<|end|>", "abc"]),
        "duplicate piece 'a': ids 0 and 3",
    );
    assert_gguf_refused("merges", strings(&["ab"]), "'ab' is not two pieces");
    assert_gguf_refused("merges", strings(&[" ab"]), "' ab' is not two pieces");
    assert_gguf_refused("merges", strings(&["abc abc"]), "is not a piece");
    assert_gguf_refused("merges", strings(&["a bc"]), "bc");
    let Err(error) = read(&[("add_bos_token", value(7, &[1])), ("bos_token_id", u32(8))]) else {
        panic!("8 is no piece")
    };
    assert!(error.to_string().contains("the bos id 8 is outside the vocabulary of 8"), "{error}");
    let Err(error) = read(&[("add_eos_token", value(7, &[1]))]) else { panic!("there is no EOS") };
    assert!(error.to_string().contains("'tokenizer.ggml.eos_token_id' is missing"), "{error}");
}
