//! Environments: made once, whole or not at all, by one process at a time.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use xcheck::disk_cache::DiskCache;
use xcheck::reference::{PendingOutput, ReferenceEngine, ReferenceFolder};

use super::machine::{Machine, SHIPPED};
use crate::common::finished::Finished;

const REFERENCE: [&str; 4] = ["reference", "--model", "hf", "--yes"];

fn workplace(machine: &Machine) -> ReferenceFolder {
    ReferenceFolder::in_kept(&DiskCache::in_folder(machine.at("cache"), 0)).expect("a folder")
}

#[test]
fn pip_installs_what_is_locked_and_nothing_else_and_once() {
    let machine = Machine::new(&["python3"]);
    let finished = machine.run(&REFERENCE);
    assert!(
        finished.stderr.contains("torch==2.")
            && finished.stderr.contains(ReferenceEngine::Transformers.size()),
        "{}",
        finished.stderr
    );
    finished.succeeded();
    let told = machine.told();
    let install = told.lines().find(|line| line.contains("-m pip install")).expect("it installs");
    assert!(install.contains("--no-deps --require-hashes --requirement"), "{install}");
    let locked = install.trim().rsplit_once(' ').expect("the file comes last").1;
    let locked = fs::read_to_string(locked).expect("it was written out");
    assert!(locked.contains("torch==") && locked.contains("--hash=sha256:"), "{locked}");
    assert_eq!(machine.names("cache/environments").len(), 1);

    fs::remove_dir_all(machine.at("hf/dumps")).expect("it was made");
    machine.run(&["reference", "--model", "hf"]).succeeded(); // nobody need agree to what is there
    assert_eq!(machine.told().matches("-m pip install").count(), 1);
}

#[test]
fn uv_goes_before_pip() {
    let machine = Machine::new(&["python3", "uv"]);
    machine.run(&REFERENCE).succeeded();
    let told = machine.told();
    assert!(told.contains("uv venv --python >=3.11") && told.contains("uv pip install --python"), "{told}");
    assert!(told.contains("--no-deps --require-hashes") && !told.contains("-m venv"), "{told}");
}

#[test]
fn the_environment_of_llama_cpp_is_what_its_build_script_makes() {
    let dump = format!("{SHIPPED}/dumps/llama.cpp-f32.safetensors");
    let machine = Machine::new(&["python3", "bash", "cc", "c++"]).with("FAKE_DUMP", &dump);
    machine.run(&["run", "--model", "model.gguf", "--make-references", "--yes"]).succeeded();
    let told = machine.told();
    let built = told.lines().find(|line| line.starts_with("bash ")).expect("it is built");
    let script = built.split_whitespace().nth(1).expect("the script");
    let requirements =
        fs::read_to_string(script.replace("dump/build_dump_llama_cpp.sh", "requirements-llama-cpp.txt"));
    let requirements = requirements.expect("where the script looks for it");
    assert!(
        requirements.contains("--no-binary llama-cpp-python") && requirements.contains("--hash="),
        "{requirements}"
    );
}

#[test]
fn where_installing_fails_nothing_is_left_but_the_log() {
    let machine = Machine::new(&["python3"]).with("FAKE", "pip-fails");
    let finished = machine.run(&["run", "--model", "hf", "--make-references", "--yes"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (2, ""), "{}", finished.stderr);
    let said = finished.stderr.lines().last().expect("an error");
    for part in
        ["No matching distribution found for torch", "come from PyPI", "--python", "cache/logs/transformers-"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    machine.assert_nothing_left();
}

#[test]
fn killed_while_it_installs_and_started_again_it_works() {
    for programs in [&["python3"][..], &["python3", "uv"]] {
        let mut machine = Machine::new(programs).with("FAKE", "pip-hangs");
        machine.run_and_kill(&REFERENCE);
        let begun = machine.names("cache/environments");
        assert!(begun.len() == 1 && begun[0].contains(".making-"), "{begun:?}");
        machine.set("FAKE", "");
        machine.run(&REFERENCE).succeeded();
        let made = machine.names("cache/environments");
        assert!(made.len() == 1 && made[0].starts_with("transformers-"), "{made:?}");
        assert_eq!(machine.names("hf/dumps"), ["transformers-f32.safetensors"]);
    }
}

#[test]
fn a_damaged_environment_is_made_again() {
    let machine = Machine::new(&["python3"]);
    machine.run(&REFERENCE).succeeded();
    let environment = workplace(&machine).environment(ReferenceEngine::Transformers);
    fs::remove_file(environment.join("installed")).expect("it was installed");
    fs::write(environment.join("old"), "").expect("it is written");
    fs::remove_dir_all(machine.at("hf/dumps")).expect("it was made");
    machine.run(&REFERENCE).succeeded();
    assert!(environment.join("installed").exists() && !environment.join("old").exists());
}

#[test]
fn who_comes_second_waits_and_makes_nothing_twice() {
    let machine = Machine::new(&["python3"]);
    let workplace = workplace(&machine);
    let place = workplace.environment(ReferenceEngine::Transformers);
    let name = place.file_name().expect("a name").to_str().expect("plain");
    let making =
        PendingOutput::begin(&place, &workplace.lock(name), || panic!("nobody is there")).expect("the lock");
    let second = machine.start(&REFERENCE);
    sleep(Duration::from_millis(500));
    assert!(!machine.told().contains("-m venv"), "{}", machine.told());

    fs::create_dir_all(making.part("environment/bin")).expect("a folder");
    fs::copy(machine.at("program"), making.part("environment/bin/python")).expect("it is copied");
    fs::write(making.part("environment/installed"), "").expect("it is written");
    making.finish("environment").expect("it is moved");
    let finished = Finished::of(second.wait_with_output().expect("it ends"));
    assert!(
        finished.stderr.contains("waiting for another xcheck that is making this environment"),
        "{}",
        finished.stderr
    );
    finished.succeeded();
    assert!(!machine.told().contains("-m venv"), "{}", machine.told());
}

#[test]
fn what_another_works_on_is_not_swept_away_whatever_lock_it_holds() {
    let machine = Machine::new(&[]);
    let place = machine.at("dumps/one.safetensors");
    let begin = |lock: &str| {
        PendingOutput::begin(&place, &machine.at(lock), || panic!("nobody is there")).expect("a folder")
    };
    // Two caches have two locks.
    let (first, second) = (begin("cache/lock"), begin("other-cache/lock"));
    fs::write(first.part("part"), "first").expect("its folder is there");
    fs::write(second.part("part"), "second").expect("its folder is there");
    assert_eq!(machine.names("dumps").len(), 2);
    // What nobody works on any more goes; what nobody is known to work on has a minute.
    fs::create_dir(machine.at("dumps/.one.safetensors.making-old")).expect("a folder");
    fs::write(machine.at("dumps/.one.safetensors.making-old/.held"), "").expect("it is written");
    fs::create_dir(machine.at("dumps/.one.safetensors.making-new")).expect("a folder");
    drop(begin("third-cache/lock"));
    let left = machine.names("dumps");
    assert!(left.len() == 3 && left.contains(&".one.safetensors.making-new".to_owned()), "{left:?}");

    first.finish("part").expect("nothing is there");
    let refused = second.finish("part").expect_err("something is there").to_string();
    assert!(refused.contains("in the meantime") && refused.contains("one.safetensors"), "{refused}");
    assert_eq!(fs::read_to_string(&place).expect("it stays"), "first");
}

#[test]
fn an_environment_of_ours_hears_nothing_of_modules_elsewhere() {
    let machine =
        Machine::new(&["python3", "mine"]).with("PYTHONPATH", "elsewhere").with("PYTHONHOME", "elsewhere");
    machine.run(&REFERENCE).succeeded();
    assert!(!machine.told().contains("looks elsewhere"), "{}", machine.told());
    // One of the user's is as the user made it.
    fs::remove_dir_all(machine.at("hf/dumps")).expect("it was made");
    machine.run(&["reference", "--model", "hf", "--python", "mine"]).succeeded();
    assert_eq!(machine.told().matches("mine -c looks elsewhere").count(), 1, "{}", machine.told());
}
