//! Small files that ask for much.

use std::io::{Cursor, Write};

use serde_json::{Value, json};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::machine::{Machine, time, with_long_context};

/// An `.npy` header of elements of four bytes.
fn npy(elements: usize) -> Vec<u8> {
    let dict = format!("{{'descr': '<u4', 'fortran_order': False, 'shape': ({elements},), }}");
    let text = format!("{dict:<117}\n");
    [b"\x93NUMPY\x01\x00".as_slice(), &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}

fn manifest(passes: Value, tensors: Value) -> String {
    json!({
        "format": "xcheck-dump", "version": 1, "producer": {"name": "m"}, "model": {"architecture": "llama"},
        "layout": {"rope_pairing": "interleaved"}, "input": {"tokens": passes[0]["tokens"]}, "passes": passes, "tensors": tensors,
    })
    .to_string()
}

/// An archive of members, each with so many zeros behind it.
fn archive(members: &[(&str, Vec<u8>, usize)]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let deflated = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    for (name, head, zeros) in members {
        zip.start_file(*name, deflated.compression_level(Some(9))).expect("a member");
        zip.write_all(head).expect("written");
        let chunk = vec![0; 1 << 20];
        (0..zeros >> 20).for_each(|_| zip.write_all(&chunk).expect("written"));
    }
    zip.finish().expect("whole").into_inner()
}

#[test]
fn an_archive_whose_manifest_is_a_bomb_is_refused() {
    let machine = Machine::new();
    machine.put("a.npz", archive(&[("manifest.json", Vec::new(), 1 << 30)]));
    machine.refuses(&["inspect", "a.npz"], &["a.npz", "manifest"]);
}

#[test]
fn an_archive_is_not_believed_how_large_its_arrays_are() {
    let machine = Machine::new();
    let elements = 1 << 28;
    let row = json!({"tap": "generated", "dtype": "u32", "shape": [elements], "file": "g.npy"});
    let manifest = manifest(json!([{"position": 0, "tokens": [1]}]), json!([row]));
    let members = [("manifest.json", manifest.into_bytes(), 0), ("g.npy", npy(elements), 4 * elements)];
    machine.put("a.npz", archive(&members));
    machine.refuses(&["inspect", "a.npz"], &["a.npz", "larger than a valid archive of its size can hold"]);
    machine.refuses(
        &["identify", "a.npz", "--model", "tiny-llama2", "--tokens", "1"],
        &["a.npz", "larger than a valid archive of its size can hold"],
    );
}

#[test]
fn an_archive_of_many_members_takes_no_longer_than_they_are_many() {
    let machine = Machine::new();
    let count = 8000;
    let names: Vec<String> = (0..count).map(|index| format!("p{index}.npy")).collect();
    let passes = (0..count).map(|index| json!({"position": index, "tokens": [1]})).collect();
    let row = |index: usize| json!({"tap": "argmax", "pass": index, "dtype": "u32", "shape": [], "file": names[index]});
    let head = npy(1);
    let scalar = String::from_utf8_lossy(&head[10..]).replace("(1,)", "()  ");
    let scalar = [&head[..10], scalar.as_bytes(), &[5, 0, 0, 0]].concat();
    let mut members =
        vec![("manifest.json", manifest(passes, (0..count).map(row).collect()).into_bytes(), 0)];
    members.extend(names.iter().map(|name| (name.as_str(), scalar.clone(), 0)));
    machine.put("many.npz", archive(&members));
    assert_eq!(machine.bounded(&["inspect", "many.npz"]).code, 0);
    // It contradicts itself, which is seen at every pass.
    assert_eq!(machine.bounded(&["compare", "many.npz", "many.npz", "--no-report"]).code, 1);
}

/// A `tokenizer.json` with one entry otherwise.
fn tokenizer(key: &str, value: Value) -> String {
    let mut tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    });
    tokenizer[key] = value;
    tokenizer.to_string()
}

#[test]
fn a_tokenizer_may_not_ask_for_more_than_it_is() {
    let machine = Machine::new();
    let compare = |name| ["tokenize", "--model", "tiny-llama2", "--compare", name, "aaaa"];
    let precompiled = json!({"type": "Precompiled", "precompiled_charsmap": "/////2FhYWE="});
    machine.put("precompiled.json", tokenizer("normalizer", precompiled.clone()));
    machine.refuses(&compare("precompiled.json"), &["precompiled.json", "precompiled_charsmap is damaged"]);
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(100)});
    let six = json!({"type": "Sequence", "normalizers": vec![replace.clone(); 6]});
    // The library reads a rule by its fields where it does not know the type, and a list as their values.
    let mut unknown = six.clone();
    unknown["normalizers"]
        .as_array_mut()
        .expect("six")
        .iter_mut()
        .for_each(|rule| rule["type"] = "Odd".into());
    machine.put("unknown.json", tokenizer("normalizer", unknown));
    machine.refuses(&compare("unknown.json"), &["unknown.json", "1000000000000 times as long"]);
    let list = json!([{"String": "a"}, "a".repeat(100)]);
    let lists = json!({"type": "Sequence", "normalizers": vec![list; 6]});
    machine.put("lists.json", tokenizer("normalizer", lists));
    machine.refuses(&compare("lists.json"), &["lists.json", "not an object"]);
    machine.put("grow.json", tokenizer("normalizer", six.clone()));
    machine.refuses(&compare("grow.json"), &["grow.json", "1000000000000 times as long"]);
    let nested = json!({"type": "Sequence", "normalizers": [six, precompiled]});
    machine.put("nested.json", tokenizer("normalizer", nested));
    machine.refuses(&compare("nested.json"), &["nested.json"]);
    let decoders = json!({"type": "Sequence", "decoders": vec![replace; 6]});
    machine.put("decode.json", tokenizer("decoder", decoders));
    machine.refuses(&compare("decode.json"), &["decode.json", "its decoder"]);
    // One that does nothing of the kind is read.
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    machine.put("sound.json", tokenizer("normalizer", spaces));
    assert_ne!(machine.bounded(&compare("sound.json")).code, 2);
}

#[test]
fn what_the_library_panics_at_is_one_message() {
    let machine = Machine::new();
    let single = json!([{"SpecialToken": {"id": "[X]", "type_id": 0}}]);
    let template = json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}});
    machine.put("template.json", tokenizer("post_processor", template));
    let compare = ["tokenize", "--model", "tiny-llama2", "--compare", "template.json", "abc"];
    machine.refuses(&compare, &["template.json: the tokenizer cannot be used"]);
}

#[test]
fn a_run_that_no_memory_can_hold_is_not_begun() {
    let machine = Machine::new();
    machine.put("long.gguf", with_long_context());
    let tokens = vec![1; 200_000];
    let passes = json!([{"position": 0, "tokens": tokens}]);
    let row = json!([{"tap": "argmax", "pass": 0, "dtype": "u32", "shape": [], "file": "a.npy"}]);
    machine.put("long/manifest.json", manifest(passes, row));
    let head = npy(1);
    let scalar = String::from_utf8_lossy(&head[10..]).replace("(1,)", "()  ");
    machine.put("long/a.npy", [&head[..10], scalar.as_bytes(), &[5, 0, 0, 0]].concat());
    let run = ["run", "--model", "long.gguf", "--reference", "long", "--no-report"];
    machine.refuses(&run, &["a pass of 200000 tokens", "GB of memory", "ulimit -v"]);
    let decode = |count| ["dump", "--model", "long.gguf", "--tokens", "1", "--decode", count, "--out", "x"];
    machine.refuses(&decode("999999999999"), &["1000000000000 tokens are more than"]);
    machine.refuses(&decode("18446744073709551615"), &["tokens are more than"]);
    machine.refuses(&decode("16000000"), &["a run over 16000001 tokens", "GB of memory"]);
    assert!(!machine.path("x").exists());
}

#[test]
fn a_model_of_more_layers_than_any_is_refused() {
    let machine = Machine::new();
    let layers = 300_000;
    let (d, f, heads, vocabulary, positions) = (2, 1, 1, 4, 4);
    let floats = vocabulary * d + layers * (2 * d + 4 * d * d + 3 * f * d) + d + positions * d;
    let sizes = [d, f, layers, heads, heads, vocabulary, positions].map(|size| (size as i32).to_le_bytes());
    machine.put("layers.bin", [sizes.concat(), vec![0; 4 * floats]].concat());
    machine.refuses(&["inspect", "layers.bin"], &["expected a GGUF, safetensors, PyTorch, llama2.c"]);
    // A version that has a magic says what is wrong with it.
    let header = [&0x616b_3432u32.to_le_bytes()[..], &1u32.to_le_bytes(), &sizes.concat(), &[1]].concat();
    machine.put("layers.bin", [header, vec![0; 4096]].concat());
    machine.refuses(&["inspect", "layers.bin"], &["n_layers is 300000", "1 to 4096"]);
}

#[test]
fn json_that_is_nested_deeply_is_refused() {
    let machine = Machine::new();
    let deep = format!("{}1{}", "[".repeat(200_000), "]".repeat(200_000));
    machine.put("deep/manifest.json", &deep).put("deep.json", &deep);
    machine.refuses(&["inspect", "deep"], &["deep: manifest"]);
    machine.refuses(
        &["tokenize", "--model", "tiny-llama2", "--compare", "deep.json", "a"],
        &["recursion limit"],
    );
    machine.refuses(&["diff", "deep.json", "deep.json"], &["deep.json: not a valid"]);
    // The line in which it is wrong is the file, and no message.
    machine.put("deep.toml", format!("a = {deep}"));
    let tolerance = ["run", "--model", "tiny-llama2", "--no-report", "--tolerance", "deep.toml"];
    let said = machine.bounded(&tolerance);
    assert!(said.code == 2 && said.stderr.contains("recurse"), "{}", said.stderr);
    assert!(said.stderr.len() < 10_000, "{}", said.stderr.len());
}

#[test]
fn more_threads_than_any_machine_has_use_for_are_refused() {
    let many = Machine::new().bounded(&["run", "--model", "tiny-llama2", "--threads", "4096"]);
    assert_eq!((many.code, many.stderr.contains("this machine has")), (2, true), "{}", many.stderr);
}

#[test]
fn a_matrix_of_more_cells_than_anybody_runs_is_refused() {
    let machine = Machine::new();
    let values: Vec<String> = (0..100_000).map(|index| format!("\"v{index}\"")).collect();
    let text = format!("command = [\"run\", \"{{a}}\"]\n[axes]\na = [{}]\n", values.join(", "));
    machine.put("m.toml", text);
    machine.refuses(&["matrix", "m.toml"], &["more than 10000 combinations"]);
}

#[test]
fn sound_files_fit_into_the_same_room() {
    let machine = Machine::new();
    for work in
        [&["run", "--model", "tiny-llama2", "--no-report"][..], &["selfcheck", "--model", "tiny-gemma3"]]
    {
        assert_eq!(machine.within(10 * time(), work).code, 0);
    }
}

#[test]
fn memory_that_is_not_there_is_a_message() {
    let machine = Machine::new();
    let mut is_seen = false;
    for room in (60_000..200_000).step_by(10_000) {
        let run = "dump --model tiny-llama2 --threads 1 --tokens 1,5,9 --decode 200 --out d.safetensors";
        let ended = machine.shell(&format!("ulimit -v {room}; exec xcheck {run}")).output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        match ended.status.code() {
            Some(0) => break,
            Some(2) => is_seen |= said.contains("memory"),
            // The limit was met before the program began.
            _ => assert!(said.is_empty() || said.contains("loading"), "{room}: {said}"),
        }
        assert!(!machine.path("d.safetensors").exists());
    }
    assert!(is_seen, "no limit was just too low");
}
