//! Results of an earlier run are taken over, and parts are put together, only if all that was read has the same content.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::terminal::Terminal;

const THROWN_AWAY: &str = "discards the results of the earlier run: ";
/// What a row says whose result was taken over.
const BEFORE: &str = "as it was found before";

/// A machine with a model, a dump of it and the files that a check of it may read.
struct Bed {
    terminal: Terminal,
    more: Vec<&'static str>,
}

impl Bed {
    fn new() -> Self {
        let bed = Self { terminal: Terminal::new(), more: Vec::new() };
        let model = bed.path("model");
        fs::create_dir(&model).expect("a folder");
        for file in ["config.json", "model.safetensors"] {
            let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints/tiny-llama2/hf").join(file);
            fs::copy(shipped, model.join(file)).expect("it is copied");
        }
        let dumped =
            bed.terminal.run(&["dump", "--model", "model", "--tokens", "1,393,395,260", "--out", "cand"]);
        assert_eq!(dumped.code, 0, "{}", dumped.stderr);
        bed
    }

    /// With the dump as one file instead of a folder.
    fn of_one_file() -> Self {
        let bed = Self::new();
        fs::remove_dir_all(bed.path("cand")).expect("it is removed");
        let dump = ["dump", "--model", "model", "--tokens", "1,393,395,260", "--out", "cand.safetensors"];
        assert_eq!(bed.terminal.run(&dump).code, 0);
        fs::rename(bed.path("cand.safetensors"), bed.path("cand")).expect("it is renamed");
        bed
    }

    fn with(mut self, more: &[&'static str]) -> Self {
        self.more.extend(more);
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.terminal.path().join(name)
    }

    /// The exit code of a shard that goes on in a folder, and what it says.
    fn goes_on(&self, shard: &str, report: &str) -> (i32, String) {
        let check =
            ["check", "--model", "model", "--candidate", "cand", "--shard", shard, "--resume", "--no-causes"];
        let finished = self.terminal.run(&[&check[..], &self.more, &["--report", report]].concat());
        (finished.code, finished.stderr)
    }

    /// Marks what was finished, so that it shows where it is taken over.
    fn mark(&self, report: &str) {
        let path = self.path(report).join("finished.json");
        let text = fs::read_to_string(&path).expect("it is kept");
        let mut kept: Value = serde_json::from_str(&text).expect("it is JSON");
        let row = &mut kept["references"][0]["results"][0];
        row["accumulated"] = row["local"].clone();
        row["reason"] = BEFORE.into();
        fs::write(&path, kept.to_string()).expect("it is written");
    }

    fn is_taken_over(&self, report: &str) -> bool {
        fs::read_to_string(self.path(report).join("report.json")).expect("it is written").contains(BEFORE)
    }

    /// A first run; then another, after a change, that takes nothing over and says why.
    #[track_caller]
    fn assert_anew(&self, what: &str, change: impl FnOnce(&Self)) {
        let (code, said) = self.goes_on("1/1", "report");
        assert_eq!((code, said.contains(THROWN_AWAY)), (0, false), "{said}");
        self.mark("report");
        let (_, said) = self.goes_on("1/1", "report");
        assert!(self.is_taken_over("report") && !said.contains(THROWN_AWAY), "{what}: unchanged: {said}");
        self.mark("report");
        change(self);
        let (_, said) = self.goes_on("1/1", "report");
        assert!(!self.is_taken_over("report"), "{what}: {said}");
        assert!(said.contains(&format!("{THROWN_AWAY}{what}")), "{what}: {said}");
    }
}

/// An array that is judged and that nothing else in the manifest repeats.
const ARRAY: &str = "p0/l01/ffn_out";

/// Values of another engine under the same manifest: those of an array, larger by a half.
fn make_wrong(dump: &Path) {
    let path = if dump.is_dir() { dump.join(ARRAY).with_extension("npy") } else { dump.to_owned() };
    let mut bytes = fs::read(&path).expect("it is there");
    let values = if dump.is_dir() { bytes.len() - 512..bytes.len() } else { place(&bytes) };
    for value in bytes[values].as_chunks_mut::<4>().0 {
        *value = (1.5 * f32::from_le_bytes(*value)).to_le_bytes();
    }
    fs::write(path, bytes).expect("it is written");
}

/// Where the array is in a `.safetensors` file.
fn place(file: &[u8]) -> std::ops::Range<usize> {
    let header = 8 + u64::from_le_bytes(*file.first_chunk().expect("a header")) as usize;
    let told: Value = serde_json::from_slice(&file[8..header]).expect("it is JSON");
    let offset = |at: usize| header + told[ARRAY]["data_offsets"][at].as_u64().expect("a number") as usize;
    offset(0)..offset(1)
}

#[test]
fn a_dump_made_again_with_other_values_is_judged_anew() {
    let bed = Bed::of_one_file();
    bed.assert_anew("content of the dump was ", |bed| make_wrong(&bed.path("cand")));
    let (code, said) = bed.goes_on("1/1", "report");
    assert_eq!(code, 1, "the values are wrong, and what says so is taken over: {said}");
    assert!(!said.contains(THROWN_AWAY), "{said}");
}

#[test]
fn a_folder_with_another_array_is_judged_anew() {
    let bed = Bed::new();
    bed.assert_anew("content of the dump was ", |bed| make_wrong(&bed.path("cand")));
    assert_eq!(bed.goes_on("1/1", "report").0, 1);
}

#[test]
fn another_configuration_tolerance_file_or_version_is_judged_anew() {
    let edit = |bed: &Bed, file: &str, from: &str, to: &str| {
        let text = fs::read_to_string(bed.path(file)).expect("it is there");
        assert!(text.contains(from), "{file}: {text}");
        fs::write(bed.path(file), text.replacen(from, to, 1)).expect("it is written");
    };
    Bed::new().assert_anew("configuration was ", |bed| {
        edit(bed, "model/config.json", "\"rope_theta\": 10000.0", "\"rope_theta\": 500.0");
    });
    let bed = Bed::new().with(&["--tolerance", "table.toml"]);
    let table = "[any.any]\nlogits = { max_abs = 1e-3, source = \"ours\" }\n";
    fs::write(bed.path("table.toml"), table).expect("it is written");
    bed.assert_anew("tolerances was ", |bed| edit(bed, "table.toml", "1e-3", "1e-4"));
    let version = env!("CARGO_PKG_VERSION");
    Bed::new().assert_anew("", |bed| {
        let file = bed.path("report/finished.json");
        let text = fs::read_to_string(&file).expect("it is kept");
        let mut kept: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(kept["xcheck"]["version"], version);
        kept["xcheck"]["version"] = "0.0.1".into();
        fs::write(&file, kept.to_string()).expect("it is written");
    });
    // Two builds of one version: what a person builds who works on xcheck.
    Bed::new().assert_anew("build was ", |bed| {
        let file = bed.path("report/finished.json");
        let text = fs::read_to_string(&file).expect("it is kept");
        let mut kept: Value = serde_json::from_str(&text).expect("it is JSON");
        kept["references"][0]["shard"]["asked"]["build"] = "another".into();
        fs::write(&file, kept.to_string()).expect("it is written");
    });
}

#[test]
fn parts_of_dumps_of_other_content_are_not_put_together() {
    let bed = Bed::of_one_file();
    assert_eq!(bed.goes_on("1/2", "s1").0, 0);
    assert_eq!(bed.goes_on("2/2", "s2").0, 0);
    let merge = ["merge", "s1", "s2", "--report", "whole"];
    assert_eq!(bed.terminal.run(&merge).code, 0);
    make_wrong(&bed.path("cand"));
    let (_, said) = bed.goes_on("2/2", "s2");
    assert!(said.contains(THROWN_AWAY), "{said}");
    bed.terminal.assert_refused(&merge, "are parts of different comparisons: content of the dump: ");
}
