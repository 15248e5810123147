//! One word for one thing: a type has a name of its own, and modules and types are called by nouns.

use std::collections::BTreeMap;

use crate::common::sources;

/// Words that no name starts with.
const PREPOSITIONS: &str = "about above after along around as at before behind below beside between beyond by for from in \
    inside into near of off on onto out outside over past through to toward under until upon with within without";

/// Words that are no name by themselves.
const PARTICIPLES: &str = "activated added bounded cached changed changing checked chosen compared computed copied counted cut \
    decoded detected done embedded ended ending examined expected explained failed figured finished \
    fixed found fused gathered given hashed held hidden identified inferred joined judged judging kept \
    known learned left limited listed loaded made making mapped marked masked matched measured merged \
    merging met missing mixed moved moving named nested noisy normed packed padded paired parsed picked \
    placed placing planned planted promised quantised quantized read reading rearranged recorded refused \
    removed renamed replaced resolved resummed reused rotated rounded routed running said sampled saved \
    scaled scored searched seen selected served settled shared shifted shipped shown signed skipped \
    sorted sought spaced split started stated stored streamed strided summed supposed taken tapped tiled \
    told traced tried turned unexplained unfinished unknown unpacked unrounded unsaid unseen unsigned \
    used waived wanted watched weighed";

#[test]
fn a_type_name_exists_once() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in sources::files() {
        for name in declared(&file.text) {
            places.entry(name.to_owned()).or_default().push(format!("{}/{}", file.root, file.path));
        }
    }
    let repeated: Vec<_> = places.iter().filter(|(_, files)| files.len() > 1).collect();
    assert_eq!(repeated, Vec::new(), "each of these types needs another name");
    assert!(places.len() > 700, "all are read");
}

#[test]
fn names_are_nouns() {
    let mut wrong = Vec::new();
    for file in sources::files() {
        let module = file.path.trim_end_matches(".rs").trim_end_matches("/mod").rsplit('/').next();
        let names = module.into_iter().chain(declared(&file.text)).filter(|name| !is_noun(name));
        wrong.extend(names.map(|name| format!("{}/{}: {name}", file.root, file.path)));
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn a_declaration_is_found_however_it_is_written() {
    let ways = [
        "struct Pass;",
        "pub struct Pass {",
        "    pub(super) enum Pass<'p> {",
        "    pub(in super::super) struct Pass;",
        "trait Pass: Copy {",
        "pub(crate) unsafe trait Pass {",
        "pub type Pass = u32;",
        "union Pass {",
    ];
    for way in ways {
        assert_eq!(declared(&format!("use a::Type;\n{way}\n")), ["Pass"], "{way}");
    }
    let others = "enum $name {\nuse crate::dump::Pass;\n// struct Pass;\nimpl Pass {\nModelPass\n    type Value = Pass;\n";
    assert_eq!(declared(others), [""; 0]);
}

#[test]
fn participles_and_prepositions_are_found() {
    for name in ["Judged", "judged", "At", "with_cache", "WithCache", "Known", "placing"] {
        assert!(!is_noun(name), "{name}");
    }
    for name in [
        "InputTensor",
        "input",
        "TracedNumerics",
        "Tokenizer",
        "tokenizer",
        "Attention",
        "atomic_write",
        "F32",
    ] {
        assert!(is_noun(name), "{name}");
    }
}

/// Returns the names of the types that a file declares, without associated types.
fn declared(text: &str) -> Vec<&str> {
    fn name(line: &str) -> Option<&str> {
        // An associated type is indented.
        let is_inside = line.starts_with(' ');
        let mut rest = line.trim_start();
        if let Some(after) = rest.strip_prefix("pub") {
            rest = after.trim_start();
            rest = if rest.starts_with('(') { rest.split_once(')')?.1.trim_start() } else { rest };
        }
        let (keyword, name) = rest.strip_prefix("unsafe ").unwrap_or(rest).split_once(' ')?;
        let is_type =
            ["struct", "enum", "trait", "union"].contains(&keyword) || keyword == "type" && !is_inside;
        let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(name.len());
        (is_type && name.starts_with(char::is_uppercase)).then_some(&name[..end])
    }
    text.lines().filter_map(name).collect()
}

/// Returns false for a name that starts with a preposition or is a participle.
fn is_noun(name: &str) -> bool {
    let starts = name.char_indices().skip(1).filter(|(_, c)| *c == '_' || c.is_uppercase());
    let end = starts.map(|(at, _)| at).next().unwrap_or(name.len());
    let is_in = |words: &str, word: &str| words.split_whitespace().any(|one| one == word.to_lowercase());
    !is_in(PREPOSITIONS, &name[..end]) && !is_in(PARTICIPLES, name)
}
