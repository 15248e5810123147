//! A Llama in Rust, and the ten lines that have it judged: those with `dump`.
//!
//! ```sh
//! cargo run -p xcheck-dump --example ten-lines -- checkpoints/tiny-llama2c/tiny-llama2c-v0.bin run.safetensors [--mistake]
//! xcheck check --model tiny-llama2c-v0 --candidate run.safetensors
//! ```
//!
//! It reads llama2.c's files of version 0, and runs a prompt. With `--mistake` query heads share the wrong key heads.

use std::path::Path;
use std::{env, fs};

use xcheck_dump::{Dump, Meta, Values};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
type Floats = Vec<f32>;

/// The file: its sizes, then each kind of matrix of all layers.
struct Llama {
    dim: usize,
    heads: usize,
    kv_heads: usize,
    /// The mistake: query heads take key heads in turns, not in groups.
    takes_turns: bool,
    embedding: Floats,
    layers: Vec<Layer>,
    norm: Floats,
}

#[derive(Default)]
struct Layer {
    attn_norm: Floats,
    q: Floats,
    k: Floats,
    v: Floats,
    out: Floats,
    ffn_norm: Floats,
    gate: Floats,
    down: Floats,
    up: Floats,
}

impl Llama {
    fn load(path: &Path, takes_turns: bool) -> Result<Self> {
        let bytes = fs::read(path)?;
        let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
        let sizes: Vec<usize> = words.clone().take(7).map(|word| u32::from_le_bytes(word) as usize).collect();
        let [dim, ffn, layers, heads, kv_heads, vocab, _] = sizes[..] else { return Err("no model".into()) };
        let mut floats = words.skip(7).map(f32::from_le_bytes);
        let mut take = |count: usize| floats.by_ref().take(count).collect::<Floats>();
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
        Ok(Self { dim, heads, kv_heads, takes_turns, embedding, layers, norm: take(dim) })
    }

    /// RoPE: each head of x [T, heads, d] is turned by its position.
    fn rotated(&self, mut x: Floats, heads: usize) -> Floats {
        let d = self.dim / self.heads;
        for (at, head) in x.chunks_exact_mut(d).enumerate() {
            for i in 0..d / 2 {
                let angle = (at / heads) as f32 * 10000f32.powf(-((2 * i) as f32) / d as f32);
                let (a, b) = (head[2 * i], head[2 * i + 1]);
                head[2 * i] = a * angle.cos() - b * angle.sin();
                head[2 * i + 1] = a * angle.sin() + b * angle.cos();
            }
        }
        x
    }

    fn attention(&self, h: &[f32], layer: &Layer) -> Floats {
        let (dim, d, kv) = (self.dim, self.dim / self.heads, self.dim / self.heads * self.kv_heads);
        let q = self.rotated(product(h, &layer.q, dim), self.heads);
        let k = self.rotated(product(h, &layer.k, dim), self.kv_heads);
        let v = product(h, &layer.v, dim);
        let mut context = vec![0.0; q.len()];
        for (at, (q, out)) in q.chunks_exact(d).zip(context.chunks_exact_mut(d)).enumerate() {
            let (last, head) = (at / self.heads, at % self.heads);
            let shared =
                if self.takes_turns { head % self.kv_heads } else { head / (self.heads / self.kv_heads) };
            let row = |of: &[f32], s: usize| of[s * kv + shared * d..][..d].to_vec();
            let shares: Floats =
                (0..=last).map(|s| (dot(q, &row(&k, s)) / (d as f32).sqrt()).exp()).collect();
            let sum: f32 = shares.iter().sum();
            for (s, share) in shares.iter().enumerate() {
                out.iter_mut().zip(row(&v, s)).for_each(|(out, v)| *out += share / sum * v);
            }
        }
        product(&context, &layer.out, dim)
    }

    fn feed_forward(&self, h: &[f32], layer: &Layer) -> Floats {
        let (gate, up) = (product(h, &layer.gate, self.dim), product(h, &layer.up, self.dim));
        let act: Floats = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        product(&act, &layer.down, layer.down.len() / self.dim)
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Rows of `width` by the rows of a matrix.
fn product(x: &[f32], matrix: &[f32], width: usize) -> Floats {
    x.chunks_exact(width).flat_map(|x| matrix.chunks_exact(width).map(move |row| dot(x, row))).collect()
}

fn rms_norm(x: &[f32], gain: &[f32]) -> Floats {
    let normed = |x: &[f32]| {
        let scale = 1.0 / (dot(x, x) / x.len() as f32 + 1e-5).sqrt();
        x.iter().zip(gain).map(|(x, gain)| x * scale * gain).collect::<Floats>()
    };
    x.chunks_exact(gain.len()).flat_map(normed).collect()
}

fn add(x: &[f32], y: &[f32]) -> Floats {
    x.iter().zip(y).map(|(x, y)| x + y).collect()
}

pub fn run(model: &Path, out: &Path, mistake: bool) -> Result<()> {
    let (model, tokens) = (Llama::load(model, mistake)?, [1, 403, 407, 393, 395]);
    let row = |token: &u32| &model.embedding[*token as usize * model.dim..][..model.dim];
    let mut x: Floats = tokens.iter().flat_map(row).copied().collect();

    let mut dump = Dump::create(out, Meta::new("llama.rs", "llama"))?;
    dump.pass(&tokens)?;
    for (index, layer) in model.layers.iter().enumerate() {
        x = add(&x, &model.attention(&rms_norm(&x, &layer.attn_norm), layer));
        dump.tap("attn_residual", Some(index), &[tokens.len(), model.dim], Values::F32(&x))?;
        x = add(&x, &model.feed_forward(&rms_norm(&x, &layer.ffn_norm), layer));
        dump.tap("block_out", Some(index), &[tokens.len(), model.dim], Values::F32(&x))?;
    }
    let logits = product(&rms_norm(&x, &model.norm), &model.embedding, model.dim);
    dump.tap("logits", None, &[tokens.len(), logits.len() / tokens.len()], Values::F32(&logits))?;
    dump.finish()?;
    Ok(())
}

#[allow(dead_code)] // a test takes `run` alone
fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let [_, model, out, rest @ ..] = &arguments[..] else {
        return Err("usage: MODEL OUT [--mistake]".into());
    };
    run(Path::new(model), Path::new(out), rest.iter().any(|argument| argument == "--mistake"))
}
