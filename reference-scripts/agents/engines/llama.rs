//! Runs a Llama or Qwen 3 of Hugging Face's layout: engine MODEL OUT TOKEN...

use std::{env, fs};

const DECODED: usize = 4;

struct Config {
    text: String,
}

impl Config {
    fn number(&self, key: &str) -> f64 {
        let at = self.text.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("config.json has no {key}"));
        let rest = self.text[at..].split_once(':').unwrap().1;
        let end = rest.find([',', '\n', '}']).unwrap();
        rest[..end].trim().parse().unwrap_or_else(|_| panic!("{key} is not a number"))
    }

    fn size(&self, key: &str) -> usize {
        self.number(key) as usize
    }

    fn is_true(&self, key: &str) -> bool {
        self.text.contains(&format!("\"{key}\": true"))
    }
}

struct Weights {
    header: String,
    data: Vec<f32>,
}

impl Weights {
    fn load(path: &str) -> Self {
        let bytes = fs::read(path).expect("the weights can be read");
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
        let values = bytes[8 + length..].chunks_exact(4);
        Self { header, data: values.map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect() }
    }

    fn find(&self, name: &str) -> Option<&[f32]> {
        let at = self.header.find(&format!("\"{name}\":"))?;
        let offsets = self.header[at..].split_once("\"data_offsets\":[")?.1.split_once(']')?.0;
        let (start, end) = offsets.split_once(',')?;
        Some(&self.data[start.trim().parse::<usize>().ok()? / 4..end.trim().parse::<usize>().ok()? / 4])
    }

    fn get(&self, name: &str) -> &[f32] {
        self.find(name).unwrap_or_else(|| panic!("there is no {name}"))
    }
}

/// The dump: a safetensors file with a manifest in its metadata.
#[derive(Default)]
struct Dump {
    passes: Vec<(usize, Vec<usize>)>,
    rows: Vec<String>,
    header: Vec<String>,
    data: Vec<u8>,
}

impl Dump {
    fn tap(&mut self, tap: &str, layer: Option<usize>, shape: &[usize], values: &[f32]) {
        let pass = self.passes.len() - 1;
        let (field, folder) = match layer {
            Some(layer) => (format!("\"layer\":{layer},"), format!("p{pass}/l{layer:02}")),
            None => (String::new(), format!("p{pass}")),
        };
        let (key, start) = (format!("{folder}/{tap}"), self.data.len());
        self.data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let end = self.data.len();
        self.rows.push(format!(
            "{{\"tap\":\"{tap}\",\"pass\":{pass},{field}\"dtype\":\"f32\",\"shape\":{shape:?},\"file\":\"{key}.npy\"}}"
        ));
        self.header.push(format!("\"{key}\":{{\"dtype\":\"F32\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"));
    }

    fn write(&self, path: &str, architecture: &str, tokens: &[usize], generated: &[usize]) {
        let passes: Vec<String> = self
            .passes
            .iter()
            .map(|(position, tokens)| format!("{{\"position\":{position},\"tokens\":{tokens:?}}}"))
            .collect();
        let manifest = format!(
            "{{\"format\":\"xcheck-dump\",\"version\":1,\"producer\":{{\"name\":\"engine\"}},\"model\":{{\"architecture\":\
             \"{architecture}\"}},\"layout\":{{\"rope_pairing\":\"half\"}},\"input\":{{\"tokens\":{tokens:?}}},\"passes\":[{}],\
             \"generated\":{generated:?},\"tensors\":[{}]}}",
            passes.join(","),
            self.rows.join(",")
        );
        let metadata = format!("\"__metadata__\":{{\"xcheck\":\"{}\"}}", manifest.replace('"', "\\\""));
        let header = format!("{{{metadata},{}}}", self.header.join(","));
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(&self.data);
        fs::write(path, bytes).expect("the dump can be written");
    }
}

fn linear(x: &[f32], weight: &[f32], inner: usize) -> Vec<f32> {
    let dot = |row: &[f32], column: &[f32]| row.iter().zip(column).map(|(a, b)| a * b).sum::<f32>();
    x.chunks(inner).flat_map(|row| weight.chunks(inner).map(move |column| dot(row, column))).collect()
}

fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let norm = |row: &[f32]| {
        let mean = row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        row.iter().zip(weight).map(|(value, gain)| value * scale * gain).collect::<Vec<f32>>()
    };
    x.chunks(weight.len()).flat_map(norm).collect()
}

fn softmax(x: &mut [f32]) {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|value| *value = (*value - largest).exp());
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|value| *value /= sum);
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn argmax(x: &[f32]) -> usize {
    (0..x.len()).fold(0, |best, at| if x[at] > x[best] { at } else { best })
}

struct Engine {
    weights: Weights,
    hidden: usize,
    ffn: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    eps: f32,
    theta: f64,
    tied: bool,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    length: usize,
}

impl Engine {
    fn new(config: &Config, weights: Weights) -> Self {
        let layers = config.size("num_hidden_layers");
        Self {
            weights,
            hidden: config.size("hidden_size"),
            ffn: config.size("intermediate_size"),
            heads: config.size("num_attention_heads"),
            kv_heads: config.size("num_key_value_heads"),
            head_dim: config.size("head_dim"),
            eps: config.number("rms_norm_eps") as f32,
            theta: config.number("rope_theta"),
            tied: config.is_true("tie_word_embeddings"),
            keys: vec![Vec::new(); layers],
            values: vec![Vec::new(); layers],
            length: 0,
        }
    }

    fn rope(&self, x: &mut [f32], heads: usize) {
        let half = self.head_dim / 2;
        for (row, heads) in x.chunks_mut(heads * self.head_dim).enumerate() {
            let position = (self.length + row) as f64;
            for head in heads.chunks_mut(self.head_dim) {
                for i in 0..half {
                    let angle = position * self.theta.powf(-2.0 * i as f64 / self.head_dim as f64);
                    let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
                    let (a, b) = (head[i], head[i + half]);
                    head[i] = a * cos - b * sin;
                    head[i + half] = b * cos + a * sin;
                }
            }
        }
    }

    fn attention(&mut self, x: &[f32], layer: usize, dump: &mut Dump) -> Vec<f32> {
        let name = format!("model.layers.{layer}.self_attn");
        let (rows, d) = (x.len() / self.hidden, self.head_dim);
        let project = |part: &str| linear(x, self.weights.get(&format!("{name}.{part}_proj.weight")), self.hidden);
        let (mut q, mut k, v) = (project("q"), project("k"), project("v"));
        let (q_shape, kv_shape) = ([rows, self.heads, d], [rows, self.kv_heads, d]);
        dump.tap("q", Some(layer), &q_shape, &q);
        dump.tap("k", Some(layer), &kv_shape, &k);
        dump.tap("v", Some(layer), &kv_shape, &v);
        if let Some(gain) = self.weights.find(&format!("{name}.q_norm.weight")) {
            q = rms_norm(&q, gain, self.eps);
            k = rms_norm(&k, self.weights.get(&format!("{name}.k_norm.weight")), self.eps);
            dump.tap("q_norm", Some(layer), &q_shape, &q);
            dump.tap("k_norm", Some(layer), &kv_shape, &k);
        }
        self.rope(&mut q, self.heads);
        self.rope(&mut k, self.kv_heads);
        dump.tap("q_rope", Some(layer), &q_shape, &q);
        dump.tap("k_rope", Some(layer), &kv_shape, &k);
        self.keys[layer].extend(&k);
        self.values[layer].extend(&v);
        let (keys, values) = (&self.keys[layer], &self.values[layer]);
        let mut context = vec![0.0; rows * self.heads * d];
        let scale = 1.0 / (d as f32).sqrt();
        for row in 0..rows {
            for head in 0..self.heads {
                let kv_head = head / (self.heads / self.kv_heads);
                let at = |position: usize| (position * self.kv_heads + kv_head) * d;
                let query = &q[(row * self.heads + head) * d..][..d];
                let seen = self.length + row + 1;
                let score = |s| query.iter().zip(&keys[at(s)..]).map(|(a, b)| a * b).sum::<f32>() * scale;
                let mut shares: Vec<f32> = (0..seen).map(score).collect();
                softmax(&mut shares);
                let out = &mut context[(row * self.heads + head) * d..][..d];
                for (s, share) in shares.iter().enumerate() {
                    out.iter_mut().zip(&values[at(s)..]).for_each(|(out, value)| *out += share * value);
                }
            }
        }
        dump.tap("attn_context", Some(layer), &[rows, self.heads * d], &context);
        let out = linear(&context, self.weights.get(&format!("{name}.o_proj.weight")), self.heads * d);
        dump.tap("attn_out", Some(layer), &[rows, self.hidden], &out);
        out
    }

    fn feed_forward(&self, x: &[f32], layer: usize, dump: &mut Dump) -> Vec<f32> {
        let name = format!("model.layers.{layer}.mlp");
        let weight = |part: &str| self.weights.get(&format!("{name}.{part}_proj.weight"));
        let gate = linear(x, weight("gate"), self.hidden);
        let up = linear(x, weight("up"), self.hidden);
        let act: Vec<f32> = gate.iter().zip(&up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
        dump.tap("ffn_act", Some(layer), &[x.len() / self.hidden, self.ffn], &act);
        linear(&act, weight("down"), self.ffn)
    }

    fn norm(&self, x: &[f32], name: &str) -> Vec<f32> {
        rms_norm(x, self.weights.get(&format!("{name}.weight")), self.eps)
    }

    fn forward(&mut self, tokens: &[usize], dump: &mut Dump) -> usize {
        let rows = tokens.len();
        dump.passes.push((self.length, tokens.to_vec()));
        let embedding = self.weights.get("model.embed_tokens.weight");
        let mut x: Vec<f32> =
            tokens.iter().flat_map(|token| embedding[token * self.hidden..][..self.hidden].to_vec()).collect();
        dump.tap("embed", None, &[rows, self.hidden], &x);
        for layer in 0..self.keys.len() {
            let name = format!("model.layers.{layer}");
            let h = self.norm(&x, &format!("{name}.input_layernorm"));
            dump.tap("attn_norm", Some(layer), &[rows, self.hidden], &h);
            let out = self.attention(&h, layer, dump);
            add(&mut x, &out);
            let h = self.norm(&x, &format!("{name}.post_attention_layernorm"));
            dump.tap("ffn_norm", Some(layer), &[rows, self.hidden], &h);
            let out = self.feed_forward(&h, layer, dump);
            dump.tap("ffn_out", Some(layer), &[rows, self.hidden], &out);
            add(&mut x, &out);
            dump.tap("block_out", Some(layer), &[rows, self.hidden], &x);
        }
        self.length += rows;
        let x = self.norm(&x, "model.norm");
        let head = self.weights.get(if self.tied { "model.embed_tokens.weight" } else { "lm_head.weight" });
        let logits = linear(&x, head, self.hidden);
        let vocab = head.len() / self.hidden;
        dump.tap("logits", None, &[rows, vocab], &logits);
        argmax(&logits[(rows - 1) * vocab..])
    }
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let text = fs::read_to_string(format!("{}/config.json", arguments[1])).expect("config.json can be read");
    let architecture = if text.contains("Qwen3ForCausalLM") { "qwen3" } else { "llama" };
    let weights = Weights::load(&format!("{}/model.safetensors", arguments[1]));
    let tokens: Vec<usize> = arguments[3..].iter().map(|token| token.parse().expect("a token")).collect();
    let mut engine = Engine::new(&Config { text }, weights);
    let (mut dump, mut generated, mut read) = (Dump::default(), Vec::new(), tokens.clone());
    for _ in 0..=DECODED {
        generated.push(engine.forward(&read, &mut dump));
        read = generated[generated.len() - 1..].to_vec();
    }
    dump.write(&arguments[2], architecture, &tokens, &generated);
    println!("{generated:?}");
}
