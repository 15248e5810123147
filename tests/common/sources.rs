//! The source of the program: that of the engine, of what judges, and of the command.

use std::fs;
use std::path::Path;

/// A file of it.
pub struct SourceFile {
    /// The folder of its package's source, as `engine/src`.
    pub root: &'static str,
    /// Where it lies there, as `exact/value.rs`.
    pub path: String,
    pub text: String,
}

/// All that is compiled of the packages.
pub fn files() -> Vec<SourceFile> {
    let mut files = Vec::new();
    for root in ["engine/src", "judge/src", "src"] {
        collect(root, &Path::new(env!("CARGO_MANIFEST_DIR")).join(root), &mut files);
    }
    files
}

/// Their text, one behind the other.
pub fn text() -> String {
    files().into_iter().map(|file| file.text).collect()
}

fn collect(root: &'static str, folder: &Path, files: &mut Vec<SourceFile>) {
    for entry in fs::read_dir(folder).expect("it is there") {
        let path = entry.expect("it is listed").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let top = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
            let below = path.strip_prefix(top).expect("it is below").display().to_string().replace('\\', "/");
            let text = fs::read_to_string(&path).expect("it is text");
            files.push(SourceFile { root, path: below, text });
        }
    }
}
