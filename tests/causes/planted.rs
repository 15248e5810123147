//! A change of the catalogue, planted in a model that ships: the dump that such an engine would leave, judged.

use std::collections::BTreeSet;
use std::path::Path;

use xcheck::change::{At, Book, Change, Changing, Entry, Kind, Supposition, Value, catalogue};
use xcheck::checkpoint::{Point, Site};
use xcheck::compare::{Gate, Role, Selection, Tolerances, Verdict};
use xcheck::diagnose::{Mode, Outcome, Rules, cross_check};
use xcheck::dump::{Dump, Input, Layout, Manifest, ModelInfo, Producer, Recorder};
use xcheck::engine::{self, Script};
use xcheck::exact::{Profile, Traced};
use xcheck::model::Model;
use xcheck::numerics::{BitnetCpp, F32, KvType, LlamaCpp, Numerics, Transformers};
use xcheck::shipped;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;

/// A model that ships, the arithmetic that computes with it, and the type that its tolerances go by.
pub struct Bed {
    pub name: &'static str,
    pub arithmetic: &'static str,
    pub model: Box<dyn Model>,
    /// What ours computes with.
    pub numerics: Box<dyn Numerics>,
    /// What the engine does that leaves the dump.
    pub engine: Box<dyn Numerics>,
}

/// A change, and where it is planted.
#[derive(Clone, Debug)]
pub struct Plant {
    pub change: Change,
    pub supposed: Supposition,
}

/// The models, each by its file.
pub const MODELS: [&str; 8] = [
    "tiny-llama2-f32",
    "tiny-llama3-f32",
    "tiny-qwen3-f32",
    "tiny-gemma3-f32",
    "tiny-gpt2-f32",
    "tiny-bitnet-i2_s",
    "tiny-llama2-q8_0",
    "tiny-llama3-f16",
];

/// The arithmetics. Of the last, the engine adds up otherwise than ours, which is f32.
pub const ARITHMETICS: [&str; 4] = ["f32", "bf16", "llama.cpp", "other-order"];

impl Bed {
    pub fn new(name: &'static str, arithmetic: &'static str) -> Self {
        let numerics = || -> Box<dyn Numerics> {
            match arithmetic {
                "f32" | "other-order" => Box::new(F32),
                "bf16" => Box::new(Transformers::Bf16),
                // llama.cpp has no ternary types of its own: its fork has.
                _ if name.contains("bitnet") => Box::new(BitnetCpp { kv: KvType::F16 }),
                _ => Box::new(LlamaCpp { kv: KvType::F16 }),
            }
        };
        let engine: Box<dyn Numerics> = match arithmetic {
            // llama.cpp's GELU comes from a table: another function.
            "other-order" if name.contains("gemma") || name.contains("gpt2") => Box::new(Transformers::F32),
            "other-order" if name.ends_with("f32") => Box::new(LlamaCpp { kv: KvType::F32 }),
            _ => numerics(),
        };
        let variants = shipped::MODELS.iter().flat_map(|model| model.variants().expect("it ships"));
        let (_, files) = variants.into_iter().find(|(known, _)| known == name).expect("it ships");
        Self { name, arithmetic, model: files.load().expect("it loads").model, numerics: numerics(), engine }
    }

    /// The dump of an engine that computes so, of a prompt and a few tokens after it.
    pub fn dump(&self, suppositions: &[Supposition], thinned: Thinned, path: &Path) -> (Dump, usize) {
        let traced = Traced::new(&*self.engine, Profile::of(&*self.engine));
        let book = Book::of(&*self.model, &*self.engine).expect("it runs");
        let mut changing = Changing::new(&traced, &book, suppositions).forgetting();
        let dump = self.recorded(&traced, &mut changing, thinned, path);
        (dump, changing.made.get())
    }

    /// The same of an engine that goes on with what a tap makes of its values.
    pub fn dump_with(&self, tap: &mut dyn Tap, path: &Path) -> Dump {
        self.recorded(&*self.engine, tap, Thinned::Full, path)
    }

    /// The tap points of the model that hold numbers, as far as the last logits.
    pub fn points(&self) -> BTreeSet<Point> {
        let mut points = Points(BTreeSet::new());
        engine::run(&*self.model, &*self.numerics, &Script::greedy(&PROMPT, 0), &mut points)
            .expect("it runs");
        points.0.into_iter().filter(|point| *point <= Point::LastLogits).collect()
    }

    /// The same of an engine that is right, and writes its values under other names or otherwise.
    pub fn dump_written(&self, write: &dyn Fn(Site, &Tensor) -> (Site, Tensor), path: &Path) -> Dump {
        let mut recorder = Recorder::create(path, self.manifest()).expect("a new dump");
        let mut taps = Written { write, recorder: &mut recorder };
        let transcript = engine::run(&*self.model, &*self.engine, &script(), &mut taps).expect("it runs");
        recorder.finish(transcript.passes, transcript.generated).expect("it is written");
        Dump::open(path).expect("it is whole")
    }

    fn recorded(&self, numerics: &dyn Numerics, tap: &mut dyn Tap, thinned: Thinned, path: &Path) -> Dump {
        let mut recorder = Recorder::create(path, self.manifest()).expect("a new dump");
        let mut taps = (tap, Kept { thinned, recorder: &mut recorder });
        let transcript = engine::run(&*self.model, numerics, &script(), &mut taps).expect("it runs");
        recorder.finish(transcript.passes, transcript.generated).expect("it is written");
        Dump::open(path).expect("it is whole")
    }

    fn manifest(&self) -> Manifest {
        let producer = Producer {
            name: "planted".into(),
            version: "1".into(),
            settings: self.settings(),
            rounding: None,
        };
        let model =
            ModelInfo { name: String::new(), architecture: self.model.architecture().into(), sha256: None };
        let layout = Layout { rope_pairing: self.model.dimensions().rope_pairing };
        let input = Input { tokens: PROMPT.to_vec(), ..Input::default() };
        Manifest::new(producer, model, layout, input, Vec::new())
    }

    fn settings(&self) -> serde_json::Map<String, serde_json::Value> {
        let settings = match self.arithmetic {
            "llama.cpp" => serde_json::json!({"kv_cache": "f16"}),
            "other-order" => serde_json::json!({"dtype": "f32"}),
            dtype => serde_json::json!({"dtype": dtype}),
        };
        settings.as_object().expect("an object").clone()
    }

    /// The candidate, judged.
    pub fn check(&self, dump: &Dump) -> Outcome {
        let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
        let rules = Rules {
            selection: &selection,
            tolerances: &tolerances,
            gate: Gate::Rounding,
            precision: dump.manifest.producer.precision().unwrap_or("f32"),
            mode: Mode::Both,
            role: Role::Candidate,
            profile: None,
            is_stated: true,
            suppositions: &[],
        };
        cross_check("planted", &*self.model, &*self.numerics, dump, rules, &mut ()).expect("it can be judged")
    }

    /// Every change that this model can have, with every value worth planting.
    pub fn plants(&self) -> Vec<Plant> {
        let traced = Traced::new(&*self.numerics, Profile::of(&*self.numerics));
        let book = Book::of(&*self.model, &*self.numerics).expect("it runs");
        let mut plants = Plants { traced: &traced, book: &book, found: Vec::new(), position: 0, tokens: 0 };
        let script = Script::greedy(&[1, 9, 17, 200, 77], 1);
        engine::run(&*self.model, &traced, &script, &mut plants).expect("it runs");
        plants.found
    }
}

const PROMPT: [u32; 11] = [1, 9, 17, 200, 77, 301, 45, 45, 260, 13, 5];

fn script() -> Script {
    Script::greedy(&PROMPT, 2)
}

struct Points(BTreeSet<Point>);

impl Tap for Points {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        self.0.insert(site.point);
        value
    }
}

/// Writes values otherwise than the run goes on with.
struct Written<'w> {
    write: &'w dyn Fn(Site, &Tensor) -> (Site, Tensor),
    recorder: &'w mut Recorder,
}

impl Tap for Written<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let (written, other) = (self.write)(site, &value);
        self.recorder.tap(written, other);
        value
    }
}

/// Which taps a dump holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinned {
    /// All.
    Full,
    /// No scores, weights and caches.
    NoScores,
    /// What enters and leaves layers, and logits.
    Blocks,
    /// Logits alone.
    Logits,
}

impl Thinned {
    fn keeps(self, point: Point) -> bool {
        use Point::*;
        match self {
            Thinned::Full => true,
            Thinned::NoScores => !matches!(point, AttnScores | AttnWeights | KCache | VCache),
            Thinned::Blocks => matches!(point, Embed | BlockOut | Logits | LastLogits | Argmax | Generated),
            Thinned::Logits => matches!(point, Logits | LastLogits | Argmax | Generated),
        }
    }
}

struct Kept<'k> {
    thinned: Thinned,
    recorder: &'k mut Recorder,
}

impl Tap for Kept<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if self.thinned.keeps(site.point) { self.recorder.tap(site, value) } else { value }
    }
}

/// Looks which changes have a meaning anywhere.
struct Plants<'p> {
    traced: &'p Traced<'p>,
    book: &'p Book,
    found: Vec<Plant>,
    position: usize,
    tokens: usize,
}

impl Tap for Plants<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point == Point::Embed {
            (self.position, self.tokens) = (self.position + self.tokens, value.rows());
        }
        let positions = self.position..self.position + self.tokens;
        let at = At::new(site, positions, &value, self.traced, self.book);
        for change in at.changes() {
            let is_known = self.found.iter().any(|known| known.change == change);
            let entry = change.entry;
            let is_of_one_place = entry.is_local || entry.kind == Kind::LayerOrder;
            // Not in the first layer: a mistake of one layer is to be found in it.
            if is_known || (is_of_one_place && site.layer == Some(0)) {
                continue;
            }
            let everywhere = Supposition::everywhere(change.clone());
            let supposed = match (is_of_one_place, site.layer) {
                (true, Some(layer)) => everywhere.at(site.point).in_layers([layer]),
                (true, None) => everywhere.at(site.point),
                _ => everywhere,
            };
            self.found.push(Plant { change, supposed });
        }
        value.with_origins(Vec::new())
    }
}

/// How a planted change was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// Its kind and its value.
    Right,
    /// Its kind first, and others that explain the same.
    Among,
    /// Its kind, with another value.
    OtherValue,
    /// Another kind alone.
    Wrong,
    /// No cause.
    Unnamed,
    /// Nothing fails: rounding hides it.
    Hidden,
    /// Could not be judged.
    Open,
    /// The run never comes by it.
    NotMade,
}

/// What was told of a change that so many stages were computed with.
pub fn told(outcome: &Outcome, change: &Change, made: usize) -> Told {
    match outcome.verdict {
        _ if made == 0 => return Told::NotMade,
        Verdict::Pass | Verdict::Tie | Verdict::Known => return Told::Hidden,
        Verdict::Inconclusive => return Told::Open,
        Verdict::Fail => {}
    }
    let Some(first) = outcome.findings.first() else { return Told::Unnamed };
    if matches!(first.kind, Kind::Unknown | Kind::Partial) {
        return Told::Unnamed;
    }
    let value = if change.value == Value::Nothing { None } else { Some(change.value.to_string()) };
    let is_among =
        first.remaining.iter().any(|other| without_place(other) == without_place(&change.to_string()));
    match first.kind == change.entry.kind {
        true if first.candidate == value && first.remaining.is_empty() => Told::Right,
        true if first.candidate == value || is_among => Told::Among,
        true => Told::OtherValue,
        false if is_among => Told::Among,
        false => Told::Wrong,
    }
}

/// "kind=value", without the tap point that it may be of.
fn without_place(typed: &str) -> String {
    let (name, value) = typed.split_once('=').map_or((typed, None), |(name, value)| (name, Some(value)));
    let kind = name.split('@').next().unwrap_or(name);
    value.map_or(kind.to_owned(), |value| format!("{kind}={value}"))
}

/// Kinds, one entry each.
pub fn kinds() -> BTreeSet<Kind> {
    catalogue().map(|entry: &Entry| entry.kind).collect()
}
