//! The source of the program: that of the engine, and of what judges.

use std::fs;
use std::path::{Path, PathBuf};

/// A file of it.
pub struct SourceFile {
    /// The folder of its package's source.
    pub root: PathBuf,
    /// Where it lies there, as `exact/value.rs`.
    pub path: String,
    pub text: String,
}

/// All that is compiled of both packages.
pub fn files() -> Vec<SourceFile> {
    let roots = ["engine/src", "src"].map(|root| Path::new(env!("CARGO_MANIFEST_DIR")).join(root));
    let mut files = Vec::new();
    roots.iter().for_each(|root| collect(root, root, &mut files));
    files
}

/// Their text, one behind the other.
pub fn text() -> String {
    files().into_iter().map(|file| file.text).collect()
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<SourceFile>) {
    for entry in fs::read_dir(folder).expect("it is there") {
        let path = entry.expect("it is listed").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let below =
                path.strip_prefix(root).expect("it is below").display().to_string().replace('\\', "/");
            let text = fs::read_to_string(&path).expect("it is text");
            files.push(SourceFile { root: root.to_owned(), path: below, text });
        }
    }
}
