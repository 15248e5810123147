//! Names of models and settings, without a network.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use xcheck::hub::{HubModel, HubSettings, KnownModel, RepoFiles, named, nearest};

fn settings(variables: &[(&str, &str)]) -> HubSettings {
    let variables: HashMap<&str, OsString> =
        variables.iter().map(|&(name, value)| (name, value.into())).collect();
    HubSettings::from_variables(|name| variables.get(name).cloned(), Some(PathBuf::from("/home/me")))
        .expect("sound")
}

#[test]
fn the_cache_is_where_the_python_library_has_it() {
    let cache = |variables| settings(variables).cache;
    assert_eq!(cache(&[]), Path::new("/home/me/.cache/huggingface/hub"));
    assert_eq!(cache(&[("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
    assert_eq!(cache(&[("HF_HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Path::new("/h/hub"));
    assert_eq!(cache(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h")]), Path::new("/c"));
    assert_eq!(cache(&[("HF_HOME", "")]), Path::new("/home/me/.cache/huggingface/hub"));
}

#[test]
fn the_endpoint_loses_its_slash_and_offline_has_four_words() {
    assert_eq!(settings(&[]).endpoint, "https://huggingface.co");
    assert_eq!(settings(&[("HF_ENDPOINT", "http://mirror/")]).endpoint, "http://mirror");
    for word in ["1", "on", "YES", "True"] {
        assert!(settings(&[("HF_HUB_OFFLINE", word)]).offline, "{word}");
    }
    assert!(!settings(&[("HF_HUB_OFFLINE", "0")]).offline);
    assert!(!settings(&[]).offline);
}

#[test]
fn the_hub_token_is_that_of_the_variable_else_of_the_file() {
    let home = tempfile::tempdir().expect("a folder");
    let at_home = home.path().to_str().expect("plain");
    assert_eq!(settings(&[("HF_HOME", at_home)]).token, None);
    std::fs::write(home.path().join("token"), "hf_file\n").expect("written");
    assert_eq!(settings(&[("HF_HOME", at_home)]).token.as_deref(), Some("hf_file"));
    let both = [("HF_HOME", at_home), ("HF_TOKEN", " hf_variable\n")];
    assert_eq!(settings(&both).token.as_deref(), Some("hf_variable"));
}

#[test]
fn every_known_name_is_unique_and_names_a_place_on_the_hub() {
    let mut names = BTreeSet::new();
    for model in KnownModel::all() {
        for (name, files) in model.forms() {
            assert!(names.insert(name.to_lowercase()), "{name} is there twice");
            let found = named(&name).expect("a known name");
            assert_eq!((&found.repo, &found.asked), (&files.repo, &name));
            let id = files.file.as_ref().map_or(files.repo.clone(), |file| format!("{}:{file}", files.repo));
            assert_eq!(HubModel::parse(&id).expect("an id").part, found.part, "{id}");
            assert!(files.gb > 0.0, "{name}");
        }
    }
    for name in
        ["llama2-7b", "llama2-7b:q8_0", "qwen3-1.7b:Q8_0", "bitnet-2b:i2_s", "gpt2-medium", "stories15m"]
    {
        assert!(names.contains(&name.to_lowercase()), "{name}");
    }
}

#[test]
fn an_id_may_name_a_file_or_a_quantisation() {
    let part = |id: &str| HubModel::parse(id).map(|model| (model.repo, model.part));
    let repo = || "Qwen/Qwen3-1.7B".to_owned();
    assert_eq!(part("Qwen/Qwen3-1.7B"), Some((repo(), RepoFiles::Folder)));
    assert_eq!(part("Qwen/Qwen3-1.7B:Q8_0"), Some((repo(), RepoFiles::Quantised("Q8_0".into()))));
    assert_eq!(part("Qwen/Qwen3-1.7B:a/b.gguf"), Some((repo(), RepoFiles::File("a/b.gguf".into()))));
}

#[test]
fn paths_are_no_ids() {
    for text in
        ["model", "dir/model.gguf", "./dir/model", "../model", "/model", "a/b/c", "a/..", "a/b:../c", "a/b:"]
    {
        assert_eq!(HubModel::parse(text), None, "{text}");
    }
}

#[test]
fn a_mistyped_name_is_near_the_right_one() {
    let of = |typed| nearest(typed, ["tiny-llama3"].into_iter());
    assert_eq!(of("qwen3-1.7").first().map(String::as_str), Some("qwen3-1.7b"));
    assert_eq!(of("GPT-2").first().map(String::as_str), Some("gpt2"));
    assert_eq!(of("lama2-7b").first().map(String::as_str), Some("llama2-7b"));
    assert_eq!(of("tiny-lama3").first().map(String::as_str), Some("tiny-llama3"));
    assert_eq!(of("zzz"), Vec::<String>::new());
}

#[cfg(not(feature = "hub"))]
#[test]
fn a_build_without_network_code_says_so() {
    struct Nobody;
    impl xcheck::hub::DownloadObserver for Nobody {
        fn file(&mut self, _: &str, _: u64, _: u64) {}
        fn reached(&mut self, _: u64) {}
    }
    let model = named("gpt2").expect("known");
    let refusal = xcheck::hub::download(&settings(&[]), &model, &mut Nobody).expect_err("no network code");
    assert!(refusal.to_string().contains("without the feature 'hub'"), "{refusal}");
}
