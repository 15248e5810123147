//! Faults that are read from the values of one operation: multiples of its operands, parts of its columns, its weights.

use xcheck::catalogue::Supposition;
use xcheck::change::CauseKind;
use xcheck::checkpoint::{Point, Site};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;

use super::planted::{Bed, RecordedTaps};

/// Runs an engine with these faults, and returns what is found: kind and value of each cause, with its alternatives.
fn found(bed: &Bed, typed: &[&str], thinned: RecordedTaps) -> Vec<(CauseKind, String, Vec<String>)> {
    let supposed: Vec<Supposition> = typed
        .iter()
        .map(|typed| Supposition::named(typed).unwrap_or_else(|refusal| panic!("{refusal}")))
        .collect();
    let (dump, made) = bed.dump(&supposed, thinned);
    assert!(made > 0, "{typed:?} has no meaning here");
    let of = |finding: xcheck::verdict::Finding| {
        (finding.kind, finding.candidate.unwrap_or_default(), finding.remaining)
    };
    bed.check(&dump).findings.into_iter().map(of).collect()
}

fn assert_named(model: &str, arithmetic: &'static str, typed: &str, thinned: &[RecordedTaps]) {
    let bed = Bed::new(model, arithmetic);
    let (name, value) = typed.split_once('=').expect("a value");
    let kind: CauseKind = name.split('@').next().expect("a name").parse().expect("a kind");
    for &thinned in thinned {
        let found = found(&bed, &[typed], thinned);
        let [(told, candidate, remaining)] = found.as_slice() else {
            panic!("{typed} in {model}, {arithmetic}, {thinned:?}: {found:?}")
        };
        let is_told = (*told, candidate.as_str()) == (kind, value);
        let is_among = remaining.iter().any(|other| other.ends_with(&format!("={value}")));
        assert!(is_told || is_among, "{typed} in {model}, {arithmetic}, {thinned:?}: {found:?}");
    }
}

use RecordedTaps::{Blocks, Full, Logits};
