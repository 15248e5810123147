//! The source of the program: that of the engine, and of what judges.

use std::path::{Path, PathBuf};

/// The folders of both packages.
pub fn folders() -> [PathBuf; 2] {
    ["engine/src", "src"].map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
}
