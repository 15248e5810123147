//! The bodies of the fuzz targets, with the corpus that is committed and with bytes from a fixed seed.

use std::fs;
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

#[path = "../../fuzz/bodies/mod.rs"]
mod bodies;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn the_corpus_of_every_target_is_replayed() {
    for (name, body) in bodies::ALL {
        let folder = Path::new(ROOT).join("fuzz/corpus").join(name);
        let files: Vec<_> = fs::read_dir(&folder).into_iter().flatten().flatten().collect();
        assert!(!files.is_empty(), "{name} has no corpus");
        files.iter().for_each(|file| body(&fs::read(file.path()).expect("it is there")));
    }
}

#[test]
fn every_target_is_one_of_cargo_fuzz() {
    let manifest = fs::read_to_string(Path::new(ROOT).join("fuzz/Cargo.toml")).expect("it is there");
    for (name, _) in bodies::ALL {
        let target = fs::read_to_string(Path::new(ROOT).join(format!("fuzz/fuzz_targets/{name}.rs")));
        assert!(target.expect("it is there").contains(&format!("::{name}(data)")), "{name}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
}

#[test]
fn arbitrary_bytes_find_nothing() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for (name, body) in bodies::ALL {
        let times = if name == "judge" { 12 } else { 300 };
        for _ in 0..times {
            let mut bytes = vec![0; 1024];
            random.fill_bytes(&mut bytes);
            body(&bytes);
        }
    }
}
