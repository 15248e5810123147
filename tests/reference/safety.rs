//! Nothing that merely lies where a command is typed is run: a model's folder may be a stranger's. This needs a real Python.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::machine::Machine;
use crate::common::skip::skip;

/// What Python, venv and pip import or run.
const HOSTILE: [&str; 7] = ["venv", "pip", "ensurepip", "json", "runpy", "importlib", "torch"];
const CODE: &str = "import os; open(os.environ['HOSTILE_RAN'], 'a').write(__name__ + ' ')\n";

/// A machine with the real Python as `python3`, and hostile modules where commands are typed. `None` without such a Python.
fn machine() -> Option<Machine> {
    let ask = "import sys, venv, ensurepip; print(sys.executable if sys.version_info >= (3, 11) else '')";
    let asked = Command::new("python3").args(["-c", ask]).output().ok()?;
    let python = String::from_utf8(asked.stdout).ok().filter(|path| !path.trim().is_empty());
    let Some(python) = python else {
        skip("no python3 of 3.11 or newer with venv and ensurepip");
        return None;
    };
    // Nothing is to be had from a network, nor needed.
    let mut machine = Machine::new(&[]).with("PIP_NO_INDEX", "1");
    machine.set("HOSTILE_RAN", machine.at("ran").to_str().expect("plain"));
    symlink(python.trim(), machine.at("bin/python3")).expect("it is linked");
    for module in HOSTILE {
        fs::write(machine.at(&format!("{module}.py")), CODE).expect("it is written");
    }
    Some(machine)
}

fn ran(machine: &Machine) -> String {
    fs::read_to_string(machine.at("ran")).unwrap_or_default()
}

#[test]
fn modules_in_the_current_directory_are_not_imported() {
    let Some(machine) = machine() else { return };
    let finished = machine.run(&["reference", "--model", "hf", "--yes"]);
    let said = finished.stderr.lines().last().expect("an error");
    assert!(finished.code == 2 && said.contains("No matching distribution found"), "it comes to pip: {said}");
    assert_eq!(ran(&machine), "");

    // Without care they are: the check can fail.
    let careless = Command::new(machine.at("bin/python3"))
        .args(["-m", "venv", "made"])
        .env("HOSTILE_RAN", machine.at("ran"))
        .current_dir(machine.at(""))
        .env_remove("PYTHONSAFEPATH")
        .output();
    careless.expect("it starts");
    assert!(ran(&machine).contains("venv") || ran(&machine).contains("__main__"), "{}", ran(&machine));
}

#[test]
fn a_module_in_the_current_directory_is_none_of_the_environment() {
    let Some(machine) = machine() else { return };
    // A new environment has no packages, so torch can only be the hostile module.
    let empty = Command::new(machine.at("bin/python3"))
        .args(["-I", "-m", "venv", "--without-pip"])
        .arg(machine.at("empty"))
        .output();
    assert!(empty.expect("it starts").status.success());
    let reference = ["reference", "--model", "hf", "--python", "empty/bin/python3"];
    assert!(machine.run(&reference).refused(&["no module torch"]).contains("pip install"));
    assert_eq!(ran(&machine), "");
}
