//! The effort of the search for causes: without a limit, and with its progress.

use std::sync::{Arc, Mutex};

use xcheck::check::{Budget, SearchStep};
use xcheck::verdict::Finding;

use super::planted::{Bed, RecordedTaps};
use crate::common::terminal::Terminal;

/// An exhaustive search names what a limited one names, and may know more alternatives.
#[test]
fn an_exhaustive_search_keeps_the_first_cause_and_shows_its_progress() {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    let (dump, _) = bed.dump_named(&["norm_eps=0.001@layer-1"], RecordedTaps::Blocks);
    let limited = bed.check(&dump).findings;
    let steps: Arc<Mutex<Vec<Option<SearchStep>>>> = Arc::default();
    let seen = steps.clone();
    let budget = Budget::new(None, move |step| seen.lock().expect("one thread").push(step)).exhaustive();
    let exhaustive = bed.check_within(&dump, &budget).expect("it can be judged").findings;
    let named =
        |findings: &[Finding]| findings.first().map(|finding| (finding.kind, finding.supposed.clone()));
    assert_eq!(named(&limited), named(&exhaustive));
    let is_known = |other: &String| exhaustive[0].remaining.contains(other);
    assert!(limited[0].remaining.iter().all(is_known), "{limited:?}, {exhaustive:?}");
    let steps = steps.lock().expect("one thread");
    let layer_of = |step: &Option<SearchStep>| step.and_then(|step| Some((step.site?.layer?, step.layers)));
    assert!(steps.iter().any(|step| layer_of(step) == Some((1, 3))), "{steps:?}");
    assert_eq!(steps.last(), Some(&None));
    assert!(steps.iter().flatten().is_sorted_by_key(|step| step.spent));
}

#[test]
fn an_exhaustive_search_has_no_limit_unless_one_is_given() {
    let terminal = Terminal::new();
    let dump =
        ["dump", "--out", "d", "--suppose", "rope_theta=10000", "--model", "tiny-llama3", "--tokens", "1,9"];
    assert_eq!(terminal.run(&dump).code, 0);
    let check =
        ["check", "--model", "tiny-llama3", "--candidate", "d", "--no-report", "--causes", "exhaustive"];
    let kind = |more: &[&str]| {
        let (code, report) = terminal.json(&[&check[..], more].concat());
        (code, report["references"][0]["findings"][0]["kind"].as_str().map(str::to_owned))
    };
    assert_eq!(kind(&[]), (1, Some("rope_theta".to_owned())));
    assert_eq!(kind(&["--causes-limit", "0"]), (1, Some("unfinished".to_owned())));
    terminal.assert_refused(&[&check[..], &["--no-causes"]].concat(), "cannot be used with");
}
