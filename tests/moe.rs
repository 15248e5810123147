//! Mixtures of experts: which experts a token chooses, in whatever order an engine tells them; what is a tie, and what is not.

use std::sync::Arc;

use crate::common::architecture;
use crate::common::share::{one_of, pairs};
use crate::common::terminal::Terminal;
use crate::judge::clay::Clay;
use crate::judge::scene::site;
use xcheck::change::CauseKind;
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;
use xcheck::format::{FileBytes, Gguf};
use xcheck::model::Model;
use xcheck::model::decoder::{Decoder, StandardBlock};
use xcheck::model::qwen3_moe;
use xcheck::selftest::TestModel;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, Verdict};
use xcheck::weight::Matrix;

/// 12 experts, of which each token chooses 3.
fn qwen3_moe() -> Decoder<StandardBlock> {
    let source =
        FileBytes::open(&architecture("tiny-qwen3moe").join("tiny-qwen3moe-f32.gguf")).expect("it is there");
    Decoder::from_gguf(&Gguf::read(&source).expect("it is sound"), &qwen3_moe::FAMILY).expect("it loads")
}

fn bed(model: impl Model + 'static, arithmetic: &'static str) -> TestModel {
    TestModel::new("tiny-qwen3moe", Arc::new(model), arithmetic)
}

/// Without causes.
fn check(bed: &TestModel, dump: &Dump) -> Outcome {
    bed.check_quickly(dump, true).expect("it can be judged")
}

/// The entries of each token the other way round.
fn reversed(value: &Tensor) -> Tensor {
    let &[tokens, used, ..] = value.shape() else { panic!("[T, k, …]") };
    let len = value.data().len() / tokens / used;
    let of_token = |token: usize| {
        (0..used).rev().flat_map(move |slot| value.row(token)[slot * len..][..len].iter().copied())
    };
    Tensor::new(value.shape(), (0..tokens).flat_map(of_token).collect())
}

#[test]
fn experts_in_another_order_are_the_same_where_what_they_made_is_in_that_order_too() {
    for arithmetic in ["f32", "bf16", "llama.cpp", "other-order"] {
        let bed = bed(qwen3_moe(), arithmetic);
        let all = |site: Site, value: &Tensor| {
            (site, if site.point.is_of_chosen() { reversed(value) } else { value.clone() })
        };
        let outcome = check(&bed, &bed.dump_written(&all).expect("it runs"));
        assert_eq!(outcome.verdict, Verdict::Pass, "{arithmetic}: {:?}", outcome.reason);
        let experts_alone = |site: Site, value: &Tensor| {
            (site, if site.point == Point::Experts { reversed(value) } else { value.clone() })
        };
        let outcome = check(&bed, &bed.dump_written(&experts_alone).expect("it runs"));
        assert_eq!(outcome.verdict, Verdict::Fail, "{arithmetic}");
        let first = outcome.first_divergence().map(|row| row.site.point);
        assert_eq!(first, Some(Point::ExpertWeights), "{arithmetic}: {:?}", outcome.reason);
    }
}

/// Chooses one expert in the place of another, in the first pass of layer 0.
struct Flip {
    from: usize,
    to: usize,
    made: usize,
}

impl Tap for Flip {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site != (Site { point: Point::Experts, layer: Some(0), pass: Some(0) }) {
            return value;
        }
        let (from, to) = (self.from as f32, self.to as f32);
        let (used, shape) = (value.row_len(), value.shape().to_vec());
        let mut data = value.into_data();
        for chosen in data.chunks_mut(used).filter(|chosen| chosen.contains(&from) && !chosen.contains(&to)) {
            chosen.iter_mut().filter(|expert| **expert == from).for_each(|expert| *expert = to);
            chosen.sort_by(f32::total_cmp);
            self.made += 1;
        }
        Tensor::new(&shape, data)
    }
}

/// A dump of an engine that chooses another expert, and goes on with that.
fn flipped(bed: &TestModel, from: usize, to: usize) -> Dump {
    let mut flip = Flip { from, to, made: 0 };
    let dump = bed.dump_with(&mut flip).expect("it runs");
    assert!(flip.made > 0, "no token has chosen {from} without {to}");
    dump
}

/// A model whose router finds two experts of layer 0 equally likely, whatever it reads.
fn undecided() -> Decoder<StandardBlock> {
    let mut model = qwen3_moe();
    let router = &mut model.layers[0].mixture_mut().expect("it has experts").router;
    let rows = |order: &dyn Fn(usize) -> usize, w: &Matrix| -> Vec<u8> {
        (0..w.rows).flat_map(|row| w.row(order(row)).to_vec()).collect()
    };
    let same = rows(&|row| if row == 7 { 4 } else { row }, router);
    *router = router.with_elements(same).expect("they are as long");
    model
}

#[test]
fn another_expert_of_the_router_is_wrong_and_nothing_behind_it_is() {
    for arithmetic in ["f32", "bf16", "llama.cpp"] {
        let bed = bed(qwen3_moe(), arithmetic);
        let outcome = check(&bed, &flipped(&bed, 4, 7));
        let wrong: Vec<Point> = outcome
            .rows
            .iter()
            .filter(|row| row.verdict == Verdict::Fail)
            .map(|row| row.site.point)
            .collect();
        assert_eq!(wrong, [Point::Experts], "{arithmetic}: {:?}", outcome.reason);
    }
}

#[test]
fn another_expert_with_an_equal_router_score_is_a_tie() {
    for arithmetic in ["f32", "bf16", "llama.cpp"] {
        let bed = bed(undecided(), arithmetic);
        let outcome = check(&bed, &flipped(&bed, 4, 7));
        assert_eq!(outcome.verdict, Verdict::Pass, "{arithmetic}: {:?}", outcome.reason);
        // The expert, and tokens that are chosen by what it made.
        let ties: Vec<Point> =
            outcome.rows.iter().filter(|row| row.verdict == Verdict::Tie).map(|row| row.site.point).collect();
        assert!(ties.contains(&Point::Experts), "{arithmetic}: {ties:?}");
        assert!(
            ties.iter().all(|point| point.kind() == xcheck::checkpoint::ValueKind::Token),
            "{arithmetic}: {ties:?}"
        );
    }
}

/// A run of transformers, in all that it holds or as it is made of that; in the given mode.
fn judged(dump: Clay, more: &[&str]) -> (i32, serde_json::Value) {
    let terminal = Terminal::new();
    let path = terminal.path().join("dump.safetensors");
    dump.save(&path);
    let (path, model) =
        (path.display().to_string(), architecture("tiny-qwen3moe").join("hf").display().to_string());
    let words = ["check", "--candidate", &path, "--model", &model, "--no-causes", "--no-report"];
    let (code, report) = terminal.json(&[&words[..], more].concat());
    (code, report["references"][0].clone())
}

fn transformers(dump: &str) -> Clay {
    transformers_of("tiny-qwen3moe", dump)
}

fn transformers_of(model: &str, dump: &str) -> Clay {
    Clay::open(&architecture(model).join(format!("dumps/transformers-{dump}.safetensors")))
}

/// Another order of sums, and products in a short type: rounding chooses other experts than our engine's run from the tokens on
/// does, which goes another way with those.
#[test]
fn real_runs_in_which_rounding_chooses_other_experts_pass() {
    let dumps = ["sdpa-bf16", "autocast-bf16"];
    for dump in dumps {
        let (code, told) = judged(transformers(dump), &[]);
        assert_eq!((code, told["verdict"].as_str()), (0, Some("pass")), "{dump}: {}", told["reason"]);
    }
    let faults = ["rope_theta=20000", "expert_order=reversed", "norm_eps=1e-3"];
    for (dump, wrong) in one_of(2, pairs(dumps, faults)) {
        let (code, _) = judged(transformers(dump), &["--suppose", wrong]);
        assert_eq!(code, 1, "{dump}, {wrong}");
    }
}

/// The run from the tokens on goes on with the dump's choice; whether that was one to make is judged all the same.
#[test]
fn a_router_choice_far_from_the_best_fails_in_every_mode() {
    let at = site(Point::Experts, 1, 0);
    let another = |values: &mut Vec<f64>| {
        let chosen = &mut values[3..6];
        let unlike = (0..12).map(f64::from).find(|expert| !chosen.contains(expert)).expect("12 of them");
        chosen[0] = unlike;
    };
    for mode in [&[][..], &["--introduced"], &["--total"], &["--from-reference"]] {
        let (code, told) = judged(transformers("f32"), mode);
        assert_eq!(code, 0, "{mode:?}: {}", told["reason"]);
        let (code, told) = judged(transformers("f32").edit(at, another), mode);
        let rows = told["results"].as_array().expect("rows");
        let wrong = rows.iter().filter(|row| row["tap"] == "experts" && row["verdict"] == "fail");
        assert_eq!((code, wrong.count()), (1, 1), "{mode:?}: {}", told["reason"]);
    }
}

/// Scores under autocast are of the short type itself, and what follows starts from them as they are.
#[test]
fn router_scores_under_autocast_are_used_as_recorded() {
    let (_, told) = judged(transformers("autocast-bf16"), &[]);
    let rows = told["results"].as_array().expect("rows");
    let weights: Vec<f64> = rows
        .iter()
        .filter(|row| row["tap"] == "attn_weights")
        .map(|row| row["local"]["max_abs"].as_f64().expect("a number"))
        .collect();
    assert!(weights.len() == 4 && weights.iter().all(|error| *error < 1e-6), "{weights:?}");
    let moved = |values: &mut Vec<f64>| values[0] *= 1.0 - 1e-4;
    let (code, told) = judged(transformers("autocast-bf16").edit(site(Point::AttnWeights, 1, 0), moved), &[]);
    assert_eq!((code, told["first_divergence"]["tap"].as_str()), (1, Some("attn_weights")), "{told}");
}

/// The same dump without some of what it holds.
fn keeping(dump: &Dump, is_kept: impl Fn(Point) -> bool) -> Dump {
    let row = |row: &xcheck::dump::TensorRow| is_kept(row.tap.parse().expect("a tap")).then(|| row.clone());
    dump.read_as(row).expect("it is as sound as before")
}

fn is_of_no_expert(point: Point) -> bool {
    !point.is_of_chosen()
}

fn is_logits(point: Point) -> bool {
    matches!(point, Point::Logits | Point::LastLogits | Point::Argmax | Point::Generated)
}

fn is_output(point: Point) -> bool {
    matches!(point, Point::Embed | Point::BlockOut)
}

#[test]
fn router_ties_that_the_dump_does_not_record_leave_what_follows_inconclusive() {
    for arithmetic in ["f32", "bf16", "llama.cpp"] {
        for is_kept in [is_of_no_expert, is_logits, is_output] {
            // An engine that chose as likely an expert.
            let bed = bed(undecided(), arithmetic);
            let outcome = check(&bed, &keeping(&flipped(&bed, 4, 7), is_kept));
            assert_eq!(outcome.verdict, Verdict::Inconclusive, "{arithmetic}: {:?}", outcome.reason);
            let reason = outcome.reason.unwrap_or_default();
            assert!(reason.contains("which rounding decides"), "{arithmetic}: {reason}");
        }
        let bed = bed(qwen3_moe(), arithmetic);
        for is_kept in [is_of_no_expert, is_logits, is_output] {
            // One that chose a less likely one, and one that is right.
            let outcome = check(&bed, &keeping(&flipped(&bed, 4, 7), is_kept));
            let is_found = outcome.verdict == Verdict::Fail;
            // With a cache of 16 bits the logits of some experts are too near to tell.
            assert!(is_found || arithmetic != "f32", "{arithmetic}: {:?}", outcome.reason);
            assert_ne!(outcome.verdict, Verdict::Pass, "{arithmetic}");
            let right = bed.dump_with(&mut ()).expect("it runs");
            let outcome = check(&bed, &keeping(&right, is_kept));
            assert_eq!(outcome.verdict, Verdict::Pass, "{arithmetic}: {:?}", outcome.reason);
        }
    }
}

#[test]
fn what_the_experts_made_without_their_numbers_is_not_compared() {
    let bed = bed(qwen3_moe(), "f32");
    let right = bed.dump_with(&mut ()).expect("it runs");
    let outcome = check(&bed, &keeping(&right, |point| point != Point::Experts));
    assert_eq!(outcome.verdict, Verdict::Inconclusive);
    assert!(outcome.reason.unwrap_or_default().contains("has no \"experts\""));
}

#[test]
fn another_number_of_experts_per_token_is_named() {
    for used in [2, 4] {
        let mut other = qwen3_moe();
        let mixtures = other.layers.iter_mut().filter_map(|layer| layer.mixture_mut());
        mixtures.for_each(|mixture| mixture.routing.used = used);
        let dump = bed(other, "f32").dump_with(&mut ()).expect("it runs");
        let outcome = bed(qwen3_moe(), "f32").check(&dump).expect("it can be judged");
        let first = outcome.first_divergence().map(|row| row.site);
        assert_eq!(first, Some(Site { point: Point::Experts, layer: Some(0), pass: Some(0) }));
        let kinds: Vec<CauseKind> = outcome.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [CauseKind::ExpertCount]);
        let told = format!("routes each token to {used} experts, the model to 3");
        assert!(outcome.findings[0].what.contains(&told), "{}", outcome.findings[0].what);
    }
}

#[test]
fn an_expert_that_the_model_does_not_have_is_refused_and_so_is_one_that_is_there_twice() {
    let bed = bed(qwen3_moe(), "f32");
    for (number, expected) in
        [(12.0, "expert 12 does not exist: the model has 12"), (0.0, "duplicate number 0")]
    {
        let spoil = |site: Site, value: &Tensor| match site.point {
            Point::Experts => (site, value.clone().map(|_| number)),
            _ => (site, value.clone()),
        };
        let spoil_first = |site: Site, value: &Tensor| {
            let (site, spoiled) = spoil(site, value);
            let mut data = value.data().to_vec();
            let many = if number == 0.0 { data.len() } else { 1.min(data.len()) };
            data[..many].copy_from_slice(&spoiled.data()[..many]);
            (site, Tensor::new(value.shape(), data))
        };
        let dump = bed.dump_written(&spoil_first).expect("it runs");
        let refused = bed.check(&dump).expect_err("it is refused").to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

/// transformers tells the likeliest expert first, as llama.cpp does; ours the lowest number.
#[test]
fn mixtral_qwen2_moe_and_qwen3_moe_dumps_of_two_engines_meet_by_the_numbers_of_experts() {
    for model in ["tiny-mixtral", "tiny-qwen3moe", "tiny-qwen2moe"] {
        let dump = |name: &str| {
            architecture(model).join("dumps").join(name).to_str().expect("a plain path").to_owned()
        };
        let (one, other) = (dump("transformers-f32.safetensors"), dump("llama.cpp-f32.safetensors"));
        let (code, report) = Terminal::new().json(&["compare", &one, &other, "--no-report"]);
        assert_eq!(code, 0, "{model}: {report}");
    }
}

/// Only a model states the correction bias and the groups of a choice. Without one, router logits must not decide the
/// choice, whatever the name of the architecture is.
#[test]
fn router_logits_decide_no_choice_of_biased_scores_under_any_name_of_the_architecture() {
    const EXPERTS: usize = 8;
    const USED: usize = 2;
    let points = [Point::FfnNorm, Point::RouterLogits, Point::Experts];
    let right = transformers_of("tiny-glm4moe", "f32").with_only(&points);
    let mut wrong = right.clone();
    let mut has_others = false;
    for (site, array) in wrong.arrays.iter_mut().filter(|(site, _)| site.point == Point::Experts) {
        let logits = &right.arrays[&Site { point: Point::RouterLogits, ..*site }].values;
        for (chosen, logits) in array.values.data.chunks_mut(USED).zip(logits.data.chunks(EXPERTS)) {
            let mut order: Vec<usize> = (0..EXPERTS).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            let by_logits: Vec<f64> = order[..USED].iter().map(|expert| *expert as f64).collect();
            has_others |= by_logits.iter().any(|expert| !chosen.contains(expert));
            chosen.copy_from_slice(&by_logits);
        }
    }
    assert!(has_others, "router logits choose the experts of the dump");
    let terminal = Terminal::new();
    for name in ["glm4moe", "glm4_moe", "Glm4MoeForCausalLM"] {
        let [right, wrong] = [("right", &right), ("wrong", &wrong)].map(|(file, dump)| {
            let path = terminal.path().join(format!("{file}.safetensors"));
            dump.clone().say(|manifest| manifest["model"]["architecture"] = name.into()).save(&path);
            path.display().to_string()
        });
        let (code, report) = terminal.json(&["compare", &wrong, &right, "--no-report"]);
        let told = report["references"][0]["sentence"].to_string();
        assert_eq!(
            (code, told.contains("give the model if its experts have groups")),
            (3, true),
            "{name}: {told}"
        );
    }
}
