//! Activations in the forms in which libraries save them (reference-scripts/dump/save_activations.py): the correct file passes,
//! and the same file with one wrong array does not.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use xcheck::format::Arrays;
use xcheck::weight::StoredTensor;

use crate::common::architecture;
use crate::common::terminal::Terminal;
use crate::common::torch::{Pickle, Storage, archive, row_major};

const TOKENS: &str = "1,5,9,12";

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn saved(name: &str) -> PathBuf {
    root("tests/data/foreign/saved").join(name)
}

/// Judges a file or folder of tiny-mistral's activations: exit code and report.
fn judged_with(terminal: &Terminal, path: &Path, more: &[&str]) -> (i32, Value) {
    let model = architecture("tiny-mistral").join("hf").display().to_string();
    let path = path.display().to_string();
    let words = ["check", "--model", &model, "--candidate", &path, "--tokens", TOKENS, "--no-causes"];
    terminal.json(&[&words[..], more].concat())
}

fn judged(path: &Path) -> (i32, Value) {
    judged_with(&Terminal::new(), path, &[])
}

fn refused(path: &Path, expected: &str) {
    let model = architecture("tiny-mistral").join("hf").display().to_string();
    let path = path.display().to_string();
    let words = ["check", "--model", &model, "--candidate", &path, "--tokens", TOKENS];
    Terminal::new().assert_refused(&words, expected);
}

fn passed(report: &Value, tap: &str) -> usize {
    let rows = report["references"][0]["results"].as_array().expect("rows");
    rows.iter().filter(|row| row["tap"] == tap && row["verdict"] == "pass").count()
}

/// Values times 1.5.
fn wrong(data: &[u8]) -> Vec<u8> {
    let values = data.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().expect("four bytes")));
    values.flat_map(|value| (value * 1.5).to_le_bytes()).collect()
}

fn array(arrays: &Arrays, name: &str) -> StoredTensor {
    arrays.tensors.get(name).unwrap_or_else(|| panic!("no array {name}")).clone()
}

/// The file with wrong values of an array, wherever they are in it.
fn with_wrong(file: &Path, name: &str) -> Vec<u8> {
    let data = array(&Arrays::open(file).expect("it is read"), name).data;
    let (data, mut bytes) = (data[..].to_vec(), fs::read(file).expect("it is read"));
    let places: Vec<usize> =
        (0..bytes.len() - data.len()).filter(|&at| bytes[at..].starts_with(&data)).collect();
    assert!(!places.is_empty(), "{name}");
    for at in places {
        bytes[at..at + data.len()].copy_from_slice(&wrong(&data));
    }
    bytes
}

/// The correct file passes with so many values of a tap, and fails with a wrong array.
#[track_caller]
fn assert_both(file: &str, name: &str, (tap, count): (&str, usize)) {
    let terminal = Terminal::new();
    let (code, report) = judged(&saved(file));
    assert_eq!((code, passed(&report, tap)), (0, count), "{file}: {report}");
    let broken = terminal.path().join(file);
    fs::write(&broken, with_wrong(&saved(file), name)).expect("it is written");
    let (code, report) = judged(&broken);
    assert_eq!(code, 1, "{file}, {name}: {report}");
}

#[test]
fn results_of_transformers_are_read_with_their_hidden_states() {
    assert_both("output.pt", "hidden_states.0", ("embed", 1));
    assert_both("output.pt", "hidden_states.1", ("block_out", 1));
    assert_both("output.pt", "hidden_states.2", ("final_norm", 1));
    assert_both("output.pt", "attentions.1", ("attn_weights", 2));
    assert_both("output.pt", "logits", ("logits", 1));
}

#[test]
fn results_of_generate_are_read_pass_by_pass() {
    assert_both("generate.pt", "hidden_states.0.1", ("block_out", 3));
    assert_both("generate.pt", "hidden_states.2.2", ("final_norm", 3));
    assert_both("generate.pt", "logits.1", ("logits", 3));
}

/// The embeddings of GPT-2 have positions, and those of Gemma 3 a scale; the last norm of GPT-2 centres.
#[test]
fn hidden_states_of_other_architectures_are_the_same_taps() {
    for (model, last) in [("tiny-gpt2", "hidden_states.2"), ("tiny-gemma3", "hidden_states.7")] {
        let (terminal, file) = (Terminal::new(), saved(&format!("{model}-output.pt")));
        let broken = terminal.path().join("broken.pt");
        for (expected, name) in [(0, None), (1, Some("hidden_states.1")), (1, Some(last))] {
            let bytes =
                name.map_or_else(|| fs::read(&file).expect("it is read"), |name| with_wrong(&file, name));
            fs::write(&broken, bytes).expect("it is written");
            let words =
                ["check", "--model", model, "--candidate", "broken.pt", "--tokens", TOKENS, "--no-causes"];
            let (code, report) = terminal.json(&words);
            assert_eq!(code, expected, "{model}, {name:?}: {report}");
        }
    }
}

/// `.npy`, version 1.0, of f32.
fn npy(shape: &[usize], data: &[u8]) -> Vec<u8> {
    let shape: String = shape.iter().map(|length| format!("{length},")).collect();
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// Returns the hidden states of a result, one after another.
fn hidden_states() -> Vec<StoredTensor> {
    let arrays = Arrays::open(&saved("output.pt")).expect("it is read");
    (0..3).map(|index| array(&arrays, &format!("hidden_states.{index}"))).collect()
}

/// One stacked array, with or without the batch, and one whose layers are not those of the model.
#[test]
fn hidden_states_as_one_array_are_split_into_layers() {
    let terminal = Terminal::new();
    let data: Vec<Vec<u8>> = hidden_states().iter().map(|stored| stored.data[..].to_vec()).collect();
    let other = [data[0].clone(), wrong(&data[1]), data[2].clone()].concat();
    let data = data.concat();
    for name in ["hidden_states.npy", "x.npy"] {
        let file = terminal.path().join(name);
        for shape in [&[3, 1, 4, 64][..], &[3, 4, 64], &[1, 3, 4, 64]] {
            fs::write(&file, npy(shape, &data)).expect("it is written");
            let (code, report) = judged(&file);
            assert_eq!((code, passed(&report, "block_out")), (0, 1), "{name}, {shape:?}: {report}");
            fs::write(&file, npy(shape, &other)).expect("it is written");
            assert_eq!(judged(&file).0, 1, "{name}, {shape:?}");
        }
    }
    let file = terminal.path().join("hidden_states.npy");
    fs::write(&file, npy(&[2, 4, 64], &data[..2 * 1024])).expect("it is written");
    refused(&file, "expected one entry per layer: [3, tokens, ...]");
}

/// A tuple saved alone; of the embedding and each layer but one, it is not known which is which.
#[test]
fn a_tuple_without_names_is_read_as_hidden_states() {
    let terminal = Terminal::new();
    let states = hidden_states();
    let tuple = |states: &[StoredTensor]| {
        let tensor = |pickle: Pickle, (key, stored): (usize, &StoredTensor)| {
            let shape: Vec<i64> = stored.shape.iter().map(|&length| length as i64).collect();
            let storage = Storage { class: "FloatStorage", key, elements: stored.elements() as i64 };
            pickle.tensor(storage, 0, &shape, &row_major(&shape))
        };
        let pickle = states.iter().enumerate().fold(Pickle::new().op(b"("), tensor).op(b"t.");
        let keys: Vec<String> = (0..states.len()).map(|key| format!("data/{key}")).collect();
        let members = keys.iter().zip(states).map(|(key, stored)| (key.as_str(), &stored.data[..]));
        archive([("data.pkl", &pickle.bytes[..])].into_iter().chain(members))
    };
    let file = terminal.path().join("tuple.pt");
    fs::write(&file, tuple(&states)).expect("it is written");
    assert_eq!(judged(&file).0, 0);
    fs::write(&file, with_wrong(&file, "1")).expect("it is written");
    assert_eq!(judged(&file).0, 1);
    fs::write(&file, tuple(&states[..2])).expect("it is written");
    refused(&file, "no shipped map matches half of the 2 arrays");
}

#[test]
fn too_few_hidden_states_are_not_compared() {
    let terminal = Terminal::new();
    for (index, stored) in hidden_states().iter().enumerate().take(2) {
        let file = terminal.path().join(format!("hidden_states.{index}.npy"));
        fs::write(file, npy(&stored.shape, &stored.data[..])).expect("it is written");
    }
    refused(terminal.path(), "2 hidden states, expected 3 (the embedding and the outputs of 2 layers)");
}

/// Files of a tool with one array each, as the tool names them: file name and array.
fn unpacked(tool: &str) -> Vec<(String, StoredTensor)> {
    let arrays = Arrays::open(&saved("folders.pt")).expect("it is read");
    let of_tool = arrays.tensors.iter().filter_map(|(name, stored)| {
        Some((name.strip_prefix(tool)?.strip_prefix('.')?.to_owned(), stored.clone()))
    });
    of_tool.collect()
}

fn write_safetensors(file: &Path, stored: &StoredTensor) {
    let dtype = if stored.dtype.block_bytes() == 8 { "I64" } else { stored.dtype.name() }.to_uppercase();
    let entry =
        serde_json::json!({"dtype": dtype, "shape": stored.shape, "data_offsets": [0, stored.data.len()]});
    let header = serde_json::json!({ "data": entry }).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &stored.data[..]].concat();
    fs::write(file, bytes).expect("it is written");
}

/// The first bytes of a safetensors file are the length of its header: `{`, `[`, a pickle's or a gzip archive's.
#[test]
fn a_safetensors_file_is_known_whatever_the_length_of_its_header() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("a.safetensors");
    let header = r#"{"data":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    for length in [0x7b, 0x5b, 0x0280, 0x0480, 0x8b1f] {
        let padded = format!("{header:length$}");
        let bytes = [&(length as u64).to_le_bytes(), padded.as_bytes(), &1.5f32.to_le_bytes()].concat();
        fs::write(&file, bytes).expect("it is written");
        let arrays = Arrays::open(&file).expect("it is a safetensors file");
        assert_eq!(&array(&arrays, "data").data[..], 1.5f32.to_le_bytes(), "a header of {length} bytes");
    }
    fs::write(&file, r#"{"a": 1, {"#).expect("it is written");
    refused(&file, "JSON text");
}

fn write_torch(file: &Path, stored: &StoredTensor) {
    let class = if stored.dtype.block_bytes() == 8 { "LongStorage" } else { "FloatStorage" };
    let shape: Vec<i64> = stored.shape.iter().map(|&length| length as i64).collect();
    let storage = Storage { class, key: 0, elements: stored.elements() as i64 };
    let pickle = Pickle::new().tensor(storage, 0, &shape, &row_major(&shape)).op(b".").bytes;
    let bytes = archive([("data.pkl", &pickle[..]), ("data/0", &stored.data[..])]);
    fs::write(file, bytes).expect("it is written");
}

/// Writes an array as a file of a tool.
type ArrayWriter = fn(&Path, &StoredTensor);

fn with_wrong_values(stored: &StoredTensor) -> StoredTensor {
    StoredTensor { data: wrong(&stored.data[..]).into(), ..stored.clone() }
}

/// transformers' debugger for new models writes safetensors, msprobe torch's files: each with the inputs and outputs of modules.
#[test]
fn folders_with_one_file_per_module_are_read() {
    let tools: [(&str, ArrayWriter, &str); 2] = [
        (
            "debugger",
            write_safetensors,
            "MistralForCausalLM.model.layers.0.self_attn.k_proj_outputs.safetensors",
        ),
        ("msprobe", write_torch, "Module.model.layers.0.self_attn.k_proj.Linear.forward.0.output.0.pt"),
    ];
    for (tool, write, fault) in tools {
        let terminal = Terminal::new();
        let folder = terminal.path().join("activations");
        fs::create_dir(&folder).expect("it is made");
        let files = unpacked(tool);
        assert!(files.len() > 60, "{tool}: {}", files.len());
        files.iter().for_each(|(name, stored)| write(&folder.join(name), stored));
        let (code, report) = judged(&folder);
        assert_eq!(code, 0, "{tool}: {report}");
        for (tap, count) in [("q", 2), ("ffn_act", 2), ("attn_residual", 2), ("block_out", 2), ("logits", 1)]
        {
            assert_eq!(passed(&report, tap), count, "{tool}, {tap}: {report}");
        }
        let (_, right) = files.iter().find(|(name, _)| name == fault).expect("it is there");
        write(&folder.join(fault), &with_wrong_values(right));
        let report = judged(&folder);
        assert_eq!(report.0, 1, "{tool}: {}", report.1);
        write(&folder.join(fault), right);
        write(&folder.join("model.layers.0.unheard_of.pt"), right);
        // It has the values of another array: nothing is left out.
        assert_eq!(judged(&folder).0, 0, "{tool}");
        write(&folder.join("model.layers.0.unheard_of.pt"), &with_wrong_values(right));
        assert_eq!(judged(&folder).0, 3, "{tool}");
        let ignored = judged_with(&terminal, &folder, &["--ignore", "*unheard_of"]);
        assert_eq!(ignored.0, 0, "{tool}: {}", ignored.1);
    }
}

#[test]
fn caches_of_transformer_lens_and_nnsight_are_read() {
    assert_both("transformer-lens.pt", "blocks.1.hook_resid_mid", ("attn_residual", 2));
    assert_both("transformer-lens.pt", "blocks.0.attn.hook_rot_k", ("k_rope", 2));
    assert_both("transformer-lens.pt", "blocks.1.attn.hook_pattern", ("attn_weights", 2));
    assert_both("nnsight.pt", "model.model.layers.1.mlp.up_proj", ("ffn_up", 2));
    refused(&saved("transformer-lens-processed.pt"), "the gains of the norms are folded into other weights");
}

#[test]
fn centred_weights_of_transformer_lens_are_refused() {
    let terminal = Terminal::new();
    let row: Vec<f32> = (0..64).map(|index| index as f32 - 31.5).collect();
    let data: Vec<u8> = row.repeat(4).iter().flat_map(|value| value.to_le_bytes()).collect();
    for layer in 0..2 {
        let file = terminal.path().join(format!("blocks.{layer}.hook_resid_post.npy"));
        fs::write(file, npy(&[1, 4, 64], &data)).expect("it is written");
    }
    refused(terminal.path(), "the weights that write to it are centred");
}

#[test]
fn numpy_pickles_are_read_and_other_classes_are_named() {
    assert_both("numpy.pkl", "hidden_states.1", ("block_out", 1));
    let [plain, torch] =
        ["numpy.pkl", "numpy.pt"].map(|name| Arrays::open(&saved(name)).expect("it is read"));
    assert_eq!((plain.tensors.len(), torch.tensors.len()), (4, 4));
    for (name, stored) in plain.tensors.iter() {
        let other = array(&torch, name);
        assert_eq!(
            (stored.dtype, &stored.shape, &stored.data[..]),
            (other.dtype, &other.shape, &other.data[..])
        );
    }
    let terminal = Terminal::new();
    let file = terminal.path().join("object.pkl");
    let own = Pickle::new().global("my_engine.results", "Activations").op(b")\x81.");
    fs::write(&file, &own.bytes).expect("it is written");
    refused(&file, "the pickle refers to 'my_engine.results.Activations'");
    let system = Pickle::new().global("os", "system").op(b"(").text("true").op(b"tR.");
    fs::write(&file, &system.bytes).expect("it is written");
    refused(&file, "the pickle refers to 'os.system'");
}

#[test]
fn damaged_pickles_of_numpy_are_refused_without_a_panic() {
    let terminal = Terminal::new();
    let bytes = fs::read(saved("numpy.pkl")).expect("it is read");
    let file = terminal.path().join("damaged.pkl");
    for at in 0..400.min(bytes.len()) {
        for change in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= change;
            fs::write(&file, &damaged).expect("it is written");
            let _ = Arrays::open(&file);
        }
    }
}

#[test]
fn tensors_of_onnx_and_results_of_polygraphy_are_read() {
    let terminal = Terminal::new();
    let folder = terminal.path().join("onnx");
    fs::create_dir(&folder).expect("it is made");
    let names = ["hidden_states.0", "hidden_states.1", "hidden_states.2", "logits"];
    for name in names.map(|name| format!("{name}.pb")) {
        fs::copy(saved("onnx").join(&name), folder.join(&name)).expect("it is copied");
    }
    assert_eq!(judged(&folder).0, 0);
    let file = folder.join("hidden_states.1.pb");
    let bytes = fs::read(&file).expect("it is read");
    let start = bytes.len() - 1024;
    fs::write(&file, [&bytes[..start], &wrong(&bytes[start..])].concat()).expect("it is written");
    assert_eq!(judged(&folder).0, 1);
    fs::write(&file, &bytes[..start]).expect("it is written");
    refused(&folder, "hidden_states.1.pb");

    let (code, report) = judged(&saved("polygraphy.json"));
    assert_eq!((code, passed(&report, "block_out")), (0, 1), "{report}");
    let text = fs::read_to_string(saved("polygraphy.json")).expect("it is read");
    let mut results: Value = serde_json::from_str(&text).expect("JSON");
    let outputs = &mut results["lst"][0][1][0]["outputs"];
    let array = &mut outputs["hidden_states.1"]["values"]["array"];
    let bytes = STANDARD.decode(array.as_str().expect("text")).expect("base64");
    let start = bytes.len() - 1024;
    *array = STANDARD.encode([&bytes[..start], &wrong(&bytes[start..])].concat()).into();
    let file = terminal.path().join("wrong.json");
    fs::write(&file, results.to_string()).expect("it is written");
    assert_eq!(judged(&file).0, 1);
}

/// The row of logits that llama.cpp's scripts save of a transformers model has no header: its length is that of the vocabulary.
#[test]
fn raw_logits_of_llama_cpps_scripts_are_read() {
    let terminal = Terminal::new();
    let logits = array(&Arrays::open(&saved("output.pt")).expect("it is read"), "logits").data;
    let last = &logits[logits.len() - 512 * 4..];
    let file = terminal.path().join("pytorch-tiny-mistral.bin");
    fs::write(&file, last).expect("it is written");
    let (code, report) = judged(&file);
    assert_eq!((code, passed(&report, "last_logits")), (0, 1), "{report}");
    fs::write(&file, wrong(last)).expect("it is written");
    assert_eq!(judged(&file).0, 1);
    fs::write(&file, &last[..1024]).expect("it is written");
    assert_ne!(judged_code(&file), 0);
    // llama.cpp's own depend on its attention and cache, which the file does not state.
    let file = terminal.path().join("llamacpp-tiny-mistral.bin");
    fs::write(&file, last).expect("it is written");
    refused(&file, "--numerics llama.cpp-flash");
}

fn judged_code(path: &Path) -> i32 {
    let model = architecture("tiny-mistral").join("hf").display().to_string();
    let path = path.display().to_string();
    Terminal::new()
        .run(&["check", "--model", &model, "--candidate", &path, "--tokens", TOKENS, "--no-report"])
        .code
}

#[test]
fn files_that_are_not_read_are_refused_with_the_way_to_convert_them() {
    let terminal = Terminal::new();
    let eval =
        "common_debug_cb_eval:  l_out-0 = (f32)  ADD(a{128, 6, 1, 1}) = {128, 6, 1, 1}\n    sum = -1.5\n";
    let tree = r#"{"module_path": "LlamaForCausalLM", "inputs": {"args": []}, "children": []}"#;
    let index = r#"{"task": "statistics", "level": "L0", "dump_data_dir": null, "data": {}}"#;
    let files: [(&str, &[u8], &str); 6] = [
        ("o.h5", b"\x89HDF\r\n\x1a\n", "h5py.File("),
        ("eval.log", eval.as_bytes(), "six rounded values of each row"),
        ("tree.json", tree.as_bytes(), "use_repr=False"),
        ("dump.json", index.as_bytes(), "name the folder dump_tensor_data"),
        ("values.json", b"{\"hidden\": [1.5]}", "numpy.savez("),
        ("old.pt", b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20", "save it again"),
    ];
    for (name, bytes, expected) in files {
        let file = terminal.path().join(name);
        fs::write(&file, bytes).expect("it is written");
        refused(&file, expected);
    }
    let folder = terminal.path().join("debugger");
    fs::create_dir(&folder).expect("it is made");
    fs::write(folder.join("LlamaForCausalLM_debug_tree_FULL_TENSORS.json"), tree).expect("it is written");
    refused(&folder, "use_repr=False");
}
