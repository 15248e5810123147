//! How engines round: what ships, what a manifest states, and what the values of real engines tell of it. To look for a
//! choice that explains a dump excuses no fault.

use crate::common;
use std::path::Path;
use std::sync::LazyLock;

use half::{bf16, f16};
use serde_json::{Map, Value, json};
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::{ArrayValues, Dump};
use xcheck::engine::RunInput;
use xcheck::exact::{self, Float, Profile, ResultPair};
use xcheck::model::Model;
use xcheck::numerics::{self, KvType, LlamaCpp, Numerics, Transformers};
use xcheck::ops::attention::AttentionScale;
use xcheck::ops::norm::RmsNorm;
use xcheck::quant::decode_matrix_row;
use xcheck::tensor::Tensor;
use xcheck::tracing::TracedNumerics;
use xcheck::view::View;
use xcheck::weight::{DType, Matrix, StoredTensor};

use crate::common::faulty::{Base, Faulty};
use crate::common::share::one_of;
use crate::common::terminal::Terminal;
use crate::common::{reference, tiny_llama2};
use crate::judge::clay::Clay;
use crate::judge::scene::{recorded, site};

// ---- what ships, and what is stated ---------------------------------------------------------------------

fn fields(json: Value) -> Map<String, Value> {
    json.as_object().expect("an object").clone()
}

#[test]
fn every_shipped_profile_can_be_had_by_its_name_and_states_itself() {
    let names: Vec<&str> = Profile::names().collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let profile = Profile::named(name).expect("it is named");
        let stated = Profile::default().stated(&fields(json!({"like": name}))).expect("it is known");
        assert_eq!(stated, profile, "{name}");
        // Each of its fields, said by itself, comes to the same.
        let json = serde_json::to_value(profile).expect("it is plain data");
        assert_eq!(Profile::default().stated(&fields(json)).expect("they are known"), profile, "{name}");
    }
    assert_eq!(Profile::named("abacus"), None);
    assert_eq!(Profile::named("f32"), Some(Profile::default()));
}

#[test]
fn every_numerics_has_a_profile_of_its_name() {
    let short: [&dyn numerics::Numerics; 2] = [&Transformers::Bf16, &Transformers::F16];
    for numerics in numerics::ALL.iter().copied().chain(short) {
        let name = match numerics.activation_type() {
            DType::F32 => numerics.name().to_owned(),
            short => format!("{}-{}", numerics.name(), short.name()),
        };
        let named = Profile::named(&name).unwrap_or_else(|| panic!("no profile is named {name}"));
        let own = Profile::of(numerics);
        let known = Profile { queries: own.queries, attention: own.attention, ..named };
        assert_eq!(own, known, "{name}");
        assert!(named.follows_cache || own == named, "{name}");
        assert_eq!(Some(own.results), Float::of(numerics.activation_type()), "{name}");
    }
}

#[test]
fn what_is_stated_goes_over_what_it_is_like_and_that_over_what_is_known() {
    let known = Profile::named("transformers-bf16").expect("it ships");
    let flash = Profile::named("bf16-flash").expect("it ships");
    assert_ne!(known, flash);
    let stated = |json: Value| known.stated(&fields(json));
    assert_eq!(stated(json!({})), Ok(known));
    assert_eq!(stated(json!({"dots": "f32"})), Ok(Profile { dots: Float::F32, ..known }));
    assert_eq!(stated(json!({"like": "bf16-flash"})), Ok(flash));
    let both = Profile { scores: Float::F16, lanes: 8, ..flash };
    assert_eq!(stated(json!({"scores": "f16", "like": "bf16-flash", "lanes": 8})), Ok(both));
    for (wrong, told) in [
        (json!({"like": "abacus"}), "abacus"),
        (json!({"like": null}), "null"),
        (json!({"colour": "blue"}), "colour"),
        (json!({"scores": "f12"}), "f12"),
        (json!({"lanes": -1}), "-1"),
        (json!({"made": 1}), "made"),
    ] {
        let problem = stated(wrong).expect_err("there is none");
        assert!(problem.contains(told), "{problem}");
    }
}

// ---- real dumps in bf16 ---------------------------------------------------------------------------------

const SDPA: &str = "tests/data/engines/tiny-llama2/transformers-sdpa-bf16.safetensors";
const MLX: &str = "tests/data/engines/tiny-llama2/mlx-lm-bf16.safetensors";

fn real(file: &str) -> Dump {
    Dump::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect("it is a sound dump")
}

/// What is told of a dump.
struct Told {
    code: i32,
    json: Value,
}

impl Told {
    fn reason(&self) -> &str {
        self.json["reason"].as_str().unwrap_or_default()
    }

    fn first(&self) -> &Value {
        &self.json["first_divergence"]["tap"]
    }

    fn row(&self, wanted: Site) -> &Value {
        let rows = self.json["results"].as_array().expect("rows");
        let is = |row: &&Value| {
            row["tap"] == json!(wanted.point)
                && row["layer"] == json!(wanted.layer)
                && row["pass"] == json!(wanted.pass)
        };
        rows.iter().find(is).expect("it was compared")
    }

    /// Notes of what an engine does otherwise, at a tap or anywhere.
    fn otherwise(&self, tap: &str) -> Vec<&str> {
        let notes = self.json["notes"].as_array().expect("notes").iter().filter_map(Value::as_str);
        notes.filter(|note| note.contains("this explains") && note.starts_with(tap)).collect()
    }
}

fn audit(clay: &Clay, model: &str, more: &[&str]) -> Told {
    judged(clay, &["audit"], model, more)
}

fn check(clay: &Clay, model: &str, more: &[&str]) -> Told {
    judged(clay, &["check", "--candidate"], model, more)
}

/// Without causes.
fn judged(clay: &Clay, command: &[&str], model: &str, more: &[&str]) -> Told {
    let terminal = Terminal::new();
    let file = terminal.path().join("dump.safetensors");
    clay.save(&file);
    let file = file.display().to_string();
    let words = [command, &[file.as_str(), "--model", model, "--no-report", "--no-causes"], more].concat();
    let (code, report) = terminal.json(&words);
    Told { code, json: report["references"][0].clone() }
}

fn demanded(clay: &Clay, model: &str, profile: &str) -> Told {
    audit(clay, model, &["--rounding", profile])
}

fn stating(dump: &Dump, rounding: Value) -> Clay {
    Clay::of(dump).say(|json| json["producer"]["rounding"] = rounding)
}

#[test]
fn an_engine_with_another_attention_passes_and_it_is_told_what_that_does() {
    for (file, does) in [
        (SDPA, "one fused kernel, which rounds exponentials to bf16"),
        (MLX, "the scale of attention is applied to the queries"),
    ] {
        let told = audit(&Clay::of(&real(file)), "tiny-llama2", &[]);
        assert_eq!(told.code, 0, "{file}: {}", told.reason());
        let notes = told.otherwise("attn_context");
        assert!(notes.len() == 1 && notes[0].contains(does), "{file}: {notes:?}");
        assert!(notes[0].contains("8 of 8 sites"), "{file}: {notes:?}");
    }
}

#[test]
fn an_engine_that_must_round_as_another_does_fails_where_it_does_not() {
    let told = demanded(&Clay::of(&real(SDPA)), "tiny-llama2", "transformers-bf16");
    assert_eq!((told.code, told.first()), (1, &json!("attn_context")), "{}", told.reason());
    // The engine that does passes, and thinned out as this dump is, it does as well.
    let eager = Clay::of(&common::reference_of("tiny-llama2", "transformers-bf16"));
    let thinned = eager.clone().without(&[Point::AttnScores, Point::AttnWeights]);
    for clay in [eager, thinned] {
        let told = demanded(&clay, "tiny-llama2", "transformers-bf16");
        assert_eq!(told.code, 0, "{}", told.reason());
        assert!(told.otherwise("").is_empty(), "{:?}", told.otherwise(""));
    }
}

/// What is held of the same runs differs: demanding the rounding that they have fails none.
#[test]
fn a_dump_without_the_inside_of_its_stages_passes_by_the_rounding_that_it_has() {
    let inside = [Point::AttnScores, Point::AttnWeights, Point::FfnGate, Point::FfnUp, Point::FfnAct];
    for model in common::common_models().map(|model| model.name) {
        let dumps = [
            ("transformers-bf16", "transformers-bf16"),
            ("llama.cpp-f16", "llama.cpp"),
            ("llama.cpp-q8_0", "llama.cpp"),
        ];
        for (dump, profile) in dumps {
            let Some(whole) = shipped(model, dump) else { continue };
            let thinned = Clay::of(&whole).without(&inside);
            let told = demanded(&thinned, model, profile);
            assert_eq!(told.code, 0, "{model} {dump}: {}", told.reason());
        }
    }
}

fn shipped(model: &str, dump: &str) -> Option<Dump> {
    let dumps = xcheck::shipped_models::model(model).expect("it ships").references().expect("they are sound");
    dumps.into_iter().find(|(name, _)| name == dump).map(|(_, dump)| dump)
}

/// Attention in one kernel, everything else as in transformers' other attention.
fn sdpa() -> Value {
    let attention =
        json!({"dots": "f32", "scores": "f32", "softmax": "f32", "attention": "bf16", "flash": true});
    let mut stated = fields(attention);
    stated.insert("like".to_owned(), json!("transformers-bf16"));
    Value::Object(stated)
}

#[test]
fn what_an_engine_states_of_its_attention_needs_no_note() {
    let dump = real(SDPA);
    let told = audit(&stating(&dump, sdpa()), "tiny-llama2", &[]);
    assert_eq!(told.code, 0, "{}", told.reason());
    assert!(told.otherwise("").is_empty(), "{:?}", told.otherwise(""));
    let told = audit(&stating(&dump, json!({"like": "bf16-flash"})), "tiny-llama2", &[]);
    assert_eq!(told.code, 0, "{}", told.reason());
    assert!(told.otherwise("attn_context").is_empty(), "{:?}", told.otherwise(""));
}

/// What it states is true, and our engine rounds otherwise: that is no fault of either.
#[test]
fn an_engine_that_states_another_rms_norm_rounding_than_ours_passes() {
    let rms_norm = |x: &Tensor, norm: &RmsNorm| {
        let rows = x.data().chunks(norm.weight.len());
        let normed = rows.flat_map(|row| {
            let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
            let factor = 1.0 / (squares / row.len() as f64 + f64::from(norm.eps)).sqrt();
            let value = move |(x, gain): (&f32, &f32)| {
                Float::Bf16.round(f64::from(*x) * factor * f64::from(bf16::from_f32(*gain))) as f32
            };
            row.iter().zip(&norm.weight).map(value).collect::<Vec<_>>()
        });
        Tensor::new(x.shape(), normed.collect())
    };
    let numerics = Faulty { base: Base(&Transformers::Bf16), rms_norm: Some(rms_norm), ..Faulty::default() };
    let given = reference("llama.cpp-f32").manifest.passes[0].tokens.clone();
    let dump = recorded(&tiny_llama2(), &numerics, "bf16", &RunInput::greedy(&given, 2), &mut ());
    let told = audit(&stating(&dump, json!({"normed": "f32"})), "tiny-llama2-f32", &[]);
    assert_eq!(told.code, 0, "{}", told.reason());
    assert!(told.otherwise("").is_empty(), "{:?}", told.otherwise(""));
    // Nothing stated, it is found out; the contrary demanded, it fails.
    let told = audit(&Clay::of(&dump), "tiny-llama2-f32", &[]);
    assert_eq!(told.code, 0, "{}", told.reason());
    assert!(told.otherwise("attn_norm").len() == 1, "{:?}", told.otherwise(""));
    let told = demanded(&Clay::of(&dump), "tiny-llama2-f32", "transformers-bf16");
    assert_eq!((told.code, told.first()), (1, &json!("attn_norm")), "{}", told.reason());
}

/// Queries are rounded to the type of the cache, whichever way the profile is named.
#[test]
fn an_engine_like_llama_cpp_follows_the_type_of_its_cache() {
    let scores = |q: &Tensor, k: &Tensor, scale: AttentionScale| {
        let (tokens, heads, width) = (q.shape()[0], q.shape()[1], q.shape()[2]);
        let (keys, key_heads) = (k.shape()[0], k.shape()[1]);
        let score = |head: usize, token: usize, key: usize| {
            let q = &q.data()[(token * heads + head) * width..][..width];
            let k = &k.data()[(key * key_heads + head * key_heads / heads) * width..][..width];
            let products = q.iter().zip(k).map(|(q, k)| f64::from(f16::from_f32(*q)) * f64::from(*k));
            (products.sum::<f64>() * f64::from(scale.factor())) as f32
        };
        let rows = (0..heads).flat_map(|head| (0..tokens).map(move |token| (head, token)));
        let score = &score;
        let data = rows.flat_map(|(head, token)| (0..keys).map(move |key| score(head, token, key)));
        Tensor::new(&[heads, tokens, keys], data.collect())
    };
    static LLAMA_CPP: LlamaCpp = LlamaCpp { kv: KvType::F16 };
    let numerics = Faulty { base: Base(&LLAMA_CPP), scores: Some(scores), ..Faulty::default() };
    let given = reference("llama.cpp-f32").manifest.passes[0].tokens.clone();
    let dump = recorded(&tiny_llama2(), &numerics, "f32", &RunInput::greedy(&given, 2), &mut ());
    let said = |rounding: Value| {
        stating(&dump, rounding).say(|json| {
            json["producer"]["name"] = json!("llama.cpp");
            json["producer"]["settings"] = json!({"kv_cache": "f16"});
        })
    };
    let clay = said(Value::Null);
    let all = [
        audit(&clay, "tiny-llama2-f32", &[]),
        demanded(&clay, "tiny-llama2-f32", "llama.cpp"),
        audit(&said(json!({"like": "llama.cpp"})), "tiny-llama2-f32", &[]),
    ];
    for told in all {
        assert_eq!(told.code, 0, "{}", told.reason());
        assert!(told.otherwise("").is_empty(), "{:?}", told.otherwise(""));
    }
    // Stated otherwise, its values still tell; demanded otherwise, they fail.
    let told = audit(&said(json!({"like": "llama.cpp", "queries": "f32"})), "tiny-llama2-f32", &[]);
    assert_eq!(told.code, 0, "{}", told.reason());
    assert!(!told.otherwise("attn_scores").is_empty(), "the note says what was found");
    let told = demanded(&clay, "tiny-llama2-f32", "f32");
    assert_eq!((told.code, told.first()), (1, &json!("attn_scores")), "{}", told.reason());
}

// ---- faults beside choices ------------------------------------------------------------------------------

const WRONG: Site = site(Point::AttnContext, 1, 0);

/// Rows of heads.
struct Heads {
    values: ArrayValues,
}

impl Heads {
    fn of(dump: &Dump, point: Point) -> Self {
        let values = dump.read(site(point, 1, 0)).expect("it is sound").expect("it holds it");
        assert_eq!(values.shape.len(), 3, "{point}: tokens, heads and their width");
        Self { values }
    }

    fn row(&self, token: usize, head: usize) -> &[f64] {
        let (heads, width) = (self.values.shape[1], self.values.shape[2]);
        &self.values.data[(token * heads + head) * width..][..width]
    }
}

/// What attention of layer 1 makes of the prompt's queries, keys and values, of keys from `first` on.
fn attention(dump: &Dump, first: impl Fn(usize) -> usize) -> Vec<f64> {
    let [q, k, v] = [Point::QRope, Point::KRope, Point::V].map(|point| Heads::of(dump, point));
    let (tokens, heads, width) = (q.values.shape[0], q.values.shape[1], q.values.shape[2]);
    let group = heads / k.values.shape[1];
    let mut context = Vec::new();
    for token in 0..tokens {
        for head in 0..heads {
            let keys = first(token)..token + 1;
            let score = |key: usize| {
                let products = q.row(token, head).iter().zip(k.row(key, head / group)).map(|(q, k)| q * k);
                products.sum::<f64>() / (width as f64).sqrt()
            };
            let exponentials: Vec<f64> = keys.clone().map(|key| score(key).exp()).collect();
            let sum: f64 = exponentials.iter().sum();
            context.extend((0..width).map(|at| {
                let terms =
                    keys.clone().zip(&exponentials).map(|(key, e)| e / sum * v.row(key, head / group)[at]);
                terms.sum::<f64>()
            }));
        }
    }
    context
}

/// The dump says nothing, or the truth, of its rounding: its layers' contexts are what they are.
fn both_ways(change: impl Fn(&mut Vec<f64>)) -> [Told; 2] {
    let dump = real(SDPA);
    [Clay::of(&dump), stating(&dump, sdpa())]
        .map(|clay| audit(&clay.edit(WRONG, &change), "tiny-llama2", &[]))
}

#[track_caller]
fn assert_found(change: impl Fn(&mut Vec<f64>)) {
    for told in both_ways(change) {
        assert_eq!(told.row(WRONG)["verdict"], "fail", "{}", told.row(WRONG));
        let first = &told.json["first_divergence"];
        assert_eq!((told.code, &first["tap"], &first["layer"]), (1, &json!("attn_context"), &json!(1)));
    }
}

#[track_caller]
fn assert_taken(change: impl Fn(&mut Vec<f64>)) {
    for told in both_ways(change) {
        assert_eq!(told.row(WRONG)["verdict"], "pass", "{}", told.row(WRONG));
    }
}

#[test]
fn an_attention_context_that_is_too_large_is_found_in_every_rounding_profile() {
    assert_found(|context| context.iter_mut().for_each(|value| *value *= 1.03));
    assert_taken(|context| context.iter_mut().for_each(|value| *value *= 1.0));
}

#[test]
fn exchanged_attention_heads_are_found_in_every_rounding_profile() {
    let dump = real(SDPA);
    let width = Heads::of(&dump, Point::QRope).values.shape[2];
    let hidden = Heads::of(&dump, Point::QRope).values.shape[1] * width;
    let exchange = |context: &mut Vec<f64>| {
        for row in context.chunks_mut(hidden) {
            let (one, other) = row.split_at_mut(width);
            one.swap_with_slice(&mut other[..width]);
        }
    };
    assert_found(exchange);
    assert_taken(|context| {
        exchange(context);
        exchange(context);
    });
}

#[test]
fn a_softmax_over_one_key_less_is_found_in_every_rounding_profile() {
    let dump = real(SDPA);
    let (whole, without) = (attention(&dump, |_| 0), attention(&dump, |token| usize::from(token == 8)));
    assert_ne!(whole, without);
    assert_found(|context| *context = without.clone());
    // The same computation over all keys, rounded to bf16 once: what another honest kernel makes.
    assert_taken(|context| *context = whole.clone());
}

// ---- autocast -------------------------------------------------------------------------------------------

const AUTOCAST: [(&str, &str); 3] = [("tiny-llama3", "bf16"), ("tiny-qwen3", "f16"), ("tiny-gemma3", "bf16")];

fn autocast(model: &str, dtype: &str) -> Clay {
    Clay::of(&real(&format!("tests/data/engines/{model}/transformers-autocast-{dtype}.safetensors")))
}

/// The same, of which nobody has said that it is autocast; nor, if it says nothing, that it is f32.
fn unsaid(clay: Clay, says_f32: bool) -> Clay {
    clay.say(|json| {
        json["producer"]["rounding"] = Value::Null;
        let settings = json["producer"]["settings"].as_object_mut().expect("settings");
        settings.remove("autocast");
        if !says_f32 {
            settings.remove("dtype");
            settings.remove("kv_cache");
        }
    })
}

#[test]
fn autocast_passes_where_it_is_stated_and_where_values_show_it() {
    for (model, dtype) in AUTOCAST {
        let whole = autocast(model, dtype);
        let stored = whole.clone().stored_in(DType::F32);
        let said = [
            whole.clone(),
            unsaid(whole.clone(), true),
            unsaid(whole.clone(), false),
            unsaid(stored.clone(), false),
        ];
        for (clay, shows) in said.iter().zip([false, true, true, true]) {
            let told = check(clay, &format!("{model}-hf"), &[]);
            assert_eq!(told.code, 0, "{model}: {}", told.reason());
            assert_eq!(told.json["notes"].to_string().contains("like torch's autocast"), shows, "{model}");
        }
        // What says f32, and stores f32, must compute in it; and so must what is asked to.
        for (clay, more) in [(unsaid(stored, true), vec![]), (whole, vec!["--rounding", "transformers"])] {
            assert_eq!(check(&clay, &format!("{model}-hf"), &more).code, 1, "{model}");
        }
    }
}

#[test]
fn autocast_passes_where_little_of_it_is_held() {
    for (model, dtype) in AUTOCAST {
        for held in [&[Point::Embed, Point::BlockOut, Point::Logits][..], &[Point::Logits]] {
            let told = check(&autocast(model, dtype).with_only(held), &format!("{model}-hf"), &[]);
            assert_eq!(told.code, 0, "{model} {held:?}: {}", told.reason());
        }
        // From the tokens on, through what multiplies the embeddings.
        let held =
            [Point::AttnNorm, Point::Q, Point::K, Point::V, Point::AttnOut, Point::FfnOut, Point::BlockOut];
        let told = check(&autocast(model, dtype).with_only(&held), &format!("{model}-hf"), &[]);
        assert_eq!(told.code, 0, "{model} {held:?}: {}", told.reason());
        let held = [Point::Embed, Point::BlockOut, Point::Logits];
        let told =
            check(&unsaid(autocast(model, dtype), false).with_only(&held), &format!("{model}-hf"), &[]);
        assert_eq!(told.code, 0, "{model}: {}", told.reason());
    }
}

/// A stream that is rounded, too, or a product that is not what its operands make.
#[test]
fn a_mistake_under_autocast_is_found_where_it_is() {
    for (model, dtype) in AUTOCAST {
        let float = if dtype == "bf16" { Float::Bf16 } else { Float::F16 };
        let step = 4.0 * if dtype == "bf16" { 1.0 / 256.0 } else { 1.0 / 2048.0 };
        let rounded = |values: &mut Vec<f64>| values.iter_mut().for_each(|x| *x = float.round(*x));
        let moved = |values: &mut Vec<f64>| values[7] = float.round(values[7] * (1.0 + step));
        for (clay, wrong) in [
            (autocast(model, dtype).edit(site(Point::BlockOut, 1, 0), rounded), site(Point::BlockOut, 1, 0)),
            (autocast(model, dtype).edit(site(Point::Q, 1, 0), moved), site(Point::Q, 1, 0)),
            (autocast(model, dtype).edit(site(Point::AttnOut, 0, 1), moved), site(Point::AttnOut, 0, 1)),
        ] {
            let told = check(&clay, &format!("{model}-hf"), &[]);
            assert_eq!(told.code, 1, "{model}: {wrong}");
            assert_eq!(told.row(wrong)["verdict"], "fail", "{model}: {wrong}");
        }
    }
}

// ---- torch.compile --------------------------------------------------------------------------------------

const COMPILED: [(&str, &str); 2] = [("tiny-gemma3", "bf16"), ("tiny-qwen3", "f16")];

fn compiled(model: &str, dtype: &str) -> Clay {
    Clay::of(&real(&format!("tests/data/engines/{model}/transformers-compiled-{dtype}.safetensors")))
}

#[test]
fn fused_kernels_that_round_nothing_inside_pass_whatever_is_recorded() {
    let norms = [Point::AttnNorm, Point::FfnNorm, Point::FinalNorm];
    let stream = [Point::Embed, Point::BlockOut, Point::LastLogits];
    let products =
        [Point::AttnNorm, Point::Q, Point::AttnOut, Point::FfnNorm, Point::FfnOut, Point::BlockOut];
    for (model, dtype) in COMPILED {
        let whole = compiled(model, dtype);
        let held = |points: &[Point]| whole.clone().with_only(points);
        let wide = whole.clone().stored_in(DType::F32);
        for clay in [whole.clone(), wide, held(&norms), held(&stream), held(&products)] {
            let told = check(&clay, &format!("{model}-hf"), &[]);
            assert_eq!(told.code, 0, "{model}: {}", told.reason());
        }
    }
}

/// What a kernel may leave unrounded is less than a step of what it reads: a value, a row or all values that are further off
/// are found.
#[test]
fn a_mistake_in_such_a_kernel_is_found_where_it_is() {
    let points = [Point::AttnResidual, Point::BlockOut, Point::AttnNorm, Point::FfnNorm, Point::QRope];
    // One value; all of them; and a step towards zero, which is nothing by itself.
    let mistakes = &[(7..8, 6.0), (0..usize::MAX, 2.0), (0..usize::MAX, -1.0)];
    let of_model = |model| {
        let of_point = move |point| mistakes.iter().map(move |wrong| (model, point, wrong));
        points.into_iter().flat_map(of_point)
    };
    for ((model, dtype), point, (places, steps)) in one_of(4, COMPILED.into_iter().flat_map(of_model)) {
        let (float, unit) = if dtype == "bf16" { (Float::Bf16, 256.0) } else { (Float::F16, 2048.0) };
        let wrong = |values: &mut Vec<f64>| {
            let places = places.start..places.end.min(values.len());
            values[places].iter_mut().for_each(|x| *x = float.round(*x * (1.0 + steps / unit)));
        };
        let clay = compiled(model, dtype).edit(site(point, 1, 0), wrong);
        let told = check(&clay, &format!("{model}-hf"), &[]);
        assert_eq!(told.code, 1, "{model}: {point}, {steps} steps");
        assert_eq!(told.row(site(point, 1, 0))["verdict"], "fail", "{model}: {point}, {steps} steps");
    }
}

// ---- f32 ------------------------------------------------------------------------------------------------

/// Products of matrices whose operands are rounded, and added up in f64.
fn product(x: &Tensor, w: &Matrix, of_x: impl Fn(f32) -> f64, of_w: impl Fn(f32) -> f64) -> Tensor {
    let rows: Vec<Vec<f64>> = (0..w.rows)
        .map(|row| {
            let mut weights = vec![0.0; w.cols];
            decode_matrix_row(w, row, &mut weights);
            weights.into_iter().map(&of_w).collect()
        })
        .collect();
    let mut data = Vec::new();
    for x in x.data().chunks(w.cols) {
        let x: Vec<f64> = x.iter().copied().map(&of_x).collect();
        data.extend(rows.iter().map(|row| row.iter().zip(&x).map(|(w, x)| w * x).sum::<f64>() as f32));
    }
    Tensor::new(&[data.len() / w.rows, w.rows], data)
}

/// A dump by an engine whose products these are, and which says of itself that it computes in f32.
fn by(linear: fn(&Tensor, &Matrix) -> Tensor) -> Clay {
    let numerics = Faulty { base: Base(&Transformers::F32), linear: Some(linear), ..Faulty::default() };
    let given = reference("llama.cpp-f32").manifest.passes[0].tokens.clone();
    Clay::of(&recorded(&tiny_llama2(), &numerics, "f32", &RunInput::greedy(&given, 2), &mut ()))
}

fn whole(x: f32) -> f64 {
    x.into()
}

fn tf32(x: f32) -> f64 {
    Float::Tf32.round(x.into())
}

#[test]
fn products_in_f32_pass_and_nothing_is_told_of_them() {
    let clay = by(|x, w| product(x, w, whole, whole));
    for told in [audit(&clay, "tiny-llama2-f32", &[]), demanded(&clay, "tiny-llama2-f32", "f32")] {
        assert_eq!(told.code, 0, "{}", told.reason());
        assert!(told.otherwise("").is_empty(), "{:?}", told.otherwise(""));
    }
}

/// As a kernel does by `cvt.rna`: a tie goes away from zero.
fn tf32_away(x: f32) -> f64 {
    f32::from_bits((x.to_bits() + 0x1000) & !0x1FFF).into()
}

/// As a unit does that is handed an f32.
fn tf32_cut(x: f32) -> f64 {
    f32::from_bits(x.to_bits() & !0x1FFF).into()
}

#[test]
fn products_in_tf32_pass_with_a_note_and_fail_where_another_is_demanded() {
    type Product = fn(&Tensor, &Matrix) -> Tensor;
    let ways: [(&str, Product); 3] = [
        ("tf32", |x, w| product(x, w, tf32, tf32)),
        ("tf32-away", |x, w| product(x, w, tf32_away, tf32_away)),
        ("tf32-cut", |x, w| product(x, w, tf32_cut, tf32_cut)),
    ];
    for (way, linear) in ways {
        let clay = by(linear);
        let told = audit(&clay, "tiny-llama2-f32", &[]);
        assert_eq!(told.code, 0, "{way}: {}", told.reason());
        for tap in ["q:", "attn_out:", "ffn_out:", "logits:"] {
            let notes = told.otherwise(tap);
            assert!(
                !notes.is_empty() && notes.iter().all(|note| note.contains("TF32")),
                "{way} {tap} {notes:?}"
            );
        }
        assert_eq!(demanded(&clay, "tiny-llama2-f32", way).code, 0, "{way}");
        let others = ["f32", "tf32", "tf32-away", "tf32-cut"].into_iter().filter(|other| *other != way);
        for other in one_of(3, others) {
            let told = demanded(&clay, "tiny-llama2-f32", other);
            assert_eq!((told.code, told.first()), (1, &json!("q")), "{way} {other}: {}", told.reason());
        }
    }
}

/// What is cut off in some layers and rounded in others is no way to compute.
fn product_cut_off_in_one(x: &Tensor, w: &Matrix) -> Tensor {
    if is_the_one(x, w) { product(x, w, tf32_cut, tf32_cut) } else { product(x, w, tf32, tf32) }
}

#[test]
fn truncated_operands_in_one_layer_alone_are_no_rounding_profile() {
    assert_fails_for_the_one(product_cut_off_in_one);
}

/// Whether it is the product of one matrix, for one token at a time.
fn is_the_one(x: &Tensor, w: &Matrix) -> bool {
    static ONE: LazyLock<Matrix> = LazyLock::new(|| {
        let model = tiny_llama2();
        let all = model.matrices();
        let named = all.iter().find(|(name, _)| name.contains("ffn_down") && name.ends_with("layer 1"));
        named
            .unwrap_or_else(|| panic!("{:?}", all.iter().map(|(name, _)| name).collect::<Vec<_>>()))
            .1
            .clone()
    });
    *w == *ONE && x.rows() == 1
}

#[track_caller]
fn assert_fails_for_the_one(linear: fn(&Tensor, &Matrix) -> Tensor) {
    let told = audit(&by(linear), "tiny-llama2-f32", &[]);
    let first = &told.json["first_divergence"];
    let is_there = (&first["tap"], &first["layer"]) == (&json!("ffn_out"), &json!(1));
    assert!(told.code == 1 && is_there, "{}", told.reason());
    assert!(told.reason().contains("which does not hold in 3 other layers"), "{}", told.reason());
}

fn product_of_one(x: &Tensor, w: &Matrix) -> Tensor {
    if is_the_one(x, w) { product(x, w, tf32, tf32) } else { product(x, w, whole, whole) }
}

#[test]
fn operands_of_fewer_bits_in_one_layer_alone_are_no_rounding_profile() {
    assert_fails_for_the_one(product_of_one);
}

/// Queries and keys, or weights and values: both meet in a matrix unit.
#[test]
fn attention_in_tf32_is_explained_if_both_operands_are_rounded_and_else_is_not() {
    const N: usize = 64;
    const D: usize = 32;
    let wave = |count: usize, step: f32| (0..count).map(|at| (at as f32 * step).sin()).collect::<Vec<f32>>();
    let (q, k, v) = (wave(N * D, 0.37), wave(N * D, 0.73), wave(N * D, 1.13));
    let weights: Vec<f32> = wave(N * N, 0.59).into_iter().map(|x| x.abs() / N as f32).collect();
    let traced = TracedNumerics::new(&numerics::F32, Profile::of(&numerics::F32));
    let [of_q, of_k, of_v] = [&q, &k, &v].map(|data| Tensor::new(&[N, 1, D], data.clone()));
    let own = [
        traced.scores(&of_q, &of_k, AttentionScale::Products(0.25)),
        traced.context(&Tensor::new(&[1, N, N], weights.clone()), &of_v),
    ];
    let sum = |one: &dyn Fn(usize) -> f64, other: &dyn Fn(usize) -> f64, n: usize| -> f64 {
        (0..n).map(|at| one(at) * other(at)).sum()
    };
    let is_explained = |of: [fn(f32) -> f64; 2]| {
        let score = |at: usize| {
            let (t, s) = (at / N * D, at % N * D);
            (0.25 * sum(&|d| of[0](q[t + d]), &|d| of[1](k[s + d]), D)) as f32
        };
        let mean = |at: usize| {
            let (t, d) = (at / D * N, at % D);
            sum(&|s| of[0](weights[t + s]), &|s| of[1](v[s * D + d]), N) as f32
        };
        let made = [(0..N * N).map(score).collect::<Vec<f32>>(), (0..N * D).map(mean).collect()];
        let judged = own.iter().zip(made).map(|(own, made)| {
            let dump = Tensor::new(own.shape(), made);
            let sides = [&View::from(&dump), &View::from(own)];
            let compared =
                ResultPair { traced: own, sides, stored: None, is_double: false, sees: &|_| 0..usize::MAX };
            exact::judge(&compared, true).expect("one operation").dump.is_explained()
        });
        judged.collect::<Vec<bool>>()
    };
    assert_eq!(is_explained([whole, whole]), [true, true]);
    for round in [tf32, tf32_away, tf32_cut] {
        assert_eq!(is_explained([round, round]), [true, true]);
        assert_eq!(is_explained([whole, round]), [false, false]);
    }
    // Rounded to nearest, queries and weights alone are those of attention in f16.
    assert_eq!(is_explained([tf32_cut, whole]), [false, false]);
}

/// The bits that storing takes from our own results are no error of them, however many there are.
#[test]
fn many_results_that_are_stored_in_fewer_bits_show_no_direction() {
    let (tokens, inputs, outputs) = (256, 32, 4096);
    let wave = |count: usize, step: f32| (0..count).map(|at| (at as f32 * step).sin()).collect::<Vec<f32>>();
    let data: Vec<u8> = wave(outputs * inputs, 0.37).into_iter().flat_map(f32::to_le_bytes).collect();
    let stored = StoredTensor { dtype: DType::F32, shape: vec![outputs, inputs], data: data.into() };
    let (x, w) = (Tensor::new(&[tokens, inputs], wave(tokens * inputs, 0.73)), Matrix::from_stored(&stored));
    let traced = TracedNumerics::new(&numerics::F32, Profile::of(&numerics::F32));
    let own = traced.linear(&x, &w.expect("a matrix"));
    for (float, factor) in [(Float::Bf16, 1.0), (Float::F16, 1.0), (Float::Bf16, 1.02), (Float::F16, 1.02)] {
        let dump = own.clone().map(|value| float.round(f64::from(value) * factor) as f32);
        let compared = ResultPair {
            traced: &own,
            sides: [&View::from(&dump), &View::from(&own)],
            stored: Some(float),
            is_double: false,
            sees: &|_| 0..usize::MAX,
        };
        let judged = exact::judge(&compared, false).expect("one operation");
        assert!(judged.engine.is_explained(), "{float:?} {:?}", judged.engine.bias);
        assert_eq!(judged.dump.is_explained(), factor == 1.0, "{float:?} {:?}", judged.dump.bias);
    }
}

#[test]
fn model_weights_rounded_through_f16_fail_demanded_or_not() {
    let clay = by(|x, w| product(x, w, whole, |w| f16::from_f32(w).into()));
    for told in [audit(&clay, "tiny-llama2-f32", &[]), demanded(&clay, "tiny-llama2-f32", "f32")] {
        assert_eq!((told.code, told.first()), (1, &json!("q")), "{}", told.reason());
    }
}
