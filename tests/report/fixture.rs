//! A hand-made report: a pass, failures, a tie, and what could not be judged.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use serde_json::json;
use xcheck::check::{ArrayComparison, Gate, Mode, Role, RoundingEvaluation, Tolerance, Tolerances};
use xcheck::checkpoint::{Checkpoint, Point, Site, TapScope};
use xcheck::dump::Producer;
use xcheck::error_map::ErrorMap;
use xcheck::exact::{
    BiasEstimate, BiasGroup, Choice, EngineErrors, ExactValue, InexactValue, OperationVerdict, Profile,
};
use xcheck::measure::{Errors, Measurement, NonfiniteCounts, WorstElement};
use xcheck::noise::NoiseFloor;
use xcheck::report::{Comparison, ModelRecord, PromptTokens, Report, Timing};
use xcheck::verdict::{Basis, ComparisonSubject, Coverage, Outcome, SiteResult, Verdict};

fn errors(max_abs: f64) -> Errors {
    Errors {
        max_abs,
        mean_abs: max_abs / 8.0,
        cosine: 1.0 - max_abs * max_abs,
        rel_l2: max_abs / 4.0,
        max_rel_rms: max_abs / 2.0,
        max_scaled: max_abs / 3.0,
        past_neighbour: max_abs,
    }
}

pub fn measurement(index: &[usize], candidate: f64, reference: f64) -> Measurement {
    Measurement {
        errors: errors((candidate - reference).abs()),
        elements: 640,
        identical: if candidate == reference { 640 } else { 600 },
        nonfinite: NonfiniteCounts {
            candidate: usize::from(!candidate.is_finite()),
            reference: usize::from(!reference.is_finite()),
            shared: usize::from(!candidate.is_finite() && !reference.is_finite()),
        },
        candidate_all_zero: false,
        reference_all_zero: false,
        agreement: None,
        tops: None,
        worst: Some(WorstElement { index: index.to_vec(), candidate, reference }),
        spread: (candidate != reference).then(|| Box::new(spread(&[4, 20], (candidate - reference).abs()))),
    }
}

/// One that grows along the array.
fn spread(shape: &[usize], largest: f64) -> ErrorMap {
    let mut spread = ErrorMap::new(shape);
    let count: usize = shape.iter().product();
    (0..count).for_each(|flat| spread.add(flat, largest * flat as f64 / (count - 1) as f64));
    spread
}

pub fn site(point: Point, layer: usize, pass: usize) -> Site {
    Site {
        point,
        layer: (point.scope() == TapScope::Layer).then_some(layer),
        pass: (point.scope() != TapScope::Run).then_some(pass),
    }
}

fn tolerance(point: Point) -> Tolerance {
    Tolerances::shipped().get("llama", "f32", point.checkpoint()).clone()
}

/// Six tokens of a prompt, then one at a time.
fn positions(site: Site) -> Range<usize> {
    match site.pass {
        None => 0..0,
        Some(0) => 0..6,
        Some(pass) => pass + 5..pass + 6,
    }
}

/// What a value is computed from, in a model with norms before its blocks, and without the taps that not every architecture has.
fn since(site: Site) -> Vec<Site> {
    let groups =
        site.point.inputs().iter().filter(|points| !points.iter().all(|point| point.is_of_experts()));
    let is_norm = |point: &&Point| [Point::AttnNorm, Point::FfnNorm].contains(point);
    let nearest = groups.map(|points| match (points.iter().find(is_norm).or(points.last()), site.layer) {
        (Some(Point::Embed), Some(1..)) => Site { point: Point::BlockOut, layer: Some(0), pass: None },
        (Some(&point), layer) => {
            let layer = layer.or(Some(1)).filter(|_| point.scope() == TapScope::Layer);
            Site { point, layer, pass: None }
        }
        (None, _) => unreachable!("a group of alternatives has one"),
    });
    nearest.collect()
}

pub fn row(site: Site, accumulated: Option<Measurement>, local: Option<Measurement>) -> SiteResult {
    let since = local.as_ref().map_or_else(Vec::new, |_| since(site));
    row_since(site, since, accumulated, local)
}

fn row_since(
    site: Site,
    since: Vec<Site>,
    accumulated: Option<Measurement>,
    local: Option<Measurement>,
) -> SiteResult {
    let [accumulated, local] = [accumulated, local].map(|found| found.map(ArrayComparison::Measured));
    let explained = local.is_some().then(explained);
    let tolerance = tolerance(site.point);
    // As rows of two dumps are judged.
    let (gate, is_single_operation) = (Gate::Tolerance, true);
    let unjudged = SiteResult::new(site, positions(site), tolerance);
    SiteResult { since, explained, gate, is_single_operation, ..unjudged }.judge(accumulated, local)
}

/// What a stage of three values comes to: ours is what rounding can make of it, the reference's is not.
fn explained() -> RoundingEvaluation {
    let exact = ExactValue { value: 0.25, sigma: 1e-9, radius: 8e-9 };
    let bias = BiasEstimate { group: BiasGroup::Axis(1), index: 2, error: 1e-9, is_scale: true, z: 1.5 };
    let side = |over, bound_ratio, value| EngineErrors {
        over,
        bound_ratio,
        worst: [(2, 1.0), (1, 0.5)]
            .map(|(flat, part)| InexactValue { flat, value, exact, bound_ratio: bound_ratio * part })
            .to_vec(),
        bias: Some(bias),
        spread: Some(spread(&[1, 3], bound_ratio)),
    };
    let judged = OperationVerdict {
        reads_unrounded: None,
        is_impossible: false,
        evaluated: 3,
        dump: side(1, 2.5, 0.250_000_02),
        engine: side(0, 0.5, 0.25),
        found: vec![Choice::OneByOne],
        alternatives: Vec::new(),
        profile: Profile::default(),
    };
    RoundingEvaluation::new(judged, Role::Reference, &[1, 3])
}

/// Some error that grows along the rows, at 0.25.
pub fn small(number: usize) -> Measurement {
    measurement(&[3, 17], 0.25 + 1e-8 * (number + 1) as f64, 0.25)
}

fn exact(index: &[usize], token: f64) -> Measurement {
    measurement(index, token, token)
}

/// Two layers and two passes of a run that goes well.
fn good_rows() -> Vec<SiteResult> {
    let mut sites: Vec<Site> = Vec::new();
    let absent = |point: &Point| {
        *point == Point::Tokens
            || point.name().contains("sub_norm")
            || point.is_of_named_ids()
            || point.is_of_experts()
            || point.is_of_recurrent_layers()
            || point.name().starts_with("attn_gate")
    };
    for &point in Point::ALL.iter().filter(|point| !absent(point)) {
        sites.extend([(0, 0), (1, 0), (0, 1), (1, 1)].map(|(layer, pass)| site(point, layer, pass)));
    }
    sites.sort_by_key(|site| site.flow_order());
    sites.dedup();
    let rows = sites.into_iter().enumerate().map(|(number, site)| match site.point {
        Point::Argmax => row(site, Some(exact(&[], 306.0)), Some(exact(&[], 306.0))),
        Point::Generated => row(site, Some(exact(&[0], 306.0)), None),
        _ => row(site, Some(small(number)), Some(small(number / 8))),
    });
    rows.collect()
}

fn producer(name: &str, version: &str, dtype: &str) -> Producer {
    let settings = json!({"dtype": dtype, "kv_cache": "f16", "threads": 2});
    let settings = settings.as_object().expect("an object was written").clone();
    Producer { name: name.into(), version: version.into(), settings, rounding: None }
}

pub fn outcome(name: &str, rows: Vec<SiteResult>) -> Outcome {
    let taps = rows.len();
    Outcome {
        subject: ComparisonSubject {
            gate: Gate::Tolerance,
            name: name.into(),
            producer: producer("llama.cpp", "b6123", "q8_0"),
            numerics: "llama.cpp".into(),
            role: Role::Reference,
            is_case: false,
            mode: Mode::Both,
        },
        verdict: Verdict::over(rows.iter().map(|row| row.verdict)),
        reason: None,
        notes: Vec::new(),
        findings: Vec::new(),
        coverage: Coverage {
            taps_compared: taps,
            taps_expected: taps,
            elements: 640 * taps,
            taps_identical: taps / 2,
            elements_identical: 640 * taps - 1,
            skipped: Vec::new(),
            ..Coverage::default()
        },
        rows,
        basis: Basis::default(),
    }
}

pub fn model(quantisation: &str) -> ModelRecord {
    ModelRecord {
        name: "tiny-llama2".into(),
        architecture: "llama".into(),
        format: "gguf".into(),
        quantisation: quantisation.into(),
        sha256: Some(format!("{quantisation}-sha256")),
    }
}

fn comparison(outcome: Outcome) -> Comparison {
    let (command, option) = match outcome.subject.role {
        Role::Reference => ("run", "--reference"),
        Role::Candidate => ("check", "--candidate"),
    };
    let again = [command, "--model", "tiny-llama2", option, &outcome.subject.name];
    Comparison {
        model: model("q8_0"),
        again: again.map(String::from).to_vec(),
        reference: Some(format!("dumps/{}", outcome.subject.name)),
        outcome,
        tokens: PromptTokens {
            prompt: vec![1, 306],
            texts: [(1, "<s>"), (306, " I")].map(|(token, text)| (token, text.to_owned())).into(),
        },
        timing: timing(),
        sharded: None,
    }
}

/// Some second of 2026, and as long as a small model takes.
pub fn timing() -> Timing {
    let started = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_323_045);
    Timing { started, took: Duration::from_millis(1250) }
}

pub fn report(outcomes: impl IntoIterator<Item = Outcome>) -> Report {
    Report {
        command: ["run", "--model", "tiny-llama2", "--checkpoint", "all"].map(String::from).to_vec(),
        results: outcomes.into_iter().map(comparison).collect(),
        checkpoints: Checkpoint::with_input().to_vec(),
        served: None,
    }
}

pub fn passing() -> Outcome {
    outcome("llama.cpp-q8_0", good_rows())
}

fn replace(rows: &mut [SiteResult], site: Site, with: impl FnOnce(&SiteResult) -> SiteResult) {
    let row = rows.iter_mut().find(|row| row.site == site).expect("the good rows have it");
    *row = with(row);
}

/// One stage too far off by itself after a norm that was past its tolerance by inheritance, then NaN.
pub fn failing() -> Outcome {
    let mut rows = good_rows();
    replace(&mut rows, site(Point::AttnNorm, 1, 0), |good| {
        row(good.site, Some(measurement(&[0, 5], 1.25003, 1.25)), good.local.clone())
    });
    replace(&mut rows, site(Point::V, 1, 0), |good| {
        row(good.site, good.accumulated.clone(), Some(measurement(&[3, 1, 17], f64::from(0.803_f32), 0.5)))
    });
    replace(&mut rows, site(Point::FfnAct, 1, 0), |good| {
        let nan = measurement(&[2, 200], f64::NAN, 0.125);
        row(good.site, Some(nan.clone()), Some(nan))
    });
    outcome("llama.cpp-q8_0-with-v-off", rows)
}

/// The same, where the dump is what is judged.
pub fn failing_candidate() -> Outcome {
    let failing = failing();
    Outcome {
        subject: ComparisonSubject {
            gate: Gate::Tolerance,
            name: "my-engine".into(),
            producer: producer("my-engine", "0.3", "f32"),
            numerics: "f32".into(),
            role: Role::Candidate,
            ..failing.subject
        },
        ..failing
    }
}

/// Another token, judged a tie by whoever looked at the logits.
pub fn tied() -> Outcome {
    let mut rows = good_rows();
    replace(&mut rows, site(Point::Argmax, 0, 1), |good| {
        let other = measurement(&[], 306.0, 29.0);
        let mut tied = row(good.site, Some(other.clone()), Some(other));
        tied.verdict = Verdict::Tie;
        tied.reason = Some("the two best logits are 2e-8 apart, the error here is 5e-8".into());
        tied
    });
    let notes = vec!["argmax, pass 1: 306 and 29 are a tie: the two best logits are 2e-8 apart".to_owned()];
    let outcome = outcome("transformers-f32", rows);
    let producer = producer("transformers", "5.23.0", "f32");
    Outcome { subject: ComparisonSubject { producer, ..outcome.subject }, notes, ..outcome }
}

/// Little was there, and what was there is NaN.
pub fn inconclusive() -> Outcome {
    let rows = vec![
        row(site(Point::AttnPostNorm, 0, 0), Some(measurement(&[0, 1], f64::NAN, f64::NAN)), None),
        row(site(Point::BlockOut, 0, 0), Some(small(3)), None),
        row(site(Point::Logits, 0, 0), Some(small(4)), None),
    ];
    let skipped = vec![
        "attn_scores, layer 0, pass 0: shape [4, 10, 10] here, [4, 10, 256] in the reference".to_owned(),
        "generated: the reference holds none".to_owned(),
    ];
    let outcome = outcome("my-engine", rows);
    Outcome {
        subject: ComparisonSubject { mode: Mode::Accumulated, ..outcome.subject },
        reason: Some("3 of 5 taps could be compared".into()),
        coverage: Coverage {
            taps_compared: 3,
            taps_expected: 5,
            elements: 1920,
            taps_identical: 0,
            elements_identical: 0,
            skipped,
            ..Coverage::default()
        },
        ..outcome
    }
}

/// The dump holds what enters a layer and what leaves it, and rounding may explain what lies between.
pub fn doubtful() -> Outcome {
    let entered = vec![Site { point: Point::BlockOut, layer: Some(0), pass: None }];
    let far = measurement(&[2, 5], 0.25 + 3e-4, 0.25);
    let place = site(Point::FfnOut, 1, 0);
    let mut doubtful = row_since(place, entered, Some(far.clone()), Some(far));
    doubtful.weigh(NoiseFloor { max_scaled: 1e-4, rel_l2: 1e-4, max_abs: 2e-4 }, None);
    let rows = vec![row(site(Point::BlockOut, 0, 0), Some(small(3)), Some(small(1))), doubtful];
    outcome("llama.cpp-blocks", rows)
}

pub fn everything() -> Report {
    let mut report = report([passing(), failing(), tied(), inconclusive()]);
    report.results[2].model = model("f32");
    report
}
