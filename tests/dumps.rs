//! Dumps in every container and layout, and dumps that are damaged, partial, empty or of something else.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::common::faulty::At;
use crate::common::{LLAMA_CPP_F32, judge_against, record, reference, rules, tiny_llama2};
use half::{bf16, f16};
use serde_json::{Value, json};
use tempfile::TempDir;
use xcheck::align::Selection;
use xcheck::check::{Mode, Tolerances};
use xcheck::checkpoint::{Checkpoint, Point, Site};
use xcheck::diagnose::{cross_check, cross_check_dumps};
use xcheck::dump::{Dump, Recorder};
use xcheck::engine::{PassInput, RunInput};
use xcheck::error::{DumpError, Error};
use xcheck::numerics::{F32, Numerics};
use xcheck::tensor::RopePairing;
use xcheck::verdict::{Outcome, SiteResult, Verdict};

const PROMPT: &[u32] = &[1, 393, 395, 260, 394, 486];

// ---- making dumps to read -------------------------------------------------------------------------------

/// A dump of the shipped model by our own engine, as a directory that can be edited.
struct Made {
    _home: TempDir,
    path: PathBuf,
}

impl Made {
    /// The prompt in one pass and two decode passes.
    fn whole() -> Self {
        Self::new("dump", &RunInput::greedy(PROMPT, 2))
    }

    fn new(name: &str, script: &RunInput) -> Self {
        Self::by(&LLAMA_CPP_F32, name, script)
    }

    fn by(numerics: &dyn Numerics, name: &str, script: &RunInput) -> Self {
        let home = TempDir::new().expect("a temporary directory");
        let path = home.path().join(name);
        record(&tiny_llama2(), numerics, script, &path);
        Self { _home: home, path }
    }

    fn open(&self) -> Dump {
        Dump::open(&self.path).expect("the dump is sound")
    }

    fn edit_manifest(&self, edit: impl FnOnce(&mut Value)) {
        let file = self.path.join("manifest.json");
        let mut json = serde_json::from_slice(&fs::read(&file).expect("a manifest")).expect("it is JSON");
        edit(&mut json);
        fs::write(&file, json.to_string()).expect("it is written");
    }

    /// Replaces one array by another element type or order, in the file and in the manifest.
    fn replace(&self, file: &str, bytes: &[u8], edit: impl Fn(&mut Value)) {
        fs::write(self.path.join(file), bytes).expect("it is written");
        self.edit_manifest(|json| {
            let rows = json["tensors"].as_array_mut().expect("rows");
            edit(rows.iter_mut().find(|row| row["file"] == file).expect("the row is there"));
        });
    }
}

/// A `.npy` file with the given type string, in C order.
fn npy(descr: &str, fortran: bool, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let shape: String = shape.iter().map(|length| format!("{length},")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}");
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn site(point: Point, layer: Option<usize>, pass: usize) -> Site {
    Site { point, layer, pass: Some(pass) }
}

fn compare(ours: &Dump, theirs: &Dump) -> Outcome {
    compare_selected(ours, theirs, &Selection::everything()).expect("they can be compared")
}

fn compare_selected(ours: &Dump, theirs: &Dump, selection: &Selection) -> xcheck::Result<Outcome> {
    let tolerances = Tolerances::shipped();
    let rules = rules(selection, &tolerances, "f32", Mode::Accumulated);
    cross_check_dumps("theirs", ours, theirs, rules)
}

/// Why our model is not compared with a dump.
fn refusal(dump: &Dump) -> String {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = rules(&selection, &tolerances, "f32", Mode::Both);
    let error = cross_check("x", &tiny_llama2(), &LLAMA_CPP_F32, dump, rules, &mut ());
    error.expect_err("it is refused").to_string()
}

#[track_caller]
fn assert_identical(outcome: &Outcome) {
    assert_eq!((outcome.verdict, &outcome.reason), (Verdict::Pass, &None));
    let errors = outcome.rows.iter().filter_map(|row| row.judged()).map(|found| found.errors.max_abs);
    assert_eq!(errors.fold(0.0, f64::max), 0.0);
}

// ---- containers and layouts -----------------------------------------------------------------------------

#[test]
fn a_directory_a_safetensors_file_and_an_npz_archive_hold_the_same_dump() {
    let (directory, file) = (Made::whole(), Made::new("dump.safetensors", &RunInput::greedy(PROMPT, 2)));
    let npz = directory.path.with_extension("npz");
    pack(&directory.path, &npz);
    let dumps = [directory.open(), file.open(), Dump::open(&npz).expect("the archive is sound")];
    assert_eq!(dumps[0].sites().count(), 3 * (4 * 19 + 6) + 1);
    for dump in &dumps[1..] {
        assert_identical(&compare(dump, &dumps[0]));
    }
}

fn pack(directory: &Path, archive: &Path) {
    let mut zip = zip::ZipWriter::new(fs::File::create(archive).expect("a new file"));
    let manifest: Value =
        serde_json::from_slice(&fs::read(directory.join("manifest.json")).expect("it is there"))
            .expect("JSON");
    let files =
        manifest["tensors"].as_array().expect("rows").iter().map(|row| row["file"].as_str().expect("a path"));
    for file in files.chain(["manifest.json"]) {
        zip.start_file(file, zip::write::SimpleFileOptions::default()).expect("a member");
        zip.write_all(&fs::read(directory.join(file)).expect("it is there")).expect("it is written");
    }
    zip.finish().expect("the archive is whole");
}

#[test]
fn a_prompt_decoded_token_by_token_is_compared_with_one_prefill() {
    let mut passes: Vec<PassInput> = PROMPT.iter().map(|&id| PassInput::given(&[id])).collect();
    passes.extend([PassInput::greedy(), PassInput::greedy()]);
    // llama.cpp's numerics add in another order when there are several tokens.
    let single = Made::by(&F32, "single", &RunInput { passes, prompt_len: PROMPT.len() });
    let whole = Made::by(&F32, "whole", &RunInput::greedy(PROMPT, 2));
    let outcome = compare(&whole.open(), &single.open());
    assert_identical(&outcome);
    assert_eq!(outcome.rows.len(), whole.open().sites().count(), "every tap of the whole dump is covered");

    // The other way round, what a single-token pass has once follows from the whole prompt's logits.
    let outcome = compare(&single.open(), &whole.open());
    assert_eq!((outcome.verdict, &outcome.reason), (Verdict::Pass, &None));
    let is_derived = |row: &&xcheck::verdict::SiteResult| row.site.point == Point::Probs;
    let (derived, others): (Vec<_>, Vec<_>) = outcome.rows.iter().partition(is_derived);
    assert!(others.iter().all(|row| row.judged().is_some_and(|found| found.errors.max_abs == 0.0)));
    assert!(derived.iter().all(|row| row.judged().is_some_and(|found| found.errors.max_abs < 1e-7)));
    assert_eq!(outcome.rows.len(), single.open().sites().count(), "nothing is passed over");
}

#[test]
fn one_wrong_row_is_found_in_any_chunked_prefill() {
    let mut passes: Vec<PassInput> = PROMPT.iter().map(|&id| PassInput::given(&[id])).collect();
    passes.extend([PassInput::greedy(), PassInput::greedy()]);
    let single = Made::new("single", &RunInput { passes, prompt_len: PROMPT.len() });
    let values: Vec<u8> = (0..256u16).flat_map(|value| f32::from(value).to_le_bytes()).collect();
    single.replace("p3/l01/ffn_up.npy", &npy("<f4", false, &[1, 256], &values), |_| ());
    let outcome = compare(&Made::whole().open(), &single.open());
    let row = outcome.first_divergence().expect("it is found");
    assert_eq!(row.site, site(Point::FfnUp, Some(1), 0));
    let worst = row.judged().and_then(|found| found.worst.as_ref()).expect("an element is named");
    assert_eq!(worst.index[0], 3, "the row of position 3");
}

#[test]
fn both_rope_pairings_are_aligned() {
    let (transformers, llama_cpp) = (reference("transformers-f32"), reference("llama.cpp-f32"));
    assert_eq!(transformers.manifest.layout.rope_pairing, Some(RopePairing::Half));
    assert_eq!(llama_cpp.manifest.layout.rope_pairing, Some(RopePairing::Interleaved));
    let outcome = compare(&llama_cpp, &transformers);
    let rope = outcome.rows.iter().filter(|row| row.checkpoint() == Checkpoint::Rope);
    assert!(rope.clone().count() > 60);
    let is_near = |row: &SiteResult| row.judged().is_some_and(|found| found.errors.max_rel_rms < 1e-5);
    assert!(rope.into_iter().all(is_near));
}

#[test]
fn a_rope_pairing_that_is_not_named_is_read_from_the_values_and_a_note_says_so() {
    let (nameless, other) = (Made::whole(), Made::whole());
    nameless.edit_manifest(|json| json["layout"] = json!({}));
    for (candidate, reference) in [(nameless.open(), other.open()), (other.open(), nameless.open())] {
        let outcome = compare(&candidate, &reference);
        assert_identical(&outcome);
        let told = "has no layout.rope_pairing; its q and k values have the order \"interleaved\"";
        assert!(outcome.notes.iter().any(|note| note.contains(told)), "{:?}", outcome.notes);
    }
    let outcome = judge_against(&nameless.open(), &tiny_llama2(), &LLAMA_CPP_F32, &mut ());
    assert_identical(&outcome);
}

/// A dump whose manifest says nothing of heads, and whose first queries are in no order at all.
fn with_reversed_queries(made: Made) -> Made {
    made.edit_manifest(|json| json["layout"] = json!({}));
    let mut values = made.open().read(site(Point::Q, Some(0), 0)).expect("sound").expect("held");
    values.data.reverse();
    let bytes: Vec<u8> = values.data.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect();
    made.replace("p0/l00/q.npy", &npy("<f4", false, &values.shape, &bytes), |_| ());
    made
}

#[test]
fn wrong_heads_fail_if_others_show_the_rope_pairing() {
    let outcome = compare(&with_reversed_queries(Made::whole()).open(), &Made::whole().open());
    let first = outcome.first_divergence().map(|row| row.site);
    assert_eq!(first, Some(site(Point::Q, Some(0), 0)), "{:?}", outcome.reason);
    assert_eq!(outcome.count(Verdict::Fail), 1);
}

#[test]
fn heads_in_neither_rope_pairing_are_inconclusive_and_the_rest_is_judged() {
    let made = with_reversed_queries(subset(&["attn_norm", "q", "v"]));
    made.edit_manifest(|json| {
        let rows = json["tensors"].as_array_mut().expect("rows");
        rows.retain(|row| row["tap"] != "q" || row["file"] == "p0/l00/q.npy");
    });
    let other = subset(&["attn_norm", "q", "v"]);
    other.edit_manifest(|json| {
        let rows = json["tensors"].as_array_mut().expect("rows");
        rows.retain(|row| row["tap"] != "q" || row["file"] == "p0/l00/q.npy");
    });
    let outcome = compare(&made.open(), &other.open());
    let q = outcome.rows.iter().find(|row| row.site.point == Point::Q).expect("a row");
    assert_eq!(q.verdict, Verdict::Inconclusive, "{:?}", q.reason);
    assert!(q.reason.as_ref().is_some_and(|reason| reason.contains("rope_pairing")));
    assert_eq!(outcome.verdict, Verdict::Inconclusive);
    assert!(outcome.count(Verdict::Pass) >= 24, "{}", outcome.rows.len());
}

#[test]
fn a_leading_batch_axis_and_other_orders_of_axes_are_aligned() {
    let (made, original) = (Made::whole(), Made::whole());
    let values = original.open().read(site(Point::Q, Some(0), 0)).expect("sound").expect("held");
    let (tokens, heads, head_dim) = (values.shape[0], values.shape[1], values.shape[2]);
    let at = |token, head, dim| values.data[(token * heads + head) * head_dim + dim] as f32;
    let mut data = Vec::new();
    for head in 0..heads {
        for dim in 0..head_dim {
            (0..tokens).for_each(|token| data.extend(at(token, head, dim).to_le_bytes()));
        }
    }
    let shape = [1, heads, head_dim, tokens];
    made.replace("p0/l00/q.npy", &npy("<f4", false, &shape, &data), |row| {
        row["shape"] = json!(shape);
        row["axes"] = json!(["batch", "head", "head_dim", "token"]);
    });
    assert_identical(&compare(&made.open(), &original.open()));
}

#[test]
fn every_element_dtype_of_the_dump_format_is_read() {
    let original = Made::whole();
    let values = original.open().read(site(Point::AttnOut, Some(2), 1)).expect("sound").expect("held");
    let encoded: [(&str, &str, Vec<u8>); 3] = [
        ("f64", "<f8", values.data.iter().flat_map(|v| v.to_le_bytes()).collect()),
        ("f16", "<f2", values.data.iter().flat_map(|v| f16::from_f64(*v).to_le_bytes()).collect()),
        ("bf16", "<u2", values.data.iter().flat_map(|v| bf16::from_f64(*v).to_le_bytes()).collect()),
    ];
    for ((dtype, descr, bytes), bound) in encoded.into_iter().zip([0.0, 1e-3, 1e-2]) {
        let made = Made::whole();
        made.replace("p1/l02/attn_out.npy", &npy(descr, false, &values.shape, &bytes), |row| {
            row["dtype"] = json!(dtype)
        });
        let outcome = compare(&made.open(), &original.open());
        let row =
            outcome.rows.iter().find(|row| row.site == site(Point::AttnOut, Some(2), 1)).expect("compared");
        let error = row.judged().expect("measured").errors.max_abs;
        assert_eq!(error, 0.0, "{dtype}: what storing may have changed is no error");
        let off = row.judged().expect("measured").worst.as_ref().map(|w| (w.candidate - w.reference).abs());
        assert!(off.is_some_and(|off| off <= bound), "{dtype}: {off:?}");
        let identical = row.judged().is_some_and(|found| found.is_identical());
        assert_eq!(identical, bound == 0.0, "{dtype}");
    }
}

#[test]
fn attention_weights_above_the_causal_mask_are_never_compared() {
    let (made, original) = (Made::whole(), Made::whole());
    let mut values = original.open().read(site(Point::AttnScores, Some(0), 0)).expect("sound").expect("held");
    let keys = values.shape[2];
    for flat in 0..values.data.len() {
        if flat % keys > flat / keys % keys {
            values.data[flat] = f64::NAN;
        }
    }
    let bytes: Vec<u8> = values.data.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect();
    made.replace("p0/l00/attn_scores.npy", &npy("<f4", false, &values.shape, &bytes), |_| ());
    assert_identical(&compare(&made.open(), &original.open()));
    let outcome = judge_against(&made.open(), &tiny_llama2(), &LLAMA_CPP_F32, &mut ());
    assert_eq!(outcome.verdict, Verdict::Pass, "{:?}", outcome.reason);
}

// ---- dumps that must not pass ---------------------------------------------------------------------------

#[test]
fn an_empty_dump_is_inconclusive() {
    let made = Made::whole();
    made.edit_manifest(|json| (json["tensors"], json["generated"]) = (json!([]), Value::Null));
    let outcome = judge_against(&made.open(), &tiny_llama2(), &LLAMA_CPP_F32, &mut ());
    assert_eq!(outcome.verdict, Verdict::Inconclusive);
    assert_eq!(outcome.coverage.taps_compared, 0);
    assert_eq!(compare(&made.open(), &Made::whole().open()).verdict, Verdict::Inconclusive);
    assert_eq!(compare(&Made::whole().open(), &made.open()).verdict, Verdict::Inconclusive);
}

#[test]
fn an_all_zero_dump_fails_at_its_first_tap_and_against_itself_is_inconclusive() {
    let made = Made::whole();
    for row in made.open().manifest.tensors {
        let file = made.path.join(&row.file);
        let bytes = fs::read(&file).expect("it is there");
        let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        fs::write(&file, [&bytes[..header], &vec![0; bytes.len() - header]].concat()).expect("it is written");
    }
    made.edit_manifest(|json| {
        json["generated"] = json!([0, 0, 0]);
        json["input"]["decode"] = json!("forced");
    });
    let outcome = judge_against(&made.open(), &tiny_llama2(), &LLAMA_CPP_F32, &mut ());
    assert_eq!(outcome.verdict, Verdict::Fail);
    assert_eq!(outcome.first_divergence().map(|row| row.site.point), Some(Point::Embed));
    assert!(outcome.reason.expect("a reason").contains("every value of the reference is zero"));
    assert_eq!(compare(&made.open(), &made.open()).verdict, Verdict::Inconclusive);
}

#[test]
fn a_nan_on_one_side_is_the_first_divergence_and_on_both_is_inconclusive() {
    let made = Made::whole();
    let mut values = made.open().read(site(Point::FfnNorm, Some(1), 0)).expect("sound").expect("held");
    values.data[9] = f64::NAN;
    let bytes: Vec<u8> = values.data.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect();
    made.replace("p0/l01/ffn_norm.npy", &npy("<f4", false, &values.shape, &bytes), |_| ());
    for (candidate, reference, side) in
        [(Made::whole().open(), made.open(), "reference"), (made.open(), Made::whole().open(), "candidate")]
    {
        let outcome = compare(&candidate, &reference);
        assert_eq!(outcome.verdict, Verdict::Fail);
        let told = format!("ffn_norm, layer 1, pass 0: the {side} has NaN or infinite values: 1");
        assert_eq!(outcome.reason, Some(told));
    }
    let outcome = compare(&made.open(), &made.open());
    assert_eq!(outcome.verdict, Verdict::Inconclusive);
    assert!(outcome.reason.expect("a reason").contains("both sides have the same NaN"));
}

#[test]
fn a_dump_that_lacks_one_place_is_inconclusive_and_says_which() {
    let made = Made::whole();
    made.edit_manifest(|json| {
        json["tensors"].as_array_mut().expect("rows").retain(|row| row["file"] != "p1/l02/k_rope.npy");
    });
    let outcome = judge_against(&made.open(), &tiny_llama2(), &LLAMA_CPP_F32, &mut ());
    assert_eq!(outcome.verdict, Verdict::Inconclusive);
    assert!(outcome.reason.expect("a reason").starts_with("k_rope, layer 2, pass 1"));
    assert_eq!(outcome.coverage.taps_expected, outcome.coverage.taps_compared + 1);
}

#[test]
fn a_place_that_only_the_reference_has_is_lacking() {
    let made = Made::whole();
    made.edit_manifest(|json| {
        json["tensors"].as_array_mut().expect("rows").retain(|row| row["file"] != "p0/l03/ffn_act.npy");
    });
    for (ours, theirs) in [(made.open(), Made::whole().open()), (Made::whole().open(), made.open())] {
        let outcome = compare(&ours, &theirs);
        assert_eq!(outcome.verdict, Verdict::Inconclusive);
        assert!(outcome.reason.expect("a reason").starts_with("ffn_act, layer 3, pass 0: not in"));
    }
}

#[test]
fn a_dump_that_stops_early_is_judged_as_far_as_it_goes_and_a_note_says_so() {
    let early = Made::new("early", &RunInput::greedy(PROMPT, 0));
    for (candidate, reference) in [(early.open(), Made::whole().open()), (Made::whole().open(), early.open())]
    {
        let outcome = compare(&candidate, &reference);
        assert_identical(&outcome);
        let told = "only the first 6 are compared";
        assert!(outcome.notes.iter().any(|note| note.contains(told)), "{:?}", outcome.notes);
    }
}

/// Only these taps of a dump.
fn subset(taps: &[&str]) -> Made {
    let made = Made::whole();
    made.edit_manifest(|json| {
        json["tensors"]
            .as_array_mut()
            .expect("rows")
            .retain(|row| taps.contains(&row["tap"].as_str().expect("a name")));
        json["generated"] = Value::Null;
    });
    made
}

#[test]
fn between_outputs_of_every_other_layer_the_error_is_that_of_two_layers() {
    let made = subset(&["block_out"]);
    made.edit_manifest(|json| {
        let rows = json["tensors"].as_array_mut().expect("rows");
        rows.retain(|row| row["layer"] == 1 || row["layer"] == 3);
    });
    let negated = |v: &mut [f32]| v.iter_mut().for_each(|v| *v = -*v);
    let judged = |layer| {
        let mut fault = At(site(Point::V, Some(layer), 0), negated);
        let outcome = judge_against(&made.open(), &tiny_llama2(), &LLAMA_CPP_F32, &mut fault);
        let wrong =
            outcome.rows.iter().filter(|row| row.verdict == Verdict::Fail && row.site.pass == Some(0));
        wrong.filter_map(|row| row.site.layer).collect::<Vec<_>>()
    };
    assert_eq!((judged(0), judged(1)), (vec![1], vec![1]), "the first two layers start at the tokens");
    assert_eq!((judged(2), judged(3)), (vec![3], vec![3]), "the others at the output of layer 1");
    let outcome = judge_against(&made.open(), &tiny_llama2(), &LLAMA_CPP_F32, &mut ());
    assert_eq!(
        (outcome.verdict, outcome.count(Verdict::Fail)),
        (Verdict::Inconclusive, 0),
        "layers are missing"
    );
    let last = outcome.rows.iter().find(|row| row.site.layer == Some(3)).expect("it was compared");
    assert_eq!(last.since, [Site { point: Point::BlockOut, layer: Some(1), pass: None }]);
}

/// What a dump of `block_out` and `logits` is judged for: these, and the choices that its reading tells.
const FEW: usize = 3 * 5 + 2;

#[test]
fn a_dump_of_few_taps_passes_for_what_it_holds() {
    let made = subset(&["block_out", "logits"]);
    let outcome = judge_against(&made.open(), &tiny_llama2(), &LLAMA_CPP_F32, &mut ());
    assert_eq!((outcome.verdict, outcome.coverage.taps_compared), (Verdict::Pass, FEW));
    assert!(
        outcome.notes[0].starts_with("not recorded in the dump: embed, attn_norm, q, k, v,"),
        "{:?}",
        outcome.notes
    );
    for (candidate, reference) in [(made.open(), Made::whole().open()), (Made::whole().open(), made.open())] {
        let outcome = compare(&candidate, &reference);
        assert_eq!(outcome.verdict, Verdict::Pass, "{:?}", outcome.reason);
        assert!(outcome.coverage.taps_compared >= FEW);
        assert_eq!(outcome.notes.len(), 1, "{:?}", outcome.notes);
    }
}

#[test]
fn the_local_error_is_measured_from_the_nearest_recorded_taps() {
    let made = subset(&["block_out", "logits"]);
    let outcome = judge_against(&made.open(), &tiny_llama2(), &LLAMA_CPP_F32, &mut ());
    let since = |point, layer| {
        let row = outcome.rows.iter().find(|row| (row.site.point, row.site.layer) == (point, layer));
        let row = row.expect("it was compared");
        (row.local.is_some(), row.since.iter().map(|start| (start.point, start.layer)).collect::<Vec<_>>())
    };
    assert_eq!(since(Point::BlockOut, Some(0)), (true, vec![]), "since the tokens, within its layer");
    assert_eq!(since(Point::BlockOut, Some(2)), (true, vec![(Point::BlockOut, Some(1))]));
    assert_eq!(since(Point::Logits, None), (true, vec![(Point::BlockOut, Some(3))]));
}

#[test]
fn a_checkpoint_that_was_asked_for_and_is_not_there_is_inconclusive() {
    let made = subset(&["block_out", "logits"]);
    let selection = Selection { explicit: true, ..Selection::everything() };
    let outcome = compare_selected(&made.open(), &made.open(), &selection).expect("they can be compared");
    assert_eq!(outcome.verdict, Verdict::Inconclusive);
    assert!(outcome.reason.expect("a reason").contains("checkpoint norm"));
}

#[test]
fn other_tokens_end_the_comparison_and_both_are_shown() {
    let other = Made::new("other", &RunInput::greedy(&[1, 393, 395, 77, 394, 486], 2));
    let error = compare_selected(&Made::whole().open(), &other.open(), &Selection::everything()).unwrap_err();
    let Error::Dump(DumpError::TokensDiffer { position: 3, .. }) = error else { panic!("{error}") };
    let message = error.to_string();
    assert!(message.contains("[1, 393, 395, 260, ") && message.contains("[1, 393, 395, 77, "), "{message}");
}

// ---- damaged dumps --------------------------------------------------------------------------------------

/// Opening, or reading every array, must be refused with a message that contains `expected` and the dump.
#[track_caller]
fn assert_refused(made: &Made, expected: &str) {
    let read = || -> xcheck::Result<()> {
        let dump = Dump::open(&made.path)?;
        dump.sites().try_for_each(|site| dump.read(site).map(|_| ()))
    };
    let message = read().expect_err("it is refused").to_string();
    assert!(message.contains(expected), "{message}");
    assert!(message.contains(&made.path.display().to_string()), "{message}");
    assert!(!message.contains('\n'), "one message: {message}");
}

#[track_caller]
fn assert_manifest_refused(edit: impl FnOnce(&mut Value), expected: &str) {
    let made = Made::whole();
    made.edit_manifest(edit);
    assert_refused(&made, expected);
}

#[test]
fn manifests_that_contradict_the_contract_are_refused() {
    assert_manifest_refused(|json| json["format"] = json!("other"), "invalid format 'other'");
    assert_manifest_refused(|json| json["version"] = json!(3), "unsupported version 3");
    assert_manifest_refused(
        |json| json["passes"] = json!([]),
        "the tokens of the passes differ from input.tokens",
    );
    assert_manifest_refused(
        |json| json["passes"][1]["position"] = json!(9),
        "passes[1] starts at position 9, expected 6",
    );
    assert_manifest_refused(|json| json["passes"][2]["tokens"] = json!([]), "passes[2] has no tokens");
    assert_manifest_refused(
        |json| json["input"]["tokens"][0] = json!(5),
        "the tokens of the passes differ from input.tokens",
    );
    assert_manifest_refused(|json| json["tensors"][3]["tap"] = json!("nope"), "no tap is named 'nope'");
    assert_manifest_refused(|json| json["tensors"][3]["layer"] = json!(null), "needs one layer");
    assert_manifest_refused(|json| json["tensors"][3]["pass"] = json!(7), "pass 7 does not exist");
    assert_manifest_refused(|json| json["tensors"][3]["dtype"] = json!("q8_0"), "unknown dtype 'q8_0'");
    assert_manifest_refused(
        |json| json["tensors"][3]["shape"] = json!([2, 6, 4, 32]),
        "does not match the axes",
    );
    assert_manifest_refused(|json| json["tensors"][3]["shape"] = json!([u64::MAX, 4, 32]), "is too large");
    assert_manifest_refused(|json| json["tensors"][4] = json["tensors"][3].clone(), "is listed twice");
    assert_manifest_refused(
        |json| json["tensors"][1]["shape"] = json!([5, 128]),
        "axis 'token' has length 5, expected 6",
    );
    assert_manifest_refused(|json| json["tensors"][1]["shape"] = json!([6, 0]), "axis 'hidden' has length 0");
    assert_manifest_refused(|json| json["tensors"][3]["axes"] = json!(["a", "b", "c"]), "unknown axis 'a'");
    assert_manifest_refused(
        |json| _ = json.as_object_mut().map(|json| json.remove("input")),
        "missing field `input`",
    );
}

#[test]
fn files_outside_the_dump_are_refused() {
    for file in ["../secret.npy", "/etc/passwd", "p0/../../x.npy", ""] {
        assert_manifest_refused(
            |json| json["tensors"][0]["file"] = json!(file),
            "expected a relative path inside the dump",
        );
    }
}

#[test]
fn arrays_that_are_not_what_the_manifest_says_are_refused() {
    let file = "p0/l00/attn_norm.npy";
    let data = vec![0u8; 6 * 128 * 4];
    let cases: [(Vec<u8>, &str); 6] = [
        (npy("<f4", true, &[6, 128], &data), "ascontiguousarray"),
        (npy("|O", false, &[6, 128], &data), "pickle"),
        (npy(">f4", false, &[6, 128], &data), "endian"),
        (npy("<f8", false, &[6, 64], &data), "dtype f64, but the manifest states f32"),
        (npy("<f4", false, &[12, 64], &data), "shape [12, 64], but the manifest states [6, 128]"),
        (npy("<f4", false, &[6, 128], &data[..1000]), "truncated"),
    ];
    for (bytes, expected) in cases {
        let made = Made::whole();
        fs::write(made.path.join(file), bytes).expect("it is written");
        assert_refused(&made, expected);
    }
}

#[test]
fn a_missing_array_is_refused_when_the_dump_is_opened() {
    let made = Made::whole();
    fs::remove_file(made.path.join("p1/l00/q.npy")).expect("it was there");
    assert!(Dump::open(&made.path).unwrap_err().to_string().contains("missing array 'p1/l00/q.npy'"));
}

#[test]
fn a_dump_without_a_manifest_is_refused() {
    let made = Made::whole();
    fs::remove_file(made.path.join("manifest.json")).expect("it was there");
    assert_refused(&made, "manifest.json");
}

#[test]
fn a_continuation_shorter_than_its_passes_choose_is_refused_with_both_counts() {
    let made = Made::whole();
    let two: Vec<u8> =
        made.open().manifest.generated.expect("one")[..2].iter().flat_map(|id| id.to_le_bytes()).collect();
    made.replace("generated.npy", &npy("<u4", false, &[2], &two), |row| row["shape"] = json!([2]));
    made.edit_manifest(|json| drop(json["generated"].as_array_mut().expect("ids").pop()));
    let message = refusal(&made.open());
    assert!(message.contains("generated has 2 tokens, expected 3"), "{message}");
}

#[test]
fn the_tokens_of_a_prompt_are_no_array_of_a_dump() {
    let made = Made::whole();
    made.edit_manifest(|json| {
        let rows = json["tensors"].as_array_mut().expect("rows");
        rows.iter_mut().find(|row| row["tap"] == "generated").expect("the row is there")["tap"] =
            json!("tokens");
    });
    let error = Dump::open(&made.path).unwrap_err().to_string();
    assert!(error.contains("input.tokens"), "{error}");
}

#[test]
fn a_reference_of_another_size_is_refused() {
    let made = Made::whole();
    let data = vec![1u8; 6 * 64 * 4];
    made.replace("p0/l00/attn_norm.npy", &npy("<f4", false, &[6, 64], &data), |row| {
        row["shape"] = json!([6, 64])
    });
    let message = refusal(&made.open());
    assert!(message.contains("attn_norm, layer 0, pass 0 has shape [6, 64], expected [6, 128]"), "{message}");
}

#[test]
fn a_recording_changes_nothing_and_refuses_to_overwrite() {
    let made = Made::whole();
    let manifest = made.open().manifest;
    let error = Recorder::create(&made.path, manifest).unwrap_err();
    assert!(error.to_string().contains("already exists"), "{error}");
}
