//! What is refused, before anything is made.

use std::fs;

use xcheck::reference::ReferenceEngine;

use super::machine::Machine;

#[test]
fn without_a_terminal_nothing_is_installed_that_nobody_has_agreed_to() {
    let machine = Machine::new(&["python3"]);
    for command in [&["reference", "--model", "hf"][..], &["run", "--model", "hf", "--make-references"]] {
        let said = machine.run(command).refused(&[
            "--yes",
            "--python",
            "torch==",
            ReferenceEngine::Transformers.size(),
            "cache/environments",
        ]);
        assert!(said.contains("cannot ask for confirmation"), "{said}");
    }
    assert!(!machine.told().contains("-m venv"), "{}", machine.told());
    machine.assert_nothing_left();
}

#[test]
fn a_missing_module_is_said_with_what_gets_it() {
    let machine = Machine::new(&["mine"]).with("FAKE_MISSING", "torch tqdm");
    let said =
        machine.run(&["reference", "--model", "hf", "--python", "mine"]).refused(&["no module torch, tqdm"]);
    assert!(said.contains("bin/mine -m pip install torch==2.") && said.contains(" tqdm==4."), "{said}");
    machine
        .run(&["reference", "--model", "hf", "--python", "gone"])
        .refused(&["--python gone", "no such program"]);
    fs::write(machine.at("program.old"), "").expect("it is written");
    machine.run(&["reference", "--model", "hf", "--python", "mine"]).refused(&["Python 3.8", "3.11"]);
    machine.assert_nothing_left();
}

#[test]
fn what_is_not_on_the_path_is_said_with_the_package_that_has_it() {
    let machine = Machine::new(&[]);
    machine.run(&["reference", "--model", "hf", "--yes"]).refused(&["python3", "or uv", "python3-venv"]);
    let build = Machine::new(&["python3", "bash", "cc"]);
    build.run(&["reference", "--model", "model.gguf", "--yes"]).refused(&[
        "llama.cpp",
        "c++",
        "apt-get install g++",
    ]);
    let old = Machine::new(&["python3"]);
    fs::write(old.at("program.old"), "").expect("it is written");
    old.run(&["reference", "--model", "hf", "--yes"]).refused(&["python3", "Python 3.8", "3.11", "--python"]);
}

#[test]
fn an_engine_and_a_model_that_do_not_go_together_are_refused() {
    let machine = Machine::new(&["mine", "python3"]);
    let refused = |arguments: &[&str], expected: &[&str]| {
        let python = ["--python", "mine"];
        machine.run(&[&["reference"], arguments, &python].concat()).refused(expected);
    };
    refused(&["--model", "hf", "--with", "llama.cpp"], &["llama.cpp", "GGUF", "transformers"]);
    refused(&["--model", "model.gguf", "--with", "mlx"], &["mlx", "Hugging Face"]);
    refused(&["--model", "hf", "--with", "tinygrad"], &["tinygrad", "qwen3", "gpt2"]);
    refused(&["--model", "model.gguf", "--dtype", "bf16"], &["--dtype", "llama.cpp"]);
    refused(&["--model", "tiny-gpt2", "--with", "tinygrad", "--dtype", "f16"], &["--dtype f16", "f32"]);
    refused(&["--model", "tiny-llama2c"], &["llama2.c", "dump_llama2c.py"]);
    refused(&["--model", "hf", "--tokens", "1,99999"], &["99999"]);
    refused(&["--model", "hf", "--tokens", "1", "--decode", "60000"], &["60000", "--decode"]);
    refused(&["--model", "hf", "--prompt", "Hello"], &["tokenizer", "--tokens"]);
    refused(&["--model", "gone"], &["gone"]);
    assert_eq!(machine.told(), "");
}

#[test]
fn what_is_there_is_not_overwritten() {
    let machine = Machine::new(&["mine"]);
    fs::create_dir(machine.at("hf/dumps")).expect("a folder");
    fs::write(machine.at("hf/dumps/transformers-f32.safetensors"), "mine").expect("it is written");
    machine.run(&["reference", "--model", "hf", "--python", "mine"]).refused(&["already exists", "--out"]);
    let kept = fs::read_to_string(machine.at("hf/dumps/transformers-f32.safetensors")).expect("it stays");
    assert_eq!((kept.as_str(), machine.told().as_str()), ("mine", ""));
    let elsewhere = ["reference", "--model", "hf", "--python", "mine", "--out", "some/where.safetensors"];
    let said = machine.run(&elsewhere).succeeded();
    assert!(said.contains("--reference some/where.safetensors"), "{said}");
    assert_eq!(machine.names("some"), ["where.safetensors"]);
}

#[test]
fn what_appears_while_the_dump_is_made_is_not_overwritten_either() {
    let mut machine = Machine::new(&["mine"]);
    machine.set("FAKE_MEANWHILE", machine.at("theirs.safetensors").to_str().expect("plain"));
    let reference = ["reference", "--model", "hf", "--python", "mine", "--out", "theirs.safetensors"];
    let finished = machine.run(&reference);
    let said = finished.stderr.lines().last().expect("an error");
    assert!(finished.code == 2 && said.contains("theirs.safetensors already exists"), "{said}");
    assert_eq!(fs::read_to_string(machine.at("theirs.safetensors")).expect("it stays"), "theirs\n");
}

#[test]
fn commands_to_type_next_are_quoted() {
    let machine = Machine::new(&["mine"]);
    fs::rename(machine.at("hf"), machine.at("my model")).expect("it is there");
    let advice = machine.run(&["run", "--model", "my model"]);
    assert_eq!(advice.code, 3, "{}", advice.stdout);
    assert!(advice.stderr.contains("    xcheck reference --model 'my model' (or"), "{}", advice.stderr);
    let out = "a dump.safetensors";
    let said =
        machine.run(&["reference", "--model", "my model", "--python", "mine", "--out", out]).succeeded();
    let next =
        said.lines().last().expect("a command").split_once(": xcheck ").expect("as in `compare with it`").1;
    assert_eq!(next, "run --model 'my model' --checkpoint all --reference 'a dump.safetensors'");
    machine
        .run(&shlex::split(next).expect("it is a command").iter().map(String::as_str).collect::<Vec<_>>())
        .succeeded();

    let llama2c = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/llama2c/tiny-llama2-v2.bin");
    fs::copy(llama2c, machine.at("a model.bin")).expect("it is copied");
    let advice = machine.run(&["run", "--model", "a model.bin"]).stderr;
    assert!(advice.contains("dump_llama2c.py --model 'a model.bin' --prompt Hello"), "{advice}");
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let machine = Machine::new(&["mine"]);
    machine.run(&["run", "--model", "hf", "--yes"]).refused(&["--make-references"]);
    machine.run(&["run", "--model", "hf", "--with", "mlx"]).refused(&["--make-references"]);
    for other in [["--reference", "mine"], ["--case", "mine"]] {
        let finished = machine.run(&[&["run", "--model", "hf", "--make-references"][..], &other].concat());
        assert!(finished.code == 2 && finished.stderr.contains("cannot be used with"), "{}", finished.stderr);
    }
    let off = Machine::new(&["mine"]).with("XCHECK_CACHE", "off");
    off.run(&["reference", "--model", "hf", "--python", "mine"]).refused(&["XCHECK_CACHE"]);
}

#[test]
fn a_place_that_cannot_be_written_is_found_out_before_anything_is_installed() {
    let machine = Machine::new(&["python3"]);
    fs::write(machine.at("hf/dumps"), "a file").expect("it is written");
    let finished = machine.run(&["reference", "--model", "hf", "--yes"]);
    let said = finished.stderr.lines().last().expect("an error");
    assert!(finished.code == 2 && said.contains("hf/dumps") && said.contains("--out"), "{said}");
    assert!(!machine.told().contains("-m venv"), "{}", machine.told());
}
