//! What the command line says of it.

use serde_json::{Value, json};
use xcheck::checkpoint::{Point, TapAxis};

use super::clay::Clay;
use super::scene::{of_pass, site};
use crate::common::reference;
use crate::common::terminal::Terminal;

const RUN: [&str; 4] = ["run", "--model", "tiny-llama2-f32", "--reference"];

/// llama.cpp's dump, shaped, as a file.
fn shaped(terminal: &Terminal, name: &str, shape: impl FnOnce(Clay) -> Clay) -> String {
    let file = terminal.path().join(format!("{name}.safetensors"));
    shape(Clay::of(&reference("llama.cpp-f32"))).save(&file);
    file.display().to_string()
}

fn run(terminal: &Terminal, dump: &str, more: &[&str]) -> (i32, Value) {
    terminal.json(&[&RUN[..], &[dump, "--no-report"], more].concat())
}

fn compare(terminal: &Terminal, one: &str, other: &str, more: &[&str]) -> (i32, Value) {
    terminal.json(&[&["compare", one, other, "--no-report"], more].concat())
}

#[test]
fn an_axis_that_is_named_twice_is_refused() {
    let terminal = Terminal::new();
    let twice = |mut clay: Clay| {
        let array = clay.arrays.get_mut(&site(Point::AttnOut, 0, 0)).expect("it is held");
        array.values.shape.push(2);
        array.values.data = array.values.data.iter().flat_map(|&value| [value, f64::NAN]).collect();
        array.axes = Some(vec!["token", "hidden", "hidden"]);
        clay
    };
    let honest = shaped(&terminal, "honest", |clay| clay);
    let twice = shaped(&terminal, "twice", twice);
    terminal.assert_refused(&[&RUN[..], &[&twice]].concat(), "duplicate axis");
    terminal.assert_refused(&["compare", &twice, &honest], "duplicate axis");
    terminal.assert_refused(&["compare", &honest, &twice], "duplicate axis");
}

#[test]
fn axes_in_another_order_pass() {
    let terminal = Terminal::new();
    let turned = |mut clay: Clay| {
        let array = clay.arrays.get_mut(&site(Point::AttnOut, 0, 0)).expect("it is held");
        let (rows, width) = (array.values.shape[0], array.values.shape[1]);
        let data = &array.values.data;
        array.values.data =
            (0..width).flat_map(|column| (0..rows).map(move |row| data[row * width + column])).collect();
        array.values.shape = vec![width, rows];
        array.axes = Some(vec![TapAxis::Hidden.name(), TapAxis::Token.name()]);
        clay
    };
    let turned = shaped(&terminal, "turned", turned);
    assert_eq!(run(&terminal, &turned, &[]).0, 0);
}

#[test]
fn a_layer_pass_or_position_that_does_not_exist_is_refused_with_what_there_is() {
    let terminal = Terminal::new();
    let dump = shaped(&terminal, "dump", |clay| clay);
    let asked = [
        ("--layer", "99", "layer 99 does not exist; expected 0 to 3"),
        ("--layer", "4", "layer 4 does not exist; expected 0 to 3"),
        ("--pass", "9", "pass 9 does not exist; expected 0 to 4"),
        ("--position", "99", "position 99 does not exist; expected 0 to 12"),
        ("--position", "13", "position 13 does not exist; expected 0 to 12"),
    ];
    for (option, number, message) in asked {
        terminal.assert_refused(&[&RUN[..], &[&dump, option, number]].concat(), message);
        terminal.assert_refused(&["compare", &dump, &dump, option, number], message);
    }
    let mode = ["--from-reference", "--isolate", "--propagate"];
    for mode in mode {
        terminal.assert_refused(
            &[&RUN[..], &[&dump, mode, "--layer", "1,99"]].concat(),
            "layer 99 does not exist",
        );
    }
}

#[test]
fn the_last_layer_pass_and_position_are_judged() {
    let terminal = Terminal::new();
    let dump = shaped(&terminal, "dump", |clay| clay);
    for (option, number) in [("--layer", "3"), ("--pass", "4"), ("--position", "12")] {
        assert_eq!(run(&terminal, &dump, &[option, number]).0, 0, "{option}");
        assert_eq!(compare(&terminal, &dump, &dump, &[option, number]).0, 0, "{option}");
    }
}

#[test]
fn a_dump_of_another_architecture_is_refused() {
    let terminal = Terminal::new();
    let other = |clay: Clay| clay.say(|json| json["model"]["architecture"] = json!("gpt2"));
    let (dump, other) = (shaped(&terminal, "dump", |clay| clay), shaped(&terminal, "other", other));
    terminal.assert_refused(&[&RUN[..], &[&other]].concat(), "architecture 'gpt2'");
    terminal.assert_refused(&["compare", &other, &dump], "architecture 'gpt2'");
    assert_eq!(compare(&terminal, &dump, &dump, &[]).0, 0);
}

#[test]
fn a_continuation_that_contradicts_its_array_is_refused() {
    let terminal = Terminal::new();
    let home = terminal.path().join("made");
    terminal.run(&[
        "dump",
        "--model",
        "tiny-llama2-f32",
        "--tokens",
        "1,5,9",
        "--decode",
        "2",
        "--out",
        "made",
    ]);
    assert_eq!(run(&terminal, "made", &[]).0, 0);
    let file = home.join("manifest.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&file).expect("it is there")).expect("JSON");
    json["generated"][1] = json!(7);
    std::fs::write(&file, json.to_string()).expect("it is written");
    terminal.assert_refused(&[&RUN[..], &["made"]].concat(), "generated");
    terminal.assert_refused(&["compare", "made", "made"], "generated");
}

#[test]
fn a_continuation_in_the_manifest_alone_is_compared() {
    let terminal = Terminal::new();
    let dump = shaped(&terminal, "dump", |clay| clay);
    let told = |tokens: [u32; 5]| {
        move |clay: Clay| clay.with_only(&[Point::Generated]).say(|json| json["generated"] = json!(tokens))
    };
    let right = shaped(&terminal, "right", told([260, 274, 276, 471, 341]));
    let wrong = shaped(&terminal, "wrong", told([260, 274, 276, 471, 340]));
    assert_eq!(run(&terminal, &right, &[]).0, 0);
    assert_eq!(compare(&terminal, &right, &dump, &[]).0, 0);
    assert_eq!(run(&terminal, &wrong, &[]).0, 1);
    assert_eq!(compare(&terminal, &wrong, &dump, &[]).0, 1);
    assert_eq!(compare(&terminal, &dump, &wrong, &[]).0, 1);
    assert_eq!(compare(&terminal, &wrong, &right, &[]).0, 1);
}

#[test]
fn the_side_that_lacks_a_checkpoint_is_named() {
    let terminal = Terminal::new();
    let whole = shaped(&terminal, "whole", |clay| clay);
    let less = shaped(&terminal, "less", |clay| clay.without(&[Point::AttnScores, Point::AttnWeights]));
    for (one, other) in [(&less, &whole), (&whole, &less)] {
        let (code, json) = compare(&terminal, one, other, &["--checkpoint", "all"]);
        let text = json.to_string();
        assert_eq!(code, 3, "{text}");
        assert!(text.contains("checkpoint scores: no tap in"), "{text}");
        let told = terminal.run(&["compare", one, other, "--checkpoint", "all", "--no-report"]).stdout;
        assert!(told.contains("no tap in") && told.contains("less.safetensors"), "{told}");
        assert_eq!(compare(&terminal, one, other, &[]).0, 0, "what nobody asked for is passed over");
    }
    assert_eq!(compare(&terminal, &whole, &whole, &["--checkpoint", "all"]).0, 0);
}

/// Its tokens tell what was chosen, if they were: that alone shows nothing of what was computed.
fn embeddings_alone(clay: Clay) -> Clay {
    clay.with_only(&[Point::Embed])
}

#[test]
fn a_dump_of_embeddings_alone_shows_nothing() {
    let terminal = Terminal::new();
    let whole = shaped(&terminal, "whole", |clay| clay);
    let embed = shaped(&terminal, "embed", embeddings_alone);
    assert_eq!(compare(&terminal, &embed, &whole, &[]).0, 3);
    assert_eq!(compare(&terminal, &whole, &embed, &[]).0, 3);
    assert_eq!(run(&terminal, &embed, &[]).0, 3);
    assert_eq!(compare(&terminal, &embed, &whole, &["--checkpoint", "input"]).0, 0, "it was asked for");
    let wrong = |clay: Clay| embeddings_alone(clay).edit(of_pass(Point::Embed, 0), |values| values[3] += 0.1);
    let wrong = shaped(&terminal, "wrong", wrong);
    assert_eq!(compare(&terminal, &wrong, &whole, &[]).0, 1);
    assert_eq!(run(&terminal, &wrong, &[]).0, 1);
}

#[test]
fn a_dump_of_nothing_shows_nothing() {
    let terminal = Terminal::new();
    let whole = shaped(&terminal, "whole", |clay| clay);
    let choices = shaped(&terminal, "choices", |clay| clay.with_only(&[Point::Argmax]));
    for decode in ["greedy", "forced"] {
        let empty = shaped(&terminal, decode, |clay| {
            clay.with_only(&[]).say(|json| json["input"]["decode"] = json!(decode))
        });
        assert_eq!(run(&terminal, &empty, &[]).0, 3, "{decode}");
        assert_eq!(compare(&terminal, &empty, &whole, &[]).0, 3, "{decode}");
        assert_eq!(compare(&terminal, &choices, &empty, &[]).0, 3, "{decode}");
    }
    assert_eq!(run(&terminal, &choices, &[]).0, 0);
    assert_eq!(compare(&terminal, &choices, &whole, &[]).0, 0);
}

/// An engine ran the quantised weights and does not say so: the note names them. It names none where no weights of the model explain the
/// dump.
#[test]
fn weights_of_another_file_are_named() {
    let notes = |suppose: &[&str]| {
        let terminal = Terminal::new();
        let made = terminal.path().join("made.safetensors").display().to_string();
        let words = [
            "dump",
            "--model",
            "tiny-llama3-q8_0",
            "--numerics",
            "f32",
            "--tokens",
            "1,9,17,200",
            "--decode",
            "0",
            "-o",
            &made,
        ];
        assert_eq!(terminal.run(&[&words, suppose].concat()).code, 0);
        let dump = xcheck::dump::Dump::open(made.as_ref()).expect("a sound dump");
        let silent = Clay::of(&dump).say(|manifest| {
            manifest["producer"] = serde_json::json!({"name": "my-engine", "version": "1"});
            manifest["model"].as_object_mut().expect("an object").remove("sha256");
        });
        let path = terminal.path().join("silent.safetensors");
        silent.save(&path);
        let path = path.display().to_string();
        let words = ["check", "--model", "tiny-llama3", "--candidate", &path, "--no-report"];
        let (code, report) = terminal.json(&words);
        assert_eq!(code, 1, "{report}");
        report["references"][0]["notes"].to_string()
    };
    assert!(
        notes(&[]).contains("the dump passes with tiny-llama3-q8_0, another weight file"),
        "{}",
        notes(&[])
    );
    assert!(!notes(&["--suppose", "rope_theta=9000"]).contains("another weight file"));
}
