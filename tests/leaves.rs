//! Files of the packages with tests of what only they see. They use nothing of their package and are compiled here, once more:
//! else the packages would be, as a whole.
#![allow(dead_code)]

use crate::common::sources;

macro_rules! leaves {
    ($($name:ident $path:literal)*) => {
        $(#[path = $path] mod $name;)*

        /// What is compiled here.
        const LEAVES: &[&str] = &[$($path),*];
    };
}

leaves! {
    exponential "../engine/src/exponential.rs"
    interval "../judge/src/kld/interval.rs"
    remaining_time "../src/cli/remaining_time.rs"
    residual "../judge/src/identify/residual.rs"
    rounding "../engine/src/quant/rounding.rs"
    tiles "../engine/src/exact/tiles.rs"
    unique_names "../src/cli/unique_names.rs"
}

/// Neither a test nor an example is compiled anywhere else: Cargo.toml says so of every package.
#[test]
fn what_only_its_own_file_sees_is_tested_nowhere_else() {
    let is_here = |root: &str, path: &str| LEAVES.contains(&format!("../{root}/{path}").as_str());
    for file in sources::files() {
        let has_tests = file.text.contains("#[cfg(test)]") || file.text.contains("#[test]");
        assert!(
            !has_tests || is_here(file.root, &file.path),
            "{}/{}: its tests do not run",
            file.root,
            file.path
        );
        let lines = file.text.lines().map(str::trim_start).filter(|line| line.starts_with("//"));
        let fences: Vec<_> = lines.filter(|line| line.contains("```")).step_by(2).collect();
        let are_text = fences.iter().all(|fence| fence.ends_with("```text"));
        assert!(are_text, "{}/{}: an example that does not run", file.root, file.path);
    }
}
