//! Two dumps of 16 bits without a model: what rounding may explain is neither a pass nor a failure.

use std::path::Path;

use xcheck::align::Selection;
use xcheck::check::{Gate, Mode, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::cross_check_dumps;
use xcheck::dump::Dump;
use xcheck::verdict::{Outcome, Verdict};
use xcheck::weight::DType;

use super::clay::Clay;
use super::scene::{compare, of_pass, site, told};
use crate::common::terminal::Terminal;
use crate::common::{reference_of, rules};

/// A dump of transformers in bf16 with attention by another kernel than the shipped one.
fn sdpa_path() -> String {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cases/compare-bf16/llama3-sdpa.safetensors");
    path.display().to_string()
}

fn sdpa() -> Clay {
    Clay::open(Path::new(&sdpa_path()))
}

fn eager() -> Dump {
    reference_of("tiny-llama3", "transformers-bf16")
}

fn by_table(candidate: &Dump, reference: &Dump) -> Outcome {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = rules(&selection, &tolerances, "torch-bf16", Mode::Accumulated);
    let rules = xcheck::check::Rules { gate: Gate::Tolerance, ..rules };
    cross_check_dumps("reference", candidate, reference, rules).expect("the two can be compared")
}

#[track_caller]
fn assert_open(outcome: &Outcome) {
    assert_eq!(outcome.verdict, Verdict::Inconclusive, "{}", told(outcome));
    let reason = outcome.reason.as_deref().unwrap_or_default();
    assert!(reason.contains("use --model"), "{reason}");
}

#[test]
fn two_correct_bf16_or_f16_dumps_do_not_fail() {
    let (ours, theirs) = (sdpa().dump(), eager());
    assert_open(&compare(&ours, &theirs));
    assert_open(&compare(&theirs, &ours));
    assert_eq!(by_table(&ours, &theirs).verdict, Verdict::Fail);
}

#[test]
fn bf16_and_f16_values_show_the_dtype_that_the_manifest_lacks() {
    let unsaid = |clay: Clay| {
        clay.stored_in(DType::F32)
            .say(|manifest| manifest["producer"]["settings"] = serde_json::json!({}))
            .dump()
    };
    assert_open(&compare(&unsaid(sdpa()), &unsaid(Clay::of(&eager()))));
    // Of f32 the table decides as before.
    let longer = |clay: Clay| {
        unsaid(clay.edit_all(|_| true, |values| values.data.iter_mut().for_each(|value| *value *= 1.000_1)))
    };
    let one = longer(sdpa().with_only(&[Point::AttnContext, Point::BlockOut]));
    let other = longer(Clay::of(&eager()).with_only(&[Point::AttnContext, Point::BlockOut]));
    assert_eq!(compare(&one, &other).verdict, Verdict::Fail);
}

#[test]
fn two_dumps_within_the_table_pass() {
    let dump = eager();
    assert_eq!(compare(&dump, &dump).verdict, Verdict::Pass);
    let near = Clay::of(&dump).with_only(&[Point::AttnNorm]);
    let moved = near.clone().edit(site(Point::AttnNorm, 1, 0), |values| values[3] += 0.004);
    assert_eq!(compare(&moved.dump(), &near.dump()).verdict, Verdict::Pass);
}

#[test]
fn what_no_rounding_explains_still_fails() {
    type Change = fn(&mut Vec<f64>);
    let changes: [(&str, Change); 6] = [
        ("NaN", |values| values[5] = f64::NAN),
        ("zeros", |values| values.fill(0.0)),
        ("reversed", |values| values.reverse()),
        ("another sign", |values| values.iter_mut().for_each(|value| *value = -*value)),
        ("twice as large", |values| values.iter_mut().for_each(|value| *value *= 2.1)),
        ("another layer", |values| values.rotate_left(7)),
    ];
    for (what, change) in changes {
        for place in [site(Point::BlockOut, 1, 0), site(Point::AttnContext, 2, 1), of_pass(Point::Logits, 1)]
        {
            let outcome = compare(&sdpa().edit(place, change).dump(), &eager());
            let row = outcome.rows.iter().find(|row| row.site == place).expect("it was compared");
            assert_eq!(row.verdict, Verdict::Fail, "{what} at {place}: {}", told(&outcome));
            assert_eq!(outcome.verdict, Verdict::Fail, "{what} at {place}");
        }
    }
}

#[test]
fn one_value_that_is_wrong_among_others_with_the_same_bits_fails() {
    let right = Clay::of(&eager());
    let place = site(Point::BlockOut, 1, 0);
    let outcome = compare(&right.clone().edit(place, |values| values[9] += 3.0).dump(), &right.dump());
    assert_eq!(outcome.verdict, Verdict::Fail, "{}", told(&outcome));
}

#[test]
fn a_half_precision_rope_that_is_no_rotation_of_its_input_fails() {
    let right = Clay::of(&eager());
    let turned = |values: &mut xcheck::dump::ArrayValues| {
        values.data.chunks_mut(2).for_each(|pair| {
            (pair[0], pair[1]) = (0.9 * pair[0] - 0.43 * pair[1], 0.9 * pair[1] + 0.43 * pair[0])
        });
    };
    let is_rotated = |site: Site| matches!(site.point, Point::QRope | Point::KRope);
    let outcome = compare(&right.clone().edit_all(is_rotated, turned).dump(), &right.dump());
    assert_eq!(outcome.verdict, Verdict::Fail, "{}", told(&outcome));
    assert_eq!(outcome.first_divergence().map(|row| row.site), Some(site(Point::QRope, 0, 0)));
}

#[test]
fn another_token_is_open_where_the_logits_are() {
    let changed = |clay: Clay| clay.say(|manifest| manifest["generated"][3] = serde_json::json!(9));
    let open = compare(&changed(sdpa()).dump(), &eager());
    let row = open.rows.iter().find(|row| row.site.point == Point::Generated).expect("it was compared");
    assert_ne!(row.verdict, Verdict::Pass, "{}", told(&open));
    // Where the bits of all logits are the same, nothing is open.
    let right = Clay::of(&eager());
    let sure = compare(&changed(right.clone()).dump(), &right.dump());
    assert_eq!(sure.verdict, Verdict::Fail, "{}", told(&sure));
}

#[test]
fn the_command_says_what_decides() {
    let terminal = Terminal::new();
    let pair = ["compare", &sdpa_path(), "tiny-llama3/transformers-bf16", "--no-report"];
    let open = terminal.run(&pair);
    assert_eq!(open.code, 3, "{}{}", open.stdout, open.stderr);
    let words = open.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("rounding to 16 bits may explain; use --model"), "{words}");
    assert_eq!(terminal.run(&[&pair[..], &["--gate", "tolerance"]].concat()).code, 1);
    let table = terminal.path().join("mine.toml");
    std::fs::write(&table, "[any.any]\nattn_out = { max_abs = 1e-2, source = \"mine\" }\n").expect("written");
    let asked = terminal.run(&[&pair[..], &["--tolerance", "mine.toml"]].concat());
    assert_eq!(asked.code, 1, "{}{}", asked.stdout, asked.stderr);
    let model = [&pair[..], &["--model", "tiny-llama3"]].concat();
    assert_ne!(terminal.run(&model).code, 1);
}
