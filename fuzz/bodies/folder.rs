//! A folder of Hugging Face of which one file is not what it should be.

use std::path::Path;

use xcheck::error::{Error, Result};
use xcheck::format::{FileBytes, FileStore};
use xcheck::model::ModelFiles;

/// A file that ships, with its name in the folder.
macro_rules! shipped {
    ($folder:literal, $($name:literal),*) => {
        [$(($name, include_bytes!(concat!("../../checkpoints/", $folder, "/hf/", $name)).as_slice())),*]
    };
}

/// A model in two shards, with the tokenizer of another.
const SHIPPED: [(&str, &[u8]); 5] = shipped!(
    "tiny-llama3",
    "config.json",
    "generation_config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json"
);
const TOKENIZER: [(&str, &[u8]); 2] = shipped!("tiny-llama2", "tokenizer.json", "tokenizer_config.json");

/// What the first byte chooses from: the file that the others are.
const REPLACED: [&str; 8] = [
    "config.json",
    "config.json",
    "model.safetensors.index.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model-00002-of-00002.safetensors",
];

/// The folder `m`, with one file replaced.
struct Folder<'d> {
    name: &'static str,
    content: &'d [u8],
}

impl FileStore for Folder<'_> {
    fn is_folder(&self, path: &Path) -> bool {
        path == "m"
    }

    fn find(&self, path: &Path) -> Result<Option<FileBytes>> {
        if path == Path::new("m").join(self.name) {
            return Ok(Some(FileBytes { path: path.to_owned(), data: self.content.to_vec().into() }));
        }
        let shipped = SHIPPED.iter().chain(&TOKENIZER).find(|(name, _)| path == Path::new("m").join(name));
        Ok(shipped.map(|(_, bytes)| FileBytes::embedded(path, bytes)))
    }

    fn require(&self, path: &Path) -> Result<FileBytes> {
        self.find(path)?.ok_or_else(|| Error::io("open", path)(std::io::ErrorKind::NotFound.into()))
    }
}

/// The model of such a folder, and how it converses.
pub fn folder(data: &[u8]) -> bool {
    let Some((&which, content)) = data.split_first() else { return false };
    let place = Folder { name: REPLACED[usize::from(which) % REPLACED.len()], content };
    let Ok(files) = ModelFiles::open_in(&place, Path::new("m")) else { return false };
    _ = files.tensor_hashes();
    let loaded = files.load();
    if let Ok(loaded) = &loaded {
        let sizes = loaded.model.dimensions();
        assert!(sizes.n_layers > 0 && sizes.vocab_size > 0, "nothing that can be run");
    }
    files.chat(None).is_ok() && loaded.is_ok()
}
