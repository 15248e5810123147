//! Files of llama-perplexity: ours are its own byte for byte, its table is ours digit for digit, and what is wrong with a file
//! is refused in one message.
//!
//! `tests/data/kld` is made by `reference-scripts/make/make_kld.sh`, with llama.cpp's own program.

use crate::common;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::hash::sha256;
use crate::common::share::one_of;
use crate::common::terminal::Terminal;
use serde_json::Value;
use xcheck::format::FileBytes;
use xcheck::kld::{LogitsFile, LogitsWriter, PredictionSource, compare, first_row};
use xcheck::measure::Prediction;

const MODEL: [&str; 4] = ["--model", "tiny-llama3-q8_0", "--numerics", "llama.cpp"];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kld").join(name)
}

fn golden() -> String {
    data("tiny-llama3-f32.kld").display().to_string()
}

/// Writes the text's file with our engine.
fn written(terminal: &Terminal, name: &str, more: &[&str]) -> String {
    let path = terminal.path().join(name).display().to_string();
    let text = data("text.txt").display().to_string();
    let what = ["dump", "--kld", &path, "--text", &text, "--ctx", "16", "--chunks", "15"];
    terminal.run(&[&what, &MODEL[..], more].concat()).succeeded();
    path
}

#[test]
fn the_kl_divergence_table_is_that_of_llama_perplexity_to_every_digit() {
    let printed = Terminal::new().run(&[&["kld", &golden()], &MODEL[..]].concat()).succeeded();
    let without_intervals: Vec<&str> =
        printed.lines().map(|line| line.split("   [").next().expect("a part")).collect();
    let theirs = fs::read_to_string(data("table.txt")).expect("it ships");
    let theirs = theirs.trim_end();
    assert_eq!(without_intervals[..theirs.lines().count()].join("\n"), theirs);
    assert!(printed.contains("15 chunks, 105 tokens"), "{printed}");
}

#[test]
fn the_file_is_that_of_llama_perplexity_byte_for_byte() {
    let terminal = Terminal::new();
    let path = written(&terminal, "ours.kld", &[]);
    let theirs = fs::read_to_string(data("tiny-llama3-q8_0.sha256")).expect("it ships");
    assert_eq!(sha256(&fs::read(&path).expect("it was written")), theirs.trim());
    // So nothing that the file tells is against the model.
    let (_, document) = terminal.json(&[&["kld", &path], &MODEL[..]].concat());
    assert_eq!(document["within_steps"].as_u64(), Some(105));
    let supposed = ["--suppose", "norm_eps=2e-5"];
    let (_, document) = terminal.json(&[&["kld", &path], &MODEL[..], &supposed].concat());
    assert!(document["within_steps"].as_u64().expect("a count") < 105, "{document}");
}

#[test]
fn a_file_of_another_computation_is_another_file() {
    let terminal = Terminal::new();
    let path = written(&terminal, "other.kld", &["--suppose", "rope_missing"]);
    let theirs = fs::read_to_string(data("tiny-llama3-q8_0.sha256")).expect("it ships");
    assert_ne!(sha256(&fs::read(&path).expect("it was written")), theirs.trim());
    let (code, document) = terminal.json(&["kld", &golden(), &path]);
    let (_, right) = terminal.json(&[&["kld", &golden()], &MODEL[..]].concat());
    let mean = |document: &Value| document["statistics"]["kld"]["mean"]["value"].as_f64().expect("a number");
    assert!(code == 0 && mean(&document) > 2.0 * mean(&right), "{} and {}", mean(&document), mean(&right));
}

#[test]
fn a_kl_divergence_bound_is_kept_broken_or_undecided_by_the_whole_interval() {
    let terminal = Terminal::new();
    let path = written(&terminal, "ours.kld", &[]);
    let golden = golden();
    let (_, document) = terminal.json(&["kld", &golden, &path]);
    let mean = &document["statistics"]["kld"]["mean"];
    let ends = [0, 1].map(|end| mean["interval"][end].as_f64().expect("an end"));
    let value = mean["value"].as_f64().expect("a number");
    assert!(ends[0] < value && value < ends[1], "{mean}");
    for (bound, code, verdict) in
        [(ends[1] * 1.01, 0, "pass"), (value, 3, "inconclusive"), (ends[0] * 0.99, 1, "fail")]
    {
        let (found, document) = terminal.json(&["kld", &golden, &path, "--max-kld", &bound.to_string()]);
        assert_eq!((found, document["verdict"].as_str()), (code, Some(verdict)), "{bound}");
    }
}

#[test]
fn a_file_has_no_kl_divergence_from_itself_beyond_its_own_steps() {
    let (code, document) = Terminal::new().json(&["kld", &golden(), &golden()]);
    let figures = &document["statistics"];
    assert_eq!((code, figures["same_top"]["value"].as_f64()), (0, Some(1.0)));
    assert_eq!(figures["kld"]["mean"]["value"].as_f64(), Some(0.0));
    assert_eq!(figures["ln_ratio"]["interval"], serde_json::json!([0.0, 0.0]));
}

#[test]
fn a_dump_with_logits_is_as_good_as_the_model() {
    let terminal = Terminal::new();
    let file = LogitsFile::open(&data("tiny-llama3-f32.kld")).expect("it ships");
    // The model has read BOS in place of the first.
    let mut tokens: Vec<String> = file.chunks().next().expect("a chunk").iter().map(u32::to_string).collect();
    tokens[0] = "1".to_owned();
    let dump = terminal.path().join("dump.safetensors").display().to_string();
    let what = ["dump", "--out", &dump, "--tokens", &tokens.join(","), "--decode", "0"];
    terminal.run(&[&what, &MODEL[..]].concat()).succeeded();
    let golden = golden();
    let (code, of_dump) = terminal.json(&["kld", &golden, &dump, "--chunks", "1"]);
    let (_, of_model) = terminal.json(&[&["kld", &golden, "--chunks", "1"], &MODEL[..]].concat());
    assert_eq!(of_dump["kld_of_chunks"], of_model["kld_of_chunks"]);
    assert_eq!(of_dump["tokens"].as_u64(), Some(7));
    // Seven tokens: no statistics, and no pass.
    assert_eq!((code, &of_dump["statistics"]), (3, &Value::Null));
    let said = terminal.run(&["kld", &golden, &dump, "--chunks", "1"]);
    assert!(
        said.stdout.contains("7 tokens: too few for statistics, expected at least 100"),
        "{}",
        said.stdout
    );
    // Two dumps have all positions in common: what they chose follows the last.
    let (_, own) = terminal.json(&["kld", &dump, &dump]);
    assert_eq!(own["tokens"].as_u64(), Some(16));
}

/// The golden file with other bytes somewhere.
fn altered(terminal: &Terminal, at: usize, bytes: &[u8]) -> String {
    let mut file = fs::read(data("tiny-llama3-f32.kld")).expect("it ships");
    file[at..at + bytes.len()].copy_from_slice(bytes);
    let path = terminal.path().join(format!("altered-{at}.kld"));
    fs::write(&path, file).expect("it can be written");
    path.display().to_string()
}

/// Where the first row begins.
const ROWS: usize = 20 + 4 * 15 * 16;

#[test]
fn what_is_wrong_with_a_file_is_one_message() {
    let terminal = Terminal::new();
    let zeros = [0; 8 + 2 * 512];
    let tenfold = [10f32.to_le_bytes(), (-20f32).to_le_bytes()].concat();
    let cases: [(usize, &[u8], &str); 17] = [
        (8, &2i32.to_le_bytes(), "n_ctx is 2, expected 3 or more"),
        (8, &(-1i32).to_le_bytes(), "n_ctx is -1"),
        (12, &0i32.to_le_bytes(), "n_vocab is 0"),
        (12, &i32::MAX.to_le_bytes(), "a vocabulary of 2147483647"),
        (16, &i32::MAX.to_le_bytes(), "2147483647 chunks"),
        (16, &14i32.to_le_bytes(), "bytes more"),
        (20, &(-5i32).to_le_bytes(), "a token is -5, expected an id of a vocabulary of 512"),
        (ROWS, &f32::NAN.to_le_bytes(), "chunk 0, row 0: the scale is NaN"),
        (ROWS, &(-1f32).to_le_bytes(), "chunk 0, row 0: the scale is -1"),
        (ROWS, &1e30f32.to_le_bytes(), "chunk 0, row 0: the scale is 1"),
        (ROWS + 4, &(-1e30f32).to_le_bytes(), "chunk 0, row 0: the least log-probability is -1"),
        (ROWS + 4, &1e30f32.to_le_bytes(), "chunk 0, row 0: the least log-probability is 1"),
        (ROWS + 4, &f32::INFINITY.to_le_bytes(), "chunk 0, row 0: the least log-probability is inf"),
        (ROWS + 4, &(-1f32).to_le_bytes(), "chunk 0, row 0: the sum of its probabilities is"),
        (
            ROWS + 4,
            &1f32.to_le_bytes(),
            "chunk 0, row 0: the least log-probability is 1, expected a log-probability from -38.2 to 0",
        ),
        (ROWS, &zeros, "chunk 0, row 0: the sum of its probabilities is 512"),
        (ROWS, &tenfold, "chunk 0, row 0: the scale is 10, expected 0 to 4.9e-4"),
    ];
    for (at, bytes, expected) in cases {
        let path = altered(&terminal, at, bytes);
        terminal.run(&[&["kld", path.as_str()], &MODEL[..]].concat()).refused(&[expected]);
    }
}

#[test]
fn files_that_break_off_or_are_others_are_refused() {
    let terminal = Terminal::new();
    let whole = fs::read(data("tiny-llama3-f32.kld")).expect("it ships");
    for (length, expected) in
        [(4, "expected a file of llama-perplexity"), (12, "the header"), (1000, "15 chunks of 16 tokens")]
    {
        let path = terminal.path().join(format!("{length}.kld"));
        fs::write(&path, &whole[..length]).expect("it can be written");
        let error = LogitsFile::open(&path).expect_err("it breaks off").to_string();
        assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
    }
    let gguf = common::variant("tiny-llama3-q8_0").weights()[0].clone();
    let error =
        LogitsFile::of(FileBytes { path: "model.gguf".into(), data: gguf.data }).expect_err("a model");
    assert!(error.to_string().contains("a GGUF file"), "{error}");
    // Nor is such a file taken for a model.
    terminal.assert_refused(&["inspect", &golden()], "a log-probability file of llama-perplexity");
}

#[test]
fn another_text_or_vocabulary_is_refused() {
    let terminal = Terminal::new();
    let golden = golden();
    let other_token = altered(&terminal, 20 + 4 * 9, &7i32.to_le_bytes());
    terminal.run(&["kld", &golden, &other_token]).refused(&["chunk 0, position 9", "files of the same text"]);
    // Rows of 511 are as long as rows of 512.
    let other_size = altered(&terminal, 12, &511i32.to_le_bytes());
    terminal
        .run(&["kld", &golden, &other_size])
        .refused(&["has a vocabulary of 512 tokens", "altered-12.kld one of 511"]);
    let fewer = terminal.path().join("fewer.kld").display().to_string();
    let text = data("text.txt").display().to_string();
    let what = ["dump", "--kld", &fewer, "--text", &text, "--ctx", "16", "--chunks", "14"];
    terminal.run(&[&what, &MODEL[..]].concat()).succeeded();
    terminal.run(&["kld", &golden, &fewer]).refused(&["has 15 chunks", "has 14", "--chunks N"]);
    let (code, document) = terminal.json(&["kld", &golden, &fewer, "--chunks", "14"]);
    assert_eq!((code, document["tokens"].as_u64()), (3, Some(98)));
    let long = ["dump", "--kld", "long.kld", "--text", &text, "--ctx", "4096"];
    terminal.run(&[&long, &MODEL[..]].concat()).refused(&["fewer than one chunk of 4096"]);
    terminal.run(&[&what, &MODEL[..]].concat()).refused(&["already exists"]);
}

/// Logits without a pattern.
fn logits(vocabulary: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    (0..vocabulary).map(|_| 30.0 * next() - 12.0).collect()
}

#[test]
fn what_is_written_is_read_within_half_a_step_of_it_in_vocabularies_of_any_size() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (vocabulary, n_ctx) in [(1, 3), (2, 4), (7, 5), (64, 16), (1001, 9)] {
        let path = folder.path().join(format!("{vocabulary}.kld"));
        let tokens: Vec<u32> = (0..2 * n_ctx as u32).map(|id| id % vocabulary as u32).collect();
        let mut writer = LogitsWriter::create(&path, vocabulary, n_ctx, &tokens).expect("a new file");
        let row = |chunk: usize, position: usize| {
            let mut row = Prediction::default();
            let seed = (chunk * n_ctx + position) as u32;
            row.set_logits(logits(vocabulary, seed).into_iter()).expect("numbers");
            row
        };
        for chunk in 0..2 {
            let next = |position: usize| tokens[chunk * n_ctx + position + 1];
            let rows = (first_row(n_ctx)..n_ctx - 1).map(|position| (row(chunk, position), next(position)));
            writer.chunk(&rows.collect::<Vec<_>>()).expect("it can be written");
        }
        writer.finish().expect("it is whole");
        let file = LogitsFile::open(&path).expect("it is one");
        assert_eq!(PredictionSource::chunks(&file).concat(), tokens);
        for (chunk, position) in
            (0..2).flat_map(|chunk| file.positions(chunk).into_iter().map(move |at| (chunk, at)))
        {
            let mut read = Prediction::default();
            let number = position - first_row(n_ctx);
            file.read(chunk, number, &mut read).expect("a sound row");
            let computed = row(chunk, position);
            let best = (0..vocabulary as u32).map(|id| -computed.nll(id)).fold(f32::NEG_INFINITY, f32::max);
            // What is less likely by more than 16 is raised to that.
            let wanted = |id: u32| (-computed.nll(id)).max(best - 16.0);
            let least = (0..vocabulary as u32).map(wanted).fold(f32::INFINITY, f32::min);
            let half = (best - least) / 65535.0 / 2.0 + 4e-6;
            for id in 0..vocabulary as u32 {
                let wanted = wanted(id);
                assert!(
                    (-read.nll(id) - wanted).abs() <= half,
                    "{vocabulary}: {id}: {} {wanted}",
                    -read.nll(id)
                );
            }
        }
        let tally = compare(&file, &file, usize::MAX, |_| ()).expect("it is like itself");
        assert_eq!(tally.count(), 2 * (n_ctx - 1 - first_row(n_ctx)));
    }
}

#[test]
fn a_nan_logit_is_refused() {
    let mut row = Prediction::default();
    assert!(row.set_logits([1.0, f32::NAN].into_iter()).expect_err("NaN").contains("token 1 is NaN"));
    assert!(row.set_logits([f32::INFINITY, 1.0].into_iter()).is_err());
}

/// The file of tiny-llama3 in F32, as a dump of the model in one of its formats.
fn as_reference(terminal: &Terminal, path: &str, model: &str, more: &[&str]) -> (i32, Value) {
    let asked = ["run", "--model", model, "--reference", path, "--no-report", "--checkpoint", "11"];
    terminal.json(&[&asked, more].concat())
}

#[test]
fn a_file_is_a_reference_of_the_model_that_it_is_of() {
    let (code, report) = as_reference(&Terminal::new(), &golden(), "tiny-llama3-f32", &[]);
    assert_eq!(code, 0, "{report:#}");
    let references = report["references"].as_array().expect("chunks");
    assert_eq!(references.len(), 15);
    for reference in references {
        assert_eq!(reference["verdict"], "pass");
        assert_eq!(reference["coverage"]["taps_compared"].as_u64(), Some(3), "{reference:#}");
    }
}

#[test]
fn a_file_of_another_computation_is_no_reference_of_it() {
    let terminal = Terminal::new();
    let faults =
        [("norm_eps=1e-3", "norm_eps"), ("rope_theta=1e4", "rope_theta"), ("logit_scale=0.9", "logit_scale")];
    for (supposed, cause) in one_of(3, faults) {
        let path = terminal.path().join(format!("{cause}.kld")).display().to_string();
        let text = data("text.txt").display().to_string();
        let what =
            ["dump", "--kld", &path, "--text", &text, "--ctx", "16", "--chunks", "2", "--suppose", supposed];
        let model = ["--model", "tiny-llama3-f32", "--numerics", "llama.cpp"];
        terminal.run(&[&what, &model[..]].concat()).succeeded();
        let (code, report) = as_reference(&terminal, &path, "tiny-llama3-f32", &[]);
        assert_eq!(code, 1, "{supposed}: {report:#}");
    }
}

#[test]
fn a_file_that_is_written_and_read_by_us_is_the_same_within_its_steps() {
    let terminal = Terminal::new();
    let path = written(&terminal, "ours.kld", &[]);
    let (code, report) = as_reference(&terminal, &format!("{path}#3"), "tiny-llama3-q8_0", &[]);
    assert_eq!((code, report["references"].as_array().map(Vec::len)), (0, Some(1)), "{report:#}");
    let total = &report["references"][0]["results"][0]["accumulated"];
    assert!(total["max_abs"].as_f64().is_some_and(|error| error < 2e-5), "{total:#}");
}

#[test]
fn files_are_compared_as_dumps_are() {
    let terminal = Terminal::new();
    let ours = written(&terminal, "ours.kld", &[]);
    let (code, _) = terminal.json(&["compare", &ours, &ours, "--no-report"]);
    assert_eq!(code, 0);
    // Eight bits of weights are no rounding of what is computed with them.
    let (code, report) = terminal.json(&["compare", &ours, &golden(), "--no-report"]);
    assert_eq!((code, report["references"].as_array().map(Vec::len)), (1, Some(15)));
}

#[test]
fn a_file_judges_a_candidate_and_is_judged_as_one() {
    let terminal = Terminal::new();
    let asked = ["check", "--model", "tiny-llama3-f32", "--candidate", &golden(), "--no-report"];
    assert_eq!(terminal.json(&asked).0, 0);
    let other = written(&terminal, "other.kld", &["--suppose", "rope_missing"]);
    let asked = ["check", "--model", "tiny-llama3-q8_0", "--candidate", &format!("{other}#0"), "--no-report"];
    assert_eq!(terminal.json(&asked).0, 1);
}
