//! A tiny engine, and what it takes to have it judged: the lines with `dump` are all.
//!
//! ```sh
//! cargo run -p xcheck-dump --example engine -- checkpoints/tiny-llama2c/tiny-llama2c-v0.bin run.safetensors 1 403 407
//! xcheck check --model tiny-llama2c-v0 --candidate run.safetensors
//! ```
//!
//! It runs llama2.c's files of version 0 in f32: the prompt in one pass, then four tokens greedily. With `--mistake` its
//! feed-forward block takes GELU for SiLU, and xcheck says so.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use xcheck_dump::{Dump, Meta, RopePairing, Sequence, Values};

const DECODED: usize = 4;

struct Model {
    dim: usize,
    ffn: usize,
    heads: usize,
    kv_heads: usize,
    embedding: Vec<f32>,
    final_norm: Vec<f32>,
    layers: Vec<Layer>,
}

#[derive(Default)]
struct Layer {
    attn_norm: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    out: Vec<f32>,
    ffn_norm: Vec<f32>,
    gate: Vec<f32>,
    down: Vec<f32>,
    up: Vec<f32>,
}

/// What a layer has seen.
#[derive(Clone, Default)]
struct Cache {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Model {
    fn load(path: &Path) -> Result<Self, Box<dyn Error>> {
        let bytes = fs::read(path)?;
        let words =
            bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]).collect::<Vec<_>>();
        let size = |at: usize| words.get(at).map(|word| i32::from_le_bytes(*word) as usize);
        let sizes: Option<Vec<usize>> = (0..7).map(size).collect();
        let Some(&[dim, ffn, layers, heads, kv_heads, vocab, _]) = sizes.as_deref() else {
            return Err("it is no model of version 0".into());
        };
        let mut rest = words[7..].iter().map(|word| f32::from_le_bytes(*word));
        let mut take = |count: usize| rest.by_ref().take(count).collect::<Vec<f32>>();
        let kv = dim / heads * kv_heads;
        let embedding = take(vocab * dim);
        let mut layers: Vec<Layer> = (0..layers).map(|_| Layer::default()).collect();
        layers.iter_mut().for_each(|layer| layer.attn_norm = take(dim));
        layers.iter_mut().for_each(|layer| layer.q = take(dim * dim));
        layers.iter_mut().for_each(|layer| layer.k = take(kv * dim));
        layers.iter_mut().for_each(|layer| layer.v = take(kv * dim));
        layers.iter_mut().for_each(|layer| layer.out = take(dim * dim));
        layers.iter_mut().for_each(|layer| layer.ffn_norm = take(dim));
        layers.iter_mut().for_each(|layer| layer.gate = take(ffn * dim));
        layers.iter_mut().for_each(|layer| layer.down = take(dim * ffn));
        layers.iter_mut().for_each(|layer| layer.up = take(ffn * dim));
        let final_norm = take(dim);
        Ok(Self { dim, ffn, heads, kv_heads, embedding, final_norm, layers })
    }

    /// A pass over tokens behind `position`; the logits after the last.
    fn forward(
        &self,
        tokens: &[u32],
        position: usize,
        cache: &mut [Cache],
        mistake: bool,
        dump: &mut Dump,
    ) -> xcheck_dump::Result<Vec<f32>> {
        let (n, dim) = (tokens.len(), self.dim);
        let row = |&token: &u32| &self.embedding[token as usize * dim..][..dim];
        let mut x: Vec<f32> = tokens.iter().flat_map(row).copied().collect();
        dump.pass(tokens)?;
        for (index, (layer, cache)) in self.layers.iter().zip(cache).enumerate() {
            x = add(&x, &self.attention(layer, index, &x, position, cache, dump)?);
            x = add(&x, &self.feed_forward(layer, index, &x, mistake, dump)?);
            dump.tap("block_out", Some(index), &[n, dim], Values::F32(&x))?;
        }
        let last = rms_norm(&x[(n - 1) * dim..], &self.final_norm);
        let logits = product(&last, &self.embedding, dim);
        dump.tap("last_logits", None, &[logits.len()], Values::F32(&logits))?;
        Ok(logits)
    }

    fn attention(
        &self,
        layer: &Layer,
        index: usize,
        x: &[f32],
        position: usize,
        cache: &mut Cache,
        dump: &mut Dump,
    ) -> xcheck_dump::Result<Vec<f32>> {
        let (dim, heads, kv_heads, d) = (self.dim, self.heads, self.kv_heads, self.dim / self.heads);
        let n = x.len() / dim;
        let norm = rms_norm(x, &layer.attn_norm);
        let (q, k) = (product(&norm, &layer.q, dim), product(&norm, &layer.k, dim));
        let v = product(&norm, &layer.v, dim);
        dump.tap("attn_norm", Some(index), &[n, dim], Values::F32(&norm))?;
        dump.tap("q", Some(index), &[n, heads, d], Values::F32(&q))?;
        dump.tap("v", Some(index), &[n, kv_heads, d], Values::F32(&v))?;
        let (q, k) = (rotated(&q, heads, d, position), rotated(&k, kv_heads, d, position));
        dump.tap("q_rope", Some(index), &[n, heads, d], Values::F32(&q))?;
        dump.tap("k_rope", Some(index), &[n, kv_heads, d], Values::F32(&k))?;
        cache.keys.extend(k);
        cache.values.extend(v);
        let mut context = Vec::new();
        for (at, q) in q.chunks(d).enumerate() {
            let (token, head) = (at / heads, at % heads / (heads / kv_heads));
            let rows = |values: &'_ [f32]| -> Vec<Vec<f32>> {
                let seen = values.chunks(kv_heads * d).take(position + token + 1);
                seen.map(|row| row[head * d..][..d].to_vec()).collect()
            };
            let scores = rows(&cache.keys).iter().map(|k| dot(q, k) / (d as f32).sqrt()).collect::<Vec<_>>();
            let mut sum = vec![0.0; d];
            for (weight, v) in softmax(&scores).into_iter().zip(rows(&cache.values)) {
                sum.iter_mut().zip(v).for_each(|(sum, v)| *sum += weight * v);
            }
            context.extend(sum);
        }
        dump.tap("attn_context", Some(index), &[n, dim], Values::F32(&context))?;
        Ok(product(&context, &layer.out, dim))
    }

    fn feed_forward(
        &self,
        layer: &Layer,
        index: usize,
        x: &[f32],
        mistake: bool,
        dump: &mut Dump,
    ) -> xcheck_dump::Result<Vec<f32>> {
        let n = x.len() / self.dim;
        let norm = rms_norm(x, &layer.ffn_norm);
        let (gate, up) = (product(&norm, &layer.gate, self.dim), product(&norm, &layer.up, self.dim));
        let activation = if mistake { gelu } else { silu };
        let act: Vec<f32> = gate.iter().zip(&up).map(|(&gate, up)| activation(gate) * up).collect();
        dump.tap("ffn_gate", Some(index), &[n, self.ffn], Values::F32(&gate))?;
        dump.tap("ffn_up", Some(index), &[n, self.ffn], Values::F32(&up))?;
        dump.tap("ffn_act", Some(index), &[n, self.ffn], Values::F32(&act))?;
        Ok(product(&act, &layer.down, self.ffn))
    }
}

// ---- the operations -------------------------------------------------------------------------------------

fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Each row of `x` with each row of `w`, which have `size` values.
fn product(x: &[f32], w: &[f32], size: usize) -> Vec<f32> {
    x.chunks(size).flat_map(|x| w.chunks(size).map(move |w| dot(x, w))).collect()
}

fn rms_norm(x: &[f32], gain: &[f32]) -> Vec<f32> {
    let row = |x: &[f32]| {
        let scale = 1.0 / (dot(x, x) / x.len() as f32 + 1e-5).sqrt();
        x.iter().zip(gain).map(|(x, gain)| gain * (scale * x)).collect::<Vec<_>>()
    };
    x.chunks(gain.len()).flat_map(row).collect()
}

/// Neighbours are rotated together.
fn rotated(x: &[f32], heads: usize, d: usize, position: usize) -> Vec<f32> {
    let pair = |(at, pair): (usize, &[f32])| {
        let (row, i) = (at / (heads * d / 2), 2 * (at % (d / 2)));
        let angle = (position + row) as f32 / 10000f32.powf(i as f32 / d as f32);
        let (sin, cos) = angle.sin_cos();
        [pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos]
    };
    x.chunks(2).enumerate().flat_map(pair).collect()
}

fn softmax(x: &[f32]) -> Vec<f32> {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = x.iter().map(|x| (x - largest).exp()).collect();
    let sum: f32 = exps.iter().sum();
    exps.iter().map(|x| x / sum).collect()
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh())
}

fn greedy(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).fold(0, |best, at| if logits[at] > logits[best] { at } else { best });
    best as u32
}

// ---- the run ----------------------------------------------------------------------------------------------

/// Runs the model on a prompt, and writes what it computes.
pub fn run(model: &Path, out: &Path, prompt: &[u32], mistake: bool) -> Result<(), Box<dyn Error>> {
    let model = Model::load(model)?;
    let meta = Meta {
        settings: vec![("dtype".into(), "f32".into())],
        rope_pairing: Some(RopePairing::Interleaved),
        sequences: vec![Sequence::new(prompt)],
        ..Meta::new("engine.rs", "llama")
    };
    let mut dump = Dump::create(out, meta)?;
    let mut cache = vec![Cache::default(); model.layers.len()];
    let mut generated = vec![greedy(&model.forward(prompt, 0, &mut cache, mistake, &mut dump)?)];
    for step in 0..DECODED {
        let position = prompt.len() + step;
        let logits = model.forward(&generated[step..], position, &mut cache, mistake, &mut dump)?;
        generated.push(greedy(&logits));
    }
    dump.generated(&generated)?;
    dump.finish()?;
    Ok(())
}

#[allow(dead_code)] // a test takes `run` alone
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mistake = arguments.iter().any(|argument| argument == "--mistake");
    let arguments: Vec<&String> = arguments.iter().filter(|argument| *argument != "--mistake").collect();
    let [model, out, tokens @ ..] = arguments.as_slice() else {
        return Err("usage: engine MODEL OUT TOKEN... [--mistake]".into());
    };
    let tokens = tokens.iter().map(|token| token.parse()).collect::<Result<Vec<u32>, _>>()?;
    run(Path::new(model), Path::new(out), &tokens, mistake)
}
