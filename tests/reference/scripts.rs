//! Scripts find what they import, also as the binary writes them out, and lie where is said that they do.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::machine::{Machine, SHIPPED};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reference-scripts");

/// Every file in a folder, by its path there; not what is hidden, and not what was built.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            match path.is_dir() {
                true if name == "target" || name.to_string_lossy().starts_with('.') => {}
                true => folders.push(path),
                false => files.push(path.strip_prefix(folder).expect("it is below").to_owned()),
            }
        }
    }
    files
}

/// The folders in which a script's modules are looked for: its own, and those that it names.
fn sought(script: &Path, text: &str) -> Vec<PathBuf> {
    let named = text.split("sys.path.insert(0, str(Path(__file__).resolve().parents[").skip(1);
    let named = named.map(|rest| {
        let parents: usize = rest.split(']').next().and_then(|number| number.parse().ok()).expect("a number");
        let above = script.ancestors().nth(parents + 1).expect("it lies so deep");
        above.join(rest.split('"').nth(1).expect("a folder"))
    });
    script.parent().map(Path::to_owned).into_iter().chain(named).collect()
}

/// The names of modules, ours and others', that a script imports.
fn imported(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(str::trim);
    let modules =
        lines.filter_map(|line| line.strip_prefix("import ").or_else(|| line.strip_prefix("from ")));
    modules.flat_map(|names| names.split([' ', ',', '.'])).map(|module| format!("{module}.py")).collect()
}

/// The files that a script in `folder` imports, includes or names by its own place.
fn needed(folder: &Path, script: &Path) -> BTreeSet<PathBuf> {
    let text = fs::read_to_string(folder.join(script)).expect("it is text");
    let sought = sought(script, &text);
    let modules = imported(&text);
    let modules = sought.iter().flat_map(|folder| modules.iter().map(|module| folder.join(module)));
    let own = script.parent().expect("its folder");
    let included = text.split("#include \"").skip(1).filter_map(|rest| rest.split('"').next());
    let named = text.split("$scripts/").skip(1).filter_map(|rest| rest.split(['"', ')', ' ']).next());
    let beside = included.chain(named).map(|name| match name.strip_prefix("../") {
        Some(name) => own.with_file_name(name),
        None => own.join(name),
    });
    modules.chain(beside).filter(|path| Path::new(SCRIPTS).join(path).is_file()).collect()
}

#[track_caller]
fn has_all_it_needs(engine: &str, model: &str, dump: &str, expected: &[&str]) {
    let machine = Machine::new(&["mine", "dump_llama_cpp"]).with("FAKE_DUMP", dump);
    machine.run(&["reference", "--model", model, "--with", engine, "--python", "mine"]).succeeded();
    let folders = machine.names("cache/reference-scripts");
    assert!(folders.len() == 1 && folders[0].starts_with(engine), "{folders:?}");
    let folder = machine.at("cache/reference-scripts").join(&folders[0]);
    let there = files_in(&folder);
    let mut found = BTreeSet::new();
    for script in &there {
        for other in needed(&folder, script) {
            assert!(there.contains(&other), "{engine}: {script:?} needs {other:?}, and there are {there:?}");
            found.insert(other);
        }
    }
    // What is looked for is seen.
    let expected = expected.iter().map(Path::new);
    expected.for_each(|path| assert!(found.contains(path), "{engine}: {path:?} is not seen in {found:?}"));
}

#[test]
fn the_scripts_of_every_engine_have_what_they_import() {
    let dump = |name: &str| format!("{SHIPPED}/dumps/{name}.safetensors");
    let gpt2 = format!("{ROOT}/checkpoints/tiny-gpt2/dumps/transformers-f32.safetensors");
    let transformers = dump("transformers-f32");
    has_all_it_needs("transformers", "hf", &transformers, &["lib/dump_writer.py"]);
    has_all_it_needs("mlx", "hf", &transformers, &["lib/dump_writer.py", "lib/model_files.py"]);
    has_all_it_needs("tinygrad", "tiny-gpt2", &gpt2, &["lib/dump_writer.py"]);
    let built = ["dump/dump_llama_cpp.cpp", "requirements-llama-cpp.txt"];
    has_all_it_needs("llama.cpp", "model.gguf", &dump("llama.cpp-f32"), &built);
}

/// The modules among `ours` that a script imports, and looks for in folders that have them not.
fn not_found(script: &Path, text: &str, ours: &[PathBuf]) -> Vec<String> {
    let sought = sought(script, text);
    let is_ours = |module: &String| ours.iter().any(|path| path.ends_with(module));
    let is_found = |module: &String| sought.iter().any(|folder| ours.contains(&folder.join(module)));
    imported(text).into_iter().filter(|module| is_ours(module) && !is_found(module)).collect()
}

#[test]
fn every_script_finds_the_modules_that_it_imports() {
    let scripts = files_in(Path::new(SCRIPTS));
    let ours: Vec<PathBuf> =
        scripts.into_iter().filter(|path| path.extension().is_some_and(|end| end == "py")).collect();
    assert!(ours.len() > 50, "{ours:?}");
    for script in &ours {
        let text = fs::read_to_string(Path::new(SCRIPTS).join(script)).expect("it is text");
        assert_eq!(not_found(script, &text, &ours), Vec::<String>::new(), "{}", script.display());
    }
    // One that names no folder, or another one, does not.
    let (script, import) = (Path::new("dump/new.py"), "from dump_writer import Record\n");
    let named = |parents, folder: &str| {
        format!(
            "sys.path.insert(0, str(Path(__file__).resolve().parents[{parents}] / \"{folder}\"))\n{import}"
        )
    };
    assert_eq!(not_found(script, import, &ours), ["dump_writer.py"]);
    assert_eq!(not_found(script, &named(1, "make"), &ours), ["dump_writer.py"]);
    assert_eq!(not_found(script, &named(0, "lib"), &ours), ["dump_writer.py"]);
    assert!(not_found(script, &named(1, "lib"), &ours).is_empty());
}

/// What a text names in `reference-scripts` and is not there; nothing that is built is.
fn astray(text: &str) -> Vec<String> {
    let is_of_a_path = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
    let rests = text.split("reference-scripts/").skip(1);
    let named = rests.map(|rest| rest.split(|c| !is_of_a_path(c)).next().unwrap_or("").trim_end_matches('.'));
    let named = named.filter(|path| !path.contains("target/") && !Path::new(SCRIPTS).join(path).exists());
    named.map(str::to_owned).collect()
}

#[test]
fn scripts_lie_where_texts_and_messages_say() {
    let ends = ["c", "cpp", "h", "md", "mjs", "py", "rs", "sh", "toml", "yml"];
    let mut mentions = 0;
    for path in files_in(Path::new(ROOT)) {
        if path.extension().is_none_or(|end| !ends.iter().any(|known| end == *known)) {
            continue;
        }
        let text = fs::read_to_string(Path::new(ROOT).join(&path)).expect("it is text");
        mentions += text.matches("reference-scripts/").count();
        assert_eq!(astray(&text), Vec::<String>::new(), "{}", path.display());
    }
    assert!(mentions > 100, "{mentions}");
    assert_eq!(astray(&format!("as `reference-scripts/{}` does.", "make_dumps.sh")), ["make_dumps.sh"]);
}
