//! Damaged copies of sound files: whatever the damage, a reader gives back a file whose promises hold or one
//! message, and never holds more memory than [`bound`].

use std::path::Path;
use std::sync::LazyLock;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::Index;
use xcheck::Result;
use xcheck::format::{FileBytes, Format, Gguf, Llama2cFile, Pytorch, Safetensors, TensorFile, npy};
use xcheck::weight::{DType, StoredTensor};

use super::builder::GgufBuilder;
use super::memory::peak_of;
use super::{FILE, assert_is_a_message, read_npy};

/// A sound file, and the length of the part whose damage matters most.
struct Sample {
    bytes: Vec<u8>,
    header: usize,
}

static GGUF: LazyLock<Vec<Sample>> = LazyLock::new(|| {
    let built = GgufBuilder::sample();
    let built = Sample { bytes: built.build(), header: built.data_start() };
    vec![built, real("tiny-llama2-q8_0.gguf", gguf_header), real("tiny-llama2-f16.gguf", gguf_header)]
});

static SAFETENSORS: LazyLock<Vec<Sample>> =
    LazyLock::new(|| vec![real("hf/model.safetensors", safetensors_header)]);

/// Every byte of these matters.
static PYTORCH: LazyLock<Vec<Sample>> = LazyLock::new(|| {
    let names = ["plain.bin", "protocol-5.bin", "module.bin"];
    let path = |name| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pytorch/").to_owned() + name;
    let read = |name| std::fs::read(path(name)).unwrap();
    names.map(read).map(|bytes| Sample { header: bytes.len(), bytes }).into()
});

static LLAMA2C: LazyLock<Vec<Sample>> = LazyLock::new(|| {
    let read = |file| std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/").to_owned() + file).unwrap();
    let sample = |(file, header)| Sample { bytes: read(file), header };
    let v0 = ("checkpoints/tiny-llama2c/tiny-llama2c-v0.bin", 28);
    let v1 = ("tests/data/llama2c/tiny-llama2c-v1.bin", 256);
    let v2 = ("checkpoints/tiny-llama2c/tiny-llama2c-v2.bin", 256);
    [v0, v1, v2].map(sample).into()
});

static NPY: LazyLock<Vec<Sample>> = LazyLock::new(|| {
    let mut bytes =
        b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }".to_vec();
    bytes.resize(127, b' ');
    bytes.push(b'\n');
    bytes.extend([0; 24]);
    read_npy(bytes.clone()).unwrap();
    vec![Sample { bytes, header: 128 }]
});

fn real(file: &str, header: fn(&FileBytes) -> usize) -> Sample {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2/").to_owned() + file;
    let source = FileBytes::open(Path::new(&path)).unwrap();
    Sample { bytes: source.data.to_vec(), header: header(&source) }
}

/// The data of the first tensor starts where the header ends.
fn gguf_header(source: &FileBytes) -> usize {
    let tensors = Gguf::read(source).unwrap().tensors;
    let start = source.data.as_ptr() as usize;
    tensors.iter().map(|(_, tensor)| tensor.data.as_ptr() as usize - start).min().unwrap()
}

fn safetensors_header(source: &FileBytes) -> usize {
    8 + u64::from_le_bytes(*source.data.first_chunk().unwrap()) as usize
}

/// One way to damage a file. Positions are drawn from the header unless the name says otherwise.
#[derive(Clone, Debug)]
enum Damage {
    Bytes(Vec<(Index, u8)>),
    Bits(Vec<(Index, u8)>),
    Number(Index, u64),
    Anywhere(Index, u8),
    Truncate(Index),
    TruncateAnywhere(Index),
    Remove(Index, usize),
    Repeat(Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<Index>;
    let some = |kind| prop::collection::vec((any::<Index>(), kind), 1..4);
    let telling = prop::sample::select(vec![
        0,
        1,
        7,
        255,
        1 << 16,
        u64::from(u32::MAX),
        1 << 32,
        1 << 40,
        1 << 61,
        i64::MAX as u64,
        u64::MAX - 31,
        u64::MAX,
    ]);
    prop_oneof![
        4 => some(any::<u8>().boxed()).prop_map(Damage::Bytes),
        4 => some((0..8u8).boxed()).prop_map(Damage::Bits),
        4 => (index(), telling).prop_map(|(at, number)| Damage::Number(at, number)),
        1 => (index(), any::<u8>()).prop_map(|(at, byte)| Damage::Anywhere(at, byte)),
        2 => index().prop_map(Damage::Truncate),
        1 => index().prop_map(Damage::TruncateAnywhere),
        2 => (index(), 1..100usize).prop_map(|(at, len)| Damage::Remove(at, len)),
        2 => (index(), 1..100usize).prop_map(|(at, len)| Damage::Repeat(at, len)),
    ]
}

impl Damage {
    fn apply(&self, sample: &Sample) -> Vec<u8> {
        let mut bytes = sample.bytes.clone();
        let part = |at: &Index, len: usize| {
            let at = at.index(sample.header);
            at..(at + len).min(sample.header)
        };
        match self {
            Damage::Bytes(changes) => {
                changes.iter().for_each(|(at, byte)| bytes[at.index(sample.header)] = *byte);
            }
            Damage::Bits(changes) => {
                changes.iter().for_each(|(at, bit)| bytes[at.index(sample.header)] ^= 1 << bit);
            }
            Damage::Number(at, number) => {
                let range = part(at, 8);
                let len = range.len();
                bytes[range].copy_from_slice(&number.to_le_bytes()[..len]);
            }
            Damage::Anywhere(at, byte) => bytes[at.index(sample.bytes.len())] = *byte,
            Damage::Truncate(at) => bytes.truncate(at.index(sample.header)),
            Damage::TruncateAnywhere(at) => bytes.truncate(at.index(sample.bytes.len())),
            Damage::Remove(at, len) => drop(bytes.drain(part(at, *len))),
            Damage::Repeat(at, len) => {
                let range = part(at, *len);
                let copy = bytes[range.clone()].to_vec();
                bytes.splice(range.start..range.start, copy);
            }
        }
        bytes
    }
}

/// The most memory that reading a file of this length may hold at once: the room for a message, and what
/// the densest file asks for (5.6 times its length was measured below).
fn bound(len: usize) -> usize {
    8 * len + 4096
}

/// Reads the damaged bytes, checks the promises, and tells whether the damage was noticed.
fn survives<T>(bytes: Vec<u8>, read: impl Fn(&FileBytes) -> Result<T>, check: impl Fn(T)) -> bool {
    survives_within(bound(bytes.len()), bytes, read, check)
}

fn survives_within<T>(
    bound: usize,
    bytes: Vec<u8>,
    read: impl Fn(&FileBytes) -> Result<T>,
    check: impl Fn(T),
) -> bool {
    let source = FileBytes { path: FILE.into(), data: Bytes::from(bytes).into() };
    let (result, peak) = peak_of(|| read(&source));
    assert!(peak <= bound, "{peak} bytes held for a file of {}", source.data.len());
    if !source.data.is_empty() {
        let _ = Format::detect(&source).inspect_err(assert_is_a_message);
    }
    match result {
        Ok(read) => check(read),
        Err(error) => {
            assert_is_a_message(&error);
            return true;
        }
    }
    false
}

/// What [`StoredTensor`] promises: as many bytes as shape and type ask for.
fn check_tensor(tensor: &StoredTensor) {
    assert_eq!(tensor.dtype.bytes_for(tensor.elements()), Some(tensor.data.len()));
}

fn check_tensors(tensors: &TensorFile) {
    for (name, tensor) in tensors.iter() {
        check_tensor(tensor);
        assert!(std::ptr::eq(tensors.get(name).unwrap(), tensor), "{name} is not found under its name");
    }
}

fn check_gguf(file: Gguf) {
    check_tensors(&file.tensors);
    for (key, value) in file.metadata().iter() {
        assert!(!value.to_string().contains('\n'));
        assert_eq!(file.metadata().get(key).map(std::ptr::from_ref), Some(std::ptr::from_ref(value)));
    }
}

/// One byte of a pickle may make a value or a dict: 77 times the length of a file was measured below.
fn survives_pytorch(bytes: Vec<u8>) -> bool {
    let bound = 96 * bytes.len() + 65536;
    survives_within(bound, bytes, Pytorch::read, |file| check_tensors(&file.tensors))
}

/// The smallest layer takes some 100 bytes, and makes 16 tensors with names.
fn survives_llama2c(bytes: Vec<u8>) -> bool {
    let bound = 64 * bytes.len() + 65536;
    survives_within(bound, bytes, Llama2cFile::read, |file| check_tensors(&file.tensors))
}

fn pick<'s>(samples: &'s [Sample], index: &Index) -> &'s Sample {
    index.get(samples)
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(1024))]

    #[test]
    fn a_damaged_gguf_file_is_sound_or_refused(sample: Index, damage in damage()) {
        survives(damage.apply(pick(&GGUF, &sample)), Gguf::read, check_gguf);
    }

    #[test]
    fn a_damaged_safetensors_file_is_sound_or_refused(sample: Index, damage in damage()) {
        let bytes = damage.apply(pick(&SAFETENSORS, &sample));
        survives(bytes, Safetensors::read, |file| check_tensors(&file.tensors));
    }

    #[test]
    fn a_damaged_pytorch_file_is_sound_or_refused(sample: Index, damage in damage()) {
        survives_pytorch(damage.apply(pick(&PYTORCH, &sample)));
    }

    #[test]
    fn a_damaged_llama2c_file_is_sound_or_refused(sample: Index, damage in damage()) {
        survives_llama2c(damage.apply(pick(&LLAMA2C, &sample)));
    }

    #[test]
    fn a_damaged_npy_file_is_sound_or_refused(sample: Index, damage in damage()) {
        let bytes = damage.apply(pick(&NPY, &sample));
        survives(bytes, |source| npy::read(source, Some(DType::BF16)), |array| check_tensor(&array));
    }

    #[test]
    fn random_bytes_after_a_sound_start_are_sound_or_refused(
        start in prop::sample::select(vec![&b"GGUF\x03\0\0\0"[..], b"\x93NUMPY\x01\0", b"\x40\0\0\0\0\0\0\0{", b""]),
        rest in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let bytes = [start, &rest].concat();
        survives(bytes.clone(), Gguf::read, check_gguf);
        survives(bytes.clone(), Safetensors::read, |file| check_tensors(&file.tensors));
        survives(bytes, |source| npy::read(source, None), |array| check_tensor(&array));
    }
}

#[test]
fn undamaged_files_are_read_within_the_bound() {
    for sample in GGUF.iter() {
        assert!(!survives(sample.bytes.clone(), Gguf::read, check_gguf));
    }
    for sample in PYTORCH.iter() {
        assert!(!survives_pytorch(sample.bytes.clone()));
    }
    for sample in LLAMA2C.iter() {
        assert!(!survives_llama2c(sample.bytes.clone()));
    }
    assert!(!survives(SAFETENSORS[0].bytes.clone(), Safetensors::read, |file| check_tensors(&file.tensors)));
}

/// The costliest honest content: as many things as a file of that length can announce, each as small as can be.
mod the_costliest_files_stay_within_the_bound {
    use super::*;
    use crate::common::torch::{Pickle, Storage, archive};
    use crate::format::builder::{array, strings, value};

    const THINGS: usize = 20_000;

    fn reads(builder: &GgufBuilder) {
        let bytes = builder.build();
        assert!(bytes.len() > 200_000, "a small file would hide behind the constant: {}", bytes.len());
        assert!(!survives(bytes, Gguf::read, check_gguf));
    }

    #[test]
    fn of_keys() {
        let keys =
            (0..THINGS).fold(GgufBuilder::new(), |file, i| file.key(&format!("{i:x}"), value(0, &[0])));
        reads(&keys);
    }

    #[test]
    fn of_tensors() {
        let mut file = GgufBuilder::new().aligned(1);
        for index in 0..THINGS {
            file = file.tensor(&format!("{index:x}"), &[1], 24, 1);
        }
        reads(&file);
    }

    #[test]
    fn of_llama2c() {
        let (layers, group) = (THINGS as u32 / 16, 1);
        let start = [0x616b_3432, 2, 2, 1, layers, 1, 1, 1, 1].map(u32::to_le_bytes).concat();
        let mut bytes = [&start[..], &[1], &u32::to_le_bytes(group)].concat();
        // 22 codes with a scale each and two norms to a layer; the embedding of one token, and the last norm.
        bytes.resize(256 + layers as usize * (22 * 5 + 16) + 2 * 5 + 8, 0);
        assert!(!survives_llama2c(bytes));
    }

    #[test]
    fn of_empty_strings() {
        reads(&GgufBuilder::new().key("k", strings(&[""; 2 * THINGS])));
    }

    #[test]
    fn of_bools() {
        reads(&GgufBuilder::new().key("k", array(7, 400_000, &[1; 400_000])));
    }

    #[test]
    fn of_a_count_that_lies() {
        for count in [(1usize << 20) / 13, (1 << 20) / 32] {
            let mut file = GgufBuilder::new().key("k", array(0, 1 << 20, &[0; 1 << 20]));
            file.key_count = Some(count as u64);
            file.tensor_count = Some(count.min((1 << 20) / 32) as u64);
            assert!(survives(file.build(), Gguf::read, check_gguf));
        }
    }

    #[test]
    fn of_safetensors() {
        let entry = |i| format!(r#""{i:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
        let header = format!("{{{}}}", (0..THINGS).map(entry).collect::<Vec<_>>().join(","));
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        assert!(!survives(bytes, Safetensors::read, |file| check_tensors(&file.tensors)));
    }

    fn unpickles(ops: Vec<u8>) -> bool {
        let pickle = [b"\x80\x02", &ops[..], b"."].concat();
        survives_pytorch(archive([("data.pkl", &pickle[..])]))
    }

    #[test]
    fn of_tuples_in_a_pickle() {
        assert!(unpickles([b"N", &[0x85; 1 << 21][..]].concat()));
    }

    #[test]
    fn of_what_a_pickle_remembers() {
        let puts = (0..1u32 << 20).flat_map(|index| [b"r", &index.to_le_bytes()[..]].concat());
        assert!(unpickles([b'N'].into_iter().chain(puts).collect()));
    }

    #[test]
    fn of_dicts_in_a_pickle() {
        assert!(unpickles([b"}K\0".repeat(20_000), b"N".to_vec(), b"s".repeat(20_000)].concat()));
    }

    #[test]
    fn of_tensors_in_a_pickle() {
        let storage = Storage { class: "FloatStorage", key: 0, elements: 0 };
        let empty = Pickle::new().tensor(storage, 0, &[0; 8], &[1; 8]).bytes;
        let entry = |index| [b"X\x05\0\0\0", format!("{index:05x}").as_bytes(), b"h\0"].concat();
        let entries: Vec<u8> = (0..10_000).flat_map(entry).collect();
        let pickle = [&empty[..], b"q\0}(", &entries, b"u."].concat();
        assert!(!survives_pytorch(archive([("data.pkl", &pickle[..]), ("data/0", b"")])));
    }

    #[test]
    fn of_members_of_an_archive() {
        let names: Vec<String> = (0..THINGS).map(|index| format!("{index:x}")).collect();
        let empty = names.iter().map(|name| (name.as_str(), &b""[..]));
        assert!(!survives_pytorch(archive([("data.pkl", &b"}."[..])].into_iter().chain(empty))));
    }
}
