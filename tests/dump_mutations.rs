//! Real dumps with damage at random places: refused or read, never a panic.

use crate::common::share::share;
use crate::common::{LLAMA_CPP_F32, reference, rules, tiny_llama2};
use proptest::prelude::*;
use xcheck::align::Selection;
use xcheck::check::{Mode, Rules, Tolerances};
use xcheck::diagnose::{cross_check, cross_check_dumps};
use xcheck::dump::Dump;
use xcheck::format::FileBytes;

const DUMP: &[u8] = include_bytes!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/checkpoints/tiny-llama2/dumps/llama.cpp-f32.safetensors"
));

/// Of four sequences, in version 2.
const SEVERAL: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/sequences/gpt2-packed.safetensors"));

/// Bytes of the length and the JSON header with the manifest.
fn header_len() -> usize {
    header_of(DUMP)
}

fn header_of(dump: &[u8]) -> usize {
    let length = u64::from_le_bytes(*dump.first_chunk().expect("it is a dump"));
    8 + usize::try_from(length).expect("it is small")
}

/// Opens, reads and compares whatever is left of a dump; only a panic is wrong.
fn use_it(bytes: Vec<u8>) {
    let source = FileBytes { path: "mutated.safetensors".into(), data: bytes.into() };
    let Ok(dump) = Dump::from_source(source) else { return };
    for site in dump.sites() {
        let _ = dump.read(site);
    }
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = Rules { causes: true, ..rules(&selection, &tolerances, "f32", Mode::Both) };
    let original = reference("llama.cpp-f32");
    let _ = cross_check_dumps("original", &dump, &original, rules);
    let _ = cross_check_dumps("mutated", &original, &dump, rules);
    let _ = cross_check("mutated", &tiny_llama2(), &LLAMA_CPP_F32, &dump, rules, &mut ());
}

/// The same of several sequences, each with itself.
fn use_several(bytes: Vec<u8>) {
    let source = FileBytes { path: "mutated.safetensors".into(), data: bytes.into() };
    let Ok(dumps) = Dump::all_from_source(source) else { return };
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    for dump in dumps {
        for site in dump.sites() {
            let _ = (dump.read(site), dump.foreign(site));
        }
        let _ = cross_check_dumps(
            "itself",
            &dump,
            &dump,
            rules(&selection, &tolerances, "f32", Mode::Accumulated),
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: share(24, 96), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_in_the_header_never_panic(
        changes in prop::collection::vec((8..header_len(), any::<u8>()), 1..4)
    ) {
        let mut bytes = DUMP.to_vec();
        changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        use_it(bytes);
    }

    #[test]
    fn changed_digits_in_the_header_never_panic(at in prop::collection::vec((8..header_len(), b'0'..=b'9'), 1..24)) {
        let mut bytes = DUMP.to_vec();
        for (start, digit) in at {
            let next = (start..header_len()).find(|&at| bytes[at].is_ascii_digit());
            next.into_iter().for_each(|at| bytes[at] = digit);
        }
        use_it(bytes);
    }

    #[test]
    fn cut_dumps_never_panic(len in 0..DUMP.len()) {
        use_it(DUMP[..len].to_vec());
    }

    #[test]
    fn changed_values_never_panic(changes in prop::collection::vec((header_len()..DUMP.len(), any::<u8>()), 1..64)) {
        let mut bytes = DUMP.to_vec();
        changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        use_it(bytes);
    }

    #[test]
    fn changed_bytes_in_the_header_of_several_sequences_never_panic(
        changes in prop::collection::vec((8..header_of(SEVERAL), any::<u8>()), 1..4)
    ) {
        let mut bytes = SEVERAL.to_vec();
        changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        use_several(bytes);
    }

    #[test]
    fn changed_digits_in_the_header_of_several_sequences_never_panic(
        at in prop::collection::vec((8..header_of(SEVERAL), b'0'..=b'9'), 1..6)
    ) {
        let mut bytes = SEVERAL.to_vec();
        for (start, digit) in at {
            let next = (start..header_of(SEVERAL)).find(|&at| bytes[at].is_ascii_digit());
            next.into_iter().for_each(|at| bytes[at] = digit);
        }
        use_several(bytes);
    }
}
