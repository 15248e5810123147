//! Whatever the messages: what is found of a stream is what is found of the file that holds the same.

use xcheck::check::{Mode, Role};
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::{Dump, TensorRow};
use xcheck::verdict::{Outcome, Verdict};

use super::bed::{Case, changed, end, message, messages, of_layers, told};
use crate::common::share::one_of;
use crate::common::{counterpart, reference_of, references};

/// Cuts a dump in every even way, and holds each against the whole of it.
fn assert_streams_are_the_whole(name: &str, case: &Case, dump: &Dump) -> Outcome {
    let (whole, n) = (case.whole(dump), case.model.dimensions().n_layers);
    for each in [1, 2, n + 1] {
        let bytes = [messages(dump, n, each).concat(), end()].concat();
        let streamed = case.streamed(dump, bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(streamed.rows.len(), whole.rows.len(), "{name}");
        for (one, other) in told(&streamed).into_iter().zip(told(&whole)) {
            assert_eq!(one, other, "{name}, {each} layers a message");
        }
    }
    whole
}

#[test]
fn of_dumps_that_ship() {
    let ways = [(Mode::Local, Role::Candidate), (Mode::Layers, Role::Reference)];
    let cases = references().flat_map(|reference| ways.map(|way| (reference.clone(), way)));
    for ((model, name, dump), (mode, role)) in one_of(9, cases) {
        let (loaded, numerics) = counterpart(model, &dump);
        let case = Case { mode, role, ..Case::new(&*loaded.model, &*numerics) };
        let named = format!("{model} {name} {}", mode.name());
        let whole = assert_streams_are_the_whole(&named, &case, &dump);
        assert_eq!(whole.verdict, Verdict::Pass, "{named}: {:?}", whole.reason);
    }
}

/// The files of other engines: some rotate with another base, one holds no embeddings, some pass.
#[test]
fn of_other_engines() {
    let (mut failing, mut explained) = (0, 0);
    for (model, engine) in [
        ("tiny-llama3", "mlx-lm-f32"),
        ("tiny-llama3", "mlx-lm-f32-older-keys"),
        ("tiny-gemma3", "mlx-lm-bf16"),
        ("tiny-llama2", "mlx-lm-f32-one-by-one"),
        ("tiny-llama2", "transformers-sdpa-bf16"),
    ] {
        let path = format!("{}/tests/data/engines/{model}/{engine}.safetensors", env!("CARGO_MANIFEST_DIR"));
        let dump = Dump::open(path.as_ref()).expect("it ships");
        let (loaded, numerics) = counterpart(model, &dump);
        let case = Case::new(&*loaded.model, &*numerics);
        let whole = assert_streams_are_the_whole(&format!("{model} {engine}"), &case, &dump);
        failing += usize::from(whole.verdict == Verdict::Fail);
        explained += whole.findings.len();
    }
    assert!(failing > 0 && explained > 0, "the test tests little: {failing} {explained}");
}

const DUMP: (&str, &str) = ("tiny-llama3", "transformers-f32");

fn with_case<T>(test: impl FnOnce(&Case, &Dump, usize) -> T) -> T {
    let dump = reference_of(DUMP.0, DUMP.1);
    let (loaded, numerics) = counterpart(DUMP.0, &dump);
    let case = Case::new(&*loaded.model, &*numerics);
    test(&case, &dump, loaded.model.dimensions().n_layers)
}

/// One value of one tap of one layer: through the pipe it is found where it is, and nowhere before.
#[test]
fn a_fault_in_one_layer_is_found_at_its_tap_and_its_twin_passes() {
    with_case(|case, dump, n| {
        let cut = |change: fn(usize, f32) -> f32| {
            let sent = messages(dump, n, 1).into_iter();
            let sent = sent.map(|message| changed(message, "p0/l01/ffn_gate", change));
            [sent.collect::<Vec<_>>().concat(), end()].concat()
        };
        let wrong = |index, value| if index == 7 { value * 1.01 } else { value };
        let wrong = case.streamed(dump, cut(wrong)).expect("it is judged");
        let site = wrong.first_divergence().expect("it is found").site;
        assert_eq!(site, Site { point: Point::FfnGate, layer: Some(1), pass: Some(0) });
        assert_eq!(wrong.verdict, Verdict::Fail);
        let layers: Vec<_> = wrong.rows.iter().filter(|row| row.verdict == Verdict::Fail).collect();
        assert!(layers.iter().all(|row| row.site.layer == Some(1)), "{layers:?}");
        // The same value, off by a unit in the last place, as another order of sums would make it.
        let rounded = |index, value| if index == 7 { value * (1.0 + f32::EPSILON) } else { value };
        let twin = case.streamed(dump, cut(rounded)).expect("it is judged");
        assert_eq!(twin.verdict, Verdict::Pass, "{:?}", twin.reason);
    });
}

/// A message alone does not show that other layers have more taps; the end does. By then the layer is judged: a stream is stricter than the
/// file, of which it is known that what follows covers the tap.
#[test]
fn a_tap_that_one_layer_lacks_is_missing_in_a_stream_and_covered_in_the_file() {
    with_case(|case, dump, n| {
        let lacks = |site: Site| site.point == Point::Q && site.layer == Some(1);
        let mut sent: Vec<Vec<u8>> = messages(dump, n, 1);
        let of_layer = of_layers(1, 1, n);
        sent[1] = message(dump, &|site| of_layer(site) && !lacks(site));
        let whole = dump
            .read_as(|row| (!lacks(row.site().expect("a place"))).then(|| row.clone()))
            .expect("the rest is a dump");
        let expected = case.whole(&whole);
        assert_eq!(expected.verdict, Verdict::Pass, "{:?}", expected.reason);
        assert!(
            expected.notes.iter().any(|note| note.starts_with("not recorded: q, layer 1;")),
            "{:?}",
            expected.notes
        );
        // Whichever layer comes first.
        for order in [[0, 1, 2, 3], [1, 0, 3, 2]] {
            let bytes = [order.map(|at| sent[at].clone()).concat(), end()].concat();
            let streamed = case.streamed(dump, bytes).expect("it is judged");
            assert_eq!(streamed.verdict, Verdict::Inconclusive);
            assert_eq!(streamed.coverage.taps_compared, expected.coverage.taps_compared);
            assert!(
                streamed.coverage.skipped.iter().any(|what| what.contains("q")),
                "{:?}",
                streamed.coverage
            );
        }
    });
}

/// Of layers that were not asked for, nothing is judged, and nothing is missed.
#[test]
fn a_choice_of_layers_is_that_of_the_file() {
    with_case(|case, dump, n| {
        let mut case = case.clone();
        case.selection.layers = Some("1".parse().expect("a layer"));
        let bytes = [messages(dump, n, 1).concat(), end()].concat();
        let (streamed, whole) = (case.streamed(dump, bytes).expect("it is judged"), case.whole(dump));
        assert_eq!(told(&streamed), told(&whole));
        assert_eq!(whole.verdict, Verdict::Pass, "{:?}", whole.reason);
        // A producer that dies afterwards is told of all the same.
        let streamed = case.streamed(dump, messages(dump, n, 1)[..2].concat()).expect("it is judged");
        assert_eq!(streamed.verdict, Verdict::Inconclusive);
    });
}

/// Where messages come in another order, or one of them twice, what is found is the same.
#[test]
fn neither_order_nor_a_message_that_came_before_changes_anything() {
    with_case(|case, dump, n| {
        let sent = messages(dump, n, 1);
        let order = [2, 0, 3, 2, 1, 0];
        let bytes = [order.map(|at| sent[at].clone()).concat(), end()].concat();
        let streamed = case.streamed(dump, bytes).expect("it is judged");
        assert_eq!(told(&streamed), told(&case.whole(dump)));
        // Embeddings may come by themselves, and again with layer 0, which starts from them.
        let alone = message(dump, &|site| site.point == Point::Embed);
        let bytes = [alone, sent.concat(), end()].concat();
        assert_eq!(told(&case.streamed(dump, bytes).expect("it is judged")), told(&case.whole(dump)));
    });
}

/// What a tap holds by mistake is told of a unit by itself, and so alike of a file and of its stream.
#[test]
fn a_misnamed_tap_is_told_alike() {
    with_case(|case, dump, _| {
        let other = |tap: &str| match tap {
            "attn_norm" => "ffn_norm".to_owned(),
            "ffn_norm" => "attn_norm".to_owned(),
            tap => tap.to_owned(),
        };
        let swapped = |row: &TensorRow| Some(row.clone().named(other(&row.tap)));
        let dump = dump.read_as(swapped).expect("all have a place");
        let whole = assert_streams_are_the_whole("misnamed", case, &dump);
        let kinds: Vec<&str> = whole.findings.iter().map(|finding| finding.kind.name()).collect();
        assert!(kinds.contains(&"dump_tap"), "{kinds:?}");
    });
}
