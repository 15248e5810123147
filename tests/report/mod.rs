//! What each exporter makes of a report, and how reports are put into a directory.

mod fixture;
mod format;
mod former;
mod junit_schema;
mod map;
pub mod page;
mod pull_request;
mod writer;

use fixture::{
    doubtful, everything, failing, failing_candidate, inconclusive, measurement, model, outcome, passing,
    report, row, site, small, tied,
};
use insta::assert_snapshot;
use serde_json::{Value, json};
use xcheck::check::Mode;
use xcheck::checkpoint::{Checkpoint, Point, Site};
use xcheck::noise::NoiseFloor;
use xcheck::report::{
    Comparison, ModelRecord, Report, TableOptions, json as to_json, junit, markdown, table,
};
use xcheck::verdict::{Outcome, Verdict};

/// Every kind of row once.
fn compact() -> Outcome {
    let tie = tied().rows.into_iter().find(|row| row.verdict == Verdict::Tie).expect("there is one");
    let too_large = measurement(&[3, 1, 17], f64::from(0.803_f32), 0.5);
    let nan = measurement(&[2, 200], f64::NEG_INFINITY, f64::from(0.1_f32));
    let rows = vec![
        row(site(Point::AttnNorm, 0, 0), Some(small(3)), Some(small(0))),
        row(site(Point::V, 0, 0), Some(small(3)), Some(too_large)),
        row(site(Point::AttnOut, 0, 0), None, Some(small(5))),
        row(site(Point::FfnAct, 0, 0), Some(nan), None),
        row(site(Point::BlockOut, 0, 0), None, None),
        tie,
    ];
    outcome("llama.cpp-q8_0", rows)
}

fn parsed(report: &Report) -> Value {
    serde_json::from_str(&to_json(report)).expect("the report is JSON")
}

/// What the table says to type next.
fn next(report: &Report) -> Vec<String> {
    let table = table(report, TableOptions::default());
    let commands = table.lines().filter_map(|line| Some(line[line.find("xcheck ")?..].to_owned()));
    commands.collect()
}

// ---- snapshots --------------------------------------------------------------------------------------

#[test]
fn table_of_a_pass() {
    assert_snapshot!(table(&report([passing()]), TableOptions::default()));
}

#[test]
fn table_of_a_failure() {
    assert_snapshot!(table(&report([failing()]), TableOptions::default()));
}

#[test]
fn table_of_what_could_not_be_judged() {
    assert_snapshot!(table(&report([inconclusive()]), TableOptions::default()));
}

#[test]
fn table_of_what_rounding_may_explain() {
    assert_snapshot!(table(&report([doubtful()]), TableOptions::default()));
}

#[test]
fn table_of_a_candidate_that_fails() {
    assert_snapshot!(table(&report([failing_candidate()]), TableOptions::default()));
}

#[test]
fn markdown_of_a_candidate_that_fails() {
    assert_snapshot!(markdown(&report([failing_candidate()])));
}

#[test]
fn markdown_of_what_rounding_may_explain() {
    assert_snapshot!(markdown(&report([doubtful()])));
}

#[test]
fn a_dump_compared_with_a_dump_names_both_producers() {
    let mut report = report([failing()]);
    report.results[0].model.format = ModelRecord::DUMP.into();
    report.results[0].outcome.subject.numerics = "tinygrad 0.10".into();
    report.results[0].outcome.subject.name = "golden".into();
    let title = "golden  ·  llama.cpp b6123, q8_0, kv f16  ·  candidate tinygrad 0.10";
    assert!(
        table(&report, TableOptions::default()).contains(title),
        "{}",
        table(&report, TableOptions::default())
    );
    let markdown = markdown(&report);
    assert!(markdown.contains("- candidate: tinygrad 0.10\n- reference: llama.cpp b6123"), "{markdown}");
}

#[test]
fn table_of_four_references() {
    assert_snapshot!(table(&everything(), TableOptions::default()));
}

#[test]
fn markdown_of_four_references() {
    assert_snapshot!(markdown(&everything()));
}

#[test]
fn junit_of_four_references() {
    assert_snapshot!(junit(&everything()));
}

#[test]
fn json_of_every_kind_of_row() {
    assert_snapshot!(to_json(&report([compact()])));
}

// ---- the terminal -----------------------------------------------------------------------------------

#[test]
fn no_line_of_the_table_is_wider_than_80_columns_whatever_the_names() {
    let long = "数値検証".repeat(20) + &" very long".repeat(20);
    let mut widest = everything();
    for Comparison { model, outcome, .. } in &mut widest.results {
        model.name = long.clone();
        outcome.subject.name = format!("{} {long}", outcome.subject.name);
        outcome.subject.numerics = long.clone();
        outcome.subject.producer.name = long.clone();
        outcome.notes.push(long.clone());
        outcome.reason = Some(long.replace(' ', "_"));
        outcome.coverage.skipped.push(long.clone());
        for row in &mut outcome.rows {
            row.tolerance.max_abs = 1.234_567_89e-100;
            row.site.layer = row.site.layer.map(|layer| layer + 100);
            row.site.pass = row.site.pass.map(|pass| pass + 1000);
        }
    }
    for line in table(&widest, TableOptions::default()).lines().filter(|line| !line.contains("xcheck ")) {
        assert!(textwrap::core::display_width(line) <= 80, "{line}");
    }
}

#[test]
fn a_table_is_coloured_only_where_that_is_asked_for() {
    let plain = table(&everything(), TableOptions::default());
    let coloured = table(&everything(), TableOptions { colour: true, ..TableOptions::default() });
    assert!(!plain.contains('\x1b'));
    assert!(coloured.contains('\x1b'));
    let stripped = anstream::adapter::strip_str(&coloured).to_string();
    let trimmed: String = stripped.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    assert_eq!(trimmed, plain);
}

#[test]
fn terminal_escape_sequences_in_a_dump_do_not_reach_the_terminal() {
    let mut outcome = passing();
    outcome.subject.name = "\x1b[2Jname\r\n".into();
    outcome.subject.producer.version = "\x1b]0;title\x07".into();
    outcome.notes = vec!["note\x1b[31m".into()];
    let table = table(&report([outcome]), TableOptions::default());
    assert!(table.chars().all(|c| c == '\n' || !c.is_control()), "{table}");
}

#[test]
fn an_error_that_was_not_measured_is_a_dash() {
    let rows = vec![row(site(Point::AttnNorm, 0, 0), None, Some(small(1)))];
    let mut outcome = outcome("isolated", rows);
    outcome.subject.mode = Mode::Local;
    let report = Report { checkpoints: vec![Checkpoint::Norm], ..report([outcome]) };
    let table = table(&report, TableOptions::default());
    let line = table.lines().find(|line| line.contains("norm")).expect("the checkpoint has a row");
    assert_eq!(line, " 1 norm       attn_norm L0 p0  2.0e-8   2.5e-9 1-4e-16         -    1 pass");
}

#[test]
fn a_report_without_references_says_so() {
    let table = table(&report([]), TableOptions::default());
    assert_eq!(table, "inconclusive  there was no reference to compare with\n");
}

// ---- what to type next ------------------------------------------------------------------------------

#[test]
fn after_a_pass_there_is_nothing_to_type() {
    assert!(next(&report([passing()])).is_empty());
}

/// The failing comparison, once narrowed down to its first divergence.
const NARROWED: &str =
    "run --model tiny-llama2 --reference llama.cpp-q8_0-with-v-off --checkpoint 2 --layer 1 --pass 0";
const INSPECT: &str = "xcheck inspect dumps/llama.cpp-q8_0-with-v-off --tap v --layer 1 --pass 0";

#[test]
fn after_a_failure_the_same_comparison_is_narrowed_down_to_the_stage() {
    assert_eq!(next(&report([failing()])), [format!("xcheck {NARROWED}"), INSPECT.to_owned()]);
}

#[test]
fn what_was_typed_already_is_not_told_again() {
    let command = NARROWED.split(' ').map(String::from).collect();
    assert_eq!(next(&Report { command, ..report([failing()]) }), [INSPECT]);
}

#[test]
fn the_order_of_options_and_where_the_report_goes_do_not_make_another_command() {
    let narrowed = "run -m tiny-llama2 --pass=0 --layer 1 --checkpoint qkv -r llama.cpp-q8_0-with-v-off";
    for more in ["", " --no-report", " --report here --format json", " --threads 2"] {
        let command = format!("{narrowed}{more}").split(' ').map(String::from).collect();
        assert_eq!(next(&Report { command, ..report([failing()]) }), [INSPECT], "{more}");
    }
    let other_layer = NARROWED.replace("--layer 1", "--layer 0").split(' ').map(String::from).collect();
    assert_eq!(next(&Report { command: other_layer, ..report([failing()]) }).len(), 2);
}

#[test]
fn a_value_that_could_not_be_judged_is_to_be_inspected() {
    let inspect = "xcheck inspect dumps/my-engine --tap attn_post_norm --layer 0 --pass 0";
    assert_eq!(next(&report([inconclusive()])), [inspect]);
}

#[test]
fn an_error_that_is_allowed_and_no_rounding_is_told_with_both() {
    let place = site(Point::FfnOut, 1, 0);
    let mut far = row(place, None, Some(measurement(&[2, 5], 0.25 + 5e-4, 0.25)));
    far.tolerance.max_abs = 1e-3;
    far.weigh(NoiseFloor { max_scaled: 1e-6, rel_l2: 1e-6, max_abs: 1e-6 }, None);
    assert_eq!(far.verdict, Verdict::Fail);
    let table = table(&report([outcome("layers", vec![far])]), TableOptions::default());
    assert!(table.contains("  error     5.00e-4 at most, local error since ffn_act: "), "{table}");
}

#[test]
fn what_would_tell_more_of_a_mixture_are_its_own_taps() {
    let remedy = |outcome: Outcome| markdown(&report([outcome]));
    let mut mixture = doubtful();
    mixture.rows.insert(
        0,
        row(
            Site { point: Point::RouterLogits, layer: Some(0), pass: Some(0) },
            Some(measurement(&[0], 0.25, 0.25)),
            None,
        ),
    );
    let (plain, mixture) = (remedy(doubtful()), remedy(mixture));
    assert!(plain.contains("ffn_up and ffn_act") && !plain.contains("expert"), "{plain}");
    assert!(mixture.contains("expert_act and expert_out") && !mixture.contains("ffn_up"), "{mixture}");
}

#[test]
fn a_server_s_own_noise_makes_doubtful_what_it_may_explain_and_nothing_else() {
    let of =
        |point| row(Site { point, layer: None, pass: Some(0) }, Some(measurement(&[2, 5], -0.7, -1.0)), None);
    let judged = |points: &[Point], apart: f64| {
        let mut outcome = outcome("server", points.iter().map(|&point| of(point)).collect());
        outcome.verdict = Verdict::Fail;
        outcome.doubt_within(apart);
        outcome
    };
    let doubtful = judged(&[Point::TopLogprobs, Point::TokenLogprobs], 0.2);
    assert_eq!(doubtful.verdict, Verdict::Inconclusive);
    assert!(
        doubtful.reason.as_ref().is_some_and(|reason| reason.contains("the server's own answers")),
        "{doubtful:?}"
    );
    // Further off than that; another stage; no noise at all.
    assert_eq!(judged(&[Point::TopLogprobs], 0.1).verdict, Verdict::Fail);
    assert_eq!(judged(&[Point::TopLogprobs, Point::Probs], 0.2).verdict, Verdict::Fail);
    assert_eq!(judged(&[Point::TopLogprobs], 0.0).verdict, Verdict::Fail);
}

#[test]
fn after_a_gap_the_dump_is_to_be_inspected() {
    let mut uncovered = inconclusive();
    uncovered.rows.retain(|row| row.verdict == Verdict::Pass);
    assert_eq!(next(&report([uncovered])), ["xcheck inspect dumps/my-engine"]);
}

#[test]
fn a_total_error_that_rounding_may_explain_is_to_be_measured_from_nearer() {
    let mut total = doubtful();
    total.subject.mode = Mode::Accumulated;
    let narrowed = "run --model tiny-llama2 --reference llama.cpp-blocks --checkpoint 6 --layer 1 --pass 0";
    assert_eq!(next(&report([total]))[0], format!("xcheck {narrowed}"));
}

#[test]
fn a_report_of_prompts_alone_says_why_it_is_no_pass() {
    let tokens = xcheck::checkpoint::Site { point: Point::Tokens, layer: None, pass: None };
    let prompts = outcome("a case", vec![row(tokens, Some(measurement(&[0], 1.0, 1.0)), None)]);
    let report = report([prompts]);
    assert_eq!(report.verdict(), Verdict::Inconclusive);
    let why = "only the text or tokens of prompts were compared, so the model was not tested";
    assert!(
        table(&report, TableOptions::default()).contains(&format!("inconclusive  {why}\n")),
        "{}",
        table(&report, TableOptions::default())
    );
    assert!(junit(&report).contains(&format!("<error message=\"{why}\"")));
    assert_eq!(parsed(&report)["reason"], why);
    assert!(markdown(&report).contains("Only the text or tokens of prompts were compared"));
}

#[test]
fn a_command_is_quoted_for_the_shell() {
    let mut report = report([failing()]);
    report.results[0].again[2] = "it's here.gguf".into();
    assert!(next(&report)[0].starts_with(r#"xcheck run --model "it's here.gguf" --reference"#));
}

// ---- for programs -----------------------------------------------------------------------------------

#[test]
fn json_numbers_come_back_bit_for_bit() {
    let rows = &compact().rows;
    let results = &parsed(&report([compact()]))["references"][0]["results"];
    let results = results.as_array().expect("a list");
    assert_eq!(results.len(), rows.len());
    let mut compared = 0;
    for (row, result) in rows.iter().zip(results) {
        let Some(found) = row.accumulated.as_ref().filter(|found| found.nonfinite.candidate == 0) else {
            continue;
        };
        assert_eq!(result["accumulated"]["mean_abs"].as_f64(), Some(found.errors.mean_abs));
        let worst = found.worst.as_ref().expect("something was compared");
        assert_eq!(result["accumulated"]["candidate"].as_f64(), Some(worst.candidate));
        compared += 1;
    }
    assert!(compared > 1);
}

#[test]
fn json_writes_numbers_that_are_not_finite_as_strings() {
    let results = &parsed(&report([compact()]))["references"][0]["results"];
    let row = &results[3];
    assert_eq!(row["tap"], "ffn_act");
    let total = &row["accumulated"];
    assert_eq!(
        (&total["max_abs"], &total["cosine"], &total["candidate"]),
        (&json!("inf"), &json!("-inf"), &json!("-inf"))
    );
}

#[test]
fn json_says_null_where_an_error_was_not_measured() {
    let results = &parsed(&report([compact()]))["references"][0]["results"];
    let row = &results[2];
    assert_eq!(row["tap"], "attn_out");
    assert_eq!(row["accumulated"], Value::Null);
    assert!(row["local"]["max_abs"].is_f64());
}

#[test]
fn json_of_the_same_report_is_the_same() {
    assert_eq!(to_json(&everything()), to_json(&everything()));
}

#[test]
fn json_names_only_what_the_models_of_all_references_share() {
    let report = parsed(&everything());
    assert_eq!(report["model"]["name"], "tiny-llama2");
    assert_eq!(report["model"]["format"], "gguf");
    assert_eq!(report["model"]["quantisation"], Value::Null);
    assert_eq!(report["references"][2]["model"]["quantisation"], "f32");
}

#[test]
fn markdown_of_a_dump_that_writes_markdown_is_plain() {
    let mut outcome = passing();
    outcome.subject.name = "](x) <b> | `a\n# b".into();
    let markdown = markdown(&report([outcome]));
    assert!(markdown.contains(r"## \](x) \<b\> \| \`a # b: pass"), "{markdown}");
}

#[test]
fn junit_is_red_exactly_where_the_verdict_is_not_a_pass() {
    let mut uncovered = passing();
    uncovered.verdict = Verdict::Inconclusive;
    uncovered.reason = Some("half of it is missing".into());
    let mut nothing = passing();
    (nothing.rows, nothing.verdict) = (Vec::new(), Verdict::Inconclusive);
    let outcomes =
        [passing(), tied(), failing(), failing_candidate(), inconclusive(), doubtful(), uncovered, nothing];
    let reports = outcomes.into_iter().map(|outcome| report([outcome]));
    for report in reports.chain([report([]), everything()]) {
        let junit = junit(&report);
        let red = junit.contains("<failure") || junit.contains("<error");
        assert_eq!(red, !report.verdict().is_good(), "{junit}");
    }
}

#[test]
fn junit_says_of_a_failure_outside_the_chosen_checkpoints_what_it_is() {
    let report = Report { checkpoints: vec![Checkpoint::Norm], ..report([failing()]) };
    let message = "<failure message=\"first divergence from llama.cpp-q8_0-with-v-off: v, layer 1, pass 0";
    assert!(junit(&report).contains(message), "{}", junit(&report));
}

#[test]
fn junit_does_not_blame_a_checkpoint_for_what_the_reference_lacks() {
    let mut partial = passing();
    partial.rows.retain(|row| row.site.point == Point::BlockOut);
    let junit = junit(&report([partial]));
    assert!(junit.contains("<skipped") && !junit.contains("<error"));
}

#[test]
fn a_model_without_a_digest_has_null_for_it() {
    let mut report = report([passing()]);
    report.results[0].model = xcheck::report::ModelRecord { sha256: None, ..model("q8_0") };
    assert_eq!(parsed(&report)["model"]["sha256"], Value::Null);
}

#[test]
fn local_and_accumulated_errors_of_an_architecture_stay_apart() {
    let ffn_out = site(Point::FfnOut, 0, 0);
    let of_tokens = measurement(&[0], 0.75, 0.25);
    let mut report = report([
        outcome("recorded", vec![row(ffn_out, None, Some(small(3)))]),
        outcome("from-the-tokens", vec![row(ffn_out, Some(of_tokens), None)]),
    ]);
    report.results[1].model.name = "another".to_owned();
    let json: Value = serde_json::from_str(&to_json(&report)).expect("it is JSON");
    let all = &json["architectures"][0]["checkpoints"][0];
    let checkpoints = json["references"][0]["checkpoints"].as_array().expect("a list");
    let recorded = checkpoints.iter().find(|line| line["checkpoint"] == all["checkpoint"]);
    assert_eq!(all["local"], recorded.expect("it is compared")["local"]);
    assert_eq!(all["accumulated"]["max_abs"], 0.5);
}
