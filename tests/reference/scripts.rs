//! What is inside the binary of an engine is enough to run its script.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::machine::{Machine, SHIPPED};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reference-scripts");

/// The files of `reference-scripts` that a script imports, includes or names as lying beside it.
fn needed(text: &str) -> BTreeSet<String> {
    let mut needed = BTreeSet::new();
    for line in text.lines().map(str::trim) {
        let module = line.strip_prefix("import ").or_else(|| line.strip_prefix("from "));
        let names = module.unwrap_or("").split([' ', ',', '.']).map(|module| format!("{module}.py"));
        let included =
            line.strip_prefix("#include \"").and_then(|rest| rest.split('"').next()).map(str::to_owned);
        let beside = line
            .split("$scripts/")
            .skip(1)
            .map(|rest| rest.split(['"', ')', ' ']).next().unwrap_or("").to_owned());
        needed.extend(names.chain(included).chain(beside));
    }
    needed.retain(|name| Path::new(SCRIPTS).join(name).is_file());
    needed
}

#[track_caller]
fn has_all_it_needs(engine: &str, model: &str, dump: &str, expected: &[&str]) {
    let machine = Machine::new(&["mine", "dump_llama_cpp"]).with("FAKE_DUMP", dump);
    machine.run(&["reference", "--model", model, "--with", engine, "--python", "mine"]).succeeded();
    let folders = machine.names("cache/reference-scripts");
    assert!(folders.len() == 1 && folders[0].starts_with(engine), "{folders:?}");
    let folder = format!("cache/reference-scripts/{}", folders[0]);
    let there = machine.names(&folder);
    let mut found = BTreeSet::new();
    for name in &there {
        let text = fs::read_to_string(machine.at(&folder).join(name)).expect("it was written out");
        for other in needed(&text) {
            assert!(there.contains(&other), "{engine}: {name} needs {other}, and there are {there:?}");
            found.insert(other);
        }
    }
    // What is looked for is seen.
    expected
        .iter()
        .for_each(|name| assert!(found.contains(*name), "{engine}: {name} is not seen in {found:?}"));
}

#[test]
fn the_scripts_of_every_engine_have_what_they_import() {
    let dump = |name: &str| format!("{SHIPPED}/dumps/{name}.safetensors");
    let gpt2 =
        concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-gpt2/dumps/transformers-f32.safetensors");
    let transformers = dump("transformers-f32");
    has_all_it_needs("transformers", "hf", &transformers, &["dump_writer.py"]);
    has_all_it_needs("mlx", "hf", &transformers, &["dump_writer.py", "model_files.py"]);
    has_all_it_needs("tinygrad", "tiny-gpt2", gpt2, &["dump_writer.py"]);
    let built = ["dump_llama_cpp.cpp", "requirements-llama-cpp.txt"];
    has_all_it_needs("llama.cpp", "model.gguf", &dump("llama.cpp-f32"), &built);
}
