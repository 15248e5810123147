//! `xcheck models`: what ships.

use comfy_table::{Table, presets};

use crate::compare::Verdict;
use crate::error::Result;
use crate::shipped;

/// Lists the models inside the binary and how to name others.
pub fn run() -> Result<Verdict> {
    for model in shipped::MODELS {
        anstream::println!("{}: {}", model.name, model.description);
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["format", "first file", "size", "dumps made from it"]);
        let references = model.references()?;
        for (name, files) in model.variants() {
            let sha256 = files.sha256();
            let made: Vec<&str> = references
                .iter()
                .filter(|(_, dump)| dump.manifest.model.sha256.as_ref() == Some(&sha256))
                .map(|(name, _)| name.as_str())
                .collect();
            let bytes: usize = files.weights().iter().map(|file| file.data.len()).sum();
            let first = files.weights()[0].path.display().to_string();
            table.add_row([name, first, format!("{} KB", bytes / 1024), made.join(", ")]);
        }
        anstream::println!("{}\n", table.trim_fmt());
    }
    anstream::println!(
        "--model also takes a path: a GGUF file, or a directory with config.json and model.safetensors."
    );
    anstream::println!(
        "Dumps are found in a folder 'dumps' beside the file or in the directory, or named with --reference."
    );
    Ok(Verdict::Pass)
}
