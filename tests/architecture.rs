//! Which module may use which: data flows one way, and nothing else is allowed.

use std::collections::BTreeSet;

use crate::circles;
use crate::common::sources::{self, SourceFile};

/// Each layer and what it may use besides itself. A layer must come after all it uses, so there are no cycles.
///
/// A layer is a module of a package. Only `ops` is three layers: one folder has the definition of an operation (`ops`), its
/// exact evaluation (`ops exact`) and its faults (`ops faults`).
const ALLOWED: &[(&str, &[&str])] = &[
    ("architecture", &[]),
    ("checkpoint", &[]),
    ("parallel", &[]),
    ("tensor", &["parallel"]),
    ("lazy_bytes", &[]),
    ("library_panic", &[]),
    ("error_map", &[]),
    ("exponential", &[]),
    ("weight", &["lazy_bytes"]),
    ("error", &["lazy_bytes", "weight"]),
    ("memory", &["error"]),
    ("input", &["memory", "error"]),
    ("fatal_error", &["memory"]),
    ("shutdown", &[]),
    ("atomic_write", &["shutdown"]),
    ("view", &["lazy_bytes", "tensor", "weight"]),
    ("tap", &["checkpoint", "tensor"]),
    ("json_number", &[]),
    ("measure", &["error_map", "exponential", "json_number", "view", "weight", "parallel"]),
    ("format", &["input", "memory", "lazy_bytes", "weight", "error"]),
    ("tokenizer", &["library_panic", "format", "error"]),
    ("kernels", &["tensor", "parallel"]),
    ("quant", &["weight", "parallel"]),
    ("ops", &["quant", "kernels", "weight", "tensor", "parallel"]),
    ("numerics", &["kernels", "ops", "quant", "tensor", "weight", "parallel"]),
    ("exact", &["numerics", "quant", "error_map", "tensor", "view", "weight", "parallel"]),
    ("ops exact", &["exact", "exponential", "numerics", "ops", "quant", "weight", "tensor", "parallel"]),
    ("tracing", &["ops exact", "exact", "numerics", "ops", "quant", "weight", "tensor"]),
    (
        "model",
        &[
            "parallel",
            "tokenizer",
            "lazy_bytes",
            "memory",
            "view",
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
            "tracing",
            "ops exact",
            "engine",
            "model",
            "exact",
            "numerics",
            "ops",
            "tap",
            "checkpoint",
            "tensor",
            "weight",
            "error",
        ],
    ),
    (
        "ops faults",
        &[
            "change",
            "tracing",
            "ops exact",
            "exact",
            "numerics",
            "ops",
            "quant",
            "weight",
            "tensor",
            "checkpoint",
        ],
    ),
    ("catalogue", &["ops faults", "change", "tracing", "tap", "tensor", "checkpoint"]),
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
    ("align", &["checkpoint", "tensor", "weight", "error", "view", "measure", "dump"]),
    (
        "kld",
        &[
            "atomic_write",
            "engine",
            "dump",
            "format",
            "tap",
            "checkpoint",
            "tensor",
            "weight",
            "error",
            "measure",
            "align",
        ],
    ),
    ("plan", &["engine", "model", "dump", "checkpoint", "weight", "error", "measure", "align"]),
    (
        "check",
        &[
            "architecture",
            "input",
            "catalogue",
            "tracing",
            "ops exact",
            "checkpoint",
            "tensor",
            "weight",
            "error",
            "view",
            "tap",
            "measure",
            "ops",
            "numerics",
            "exact",
            "model",
            "engine",
            "change",
            "dump",
            "align",
            "plan",
        ],
    ),
    (
        "noise",
        &[
            "json_number",
            "checkpoint",
            "tensor",
            "error",
            "view",
            "tap",
            "measure",
            "numerics",
            "exact",
            "check",
            "weight",
        ],
    ),
    (
        "verdict",
        &[
            "json_number",
            "catalogue",
            "ops exact",
            "checkpoint",
            "tensor",
            "weight",
            "error",
            "view",
            "measure",
            "exact",
            "engine",
            "change",
            "dump",
            "align",
            "plan",
            "check",
            "noise",
        ],
    ),
    ("gap", &["library_panic", "input", "format", "view", "error", "verdict"]),
    (
        "diagnose",
        &[
            "catalogue",
            "tracing",
            "ops exact",
            "plan",
            "change",
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
            "align",
            "check",
            "noise",
            "verdict",
        ],
    ),
    (
        "selfcheck",
        &[
            "engine",
            "model",
            "numerics",
            "tap",
            "checkpoint",
            "tensor",
            "error",
            "measure",
            "noise",
            "verdict",
        ],
    ),
    (
        "selftest",
        &[
            "catalogue",
            "tracing",
            "measure",
            "parallel",
            "input",
            "diagnose",
            "change",
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
            "align",
            "check",
            "noise",
            "verdict",
        ],
    ),
    (
        "serve",
        &["engine", "model", "numerics", "tokenizer", "lazy_bytes", "tap", "checkpoint", "tensor", "error"],
    ),
    (
        "evaluator",
        &[
            "format",
            "change",
            "exact",
            "view",
            "dump",
            "checkpoint",
            "weight",
            "error",
            "measure",
            "align",
            "check",
            "verdict",
        ],
    ),
    (
        "report",
        &[
            "json_number",
            "input",
            "atomic_write",
            "format",
            "plan",
            "change",
            "exact",
            "error_map",
            "dump",
            "checkpoint",
            "weight",
            "error",
            "measure",
            "align",
            "check",
            "noise",
            "verdict",
        ],
    ),
    (
        "ratchet",
        &["input", "atomic_write", "error_map", "report", "checkpoint", "error", "align", "noise", "verdict"],
    ),
    ("disk_cache", &["atomic_write", "error"]),
    ("matrix", &["input", "shutdown", "report", "disk_cache", "checkpoint", "error", "verdict"]),
    ("reference", &["disk_cache", "error"]),
    ("network", &[]),
    ("hub", &["input", "format", "atomic_write", "disk_cache", "network", "error"]),
    ("remote", &["disk_cache", "network", "format", "lazy_bytes", "error"]),
    (
        "probe",
        &[
            "network",
            "engine",
            "model",
            "numerics",
            "ops",
            "quant",
            "dump",
            "tokenizer",
            "format",
            "tap",
            "checkpoint",
            "tensor",
            "weight",
            "error",
            "noise",
            "verdict",
        ],
    ),
    ("shipped_models", &["dump", "format", "model", "tokenizer", "error"]),
    (
        "cli",
        &[
            "catalogue",
            "tracing",
            "ops exact",
            "input",
            "memory",
            "atomic_write",
            "report",
            "ratchet",
            "plan",
            "change",
            "view",
            "diagnose",
            "evaluator",
            "selfcheck",
            "selftest",
            "serve",
            "tokenizer",
            "cases",
            "engine",
            "exact",
            "dump",
            "map",
            "identify",
            "gap",
            "kld",
            "matrix",
            "model",
            "ops",
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
            "checkpoint",
            "tap",
            "tensor",
            "weight",
            "error",
            "measure",
            "align",
            "check",
            "verdict",
        ],
    ),
];

#[test]
fn layers_use_only_what_they_may() {
    let files = sources::files();
    let mut wrong = Vec::new();
    for (module, allowed) in ALLOWED {
        let mut used = uses(&files, module);
        used.remove(*module);
        let allowed: BTreeSet<String> = allowed.iter().copied().map(str::to_owned).collect();
        let (more, less) = (&used - &allowed, &allowed - &used);
        if used != allowed {
            wrong.push(format!("{module} uses {more:?}, which it may not, and does not use {less:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_layer_is_in_the_table_after_those_it_uses() {
    let names: Vec<&str> = ALLOWED.iter().map(|(module, _)| *module).collect();
    for (index, (module, allowed)) in ALLOWED.iter().enumerate() {
        let late: Vec<_> = allowed.iter().filter(|used| !names[..index].contains(used)).collect();
        assert!(late.is_empty(), "{module} uses {late:?}, which must stand before it");
    }
    let files = sources::files();
    let libs = files.iter().filter(|file| file.path == "lib.rs");
    let modules = libs.flat_map(|lib| lib.text.lines()).filter_map(|line| {
        line.strip_prefix("pub mod ").or(line.strip_prefix("pub(crate) mod "))?.strip_suffix(';')
    });
    let layers = modules.chain(["ops exact", "ops faults"]);
    assert_eq!(layers.collect::<BTreeSet<_>>(), names.into_iter().collect());
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
const THEIR_OWN: [&str; 12] = [
    "cli/matrix/cell_worker.rs",
    "cli/matrix/matrix_folder.rs",
    "disk_cache/blocks.rs",
    "disk_cache/hashes.rs",
    "disk_cache/space.rs",
    "dump/writer.rs",
    "hub/settings.rs",
    "input.rs",
    "memory.rs",
    "reference/evaluator.rs",
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

/// The layers that the files of a layer name.
fn uses(files: &[SourceFile], of: &str) -> BTreeSet<String> {
    let in_layer = files.iter().map(|file| (circles::module(&file.path), &file.text));
    let sources: Vec<_> = in_layer.filter(|(module, _)| layer(module) == of).collect();
    assert!(!sources.is_empty(), "{of} has no source");
    let named = sources.iter().flat_map(|(module, text)| circles::paths(text, module));
    named
        .filter(|path| path[0].starts_with(|first: char| first.is_lowercase()))
        .map(|path| layer(&path))
        .collect()
}

/// The layer of a path, such as `ops::rope::exact::Rotary`.
fn layer(path: &[String]) -> String {
    match path {
        [ops, _, part, ..] if ops == "ops" && ["exact", "faults"].contains(&part.as_str()) => {
            format!("ops {part}")
        }
        _ => path[0].clone(),
    }
}
