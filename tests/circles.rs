//! Inside rooms, too, data flows one way: no two files use each other, not even by way of others.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::sources;

/// The path of a module, `exact::value` as two names.
pub type Module = Vec<String>;

/// The code of each module.
type Code = BTreeMap<Module, String>;

#[test]
fn no_modules_use_each_other() {
    let code: Code = sources::files().into_iter().map(|file| (module(&file.path), file.text)).collect();
    assert!(code.len() > 300, "all are read");
    assert_eq!(circles(&code), Vec::<String>::new());
}

#[test]
fn a_circle_is_found_however_it_is_written() {
    let code = |files: [(&str, &str); 3]| {
        let module = |name: &str| name.split("::").map(str::to_owned).collect();
        circles(&files.map(|(name, code)| (module(name), code.to_owned())).into())
    };
    let sound =
        [("a", "mod b; use b::X;"), ("a::b", "use super::Y; // super::c"), ("a::c", "use super::b::X;")];
    assert_eq!(code(sound), Vec::<String>::new());
    let direct = [("a", ""), ("a::b", "use super::c::Y;"), ("a::c", "let x = crate::a::b::X;")];
    assert_eq!(code(direct), ["a::b -> a::c", "a::c -> a::b"]);
    let nested =
        [("a", "use crate::{d::Z, f};"), ("d", "use crate::{f::{self, W}};"), ("f", "use crate::a;")];
    assert_eq!(code(nested), ["a -> d", "a -> f", "d -> f", "f -> a"]);
}

/// Who uses whom, of those that are in a circle, or between two.
fn circles(code: &Code) -> Vec<String> {
    let mut uses: BTreeSet<(&Module, &Module)> = BTreeSet::new();
    for (module, text) in code {
        for named in paths(text, module) {
            let ends = (1..=named.len()).rev();
            let used = ends.filter_map(|end| code.get_key_value(&named[..end])).map(|(used, _)| used).next();
            // A room has what is inside of it.
            uses.extend(used.filter(|used| !used.starts_with(module)).map(|used| (module, used)));
        }
    }
    loop {
        let (before, last) = (uses.len(), uses.clone());
        let goes_on = |module| last.iter().any(|(from, _)| *from == module);
        let is_met = |module| last.iter().any(|(_, to)| *to == module);
        uses.retain(|(from, to)| goes_on(*to) && is_met(*from));
        if uses.len() == before {
            return uses
                .iter()
                .map(|(from, to)| format!("{} -> {}", from.join("::"), to.join("::")))
                .collect();
        }
    }
}

/// What a file is in the tree of modules.
pub fn module(path: &str) -> Module {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    path.strip_suffix("/mod").unwrap_or(path).split('/').map(str::to_owned).collect()
}

/// What a module's code names of this crate, in full.
pub fn paths(text: &str, module: &Module) -> Vec<Module> {
    // Unit tests stand at the end of a file, one module deeper, and use what they test.
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let text: String = lines.collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        tree(&text[at + "crate::".len()..], &[], &mut found);
    }
    for (at, _) in text.match_indices("super::").filter(|(at, _)| !text[..*at].ends_with("super::")) {
        let rest = text[at..].trim_start_matches("super::");
        let up = (text.len() - at - rest.len()) / "super::".len();
        tree(rest, &module[..module.len().saturating_sub(up)], &mut found);
    }
    found
}

/// The paths of a tree such as `a::{b, c::d}`.
fn tree(text: &str, before: &[String], found: &mut Vec<Module>) {
    if let Some(inside) = text.strip_prefix('{') {
        return branches(inside).into_iter().for_each(|branch| tree(branch.trim(), before, found));
    }
    let name: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let path =
        if name == "self" { before.to_owned() } else { [before, std::slice::from_ref(&name)].concat() };
    match text[name.len()..].strip_prefix("::") {
        Some(rest) => tree(rest, &path, found),
        None => found.push(path),
    }
}

/// What stands between commas, up to the brace that closes.
fn branches(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                found.push(&text[start..at]);
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    found
}
