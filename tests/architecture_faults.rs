//! The bugs that each architecture invites are planted, and the first wrong tap must be named.

use crate::common::faulty::Faulty;
use crate::common::{LLAMA_CPP_F32, gguf, judge_against, reference_of, variant};
use xcheck::checkpoint::Point::{self, *};
use xcheck::checkpoint::Site;
use xcheck::format::Safetensors;
use xcheck::kernels::elementwise::per_column;
use xcheck::model::decoder::{Decoder, DecoderBlock, DecoderConfig, Family, ForwardContext, LayerWeights};
use xcheck::model::gemma3::{self, Gemma3, Gemma3Block};
use xcheck::model::gpt2::{AffineMatrix, Gpt2, Gpt2Block};
use xcheck::model::llama::{self, Llama};
use xcheck::model::qwen3::{self, Qwen3};
use xcheck::model::{Config, LayerState, Model, ModelFiles};
use xcheck::numerics::{F32, Numerics, Transformers};
use xcheck::ops::activation::Activation;
use xcheck::ops::attention::{AttentionScale, Mask};
use xcheck::ops::norm::{Gain, LayerNorm, RmsNorm};
use xcheck::ops::rope::RopeScaling;
use xcheck::tap::Probe;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, Verdict};
use xcheck::weight::{Matrix, StoredTensor};

#[track_caller]
fn assert_first_wrong(outcome: &Outcome, point: Point) {
    let found = outcome.first_divergence().map(|row| row.site);
    assert_eq!(found, Some(Site { point, layer: Some(0), pass: Some(0) }), "{:?}", outcome.reason);
    assert_eq!(outcome.verdict, Verdict::Fail);
}

fn llama3() -> Llama {
    Llama::from_gguf(&gguf("tiny-llama3-f32"), &llama::FAMILY).expect("it loads")
}

fn qwen3() -> Qwen3 {
    Qwen3::from_gguf(&gguf("tiny-qwen3-f32"), &qwen3::FAMILY).expect("it loads")
}

fn judge(name: &str, model: &dyn Model, numerics: &dyn Numerics) -> Outcome {
    judge_against(&reference_of(name, "llama.cpp-f32"), model, numerics, &mut ())
}

#[test]
fn an_ignored_rope_scaling_is_found_in_the_rotated_queries() {
    let mut model = llama3();
    assert_ne!(model.config.rope.scaling, RopeScaling::None);
    model.config.rope.scaling = RopeScaling::None;
    assert_first_wrong(&judge("tiny-llama3", &model, &LLAMA_CPP_F32), QRope);
}

#[test]
fn a_wrong_rope_theta_is_found_in_the_rotated_queries() {
    let mut model = qwen3();
    model.config.rope.theta = 10_000.0;
    assert_first_wrong(&judge("tiny-qwen3", &model, &LLAMA_CPP_F32), QRope);
}

#[test]
fn an_untied_lm_head_that_should_be_tied_is_found_in_the_logits() {
    let mut model = qwen3();
    let rows = llama3().output;
    assert_eq!((rows.rows, model.output.rows), (512, 512));
    model.output = narrowed(&rows, model.output.cols);
    let outcome = judge("tiny-qwen3", &model, &LLAMA_CPP_F32);
    let found = outcome.first_divergence().map(|row| row.site);
    assert_eq!(found, Some(Site { point: Logits, layer: None, pass: Some(0) }));
}

/// The first `cols` columns of an F32 matrix.
fn narrowed(matrix: &Matrix, cols: usize) -> Matrix {
    let data: Vec<u8> = (0..matrix.rows).flat_map(|row| matrix.row(row)[..4 * cols].to_vec()).collect();
    let stored = StoredTensor { dtype: matrix.dtype, shape: vec![matrix.rows, cols], data: data.into() };
    Matrix::from_stored(&stored).expect("it is whole")
}

#[test]
fn gqa_key_heads_that_are_tiled_instead_of_repeated_are_found_in_the_scores() {
    let scores = |q: &Tensor, k: &Tensor, scale: AttentionScale| {
        let (heads, groups, head_dim) = (q.shape()[1], k.shape()[1], k.shape()[2]);
        let head = |key: usize, head: usize| &k.row(key)[head % groups * head_dim..][..head_dim];
        let tiled = (0..k.rows()).flat_map(|key| (0..heads).flat_map(move |query| head(key, query)));
        let tiled = Tensor::new(&[k.rows(), heads, head_dim], tiled.copied().collect());
        LLAMA_CPP_F32.scores(q, &tiled, scale)
    };
    let faulty = Faulty { scores: Some(scores), ..Faulty::default() };
    assert_first_wrong(&judge("tiny-llama3", &llama3(), &faulty), AttnScores);
}

#[test]
fn a_skipped_qk_norm_is_found_in_the_queries() {
    let mut model = qwen3();
    model.layers.iter_mut().for_each(|layer| layer.attn_q_norm.weight.fill(1.0));
    assert_first_wrong(&judge("tiny-qwen3", &model, &LLAMA_CPP_F32), QNorm);
}

#[test]
fn a_qk_norm_with_swapped_gains_is_found_in_the_queries() {
    let mut model = qwen3();
    model.layers.iter_mut().for_each(|layer| std::mem::swap(&mut layer.attn_q_norm, &mut layer.attn_k_norm));
    assert_first_wrong(&judge("tiny-qwen3", &model, &LLAMA_CPP_F32), QNorm);
}

// ---- Gemma 3 --------------------------------------------------------------------------------------------

fn gemma3() -> Gemma3 {
    Gemma3::from_gguf(&gguf("tiny-gemma3-f32"), &gemma3::FAMILY).expect("it loads")
}

#[test]
fn a_sliding_window_one_token_too_wide_is_found_in_the_attention_weights() {
    let mut model = gemma3();
    model.config.sliding.as_mut().expect("it slides").window += 1;
    assert_first_wrong(&judge("tiny-gemma3", &model, &LLAMA_CPP_F32), AttnWeights);
}

#[test]
fn a_sliding_window_one_token_too_narrow_is_found_in_the_attention_weights() {
    let mut model = gemma3();
    model.config.sliding.as_mut().expect("it slides").window -= 1;
    assert_first_wrong(&judge("tiny-gemma3", &model, &LLAMA_CPP_F32), AttnWeights);
}

#[test]
fn an_ignored_sliding_window_is_found_in_the_attention_weights() {
    let softmax = |scores: &Tensor, mask| LLAMA_CPP_F32.softmax(scores, Mask { window: None, ..mask });
    let faulty = Faulty { softmax: Some(softmax), ..Faulty::default() };
    assert_first_wrong(&judge("tiny-gemma3", &gemma3(), &faulty), AttnWeights);
}

#[test]
fn a_sliding_window_in_a_global_layer_is_found_there() {
    let mut model = gemma3();
    model.config.sliding.as_mut().expect("it slides").layers[5] = true;
    let outcome = judge("tiny-gemma3", &model, &LLAMA_CPP_F32);
    let found = outcome.first_divergence().map(|row| row.site);
    assert_eq!(found, Some(Site { point: QRope, layer: Some(5), pass: Some(0) }));
}

#[test]
fn an_ignored_linear_rope_scaling_is_found_in_the_first_global_layer() {
    let mut model = Gemma3::from_gguf(&gguf("tiny-gemma3-vision-f32"), &gemma3::FAMILY).expect("it loads");
    assert_eq!(model.config.rope.scaling, RopeScaling::Linear(8.0));
    model.config.rope.scaling = RopeScaling::None;
    let outcome = judge("tiny-gemma3-vision", &model, &LLAMA_CPP_F32);
    let found = outcome.first_divergence().map(|row| row.site);
    assert_eq!(found, Some(Site { point: QRope, layer: Some(5), pass: Some(0) }));
}

#[test]
fn linear_rope_scaling_of_sliding_window_layers_is_found_in_the_first() {
    let mut model = Gemma3::from_gguf(&gguf("tiny-gemma3-vision-f32"), &gemma3::FAMILY).expect("it loads");
    model.config.sliding.as_mut().expect("it slides").rope.scaling = RopeScaling::Linear(8.0);
    assert_first_wrong(&judge("tiny-gemma3-vision", &model, &LLAMA_CPP_F32), QRope);
}

#[test]
fn swapped_local_and_global_rope_theta_are_found_in_the_rotated_queries() {
    let mut model = gemma3();
    let sliding = model.config.sliding.as_mut().expect("it slides");
    std::mem::swap(&mut sliding.rope, &mut model.config.rope);
    assert_first_wrong(&judge("tiny-gemma3", &model, &LLAMA_CPP_F32), QRope);
}

#[test]
fn an_rms_norm_without_the_added_one_is_found_in_the_first_norm() {
    let mut model = hugging_face::<Gemma3Block>("tiny-gemma3-hf", &gemma3::FAMILY);
    for layer in &mut model.layers {
        assert_eq!(layer.attn_norm.gain, Gain::OnePlusWeight);
        layer.attn_norm.gain = Gain::Weight;
    }
    let outcome =
        judge_against(&reference_of("tiny-gemma3", "transformers-f32"), &model, &Transformers::F32, &mut ());
    assert_first_wrong(&outcome, AttnNorm);
}

/// A decoder from a shipped Hugging Face directory.
fn hugging_face<B: DecoderBlock>(name: &str, family: &'static Family) -> Decoder<B> {
    let ModelFiles::HuggingFace { config, weights, .. } = variant(name) else {
        panic!("{name} is a GGUF file")
    };
    let json = serde_json::from_slice(&config.data).expect("it is JSON");
    let tensors = Safetensors::read(&weights[0]).expect("it is sound").tensors;
    Decoder::from_hugging_face(&Config::new(&config.path, &json), &tensors, family).expect("it loads")
}

#[test]
fn a_missing_embedding_scale_is_found_at_the_embeddings() {
    let mut model = gemma3();
    model.config.embed_scale = None;
    let outcome = judge("tiny-gemma3", &model, &LLAMA_CPP_F32);
    let found = outcome.first_divergence().map(|row| row.site);
    assert_eq!(found, Some(Site { point: Embed, layer: None, pass: Some(0) }));
}

#[test]
fn a_wrong_query_pre_attention_scale_is_found_in_the_scores() {
    let mut model = gemma3();
    model.config.attn_scale = AttentionScale::Queries(1.0 / (model.config.hidden_size as f32).sqrt());
    assert_first_wrong(&judge("tiny-gemma3", &model, &LLAMA_CPP_F32), AttnScores);
}

/// Gemma 3's weights under another diagram.
#[derive(Clone)]
struct Rewired {
    block: Gemma3Block,
    diagram: fn(&Gemma3Block, &Tensor, &ForwardContext, &mut Probe, &mut LayerState) -> Tensor,
}

impl DecoderBlock for Rewired {
    fn load(_: &DecoderConfig, _: &mut LayerWeights) -> xcheck::error::Result<Self> {
        unreachable!("it is made of a model that is loaded")
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor {
        (self.diagram)(&self.block, x, p, t, state)
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        self.block.matrices()
    }
}

fn rewired(
    diagram: fn(&Gemma3Block, &Tensor, &ForwardContext, &mut Probe, &mut LayerState) -> Tensor,
) -> Decoder<Rewired> {
    gemma3().with_blocks(|block| Rewired { block, diagram })
}

#[test]
fn a_qk_norm_after_rope_is_found_in_the_rotated_queries() {
    let model = rewired(|w, x, p, t, state| {
        let n = p.n;
        let norm = t.tap(AttnNorm, n.rms_norm(x, &w.attn_norm));
        let q = t.tap(Q, p.c.heads(w.attn.q(n, &norm)));
        let k = t.tap(K, p.c.heads(w.attn.k(n, &norm)));
        let v = t.tap(V, p.c.heads(w.attn.v(n, &norm)));
        let q = t.tap(QRope, n.rms_norm(&p.rotate(q), &w.attn_q_norm));
        let k = t.tap(KRope, n.rms_norm(&p.rotate(k), &w.attn_k_norm));
        let context = p.attend(&q, k, v, t, state);
        let out = t.tap(AttnOut, w.attn.output(n, &context));
        let out = t.tap(AttnPostNorm, n.rms_norm(&out, &w.attn_post_norm));
        second_half(w, &t.tap(AttnResidual, n.add(x, &out)), p, t)
    });
    assert_first_wrong(&judge("tiny-gemma3", &model, &LLAMA_CPP_F32), QRope);
}

#[test]
fn a_post_norm_after_the_residual_is_found_there() {
    let model = rewired(|w, x, p, t, state| {
        let n = p.n;
        let norm = t.tap(AttnNorm, n.rms_norm(x, &w.attn_norm));
        let q = t.tap(Q, p.c.heads(w.attn.q(n, &norm)));
        let k = t.tap(K, p.c.heads(w.attn.k(n, &norm)));
        let v = t.tap(V, p.c.heads(w.attn.v(n, &norm)));
        let q = t.tap(QNorm, n.rms_norm(&q, &w.attn_q_norm));
        let k = t.tap(KNorm, n.rms_norm(&k, &w.attn_k_norm));
        let (q, k) = (t.tap(QRope, p.rotate(q)), t.tap(KRope, p.rotate(k)));
        let context = p.attend(&q, k, v, t, state);
        let out = t.tap(AttnOut, w.attn.output(n, &context));
        second_half(w, &t.tap(AttnResidual, n.rms_norm(&n.add(x, &out), &w.attn_post_norm)), p, t)
    });
    assert_first_wrong(&judge("tiny-gemma3", &model, &LLAMA_CPP_F32), AttnResidual);
}

/// The feed-forward half as it is.
fn second_half(w: &Gemma3Block, h: &Tensor, p: &ForwardContext, t: &mut Probe) -> Tensor {
    let ffn = w.ffn.forward(h, p, t);
    let ffn = t.tap(FfnPostNorm, p.n.rms_norm(&ffn, &w.ffn_post_norm));
    t.tap(BlockOut, p.n.add(h, &ffn))
}

// ---- GPT-2 ----------------------------------------------------------------------------------------------

fn gpt2() -> Gpt2 {
    Gpt2::from_gguf(&gguf("tiny-gpt2-f32")).expect("it loads")
}

/// Another LayerNorm.
fn with_layer_norm(fault: fn(&Tensor, &LayerNorm) -> Tensor) -> Faulty {
    Faulty { layer_norm: Some(fault), ..Faulty::default() }
}

#[test]
fn an_unbiased_variance_is_found_in_the_first_layer_norm() {
    let faulty = with_layer_norm(|x, norm| {
        let width = norm.weight.len() as f32;
        let weight = norm.weight.iter().map(|weight| weight * ((width - 1.0) / width).sqrt()).collect();
        LLAMA_CPP_F32.layer_norm(x, &LayerNorm { weight, ..norm.clone() })
    });
    assert_first_wrong(&judge("tiny-gpt2", &gpt2(), &faulty), AttnNorm);
}

#[test]
fn a_layer_norm_without_mean_subtraction_is_found_in_the_first_norm() {
    let faulty = with_layer_norm(|x, norm| {
        let rms = RmsNorm { weight: norm.weight.clone(), eps: norm.eps, gain: Gain::Weight, groups: 1 };
        per_column(LLAMA_CPP_F32.rms_norm(x, &rms), norm.bias.iter().copied(), |x, bias| x + bias)
    });
    assert_first_wrong(&judge("tiny-gpt2", &gpt2(), &faulty), AttnNorm);
}

#[test]
fn gelu_erf_instead_of_gelu_tanh_is_found_in_the_activation() {
    let mut model = gpt2();
    model.config.activation = Activation::GeluErf;
    let judge = |reference, numerics: &dyn Numerics| {
        judge_against(&reference_of("tiny-gpt2", reference), &model, numerics, &mut ())
    };
    assert_first_wrong(&judge("llama.cpp-f32", &LLAMA_CPP_F32), FfnAct);
    assert_first_wrong(&judge("transformers-f32", &Transformers::F32), FfnAct);
    assert_first_wrong(&judge("tinygrad-f32", &F32), FfnAct);
}

#[test]
fn position_embeddings_off_by_one_are_found_in_the_embeddings() {
    let mut model = gpt2();
    model.position_embd = model.position_embd.rows_from(1, model.position_embd.rows - 1);
    let outcome = judge("tiny-gpt2", &model, &LLAMA_CPP_F32);
    let found = outcome.first_divergence().map(|row| row.site);
    assert_eq!(found, Some(Site { point: Embed, layer: None, pass: Some(0) }));
}

#[test]
fn a_dropped_bias_is_found_at_its_projection() {
    type Product = fn(&mut Gpt2Block) -> &mut AffineMatrix;
    let products: [(Product, Point); 6] = [
        (|block| &mut block.q, Q),
        (|block| &mut block.k, K),
        (|block| &mut block.v, V),
        (|block| &mut block.attn_output, AttnOut),
        (|block| &mut block.ffn_up, FfnUp),
        (|block| &mut block.ffn_down, FfnOut),
    ];
    for (product, point) in products {
        let mut model = gpt2();
        product(&mut model.layers[0]).bias.fill(0.0);
        assert_first_wrong(&judge("tiny-gpt2", &model, &LLAMA_CPP_F32), point);
    }
}

#[test]
fn a_weight_that_should_be_transposed_and_is_not_is_found_at_its_product() {
    let mut model = gpt2();
    let output = &model.layers[0].attn_output.weight;
    let data = (0..output.rows).flat_map(|row| output.row(row).to_vec()).collect::<Vec<u8>>();
    let stored =
        StoredTensor { dtype: output.dtype, shape: vec![output.rows, output.cols], data: data.into() };
    model.layers[0].attn_output.weight = Matrix::transposed(&stored).expect("it is plain");
    assert_first_wrong(&judge("tiny-gpt2", &model, &LLAMA_CPP_F32), AttnOut);
}

#[test]
fn a_fused_qkv_split_in_the_wrong_order_is_found_in_the_queries() {
    let mut model = gpt2();
    let block = &mut model.layers[0];
    std::mem::swap(&mut block.q, &mut block.k);
    assert_first_wrong(&judge("tiny-gpt2", &model, &LLAMA_CPP_F32), Q);
}

#[test]
fn a_tied_lm_head_that_is_not_the_embedding_table_is_found_in_the_logits() {
    let mut model = gpt2();
    model.output = narrowed(&llama3().output, model.output.cols);
    let outcome = judge("tiny-gpt2", &model, &LLAMA_CPP_F32);
    let found = outcome.first_divergence().map(|row| row.site);
    assert_eq!(found, Some(Site { point: Logits, layer: None, pass: Some(0) }));
}
