//! What a baseline lets pass, and what not.

use xcheck::check::Gate;
use xcheck::model::llama::Llama;
use xcheck::numerics::F32;
use xcheck::ops::attention::AttentionScale;
use xcheck::ratchet::{Baseline, gate, updated};
use xcheck::report::{Report, TableOptions, json, junit, markdown, table};
use xcheck::verdict::{Finding, Verdict};

use super::bed::{
    LLAMA_CPP, TODAY, audit, baseline, build, flip_scale_bit, gated, gated_on, model, reasoned, told, with,
};

fn wrong_scale(model: &mut Llama) {
    model.config.attn_scale = AttentionScale::Products(0.1771);
}

#[track_caller]
fn assert_told(told: &(Verdict, String), verdict: Verdict, expected: &[&str]) {
    assert_eq!(told.0, verdict, "{}", told.1);
    expected
        .iter()
        .for_each(|expected| assert!(told.1.contains(expected), "'{expected}' is not in: {}", told.1));
}

#[test]
fn a_waived_failure_is_told_with_its_reason_in_every_format() {
    let report = audit(&with(wrong_scale), &LLAMA_CPP);
    assert_eq!(report.verdict(), Verdict::Fail);
    let report = gated(&report, &baseline(&report));
    let known = "waived failure: attn_scores, layers 0-3, passes 0-2 (attn_scale=0.1771, 12 sites): a known bug \
                 (bugs/7, until 2026-12-31)";
    assert_told(&told(&report), Verdict::Pass, &[known]);
    let (json, junit, table) = (json(&report), junit(&report), table(&report, TableOptions::default()));
    assert!(json.contains("\"verdict\":\"known\"") && json.contains("\"link\":\"bugs/7\""));
    assert!(junit.contains("<skipped>waived failure: a known bug (bugs/7, until 2026-12-31)"), "{junit}");
    assert!(
        !junit.contains("<failure") && !junit.contains("<error"),
        "it is red where the exit code is not 0"
    );
    assert!(table.contains("12 waived failures") && table.contains(" known\n"), "{table}");
    assert!(markdown(&report).contains("waived failure: attn_scores"), "{}", markdown(&report));
}

#[test]
fn a_failure_without_a_reason_is_not_waived() {
    let report = audit(&with(wrong_scale), &LLAMA_CPP);
    let fresh = updated(&report, &Baseline::default(), TODAY, false).expect("something was compared");
    let expected =
        "attn_scores, layers 0-3, passes 0-2: the reason is missing: fill in `reason`, `link` and `expires`";
    assert_told(&told(&gated(&report, &fresh)), Verdict::Fail, &[expected]);
}

#[test]
fn a_waived_failure_that_has_expired_lets_nothing_pass() {
    let report = audit(&with(wrong_scale), &LLAMA_CPP);
    let known = baseline(&report);
    assert_eq!(gated_on(&report, &known, "2026-12-31").verdict(), Verdict::Pass, "its last day");
    let expired = told(&gated_on(&report, &known, "2027-01-01"));
    assert_told(&expired, Verdict::Fail, &["expired on 2026-12-31: a known bug (bugs/7)"]);
}

#[test]
fn another_cause_at_a_waived_site_is_another_failure() {
    let known = baseline(&audit(&with(wrong_scale), &LLAMA_CPP));
    let other = audit(&with(|model| model.config.attn_scale = AttentionScale::Products(0.125)), &LLAMA_CPP);
    let expected = "the cause is attn_scale=0.125, but attn_scale=0.1771 in the baseline";
    assert_told(&told(&gated(&other, &known)), Verdict::Fail, &[expected]);
}

/// A second fault in one of the places leaves the cause for the others alone; a second change beside a known one is another
/// cause.
#[test]
fn a_cause_is_of_the_places_that_it_explains_and_of_all_that_is_otherwise() {
    let report = audit(&with(wrong_scale), &LLAMA_CPP);
    let known = baseline(&report);
    let finding = |report: &mut Report, change: &dyn Fn(&mut Finding)| {
        report.results[0].outcome.findings.iter_mut().for_each(change);
    };
    let mut partly = report.clone();
    finding(&mut partly, &|finding| finding.sites.retain(|site| site.layer != Some(1)));
    let expected = ["attn_scores, layer 1, passes 0-2: the cause is none found"];
    assert_told(&told(&gated(&partly, &known)), Verdict::Fail, &expected);
    let mut combined = report.clone();
    finding(&mut combined, &|finding| {
        finding.supposed.iter_mut().for_each(|typed| typed.push_str(" more=1"))
    });
    let expected = ["the cause is attn_scale=0.1771 more=1, but attn_scale=0.1771 in the baseline"];
    assert_told(&told(&gated(&combined, &known)), Verdict::Fail, &expected);
}

#[test]
fn fewer_values_at_a_waived_site_are_no_pass() {
    let whole = audit(&model(), &build(1));
    let mut part = whole.clone();
    let row = part.results[0].outcome.rows.iter_mut().find(|row| row.site.point.name() == "ffn_act");
    let judged = row.and_then(|row| row.local.as_mut()).expect("it was compared");
    judged.elements /= 2;
    let expected = "values compared in the baseline, only";
    assert_told(&told(&gated(&part, &baseline(&whole))), Verdict::Inconclusive, &[expected]);
}

/// More of one place makes up for nothing of another, whether all places of the lines are there or not.
#[test]
fn values_are_held_place_by_place() {
    let whole = audit(&model(), &build(1));
    let known = baseline(&whole);
    let at = |report: &mut Report, layer: usize, elements: &dyn Fn(u64) -> u64| {
        let rows = report.results[0].outcome.rows.iter_mut();
        let row =
            rows.filter(|row| row.site.point.name() == "ffn_act").find(|row| row.site.layer == Some(layer));
        let judged = row.and_then(|row| row.local.as_mut()).expect("it was compared");
        judged.elements = elements(judged.elements as u64) as _;
    };
    let mut moved = whole.clone();
    at(&mut moved, 1, &|elements| elements / 2);
    at(&mut moved, 2, &|elements| elements * 2);
    let expected = "ffn_act, layer 1, pass 0: at each site 1536 values compared in the baseline, only 768";
    assert_told(&told(&gated(&moved, &known)), Verdict::Inconclusive, &[expected]);
    let mut less = moved.clone();
    less.results[0].outcome.rows.retain(|row| row.site.layer != Some(3));
    let skipped = gated(&less, &known).results[0].outcome.coverage.skipped.clone();
    assert!(skipped.iter().any(|what| what.contains(expected)), "{skipped:?}");
    // Files of earlier builds said the sum.
    let sum = known.text().replace("each = ", "values = ");
    let sum = Baseline::parse(&sum).expect("it is a baseline");
    assert_eq!(gated(&whole, &sum).verdict(), Verdict::Pass);
}

/// Which of two equally likely tokens is named last is nobody's fault, and so is that one less is in common.
#[test]
fn another_of_two_tied_tokens_is_no_loss() {
    let mut whole = audit(&model(), &build(1));
    let row = whole.results[0].outcome.rows.iter().find(|row| row.site.point.name() == "last_logits");
    let mut row = row.expect("it was compared").clone();
    row.site.point = xcheck::checkpoint::Point::TopLogprobs;
    whole.results[0].outcome.rows.push(row);
    let mut fewer = whole.clone();
    let row = fewer.results[0].outcome.rows.last_mut().expect("it was added");
    [&mut row.local, &mut row.accumulated].into_iter().flatten().for_each(|found| {
        found.elements -= 1;
        found.identical -= 1;
    });
    assert_eq!(
        gated(&fewer, &baseline(&whole)).verdict(),
        Verdict::Pass,
        "{}",
        told(&gated(&fewer, &baseline(&whole))).1
    );
    let diff = xcheck::ratchet::Diff::new(
        &xcheck::report::RecordedReport::of(&whole),
        &xcheck::report::RecordedReport::of(&fewer),
        false,
    );
    assert_eq!(diff.verdict(), Verdict::Pass, "{:?}", diff.changes);
}

#[test]
fn what_is_judged_by_something_else_is_not_held_against_it() {
    let report = audit(&with(wrong_scale), &LLAMA_CPP);
    let known = baseline(&report);
    let mut other = report.clone();
    other.results[0].outcome.subject.gate = Gate::Tolerance;
    let refused = gate(&mut other, &known, TODAY).expect_err("tolerances say something else").to_string();
    assert!(refused.contains("written with rounding, local, but this run uses tolerance"), "{refused}");
}

#[test]
fn dumps_of_one_name_are_not_told_apart_and_refused() {
    let mut report = audit(&with(wrong_scale), &LLAMA_CPP);
    let known = baseline(&report);
    report.results.push(report.results[0].clone());
    for refused in [
        gate(&mut report.clone(), &known, TODAY).expect_err("two dumps of one name").to_string(),
        updated(&report, &known, TODAY, false).expect_err("two dumps of one name").to_string(),
    ] {
        assert!(refused.contains("duplicate dump name 'engine'"), "{refused}");
    }
    let entry = known.text().replacen("version = 2\n", "", 1);
    let entry = &entry[entry.find("[[dump]]").expect("one")..entry.find("[[known]]").expect("one")];
    let twice = format!("{}\n{entry}", known.text());
    let refused = Baseline::parse(&twice).expect_err("two entries of one name");
    assert!(refused.contains("duplicate [[dump]] name 'engine'"), "{refused}");
}

/// Sizes are counted up to a power of two; errors that are larger, and errors that rounding was not asked for, grow in number,
/// too.
#[test]
fn many_values_where_one_was_known_are_another_failure_however_large_it_was() {
    let report = audit(&with(wrong_scale), &LLAMA_CPP);
    let of = |over: usize| {
        let mut report = report.clone();
        for row in report.results[0].outcome.rows.iter_mut().filter(|row| row.verdict == Verdict::Fail) {
            let sides = row.explained.iter_mut().flat_map(|it| [&mut it.candidate, &mut it.reference]);
            sides.for_each(|side| (side.bound_ratio, side.over, side.bias) = (3e11, over, None));
        }
        report
    };
    let (one, many) = (of(1), of(288));
    assert_eq!(gated(&one, &baseline(&one)).verdict(), Verdict::Pass);
    assert_told(
        &told(&gated(&many, &baseline(&one))),
        Verdict::Fail,
        &["576 values are above their error bound"],
    );
    let unasked = |rel_l2: f64| {
        let mut report = report.clone();
        for row in report.results[0].outcome.rows.iter_mut().filter(|row| row.verdict == Verdict::Fail) {
            row.explained = None;
            row.local.iter_mut().for_each(|found| found.errors.rel_l2 = rel_l2);
        }
        report
    };
    let (one, many) = (unasked(1e-3), unasked(3e-2));
    assert_eq!(gated(&one, &baseline(&one)).verdict(), Verdict::Pass);
    assert_told(&told(&gated(&many, &baseline(&one))), Verdict::Fail, &["relative L2 error 3.0e-2"]);
}

#[test]
fn a_waived_failure_that_has_grown_is_another_failure() {
    let report = audit(&with(wrong_scale), &LLAMA_CPP);
    let known = baseline(&report);
    let smaller = known.text().replace("bound_ratio = 2.", "bound_ratio = 0.2");
    assert_ne!(smaller, known.text());
    let smaller = Baseline::parse(&smaller).expect("it is a baseline");
    assert_told(&told(&gated(&report, &smaller)), Verdict::Fail, &["err/bound 2.", "in the baseline"]);
}

#[test]
fn a_failure_elsewhere_is_never_waived() {
    let known = baseline(&audit(&with(wrong_scale), &LLAMA_CPP));
    let both = with(|model| {
        wrong_scale(model);
        model.layers[3].attn_norm.eps = 1e-3;
    });
    assert_told(
        &told(&gated(&audit(&both, &LLAMA_CPP), &known)),
        Verdict::Fail,
        &["attn_norm, layer 3, pass 0"],
    );
}

#[test]
fn a_waived_failure_that_is_gone_is_a_stale_entry() {
    let known = baseline(&audit(&with(wrong_scale), &LLAMA_CPP));
    let report = audit(&model(), &LLAMA_CPP);
    let expected = "stale baseline entry: attn_scores, layers 0-3, passes 0-2 no longer fails";
    assert_told(&told(&gated(&report, &known)), Verdict::Pass, &[expected]);
    let updated = updated(&report, &known, TODAY, false).expect("something was compared");
    assert!(!updated.text().contains("[[known]]"), "{}", updated.text());
}

#[test]
fn what_is_compared_no_more_is_no_pass() {
    let whole = audit(&model(), &LLAMA_CPP);
    let mut part = whole.clone();
    part.results[0].outcome.rows.retain(|row| row.site.point.name() != "attn_weights");
    part.results[0].outcome.reconsider();
    assert_eq!(part.verdict(), Verdict::Pass, "nobody misses it");
    let expected =
        "attn_weights, layers 0-3, passes 0-2: listed in the baseline, but not compared in this run";
    assert_told(&told(&gated(&part, &baseline(&whole))), Verdict::Inconclusive, &[expected]);
    let mut nothing = whole.clone();
    nothing.results[0].outcome.rows.clear();
    nothing.results[0].outcome.reconsider();
    assert_eq!(gated(&nothing, &baseline(&whole)).verdict(), Verdict::Inconclusive);
    updated(&nothing, &Baseline::default(), TODAY, false).expect_err("a gate of nothing passes everything");
}

#[test]
fn bit_identity_is_demanded_only_where_the_baseline_says_so() {
    let (same, other) = (audit(&model(), &LLAMA_CPP), audit(&model(), &build(3)));
    assert_told(&told(&gated(&other, &baseline(&same))), Verdict::Pass, &[]);
    let demanding = updated(&same, &Baseline::default(), TODAY, true).expect("something was compared");
    assert_eq!(gated(&same, &demanding).verdict(), Verdict::Pass);
    let expected = "the baseline requires bit-identical values, but ";
    assert_told(&told(&gated(&other, &demanding)), Verdict::Fail, &[expected]);
    let kept = updated(&same, &demanding, TODAY, false).expect("something was compared");
    assert_eq!(kept, demanding, "a demand stays");
}

#[test]
fn what_is_known_keeps_its_reason_and_its_figures() {
    let report = audit(&with(wrong_scale), &build(1));
    let known = baseline(&report);
    let other = audit(&with(wrong_scale), &build(2));
    let again = updated(&other, &known, TODAY, false).expect("something was compared");
    assert_eq!(again.text(), known.text(), "another build changes no line");
    let more = audit(
        &with(|model| {
            wrong_scale(model);
            flip_scale_bit(&mut model.layers[0].attn.q.weight, 3, 1, 8);
        }),
        &build(1),
    );
    let more = updated(&more, &known, TODAY, false).expect("something was compared");
    assert!(more.text().starts_with(known.text().trim_end()), "what is new comes after: {}", more.text());
    assert!(
        more.text().contains("reason = \"TODO\"") && more.text().contains("weight_corruption"),
        "{}",
        more.text()
    );
    assert_ne!(reasoned(&more), more);
}

#[test]
fn another_way_to_compute_is_no_other_build() {
    let known = baseline(&audit(&model(), &LLAMA_CPP));
    assert_eq!(
        gated(&audit(&model(), &F32), &known).verdict(),
        Verdict::Fail,
        "decoded weights, f32 activations"
    );
}

#[test]
fn what_can_no_more_be_measured_is_another_failure() {
    let report = audit(&with(wrong_scale), &LLAMA_CPP);
    let known = baseline(&report);
    let mut other = report.clone();
    for row in other.results[0].outcome.rows.iter_mut().filter(|row| row.verdict == Verdict::Fail) {
        (row.local, row.explained) = (None, None);
    }
    assert_told(&told(&gated(&other, &known)), Verdict::Fail, &["judged differently than in the baseline"]);
}

#[test]
fn a_pass_that_is_just_beyond_rounding_belongs_to_the_failure_beside_it_and_a_large_one_does_not() {
    let report = audit(&with(wrong_scale), &LLAMA_CPP);
    let narrow = baseline(&report).text().replace("passes = \"0-2\", cause", "passes = \"0-1\", cause");
    let narrow = Baseline::parse(&narrow).expect("it is a baseline");
    let expected = ["waived failure: attn_scores, layers 0-3, passes 0-1", "attn_scores, layer 0, pass 2"];
    assert_told(&told(&gated(&report, &narrow)), Verdict::Fail, &expected);
    let mut slight = report.clone();
    for row in slight.results[0].outcome.rows.iter_mut().filter(|row| row.site.pass == Some(2)) {
        for side in row
            .explained
            .iter_mut()
            .flat_map(|explained| [&mut explained.candidate, &mut explained.reference])
        {
            (side.bound_ratio, side.over) = (side.bound_ratio.min(1.5), side.over.min(1));
            (side.bias, side.spread) = (None, Some(Default::default()));
        }
    }
    assert_eq!(gated(&slight, &narrow).verdict(), Verdict::Pass, "{}", told(&gated(&slight, &narrow)).1);
}
