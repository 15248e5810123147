//! What two reports say of each other.

use xcheck::ops::attention::AttentionScale;
use xcheck::ratchet::{Class, Diff};
use xcheck::report::{RecordedReport, Report, ServerCheck, ServerReport};
use xcheck::verdict::Verdict;

use super::bed::{LLAMA_CPP, audit, baseline, build, gated, model, with};

fn diff(old: &Report, new: &Report) -> Diff {
    Diff::new(&RecordedReport::of(old), &RecordedReport::of(new), false)
}

/// How many values each is said of.
fn count(diff: &Diff, class: Class, what: &str) -> usize {
    diff.changes.iter().filter(|change| change.class == class && change.what == what).count()
}

fn wrong(scale: f32) -> Report {
    audit(&with(|model| model.config.attn_scale = AttentionScale::Products(scale)), &LLAMA_CPP)
}

#[test]
fn the_same_report_says_nothing() {
    let report = audit(&model(), &LLAMA_CPP);
    let diff = diff(&report, &report);
    assert_eq!((diff.verdict(), diff.changes.len()), (Verdict::Pass, 0));
    assert_eq!(diff.compared, report.results[0].outcome.rows.len());
}

#[test]
fn a_failure_that_comes_is_worse_and_one_that_goes_is_better() {
    let (good, bad) = (audit(&model(), &LLAMA_CPP), wrong(0.1771));
    let came = diff(&good, &bad);
    assert_eq!((came.verdict(), count(&came, Class::Worse, "verdict")), (Verdict::Fail, 12));
    let went = diff(&bad, &good);
    assert_eq!((went.verdict(), count(&went, Class::Better, "verdict")), (Verdict::Pass, 12));
}

#[test]
fn another_failure_at_the_same_place_is_worse_whichever_is_larger() {
    for (old, new) in [(0.1771, 0.125), (0.125, 0.1771)] {
        let diff = diff(&wrong(old), &wrong(new));
        assert_eq!((diff.verdict(), count(&diff, Class::Worse, "cause")), (Verdict::Fail, 12));
    }
}

#[test]
fn what_is_known_now_and_was_not_is_the_same_failure() {
    let report = wrong(0.1771);
    let known = gated(&report, &baseline(&report));
    for (old, new) in [(&report, &known), (&known, &report)] {
        let diff = diff(old, new);
        assert_eq!((diff.verdict(), diff.changes.len()), (Verdict::Pass, 0), "{:?}", diff.changes);
    }
}

#[test]
fn what_is_no_more_compared_is_worse_and_what_is_new_is_told() {
    let whole = audit(&model(), &LLAMA_CPP);
    let mut part = whole.clone();
    part.results[0].outcome.rows.retain(|row| row.site.point.name() != "v");
    let lost = diff(&whole, &part);
    assert_eq!((lost.verdict(), count(&lost, Class::Worse, "coverage")), (Verdict::Fail, 12));
    let gained = diff(&part, &whole);
    assert_eq!((gained.verdict(), count(&gained, Class::New, "coverage")), (Verdict::Pass, 12));
    let mut none = whole.clone();
    none.results.clear();
    assert_eq!(diff(&none, &whole).verdict(), Verdict::Inconclusive, "nothing can be compared");
    assert_eq!(diff(&whole, &none).verdict(), Verdict::Fail, "nothing is compared any more");
}

#[test]
fn a_new_place_that_fails_is_worse() {
    let bad = wrong(0.125);
    let mut part = bad.clone();
    part.results[0].outcome.rows.retain(|row| row.site.point.name() != "attn_scores");
    let diff = diff(&part, &bad);
    assert_eq!(count(&diff, Class::Worse, "coverage"), 12);
}

/// What a server was asked is held against what it was asked before; what cannot be asked any more was a pass.
#[test]
fn checks_of_a_server_that_fail_cannot_be_asked_or_are_gone_are_worse() {
    let of = |verdict: Option<Option<Verdict>>| {
        let mut report = audit(&model(), &LLAMA_CPP);
        let check = |name: &str, verdict| ServerCheck {
            about: "self".into(),
            check: name.into(),
            verdict,
            found: "said so".into(),
        };
        let mut checks = vec![check("the same twice", Some(Verdict::Pass))];
        checks.extend(verdict.map(|verdict| check("prefill and decode", verdict)));
        report.served = Some(ServerReport {
            url: "http://127.0.0.1:1".into(),
            kind: "test".into(),
            version: String::new(),
            model: "m".into(),
            dtype: None,
            allowed: 1,
            requests: 1,
            rounding: None,
            checks,
        });
        report
    };
    let [pass, unclear, fail] =
        [Verdict::Pass, Verdict::Inconclusive, Verdict::Fail].map(|verdict| of(Some(Some(verdict))));
    let (cannot, gone) = (of(Some(None)), of(None));
    for (worse, now) in [(&unclear, "inconclusive"), (&fail, "fail"), (&cannot, "not available"), (&gone, "")]
    {
        let told = diff(&pass, worse);
        assert_eq!(
            (told.verdict(), count(&told, Class::Worse, "check")),
            (Verdict::Fail, 1),
            "{:?}",
            told.changes
        );
        assert_eq!(told.changes[0].said, ["pass".to_owned(), now.to_owned()]);
        assert_eq!(diff(worse, &pass).verdict(), Verdict::Pass);
        assert_eq!(diff(worse, worse).changes.len(), 0);
    }
    assert_eq!(diff(&pass, &pass).changes.len(), 0);
    assert_eq!(diff(&cannot, &fail).verdict(), Verdict::Fail, "a failure that was not there");
}

/// A verdict over all that is no longer good is told, whatever it comes of.
#[test]
fn what_is_good_no_more_is_never_no_worse() {
    let report = audit(&model(), &LLAMA_CPP);
    let (old, mut new) = (RecordedReport::of(&report), RecordedReport::of(&report));
    new.verdict = Verdict::Inconclusive;
    let diff = Diff::new(&old, &new, false);
    assert_eq!((diff.verdict(), count(&diff, Class::Worse, "verdict")), (Verdict::Fail, 1));
    assert_eq!(Diff::new(&new, &new, false).verdict(), Verdict::Pass);
}

#[test]
fn bits_are_told_and_are_worse_where_that_is_asked() {
    let (same, other) = (audit(&model(), &LLAMA_CPP), audit(&model(), &build(3)));
    let told = diff(&same, &other);
    assert_eq!(told.verdict(), Verdict::Pass);
    let told_of = count(&told, Class::Changed, "bits");
    assert!(told_of > 20, "{told_of}");
    let demanded = Diff::new(&RecordedReport::of(&same), &RecordedReport::of(&other), true);
    assert_eq!(demanded.verdict(), Verdict::Fail);
    assert_eq!(count(&demanded, Class::Worse, "bits"), count(&told, Class::Changed, "bits"));
}
