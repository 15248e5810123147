//! The bodies of the fuzz targets, with the corpus that is committed, and with what a fixed seed makes of it: what fits into
//! every run of the tests. libFuzzer, which looks where it gets, runs them for longer: see docs/explanation/robustness.md.

use std::fs;
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

#[path = "../../fuzz/bodies/mod.rs"]
mod bodies;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The inputs of a target, in the order of their names.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(ROOT).join("fuzz/corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(&folder).into_iter().flatten().flatten().collect();
    assert!(!files.is_empty(), "{name} has no corpus");
    files.sort_by_key(fs::DirEntry::file_name);
    files.iter().map(|file| fs::read(file.path()).expect("it is there")).collect()
}

#[test]
fn the_corpus_of_every_target_is_replayed() {
    for (name, body) in bodies::ALL {
        corpus(name).iter().for_each(|input| _ = body(input));
    }
}

/// What is refused at its first bytes is changed into what is refused there, too, and nothing behind them is tried.
#[test]
fn every_target_takes_some_of_its_corpus() {
    let refusing = bodies::ALL.iter().filter(|(name, body)| !corpus(name).iter().any(|input| body(input)));
    let refusing: Vec<&str> = refusing.map(|(name, _)| *name).collect();
    assert!(refusing.is_empty(), "each input is refused: {}", refusing.join(", "));
}

#[test]
fn every_target_is_one_of_cargo_fuzz() {
    let manifest = fs::read_to_string(Path::new(ROOT).join("fuzz/Cargo.toml")).expect("it is there");
    for (name, _) in bodies::ALL {
        let target = fs::read_to_string(Path::new(ROOT).join(format!("fuzz/fuzz_targets/{name}.rs")));
        assert!(target.expect("it is there").contains(&format!("::{name}(data)")), "{name}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
    let files = fs::read_dir(Path::new(ROOT).join("fuzz/fuzz_targets")).expect("it is there");
    assert_eq!(files.count(), bodies::ALL.len(), "each target is run here");
}

/// How often. The judge compares two dumps each time.
fn times(name: &str) -> usize {
    if name == "judge" { 12 } else { 300 }
}

#[test]
fn arbitrary_bytes_find_nothing() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for (name, body) in bodies::ALL {
        for _ in 0..times(name) {
            let mut bytes = vec![0; 1024];
            random.fill_bytes(&mut bytes);
            body(&bytes);
        }
    }
}

#[test]
fn what_is_almost_of_the_corpus_finds_nothing() {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    for (name, body) in bodies::ALL {
        let inputs = corpus(name);
        for _ in 0..times(name) {
            body(&changed(&mut random, &inputs));
        }
    }
}

/// One of the inputs, a few times overwritten, cut, or continued with a piece of another.
fn changed(random: &mut ChaCha8Rng, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut below = |most: usize| (random.next_u64() % most.max(1) as u64) as usize;
    let mut bytes = inputs[below(inputs.len())].clone();
    for _ in 0..=below(4) {
        let at = below(bytes.len());
        match below(4) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..(at + 1 + below(8)).min(bytes.len()).max(at))),
            2 => {
                let other = &inputs[below(inputs.len())];
                let from = below(other.len());
                let piece = other[from..(from + below(64)).min(other.len())].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            _ => {
                let telling = [0, 1, 0x7f, 0x80, 0xff, below(256) as u8];
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = telling[below(telling.len())];
                }
            }
        }
    }
    bytes
}
