//! Which module may use which: data flows one way, and nothing else is allowed.

use std::collections::BTreeSet;

use crate::common::sources::{self, SourceFile};

/// Each module and what it may use besides itself. A module must come after all it uses, so there are no cycles.
const ALLOWED: &[(&str, &[&str])] = &[
    ("architecture", &[]),
    ("checkpoint", &[]),
    ("parallel", &[]),
    ("tensor", &["parallel"]),
    ("lazy_bytes", &[]),
    ("error_map", &[]),
    ("weight", &["lazy_bytes"]),
    ("error", &["lazy_bytes", "weight"]),
    ("memory", &["error"]),
    ("input", &["memory", "error"]),
    ("fatal_error", &["memory"]),
    ("shutdown", &[]),
    ("atomic_write", &["shutdown"]),
    ("view", &["lazy_bytes", "tensor", "weight"]),
    ("tap", &["checkpoint", "tensor"]),
    ("measure", &["error_map", "view", "weight", "parallel"]),
    ("format", &["input", "memory", "lazy_bytes", "weight", "error"]),
    ("tokenizer", &["format", "error"]),
    ("ops", &["tensor", "parallel"]),
    ("quant", &["weight", "parallel"]),
    ("numerics", &["ops", "quant", "tensor", "weight", "parallel"]),
    ("exact", &["numerics", "ops", "quant", "error_map", "tensor", "view", "weight", "parallel"]),
    (
        "model",
        &[
            "parallel",
            "tokenizer",
            "lazy_bytes",
            "numerics",
            "ops",
            "quant",
            "format",
            "tap",
            "checkpoint",
            "tensor",
            "weight",
            "error",
        ],
    ),
    ("engine", &["memory", "model", "numerics", "ops", "tap", "checkpoint", "tensor", "weight", "error"]),
    (
        "change",
        &[
            "engine",
            "model",
            "exact",
            "numerics",
            "ops",
            "quant",
            "tap",
            "checkpoint",
            "tensor",
            "weight",
            "error",
        ],
    ),
    (
        "dump",
        &[
            "parallel",
            "architecture",
            "memory",
            "atomic_write",
            "format",
            "view",
            "measure",
            "tap",
            "checkpoint",
            "tensor",
            "weight",
            "error",
        ],
    ),
    ("map", &["architecture", "input", "dump", "format", "view", "checkpoint", "tensor", "weight", "error"]),
    (
        "identify",
        &[
            "map",
            "dump",
            "engine",
            "model",
            "numerics",
            "format",
            "view",
            "tap",
            "checkpoint",
            "tensor",
            "weight",
            "error",
        ],
    ),
    ("cases", &["input", "model", "dump", "error"]),
    (
        "compare",
        &[
            "architecture",
            "input",
            "dump",
            "exact",
            "ops",
            "view",
            "tap",
            "checkpoint",
            "tensor",
            "weight",
            "error",
            "measure",
        ],
    ),
    (
        "kld",
        &[
            "atomic_write",
            "compare",
            "engine",
            "dump",
            "format",
            "tap",
            "checkpoint",
            "tensor",
            "weight",
            "error",
            "measure",
        ],
    ),
    ("plan", &["compare", "engine", "model", "dump", "checkpoint", "weight", "error", "measure"]),
    (
        "diagnose",
        &[
            "plan",
            "change",
            "compare",
            "engine",
            "model",
            "exact",
            "numerics",
            "ops",
            "dump",
            "tap",
            "checkpoint",
            "tensor",
            "view",
            "weight",
            "error",
            "measure",
        ],
    ),
    (
        "selfcheck",
        &["compare", "engine", "model", "numerics", "tap", "checkpoint", "tensor", "error", "measure"],
    ),
    (
        "selftest",
        &[
            "measure",
            "parallel",
            "input",
            "diagnose",
            "change",
            "compare",
            "engine",
            "model",
            "exact",
            "numerics",
            "dump",
            "format",
            "tap",
            "checkpoint",
            "tensor",
            "weight",
            "error",
        ],
    ),
    (
        "serve",
        &["engine", "model", "numerics", "tokenizer", "lazy_bytes", "tap", "checkpoint", "tensor", "error"],
    ),
    (
        "report",
        &[
            "input",
            "atomic_write",
            "format",
            "plan",
            "change",
            "compare",
            "diagnose",
            "exact",
            "error_map",
            "dump",
            "checkpoint",
            "weight",
            "error",
            "measure",
        ],
    ),
    ("ratchet", &["input", "atomic_write", "error_map", "report", "compare", "checkpoint", "error"]),
    ("disk_cache", &["atomic_write", "error"]),
    ("matrix", &["input", "shutdown", "report", "compare", "disk_cache", "checkpoint", "error"]),
    ("reference", &["disk_cache", "error"]),
    ("network", &[]),
    ("hub", &["input", "atomic_write", "disk_cache", "network", "error"]),
    ("remote", &["disk_cache", "network", "format", "lazy_bytes", "error"]),
    (
        "probe",
        &[
            "network",
            "compare",
            "engine",
            "model",
            "numerics",
            "ops",
            "dump",
            "tokenizer",
            "format",
            "tap",
            "checkpoint",
            "tensor",
            "weight",
            "error",
        ],
    ),
    ("shipped_models", &["dump", "format", "model", "tokenizer", "error"]),
    (
        "cli",
        &[
            "input",
            "memory",
            "atomic_write",
            "report",
            "ratchet",
            "plan",
            "change",
            "view",
            "diagnose",
            "selfcheck",
            "selftest",
            "serve",
            "tokenizer",
            "cases",
            "compare",
            "engine",
            "exact",
            "dump",
            "map",
            "identify",
            "kld",
            "matrix",
            "model",
            "numerics",
            "format",
            "disk_cache",
            "lazy_bytes",
            "hub",
            "probe",
            "reference",
            "remote",
            "quant",
            "shipped_models",
            "tokenizer",
            "checkpoint",
            "tap",
            "tensor",
            "weight",
            "error",
            "measure",
        ],
    ),
];

#[test]
fn modules_use_only_what_they_may() {
    let files = sources::files();
    for (module, allowed) in ALLOWED {
        let mut used = uses(&files, module);
        used.remove(*module);
        let allowed = allowed.iter().copied().map(str::to_owned).collect();
        assert_eq!(used, allowed, "what {module} uses, and what it may: no more and no less");
    }
}

#[test]
fn every_module_is_in_the_table_after_those_it_uses() {
    let names: Vec<&str> = ALLOWED.iter().map(|(module, _)| *module).collect();
    for (index, (module, allowed)) in ALLOWED.iter().enumerate() {
        let late: Vec<_> = allowed.iter().filter(|used| !names[..index].contains(used)).collect();
        assert!(late.is_empty(), "{module} uses {late:?}, which must stand before it");
    }
    let files = sources::files();
    let libs = files.iter().filter(|file| file.path == "lib.rs");
    let modules = libs
        .flat_map(|lib| lib.text.lines())
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    assert_eq!(modules.collect::<BTreeSet<_>>(), names.into_iter().collect());
}

#[test]
fn text_leaves_through_one_module() {
    let text = sources::text();
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let prints = |line: &&str| {
        ["println!(", "print!(", "std::io::stdout()", "std::io::stderr()"]
            .iter()
            .any(|way| line.contains(way))
    };
    let printing: Vec<&str> = code.filter(prints).collect();
    assert_eq!(printing, Vec::<&str>::new(), "say!, tell! and terminal::document print");
}

/// Who reads and writes files itself: the system's, and those that this program has put into folders of its own.
const THEIR_OWN: [&str; 11] = [
    "cli/matrix/cell_worker.rs",
    "cli/matrix/matrix_folder.rs",
    "disk_cache/blocks.rs",
    "disk_cache/hashes.rs",
    "disk_cache/space.rs",
    "dump/writer.rs",
    "hub/settings.rs",
    "input.rs",
    "memory.rs",
    "reference/process.rs",
    "reference/reference_folder.rs",
];

#[test]
fn files_that_are_named_from_outside_are_read_and_written_by_two_modules() {
    let ways = ["fs::write(", "File::create(", "fs::read(", "fs::read_to_string("];
    let is_one = |file: &SourceFile| {
        let is_code = |line: &str| !line.trim_start().starts_with("//") && !line.contains("/proc/");
        file.text.lines().any(|line| is_code(line) && ways.iter().any(|way| line.contains(way)))
    };
    let others: BTreeSet<String> =
        sources::files().into_iter().filter(is_one).map(|file| file.path).collect();
    assert_eq!(
        others,
        THEIR_OWN.map(str::to_owned).into(),
        "input:: waits for no pipe, atomic_write:: leaves no half file"
    );
}

/// The modules of this crate that a module's files name.
fn uses(files: &[SourceFile], module: &str) -> BTreeSet<String> {
    let (file, folder) = (format!("{module}.rs"), format!("{module}/"));
    let of_module = |source: &&SourceFile| source.path == file || source.path.starts_with(&folder);
    let text: String = files.iter().filter(of_module).map(|source| source.text.as_str()).collect();
    assert!(!text.is_empty(), "{module} has no source");
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let named = code.flat_map(|line| line.split("crate::").skip(1));
    named
        .map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>())
        .filter(|name| name.starts_with(|first: char| first.is_lowercase()))
        .collect()
}
