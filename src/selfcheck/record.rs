//! Recording a run, and comparing two recordings.

use std::path::Path;

use crate::checkpoint::{Kind, Point, Site};
use crate::compare::{Found, Held, Measurement, Pair, Paired, Selection, Verdict};
use crate::dump::{Dump, Input, Layout, Manifest, ModelInfo, Producer, Recorder};
use crate::engine::{self, Script};
use crate::error::{Error, Result};
use crate::selfcheck::{Exactness, Finding, Subject};

/// The dumps of two runs, every tap of them.
///
/// # Errors
/// If there is no place for them, or a model cannot be run.
pub(super) fn compare_runs(
    check: &'static str,
    [ours, theirs]: [(Subject, &Script); 2],
    exactness: Exactness,
) -> Result<Finding> {
    let subject_type = ours.0.numerics.activation_type();
    let home = tempfile::tempdir().map_err(Error::io("create", "a temporary directory".as_ref()))?;
    let ours = record(ours.0, ours.1, &home.path().join("ours.safetensors"))?;
    let theirs = record(theirs.0, theirs.1, &home.path().join("theirs.safetensors"))?;
    let (one, other) = (Held::new(&ours)?, Held::new(&theirs)?);
    let pair = Pair::new(&one, &other, subject_type)?;
    Ok(judge(check, pair.compare(&Selection::everything())?, exactness))
}

fn record(subject: Subject, script: &Script, path: &Path) -> Result<Dump> {
    let Subject { model, numerics } = subject;
    let producer = Producer { name: "xcheck".into(), version: String::new(), settings: Default::default() };
    let info = ModelInfo { name: String::new(), architecture: model.architecture().into(), sha256: None };
    let layout = Layout { rope_pairing: model.dimensions().rope_pairing };
    let tokens = script.passes.iter().flat_map(|step| step.tokens.iter().flatten()).copied().collect();
    let input = Input { tokens, ..Input::default() };
    let mut recorder = Recorder::create(path, Manifest::new(producer, info, layout, input, Vec::new()))?;
    let transcript = engine::run(model, numerics, script, &mut recorder)?;
    recorder.finish(transcript.passes, transcript.generated)?;
    Dump::open(path)
}

fn judge(check: &'static str, pairs: Vec<Paired>, exactness: Exactness) -> Finding {
    let (mut numbers, mut identical, mut largest) = (0, 0, 0.0);
    for Paired { site, found, .. } in pairs {
        let found = match found {
            Ok(Found::Measured(found)) => found,
            Ok(Found::OtherLength(what) | Found::Unaligned(what)) => {
                return Finding::new(check, Verdict::Fail, format!("{site}: {what}"));
            }
            Err(what) => return Finding::new(check, Verdict::Inconclusive, what),
        };
        if let Some(apart) = too_far(site, &found, exactness) {
            return Finding::new(check, Verdict::Fail, format!("first at {site}: {apart}"));
        }
        numbers += found.elements;
        identical += found.identical;
        if is_measured(site) {
            largest = f64::max(largest, found.errors.max_rel_rms);
        }
    }
    let detail = match exactness {
        _ if numbers == 0 => return Finding::new(check, Verdict::Inconclusive, "nothing was compared"),
        Exactness::Bits => format!("{numbers} numbers of every tap, bit for bit"),
        Exactness::Bound(bound) => format!(
            "{numbers} numbers of every tap, {identical} bit for bit, at most {largest:.1e} of the RMS apart, {bound} \
             allowed"
        ),
    };
    Finding::new(check, Verdict::Pass, detail)
}

/// Whether it is held to a bound. What follows from the logits, a choice or the exponentials, is judged by them.
fn is_measured(site: Site) -> bool {
    site.point.kind() == Kind::Real && site.point != Point::Probs
}

/// How far two values are apart, where that is too far.
fn too_far(site: Site, found: &Measurement, exactness: Exactness) -> Option<String> {
    match exactness {
        Exactness::Bits => (found.identical != found.elements).then(|| {
            let (differ, all) = (found.elements - found.identical, found.elements);
            format!("{differ} of {all} numbers differ, by {:.1e} at most", found.errors.max_abs)
        }),
        Exactness::Bound(bound) if is_measured(site) => {
            let apart = found.errors.max_rel_rms;
            (!(apart <= bound)).then(|| format!("{apart:.1e} of the RMS apart, {bound} allowed"))
        }
        Exactness::Bound(_) => None,
    }
}
