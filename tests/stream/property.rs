//! Whatever the messages: what is found of a stream is what is found of the file that holds the same.

use xcheck::checkpoint::{Point, Site};
use xcheck::compare::{Role, Verdict};
use xcheck::diagnose::{Mode, Outcome};
use xcheck::dump::Dump;
use xcheck::shipped;

use crate::bed::{Case, end, message, messages, of_layers, told};
use crate::common::{counterpart, reference_of};

/// Cuts a dump in every even way, and holds each against the whole of it.
fn assert_streams_are_the_whole(name: &str, case: &Case, dump: &Dump) -> Outcome {
    let (whole, n) = (case.whole(dump), case.model.dimensions().n_layers);
    for each in [1, 2, n + 1] {
        let bytes = [messages(dump, n, each).concat(), end()].concat();
        let streamed = case.streamed(dump, bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (one, other) in told(&streamed).into_iter().zip(told(&whole)) {
            assert_eq!(one, other, "{name}, {each} layers a message");
        }
        assert_eq!(streamed.rows.len(), whole.rows.len(), "{name}");
    }
    whole
}

#[test]
fn of_dumps_that_ship() {
    for model in shipped::MODELS {
        for (name, dump) in model.references().expect("they are sound") {
            let (loaded, numerics) = counterpart(model.name, &dump);
            for (mode, role) in [(Mode::Introduced, Role::Candidate), (Mode::Layers, Role::Reference)] {
                let case = Case { mode, role, ..Case::new(&*loaded.model, &*numerics) };
                let named = format!("{} {name} {}", model.name, mode.name());
                let whole = assert_streams_are_the_whole(&named, &case, &dump);
                assert_eq!(whole.verdict, Verdict::Pass, "{named}: {:?}", whole.reason);
            }
        }
    }
}

#[test]
fn of_engines_that_are_wrong() {
    for (model, engine) in [
        ("tiny-llama3", "mlx-lm-f32"),
        ("tiny-gemma3", "candle-gguf-f32"),
        ("tiny-qwen3", "candle-f32-older-keys"),
        ("tiny-llama2", "candle-bf16"),
    ] {
        let path = format!("{}/tests/data/engines/{model}/{engine}.safetensors", env!("CARGO_MANIFEST_DIR"));
        let dump = Dump::open(path.as_ref()).expect("it ships");
        let (loaded, numerics) = counterpart(model, &dump);
        let case = Case::new(&*loaded.model, &*numerics);
        assert_streams_are_the_whole(&format!("{model} {engine}"), &case, &dump);
    }
}
