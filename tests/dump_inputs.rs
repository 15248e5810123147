//! What readers of dumps make of manifests that other programs write: what is understood though it is spelled in another
//! way, and what is refused when the dump is opened.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::common::terminal::Terminal;
use crate::common::{record, tiny_llama2};
use serde_json::{Value, json};
use xcheck::checkpoint::{Point, Site, TapAxis};
use xcheck::dump::{Dump, Producer};
use xcheck::engine::{PassInput, RunInput};
use xcheck::numerics::F32;
use xcheck::weight::DType;

const PROMPT: &[u32] = &[1, 393, 395, 260, 394, 486];
const CONTINUATION: Site = Site { point: Point::Generated, layer: None, pass: None };
const ARGMAX: Site = Site { point: Point::Argmax, layer: None, pass: Some(0) };

// ---- making dumps to read -------------------------------------------------------------------------------

/// Two dumps of the same run, as directories `a` and `b`, of which `a` can be edited.
struct Pair(Terminal);

impl Pair {
    fn new() -> Self {
        Self::of(&RunInput::greedy(PROMPT, 2))
    }

    fn of(script: &RunInput) -> Self {
        let terminal = Terminal::new();
        for name in ["a", "b"] {
            record(&tiny_llama2(), &F32, script, &terminal.path().join(name));
        }
        Self(terminal)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("a")
    }

    fn edit(self, edit: impl FnOnce(&mut Value)) -> Self {
        let file = self.path().join("manifest.json");
        let mut json = serde_json::from_slice(&fs::read(&file).expect("a manifest")).expect("it is JSON");
        edit(&mut json);
        fs::write(&file, json.to_string()).expect("it is written");
        self
    }

    /// Changes what the manifest says of one array.
    fn edit_row(self, file: &str, edit: impl FnOnce(&mut Value)) -> Self {
        self.edit(|json| {
            let mut rows = json["tensors"].as_array_mut().expect("rows").iter_mut();
            edit(rows.find(|row| row["file"] == file).expect("the row is there"));
        })
    }

    /// Takes the rows away that are not wanted.
    fn retain(self, wanted: impl Fn(&str) -> bool) -> Self {
        self.edit(|json| {
            let rows = json["tensors"].as_array_mut().expect("rows");
            rows.retain(|row| wanted(row["tap"].as_str().expect("a name")));
        })
    }

    fn write(self, file: &str, bytes: &[u8]) -> Self {
        fs::write(self.path().join(file), bytes).expect("it is written");
        self
    }

    fn open(&self) -> Dump {
        Dump::open(&self.path()).expect("the dump is sound")
    }

    /// Puts all of `a` into an archive.
    fn pack(&self) -> PathBuf {
        let archive = self.0.path().join("a.npz");
        let files = self.open().manifest.tensors.into_iter().map(|row| row.file);
        let members: Vec<(String, Vec<u8>)> = files
            .chain(["manifest.json".to_owned()])
            .map(|file| (file.clone(), fs::read(self.path().join(file)).expect("it is there")))
            .collect();
        zip_of(&archive, members.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())));
        archive
    }

    #[track_caller]
    fn assert_refused(&self, expected: &str) {
        let message = Dump::open(&self.path()).expect_err("it is refused").to_string();
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains('\n'), "one message: {message}");
    }

    /// The exit code of `xcheck compare a b`, and the rows of the report.
    fn compare(&self) -> (i32, Vec<Value>) {
        let (code, report) = self.0.json(&["compare", "a", "b", "--no-report"]);
        (code, report["references"][0]["results"].as_array().expect("rows").clone())
    }

    /// Everything that `a` holds is what `b` holds, and there are so many values.
    #[track_caller]
    fn assert_identical(&self, taps: usize) {
        let (code, rows) = self.compare();
        assert_eq!((code, rows.len()), (0, taps));
        assert!(rows.iter().all(|row| row["accumulated"]["max_abs"] == 0.0), "{rows:?}");
    }
}

/// Every value of three passes through the shipped model, and the continuation.
const ALL: usize = 3 * (4 * 19 + 6) + 1;

fn zip_of<'m>(path: &Path, members: impl Iterator<Item = (&'m str, &'m [u8])>) {
    let mut zip = zip::ZipWriter::new(fs::File::create(path).expect("a new file"));
    for (name, bytes) in members {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).expect("a member");
        zip.write_all(bytes).expect("it is written");
    }
    zip.finish().expect("the archive is whole");
}

/// A `.npy` file in C order.
fn npy(descr: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let shape: String = shape.iter().map(|length| format!("{length},")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

// ---- the continuation -----------------------------------------------------------------------------------

#[test]
fn a_continuation_that_stands_in_the_manifest_alone_is_held() {
    let pair = Pair::new().retain(|tap| tap != "generated");
    let dump = pair.open();
    assert!(dump.holds(CONTINUATION) && dump.points().contains(&Point::Generated));
    assert_eq!(dump.sites().filter(|&site| site == CONTINUATION).count(), 1);
    assert_eq!(dump.axes(CONTINUATION), Some(vec![TapAxis::Token]));
    let ids = dump.read(CONTINUATION).expect("sound").expect("held");
    let listed = dump.manifest.generated.expect("it is listed");
    assert_eq!((ids.shape, ids.data), (vec![3], listed.into_iter().map(f64::from).collect()));
    pair.assert_identical(ALL);
}

#[test]
fn a_continuation_that_stands_in_the_manifest_alone_can_be_wrong() {
    let pair = Pair::new().retain(|tap| tap != "generated").edit(|json| json["generated"][2] = json!(7));
    let (code, rows) = pair.compare();
    let wrong: Vec<_> = rows.iter().filter(|row| row["verdict"] == "fail").map(|row| &row["tap"]).collect();
    assert_eq!((code, wrong), (1, vec![&json!("argmax"), &json!("generated")]), "its argmax says otherwise");
}

#[test]
fn a_manifest_that_names_no_continuation_holds_none() {
    for nothing in [json!([]), Value::Null] {
        let pair = Pair::new().retain(|tap| tap != "generated").edit(|json| json["generated"] = nothing);
        assert!(!pair.open().holds(CONTINUATION));
        assert_eq!(pair.open().read(CONTINUATION).expect("sound"), None);
    }
}

#[test]
fn a_manifest_and_an_array_that_name_other_continuations_are_refused() {
    let pair = Pair::new().edit(|json| json["generated"][1] = json!(7));
    pair.assert_refused("token 1 of generated is 7 in manifest.json, but ");
    pair.assert_refused("in generated.npy");
    let pair = Pair::new().edit(|json| json["generated"].as_array_mut().expect("ids").truncate(2));
    pair.assert_refused("generated has 2 tokens in manifest.json, but 3 in generated.npy");
    let pair = pack_generated(pair);
    let message = Dump::open(&pair.0.path().join("a.npz")).expect_err("it is refused").to_string();
    assert!(message.contains("2 tokens in manifest.json"), "{message}");
}

/// The last array of `a` and its manifest as an archive, which nothing has opened yet.
fn pack_generated(pair: Pair) -> Pair {
    let pair = pair.retain(|tap| tap == "generated");
    let files = ["manifest.json", "generated.npy"];
    let bytes = files.map(|file| fs::read(pair.path().join(file)).expect("it is there"));
    zip_of(&pair.0.path().join("a.npz"), files.into_iter().zip(bytes.iter().map(Vec::as_slice)));
    pair
}

#[test]
fn a_continuation_that_stands_in_an_array_alone_is_taken_into_the_manifest() {
    let pair = Pair::new();
    let listed = pair.open().manifest.generated;
    let pair = pair.edit(|json| json["generated"] = Value::Null);
    assert_eq!(pair.open().manifest.generated, listed);
    pair.assert_identical(ALL);
}

#[test]
fn a_continuation_of_what_is_no_token_is_refused() {
    let ids: Vec<u8> = [393i64, -1, 7].iter().flat_map(|id| id.to_le_bytes()).collect();
    Pair::new().write("generated.npy", &npy("<i8", &[3], &ids)).assert_refused("invalid token id -1");
    let ids: Vec<u8> = [393, 1 << 60, 7].iter().flat_map(|id: &i64| id.to_le_bytes()).collect();
    Pair::new().write("generated.npy", &npy("<i8", &[3], &ids)).assert_refused("invalid token id");
}

// ---- axes and sizes -------------------------------------------------------------------------------------

#[test]
fn an_axis_that_is_named_twice_is_refused_with_its_name() {
    let twice = |row: &mut Value| {
        row["shape"] = json!([6, 128, 2]);
        row["axes"] = json!(["token", "hidden", "hidden"]);
    };
    Pair::new().edit_row("p0/l00/attn_out.npy", twice).assert_refused("duplicate axis 'hidden'");
    let named = |row: &mut Value| row["axes"] = json!(["token", "hidden"]);
    Pair::new().edit_row("p0/l00/attn_out.npy", named).assert_identical(ALL);
}

#[test]
fn a_layer_that_no_model_has_is_refused() {
    for layer in [u64::MAX, 4_000_000_000, 65_536] {
        let edited = Pair::new().edit_row("p0/l00/attn_out.npy", |row| row["layer"] = json!(layer));
        edited.assert_refused(&format!("invalid layer {layer}"));
    }
    let edited = Pair::new().edit_row("p0/l00/attn_out.npy", |row| row["layer"] = json!(999));
    edited.open();
}

#[test]
fn sizes_that_no_memory_has_are_refused_in_every_container() {
    let pair = Pair::new().edit_row("p0/l00/attn_out.npy", |row| row["shape"] = json!([6, 1u64 << 62]));
    pair.assert_refused("is too large");
    let manifest = fs::read(pair.path().join("manifest.json")).expect("it is there");
    let npz = pair.0.path().join("a.npz");
    zip_of(&npz, [("manifest.json", manifest.as_slice())].into_iter());
    assert!(Dump::open(&npz).expect_err("it is refused").to_string().contains("is too large"));

    // The largest size that is a number: nothing is allocated for what is not there.
    let pair = Pair::new();
    let sound = pair.pack();
    let pair = pair.edit_row("p0/embed.npy", |row| row["shape"] = json!([6, 1u64 << 58]));
    let manifest = fs::read(pair.path().join("manifest.json")).expect("it is there");
    let mut members = vec![("manifest.json".to_owned(), manifest)];
    for row in Dump::open(&sound).expect("it is sound").manifest.tensors {
        members.push((row.file.clone(), fs::read(pair.path().join(row.file)).expect("it is there")));
    }
    zip_of(&npz, members.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())));
    let embed = Site { point: Point::Embed, layer: None, pass: Some(0) };
    let message = Dump::open(&npz).expect("it is opened").read(embed).expect_err("refused").to_string();
    assert!(message.contains("larger than a valid archive of its size can hold"), "{message}");
}

#[test]
fn a_manifest_that_grows_out_of_all_proportion_is_refused() {
    let home = Terminal::new();
    let npz = home.path().join("a.npz");
    let zeros = "0,".repeat(16 << 20);
    let manifest = format!(r#"{{"format":"xcheck-dump","producer":{{"settings":{{"x":[{zeros}0]}}}}}}"#);
    zip_of(&npz, [("manifest.json", manifest.as_bytes())].into_iter());
    let message = Dump::open(&npz).expect_err("it is refused").to_string();
    assert!(
        message.contains("'manifest.json' is larger than a manifest in an archive of this size"),
        "{message}"
    );
}

#[cfg(unix)]
#[test]
fn a_manifest_that_is_no_file_is_refused_and_not_waited_for() {
    let home = Terminal::new();
    fs::create_dir(home.path().join("fifo")).expect("a new folder");
    let made = std::process::Command::new("mkfifo").arg(home.path().join("fifo/manifest.json")).status();
    assert!(made.expect("it is there").success());
    let message = Dump::open(&home.path().join("fifo")).expect_err("it is refused").to_string();
    assert!(message.contains("manifest.json"), "{message}");
}

#[test]
fn keys_of_any_number_are_no_contradiction() {
    for (file, shape) in [("p1/l00/k_cache.npy", vec![5, 4, 32]), ("p1/l02/attn_scores.npy", vec![4, 1, 9])] {
        let point: Point = file.split(['/', '.']).nth(2).expect("a tap").parse().expect("it is one");
        let held =
            Pair::new().open().axes(Site { point, layer: Some(0), pass: Some(1) }).expect("it is held");
        let key = held.iter().position(|&axis| axis == TapAxis::Key).expect("it has keys");
        let mut none = shape.clone();
        none[key] = 0;
        Pair::new().edit_row(file, |row| row["shape"] = json!(shape)).open();
        let refused = Pair::new().edit_row(file, |row| row["shape"] = json!(none));
        refused.assert_refused("axis 'key' has length 0, expected at least 1");
    }
}

// ---- other spellings ------------------------------------------------------------------------------------

fn producer(settings: Value) -> Producer {
    let settings = settings.as_object().expect("settings").clone();
    Producer { name: "any".into(), version: String::new(), settings, rounding: None }
}

#[test]
fn a_dtype_is_understood_in_every_spelling() {
    let spellings = [
        (DType::F32, vec!["f32", "float32", "torch.float32", "fp32", "float", "F32", "np.float32"]),
        (DType::F64, vec!["f64", "float64", "torch.float64", "double", "torch.double", "fp64"]),
        (DType::F16, vec!["f16", "float16", "torch.float16", "half", "fp16", "FP16"]),
        (DType::BF16, vec!["bf16", "bfloat16", "torch.bfloat16", "BFloat16", "BF16"]),
    ];
    for (dtype, names) in spellings {
        for name in names {
            assert_eq!(producer(json!({"dtype": name})).dtype(), Some(dtype), "{name}");
        }
    }
    for name in ["layer-int8", "any", "int8", "q8_0", "", "torch.", "fp8", "mixed"] {
        assert_eq!(producer(json!({"dtype": name})).dtype(), None, "{name}");
    }
    assert_eq!(producer(json!({"kv_cache": "torch.float16"})).cache_type(), Some(DType::F16));
}

#[test]
fn a_precision_is_one_of_the_tables_and_never_a_free_text() {
    let cases = [
        (json!({"dtype": "torch.float32"}), Some("f32")),
        (json!({"dtype": "float64"}), Some("f32")),
        (json!({"dtype": "torch.bfloat16"}), Some("torch-bf16")),
        (json!({"dtype": "half"}), Some("torch-f16")),
        (json!({"dtype": "bf16", "weights": "f32"}), Some("torch-bf16")),
        (json!({"dtype": "bf16", "numerics": "transformers", "weights": "f32"}), Some("torch-bf16")),
        (json!({"dtype": "bf16", "numerics": "llama.cpp", "weights": "q8_0"}), Some("q8_0")),
        (json!({"dtype": "f32", "weights": "Q4_K"}), Some("q4_k")),
        (json!({"weights": "Q8_0"}), Some("q8_0")),
        (json!({"weights": "float16"}), Some("f16")),
        (json!({"weights": "f16 q6_k"}), None),
        (json!({"weights": "layer"}), None),
        (json!({"dtype": "layer-int8"}), None),
        (json!({"dtype": "torch-bf16"}), None),
        (json!({"dtype": "any"}), None),
        (json!({"dtype": 16}), None),
        (json!({}), None),
    ];
    for (settings, expected) in cases {
        assert_eq!(producer(settings.clone()).precision(), expected, "{settings}");
    }
}

#[test]
fn an_array_of_float32_is_one_of_f32() {
    let all = |json: &mut Value| {
        for row in json["tensors"].as_array_mut().expect("rows") {
            row["dtype"] = json!(if row["dtype"] == "u32" { "uint32" } else { "torch.float32" });
        }
    };
    Pair::new().edit(all).assert_identical(ALL);
    let other = Pair::new().edit_row("p0/embed.npy", |row| row["dtype"] = json!("int64"));
    other.assert_refused("unknown dtype 'int64', expected one of f32, f64, f16, bf16, u32, i32");
}

#[test]
fn token_ids_of_every_integer_type_are_read() {
    let id = Pair::new().open().read(ARGMAX).expect("sound").expect("held").data[0] as u64;
    let types = [("<i8", 8), ("<u8", 8), ("<i4", 4), ("<u4", 4), ("<i2", 2), ("<u2", 2)];
    for (descr, width) in types {
        let name = format!("{}{}", if descr.contains('i') { "i" } else { "uint" }, 8 * width);
        for dtype in ["u32", &name] {
            let bytes = npy(descr, &[], &id.to_le_bytes()[..width]);
            let pair = Pair::new().write("p0/argmax.npy", &bytes);
            let pair = pair.edit_row("p0/argmax.npy", |row| row["dtype"] = json!(dtype));
            pair.assert_identical(ALL);
            let archive = Dump::open(&pair.pack()).expect("it is sound");
            assert_eq!(archive.read(ARGMAX).expect("sound").expect("held").data, [id as f64]);
        }
    }
}

#[test]
fn token_ids_that_are_no_whole_numbers_are_not_taken_for_them() {
    let bytes = npy("<f8", &[], &7f64.to_le_bytes());
    let pair = Pair::new().write("p0/argmax.npy", &bytes);
    let message = pair.open().read(ARGMAX).expect_err("it is refused").to_string();
    assert!(message.contains("dtype f64, but the manifest states u32"), "{message}");
    let huge = npy("<i8", &[], &(i64::MAX).to_le_bytes());
    let message = Pair::new().write("p0/argmax.npy", &huge).open().read(ARGMAX).expect_err("refused");
    assert!(message.to_string().contains("invalid token id"), "{message}");
}

#[test]
fn a_leading_batch_of_one_needs_no_axes() {
    let files = ["p0/argmax.npy", "p1/last_logits.npy", "p0/l01/attn_scores.npy", "p2/l03/k_cache.npy"];
    let pair = files.into_iter().fold(Pair::new(), |pair, file| {
        let values = fs::read(pair.path().join(file)).expect("it is there");
        let start = 10 + usize::from(u16::from_le_bytes([values[8], values[9]]));
        let dump = pair.open();
        let shape = &dump.manifest.tensors.iter().find(|row| row.file == file).expect("a row").shape;
        let shape = [&[1], shape.as_slice()].concat();
        let descr = if file.contains("argmax") { "<u4" } else { "<f4" };
        pair.write(file, &npy(descr, &shape, &values[start..]))
            .edit_row(file, |row| row["shape"] = json!(shape))
    });
    assert_eq!(pair.open().axes(ARGMAX), Some(vec![TapAxis::Batch]));
    pair.assert_identical(ALL);
}

#[test]
fn a_batch_of_two_and_two_axes_too_many_are_refused() {
    let two = Pair::new().edit_row("p0/argmax.npy", |row| row["shape"] = json!([2]));
    two.assert_refused("shape [2] does not match the axes []");
    let twice = Pair::new().edit_row("p0/embed.npy", |row| row["shape"] = json!([1, 1, 6, 128]));
    twice.assert_refused("does not match the axes [token, hidden]");
}

#[test]
fn a_missing_rope_pairing_concerns_the_heads_that_have_one_alone() {
    let heads = ["q", "k", "q_rope", "k_rope", "k_cache"];
    let pair = Pair::new().edit(|json| json["layout"] = json!({})).retain(|tap| !heads.contains(&tap));
    pair.assert_identical(ALL - 3 * 4 * heads.len());
    let pair = Pair::new().edit(|json| json["layout"] = json!({}));
    let finished = pair.0.run(&["compare", "a", "b", "--no-report"]);
    assert_eq!(finished.code, 0, "the values show it");
    assert!(finished.stdout.contains("layout.rope_pairing"), "{}", finished.stdout);
}

#[test]
fn passes_that_read_a_part_of_the_prompt_are_readable() {
    let passes = PROMPT[..2].iter().map(|&id| PassInput::given(&[id])).collect();
    let pair = Pair::of(&RunInput { passes, prompt_len: 2 }).edit(|json| {
        json["input"]["tokens"] = json!(PROMPT);
        json["input"]["decode"] = json!("forced");
        json["generated"] = Value::Null;
    });
    let pair = pair.retain(|tap| tap != "generated");
    assert_eq!(pair.open().manifest.input.tokens, PROMPT);
    assert_eq!(pair.open().sites().count(), 2 * (4 * 19 + 6));
}

// ---- what a person is shown -----------------------------------------------------------------------------

#[test]
fn a_dump_sends_no_terminal_escape_sequence() {
    let hostile = json!({"name": "p\u{1b}[2J\u{7}\nerror: none", "settings": {"k\u{1b}[31m": 1}});
    let pair = Pair::new().edit(|json| json["producer"] = hostile);
    let shown = pair.0.run(&["inspect", "a", "--tap", "embed"]).stdout;
    assert!(!shown.contains(['\u{1b}', '\u{7}']) && !shown.contains("\nerror"), "{shown}");
    assert!(shown.contains(r"p\u{1b}[2J\u{7}\nerror: none") && shown.contains(r"k\u{1b}[31m = 1"), "{shown}");
}

/// A file that says 260.4 would be rounded to the token that is right.
#[test]
fn a_token_that_is_no_whole_number_is_refused_by_check_and_compare() {
    let with = |value: f32| {
        let pair = Pair::new().write("p0/argmax.npy", &npy("<f4", &[], &value.to_le_bytes()));
        pair.edit_row("p0/argmax.npy", |row| row["dtype"] = "f32".into())
    };
    let commands = [&["check", "--model", "tiny-llama2", "--candidate", "a"][..], &["compare", "a", "b"]];
    let whole =
        with(Pair::new().open().read(ARGMAX).expect("it is sound").expect("it is held").data[0] as f32);
    for command in commands {
        assert_eq!(whole.0.run(command).code, 0, "whole numbers in f32 are ids");
    }
    let cases = [
        (260.4, "260.4"),
        (f32::NAN, "NaN"),
        (-1.0, "-1"),
        (2f32.powi(40), "1099511627776"),
        (f32::INFINITY, "inf"),
    ];
    for (value, told) in cases {
        let pair = with(value);
        commands.iter().for_each(|command| {
            pair.0.assert_refused(command, &format!("p0/argmax.npy: invalid token id {told}"))
        });
    }
}

#[test]
fn cases_of_ids_and_rows_that_cannot_be_are_refused() {
    let terminal = Terminal::new();
    let cases = [
        ("argmax-fraction/argmax-260.4", "p0/argmax.npy: invalid token id 260.4"),
        (
            "rows-of-generated/rows-of-generated",
            "\"rows\" cannot be used with generated, which belongs to no pass",
        ),
    ];
    for (name, expected) in cases {
        let dump = format!("{}/tests/data/cases/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
        terminal.assert_refused(&["check", "--model", "tiny-llama2", "--candidate", &dump], expected);
    }
}
