//! What is not put together, and what is not the whole.

use xcheck::report::json;
use xcheck::verdict::Verdict;

use super::bed::{Case, merged, read};
use crate::common::{counterpart, reference_of};

/// The texts of the reports of all units, each by itself, and how many there are.
fn parts() -> Vec<String> {
    let dump = reference_of("tiny-llama2", "llama.cpp-f32");
    let (loaded, numerics) = counterpart("tiny-llama2", &dump);
    let case = Case::new("tiny-llama2", &*loaded.model, &*numerics, &dump);
    let plan = case.plan();
    (0..plan.units.len()).map(|unit| case.text(unit..unit + 1, &plan)).collect()
}

#[test]
fn a_unit_that_is_missing_is_named_and_nothing_passes() {
    let parts = parts();
    for missing in 0..parts.len() {
        let mut left = parts.clone();
        left.remove(missing);
        let report = merged(&left).expect("the others are parts of one");
        assert_eq!(report.verdict(), Verdict::Inconclusive);
        let reason = report.results[0].outcome.reason.clone().unwrap_or_default();
        assert!(reason.starts_with(&format!("unit {} (", missing + 1)), "{reason}");
        // What is incomplete can be completed.
        let again = merged(&[json(&report), parts[missing].clone()]).expect("they are parts of one");
        assert_eq!(again.verdict(), Verdict::Pass);
        assert_eq!(json(&again), json(&merged(&parts).expect("all are there")));
    }
}

#[test]
fn a_unit_of_which_two_reports_differ_fails_where_they_do() {
    let mut parts = parts();
    let mut other: serde_json::Value = serde_json::from_str(&parts[2]).expect("it is JSON");
    let row = &mut other["references"][0]["results"][3];
    row["local"]["mean_abs"] = 1e-30.into();
    let (tap, layer) = (row["tap"].clone(), row["layer"].clone());
    parts.push(other.to_string());
    let report = merged(&parts).expect("they are parts of one");
    assert_eq!(report.verdict(), Verdict::Fail);
    let first = report.results[0].outcome.first_divergence().expect("there is one");
    assert_eq!(
        (first.site.point.name(), first.site.layer.map(Into::into)),
        (tap.as_str().expect("a name"), Some(layer))
    );
    assert!(
        first.reason.as_ref().is_some_and(|reason| reason.contains("not deterministic")),
        "{:?}",
        first.reason
    );
    assert_eq!(report.results[0].outcome.count(Verdict::Fail), 1);
}

#[test]
fn parts_of_different_comparisons_are_refused_with_what_differs() {
    let parts = parts();
    type Change = fn(&mut serde_json::Value);
    let changes: [(&str, Change); 5] = [
        ("plan", |report| report["references"][0]["shard"]["plan"] = "another".into()),
        ("model", |report| report["references"][0]["model"]["sha256"] = "another".into()),
        ("numerics", |report| report["references"][0]["numerics"] = "another".into()),
        ("computed in", |report| report["references"][0]["shard"]["asked"]["computed in"] = "another".into()),
        ("mode", |report| report["references"][0]["mode"] = "layers".into()),
    ];
    for (what, change) in changes {
        let mut other: serde_json::Value = serde_json::from_str(&parts[1]).expect("it is JSON");
        change(&mut other);
        let error = merged(&[parts[0].clone(), other.to_string()]).expect_err(what).to_string();
        assert!(error.contains(&format!("parts of different comparisons: {what}:")), "{what}: {error}");
    }
}

/// A plan knows the manifest; where units meet, their values tell.
#[test]
fn shards_of_a_dump_that_was_made_again_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let loaded = crate::common::variant("tiny-llama3-f32").load().expect("it loads");
    let other = [xcheck::catalogue::Supposition::named("norm_eps=1e-2").expect("it is known")];
    let texts = [&[][..], &other].map(|supposed| {
        let path = folder.path().join(format!("{}/d", supposed.len()));
        let dump = super::bed::dump_of(&*loaded.model, &xcheck::numerics::F32, supposed, &|_| true, &path);
        let case = Case::new("tiny-llama3", &*loaded.model, &xcheck::numerics::F32, &dump);
        let plan = case.plan();
        (0..plan.units.len()).map(|unit| case.text(unit..unit + 1, &plan)).collect::<Vec<_>>()
    });
    let [right, wrong] = &texts;
    assert_eq!(merged(right).expect("they are of one dump").verdict(), Verdict::Pass);
    let mixed: Vec<String> = right[..2].iter().chain(&wrong[2..]).cloned().collect();
    let error = merged(&mixed).expect_err("they are of two").to_string();
    assert!(error.contains("unit 2 (layer 0)") && error.contains("unit 3 (layer 1)"), "{error}");
}

#[test]
fn what_is_no_report_of_this_build_is_refused() {
    let text = &parts()[0];
    let changed = |change: fn(&mut serde_json::Value)| {
        let mut report: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
        change(&mut report);
        xcheck::report::parse(&report.to_string()).expect_err("it is refused")
    };
    assert!(changed(|report| report["xcheck"]["version"] = "0.0.1".into()).contains("0.0.1"));
    assert!(changed(|report| report["version"] = 2.into()).contains("version 2"));
    assert!(changed(|report| report["schema"] = "junit".into()).contains("junit"));
    assert!(changed(|report| report["references"][0]["results"][0]["tap"] = "q q".into()).contains("q q"));
    assert!(changed(|report| report["references"][0]["shard"]["wanted"][0] = 99.into()).contains("99"));
    assert!(
        changed(|report| report["references"][0]["shard"]["evidence"][0]["unit"] = 0.into())
            .contains("unit 0")
    );
    assert!(xcheck::report::parse(&text[..text.len() / 2]).is_err());
}

#[test]
fn a_report_of_the_whole_is_no_part() {
    let dump = reference_of("tiny-llama2", "llama.cpp-f32");
    let (loaded, numerics) = counterpart("tiny-llama2", &dump);
    let case = Case::new("tiny-llama2", &*loaded.model, &*numerics, &dump);
    let text = json(&case.report(case.whole(), None));
    assert!(merged(&[text]).expect_err("it is whole").to_string().contains("--shard"));
}

/// Every field of every report, whatever it is of, is read and written again as it was.
#[test]
fn a_report_is_written_again_as_it_was_read() {
    for text in parts() {
        assert_eq!(json(&read(&text)), text);
    }
}
