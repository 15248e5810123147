//! The commands as a person or a CI job runs them: output, files, exit codes.

use std::fs;
use std::path::Path;

use crate::common::terminal::Terminal;
use assert_cmd::Command;
use serde_json::Value;

const REFERENCES: [&str; 5] =
    ["llama.cpp-f16", "llama.cpp-f32", "llama.cpp-q8_0", "transformers-bf16", "transformers-f32"];

// ---- the main job ---------------------------------------------------------------------------------------

#[test]
fn the_main_job_passes_all_twelve_checkpoints_against_every_reference() {
    let (code, report) = Terminal::new().json(&["run", "--model", "tiny-llama2", "--checkpoint", "all"]);
    assert_eq!((code, &report["verdict"]), (0, &"pass".into()));
    let references = report["references"].as_array().expect("references");
    assert_eq!(references.iter().map(|reference| &reference["name"]).collect::<Vec<_>>(), REFERENCES);
    for reference in references {
        let checkpoints = reference["checkpoints"].as_array().expect("checkpoints");
        let numbers: Vec<_> = checkpoints.iter().filter_map(|row| row["number"].as_u64()).collect();
        assert_eq!(numbers, (0..=12).collect::<Vec<_>>());
        assert!(checkpoints.iter().all(|row| row["verdict"] == "pass"));
        assert_eq!(reference["coverage"]["taps_compared"], reference["coverage"]["taps_expected"]);
        assert_eq!(reference["coverage"]["skipped"], Value::Array(Vec::new()));
    }
}

/// No stage introduces more than this: far below the specification's tolerances. The largest seen is 3.8e-6, two
/// units in the last place of a logit around 20; the room above is for other orders of summation.
const INTRODUCED: f64 = 6e-6;

#[test]
fn no_local_error_exceeds_what_was_measured_when_the_references_were_made() {
    let (_, report) = Terminal::new().json(&["run", "--model", "tiny-llama2", "--checkpoint", "all"]);
    let is_exact = |reference: &&Value| reference["name"] != "transformers-bf16"; // one unit in the last place is more
    for reference in report["references"].as_array().expect("references").iter().filter(is_exact) {
        for row in reference["results"].as_array().expect("results") {
            let local = row["local"]["max_abs"].as_f64().expect("every stage's inputs are held");
            assert!(local <= INTRODUCED, "{} {row}", reference["name"]);
        }
    }
}

#[test]
fn the_reports_are_written_and_agree_with_what_is_printed() {
    let terminal = Terminal::new();
    let finished = terminal.run(&["run", "--model", "tiny-llama2", "--checkpoint", "all"]);
    assert_eq!(finished.code, 0);
    let folder = terminal.path().join("reports/run-tiny-llama2");
    assert!(finished.stdout.contains("reports/run-tiny-llama2/report.html"), "{}", finished.stdout);
    let report: Value =
        serde_json::from_slice(&fs::read(folder.join("report.json")).expect("it is there")).expect("JSON");
    assert_eq!((&report["schema"], &report["verdict"]), (&"xcheck-report".into(), &"pass".into()));
    let junit = fs::read_to_string(folder.join("junit.xml")).expect("it is there");
    assert_eq!(junit.matches("<testsuite ").count(), REFERENCES.len());
    assert!(!junit.contains("<failure"));
    assert!(fs::read_to_string(folder.join("report.md")).expect("it is there").contains("transformers-f32"));
    assert!(finished.stdout.lines().all(|line| line.chars().count() <= 80), "{}", finished.stdout);
    assert!(!finished.stdout.contains('\x1b'), "no colour in a pipe");
}

#[test]
fn plain_f32_against_a_q8_0_dump_fails_at_checkpoint_2_in_the_first_layer() {
    let terminal = Terminal::new();
    let run = ["run", "--model", "tiny-llama2", "--reference", "llama.cpp-q8_0", "--report", "r"];
    let finished = terminal.run(&[&run[..], &["--numerics", "f32", "--no-causes"]].concat());
    let written = fs::read_to_string(terminal.path().join("r/report.json")).expect("it was written");
    let report: Value = serde_json::from_str(&written).expect("JSON");
    assert_eq!((finished.code, &report["verdict"]), (1, &"fail".into()));
    let first = &report["references"][0]["first_divergence"];
    assert_eq!((&first["tap"], &first["checkpoint"]), (&"q".into(), &"qkv".into()));
    assert_eq!((&first["layer"], &first["pass"]), (&0.into(), &0.into()));
    assert!(finished.stdout.contains("q, layer 0, pass 0"), "{}", finished.stdout);
}

#[test]
fn local_or_accumulated_error_alone_can_be_selected() {
    let terminal = Terminal::new();
    let run = ["run", "--model", "tiny-llama2", "--reference", "llama.cpp-f32"];
    let (code, report) = terminal.json(&[&run[..], &["--introduced"]].concat());
    let row = &report["references"][0]["results"][5];
    assert_eq!((code, &report["references"][0]["mode"]), (0, &"local".into()));
    assert!(row["accumulated"].is_null() && row["local"]["max_abs"].is_number());

    let (_, report) = terminal.json(&[&run[..], &["--total"]].concat());
    let row = &report["references"][0]["results"][5];
    assert_eq!(report["references"][0]["mode"], "accumulated");
    assert!(row["accumulated"]["max_abs"].is_number() && row["local"].is_null());
}

#[test]
fn layers_can_be_run_by_teacher_forcing_from_the_references_input() {
    let terminal = Terminal::new();
    let run = ["run", "-m", "tiny-llama2", "-r", "transformers-bf16", "--from-reference"];
    let (code, report) = terminal.json(&[&run[..], &["--layer", "1-2"]].concat());
    let reference = &report["references"][0];
    assert_eq!((code, &reference["mode"]), (0, &"layers".into()));
    let rows = reference["results"].as_array().expect("results");
    assert!(rows.iter().all(|row| [1, 2].contains(&row["layer"].as_u64().expect("a layer"))));
    assert!(rows.iter().all(|row| row["accumulated"].is_null() && row["local"]["max_abs"].is_number()));
    let starts: Vec<_> = rows.iter().flat_map(|row| row["since"].as_array().expect("starts")).collect();
    assert!(!starts.is_empty(), "a layer starts somewhere");
    assert!(starts.iter().all(|start| start["tap"] == "block_out"), "where the last one ended");
    assert_eq!(reference["checkpoints"].as_array().expect("checkpoints").len(), 7, "norm to block_out");

    let wrong = terminal.run(
        &[&run[..4], &["llama.cpp-q8_0", "--from-reference", "--numerics", "f32", "--no-causes"]].concat(),
    );
    assert_eq!(wrong.code, 1);
    assert!(wrong.stdout.contains("local error since embed"), "{}", wrong.stdout);
    assert!(wrong.stdout.contains("--from-reference --checkpoint"), "{}", wrong.stdout);
    terminal.assert_refused(&[&run[..], &["--introduced"]].concat(), "cannot be used with");
}

#[test]
fn checkpoints_layers_and_passes_can_be_selected() {
    let terminal = Terminal::new();
    let chosen = ["--checkpoint", "rope,5-6", "--layer", "1,3", "--pass", "0-2"];
    let (code, report) =
        terminal.json(&[&["run", "-m", "tiny-llama2", "-r", "transformers-f32"][..], &chosen].concat());
    assert_eq!(code, 0);
    let rows = report["references"][0]["results"].as_array().expect("results");
    assert_eq!(rows.len(), 3 * 2 * (4 + 3 + 5));
    assert!(rows.iter().all(|row| ["rope", "attn_out", "ffn_out"].contains(&row["checkpoint"].as_str().expect("a name"))));
    assert!(rows.iter().all(|row| [1, 3].contains(&row["layer"].as_u64().expect("a layer"))));
}

#[test]
fn a_prompt_that_the_references_have_read_is_accepted_and_another_is_refused_with_both_shown() {
    let terminal = Terminal::new();
    let prompt = "Once upon a time, there was";
    for model in ["tiny-llama2", "tiny-llama2-hf", "tiny-llama2-f16"] {
        assert_eq!(terminal.run(&["run", "--model", model, "--prompt", prompt]).code, 0, "{model}");
    }
    let refused = terminal.run(&["run", "--model", "tiny-llama2", "--tokens", "1,393,395,99"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("[1, 393, 395, 99]"), "{}", refused.stderr);
    assert!(refused.stderr.contains("[1, 393, 395, 260, 394"), "{}", refused.stderr);
    assert!(refused.stderr.contains("position 3"), "{}", refused.stderr);
}

// ---- one's own models and dumps -------------------------------------------------------------------------

#[test]
fn a_model_without_a_reference_is_inconclusive_and_says_how_to_make_one() {
    let terminal = Terminal::new();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2/tiny-llama2-q8_0.gguf");
    fs::copy(model, terminal.path().join("mine.gguf")).expect("it is copied");
    let finished = terminal.run(&["run", "--model", "mine.gguf"]);
    assert_eq!(finished.code, 3, "{}", finished.stderr);
    assert!(finished.stderr.contains("xcheck reference --model mine.gguf"), "{}", finished.stderr);
}

#[test]
fn dumps_beside_a_model_are_found_if_they_were_made_from_it() {
    let terminal = Terminal::new();
    let shipped = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2"));
    fs::create_dir(terminal.path().join("dumps")).expect("a folder");
    fs::write(terminal.path().join("dumps/notes.txt"), "not a dump").expect("it is written");
    for file in
        ["tiny-llama2-q8_0.gguf", "dumps/llama.cpp-q8_0.safetensors", "dumps/llama.cpp-f32.safetensors"]
    {
        fs::copy(shipped.join(file), terminal.path().join(file)).expect("it is copied");
    }
    let (code, report) = terminal.json(&["run", "--model", "tiny-llama2-q8_0.gguf"]);
    assert_eq!(code, 0);
    let names: Vec<_> =
        report["references"].as_array().expect("references").iter().map(|r| &r["name"]).collect();
    assert_eq!(names, ["llama.cpp-q8_0"], "the dump of the F32 file is of another model");

    // A sibling that is damaged does not stand in the way of one that is named.
    fs::write(terminal.path().join("dumps/broken.safetensors"), "broken").expect("it is written");
    let (code, _) =
        terminal.json(&["run", "--model", "tiny-llama2-q8_0.gguf", "--reference", "llama.cpp-q8_0"]);
    assert_eq!(code, 0);
    terminal.assert_refused(&["run", "--model", "tiny-llama2-q8_0.gguf"], "broken.safetensors");
}

#[test]
fn our_own_dump_is_compared_with_itself_and_with_a_reference() {
    let terminal = Terminal::new();
    let dump = ["dump", "--model", "tiny-llama2-q8_0", "--prompt", "Once upon a time, there was"];
    let numerics = ["--numerics", "llama.cpp", "--decode", "4"];
    for out in ["a", "b.safetensors"] {
        assert_eq!(terminal.run(&[&dump[..], &numerics, &["--out", out]].concat()).code, 0);
    }
    let (code, report) = terminal.json(&["compare", "a", "b.safetensors", "--checkpoint", "all"]);
    assert_eq!((code, &report["verdict"]), (0, &"pass".into()));
    assert!(
        report["references"][0]["results"]
            .as_array()
            .expect("rows")
            .iter()
            .all(|row| row["accumulated"]["max_abs"] == 0.0)
    );

    let (code, _) = terminal.json(&["run", "--model", "tiny-llama2-q8_0", "--reference", "a"]);
    assert_eq!(code, 0, "auto takes the numerics that the dump names");
    let again = terminal.run(&[&dump[..], &["--out", "a"]].concat());
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("already exists"), "{}", again.stderr);
}

#[test]
fn two_engines_dumps_are_compared_and_the_first_difference_is_named() {
    let terminal = Terminal::new();
    let tokens = ["--tokens", "1,393,395,260"];
    for (model, out) in [("tiny-llama2-f32", "f32"), ("tiny-llama2-q8_0", "q8_0")] {
        assert_eq!(terminal.run(&[&["dump", "-m", model, "-o", out][..], &tokens].concat()).code, 0);
    }
    let (code, report) = terminal.json(&["compare", "q8_0", "f32"]);
    assert_eq!(code, 1);
    assert_eq!(report["references"][0]["first_divergence"]["tap"], "embed");
}

#[test]
fn inspect_shows_models_and_dumps() {
    let terminal = Terminal::new();
    let checkpoints = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2");
    let model = terminal.run(&["inspect", &format!("{checkpoints}/tiny-llama2-q8_0.gguf")]);
    assert_eq!(model.code, 0);
    assert!(
        model.stdout.contains("general.architecture = ") && model.stdout.contains("blk.3.ffn_down.weight")
    );
    let directory = terminal.run(&["inspect", &format!("{checkpoints}/hf")]);
    assert!(directory.stdout.contains("model.layers.0.self_attn.q_proj.weight"), "{}", directory.stdout);
    let pytorch = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pytorch/module.bin");
    let pytorch = terminal.run(&["inspect", pytorch]);
    assert!(pytorch.stdout.contains("embed.weight  f32   [3, 2]"), "{}", pytorch.stdout);
    let dump = format!("{checkpoints}/dumps/transformers-f32.safetensors");
    let dump = terminal.run(&["inspect", &dump, "--tap", "k_rope", "--layer", "1"]);
    assert_eq!(dump.stdout.matches("k_rope").count(), 5, "{}", dump.stdout);
    assert!(dump.stdout.contains("dump made by transformers"), "{}", dump.stdout);
    let shipped = terminal.run(&["inspect", "tiny-llama2"]);
    assert_eq!(
        shipped.code, 0,
        "a model that ships is known by its own name, in each of its formats: {}",
        shipped.stderr
    );
    assert!(shipped.stdout.contains("q_proj.weight") && shipped.stdout.contains("blk.3.ffn_down.weight"));
}

#[test]
fn dumps_of_one_name_are_told_apart_in_the_report() {
    let terminal = Terminal::new();
    let dump =
        concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2/dumps/transformers-f32.safetensors");
    for folder in ["a", "b"] {
        std::fs::create_dir(terminal.path().join(folder)).expect("it is made");
        std::fs::copy(dump, terminal.path().join(folder).join("run.safetensors")).expect("it is copied");
    }
    let names = |arguments: &[&str]| {
        let (_, report) =
            terminal.json(&[arguments, &["--layer", "0", "--checkpoint", "1", "--no-report"]].concat());
        let references = report["references"].as_array().expect("references").iter();
        references.map(|reference| reference["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let (a, b) = ("a/run.safetensors", "b/run.safetensors");
    let run = |references: &[&str]| {
        let references = references.iter().flat_map(|reference| ["--reference", reference]);
        names(&["run", "--model", "tiny-llama2"].into_iter().chain(references).collect::<Vec<_>>())
    };
    assert_eq!(run(&[a, b]), ["a/run", "b/run"]);
    assert_eq!(run(&[a, a]), ["run", "run (2)"]);
    assert_eq!(run(&[a, "transformers-f32"]), ["run", "transformers-f32"], "no more than is needed");
    assert_eq!(names(&["compare", a, b, "--model", "tiny-llama2"]), ["a/run", "b/run"]);
}

#[test]
fn the_lists_name_what_there_is() {
    let terminal = Terminal::new();
    let models = terminal.run(&["models"]).stdout;
    assert!(REFERENCES.iter().all(|reference| models.contains(reference)), "{models}");
    let checkpoints = terminal.run(&["checkpoints"]).stdout;
    assert!(xcheck::checkpoint::Point::ALL.iter().all(|point| checkpoints.contains(point.name())));
    assert!(checkpoints.contains("Llama-2 specification, checkpoint 4"), "{checkpoints}");
}

// ---- what is refused ------------------------------------------------------------------------------------

#[test]
fn bad_arguments_are_refused_with_one_message() {
    let terminal = Terminal::new();
    terminal.assert_refused(&["run", "--model", "nope"], "no model 'nope'");
    terminal.assert_refused(&["run", "--model", "tiny-llama2", "--reference", "nope"], "transformers-f32");
    terminal.assert_refused(
        &["run", "--model", "tiny-llama2", "--checkpoint", "nope"],
        "no checkpoint is named 'nope'",
    );
    terminal.assert_refused(
        &["run", "--model", "tiny-llama2", "--checkpoint", "3-13"],
        "expected a number from 1 to 12",
    );
    terminal
        .assert_refused(&["run", "--model", "tiny-llama2", "--layer", "3-"], "expected a number or a range");
    terminal.assert_refused(&["dump", "--model", "tiny-llama2", "--out", "x"], "--prompt or --tokens");
    terminal
        .assert_refused(&["dump", "-m", "tiny-qwen3-hf", "-o", "x", "--prompt", "a"], "no tokenizer found");
    terminal.assert_refused(
        &["dump", "-m", "tiny-llama2", "-o", "x", "--tokens", "1,9999"],
        "outside the vocabulary of 512",
    );
    let too_long = ["dump", "-m", "tiny-llama2", "-o", "y", "--tokens", "1,2", "--decode", "300"];
    terminal.assert_refused(&too_long, "more than the 256");
    let too_long = ["dump", "-m", "tiny-gpt2", "-o", "y", "--tokens", "1,2", "--decode", "63"];
    terminal.assert_refused(&too_long, "more than the 64"); // GPT-2 has no embedding for a 65th position
    terminal.assert_refused(&["compare", "a", "b"], "a");
}

#[test]
fn a_layer_that_does_not_exist_is_refused() {
    let run = ["run", "-m", "tiny-llama2", "--checkpoint", "rope", "--layer", "9"];
    Terminal::new().assert_refused(&run, "layer 9 does not exist");
}

#[test]
fn a_tolerance_file_goes_before_the_shipped_table_and_is_checked() {
    let terminal = Terminal::new();
    let run =
        ["run", "-m", "tiny-llama2", "-r", "transformers-f32", "--tolerance", "mine.toml", "--no-causes"];
    let write = |text: &str| fs::write(terminal.path().join("mine.toml"), text).expect("it is written");
    write("[any.any]\nffn_out = { max_abs = 1e-9, source = \"mine\" }\n");
    let (code, report) = terminal.json(&run);
    assert_eq!((code, &report["references"][0]["first_divergence"]["checkpoint"]), (1, &"ffn_out".into()));
    // A cosine alone is no other scale: the largest error is bounded as well.
    for (cosine, code) in [(0.99, 0), (1.0, 1)] {
        write(&format!("[any.any]\nqkv = {{ max_abs = 1, min_cosine = {cosine:?}, source = \"mine\" }}\n"));
        let (found, report) = terminal.json(&run);
        let reason = report["references"][0]["reason"].as_str().unwrap_or_default();
        assert_eq!((found, reason.contains("is below 1")), (code, code == 1), "{cosine}: {reason}");
    }
    write("[any.q4_k]\nffn_out = { max_abs = 1e-9, source = \"of another type\" }\n");
    assert_eq!(terminal.run(&run).code, 0);
    for (text, expected) in [
        ("[any.q4_kk]\nnorm = { max_abs = 1, source = \"\" }", "q4_kk"),
        ("[any.any]\nffn_uot = { max_abs = 1, source = \"\" }", "ffn_uot"),
        ("[lama.any]\nnorm = { max_abs = 1, source = \"\" }", "lama"),
        ("[any.any]\nnorm = { max_abs = 1, sauce = \"\" }", "sauce"),
        ("[any.any]\nnorm = { max_abs = nan, source = \"\" }", "finite"),
        ("[any.any]\nnorm = { max_abs = 1, min_cosine = 1.5, source = \"\" }", "from -1 to 1"),
        ("not toml", "mine.toml"),
    ] {
        write(text);
        terminal.assert_refused(&run, expected);
    }
}

#[test]
fn damaged_models_are_refused() {
    let terminal = Terminal::new();
    let model =
        fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2/tiny-llama2-q8_0.gguf"));
    let model = model.expect("it is there");
    let file =
        |name: &str, bytes: &[u8]| fs::write(terminal.path().join(name), bytes).expect("it is written");
    file("short.gguf", &model[..model.len() / 2]);
    terminal.assert_refused(&["run", "--model", "short.gguf"], "short.gguf");
    file("lfs.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    terminal.assert_refused(&["run", "--model", "lfs.gguf"], "git lfs pull");
    fs::create_dir(terminal.path().join("empty")).expect("a folder");
    terminal.assert_refused(&["run", "--model", "empty"], "config.json");
    let other = String::from_utf8_lossy(&model[..200]).contains("llama");
    assert!(other, "the architecture stands near the start");
}

#[test]
fn a_report_that_cannot_be_written_is_one_message_and_leaves_nothing() {
    let terminal = Terminal::new();
    fs::write(terminal.path().join("taken"), "a file").expect("it is written");
    let run = ["run", "--model", "tiny-llama2", "--report", "taken"];
    terminal.assert_refused(&run, "taken");
}

/// A limit on file size makes every larger write fail, as a full disk does.
#[cfg(unix)]
#[test]
fn a_full_disk_is_one_message_and_leaves_no_partial_report() {
    let terminal = Terminal::new();
    let xcheck = assert_cmd::cargo::cargo_bin("xcheck");
    let script =
        format!("trap '' XFSZ; ulimit -f 4; exec {} run -m tiny-llama2 --report r", xcheck.display());
    let output =
        Command::new("sh").current_dir(terminal.path()).args(["-c", &script]).output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
    let left = fs::read_dir(terminal.path().join("r")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "no partial report");
}

// ---- another form of GELU -------------------------------------------------------------------------------

#[test]
fn gelu_erf_can_be_selected_and_is_named_as_the_first_divergence() {
    let terminal = Terminal::new();
    let run = ["run", "--model", "tiny-gpt2", "--reference", "transformers-f32", "--gelu"];
    let (code, report) = terminal.json(&[&run[..], &["erf"]].concat());
    let first = &report["references"][0]["first_divergence"];
    assert_eq!((code, &first["tap"]), (1, &"ffn_act".into()));
    assert_eq!(terminal.json(&[&run[..], &["tanh"]].concat()).0, 0);
    let refused = terminal.run(&["run", "--model", "tiny-llama2", "--gelu", "erf"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("--gelu: llama has no GELU"), "{}", refused.stderr);
}

/// torch makes erf of another exponential on the CPU: right to 7e-7, not to its own size (tests/data/activations/README.md).
#[test]
fn gelu_of_torch_passes_and_another_gelu_does_not() {
    let terminal = Terminal::new();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/activations/torch-gelu-erf.safetensors");
    let check = ["check", "--model", "tiny-gpt2", "--no-report", "--candidate", file, "--gelu"];
    let (code, report) = terminal.json(&[&check[..], &["erf"]].concat());
    assert_eq!(code, 0, "{}", report["references"][0]["reason"]);
    let notes = report["references"][0]["notes"].to_string();
    assert!(notes.contains("erf has an absolute error"), "{notes}");
    assert_eq!(terminal.json(&[&check[..], &["tanh"]].concat()).0, 1);
    let demanded = terminal.json(&[&check[..], &["erf", "--rounding", "f32"]].concat());
    assert_eq!(demanded.0, 1, "what torch does is no f32 that is right to its own size");
}

// ---- what is mistyped -----------------------------------------------------------------------------------

#[test]
fn what_is_mistyped_is_told_with_what_can_be_typed() {
    let terminal = Terminal::new();
    let run = |more: &[&'static str]| [&["run", "--model", "tiny-llama3", "--no-report"], more].concat();
    let refused: [(Vec<&str>, &str); 10] = [
        (run(&["--suppose", "rope_theta=abc"]), "rope_theta takes a value: rope_theta=10000"),
        (
            run(&["--suppose", "rope_theta@ffn_norm=3"]),
            "rope_theta does not change ffn_norm, only q_rope, k_rope",
        ),
        (run(&["--layer", "3-1"]), "invalid range '3-1': the start is above the end; write 1-3"),
        (run(&["--pass", "-1"]), "invalid value '-1', expected a number or a range"),
        (run(&["--checkpoint", "q_rope"]), "'q_rope' is a tap, expected a checkpoint; use 3, rope"),
        (vec!["run", "--model", "tiny-lama3"], "tiny-llama3"),
        (run(&["--candidate", "d"]), "use 'xcheck check --candidate' to judge a dump of your engine"),
        (vec!["check", "-m", "tiny-llama3", "--reference", "d"], "'xcheck compare A B' for two dumps"),
        (vec!["inspect", "tiny-llama3/transformers-f32", "--layer", "9"], "no value matches --tap"),
        (
            vec!["dump", "-m", "tiny-llama3", "-o", "d", "--tokens", "1,x"],
            "expected a whole number as in 1,15043",
        ),
    ];
    for (arguments, expected) in refused {
        let finished = terminal.run(&arguments);
        assert_eq!(finished.code, 2, "{arguments:?}: {}", finished.stdout);
        assert!(finished.stderr.contains(expected), "{arguments:?}: {}", finished.stderr);
    }
    // As Python prints a list.
    let dump = ["dump", "-m", "tiny-llama3", "-o", "d", "--tokens", "[1, 393, 395]"];
    assert_eq!(terminal.run(&dump).code, 0);
    let folder = format!("{}/tests/data/engines/tiny-llama3", env!("CARGO_MANIFEST_DIR"));
    let check = ["check", "-m", "tiny-llama3", "--no-report", "--candidate", &folder];
    terminal.assert_refused(&check, "name one of the dumps inside it");
    // The name that commands without a model take is taken with one, too.
    let whole = ["run", "-m", "tiny-llama3", "--reference", "tiny-llama3/transformers-f32", "--no-report"];
    assert_eq!(terminal.run(&whole).code, 0);
}

/// Another token that follows from the dump's own logits differs in total alone: that is what is shown of it.
#[test]
fn a_token_that_differs_is_shown_as_it_differs() {
    let terminal = Terminal::new();
    let dump =
        format!("{}/tests/data/engines/tiny-llama3/mlx-lm-f32.safetensors", env!("CARGO_MANIFEST_DIR"));
    let finished = terminal.run(&["check", "-m", "tiny-llama3", "--candidate", &dump, "--report", "r"]);
    assert_eq!(finished.code, 1);
    let junit = fs::read_to_string(terminal.path().join("r/junit.xml")).expect("it is written");
    let argmax = junit.split("<testcase").find(|case| case.contains("name=\"argmax\"")).expect("a case");
    assert!(argmax.contains("candidate: 71\nreference: 56\n"), "{argmax}");
    assert!(junit.contains("cause: rope_theta: the candidate computes with 10000"), "{junit}");
    let note = ["compare", &dump, &dump, "--no-report"];
    assert!(terminal.run(&note).stdout.contains("candidate and reference are the same file"));
}
