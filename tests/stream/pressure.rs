//! The producer waits while a message is judged, and neither side holds more than a message.

use std::fs;
use std::io::{Read, Write, pipe};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use xcheck::format::Messages;

use super::bed::{MOST, changed, end, message, messages, of_layers};
use crate::common::reference_of;

/// More than a pipe takes in by itself.
const LARGE: usize = 1 << 20;

/// A message of so many bytes of data.
fn of_size(bytes: usize) -> Vec<u8> {
    let header = format!(r#"{{"x":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![1; bytes]].concat()
}

/// Counts what is taken.
struct Counted<R>(R, Arc<AtomicUsize>);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read(into)?;
        self.1.fetch_add(read, Ordering::SeqCst);
        Ok(read)
    }
}

#[test]
fn no_byte_of_the_next_message_is_taken_before_it_is_asked_for() {
    let sent: Vec<Vec<u8>> = [10, 70_000, 3, LARGE].map(of_size).into();
    let (taken, mut expected) = (Arc::new(AtomicUsize::new(0)), 0);
    let input = std::io::Cursor::new([sent.concat(), end()].concat());
    let input = Box::new(Counted(input, taken.clone()));
    let mut messages = Messages::new(input, Path::new("a pipe"), MOST);
    for message in &sent {
        let source = messages.take().expect("it is whole").expect("it is there");
        assert_eq!(*source.data.whole(), **message);
        expected += message.len();
        assert_eq!(taken.load(Ordering::SeqCst), expected);
    }
    assert!(messages.take().expect("the end is marked").is_none());
}

#[test]
fn a_producer_cannot_finish_a_message_before_the_one_before_it_is_let_go() {
    let (reader, mut writer) = pipe().expect("a pipe");
    let written = Arc::new(AtomicUsize::new(0));
    let progress = written.clone();
    let producer = thread::spawn(move || {
        for _ in 0..3 {
            writer.write_all(&of_size(LARGE)).expect("somebody reads");
            progress.fetch_add(1, Ordering::SeqCst);
        }
        writer.write_all(&end()).expect("somebody reads");
    });
    let mut messages = Messages::new(Box::new(reader), Path::new("a pipe"), MOST);
    for taken in 1..=3 {
        messages.take().expect("it is whole").expect("it is there");
        // While it is judged, the producer is stopped in the middle of the next: it has all the time it may want.
        while written.load(Ordering::SeqCst) < taken {
            thread::yield_now();
        }
        thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(written.load(Ordering::SeqCst), taken);
        assert!(taken == 3 || !producer.is_finished());
    }
    assert!(messages.take().expect("the end is marked").is_none());
    producer.join().expect("it has written all");
}

/// `xcheck check` with a pipe, of a folder for what fails.
fn checking(home: &Path) -> (Child, ChildStdin) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xcheck"));
    command.current_dir(home).args(["check", "--model", "tiny-llama3", "--candidate", "-", "--no-report"]);
    command.args(["--keep-failing", "kept"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let input = child.stdin.take().expect("it is piped");
    (child, input)
}

/// When a message has been written whole, but for what a pipe holds, the one before it has been judged: what failed of
/// it is in its folder.
#[test]
fn a_message_is_judged_before_the_next_is_taken() {
    let home = tempfile::tempdir().expect("a folder");
    let dump = reference_of("tiny-llama3", "transformers-f32");
    let wrong = changed(messages(&dump, 3, 1).remove(0), "p0/l00/q", |_, value| value * 1.5);
    let next = padded(message(&dump, &of_layers(1, 1, 3)), LARGE);
    let (mut child, mut input) = checking(home.path());
    input.write_all(&wrong).expect("it is read");
    input.write_all(&next).expect("it is read");
    assert!(home.path().join("kept/embeddings_layer-0.safetensors").is_file());
    drop(input);
    assert_eq!(child.wait().expect("it ends").code(), Some(1), "what failed fails");
    let kept = fs::read_dir(home.path().join("kept")).expect("it is there").count();
    assert_eq!(kept, 1, "what passes is dropped");
    // What is kept is the message, and a dump.
    let bytes = fs::read(home.path().join("kept/embeddings_layer-0.safetensors")).expect("it is there");
    assert_eq!(bytes, wrong);
}

/// The same message with an array more that nobody reads.
fn padded(message: Vec<u8>, bytes: usize) -> Vec<u8> {
    let len = u64::from_le_bytes(message[..8].try_into().expect("eight bytes")) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&message[8..8 + len]).expect("a header");
    let start = message.len() - 8 - len;
    header["padding"] =
        serde_json::json!({"dtype": "U8", "shape": [bytes], "data_offsets": [start, start + bytes]});
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length, header.as_bytes(), &message[8 + len..], &vec![0; bytes]].concat()
}

/// A hundred megabytes through the pipe, in messages of one: that is what is held.
#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_length_of_a_stream() {
    let dump = reference_of("tiny-llama3", "transformers-f32");
    let sent = messages(&dump, 3, 1);
    let peak = |times: usize| {
        let home = tempfile::tempdir().expect("a folder");
        let (mut child, mut input) = checking(home.path());
        input.write_all(&sent[0]).expect("it is read");
        // A message that came before is read and hashed like any other, and judged to be the same.
        for _ in 0..times {
            input.write_all(&padded(sent[1].clone(), LARGE)).expect("it is read");
        }
        input.write_all(&sent[2]).expect("it is read");
        input.write_all(&padded(sent[3].clone(), LARGE)).expect("it is read");
        // All but the end has been taken, but for what a pipe holds.
        let peak = peak_of(child.id());
        input.write_all(&end()).expect("it is read");
        drop(input);
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
        peak
    };
    let (short, long) = (peak(1), peak(100));
    assert!(long < short + (16 << 20), "{short} bytes for 4 messages, {long} for 103");
}

/// The most memory that a process has had.
#[cfg(target_os = "linux")]
fn peak_of(id: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux tells it");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}
