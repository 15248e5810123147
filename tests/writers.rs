//! The writers of dumps for engines in C and in Rust: what they write is judged, and what is wrong is found.

#[path = "../writers/rust/examples/engine.rs"]
mod engine;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::skip::skip;
use crate::common::terminal::Terminal;
use serde_json::Value;
use xcheck::checkpoint::{Point, Site, TapScope};
use xcheck::dump::Dump;
use xcheck_dump::{Axis, Decode, Meta, Options, Part, RopePairing, Row, Sequence, TAPS, Values};

const MODEL: &str = "tiny-llama2c-v0";
const PROMPT: [u32; 5] = [1, 403, 407, 393, 395];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn model_file() -> PathBuf {
    root().join("checkpoints/tiny-llama2c/tiny-llama2c-v0.bin")
}

/// The exit code of a check, and the report.
fn check(terminal: &Terminal, dump: &str) -> (i32, Value) {
    terminal.json(&["check", "--model", MODEL, "--candidate", dump, "--no-report"])
}

#[track_caller]
fn assert_passes(terminal: &Terminal, dump: &str, taps: usize) {
    let (code, report) = check(terminal, dump);
    let results = report["references"][0]["results"].as_array().expect("rows");
    assert_eq!((code, results.len()), (0, taps), "{report:#}");
}

/// It fails, and the first place that does is this tap in the first layer and pass.
#[track_caller]
fn assert_fails_at(terminal: &Terminal, dump: &str, tap: &str) {
    let (code, report) = check(terminal, dump);
    let results = report["references"][0]["results"].as_array().expect("rows").iter();
    let first = results.clone().find(|row| row["verdict"] == "fail").expect("something fails");
    assert_eq!(
        (code, &first["tap"], &first["layer"], &first["pass"]),
        (1, &tap.into(), &0.into(), &0.into())
    );
}

// ---- C ------------------------------------------------------------------------------------------------------

/// The first of these compilers that is there; without one the test is skipped, and says so.
fn compiler(names: &[&'static str]) -> Option<&'static str> {
    let is_there = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
    let found = names.iter().find(is_there).copied();
    if found.is_none() {
        skip(format_args!("no compiler: {}", names.join(", ")));
    }
    found
}

const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"];

/// Compiles a file of `writers/c`; the message where that fails.
fn compile(compiler: &str, source: &str, out: &Path, flags: &[&str]) -> Result<(), String> {
    let source = root().join("writers/c").join(source);
    let mut command = Command::new(compiler);
    command.args(flags).args(STRICT).arg(source).arg("-o").arg(out).arg("-lm");
    let output = command.output().expect("it starts");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[track_caller]
fn run(program: &Path, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// What sanitizers see is an error; they are not everywhere.
const SANITIZED: [&str; 3] = ["-std=c99", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

#[test]
fn an_engine_in_c_is_judged_and_its_mistake_is_found_where_it_is() {
    let Some(cc) = compiler(&["cc", "gcc", "clang"]) else { return };
    let terminal = Terminal::new();
    let tokens = PROMPT.map(|token| token.to_string());
    let dump = |name: &str, out: &str, flags: &[&str]| {
        let program = terminal.path().join(format!("{name}.exe"));
        let flags = [&["-std=c99", "-O1", "-ffp-contract=off"], flags].concat();
        compile(cc, "example.c", &program, &flags).expect("it compiles without a warning");
        let (model, out) = (model_file(), terminal.path().join(out));
        let paths = [model.to_str().expect("a path"), out.to_str().expect("a path")];
        run(&program, &[&paths[..], &tokens.each_ref().map(String::as_str)].concat());
    };
    dump("right", "right.safetensors", &[]);
    dump("right", "right", &[]);
    dump("wrong", "wrong.safetensors", &["-DMISTAKE"]);
    assert_passes(&terminal, "right.safetensors", 96);
    assert_passes(&terminal, "right", 96);
    assert_fails_at(&terminal, "wrong.safetensors", "attn_weights");
}

#[test]
fn the_writer_in_c_refuses_what_cannot_be_and_leaves_nothing() {
    let Some(cc) = compiler(&["cc", "gcc", "clang"]) else { return };
    let terminal = Terminal::new();
    let program = terminal.path().join("test");
    if compile(cc, "test.c", &program, &SANITIZED).is_err() {
        compile(cc, "test.c", &program, &["-std=c99"]).expect("it compiles without a warning");
    }
    let folder = terminal.path().join("dumps");
    fs::create_dir(&folder).expect("a folder");
    run(&program, &[folder.to_str().expect("a path")]);
    let closed = Dump::open(&folder.join("closed.safetensors")).expect("it is sound");
    assert_eq!(closed.manifest.producer.name, "quote \" backslash \\ line\n café");
    assert_eq!(closed.manifest.producer.setting("a\tb"), Some("\u{1}"));
    assert_eq!(Dump::open(&folder.join("closed")).expect("it is sound").sites().count(), 4);

    let ours = terminal.path().join("ours.safetensors");
    write_version_2(&ours).expect("it is written");
    assert_same(&folder.join("version2.safetensors"), &ours);
    let (theirs, ours) = (folder.join("split"), terminal.path().join("split"));
    write_split(&ours, true).expect("it is written");
    assert_same(&theirs, &ours);
    assert_eq!(version(&theirs), 2);
}

/// A file of more than 16 blocks of 512 bytes cannot be written: as on a disk that is full.
#[test]
#[cfg(unix)]
fn a_write_that_fails_is_told_and_leaves_nothing() {
    let Some(cc) = compiler(&["cc", "gcc", "clang"]) else { return };
    let terminal = Terminal::new();
    let program = terminal.path().join("engine");
    compile(cc, "example.c", &program, &["-std=c99"]).expect("it compiles without a warning");
    for out in ["full", "full.safetensors"] {
        let limited = "trap '' XFSZ; ulimit -f 16; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", limited, "sh"]).arg(&program).arg(model_file());
        let output =
            command.arg(terminal.path().join(out)).args(["1", "403", "407"]).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.starts_with("error: cannot write "), "{said}");
    }
    let left = fs::read_dir(terminal.path()).expect("it is there").count();
    assert_eq!(left, 1, "the program alone");
}

#[test]
fn the_header_is_also_cpp() {
    let Some(cpp) = compiler(&["c++", "g++", "clang++"]) else { return };
    let terminal = Terminal::new();
    let (source, program) = (terminal.path().join("cpp.cc"), terminal.path().join("cpp"));
    let include =
        "#define XCHECK_DUMP_IMPLEMENTATION\n#include \"xcheck_dump.h\"\nint main() { return 0; }\n";
    fs::write(&source, include).expect("it is written");
    let folder = format!("-I{}", root().join("writers/c").display());
    let source = source.to_str().expect("a path");
    compile(cpp, source, &program, &["-std=c++11", &folder]).expect("it compiles without a warning");
}

// ---- Rust ---------------------------------------------------------------------------------------------------

#[test]
fn an_engine_in_rust_is_judged_and_its_mistake_is_found_where_it_is() {
    let terminal = Terminal::new();
    for (name, mistake) in [("right", false), ("right.safetensors", false), ("wrong.safetensors", true)] {
        engine::run(&model_file(), &terminal.path().join(name), &PROMPT, mistake).expect("it runs");
    }
    assert_passes(&terminal, "right", 106);
    assert_passes(&terminal, "right.safetensors", 106);
    assert_fails_at(&terminal, "wrong.safetensors", "ffn_act");
}

#[test]
fn halves_are_written_by_their_bits() {
    let (halves, brains) = ([1.5, -0.25].map(half::f16::from_f32), [1.5, -0.25].map(half::bf16::from_f32));
    assert!(matches!(Values::from(&halves[..]), Values::F16([0x3E00, 0xB400])));
    assert!(matches!(Values::from(&brains[..]), Values::BF16([0x3FC0, 0xBE80])));
}

// ---- version 2 ----------------------------------------------------------------------------------------------

/// The dump that `writers/c/test.c` writes, too: two sequences, one behind padding; rows, a fused projection, what was
/// rounded before, and keys that are said.
fn write_version_2(path: &Path) -> xcheck_dump::Result<()> {
    let numbers: Vec<f32> = (0..96u16).map(|i| f32::from(i) / 8.0).collect();
    let bits: Vec<u64> = numbers[..4].iter().map(|value| u64::from(value.to_bits())).collect();
    let doubles = [0, 2].map(|at| f64::from_bits(bits[at] | bits[at + 1] << 32));
    let values = |count: usize| Values::F32(&numbers[..count]);
    let meta = Meta {
        version: "1".into(),
        model: "none".into(),
        sha256: Some("0123456789abcdef".repeat(4)),
        rope_pairing: Some(RopePairing::Half),
        sequences: vec![
            Sequence { name: Some("a".into()), prompt: "text".into(), ..Sequence::new(&[1, 2]) },
            Sequence { decode: Decode::Forced, ..Sequence::new(&[3, 4, 5]) },
        ],
        ..Meta::new("test", "llama")
    };
    let row = |(sequence, position), token| Row::new(sequence, position, token);
    let (a, b) = ([(0, 0), (0, 1), (0, 2)], [(1, 0), (1, 1), (1, 2), (1, 3)]);
    let mut dump = xcheck_dump::Dump::create(path, meta)?;
    dump.pass_of(&[Row::padding(0), row(a[0], 1), row(a[1], 2), row(b[0], 3), row(b[1], 4), row(b[2], 5)])?;
    dump.tap("embed", None, &[2, 3, 4], values(24))?;
    let part = |tap, end| Part::new(tap, &[6, 4, 2], &[0, 0, 0], end);
    let parts = [part("q", &[6, 2, 2]), part("k", &[6, 4, 2])];
    dump.fused("qk", Some(0), &[6, 8], values(48), &parts)?;
    let axes = Some(&[Axis::Token, Axis::Hidden][..]);
    let some = Options { axes, rows: Some(&[1, 4]), ..Options::default() };
    dump.tap_with("attn_norm", Some(0), &[2, 4], values(8), some)?;
    let rounded = Options { axes, computed: Some("bf16"), ..Options::default() };
    dump.tap_with("block_out", Some(0), &[6, 4], values(24), rounded)?;
    dump.tap("argmax", None, &[2], Values::U32(&[7, 8]))?;
    dump.pass_of(&[row(a[2], 7), row(b[3], 8)])?;
    dump.keys_of_entries(&[vec![None, Some(a[0]), Some(a[1]), Some(a[2])], b.map(Some).to_vec()])?;
    dump.temperature(0.5)?;
    dump.tap("k_cache", Some(0), &[2, 4, 2, 2], values(32))?;
    dump.tap("probs", None, &[2, 1], Values::F64(&doubles))?;
    dump.generated_of(0, &[7, 8])?;
    dump.finish()
}

/// The dump `split` that `writers/c/test.c` writes, too, and the same values with the taps' own axes.
fn write_split(path: &Path, is_split: bool) -> xcheck_dump::Result<()> {
    use Axis::{Group, HeadDim, KvHead, Token};
    let numbers: Vec<f32> = (0..24u16).map(|i| f32::from(i) / 8.0).collect();
    let with = |axes| Options { axes: Some(axes), ..Options::default() };
    let mut dump = xcheck_dump::Dump::create(path, Meta::new("test", "llama"))?;
    dump.pass(&[1, 2, 3])?;
    if is_split {
        let by_head = with(&[Token, KvHead, Group, HeadDim]);
        dump.tap_with("q", Some(0), &[3, 2, 2, 2], Values::F32(&numbers), by_head)?;
        let turned = with(&[KvHead, Group, Token, HeadDim]);
        dump.tap_with("attn_context", Some(0), &[2, 2, 3, 2], Values::F32(&numbers), turned)?;
    } else {
        let at = |token: usize, head: usize, inner: usize| numbers[(head * 3 + token) * 2 + inner];
        let row = |token: usize| (0..8usize).map(move |i| (token, i / 2, i % 2));
        let merged: Vec<f32> =
            (0..3).flat_map(row).map(|(token, head, inner)| at(token, head, inner)).collect();
        dump.tap("q", Some(0), &[3, 4, 2], Values::F32(&numbers))?;
        dump.tap("attn_context", Some(0), &[3, 8], Values::F32(&merged))?;
    }
    dump.finish()
}

fn version(dump: &Path) -> Value {
    let text = fs::read(dump.join("manifest.json")).expect("a manifest");
    serde_json::from_slice::<Value>(&text).expect("JSON")["version"].clone()
}

#[test]
fn axes_that_several_stand_for_are_version_2_and_hold_the_same_values() {
    let terminal = Terminal::new();
    let [split, merged] = ["split", "merged"].map(|name| terminal.path().join(name));
    write_split(&split, true).expect("it is written");
    write_split(&merged, false).expect("it is written");
    assert_eq!((version(&split), version(&merged)), (2.into(), 1.into()));
    let identical = |one: &str, other: &str| {
        let finished = terminal.run(&["compare", one, other, "--no-report"]);
        finished.stdout.contains("2 taps bit-identical, 100 % of the values")
    };
    assert!(identical("split", "merged"));

    let manifest = split.join("manifest.json");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    let exchanged = text.replace(r#""kv_head","group""#, r#""group","kv_head""#);
    assert_ne!(text, exchanged);
    fs::write(&manifest, exchanged).expect("it is written");
    assert!(!identical("split", "merged"), "axes in another order are other values");
}

/// What a manifest says, but for hashes, which the writers do not make, and settings, which are texts for them.
fn said(dump: &Dump) -> Value {
    let mut json = serde_json::to_value(&dump.manifest).expect("plain data");
    json["producer"]["settings"] = Value::Null;
    for row in json["tensors"].as_array_mut().expect("rows") {
        row.as_object_mut().expect("a row").remove("sha256");
    }
    json
}

/// Two dumps hold the same of each sequence, by what their manifests say and by their values.
#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    let open = |path: &Path| Dump::open_all(path).expect("it is sound");
    let (one, other) = (open(one), open(other));
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(&other) {
        assert!(said(one) == said(other), "{} is not {}", other.path.display(), one.path.display());
        let read =
            |dump: &Dump, site: Site| dump.read(site).expect("sound").map(|read| (read.shape, read.data));
        for site in one.sites() {
            assert!(read(one, site) == read(other, site), "{site}");
        }
    }
}

#[test]
fn batches_of_a_real_engine_are_judged_alike_when_they_are_written_again() {
    let terminal = Terminal::new();
    let cases = [
        ("llama3-padded", "tiny-llama3", 0),
        ("llama3-padded-bf16", "tiny-llama3", 0),
        ("llama3-padded-mistake", "tiny-llama3", 1),
        ("gpt2-packed", "tiny-gpt2", 0),
    ];
    for (name, model, expected) in cases {
        let written = root().join(format!("tests/data/sequences/{name}.safetensors"));
        let again = terminal.path().join(name);
        write_again(&written, &again);
        assert_same(&written, &again);
        let finished = terminal.run(&["audit", name, "--model", model, "--no-report"]);
        assert_eq!(finished.code, expected, "{name}: {}{}", finished.stdout, finished.stderr);
    }
}

/// Gives a dump of several sequences to the writer, value by value.
fn write_again(from: &Path, to: &Path) {
    let bytes = fs::read(from).expect("it is there");
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..start]).expect("JSON");
    let manifest = header["__metadata__"]["xcheck"].as_str().expect("a manifest");
    let manifest: Value = serde_json::from_str(manifest).expect("JSON");
    let mut dump = xcheck_dump::Dump::create(to, meta_of(&manifest)).expect("it begins");
    let rows = manifest["tensors"].as_array().expect("rows");
    for (index, pass) in manifest["passes"].as_array().expect("passes").iter().enumerate() {
        dump.pass_of(&rows_of(pass)).expect("a pass");
        for row in rows.iter().filter(|row| row["pass"] == index) {
            let key = row["file"].as_str().expect("a file").trim_end_matches(".npy");
            let ends = numbers(&header[key]["data_offsets"]);
            let (layer, shape) = (row["layer"].as_u64().map(|layer| layer as usize), numbers(&row["shape"]));
            let tap = |values: Values| dump.tap(row["tap"].as_str().expect("a tap"), layer, &shape, values);
            with_values(&row["dtype"], &bytes[start + ends[0]..start + ends[1]], tap).expect("a value");
        }
    }
    for (index, sequence) in manifest["input"]["sequences"].as_array().expect("some").iter().enumerate() {
        dump.generated_of(index, &tokens(&sequence["generated"])).expect("a continuation");
    }
    dump.finish().expect("it is whole");
}

fn numbers(list: &Value) -> Vec<usize> {
    list.as_array()
        .expect("a list")
        .iter()
        .map(|number| number.as_u64().expect("a number") as usize)
        .collect()
}

fn tokens(list: &Value) -> Vec<u32> {
    numbers(list).into_iter().map(|token| token as u32).collect()
}

fn meta_of(manifest: &Value) -> Meta {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (producer, model) = (&manifest["producer"], &manifest["model"]);
    let settings = producer["settings"].as_object().expect("settings").iter();
    let pairing = match manifest["layout"]["rope_pairing"].as_str() {
        Some("half") => Some(RopePairing::Half),
        Some(_) => Some(RopePairing::Interleaved),
        None => None,
    };
    let sequences = manifest["input"]["sequences"].as_array().expect("sequences").iter();
    Meta {
        version: text(&producer["version"]),
        model: text(&model["name"]),
        sha256: model["sha256"].as_str().map(str::to_owned),
        settings: settings.map(|(key, value)| (key.clone(), text(value))).collect(),
        rope_pairing: pairing,
        sequences: sequences.map(|sequence| Sequence::new(&tokens(&sequence["tokens"]))).collect(),
        ..Meta::new(text(&producer["name"]), text(&model["architecture"]))
    }
}

fn rows_of(pass: &Value) -> Vec<Row> {
    let owners = pass["sequence"].as_array().expect("owners").iter().map(Value::as_u64);
    let places = owners.zip(numbers(&pass["position"]));
    let places = places.map(|(owner, position)| owner.map(|owner| (owner as usize, position)));
    places.zip(tokens(&pass["tokens"])).map(|(place, token)| Row { token, place }).collect()
}

fn with_values<R>(dtype: &Value, bytes: &[u8], act: impl FnOnce(Values) -> R) -> R {
    let words = || bytes.chunks_exact(4).map(|word| word.try_into().expect("4 bytes"));
    let halves = || bytes.chunks_exact(2).map(|half| u16::from_le_bytes(half.try_into().expect("2 bytes")));
    match dtype.as_str() {
        Some("f32") => act(Values::F32(&words().map(f32::from_le_bytes).collect::<Vec<_>>())),
        Some("u32") => act(Values::U32(&words().map(u32::from_le_bytes).collect::<Vec<_>>())),
        Some("bf16") => act(Values::BF16(&halves().collect::<Vec<_>>())),
        other => panic!("no such dtype is in these dumps: {other:?}"),
    }
}

// ---- the tables -----------------------------------------------------------------------------------------------

/// A tap's scope and axes, by name.
type Table = HashMap<String, (bool, Vec<String>)>;

fn table_of_the_harness() -> Table {
    let points = Point::ALL.iter().filter(|point| point.scope() != TapScope::Run);
    let row = |point: &Point| {
        let axes = point.axes().iter().map(|axis| axis.name().to_owned()).collect();
        (point.name().to_owned(), (point.scope() == TapScope::Layer, axes))
    };
    points.map(row).collect()
}

#[test]
fn the_writers_know_the_taps_of_the_harness() {
    let in_rust = TAPS.iter().map(|tap| {
        let axes = tap.axes.iter().map(|axis| axis.name().to_owned()).collect();
        (tap.name.to_owned(), (tap.scope == xcheck_dump::Scope::Layer, axes))
    });
    assert_eq!(in_rust.collect::<Table>(), table_of_the_harness());
    let header = fs::read_to_string(root().join("writers/c/xcheck_dump.h")).expect("it is there");
    let in_c =
        header.lines().filter(|line| line.starts_with("    {\"") && line.contains("XCHECK__")).map(|line| {
            let texts: Vec<&str> = line.split('"').collect();
            let axes = texts[3].split(',').filter(|axis| !axis.is_empty()).map(str::to_owned).collect();
            (texts[1].to_owned(), (line.contains("XCHECK__LAYER"), axes))
        });
    assert_eq!(in_c.collect::<Table>(), table_of_the_harness());
}
