//! What is wrong with a stream is said, and is no pass: what came before is still told.

use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;
use xcheck::verdict::{Outcome, Verdict};

use super::bed::{Case, MOST, changed, end, message, message_of, messages, of_layers};
use crate::common::{counterpart, reference_of};

fn with_case<T>(test: impl FnOnce(&Case, &Dump, Vec<Vec<u8>>) -> T) -> T {
    let dump = reference_of("tiny-llama3", "transformers-f32");
    let (loaded, numerics) = counterpart("tiny-llama3", &dump);
    let case = Case::new(&*loaded.model, &*numerics);
    let sent = messages(&dump, loaded.model.dimensions().n_layers, 1);
    test(&case, &dump, sent)
}

/// The stream is inconclusive, and says all of these.
#[track_caller]
fn assert_inconclusive(outcome: &Outcome, expected: &[&str]) {
    let told = outcome.coverage.skipped.join("\n");
    assert_eq!(outcome.verdict, Verdict::Inconclusive, "{told}");
    for expected in expected {
        assert!(told.contains(expected), "'{expected}' is not in: {told}");
    }
}

#[test]
fn a_producer_that_dies_leaves_a_report_of_what_came_and_the_names_of_what_did_not() {
    with_case(|case, dump, sent| {
        let whole = case.whole(dump);
        let bytes = sent.concat();
        let starts: Vec<usize> =
            (0..=sent.len()).map(|count| sent[..count].iter().map(Vec::len).sum()).collect();
        // Inside a length, a header, the data, and between messages.
        for (came, after) in [(2, 0), (2, 5), (2, 20), (2, 30_000), (3, 0), (4, 0)] {
            let outcome = case.streamed(dump, bytes[..starts[came] + after].to_vec()).expect("some came");
            let absent = ["", "", "layer 2, head", "head", ""][came];
            assert_inconclusive(&outcome, &["the producer stopped", absent]);
            assert_eq!(
                outcome.rows.iter().map(|row| format!("{row:?}")).collect::<Vec<_>>(),
                whole
                    .rows
                    .iter()
                    .filter(|row| is_of(row.site, came))
                    .map(|row| format!("{row:?}"))
                    .collect::<Vec<_>>()
            );
        }
    });
}

fn is_of(site: Site, came: usize) -> bool {
    match site.layer {
        Some(layer) => layer < came,
        None => site.point == Point::Embed || came == 4,
    }
}

#[test]
fn what_failed_before_the_producer_died_still_fails() {
    with_case(|case, dump, sent| {
        let sent: Vec<Vec<u8>> =
            sent.into_iter().map(|message| changed(message, "p0/l00/q", |_, value| value * 1.5)).collect();
        let outcome = case.streamed(dump, sent[..2].concat()).expect("some came");
        assert_eq!(outcome.verdict, Verdict::Fail);
        assert!(outcome.coverage.skipped.iter().any(|what| what.contains("the producer stopped too early")));
    });
}

#[test]
fn a_stream_of_nothing_is_an_error() {
    with_case(|case, dump, _| {
        for bytes in [Vec::new(), vec![7; 3]] {
            let error = case.streamed(dump, bytes).expect_err("it is empty").to_string();
            assert!(error.contains("the producer stopped"), "{error}");
        }
        let error = case.streamed(dump, end()).expect_err("it is empty").to_string();
        assert!(error.contains("the stream is empty"), "{error}");
    });
}

#[test]
fn what_is_no_message_is_refused_with_what_stands_there() {
    with_case(|case, dump, sent| {
        let huge = |len: u64, rest: &[u8]| [&len.to_le_bytes(), rest].concat();
        let far = br#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,99999999999]}}"#;
        let hostile: [(Vec<u8>, &str); 7] = [
            (b"Loading model...\n".to_vec(), "\"Loading \", expected the length of a safetensors header"),
            (huge(u64::MAX, b"{"), "expected the length of a safetensors header"),
            (huge(99_000_000, b"{}"), "its header ends after 2 of 99000000 bytes"),
            (huge(20, b"no header, but text."), "the header does not begin with '{'"),
            (huge(20, b"{\"a\": nonsense.....}"), "invalid safetensors header"),
            (huge(far.len() as u64, far), "--largest-message"),
            (huge(2, b"{}"), "no manifest"),
        ];
        for (bytes, expected) in hostile {
            let error = case.streamed(dump, bytes.clone()).expect_err("it is first").to_string();
            assert!(error.contains(expected), "'{expected}' is not in: {error}");
            // After something that could be judged, that is told.
            let outcome = case.streamed(dump, [sent[0].clone(), bytes].concat()).expect("one came");
            assert_inconclusive(&outcome, &[expected, "layers 1-2, head"]);
        }
        const { assert!(MOST < 99_999_999_999) };
    });
}

#[test]
fn messages_of_two_dumps_are_no_stream() {
    with_case(|case, dump, sent| {
        type Change = fn(&mut xcheck::dump::Manifest);
        let changes: [(&str, Change); 6] = [
            ("producer", |manifest| manifest.producer.version = "another".into()),
            ("model", |manifest| manifest.model.sha256 = Some("another".into())),
            ("layout", |manifest| manifest.layout.rope_pairing = None),
            ("input", |manifest| manifest.input.prompt = "another".into()),
            ("passes", |manifest| manifest.passes[0].temperature = Some(0.5)),
            ("generated", |manifest| manifest.generated = None),
        ];
        for (what, change) in changes {
            let mut manifest = dump.manifest.clone();
            change(&mut manifest);
            let other = message_of(dump, &manifest, &of_layers(1, 1, 3));
            let outcome = case.streamed(dump, [sent[0].clone(), other, end()].concat()).expect("one came");
            assert_inconclusive(
                &outcome,
                &[
                    &format!("the manifest's {what} differs from that of the first message"),
                    "layers 1-2, head",
                ],
            );
        }
        // The same without a change goes on.
        let same = message_of(dump, &dump.manifest, &of_layers(1, 1, 3));
        let rest = sent[2..].concat();
        let outcome = case.streamed(dump, [sent[0].clone(), same, rest, end()].concat()).expect("all came");
        assert_eq!(outcome.verdict, Verdict::Pass, "{:?}", outcome.reason);
    });
}

/// Whether a choice is the last of a continuation is known when the head is judged, or never.
#[test]
fn a_continuation_that_is_told_after_the_head_is_refused() {
    with_case(|case, dump, sent| {
        let mut manifest = dump.manifest.clone();
        manifest.generated = None;
        let of_head = of_layers(3, 3, 3);
        let head = message_of(dump, &manifest, &|site| of_head(site) && site.point != Point::Generated);
        let mut later = dump.manifest.clone();
        later.generated.as_mut().expect("it has one").push(7);
        later.generated.as_mut().expect("it has one").push(8);
        let later = message_of(dump, &later, &of_layers(1, 1, 3));
        let outcome = case.streamed(dump, [head, later, sent[0].clone(), end()].concat()).expect("one came");
        assert_inconclusive(
            &outcome,
            &["the manifest's generated differs from that of the first message", "embeddings, layers 0-2"],
        );
    });
}

#[test]
fn a_layer_that_comes_twice_with_other_bits_is_never_a_pass() {
    with_case(|case, dump, sent| {
        let again = changed(sent[1].clone(), "p0/l01/ffn_gate", |_, value| value * (1.0 + f32::EPSILON));
        let bytes = [sent[0].clone(), sent[1].clone(), again, sent[2..].concat(), end()].concat();
        let outcome = case.streamed(dump, bytes).expect("some came");
        assert_inconclusive(&outcome, &["layer 1 on came in an earlier message with other values or taps"]);
        // Two layers at once, of which one was there.
        let both = message(dump, &of_layers(1, 2, 3));
        let bytes = [sent[0].clone(), both, sent[2].clone(), sent[3].clone(), end()].concat();
        let outcome = case.streamed(dump, bytes).expect("all came");
        assert_eq!(outcome.verdict, Verdict::Pass, "the same bits: {:?}", outcome.coverage.skipped);
    });
}

#[test]
fn a_layer_that_starts_from_other_values_than_the_one_before_made_is_refused() {
    with_case(|case, dump, sent| {
        let other = changed(sent[2].clone(), "p0/l01/block_out", |_, value| value * (1.0 + f32::EPSILON));
        let outcome = case
            .streamed(dump, [sent[0].clone(), sent[1].clone(), other, end()].concat())
            .expect("some came");
        assert_inconclusive(&outcome, &["the input of layer 2 differs"]);
    });
}

#[test]
fn a_message_without_what_its_layers_start_from_says_what_to_write() {
    with_case(|case, dump, sent| {
        let lacking: [(Vec<u8>, &str); 5] = [
            (message(dump, &|site| site.layer == Some(1)), "layer 1 without its input, block_out of layer 0"),
            (
                message(dump, &|site| {
                    site.layer == Some(1) && site.point != Point::BlockOut
                        || site.layer == Some(0) && site.point == Point::BlockOut
                }),
                "the message has layer 1 without block_out",
            ),
            // Pass by pass.
            (
                message(dump, &|site| of_layers(1, 1, 3)(site) && site.pass == Some(0)),
                "contain its layers for all passes",
            ),
            (message(dump, &|site| site.layer.is_none() && site.point != Point::Embed), "without its input"),
            (message(dump, &|_| false), "the message has no values"),
        ];
        for (bytes, expected) in lacking {
            let outcome = case.streamed(dump, [sent[0].clone(), bytes, end()].concat()).expect("one came");
            assert_inconclusive(&outcome, &[expected, "not received: layers 1-2, head"]);
        }
    });
}

#[test]
fn layers_that_the_model_does_not_have_are_refused() {
    with_case(|case, dump, sent| {
        let mut manifest = dump.manifest.clone();
        for row in &mut manifest.tensors {
            row.layer = row.layer.map(|layer| layer + 1);
        }
        let takes = |site: Site| site.layer == Some(2) || site.layer == Some(3);
        let other = renumbered(dump, &manifest, &takes);
        let outcome = case.streamed(dump, [sent[0].clone(), other, end()].concat()).expect("one came");
        assert_inconclusive(
            &outcome,
            &["the message has layer 3, but the model has 3 layers, counted from 0"],
        );
    });
}

/// A message whose manifest counts layers from 1.
fn renumbered(dump: &Dump, manifest: &xcheck::dump::Manifest, takes: &dyn Fn(Site) -> bool) -> Vec<u8> {
    let counted = dump.read_as(|row| Some(row.clone().of_layer(row.layer.map(|layer| layer + 1))));
    message_of(&counted.expect("it has a place for all"), manifest, takes)
}

#[test]
fn an_end_without_all_layers_names_those_that_did_not_come() {
    with_case(|case, dump, sent| {
        let outcome =
            case.streamed(dump, [sent[0].clone(), sent[2].clone(), end()].concat()).expect("two came");
        assert_inconclusive(&outcome, &["unit 3 (layer 1): not examined", "(head): not examined"]);
    });
}
