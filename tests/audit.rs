//! A dump judged by its own inputs and the weights alone, and two of them, as the command line says it.

use serde_json::{Value, json};
use xcheck::align::Selection;
use xcheck::check::{Mode, Role, Rules, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::cross_check;
use xcheck::engine::RunInput;
use xcheck::model::Model;
use xcheck::numerics::Transformers;
use xcheck::quant::decode_matrix_row;
use xcheck::verdict::Verdict;
use xcheck::weight::{DType, Matrix, StoredTensor};

use crate::common::faulty::At;
use crate::common::terminal::Terminal;
use crate::common::{reference, rules, tiny_llama2};
use crate::judge::clay::Clay;
use crate::judge::scene::{recorded, site};

const WRONG: Site = site(Point::Q, 1, 0);
/// The first value of the first head of the fourth token: its rows are 128 wide.
const CHANGED: usize = 3 * 128;

fn saved(terminal: &Terminal, name: &str, clay: &Clay) -> String {
    let file = terminal.path().join(format!("{name}.safetensors"));
    clay.save(&file);
    file.display().to_string()
}

fn audit(terminal: &Terminal, dump: &str, more: &[&str]) -> (i32, Value) {
    let command = ["audit", dump, "--model", "tiny-llama2-f32", "--no-report"];
    let (code, report) = terminal.json(&[&command[..], more].concat());
    (code, report["references"][0].clone())
}

fn honest() -> Clay {
    Clay::of(&reference("llama.cpp-f32"))
}

/// One value of the first pass is another.
fn changed() -> Clay {
    honest().edit(WRONG, |q| q[CHANGED] += 1e-3)
}

/// By an engine that nothing ships of, in f32: its sums have other last bits than ours.
fn of_mlx() -> Clay {
    let file = "tests/data/engines/tiny-llama2/mlx-lm-f32.safetensors";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    Clay::open(&path)
}

fn failing(told: &Value) -> Vec<(String, Value, Value)> {
    let rows = told["results"].as_array().expect("rows").iter().filter(|row| row["verdict"] == "fail");
    rows.map(|row| {
        (row["tap"].as_str().expect("a name").to_owned(), row["layer"].clone(), row["pass"].clone())
    })
    .collect()
}

#[track_caller]
fn assert_wrong_at_q(told: &Value) {
    let first = &told["first_divergence"];
    assert_eq!((&first["tap"], &first["layer"], &first["pass"]), (&json!("q"), &json!(1), &json!(0)));
    let reason = told["reason"].as_str().expect("a reason");
    let exact = &first["exact"]["candidate"];
    assert_eq!(exact["over"], 1, "{reason}");
    assert_eq!(exact["worst"]["index"], json!([3, 0, 0]), "{reason}");
    let value = format!("exactly {:.9} ±", exact["worst"]["exact"].as_f64().expect("a number"));
    let radius = format!("± {:.1e} (", exact["worst"]["radius"].as_f64().expect("a number"));
    assert!(reason.contains("1 value of the candidate is above its error bound"), "{reason}");
    assert!(reason.contains(&value) && reason.contains(&radius), "{reason}");
}

#[test]
fn a_shipped_dump_passes() {
    let terminal = Terminal::new();
    for (model, dump) in [
        ("tiny-llama2-f32", "tiny-llama2/llama.cpp-f32"),
        ("tiny-llama2-f16", "tiny-llama2/llama.cpp-f16"),
        ("tiny-llama2-q8_0", "tiny-llama2/llama.cpp-q8_0"),
        ("tiny-llama2", "tiny-llama2/transformers-f32"),
        ("tiny-llama2", "tiny-llama2/transformers-bf16"),
    ] {
        let (code, report) = terminal.json(&["audit", dump, "--model", model, "--no-report"]);
        assert_eq!(code, 0, "{dump}: {}", report["references"][0]["reason"]);
    }
}

#[test]
fn a_dump_that_is_shaped_and_left_as_it_is_passes() {
    let terminal = Terminal::new();
    let file = saved(&terminal, "honest", &honest());
    let (code, told) = audit(&terminal, &file, &[]);
    assert_eq!(code, 0, "{}", told["reason"]);
}

#[test]
fn one_wrong_value_fails_there_with_what_it_should_be_and_how_exactly_that_is_known() {
    let terminal = Terminal::new();
    let file = saved(&terminal, "changed", &changed());
    let (code, told) = audit(&terminal, &file, &[]);
    assert_eq!(code, 1);
    assert_wrong_at_q(&told);
}

/// The engine went on with the wrong value: all that follows is right of what it starts from.
#[test]
fn one_wrong_value_that_all_else_follows_from_is_the_only_one_that_is_told() {
    let terminal = Terminal::new();
    let model = tiny_llama2();
    let dump = |by: f32| {
        let given = reference("llama.cpp-f32").manifest.passes[0].tokens.clone();
        let script = RunInput::greedy(&given, 2);
        recorded(&model, &Transformers::F32, "f32", &script, &mut At(WRONG, |q: &mut [f32]| q[CHANGED] += by))
    };
    let wrong = saved(&terminal, "wrong", &Clay::of(&dump(1e-3)));
    let (code, told) = audit(&terminal, &wrong, &[]);
    assert_eq!(code, 1);
    assert_wrong_at_q(&told);
    assert_eq!(failing(&told), [("q".to_owned(), json!(1), json!(0))]);

    let right = saved(&terminal, "right", &Clay::of(&dump(0.0)));
    let (code, told) = audit(&terminal, &right, &[]);
    assert_eq!(code, 0, "{}", told["reason"]);
}

#[test]
fn a_dump_of_embeddings_alone_is_inconclusive() {
    let terminal = Terminal::new();
    let file = saved(&terminal, "embeddings", &honest().with_only(&[Point::Embed]));
    let (code, told) = audit(&terminal, &file, &[]);
    assert_eq!((code, &told["verdict"]), (3, &json!("inconclusive")));
    assert_eq!(told["reason"], "only the input was compared");
}

#[test]
fn rounding_that_is_stated_and_not_known_is_refused_in_one_message_that_names_it() {
    let terminal = Terminal::new();
    let stated = |rounding: Value| honest().say(|json| json["producer"]["rounding"] = rounding);
    for (rounding, words) in [
        (json!({"colour": "blue"}), vec!["producer.rounding", "colour"]),
        (json!({"like": "abacus"}), vec!["producer.rounding", "abacus", "transformers-bf16", "bf16-flash"]),
        (json!({"like": 7}), vec!["producer.rounding", "`like` is 7, expected the name of a profile"]),
        (json!({"scores": "f12"}), vec!["producer.rounding", "f12"]),
    ] {
        let file = saved(&terminal, "stated", &stated(rounding));
        let command = ["audit", &file, "--model", "tiny-llama2-f32", "--no-report"];
        for word in words {
            terminal.assert_refused(&command, word);
        }
        let stderr = terminal.run(&command).stderr;
        assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
    }
    // What is stated in full, and is what this engine does, passes.
    let file = saved(&terminal, "stated", &stated(json!({"like": "llama.cpp", "dots": "f32"})));
    let (code, told) = audit(&terminal, &file, &[]);
    assert_eq!(code, 0, "{}", told["reason"]);
}

#[test]
fn a_profile_on_the_command_line_that_there_is_none_of_is_refused_with_those_there_are() {
    let finished = Terminal::new().run(&[
        "audit",
        "tiny-llama2/llama.cpp-f32",
        "--model",
        "tiny-llama2-f32",
        "--rounding",
        "abacus",
    ]);
    assert_eq!((finished.code, finished.stdout.as_str()), (2, ""));
    for word in ["abacus", "transformers-bf16", "tf32"] {
        assert!(finished.stderr.contains(word), "{}", finished.stderr);
    }
}

// ---- two dumps ------------------------------------------------------------------------------------------

#[test]
fn of_two_dumps_the_one_that_is_wrong_is_told_whichever_comes_first() {
    let terminal = Terminal::new();
    let (right, wrong) = (saved(&terminal, "right", &honest()), saved(&terminal, "wrong", &changed()));
    for (pair, at) in [([&wrong, &right], 0), ([&right, &wrong], 1)] {
        let command = ["compare", pair[0], pair[1], "--model", "tiny-llama2-f32", "--no-report"];
        let (code, report) = terminal.json(&command);
        assert_eq!(code, 1);
        let told = |index: usize| &report["references"][index];
        assert_eq!(told(at)["verdict"], "fail");
        assert_wrong_at_q(told(at));
        assert_eq!(told(1 - at)["verdict"], "pass", "{}", told(1 - at)["reason"]);
        for (index, side) in ["candidate", "reference"].into_iter().enumerate() {
            let note = told(index)["notes"][0].as_str().expect("a note");
            assert!(note.starts_with(&format!("this result judges the {side} alone; ")), "{note}");
            assert!(note.contains("largest relative difference of the two dumps is at "), "{note}");
        }
    }
}

#[test]
fn two_dumps_that_differ_by_rounding_alone_both_pass() {
    let terminal = Terminal::new();
    let pair = ["compare", "tiny-llama2/transformers-f32", "tiny-llama2/llama.cpp-f32", "--no-report"];
    let (code, report) = terminal.json(&[&pair[..], &["--model", "tiny-llama2"]].concat());
    let verdicts: Vec<_> =
        report["references"].as_array().expect("two").iter().map(|told| &told["verdict"]).collect();
    assert_eq!((code, verdicts), (0, vec![&json!("pass"), &json!("pass")]));
    let (_, report) = terminal.json(&pair);
    let coverage = &report["references"][0]["coverage"];
    assert!(coverage["elements_identical"].as_u64() < coverage["elements"].as_u64(), "{coverage}");
}

// ---- what decides ---------------------------------------------------------------------------------------

/// A table of the user's decides whatever else would.
#[test]
fn a_table_that_allows_nothing_fails_what_rounding_explains() {
    let terminal = Terminal::new();
    let file = saved(&terminal, "mlx", &of_mlx());
    let table = terminal.path().join("strict.toml");
    let entries = ["norm", "qkv", "rope", "attn_out", "ffn_out", "block_out", "logits"];
    let entry = |name: &&str| format!("{name} = {{ max_abs = 1e-30, source = \"this test\" }}\n");
    std::fs::write(&table, format!("[any.any]\n{}", entries.iter().map(entry).collect::<String>()))
        .expect("written");
    let table = ["--tolerance", table.to_str().expect("UTF-8")];

    let (code, told) = audit(&terminal, &file, &[]);
    assert_eq!((code, &told["gate"]), (0, &json!("rounding")), "{}", told["reason"]);
    let by_table = ["--gate", "tolerance"];
    // The shipped table allows what it has.
    let (code, told) = audit(&terminal, &file, &by_table);
    assert_eq!((code, &told["gate"]), (0, &json!("tolerance")), "{}", told["reason"]);
    for more in [table.to_vec(), [table, by_table].concat()] {
        let (code, told) = audit(&terminal, &file, &more);
        assert_eq!(code, 1, "{more:?}");
        assert!(told["reason"].as_str().expect("a reason").contains("exceeds 1e-30"), "{}", told["reason"]);
    }
}

#[test]
fn what_the_table_allows_and_rounding_does_not_fails_unless_the_table_is_asked() {
    let terminal = Terminal::new();
    let wrong = site(Point::FfnOut, 1, 0);
    let file = saved(&terminal, "wrong", &honest().edit(wrong, |values| values[CHANGED] += 2e-5));
    let (code, told) = audit(&terminal, &file, &[]);
    assert_eq!((code, &told["first_divergence"]["tap"]), (1, &json!("ffn_out")));
    let (code, told) = audit(&terminal, &file, &["--gate", "tolerance"]);
    assert_eq!(code, 0, "{}", told["reason"]);
}

#[test]
fn the_report_tells_what_decided_how_much_room_was_left_and_what_was_evaluated() {
    let terminal = Terminal::new();
    let file = saved(&terminal, "mlx", &of_mlx());
    let (_, told) = audit(&terminal, &file, &[]);
    assert_eq!(told["gate"], "rounding");
    let rows = told["results"].as_array().expect("rows");
    let evaluated: Vec<&Value> = rows.iter().filter(|row| row["exact"].is_object()).collect();
    assert!(evaluated.len() > rows.len() / 2, "{} of {}", evaluated.len(), rows.len());
    for row in evaluated {
        assert_eq!(row["exact"]["candidate"]["over"], 0, "{row}");
        assert!(row["bound_ratio"].as_f64().is_some_and(|bound_ratio| bound_ratio <= 1.0), "{row}");
    }
    let summaries = told["checkpoints"].as_array().expect("checkpoints");
    for name in ["norm", "qkv", "rope", "block_out", "logits"] {
        let summary = summaries.iter().find(|summary| summary["checkpoint"] == name).expect("it is told of");
        assert_eq!(summary["over"], 0, "{summary}");
        assert!(summary["bound_ratio"].as_f64().is_some_and(|bound_ratio| bound_ratio <= 1.0), "{summary}");
    }

    let (_, told) = audit(&terminal, &saved(&terminal, "wrong", &changed()), &[]);
    assert!(told["first_divergence"]["bound_ratio"].as_f64().is_some_and(|bound_ratio| bound_ratio > 1.0));
    let qkv =
        told["checkpoints"].as_array().expect("checkpoints").iter().find(|row| row["checkpoint"] == "qkv");
    assert_eq!(qkv.expect("it is told of")["over"], 1);
}

/// Another token than our engine's logits give: told with how far apart they are, and wrong where that is no rounding.
#[test]
fn a_token_that_does_not_follow_from_what_is_held_is_told_with_its_margin() {
    let terminal = Terminal::new();
    let norms = [Point::AttnNorm, Point::FfnNorm, Point::Generated];
    let clay = Clay::of(&reference("transformers-f32")).with_only(&norms);
    let told = |clay: &Clay, name: &str| audit(&terminal, &saved(&terminal, name, clay), &[]);
    let (code, report) = told(&clay, "right");
    assert_eq!(code, 0, "{}", report["reason"]);
    let other = clay.say(|json| {
        // The last, which no pass has read.
        let last = json["generated"].as_array_mut().and_then(|tokens| tokens.last_mut()).expect("a token");
        *last = json!(last.as_u64().expect("a token") + 1);
    });
    let wrong = Clay {
        arrays: other.arrays.into_iter().filter(|(site, _)| site.point != Point::Generated).collect(),
        ..other
    };
    let (code, report) = told(&wrong, "wrong");
    let reason = report["reason"].to_string();
    assert_eq!(code, 1, "{reason}");
    assert!(
        reason.contains("the candidate chose token") && reason.contains("their logits differ by"),
        "{reason}"
    );
}

/// Two tokens of one row in the head have equal logits, and whoever takes the other is not wrong.
#[test]
fn a_greedy_token_of_equal_logits_is_a_tie_if_nothing_near_them_is_recorded() {
    let mut model = tiny_llama2();
    let prompt = reference("llama.cpp-f32").manifest.passes[0].tokens.clone();
    let run = |model: &dyn Model| {
        recorded(model, &Transformers::F32, "f32", &RunInput::greedy(&prompt, 2), &mut ())
    };
    let chosen = *run(&model).manifest.generated.expect("a continuation").last().expect("a token") as usize;
    let twin = model.output.rows - 1;
    let mut rows = vec![vec![0f32; model.output.cols]; model.output.rows];
    rows.iter_mut().enumerate().for_each(|(row, out)| decode_matrix_row(&model.output, row, out));
    rows[twin] = rows[chosen].clone();
    let data: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    let stored =
        StoredTensor { dtype: DType::F32, shape: vec![rows.len(), rows[0].len()], data: data.into() };
    model.output = Matrix::from_stored(&stored).expect("a matrix");
    let dump = Clay::of(&run(&model)).with_only(&[Point::AttnNorm, Point::FfnNorm, Point::Generated]);
    for (token, expected) in [(chosen, Verdict::Pass), (twin, Verdict::Tie), (twin - 1, Verdict::Fail)] {
        let dump = dump.clone().keep(|site| site.point != Point::Generated).say(|json| {
            json["generated"] = dump.manifest["generated"].clone();
            *json["generated"].as_array_mut().and_then(|all| all.last_mut()).expect("a token") = json!(token);
        });
        let (everything, tolerances) = (Selection::everything(), Tolerances::shipped());
        let rules = Rules { role: Role::Candidate, ..rules(&everything, &tolerances, "f32", Mode::Local) };
        let outcome =
            cross_check("d", &model, &Transformers::F32, &dump.dump(), rules, &mut ()).expect("it is judged");
        let row =
            outcome.rows.iter().find(|row| row.site.point == Point::Generated).expect("it was compared");
        assert_eq!(row.verdict, expected, "{token} {:?}", row.reason);
    }
}

#[test]
fn an_audit_is_a_check_of_local_errors() {
    let terminal = Terminal::new();
    let dump = saved(&terminal, "changed", &changed());
    let model = ["--model", "tiny-llama2-f32", "--no-report"];
    for (more, same) in [(&[][..], "--introduced"), (&["--from-reference"], "--from-reference")] {
        let (code, audit) = terminal.json(&[&["audit", &dump], &model[..], more].concat());
        let (of_check, check) = terminal.json(&[&["check", "--candidate", &dump, same], &model[..]].concat());
        assert_eq!((code, &audit["verdict"]), (of_check, &check["verdict"]));
        for part in ["mode", "results", "findings", "coverage"] {
            assert_eq!(audit["references"][0][part], check["references"][0][part], "{part}");
        }
    }
    terminal
        .assert_refused(&[&["audit", &dump, "--total"], &model[..]].concat(), "audit measures local errors");
}
