//! A server on this machine that answers in five protocols what our own engine computes of a model that ships, and can be told to
//! be wrong, or to be right in another way.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use xcheck::engine::Engine;
use xcheck::model::{LoadedModel, WeightScheme};
use xcheck::numerics::{F32, Numerics, PerturbedResults, QuantisedWeights, Transformers};
use xcheck::ops::log_probabilities::log_probabilities;
use xcheck::ops::sampling::argmax;
use xcheck::probe::ServerProtocol;
use xcheck::tokenizer::Tokenizer;

use crate::common::variant;

/// The model that is served.
pub const MODEL: &str = "tiny-llama2";

/// How a server is other than the plain one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    Plain,
    // Wrong:
    Log10,
    ShiftedByOne,
    StalePrefix,
    TruncatedTop,
    Renormalised,
    BosTwice,
    Sixteenth,
    EveryHundredth,
    OneTokenLeftOut,
    OtherTemplate,
    /// Weights in FP8, with a scale for each row.
    Fp8Weights,
    /// The second likeliest token is told in the first answer alone.
    SecondLeftOut,
    /// Log-probabilities are told in the first answer alone.
    SaysLessLater,
    /// What was answered before is refused.
    RefusesLater,
    // Right:
    Bf16,
    Rounds,
    FourDecimals,
    /// Log-probabilities are computed in `f32`, as torch does.
    SumsInF32,
    TellsLess,
    /// Of the prompt, what begins it is not echoed.
    EchoesWords,
    /// The same, and the token behind an echo has no text, as an end has none.
    EchoesSilence,
    /// The second and the fourth likeliest of a list have no text: they are one key of an object.
    NamesFew,
    /// Too few decimals to tell models apart.
    OneDecimal,
    /// There are conversations alone.
    Talks,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub authorization: Option<String>,
}

/// A running server, which ends with the test.
pub struct Fake {
    pub url: String,
    pub seen: Arc<Mutex<Vec<Seen>>>,
}

impl Fake {
    pub fn new(kind: ServerProtocol, way: Way) -> Self {
        Self::answering(move || {
            let desk = Desk::new(kind, way);
            move |path: &str, body: &Value| desk.answer(path, body)
        })
    }

    /// One that answers each request by what is made in its own thread: a status and a text.
    pub fn answering<A: Fn(&str, &Value) -> (u16, String)>(
        make: impl FnOnce() -> A + Send + 'static,
    ) -> Self {
        Self::raw(move |listener, seen| {
            let answer = make();
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let Some((request, body)) = read(&stream) else { continue };
                seen.lock().expect("nobody panicked").push(request.clone());
                let (status, text) = answer(&request.path, &body);
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    text.len()
                );
                _ = stream.write_all((head + &text).as_bytes());
            }
        })
    }

    /// One that does as it likes with connections.
    pub fn raw(serve: impl FnOnce(TcpListener, Arc<Mutex<Vec<Seen>>>) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let ours = seen.clone();
        thread::spawn(move || serve(listener, ours));
        Self { url, seen }
    }

    /// How many requests came.
    pub fn count(&self) -> usize {
        self.seen.lock().expect("nobody panicked").len()
    }
}

/// log softmax in `f32`: the largest is subtracted first, and vectors of eight are added up.
fn in_f32(logits: &[f32], ids: &[u32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let lane =
        |lane: usize| logits.iter().skip(lane).step_by(8).map(|logit| (logit - max).exp()).sum::<f32>();
    let sum: f32 = (0..8).map(lane).sum();
    ids.iter().map(|&id| f64::from(logits[id as usize] - max - sum.ln())).collect()
}

/// A request and its document.
pub fn read(stream: &TcpStream) -> Option<(Seen, Value)> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let (mut length, mut authorization) = (0, None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim();
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok()?,
            "authorization" => authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((Seen { path, authorization }, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

/// A token and its log-probability, and the likeliest in its place.
#[derive(Clone)]
struct Told {
    id: u32,
    logprob: f64,
    top: Vec<(u32, f64)>,
}

/// Who answers: the model, and what is remembered.
struct Desk {
    kind: ServerProtocol,
    way: Way,
    model: LoadedModel,
    quantised: QuantisedWeights,
    tokenizer: Box<dyn Tokenizer>,
    answered: RefCell<HashSet<Vec<u32>>>,
    /// Prompts of which more than one token was asked for.
    continued: RefCell<HashSet<Vec<u32>>>,
    known: RefCell<HashMap<Vec<u32>, Vec<f32>>>,
    count: Cell<u64>,
    /// Whether this is not answered.
    refuses: Cell<bool>,
}

impl Desk {
    fn new(kind: ServerProtocol, way: Way) -> Self {
        let files = variant("tiny-llama2-hf");
        let model = files.load().expect("it loads");
        let roundings = WeightScheme::Fp8Channel.roundings(&*model.model);
        let quantised = QuantisedWeights::over(Box::new(F32), roundings);
        Self {
            kind,
            way,
            model,
            quantised,
            tokenizer: files.tokenizer().expect("it is sound").expect("there is one"),
            answered: RefCell::default(),
            continued: RefCell::default(),
            known: RefCell::default(),
            count: Cell::new(0),
            refuses: Cell::new(false),
        }
    }

    fn encode(&self, text: &str, special: bool) -> Vec<u32> {
        let ids = self.tokenizer.encode(text, special).expect("it can be encoded");
        match self.way {
            Way::BosTwice if special => [vec![ids[0]], ids].concat(),
            _ => ids,
        }
    }

    fn text(&self, ids: &[u32]) -> String {
        // Behind another token, so that no space is left out.
        let before = self.tokenizer.encode("a", false).expect("it can be encoded");
        let all = self.tokenizer.decode_lossy(&[&before, ids].concat()).expect("they are ids");
        all.strip_prefix('a').expect("it begins so").to_owned()
    }

    /// What it computes with; `noisy` where it rounds otherwise each time.
    fn numerics<'n>(&'n self, noisy: &'n PerturbedResults) -> &'n dyn Numerics {
        match self.way {
            Way::Fp8Weights => &self.quantised,
            Way::Bf16 => &Transformers::Bf16,
            Way::Rounds => noisy,
            _ => &F32,
        }
    }

    fn noisy(&self) -> PerturbedResults<'static> {
        PerturbedResults::new(&F32, 1000 + self.count.get())
    }

    fn engine<'e>(&'e self, noisy: &'e PerturbedResults, tokens: usize) -> Engine<'e> {
        Engine::new(&*self.model.model, self.numerics(noisy), tokens).expect("it fits")
    }

    /// The logits after the last of these tokens, of which the engine reads what it has not.
    fn last_logits(&self, engine: &mut Engine, tokens: &[u32]) -> Vec<f32> {
        let known = self.known.borrow().get(tokens).cloned();
        if let Some(known) = known.filter(|_| self.way != Way::Rounds) {
            return known;
        }
        let unread = &tokens[engine.position()..];
        let row = engine.read(unread, &mut ()).expect("they are ids").data().to_vec();
        self.known.borrow_mut().insert(tokens.to_vec(), row.clone());
        row
    }

    fn told(&self, logits: &[f32], id: u32, k: usize) -> Told {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        let k = if self.way == Way::TruncatedTop { k / 2 } else { k };
        order.truncate(k);
        let temperature = if self.way == Way::Sixteenth { 16.0 } else { 1.0 };
        let of = |ids: &[u32], closed| match self.way {
            Way::SumsInF32 => in_f32(logits, ids),
            _ => log_probabilities(logits, ids, closed, temperature),
        };
        let values = of(&order, self.way == Way::Renormalised);
        let written = |value: f64| {
            let value = f64::from(value as f32);
            match self.way {
                Way::Log10 => value / std::f64::consts::LN_10,
                Way::FourDecimals => (value * 1e4).round() / 1e4,
                Way::OneDecimal => (value * 10.0).round() / 10.0,
                _ => value,
            }
        };
        let own =
            order.iter().position(|known| *known == id).map_or_else(|| of(&[id], false)[0], |at| values[at]);
        Told {
            id,
            logprob: written(own),
            top: order.into_iter().zip(values.into_iter().map(written)).collect(),
        }
    }

    /// What a prefix is that was kept of another request.
    fn read_as(&self, prompt: &[u32], cold: bool) -> Vec<u32> {
        let mut read = prompt.to_vec();
        let was_answered = !self.answered.borrow_mut().insert(prompt.to_vec());
        if self.way == Way::StalePrefix && was_answered && !cold {
            read[1..prompt.len() / 2].reverse();
        }
        if self.way == Way::OneTokenLeftOut && prompt.len() > 4 {
            read[3] = read[2];
        }
        read
    }

    fn generate(&self, prompt: &[u32], n: usize, k: usize, cold: bool) -> Vec<Told> {
        let mut tokens = self.read_as(prompt, cold);
        let mut all = Vec::new();
        let is_later = n > 1 && !self.continued.borrow_mut().insert(prompt.to_vec());
        self.refuses.set(is_later && self.way == Way::RefusesLater);
        let noisy = self.noisy();
        let mut engine = self.engine(&noisy, tokens.len() + n);
        for _ in 0..n {
            let row = self.last_logits(&mut engine, &tokens);
            let mut id = argmax(&row) as u32;
            if self.way == Way::EveryHundredth && self.count.get() % 100 == self.wrong_one() {
                id = (id + 1) % row.len() as u32;
            }
            let mut told = self.told(&row, id, k);
            match self.way {
                Way::SecondLeftOut if is_later && told.top.len() > 1 => drop(told.top.remove(1)),
                Way::SaysLessLater if is_later => (told.logprob, told.top) = (f64::NAN, Vec::new()),
                _ => {}
            }
            all.push(told);
            tokens.push(id);
        }
        all
    }

    /// What is told of each token of a prompt but the first.
    fn forced(&self, prompt: &[u32], k: usize) -> Vec<Told> {
        let noisy = self.noisy();
        let mut engine = self.engine(&noisy, prompt.len());
        let mut told: Vec<Told> = (1..prompt.len())
            .map(|end| self.told(&self.last_logits(&mut engine, &prompt[..end]), prompt[end], k))
            .collect();
        if self.way == Way::ShiftedByOne {
            let mut values: Vec<f64> = told.iter().map(|told| told.logprob).collect();
            values.rotate_right(1);
            told.iter_mut().zip(values).for_each(|(told, value)| told.logprob = value);
        }
        told
    }

    fn prompt(&self, value: &Value) -> Vec<u32> {
        match value {
            Value::String(text) => self.encode(text, true),
            ids => ids.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect(),
        }
    }

    fn answer(&self, path: &str, body: &Value) -> (u16, String) {
        self.count.set(self.count.get() + 1);
        let found = match self.kind {
            ServerProtocol::LlamaServer => self.llama_server(path, body),
            ServerProtocol::Vllm => self.vllm(path, body),
            ServerProtocol::Sglang => self.sglang(path, body),
            ServerProtocol::Tgi => self.tgi(path, body),
            ServerProtocol::Openai => self.openai(path, body),
            ServerProtocol::Ollama => self.ollama(path, body),
        };
        match found {
            _ if self.refuses.take() => (400, json!({"error": "not again"}).to_string()),
            Some(Value::String(text)) => (200, text),
            Some(value) => (200, value.to_string()),
            None => (404, json!({"error": "not found"}).to_string()),
        }
    }

    /// A conversation as the model's family writes it, or as another does.
    fn rendered(&self, messages: &Value) -> Option<String> {
        let said = |message: &Value| message["content"].as_str().map(str::to_owned);
        let all: Vec<String> = messages.as_array()?.iter().map(said).collect::<Option<_>>()?;
        Some(match self.way {
            Way::OtherTemplate => {
                all.iter().map(|text| format!("<|im_start|>user\n{text}<|im_end|>\n")).collect()
            }
            _ => format!("[INST] {} [/INST]", all.join("\n")),
        })
    }

    /// Which answer of a hundred is wrong: one of those that are asked for again.
    fn wrong_one(&self) -> u64 {
        match self.kind {
            ServerProtocol::LlamaServer => 97,
            ServerProtocol::Vllm => 28,
            ServerProtocol::Sglang => 23,
            ServerProtocol::Tgi => 18,
            ServerProtocol::Openai => 13,
            ServerProtocol::Ollama => 8,
        }
    }

    fn tells_less(&self) -> bool {
        self.way == Way::TellsLess
    }

    fn llama_server(&self, path: &str, body: &Value) -> Option<Value> {
        let named =
            |&(id, value): &(u32, f64)| json!({"id": id, "token": self.text(&[id]), "logprob": value});
        let one = |told: &Told| {
            let mut entry = named(&(told.id, told.logprob));
            entry["top_logprobs"] = told.top.iter().map(named).collect();
            entry
        };
        match path {
            "/props" => {
                Some(json!({"default_generation_settings": {}, "model_path": MODEL, "build_info": "b1"}))
            }
            "/tokenize" if !self.tells_less() => {
                Some(json!({"tokens": self.encode(body["content"].as_str()?, body["add_special"] == true)}))
            }
            "/apply-template" if !self.tells_less() => {
                Some(json!({"prompt": self.rendered(&body["messages"])?}))
            }
            "/completion" => {
                let (n, k) = (body["n_predict"].as_u64()? as usize, body["n_probs"].as_u64()? as usize);
                let told = self.generate(&self.prompt(&body["prompt"]), n, k, body["cache_prompt"] == false);
                let piece = |told: &[Told]| {
                    let ids: Vec<u32> = told.iter().map(|told| told.id).collect();
                    let mut piece = json!({"content": self.text(&ids), "tokens": ids});
                    if !self.tells_less() {
                        piece["completion_probabilities"] = told.iter().map(one).collect();
                    }
                    piece
                };
                Some(match body["stream"] == true {
                    true => events(told.chunks(1).map(piece)),
                    false => piece(&told),
                })
            }
            _ => None,
        }
    }

    fn vllm(&self, path: &str, body: &Value) -> Option<Value> {
        match path {
            "/version" => Some(json!({"version": "0.32.0"})),
            "/v1/models" => Some(json!({"data": [{"id": MODEL}]})),
            "/tokenize" if body["messages"].is_array() => {
                Some(json!({"tokens": self.encode(&self.rendered(&body["messages"])?, true)}))
            }
            "/tokenize" => Some(
                json!({"tokens": self.encode(body["prompt"].as_str()?, body["add_special_tokens"] == true)}),
            ),
            "/v1/completions" => {
                let prompt = self.prompt(&body["prompt"]);
                let mut of_prompt = Value::Null;
                if let Some(k) = body["prompt_logprobs"].as_u64().filter(|_| !self.tells_less()) {
                    let row = |told: Told| {
                        let all = told.top.iter().copied().chain([(told.id, told.logprob)]);
                        all.map(|(id, value)| {
                            (id.to_string(), json!({"logprob": value, "decoded_token": "x"}))
                        })
                        .collect::<Value>()
                    };
                    of_prompt = [Value::Null]
                        .into_iter()
                        .chain(self.forced(&prompt, k as usize).into_iter().map(row))
                        .collect();
                }
                let n = body["max_tokens"].as_u64()? as usize;
                let k = body["logprobs"].as_u64().unwrap_or(0) as usize;
                let told = self.generate(&prompt, n, k, body["cache_salt"].is_string());
                let name = |id: u32| format!("token_id:{id}");
                let piece = |told: &[Told]| {
                    let ids: Vec<u32> = told.iter().map(|told| told.id).collect();
                    let top = |told: &Told| {
                        told.top.iter().map(|(id, value)| (name(*id), json!(value))).collect::<Value>()
                    };
                    json!({"choices": [{"text": self.text(&ids), "prompt_logprobs": of_prompt, "logprobs": {
                        "tokens": ids.iter().map(|id| name(*id)).collect::<Value>(),
                        "token_logprobs": told.iter().map(|told| json!(told.logprob)).collect::<Value>(),
                        "top_logprobs": told.iter().map(top).collect::<Value>(),
                    }}]})
                };
                Some(match body["stream"] == true {
                    true => events(told.chunks(3).map(piece)),
                    false => piece(&told),
                })
            }
            _ => None,
        }
    }

    fn sglang(&self, path: &str, body: &Value) -> Option<Value> {
        let named = |&(id, value): &(u32, f64)| json!([value, id, null]);
        match path {
            "/get_model_info" => Some(json!({"model_path": MODEL, "version": "0.5"})),
            "/tokenize" if !self.tells_less() => Some(
                json!({"tokens": self.encode(body["prompt"].as_str()?, body["add_special_tokens"] == true)}),
            ),
            "/generate" => {
                let prompt = self.prompt(body.get("input_ids").or(body.get("text"))?);
                let (n, k) =
                    (body["sampling_params"]["max_new_tokens"].as_u64()?, body["top_logprobs_num"].as_u64()?);
                let told = self.generate(&prompt, n as usize, k as usize, false);
                let lists = |told: &[Told]| {
                    let own: Value = told.iter().map(|told| named(&(told.id, told.logprob))).collect();
                    let tops: Value =
                        told.iter().map(|told| told.top.iter().map(named).collect::<Value>()).collect();
                    (own, tops)
                };
                let piece = |end: usize| {
                    let ids: Vec<u32> = told[..end].iter().map(|told| told.id).collect();
                    let (own, tops) = lists(&told[..end]);
                    let mut answer = json!({"text": self.text(&ids), "meta_info": {"output_token_logprobs": own, "output_top_logprobs": tops}});
                    if body["logprob_start_len"] == 0 {
                        let (own, tops) = lists(&self.forced(&prompt, k as usize));
                        let before = |first: Value, rest: Value| {
                            [first]
                                .into_iter()
                                .chain(rest.as_array().cloned().unwrap_or_default())
                                .collect::<Value>()
                        };
                        answer["meta_info"]["input_token_logprobs"] =
                            before(json!([null, prompt[0], null]), own);
                        answer["meta_info"]["input_top_logprobs"] = before(Value::Null, tops);
                    }
                    answer
                };
                Some(match body["stream"] == true {
                    true => events((1..=told.len()).map(piece)),
                    false => piece(told.len()),
                })
            }
            _ => None,
        }
    }

    fn tgi(&self, path: &str, body: &Value) -> Option<Value> {
        let named = |&(id, value): &(u32, f64)| json!({"id": id, "text": self.text(&[id]), "logprob": value});
        let parameters = &body["parameters"];
        let asked = || {
            let prompt = self.prompt(&body["inputs"]);
            let (n, k) =
                (parameters["max_new_tokens"].as_u64()?, parameters["top_n_tokens"].as_u64().unwrap_or(0));
            let told = self.generate(&prompt, n as usize, k as usize, false);
            Some((prompt, told))
        };
        match path {
            "/info" => {
                let dtype = if self.way == Way::Bf16 { "bfloat16" } else { "float32" };
                Some(json!({"model_id": MODEL, "model_dtype": dtype, "version": "3.3.7"}))
            }
            "/tokenize" => {
                let ids = self.encode(body["inputs"].as_str()?, true);
                Some(ids.iter().map(|id| json!({"id": id, "text": self.text(&[*id])})).collect())
            }
            "/chat_tokenize" => Some(json!({"templated_text": self.rendered(&body["messages"])?})),
            "/generate" => {
                let (prompt, told) = asked()?;
                let ids: Vec<u32> = told.iter().map(|told| told.id).collect();
                let mut prefill = Vec::new();
                if parameters["decoder_input_details"] == true && !self.tells_less() {
                    prefill.push(json!({"id": prompt[0], "text": "", "logprob": null}));
                    prefill
                        .extend(self.forced(&prompt, 0).iter().map(|told| named(&(told.id, told.logprob))));
                }
                Some(json!({"generated_text": self.text(&ids), "details": {
                    "prefill": prefill,
                    "tokens": told.iter().map(|told| named(&(told.id, told.logprob))).collect::<Value>(),
                    "top_tokens": told.iter().map(|told| told.top.iter().map(named).collect::<Value>()).collect::<Value>(),
                }}))
            }
            "/generate_stream" => {
                let (_, told) = asked()?;
                let piece = |told: &Told| json!({"token": named(&(told.id, told.logprob)), "top_tokens": told.top.iter().map(named).collect::<Value>()});
                Some(events(told.iter().map(piece)))
            }
            _ => None,
        }
    }

    fn openai(&self, path: &str, body: &Value) -> Option<Value> {
        match path {
            "/v1/models" => Some(json!({"data": [{"id": MODEL, "object": "model"}]})),
            "/v1/chat/completions" if self.way == Way::Talks => {
                let prompt = self.encode(&self.rendered(&body["messages"])?, true);
                let (n, k) = (body["max_tokens"].as_u64()?, body["top_logprobs"].as_u64()?);
                let told = self.generate(&prompt, n as usize, k as usize, false);
                let piece = |told: &[Told]| {
                    let text = self.text(&told.iter().map(|told| told.id).collect::<Vec<_>>());
                    let places: Value = told.iter().map(|told| self.entry(told)).collect();
                    let content = json!({"content": text});
                    json!({"choices": [{"message": content, "delta": content, "logprobs": {"content": places}}]})
                };
                Some(match body["stream"] == true {
                    true => events(told.chunks(2).map(piece)),
                    false => piece(&told),
                })
            }
            "/v1/completions" if self.way != Way::Talks => {
                let prompt = self.prompt(&body["prompt"]);
                let (n, k) = (body["max_tokens"].as_u64()? as usize, body["logprobs"].as_u64()? as usize);
                let told = self.generate(&prompt, n, k, false);
                let echoed = body["echo"] == true && !self.tells_less();
                let piece = |told: &[Told]| {
                    let mut ids: Vec<u32> = told.iter().map(|told| told.id).collect();
                    let mut values: Vec<Value> = told.iter().map(|told| json!(told.logprob)).collect();
                    let top = |told: &Told| {
                        told.top
                            .iter()
                            .enumerate()
                            .map(|(rank, (id, value))| {
                                let has_none = self.way == Way::NamesFew && [1, 3].contains(&rank);
                                (if has_none { String::new() } else { self.text(&[*id]) }, json!(value))
                            })
                            .collect::<Value>()
                    };
                    let mut tops: Vec<Value> = told.iter().map(top).collect();
                    let mut text = self.text(&ids);
                    if echoed {
                        let forced = self.forced(&prompt, k);
                        let first = usize::from([Way::EchoesWords, Way::EchoesSilence].contains(&self.way));
                        let none = (first..1).map(|_| Value::Null);
                        ids.splice(..0, prompt[first..].iter().copied());
                        values.splice(..0, none.clone().chain(forced.iter().map(|told| json!(told.logprob))));
                        tops.splice(..0, none.chain(forced.iter().map(top)));
                        let behind = if self.way == Way::EchoesSilence { "" } else { &text };
                        text = body["prompt"].as_str().unwrap_or_default().to_owned() + behind;
                    }
                    let mut tokens: Vec<Value> = ids.iter().map(|id| json!(self.text(&[*id]))).collect();
                    if echoed && self.way == Way::EchoesSilence {
                        *tokens.last_mut().expect("one was made") = json!("");
                    }
                    let usage = json!({"prompt_tokens": prompt.len(), "completion_tokens": told.len()});
                    let logprobs = json!({"tokens": tokens, "token_logprobs": values, "top_logprobs": tops});
                    json!({"choices": [{"text": text, "logprobs": logprobs}], "usage": usage})
                };
                Some(match body["stream"] == true {
                    true => events(told.chunks(2).map(piece)),
                    false => piece(&told),
                })
            }
            _ => None,
        }
    }

    /// A token as conversations tell it.
    fn entry(&self, told: &Told) -> Value {
        let named = |&(id, value): &(u32, f64)| json!({"token": self.text(&[id]), "logprob": value});
        let mut entry = named(&(told.id, told.logprob));
        entry["top_logprobs"] = told.top.iter().map(named).collect();
        entry
    }

    fn ollama(&self, path: &str, body: &Value) -> Option<Value> {
        let one = |told: &Told| self.entry(told);
        match path {
            "/api/version" => Some(json!({"version": "0.13.0"})),
            "/v1/models" => Some(json!({"data": [{"id": MODEL}]})),
            "/api/generate" => {
                let prompt = self.prompt(&body["prompt"]);
                let (n, k) = (body["options"]["num_predict"].as_u64()?, body["top_logprobs"].as_u64()?);
                let told = self.generate(&prompt, n as usize, k as usize, false);
                let piece = |told: &[Told]| {
                    let ids: Vec<u32> = told.iter().map(|told| told.id).collect();
                    let logprobs =
                        if self.tells_less() { Value::Null } else { told.iter().map(one).collect() };
                    json!({"response": self.text(&ids), "logprobs": logprobs})
                };
                Some(match body["stream"] == true {
                    true => {
                        told.chunks(1).map(|told| piece(told).to_string() + "\n").collect::<String>().into()
                    }
                    false => piece(&told),
                })
            }
            _ => None,
        }
    }
}

/// A stream of events, as text.
fn events(pieces: impl Iterator<Item = Value>) -> Value {
    let text: String = pieces.map(|piece| format!("data: {piece}\n\n")).collect();
    (text + "data: [DONE]\n\n").into()
}
