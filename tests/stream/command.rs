//! Streams as a person pipes them.

use std::path::Path;
use std::process::{Command, Stdio};

use super::bed::{end, message_of, messages, plain};
use crate::common::finished::Finished;
use crate::common::reference_of;
use crate::common::terminal::Terminal;
use xcheck::checkpoint::Point;
use xcheck::dump::Dump;

/// Runs a command with these bytes on standard input.
fn piped(home: &Path, arguments: &[&str], bytes: &[u8]) -> Finished {
    let file = home.join("bytes");
    std::fs::write(&file, bytes).expect("it is written");
    let shell = format!("cat {} | {} {}", file.display(), env!("CARGO_BIN_EXE_xcheck"), arguments.join(" "));
    let output = Command::new("sh").current_dir(home).args(["-c", &shell]).output();
    Finished::of(output.expect("it starts"))
}

/// A dump as one file named like the stream, and as the bytes of the stream.
fn both(home: &Path, dump: &Dump) -> Vec<u8> {
    let whole = messages(dump, 3, 4).remove(0);
    std::fs::write(home.join("stdin.safetensors"), whole).expect("it is written");
    [messages(dump, 3, 1).concat(), end()].concat()
}

/// The report of a stream is the one of the file, judged so, field by field.
#[test]
fn a_piped_dump_has_the_report_of_its_file() {
    let engine =
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/engines/tiny-llama3/mlx-lm-f32.safetensors");
    let engine = Dump::open(engine.as_ref()).expect("it ships");
    let right = reference_of("tiny-llama3", "transformers-f32");
    for (dump, mode, code) in
        [(&right, "--introduced", 0), (&right, "--from-reference", 0), (&engine, "--introduced", 1)]
    {
        let terminal = Terminal::new();
        let bytes = both(terminal.path(), dump);
        for (command, option) in [("check", "--candidate"), ("run", "--reference")] {
            let asked = [command, "--model", "tiny-llama3", mode];
            let (of_file, of_stream) = (format!("{command}-file"), format!("{command}-stream"));
            let file =
                terminal.run(&[&asked[..], &[option, "stdin.safetensors", "--report", &of_file]].concat());
            let stream = piped(
                terminal.path(),
                &[&asked[..], &[option, "-", "--report", &of_stream]].concat(),
                &bytes,
            );
            assert_eq!((file.code, stream.code), (code, code), "{}{}", stream.stdout, stream.stderr);
            let report = |folder: &str| {
                plain(&terminal.path().join(folder).join("report.json"), ["stdin.safetensors", "stdin"])
            };
            assert_eq!(report(&of_stream), report(&of_file), "{command} {mode}");
        }
        // An audit takes one as well; what is not said is --introduced.
        let audit = piped(terminal.path(), &["audit", "-", "--model", "tiny-llama3", "--no-report"], &bytes);
        assert_eq!(audit.code, code, "{}{}", audit.stdout, audit.stderr);
    }
}

#[cfg(unix)]
#[test]
fn a_path_that_is_a_fifo_is_read_as_a_stream() {
    let terminal = Terminal::new();
    let bytes = both(terminal.path(), &reference_of("tiny-llama3", "transformers-f32"));
    let made = Command::new("mkfifo").arg(terminal.path().join("fifo")).status().expect("it starts");
    assert!(made.success());
    let fifo = terminal.path().join("fifo");
    let producer = std::thread::spawn(move || std::fs::write(fifo, bytes));
    let finished =
        terminal.run(&["check", "--model", "tiny-llama3", "--candidate", "fifo", "--format", "json"]);
    producer.join().expect("no panic").expect("it has written all");
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(finished.stdout.contains("\"mode\": \"local\""), "{}", finished.stdout);
}

#[test]
fn a_producer_that_dies_ends_in_exit_code_3_with_the_layers_that_are_missing() {
    let terminal = Terminal::new();
    let bytes = both(terminal.path(), &reference_of("tiny-llama3", "transformers-f32"));
    let check = ["check", "--model", "tiny-llama3", "--candidate", "-", "--report", "r", "--format", "json"];
    let finished = piped(terminal.path(), &check, &bytes[..bytes.len() / 2]);
    assert_eq!(finished.code, 3, "{}", finished.stderr);
    assert!(
        finished.stdout.contains("the producer stopped in the middle; not received: "),
        "{}",
        finished.stdout
    );
    assert!(terminal.path().join("r/report.md").is_file());
    // Of nothing there is no verdict.
    let finished = piped(terminal.path(), &check[..7], &[]);
    assert_eq!((finished.code, finished.stdout.as_str()), (2, ""));
    assert!(finished.stderr.contains("the producer stopped too early"), "{}", finished.stderr);
}

#[test]
fn a_message_that_is_too_large_is_refused_with_what_to_do() {
    let terminal = Terminal::new();
    let bytes = both(terminal.path(), &reference_of("tiny-llama3", "transformers-f32"));
    let check = ["check", "--model", "tiny-llama3", "--candidate", "-", "--no-report", "--largest-message"];
    let finished = piped(terminal.path(), &[&check[..], &["20kB"]].concat(), &bytes);
    assert_eq!(finished.code, 2, "{}", finished.stdout);
    assert!(finished.stderr.contains("expected at most 20000; send fewer layers"), "{}", finished.stderr);
    assert_eq!(piped(terminal.path(), &[&check[..], &["20MB"]].concat(), &bytes).code, 0);
}

#[test]
fn what_a_stream_cannot_be_asked_is_refused() {
    let terminal = Terminal::new();
    std::fs::create_dir(terminal.path().join("full")).expect("a new folder");
    std::fs::write(terminal.path().join("full/a"), "").expect("it is written");
    let check = |more: &[&'static str]| [&["check", "--model", "tiny-llama3", "--candidate"], more].concat();
    let refused: [(Vec<&str>, &str); 7] = [
        (check(&["-", "--total"]), "--total: accumulated errors need a run of the whole model"),
        (check(&["-", "--shard", "1/2"]), "a stream cannot be sharded"),
        (check(&["-", "--candidate", "tiny-llama3/transformers-f32"]), "a stream must be the only dump"),
        (check(&["tiny-llama3/transformers-f32", "--keep-failing", "new"]), "need a stream"),
        (check(&["-", "--keep-failing", "full"]), "full is not empty"),
        (check(&["-", "--largest-message", "5m"]), "expected e.g. 32GB"),
        (
            vec!["run", "--model", "tiny-llama3", "--reference", "-", "--tokens", "1"],
            "cannot be used with a stream",
        ),
    ];
    for (arguments, expected) in refused {
        let finished = Command::new(env!("CARGO_BIN_EXE_xcheck"))
            .current_dir(terminal.path())
            .args(&arguments)
            .stdin(Stdio::null())
            .output();
        let finished = Finished::of(finished.expect("it starts"));
        assert_eq!(finished.code, 2, "{arguments:?}");
        assert!(finished.stderr.contains(expected), "{expected}: {}", finished.stderr);
    }
}

/// Which numerics explain it best shows in the whole alone.
#[test]
fn a_stream_that_does_not_say_how_it_was_computed_is_refused_with_what_to_say() {
    let terminal = Terminal::new();
    let dump =
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/engines/tiny-llama2/candle-gguf-q8_0.safetensors");
    let bytes = [std::fs::read(dump).expect("it ships"), end()].concat();
    let check = ["check", "--model", "tiny-llama2", "--candidate", "-", "--no-report"];
    let finished = piped(terminal.path(), &check, &bytes);
    assert_eq!(finished.code, 2, "{}", finished.stdout);
    let expected = "a stream: the dump does not state its arithmetic for these weights";
    assert!(finished.stderr.contains(expected), "{}", finished.stderr);
    // A whole dump is a stream of one message.
    let stated = ["--numerics", "llama.cpp", "--no-causes"];
    let told = piped(terminal.path(), &[&check[..], &stated].concat(), &bytes);
    assert_ne!(told.code, 2, "{}", told.stderr);
}

/// No layer has an array that shows the type. The logits of the last message do, and they are no bf16 numbers.
#[test]
fn a_stream_whose_values_contradict_bf16_does_not_pass() {
    let dump = reference_of("tiny-llama3", "transformers-f32");
    let streamed = |dtype: &str| {
        let mut manifest = dump.manifest.clone();
        manifest.producer.settings.insert("dtype".to_owned(), dtype.into());
        let is_silent = |point| matches!(point, Point::Embed | Point::AttnScores | Point::AttnWeights);
        let message =
            message_of(&dump, &manifest, &|site| is_silent(site.point) || site.point == Point::Logits);
        let bytes = [message, end()].concat();
        let terminal = Terminal::new();
        let check = ["check", "--model", "tiny-llama3", "--candidate", "-", "--no-report", "--no-causes"];
        piped(terminal.path(), &check, &bytes)
    };
    let right = streamed("f32");
    assert_eq!(right.code, 0, "{}{}", right.stdout, right.stderr);
    let contradicted = streamed("bf16");
    assert_eq!(contradicted.code, 2, "{}{}", contradicted.stdout, contradicted.stderr);
    assert!(contradicted.stderr.contains("no array has bf16 values"), "{}", contradicted.stderr);
}
