//! A hand-made report: a pass, failures, a tie, and what could not be judged.

use serde_json::json;
use xcheck::checkpoint::{Checkpoint, Point, Scope, Site};
use xcheck::compare::{Errors, Measurement, Row, Tolerance, Tolerances, Verdict, Worst};
use xcheck::diagnose::{Coverage, Mode, Outcome};
use xcheck::dump::Producer;
use xcheck::report::{Comparison, ModelRecord, Report};

fn errors(max_abs: f64) -> Errors {
    Errors {
        max_abs,
        mean_abs: max_abs / 8.0,
        cosine: 1.0 - max_abs * max_abs,
        rel_l2: max_abs / 4.0,
        max_rel_rms: max_abs / 2.0,
    }
}

pub fn measurement(index: &[usize], ours: f64, theirs: f64) -> Measurement {
    Measurement {
        errors: errors((ours - theirs).abs()),
        elements: 640,
        identical: if ours == theirs { 640 } else { 600 },
        nonfinite_ours: usize::from(!ours.is_finite()),
        nonfinite_theirs: usize::from(!theirs.is_finite()),
        theirs_all_zero: false,
        worst: Some(Worst { index: index.to_vec(), ours, theirs }),
    }
}

pub fn site(point: Point, layer: usize, pass: usize) -> Site {
    Site {
        point,
        layer: (point.scope() == Scope::Layer).then_some(layer),
        pass: (point.scope() != Scope::Run).then_some(pass),
    }
}

fn tolerance(point: Point) -> Tolerance {
    Tolerances::shipped().get("llama", "f32", point.checkpoint()).clone()
}

pub fn row(site: Site, ordinary: Option<Measurement>, introduced: Option<Measurement>) -> Row {
    Row::judge(site, ordinary, introduced, tolerance(site.point))
}

/// Some error that grows along the rows, at 0.25.
pub fn small(number: usize) -> Measurement {
    measurement(&[3, 17], 0.25 + 1e-8 * (number + 1) as f64, 0.25)
}

fn exact(index: &[usize], token: f64) -> Measurement {
    measurement(index, token, token)
}

/// Two layers and two passes of a run that goes well.
fn good_rows() -> Vec<Row> {
    let mut sites: Vec<Site> = Vec::new();
    let absent = |point: &Point| *point == Point::Tokens || point.name().contains("sub_norm");
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
    Producer { name: name.into(), version: version.into(), settings }
}

pub fn outcome(name: &str, rows: Vec<Row>) -> Outcome {
    let taps = rows.len();
    Outcome {
        name: name.into(),
        producer: producer("llama.cpp", "b6123", "q8_0"),
        numerics: "llama.cpp".into(),
        is_case: false,
        mode: Mode::Both,
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
        },
        rows,
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
    let again = ["run", "--model", "tiny-llama2", "--reference", &outcome.name].map(String::from).to_vec();
    Comparison { model: model("q8_0"), again, reference: Some(format!("dumps/{}", outcome.name)), outcome }
}

pub fn report(outcomes: impl IntoIterator<Item = Outcome>) -> Report {
    Report {
        command: ["run", "--model", "tiny-llama2", "--checkpoint", "all"].map(String::from).to_vec(),
        results: outcomes.into_iter().map(comparison).collect(),
        checkpoints: Checkpoint::with_input().to_vec(),
    }
}

pub fn passing() -> Outcome {
    outcome("llama.cpp-q8_0", good_rows())
}

fn replace(rows: &mut [Row], site: Site, with: impl FnOnce(&Row) -> Row) {
    let row = rows.iter_mut().find(|row| row.site == site).expect("the good rows have it");
    *row = with(row);
}

/// One stage too far off by itself after a norm that was past its tolerance by inheritance, then NaN.
pub fn failing() -> Outcome {
    let mut rows = good_rows();
    replace(&mut rows, site(Point::AttnNorm, 1, 0), |good| {
        row(good.site, Some(measurement(&[0, 5], 1.25003, 1.25)), good.introduced.clone())
    });
    replace(&mut rows, site(Point::V, 1, 0), |good| {
        row(good.site, good.total.clone(), Some(measurement(&[3, 1, 17], f64::from(0.803_f32), 0.5)))
    });
    replace(&mut rows, site(Point::FfnAct, 1, 0), |good| {
        let nan = measurement(&[2, 200], f64::NAN, 0.125);
        row(good.site, Some(nan.clone()), Some(nan))
    });
    outcome("llama.cpp-q8_0-with-v-off", rows)
}

/// Another token, judged a tie by whoever looked at the logits.
pub fn tied() -> Outcome {
    let mut rows = good_rows();
    replace(&mut rows, site(Point::Argmax, 0, 1), |good| Row {
        verdict: Verdict::Tie,
        reason: Some("the two best logits are 2e-8 apart, the error here is 5e-8".into()),
        ..row(good.site, Some(measurement(&[], 306.0, 29.0)), Some(measurement(&[], 306.0, 29.0)))
    });
    let notes = vec!["argmax, pass 1: 306 and 29 are a tie: the two best logits are 2e-8 apart".to_owned()];
    Outcome {
        notes,
        producer: producer("transformers", "5.23.0", "f32"),
        ..outcome("transformers-f32", rows)
    }
}

/// Little was there, and what was there is NaN.
pub fn inconclusive() -> Outcome {
    let rows = vec![
        row(site(Point::AttnPostNorm, 0, 0), Some(measurement(&[0, 1], 0.5, f64::NAN)), None),
        row(site(Point::BlockOut, 0, 0), Some(small(3)), None),
        row(site(Point::Logits, 0, 0), Some(small(4)), None),
    ];
    let skipped = vec![
        "attn_scores, layer 0, pass 0: shape [4, 10, 10] here, [4, 10, 256] in the reference".to_owned(),
        "generated: the reference holds none".to_owned(),
    ];
    Outcome {
        mode: Mode::Total,
        reason: Some("3 of 5 taps could be compared".into()),
        coverage: Coverage {
            taps_compared: 3,
            taps_expected: 5,
            elements: 1920,
            taps_identical: 0,
            elements_identical: 0,
            skipped,
        },
        ..outcome("my-engine", rows)
    }
}

pub fn everything() -> Report {
    let mut report = report([passing(), failing(), tied(), inconclusive()]);
    report.results[2].model = model("f32");
    report
}
