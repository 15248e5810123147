//! One word for one thing: what several rooms have had types of, each of another meaning, is declared once.

use crate::common::sources;

/// Whose they are: an honest engine's choice, a finding of the diagnosis, a format of weight files, the code of dot products,
/// patterns of arrays' names, a forward pass of a dump, who reads a pickle, and how the hub is used.
const WORDS: [&str; 8] = ["Choice", "Finding", "Format", "Kernel", "Names", "Pass", "Reader", "Settings"];

#[test]
fn each_word_names_one_type() {
    let source = sources::text();
    let counts = WORDS.map(|word| (word, declarations(&source, word).len()));
    assert_eq!(counts, WORDS.map(|word| (word, 1)));
}

#[test]
fn a_second_type_of_a_name_is_found_however_it_is_declared() {
    let ways = [
        "struct Pass;",
        "pub struct Pass {",
        "    pub(super) enum Pass<'p> {",
        "trait Pass: Copy {",
        "pub(crate) unsafe trait Pass {",
        "pub type Pass = u32;",
        "union Pass {",
    ];
    for way in ways {
        assert_eq!(declarations(&format!("struct Passes;\n{way}\n"), "Pass"), [way]);
    }
    let others = "struct Passes;\nenum Told { Pass }\nuse crate::dump::Pass;\n// struct Pass;\nimpl Pass {\nModelPass\n";
    assert_eq!(declarations(others, "Pass"), [""; 0]);
}

/// The lines that declare a type of that name.
fn declarations<'s>(source: &'s str, word: &str) -> Vec<&'s str> {
    let declares = |line: &&str| {
        let code = line.split("//").next().unwrap_or_default();
        let mut names =
            code.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|name| !name.is_empty());
        names.any(|name| ["struct", "enum", "trait", "type", "union"].contains(&name))
            && names.next() == Some(word)
    };
    source.lines().filter(declares).collect()
}
