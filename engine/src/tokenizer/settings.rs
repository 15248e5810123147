//! Settings of a tokenizer in the files beside it: `tokenizer_config.json`, `added_tokens.json` and
//! `special_tokens_map.json`, with the rules of transformers 5.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizers::AddedToken;

use crate::error::{Error, Result};
use crate::format::{FileBytes, FileStore};
use crate::tokenizer::library::caught;

const CONFIG: &str = "tokenizer_config.json";
const ADDED: &str = "added_tokens.json";
const SPECIAL: &str = "special_tokens_map.json";
const MODEL: &str = "config.json";
/// Key of the tokens that the vocabulary lacks, by id.
const DECODER: &str = "added_tokens_decoder";
/// Keys of further special tokens; the first one that states any counts.
const EXTRA: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];
/// Keys of special tokens, in the order in which transformers adds them.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Architectures whose tokenizers transformers reads without a class of their own, regardless of the files.
const CLASSLESS: [&str; 5] = ["mistral", "mixtral", "olmo2", "granite", "phi3"];

/// Files beside a tokenizer.
#[derive(Clone, Debug, Default)]
pub struct SettingsFiles {
    /// `tokenizer_config.json`, if there is one.
    pub config: Option<FileBytes>,
    /// `added_tokens.json`, if there is one.
    pub(crate) added: Option<FileBytes>,
    /// `special_tokens_map.json`, if there is one.
    pub(crate) special: Option<FileBytes>,
    /// `config.json` of the model, if there is one.
    pub(crate) model: Option<FileBytes>,
}

impl SettingsFiles {
    /// Finds the files in a folder.
    ///
    /// # Errors
    /// If a file cannot be opened.
    pub(crate) fn in_folder(place: &dyn FileStore, folder: &Path) -> Result<Self> {
        let open = |name: &str| place.find(&folder.join(name));
        Ok(Self { config: open(CONFIG)?, added: open(ADDED)?, special: open(SPECIAL)?, model: open(MODEL)? })
    }

    /// Creates the settings of a `tokenizer_config.json` alone.
    pub fn of_config(config: Option<FileBytes>) -> Self {
        Self { config, ..Self::default() }
    }
}

/// Classes of transformers whose rules differ from the ones that the files of a tokenizer state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenizerClass {
    /// No class: `tokenizer.json` states everything.
    Backend,
    /// `LlamaTokenizer`.
    Llama,
    /// `Qwen2Tokenizer`.
    Qwen2,
    /// `GPT2Tokenizer`.
    Gpt2,
    /// A class that is not listed here.
    Other(String),
}

impl TokenizerClass {
    /// Returns the class that transformers uses for a stated class and the `model_type` of a model.
    fn of(stated: Option<&str>, model_type: &str) -> Self {
        let stated = stated.map(|name| name.strip_suffix("Fast").unwrap_or(name));
        match (stated, model_type) {
            (_, model_type) if CLASSLESS.contains(&model_type) => Self::Backend,
            (_, "qwen2") | (None, "qwen3" | "qwen2_moe" | "qwen3_moe") | (Some("Qwen2Tokenizer"), _) => {
                Self::Qwen2
            }
            (Some("GPT2Tokenizer"), _) | (None, "gpt2") => Self::Gpt2,
            (Some("LlamaTokenizer"), _) => Self::Llama,
            (None | Some("TokenizersBackend" | "PreTrainedTokenizer"), _) => Self::Backend,
            (Some(other), _) => Self::Other(other.to_owned()),
        }
    }

    /// Returns the text of a special token that the files do not name.
    fn default_token(&self, key: &str) -> Option<&'static str> {
        match (self, key) {
            (Self::Llama, "bos_token") => Some("<s>"),
            (Self::Llama, "eos_token") => Some("</s>"),
            (Self::Llama, "unk_token") => Some("<unk>"),
            (Self::Qwen2, "eos_token" | "unk_token" | "pad_token")
            | (Self::Gpt2, "bos_token" | "eos_token" | "unk_token") => Some("<|endoftext|>"),
            _ => None,
        }
    }
}

pub(super) struct TokenizerSettings {
    pub(crate) class: TokenizerClass,
    /// True if there is a `tokenizer_config.json`.
    pub(crate) is_configured: bool,
    /// Settings by key, those of `special_tokens_map.json` included.
    json: Value,
    /// File that errors about `json` name.
    path: PathBuf,
    /// Tokens with a stated id, and the file and key that state it.
    decoder: BTreeMap<u32, AddedToken>,
    decoder_source: (PathBuf, &'static str),
}

impl TokenizerSettings {
    /// Reads the files.
    ///
    /// # Errors
    /// If a file is not JSON, or a token has no text or id.
    pub(crate) fn read(files: &SettingsFiles) -> Result<Self> {
        let path = files.config.as_ref().map_or_else(|| PathBuf::from(CONFIG), |file| file.path.clone());
        let mut json = files.config.as_ref().map_or(Ok(Value::Null), parse)?;
        let model = files.model.as_ref().map_or(Ok(Value::Null), parse)?;
        let stated = json["tokenizer_class"].as_str().or_else(|| model["tokenizer_class"].as_str());
        let class = TokenizerClass::of(stated, model["model_type"].as_str().unwrap_or_default());
        let is_configured = files.config.is_some();
        let has_decoder = json.get(DECODER).is_some();
        if let Some(file) = files.special.as_ref().filter(|_| !has_decoder) {
            put_all(&mut json, parse(file)?);
        }
        let mut settings = Self {
            class,
            is_configured,
            json,
            decoder_source: (path.clone(), DECODER),
            path,
            decoder: BTreeMap::new(),
        };
        settings.decoder = match (has_decoder, &files.added) {
            (true, _) => settings.stated_decoder()?,
            (false, Some(file)) => {
                settings.decoder_source = (file.path.clone(), ADDED);
                settings.added_tokens(&parse(file)?)?
            }
            (false, None) => BTreeMap::new(),
        };
        Ok(settings)
    }

    /// Returns a setting that is true or false.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.json[key].as_bool()
    }

    /// Returns the text of a special token, by its key.
    pub(crate) fn token(&self, key: &str) -> Option<&str> {
        match self.json.get(key) {
            None => self.class.default_token(key),
            Some(value) => value.as_str().or_else(|| value["content"].as_str()),
        }
    }

    /// Adds all tokens that the vocabulary lacks, and sets how names of special tokens are read.
    ///
    /// # Errors
    /// If a token would get another id than the files state.
    pub(crate) fn apply(&self, inner: &mut tokenizers::Tokenizer) -> Result<()> {
        let known = inner.get_added_tokens_decoder().into_values().map(|token| token.content);
        let mut known: BTreeSet<String> = known.collect();
        known.extend(self.decoder.values().map(|token| token.content.clone()));
        let special = self.special_tokens()?;
        let names: BTreeSet<&str> = special.iter().map(|token| token.content.as_str()).collect();
        let mut added: Vec<AddedToken> = self.decoder.values().cloned().collect();
        added
            .iter_mut()
            .filter(|token| names.contains(&*token.content))
            .for_each(|token| token.special = true);
        for token in special.iter().cloned().chain(self.extra_tokens()?) {
            if known.insert(token.content.clone()) {
                added.push(token);
            }
        }
        caught(|| inner.add_tokens(added).map(drop))?;
        inner.set_encode_special_tokens(self.flag("split_special_tokens") == Some(true));
        self.check_ids(inner)
    }

    /// Returns the ids that `add_bos_token` and `add_eos_token` put before and after texts, for a vocabulary without
    /// `tokenizer.json`. As in transformers, both default to false.
    pub(crate) fn around(&self, inner: &tokenizers::Tokenizer) -> [Option<u32>; 2] {
        [("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")].map(|(flag, key)| {
            let token = self.token(key).filter(|_| self.flag(flag) == Some(true))?;
            inner.token_to_id(token)
        })
    }

    /// Returns an error if a special token is not in the vocabulary, for tokenizers that cannot add tokens.
    pub(crate) fn check_all_known(&self, is_known: impl Fn(&str) -> bool) -> Result<()> {
        let (special, extra) = (self.special_tokens()?, self.extra_tokens()?);
        let mut all = self.decoder.values().chain(&special).chain(&extra);
        match all.find(|token| !is_known(&token.content)) {
            None => Ok(()),
            Some(token) => {
                let expected =
                    "a piece of tokenizer.model; save the tokenizer as tokenizer.json with transformers";
                Err(Error::bad_key(&self.decoder_source.0, "added token", &token.content, expected))
            }
        }
    }

    fn check_ids(&self, inner: &tokenizers::Tokenizer) -> Result<()> {
        let (file, key) = &self.decoder_source;
        for (&id, token) in &self.decoder {
            let found = inner.token_to_id(&token.content);
            if found != Some(id) {
                let next = found.map_or("no id".to_owned(), |found| found.to_string());
                let expected =
                    format!("{next}, the id that transformers gives this token: ids without a gap");
                return Err(Error::bad_key(file, &format!("{key}: '{}'", token.content), id, expected));
            }
        }
        Ok(())
    }

    /// Returns the special tokens that have a key, such as `pad_token` or `image_token`.
    fn special_tokens(&self) -> Result<Vec<AddedToken>> {
        let others = self.json.as_object().into_iter().flatten();
        let others = others
            .filter(|(key, value)| key.ends_with("_token") && !NAMED.contains(&&***key) && value.is_string());
        let dictionary = self.json[EXTRA[0]].as_object().into_iter().flatten();
        let named = NAMED.iter().filter_map(|key| match self.json.get(key) {
            None => Some(Ok(AddedToken::from(self.class.default_token(key)?, true))),
            Some(Value::Null) => None,
            Some(value) => Some(self.special_token(key, value)),
        });
        let others = others.chain(dictionary).map(|(key, value)| self.special_token(key, value));
        named.chain(others).collect()
    }

    /// Returns the special tokens of a list.
    fn extra_tokens(&self) -> Result<Vec<AddedToken>> {
        let lists = EXTRA.map(|key| (key, self.json[key].as_array()));
        let stated =
            lists.into_iter().find_map(|(key, list)| Some((key, list.filter(|list| !list.is_empty())?)));
        let Some((key, list)) = stated else { return Ok(Vec::new()) };
        list.iter().map(|value| self.special_token(key, value)).collect()
    }

    fn special_token(&self, key: &str, value: &Value) -> Result<AddedToken> {
        let read = match value {
            Value::String(text) => Some(AddedToken::from(text.as_str(), true)),
            value => token(value).map(|token| AddedToken { special: true, ..token }),
        };
        read.ok_or_else(|| Error::bad_key(&self.path, key, value, "a text, or an object with its content"))
    }

    fn stated_decoder(&self) -> Result<BTreeMap<u32, AddedToken>> {
        let bad = |value: &Value| {
            Error::bad_key(&self.path, DECODER, value, "an object with the content of a token for each id")
        };
        let entries = self.json[DECODER].as_object().ok_or_else(|| bad(&self.json[DECODER]))?;
        let entry = |id: &str, value: &Value| Some((id.parse().ok()?, token(value)?));
        let read = entries.iter().map(|(id, value)| entry(id, value).ok_or_else(|| bad(value)));
        read.collect()
    }

    /// Reads `added_tokens.json`, which maps texts to ids.
    fn added_tokens(&self, json: &Value) -> Result<BTreeMap<u32, AddedToken>> {
        let (file, _) = &self.decoder_source;
        let bad = |value: &Value| Error::bad_key(file, ADDED, value, "an object with the id of each token");
        let named = NAMED.iter().filter_map(|key| self.token(key).map(str::to_owned));
        let extra = self.extra_tokens()?.into_iter().map(|token| token.content);
        let special: BTreeSet<String> = named.chain(extra).collect();
        let read = json.as_object().ok_or_else(|| bad(json))?.iter().map(|(text, id)| {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| bad(id))?;
            let is_special = special.contains(text);
            Ok((id, AddedToken::from(text.as_str(), is_special).normalized(!is_special)))
        });
        read.collect()
    }
}

fn put_all(json: &mut Value, more: Value) {
    if json.is_null() {
        *json = Value::Object(serde_json::Map::new());
    }
    if let (Value::Object(json), Value::Object(more)) = (json, more) {
        json.extend(more);
    }
}

/// Reads a token with its flags.
fn token(value: &Value) -> Option<AddedToken> {
    let content = value["content"].as_str()?;
    let flag = |key: &str| value[key].as_bool().unwrap_or(false);
    let special = flag("special");
    let read = AddedToken::from(content, special)
        .single_word(flag("single_word"))
        .lstrip(flag("lstrip"))
        .rstrip(flag("rstrip"));
    Some(read.normalized(value["normalized"].as_bool().unwrap_or(!special)))
}

/// Parses a settings file.
pub(super) fn parse(source: &FileBytes) -> Result<Value> {
    serde_json::from_slice(&source.data).map_err(|error| Error::BadContainer {
        file: source.path.clone(),
        format: "tokenizer",
        problem: error.to_string(),
    })
}
