//! The producer in Python, which `XCHECK_PYTHON` runs: it needs numpy and safetensors.

use std::path::Path;
use std::process::{Command, Output};

use super::bed::plain;
use crate::common::finished::Finished;
use crate::common::terminal::Terminal;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn python() -> String {
    std::env::var("XCHECK_PYTHON").expect("XCHECK_PYTHON names a Python with numpy and safetensors")
}

/// A shipped dump through `StreamWriter`, `xcheck` behind it.
fn sent(home: &Path, more: &str, xcheck: &str) -> Finished {
    std::fs::copy(dump(), home.join("stdin.safetensors")).expect("it is copied");
    let script = format!(
        "{} {ROOT}/reference-scripts/dump/stream_dump.py {more} stdin.safetensors | {} {xcheck}",
        python(),
        env!("CARGO_BIN_EXE_xcheck")
    );
    let output = Command::new("sh").current_dir(home).args(["-c", &script]).output();
    Finished::of(output.expect("it starts"))
}

fn dump() -> String {
    format!("{ROOT}/checkpoints/tiny-llama3/dumps/transformers-f32.safetensors")
}

#[test]
fn what_the_writer_sends_has_the_report_of_the_file() {
    let terminal = Terminal::new();
    let stream = sent(terminal.path(), "", "check --model tiny-llama3 --candidate - --report stream");
    assert_eq!(stream.code, 0, "{}{}", stream.stdout, stream.stderr);
    let check = ["check", "--model", "tiny-llama3", "--candidate", "stdin.safetensors", "--introduced"];
    assert_eq!(terminal.run(&[&check[..], &["--report", "file"]].concat()).code, 0);
    let report = |folder: &str| {
        plain(&terminal.path().join(folder).join("report.json"), ["stdin.safetensors", "stdin"])
    };
    assert_eq!(report("stream"), report("file"));
}

#[test]
fn a_writer_that_dies_leaves_what_it_sent() {
    let terminal = Terminal::new();
    let check = "check --model tiny-llama3 --candidate - --no-report --format json";
    let stream = sent(terminal.path(), "--stop-after 2", check);
    assert_eq!(stream.code, 3, "{}", stream.stderr);
    assert!(stream.stdout.contains("not received: layer 2, head"), "{}", stream.stdout);
}

/// Runs lines of Python beside the writer.
fn run(lines: &str) -> Output {
    let script = format!(
        "import sys, io, numpy as np\nsys.path.insert(0, '{ROOT}/reference-scripts/lib')\n\
         from dump_writer import Record, StreamWriter\n\
         def value(tap, index, layer): return Record(tap, index, layer, 'f32', np.ones((1, 4), 'f4'))\n{lines}"
    );
    Command::new(python()).args(["-c", &script]).output().expect("it starts")
}

#[test]
fn the_writer_refuses_a_layer_that_it_has_sent_and_says_what_to_do() {
    let output = run(
        "writer = StreamWriter(io.BytesIO(), {})\nfor index in range(2):\n  for layer in range(2):\n    \
         writer.add(value('block_out', index, layer))",
    );
    let told = String::from_utf8(output.stderr).expect("text");
    assert!(
        !output.status.success() && told.contains("p1/l00/block_out comes when its layer was sent"),
        "{told}"
    );
    assert!(told.contains("in one pass"), "{told}");
    // The same, layer by layer.
    let output = run(
        "writer = StreamWriter(io.BytesIO(), {})\nfor layer in range(2):\n  for index in range(2):\n    \
         writer.add(value('block_out', index, layer))\nwriter.close()",
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What an engine overwrites after it has shown it is sent as it was shown; no end is marked after an exception.
#[test]
fn the_writer_keeps_what_it_was_shown_and_marks_no_end_after_an_error() {
    let output = run("\
stream, shown = io.BytesIO(), np.ones((1, 4), 'f4')
try:
  with StreamWriter(stream, {}) as writer:
    writer.add(Record('block_out', 0, 0, 'f32', shown))
    shown[:] = 7
    writer.add(value('block_out', 0, 1))
    raise KeyError
except KeyError: pass
sent = stream.getvalue()
assert sent[-16:] == np.ones(4, 'f4').tobytes(), sent[-16:]
size = int.from_bytes(sent[:8], 'little') + 8 + 16
assert len(sent) == size, (len(sent), size)
");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
