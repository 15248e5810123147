//! The engines of `examples/ten-lines`: judged, and what is wrong with them has its name.

#[path = "../examples/ten-lines/llama.rs"]
mod llama;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::skip::skip;
use crate::common::terminal::Terminal;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn model() -> PathBuf {
    root().join("checkpoints/tiny-llama2c/tiny-llama2c-v0.bin")
}

/// The engine passes, and with its mistake fails for this reason and no other. `run` gets where to write, and whether to be wrong.
#[track_caller]
fn assert_named(terminal: &Terminal, cause: &str, run: impl Fn(&Path, bool)) {
    for (name, mistake) in [("right.safetensors", false), ("wrong.safetensors", true)] {
        run(&terminal.path().join(name), mistake);
        let check = ["check", "--model", "tiny-llama2c-v0", "--candidate", name, "--no-report"];
        let (code, report) = terminal.json(&check);
        let findings = report["references"][0]["findings"].as_array().expect("a list");
        let causes: Vec<_> =
            findings.iter().map(|finding| finding["kind"].as_str().expect("a kind")).collect();
        let expected = if mistake { vec![cause] } else { vec![] };
        assert_eq!((code, causes), (i32::from(mistake), expected), "{name}: {report:#}");
    }
}

/// Of the engine's lines, from its first import on, ten at most are there to have it judged.
#[track_caller]
fn assert_ten_lines(file: &str) {
    let source = fs::read_to_string(root().join("examples/ten-lines").join(file)).expect("it is there");
    let is_import =
        |line: &&str| ["import ", "from ", "use ", "#include "].iter().any(|word| line.starts_with(word));
    let code = source.lines().skip_while(|line| !is_import(line));
    let is_ours = |line: &&str| ["xcheck", "dump"].iter().any(|word| line.to_lowercase().contains(word));
    let ours = code.filter(is_ours).count();
    assert!((1..=10).contains(&ours), "{file}: {ours} lines");
}

#[track_caller]
fn succeeds(command: &mut Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
}

#[test]
fn the_rust_engine_passes_and_its_gqa_mapping_mistake_is_named() {
    assert_ten_lines("llama.rs");
    assert_named(&Terminal::new(), "gqa_mapping", |out, mistake| {
        llama::run(&model(), out, mistake).expect("it runs");
    });
}

#[test]
fn the_c_engine_passes_and_its_rms_norm_eps_mistake_is_named() {
    assert_ten_lines("llama.c");
    let Some(cc) =
        ["cc", "gcc", "clang"].into_iter().find(|cc| Command::new(cc).arg("--version").output().is_ok())
    else {
        skip("no C compiler (cc, gcc or clang)");
        return;
    };
    let terminal = Terminal::new();
    let program = terminal.path().join("llama.exe");
    let mut compile = Command::new(cc);
    compile.args(["-std=c99", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]);
    compile.arg("-I").arg(root().join("writers/c")).arg(root().join("examples/ten-lines/llama.c"));
    succeeds(compile.arg("-o").arg(&program).arg("-lm"));
    assert_named(&terminal, "norm_eps", |out, mistake| {
        succeeds(Command::new(&program).arg(model()).arg(out).args(mistake.then_some("--mistake")));
    });
}

/// With the Python that `XCHECK_PYTHON` names, or python3; where it lacks a package, the test is skipped and says so.
#[track_caller]
fn assert_python_named(file: &str, packages: &str, cause: &str) {
    assert_ten_lines(file);
    let python = std::env::var("XCHECK_PYTHON").unwrap_or_else(|_| "python3".into());
    let has_all = Command::new(&python).args(["-c", &format!("import {packages}")]).output();
    if !has_all.is_ok_and(|output| output.status.success()) {
        skip(format_args!("{python} has no {packages}; XCHECK_PYTHON names one that has"));
        return;
    }
    assert_named(&Terminal::new(), cause, |out, mistake| {
        let mut command = Command::new(&python);
        command.arg("-B").arg(root().join("examples/ten-lines").join(file)).arg(model()).arg(out);
        command.args(mistake.then_some("--mistake")).env("PYTHONPATH", root().join("python/src"));
        succeeds(&mut command);
    });
}

#[test]
fn the_numpy_engine_passes_and_its_rope_theta_mistake_is_named() {
    assert_python_named("llama_numpy.py", "numpy", "rope_theta");
}

#[test]
fn the_torch_engine_passes_and_its_attention_scale_mistake_is_named() {
    assert_python_named("llama_torch.py", "numpy, torch", "attn_scale");
}
