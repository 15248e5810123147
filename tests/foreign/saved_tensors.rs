//! What people save: arrays in dicts, lists, archives and folders; and what nobody saves in good faith.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use xcheck::error::Result;
use xcheck::format::Arrays;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::common::torch::{Pickle, Storage, archive};

const SIX: Storage = Storage { class: "FloatStorage", key: 0, elements: 6 };

fn open(name: &str, bytes: &[u8]) -> Result<Arrays> {
    let folder = TempDir::new().expect("a temporary directory");
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("it is written");
    Arrays::open(&path)
}

fn unpickled(pickle: &Pickle) -> Result<Arrays> {
    open("saved.pt", &archive([("data.pkl", &pickle.bytes[..]), ("data/0", &[0; 24])]))
}

fn names(arrays: &Arrays) -> Vec<&str> {
    arrays.tensors.iter().map(|(name, _)| name).collect()
}

fn tensor(pickle: Pickle) -> Pickle {
    pickle.tensor(SIX, 0, &[2, 3], &[3, 1])
}

#[test]
fn saved_pytorch_tensors_are_found_in_dicts_lists_and_tuples() {
    let pickle = Pickle::new().op(b"}").text("layers").op(b"](");
    let pickle = tensor(tensor(pickle)).op(b"\x86").op(b"es"); // a list of one tuple of two
    let pickle = tensor(pickle.int(3)).op(b"s").text("input_ids").op(b"](").int(1).int(5).op(b"es");
    let pickle = pickle.text("loss").op(b"G").op(&1.5f64.to_be_bytes()).op(b"s").text("none").op(b"Ns.");
    let arrays = unpickled(&pickle).expect("it is read");
    assert_eq!(names(&arrays), ["layers.0.0", "layers.0.1", "3", "input_ids"]);
    assert_eq!(arrays.others, ["loss"]);
}

#[test]
fn a_pickled_default_dict_of_lists_is_a_dict() {
    let pickle =
        Pickle::new().global("collections", "defaultdict").global("__builtin__", "list").op(b"\x85R");
    let arrays = unpickled(&tensor(pickle.text("x").op(b"]")).op(b"as.")).expect("it is read");
    assert_eq!(names(&arrays), ["x.0"]);
    let pickle = Pickle::new().global("collections", "defaultdict").global("os", "system").op(b"\x85R.");
    assert!(unpickled(&pickle).is_err());
}

#[test]
fn a_dict_in_itself_and_lists_without_end_are_refused() {
    let own = Pickle::new().op(b"}q\x00").text("own").op(b"h\x00s.");
    let refused = unpickled(&own).expect_err("it never ends").to_string();
    assert!(refused.contains("nested too far"), "{refused}");
    // Each list holds the one before sixteen times.
    let mut shared = tensor(Pickle::new()).op(b"q\x00");
    for depth in 0..12u8 {
        shared = shared.op(b"](");
        for _ in 0..16 {
            shared = shared.op(&[b'h', depth]);
        }
        shared = shared.op(&[b'e', b'q', depth + 1]);
    }
    let refused = unpickled(&shared.op(b".")).expect_err("it is too much").to_string();
    assert!(refused.contains("nested too far"), "{refused}");
}

/// `.npy`, version 1.0, of f32.
fn npy(shape: &[usize]) -> Vec<u8> {
    let shape: String = shape.iter().map(|length| format!("{length},")).collect();
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let elements: usize = shape.split(',').filter_map(|length| length.parse::<usize>().ok()).product();
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(vec![0; elements * 4]);
    bytes
}

fn npz(path: &Path, members: &[(&str, Vec<u8>)]) {
    let mut zip = ZipWriter::new(File::create(path).expect("it is made"));
    for (name, bytes) in members {
        zip.start_file(*name, SimpleFileOptions::default()).expect("a new member");
        zip.write_all(bytes).expect("it is written");
    }
    zip.finish().expect("it is written");
}

#[test]
fn npz_archives_and_folders_of_npy_arrays_are_read() {
    let folder = TempDir::new().expect("a temporary directory");
    let file = folder.path().join("a.npz");
    npz(&file, &[("h.0.npy", npy(&[2, 3])), ("logits.npy", npy(&[4]))]);
    assert_eq!(names(&Arrays::open(&file).expect("it is read")), ["h.0", "logits"]);
    let arrays = folder.path().join("arrays/layer0");
    fs::create_dir_all(&arrays).expect("it is made");
    fs::write(arrays.join("q.npy"), npy(&[2, 3])).expect("it is written");
    fs::write(arrays.join("notes.txt"), "x").expect("it is written");
    let folder: PathBuf = folder.path().join("arrays");
    assert_eq!(names(&Arrays::open(&folder).expect("it is read")), ["layer0/q"]);
}

#[test]
fn an_archive_that_unpacks_without_end_is_refused() {
    let folder = TempDir::new().expect("a temporary directory");
    let file = folder.path().join("bomb.npz");
    npz(&file, &[("x.npy", npy(&[1 << 23]))]);
    let refused = Arrays::open(&file).expect_err("it is a bomb").to_string();
    assert!(refused.contains("larger than a valid archive of its size can hold"), "{refused}");
}

#[test]
fn damage_never_panics() {
    let pickle = tensor(Pickle::new().op(b"}").text("x").op(b"](")).op(b"es.");
    let whole = archive([("data.pkl", &pickle.bytes[..]), ("data/0", &[0; 24])]);
    for at in 0..pickle.bytes.len() {
        for bits in [1u8, 0x80, 0xff] {
            let mut bytes = pickle.bytes.clone();
            bytes[at] ^= bits;
            let _ = unpickled(&Pickle { bytes });
        }
    }
    for at in (0..whole.len()).step_by(7) {
        let _ = open("cut.pt", &whole[..at]);
    }
}
