//! Unique names of dumps.

use std::collections::HashSet;
use std::path::Path;

/// Returns unique names of dumps: the shortest end of the path or argument that no other dump has, otherwise
/// a number.
pub(super) fn names(dumps: &[[&str; 2]]) -> Vec<String> {
    let is_shared = |at: usize| dumps.iter().filter(|other| other[0] == dumps[at][0]).count() > 1;
    let mut taken: HashSet<String> =
        (0..dumps.len()).filter(|&at| !is_shared(at)).map(|at| dumps[at][0].to_owned()).collect();
    let mut names = Vec::new();
    for (at, dump) in dumps.iter().enumerate() {
        if !is_shared(at) {
            names.push(dump[0].to_owned());
            continue;
        }
        let twins: Vec<_> =
            dumps.iter().enumerate().filter(|(other, twin)| *other != at && twin[0] == dump[0]).collect();
        let is_own =
            |parts: usize| twins.iter().all(|(_, twin)| longer(**twin, parts) != longer(*dump, parts));
        let parts = (0..Path::new(dump[1]).components().count()).find(|&parts| is_own(parts));
        let name = parts.map_or_else(|| dump[0].to_owned(), |parts| longer(*dump, parts));
        let numbered = (2..).map(|number| format!("{name} ({number})"));
        let name =
            [name.clone()].into_iter().chain(numbered).find(|name| !taken.contains(name)).unwrap_or(name);
        taken.insert(name.clone());
        names.push(name);
    }
    names
}

/// Returns the name preceded by this many parent directories. If there are none, adds the container's name.
fn longer([name, typed]: [&str; 2], folders: usize) -> String {
    let parts: Vec<_> = Path::new(typed).iter().map(|part| part.to_string_lossy()).collect();
    let Some((last, before)) = parts.split_last() else { return name.to_owned() };
    match folders {
        0 => last.clone().into_owned(),
        folders => {
            let before = &before[before.len().saturating_sub(folders)..];
            before.iter().map(AsRef::as_ref).chain([name]).collect::<Vec<&str>>().join("/")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn each_has_the_shortest_name_of_its_own() {
        assert_eq!(names(&[["d", "a/d"], ["e", "b/e"]]), ["d", "e"]);
        assert_eq!(names(&[["d", "x/a/d.npz"], ["d", "x/b/d.npz"], ["e", "e"]]), ["a/d", "b/d", "e"]);
        assert_eq!(names(&[["d", "a/x/d"], ["d", "b/x/d"]]), ["a/x/d", "b/x/d"]);
        assert_eq!(names(&[["d", "a/d.npz"], ["d", "a/d.safetensors"]]), ["d.npz", "d.safetensors"]);
        assert_eq!(names(&[["d#0", "a/d#0"], ["d#1", "a/d#1"], ["d#0", "b/d#0"]]), ["a/d#0", "d#1", "b/d#0"]);
    }

    #[test]
    fn one_that_is_given_twice_is_numbered() {
        assert_eq!(names(&[["d", "a/d"], ["d", "a/d"], ["d (2)", "d (2)"]]), ["d", "d (3)", "d (2)"]);
    }
}
