//! GGUF models in several files, as the gguf package splits them.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use xcheck::format::gguf::PartName;
use xcheck::format::{FileBytes, Gguf};
use xcheck::model::ModelFiles;

use super::{generate, load, root};
use crate::common::architecture;
use crate::common::terminal::Terminal;

const STEM: &str = "tiny-qwen3-yarn-q8_0";

fn part(number: usize) -> String {
    format!("{STEM}-0000{number}-of-00003.gguf")
}

fn whole() -> PathBuf {
    architecture("tiny-qwen3-yarn").join(format!("{STEM}.gguf"))
}

/// A copy of the parts, which a test may damage.
fn parts() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for number in 1..=3 {
        let name = part(number);
        fs::copy(root("tests/data/model-files/split").join(&name), folder.path().join(&name))
            .expect("it is committed");
    }
    folder
}

fn refusal(path: &Path) -> String {
    match load(path) {
        Ok(_) => panic!("{} must be refused", path.display()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn any_part_of_a_split_gguf_finds_the_others() {
    let folder = parts();
    let expected = generate(&load(&whole()).expect("it is sound"), &[1, 5, 9], 8);
    let original = Gguf::read(&FileBytes::open(&whole()).expect("it is committed")).expect("it is sound");
    for number in 1..=3 {
        let files = ModelFiles::open(&folder.path().join(part(number))).expect("all parts are there");
        let joined = Gguf::read_parts(files.weights()).expect("they belong together").tensors;
        assert_eq!(joined.len(), original.tensors.len());
        for (name, tensor) in original.tensors.iter() {
            let read = joined.get(name).expect("no tensor is lost");
            assert_eq!((read.dtype, &read.shape), (tensor.dtype, &tensor.shape), "{name}");
            assert_eq!(*read.data, *tensor.data, "{name}");
        }
        assert_eq!(generate(&files.load().expect("it is sound"), &[1, 5, 9], 8), expected);
    }
}

#[test]
fn a_missing_part_of_a_split_gguf_is_named() {
    for number in 1..=3 {
        let folder = parts();
        fs::remove_file(folder.path().join(part(number))).expect("it was there");
        let given = folder.path().join(part(if number == 1 { 2 } else { 1 }));
        let message = refusal(&given);
        assert!(
            message.contains(&format!("{} is missing", folder.path().join(part(number)).display())),
            "{message}"
        );
        Terminal::new().assert_refused(
            &["generate", "--model", &given.display().to_string(), "--tokens", "1"],
            &part(number),
        );
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let swapped = parts();
    fs::copy(swapped.path().join(part(2)), swapped.path().join(part(3))).expect("it is there");
    assert!(refusal(&swapped.path().join(part(1))).contains("'split.no' is 1, expected 2"));
    let foreign = parts();
    fs::copy(whole(), foreign.path().join(part(2))).expect("it is there");
    assert!(refusal(&foreign.path().join(part(1))).contains("'split.count' is 1, expected 3"));
    let renamed = parts();
    fs::rename(renamed.path().join(part(1)), renamed.path().join("model.gguf")).expect("it is there");
    assert!(refusal(&renamed.path().join("model.gguf")).contains("'split.count' is 3, expected 1"));
}

/// The file decides if there are other parts, not its name, like in llama.cpp.
#[test]
fn a_whole_model_may_have_the_name_of_a_part() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model-00001-of-00002.gguf");
    fs::copy(whole(), &path).expect("it is committed");
    assert_eq!(ModelFiles::open(&path).expect("it is sound").weights().len(), 1);
    assert!(load(&path).is_ok());
}

#[test]
fn names_of_parts_have_five_digits_and_a_known_index() {
    let name = PartName::parse("folder/m-00002-of-00003.gguf").expect("it is the name of a part");
    assert_eq!(name.all().nth(2).as_deref(), Some("folder/m-00003-of-00003.gguf"));
    for other in
        ["m.gguf", "m-2-of-3.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-0000a-of-00003.gguf"]
    {
        assert_eq!(PartName::parse(other), None, "{other}");
    }
}
