//! Checkpoints that the real torch wrote, against what torch itself loads from them; and hostile ones.

use std::path::PathBuf;

use xcheck::error::{Error, FormatError, Result};
use xcheck::format::{FileBytes, Format, Pytorch, Safetensors};
use zip::CompressionMethod;

use super::memory::peak_of;
use super::{assert_refused, assert_refused_as, assert_says, source};
use crate::common::torch::{Pickle, Storage, archive, archive_with, row_major};

fn path(file: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/data/pytorch", file].iter().collect()
}

fn open(file: &str) -> FileBytes {
    FileBytes::open(&path(file)).expect("it is committed")
}

fn read(file: &str) -> Result<Pytorch> {
    Pytorch::read(&open(file))
}

// ---- what torch writes ----------------------------------------------------------------------------------

#[test]
fn every_tensor_is_what_torch_loads_from_the_file() {
    for name in ["plain", "protocol-5", "module"] {
        let ours = read(&format!("{name}.bin")).unwrap().tensors;
        let theirs = Safetensors::read(&open(&format!("{name}.safetensors"))).unwrap().tensors;
        assert_eq!(ours.len(), theirs.len(), "{name}");
        for (tensor, theirs) in theirs.iter() {
            let ours = ours.get(tensor).unwrap_or_else(|| panic!("{name}: no {tensor}"));
            assert_eq!((ours.dtype, &ours.shape), (theirs.dtype, &theirs.shape), "{name}: {tensor}");
            assert_eq!(ours.data, theirs.data, "{name}: {tensor}");
        }
    }
}

#[test]
fn tensors_come_in_the_order_of_the_state_dict() {
    let tensors = read("module.bin").unwrap().tensors;
    let names: Vec<&str> = tensors.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["steps", "embed.weight", "head.weight", "head.bias"]);
}

#[test]
fn tensors_are_views_of_the_file_and_tied_ones_the_same_view() {
    let file = open("plain.bin");
    let tensors = Pytorch::read(&file).unwrap().tensors;
    let place = |name: &str| tensors.get(name).unwrap().data.as_ptr();
    let inside = file.data.as_ptr_range();
    assert!(inside.contains(&place("layout.base")) && inside.contains(&place("layout.rows")));
    assert_eq!(place("layout.base"), place("layout.tied"));
    assert!(!inside.contains(&place("layout.transposed")), "it stands in another order there");
}

#[test]
fn the_real_files_are_told_from_archives_of_arrays() {
    assert_eq!(Format::detect(&open("plain.bin")).unwrap(), Format::Pytorch);
    let Err(Error::Format(FormatError::WrongMagic { found, hint, .. })) = Format::detect(&open("legacy.bin"))
    else {
        panic!("the older form is refused");
    };
    assert_eq!(found, "a PyTorch checkpoint in the format before version 1.6");
    assert_says(hint, "_use_new_zipfile_serialization");
}

#[test]
fn code_is_refused_by_the_name_it_would_run() {
    for (file, name) in [
        ("hostile.bin", "posix.system"),
        ("hostile-protocol-4.bin", "posix.system"),
        ("whole-module.bin", "torch.nn.modules.linear.Linear"),
        ("sparse.bin", "torch._utils._rebuild_sparse_tensor"),
        ("complex.bin", "torch.ComplexFloatStorage"),
        ("float8.bin", "torch.float8_e4m3fn"),
    ] {
        let error = read(file).unwrap_err();
        assert!(
            matches!(&error, Error::Format(FormatError::ForeignPickle { name: found, .. }) if found == name),
            "{file}: {error}"
        );
        assert_says(&error.to_string(), "data.pkl: byte");
    }
}

#[test]
fn checkpoints_of_more_than_tensors_are_refused_with_what_to_do() {
    let refusal = |file: &str| read(file).unwrap_err().to_string();
    assert_says(&refusal("nested.bin"), "'epoch' is a whole number, expected a dict of tensors by name");
    assert_says(&refusal("nested.bin"), "save only its state_dict()");
    assert_says(&refusal("list.bin"), "its content is a list");
    assert_says(&refusal("negated.bin"), "resolve_neg");
}

// ---- hostile pickles ------------------------------------------------------------------------------------

const FLOATS: [u8; 24] = [0; 24];
const SIX: Storage = Storage { class: "FloatStorage", key: 0, elements: 6 };

/// Reads a pickle beside one storage of six floats.
fn unpickle(pickle: &Pickle) -> Result<Pytorch> {
    Pytorch::read(&source(archive([("data.pkl", &pickle.bytes[..]), ("data/0", &FLOATS)])))
}

/// A state dict of one tensor.
fn one(storage: Storage, offset: i64, shape: &[i64], strides: &[i64]) -> Pickle {
    Pickle::new().op(b"}").text("w").tensor(storage, offset, shape, strides).op(b"s.")
}

#[test]
fn the_builder_writes_what_is_read() {
    let tensors = unpickle(&one(SIX, 0, &[2, 3], &[3, 1])).unwrap().tensors;
    assert_eq!(tensors.get("w").unwrap().shape, [2, 3]);
    assert_eq!(row_major(&[2, 3, 4]), [12, 4, 1]);
}

#[test]
fn every_function_but_the_few_is_refused_wherever_it_stands() {
    for (module, name) in [
        ("os", "system"),
        ("builtins", "eval"),
        ("torch.storage", "_load_from_bytes"),
        ("torch._utils", "_rebuild_wrapper_subclass"),
        ("torch", "load"),
        ("collections", "OrderedDict.fromkeys"),
        ("", ""),
        ("torch", "FloatStorage\u{1b}[31m"),
    ] {
        let named = Pickle::new().op(b"}").global(module, name).op(b"(tR.");
        assert_refused!(
            unpickle(&named),
            FormatError::ForeignPickle { offset: 3, .. },
            "byte 3",
            "never run"
        );
        let stacked = Pickle::new().op(b"}").text(module).text(name).op(b"\x93)R.");
        assert_refused!(unpickle(&stacked), FormatError::ForeignPickle { .. }, "never run");
    }
}

#[test]
fn unknown_opcodes_are_refused_with_their_place() {
    // INST, OBJ, NEWOBJ_EX, PERSID, EXT1, NEXT_BUFFER, DUP, POP, and no opcode at all.
    for byte in [b'i', b'o', 0x92, b'P', 0x82, 0x97, b'2', b'0', 0xff] {
        let pickle = Pickle::new().op(b"}N").op(&[byte]).op(b".");
        assert_refused!(unpickle(&pickle), FormatError::BadBytes { offset: 4, .. }, format!("{byte:#04x}"));
    }
    // NEWOBJ makes objects of the classes that results of transformers have, of no other value.
    let pickle = Pickle::new().op(b"}N\x81.");
    assert_refused!(unpickle(&pickle), FormatError::BadBytes { offset: 4, .. }, "NEWOBJ");
}

#[test]
fn opcodes_that_find_something_else_than_they_need_are_refused() {
    for (ops, part) in [
        (&b"."[..], "STOP is applied to too few"),
        (b"\x85.", "TUPLE1"),
        (b"t.", "TUPLE is without a mark"),
        (b"N(\x85.", "TUPLE1"),
        (b"NNNs.", "SETITEM is applied to values of wrong types"),
        (b"}(Nu.", "SETITEMS is given a key without a value"),
        (b"(NNu.", "SETITEMS is applied to values of wrong types"),
        (b"Na.", "APPEND"),
        (b"q\x00.", "BINPUT"),
        (b"h\x07.", "BINGET is for value 7"),
        (b"NN\x93.", "STACK_GLOBAL"),
        (b"NQ.", "BINPERSID"),
        (b"NN\x52.", "REDUCE is a call of None"),
        (b"NNb.", "BUILD is applied to None"),
        (b"ctorch\nSize\nNR.", "REDUCE is a call of Size"),
        (b"\x80\x07.", "PROTO is 7"),
        (b"X\x01\x00\x00\x00\xff.", "BINUNICODE is not UTF-8"),
        (b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.", "LONG1 is a number of 9 bytes"),
        (b"}K\x01Ns.", "the name of an entry is a whole number"),
        (b"}X\x01\x00\x00\x00aNs.", "'a' is None"),
    ] {
        assert_refused!(unpickle(&Pickle::new().op(ops)), FormatError::BadBytes { .. }, part);
    }
}

#[test]
fn a_pickle_that_ends_early_is_truncated() {
    let whole = one(SIX, 0, &[6], &[1]).bytes;
    for len in 0..whole.len() {
        let pickle = Pickle { bytes: whole[..len].to_vec() };
        assert_refused!(unpickle(&pickle), FormatError::Truncated { .. }, "data.pkl");
    }
}

#[test]
fn deep_nesting_ends_in_a_message() {
    let tuples = Pickle::new().op(b"N").op(&[0x85; 1_000_000]).op(b".");
    assert_refused!(unpickle(&tuples), FormatError::BadBytes { .. }, "a tuple");
    let dicts = Pickle::new().op(&b"}K\x00".repeat(10_000)).op(b"N").op(&b"s".repeat(10_000)).op(b".");
    assert_refused!(unpickle(&dicts), FormatError::BadBytes { .. }, "the name of an entry");
}

#[test]
fn what_is_remembered_and_repeated_costs_no_memory() {
    // Each tuple holds the one before it eight times: 8 to the power of 100 values, if they were written out.
    let level = b"q\x00((h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00tt";
    let laughs = Pickle::new().op(b"N").op(&level.repeat(100)).op(b".");
    let (result, peak) = peak_of(|| unpickle(&laughs));
    assert_refused!(result, FormatError::BadBytes { .. }, "a tuple");
    assert!(peak < 200_000, "{peak}");
}

#[test]
fn bombs_are_refused_before_they_fill_the_memory() {
    for (ops, count) in [(&b"N"[..], 100_000), (b"(", 100_000), (b"}", 100_000), (b")q\x00", 100_000)] {
        let pickle = Pickle::new().op(&ops.repeat(count)).op(b".");
        assert_refused!(unpickle(&pickle), FormatError::BadBytes { .. }, "at most 65536");
    }
    let tuples = Pickle::new().op(b"N").op(&[0x85; 5_000_000]).op(b".");
    assert_refused!(unpickle(&tuples), FormatError::BadBytes { .. }, "at most 4194304", "shards");
}

#[test]
fn announced_sizes_are_not_believed() {
    let text = Pickle::new().op(b"\x8d").op(&(1u64 << 60).to_le_bytes()).op(b"abc.");
    let (result, peak) = peak_of(|| unpickle(&text));
    assert_refused!(result, FormatError::Truncated { .. }, "a text");
    assert!(peak < 10_000, "{peak}");
    let storage = |elements| Storage { elements, ..SIX };
    for elements in [0, 5, 7, 1 << 60, (1 << 62) + 6, i64::MAX] {
        let pickle = one(storage(elements), 0, &[6], &[1]);
        assert_refused!(unpickle(&pickle), FormatError::BadTensor { .. }, "the 24 bytes of 'data/0'");
    }
    for shape in [[1 << 40, 1 << 40], [1 << 62, 2]] {
        assert_refused!(unpickle(&one(SIX, 0, &shape, &[1, 1])), FormatError::BadTensor { .. }, "too large");
    }
    for (storage, offset, size, stride) in
        [(storage(-6), 0, 6, 1), (SIX, -1, 6, 1), (SIX, 0, -6, 1), (SIX, 5, 6, -1)]
    {
        let pickle = one(storage, offset, &[size], &[stride]);
        assert_refused!(unpickle(&pickle), FormatError::BadBytes { .. }, "expected");
    }
}

#[test]
fn places_outside_the_storage_are_refused() {
    for (offset, shape, strides) in [
        (1, &[6][..], &[1][..]),
        (0, &[7], &[1]),
        (0, &[2, 3], &[4, 1]),
        (0, &[3, 2], &[1, 4]),
        (6, &[], &[]),
        (7, &[0], &[1]),
        (i64::MAX, &[2], &[1]),
        (0, &[2], &[i64::MAX]),
        (0, &[3], &[i64::MAX]),
    ] {
        let pickle = one(SIX, offset, shape, strides);
        assert_refused!(
            unpickle(&pickle),
            FormatError::BadTensor { .. },
            "tensor 'w'",
            "storage of 6 elements"
        );
    }
    assert!(unpickle(&one(SIX, 6, &[0, 9], &[9, 1])).is_ok(), "an empty tensor may stand at the end");
}

#[test]
fn shapes_that_do_not_describe_a_tensor_are_refused() {
    for (shape, strides) in [(&[2, 3][..], &[1][..]), (&[1; 9], &[1; 9])] {
        assert_refused!(
            unpickle(&one(SIX, 0, shape, strides)),
            FormatError::BadBytes { .. },
            "RebuildTensorV2"
        );
    }
}

#[test]
fn copies_are_no_larger_than_the_file() {
    let repeated = one(SIX, 0, &[1 << 40], &[0]);
    assert_refused!(
        unpickle(&repeated),
        FormatError::BadTensor { .. },
        "no larger than the file",
        "contiguous"
    );
    let mut many = Pickle::new().op(b"}(");
    for index in 0..1000 {
        many = many.text(&index.to_string()).tensor(SIX, 0, &[3, 2, 100], &[1, 3, 0]);
    }
    let (result, peak) = peak_of(|| unpickle(&many.op(b"u.")));
    assert_refused!(result, FormatError::BadTensor { .. }, "no larger than the file");
    assert!(peak < 3_000_000, "{peak}");
}

#[test]
fn a_name_that_stands_twice_is_refused() {
    let pickle = Pickle::new().op(b"}(").text("w").tensor(SIX, 0, &[6], &[1]);
    let pickle = pickle.text("w").tensor(SIX, 0, &[1], &[1]).op(b"u.");
    assert_refused!(unpickle(&pickle), FormatError::Duplicate { .. }, "second tensor 'w'");
}

// ---- hostile archives -----------------------------------------------------------------------------------

#[test]
fn archives_that_torch_does_not_write_are_refused() {
    let pickle = &one(SIX, 0, &[6], &[1]).bytes[..];
    let read = |bytes: Vec<u8>| Pytorch::read(&source(bytes));
    let sound = [("data.pkl", pickle), ("data/0", &FLOATS)];
    assert!(read(archive(sound)).is_ok());
    let packed = archive_with(CompressionMethod::Deflated, sound);
    assert_refused_as!(
        read(packed),
        Error::BadContainer { .. },
        "'archive/data.pkl': is compressed",
        "zip -0"
    );
    assert_refused_as!(
        read(archive([("data.pkl", pickle)])),
        Error::BadContainer { .. },
        "'archive/data/0': is missing"
    );
    assert_refused_as!(
        read(archive([("data/0", &FLOATS[..])])),
        Error::BadContainer { .. },
        "no folder of the archive"
    );
    let foreign = [("byteorder", &b"big"[..])].into_iter().chain(sound);
    assert_refused!(read(archive(foreign)), FormatError::BadBytes { .. }, "'big'", "little-endian machine");
    assert_refused_as!(read(b"PK\x03\x04".to_vec()), Error::BadContainer { .. }, "PyTorch");
}
