//! The twelve checkpoints of a forward pass and their tap points: order, axes, meaning.
//!
//! This table is the vocabulary of the whole project: dumps, reports and the command line name a value
//! by a [`Point`] and judge it under a [`Checkpoint`].

mod module_path;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use module_path::ModulePath;

macro_rules! checkpoints {
    ($($variant:ident $name:literal $meaning:literal;)*) => {
        /// One of the twelve checkpoints at which engines are compared, or [`Checkpoint::Input`], the embeddings before
        /// them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Checkpoint { $(#[doc = $meaning] $variant,)* }

        impl Checkpoint {
            const EVERY: &'static [Checkpoint] = &[$(Checkpoint::$variant,)*];

            /// Returns the name used on the command line and in reports.
            pub fn name(self) -> &'static str {
                match self { $(Checkpoint::$variant => $name,)* }
            }

            /// Returns a description in one line.
            pub fn meaning(self) -> &'static str {
                match self { $(Checkpoint::$variant => $meaning,)* }
            }
        }
    };
}

checkpoints! {
    Input "input" "input of layer 0: token and position embeddings";
    Norm "norm" "the norm before attention";
    Qkv "qkv" "query, key and value projections";
    Rope "rope" "queries and keys with positions, and the KV cache attention reads";
    Scores "scores" "scaled dot products and their softmax";
    AttnOut "attn_out" "attention output, projected and added to the residual stream";
    FfnOut "ffn_out" "the feed-forward block";
    BlockOut "block_out" "the layer's output, residual included";
    Logits "logits" "last norm and vocabulary logits of every position";
    LastLogits "last_logits" "the row of logits that sampling uses";
    Argmax "argmax" "the greedy choice";
    Probs "probs" "softmax of the last logits over the temperature";
    Generation "generation" "the whole greedy continuation";
}

impl Checkpoint {
    /// Returns the twelve checkpoints in order, without [`Checkpoint::Input`].
    pub fn all() -> &'static [Checkpoint] {
        &Self::EVERY[1..]
    }

    /// Returns the input and the twelve checkpoints, in order.
    pub const fn with_input() -> &'static [Checkpoint] {
        Self::EVERY
    }

    /// Returns the number: 1 to 12, or 0 for the input.
    pub fn number(self) -> usize {
        self as usize
    }

    /// Returns the tap points judged under this checkpoint, in data-flow order.
    pub fn points(self) -> impl Iterator<Item = Point> {
        Point::ALL.iter().copied().filter(move |point| point.checkpoint() == self)
    }
}

/// Meaning of an axis of a tapped value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TapAxis {
    /// Sequences of a batch.
    Batch,
    /// Tokens of this pass.
    Token,
    /// Query heads.
    Head,
    /// Query heads that share one key-value head.
    Group,
    /// Key and value heads.
    KvHead,
    /// Values of one head.
    HeadDim,
    /// The hidden size (or all heads merged).
    Hidden,
    /// The feed-forward size.
    Ffn,
    /// Key positions: every token read so far.
    Key,
    /// Vocabulary entries.
    Vocab,
    /// Some tokens of the vocabulary, each with its id.
    Rank,
    /// Experts of a layer.
    Expert,
    /// Chosen experts of a token, each with its index.
    Chosen,
    /// Columns of the matrix of a head.
    State,
}

impl TapAxis {
    /// Names of the axes in a dump's manifest.
    const NAMES: [(TapAxis, &'static str); 14] = [
        (TapAxis::Batch, "batch"),
        (TapAxis::Token, "token"),
        (TapAxis::Head, "head"),
        (TapAxis::Group, "group"),
        (TapAxis::KvHead, "kv_head"),
        (TapAxis::HeadDim, "head_dim"),
        (TapAxis::Hidden, "hidden"),
        (TapAxis::Ffn, "ffn"),
        (TapAxis::Key, "key"),
        (TapAxis::Vocab, "vocab"),
        (TapAxis::Rank, "rank"),
        (TapAxis::Expert, "expert"),
        (TapAxis::Chosen, "chosen"),
        (TapAxis::State, "state"),
    ];

    /// Returns the name used in a dump's manifest.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// Returns the names of several axes.
    pub fn names(axes: impl IntoIterator<Item = TapAxis>) -> Vec<String> {
        axes.into_iter().map(|axis| axis.name().to_owned()).collect()
    }
}

impl FromStr for TapAxis {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(axis, _)| *axis).ok_or(())
    }
}

/// Frequency of a tap: once per run, per pass or per layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapScope {
    /// Once per layer and pass.
    Layer,
    /// Once per pass.
    Pass,
    /// Once per run.
    Run,
}

/// Kind of a value: a measurement or a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Real numbers, compared within a tolerance.
    Real,
    /// Token ids or expert indices, compared for equality.
    Token,
}

macro_rules! points {
    ($($variant:ident $name:literal $checkpoint:ident $scope:ident $axes:tt $meaning:literal <- $inputs:tt;)*) => {
        /// One named intermediate value of the forward pass, in data-flow order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Point {
            $(#[doc = $meaning] $variant,)*
            /// The output of a module, in a model that our engine does not support.
            Module(ModulePath),
        }

        impl Point {
            /// All taps, in data-flow order.
            pub const ALL: &'static [Point] = &[$(Point::$variant,)*];

            /// Returns the name used in dumps and reports.
            pub fn name(self) -> &'static str {
                match self { $(Point::$variant => $name,)* Point::Module(path) => path.name() }
            }

            /// Returns the checkpoint that the tap is judged under.
            pub fn checkpoint(self) -> Checkpoint {
                match self { $(Point::$variant => Checkpoint::$checkpoint,)* Point::Module(path) => of_module(path) }
            }

            /// Returns how often the tap occurs.
            pub fn scope(self) -> TapScope {
                match self {
                    $(Point::$variant => TapScope::$scope,)*
                    Point::Module(path) if path.in_layer().is_some() => TapScope::Layer,
                    Point::Module(_) => TapScope::Pass,
                }
            }

            /// Returns the axes, outermost first. Empty for a module's output, whose axes are unknown.
            pub fn axes(self) -> &'static [TapAxis] {
                use TapAxis::*;
                match self { $(Point::$variant => &$axes,)* Point::Module(_) => &[] }
            }

            /// Returns a number that is different for each tap.
            fn number(self) -> u64 {
                enum Order { $($variant,)* Modules }
                match self {
                    $(Point::$variant => Order::$variant as u64,)*
                    Point::Module(path) => Order::Modules as u64 + u64::from(path.number()),
                }
            }

            /// Returns a description in one line.
            pub fn meaning(self) -> &'static str {
                match self { $(Point::$variant => $meaning,)* Point::Module(_) => "output of a module" }
            }

            /// Returns the taps from which a tap is computed, apart from weights and earlier passes. Each entry lists
            /// alternatives, nearest first: an architecture without the nearest tap uses the next one.
            pub fn inputs(self) -> &'static [&'static [Point]] {
                use Point::*;
                match self { $(Point::$variant => &$inputs,)* Point::Module(_) => &[] }
            }
        }
    };
}

points! {
    Tokens       "tokens"         Input    Run   [Token]                   "the prompt's token ids, by the model's own tokenizer (known cases only)" <- [];
    Embed        "embed"          Input    Pass  [Token, Hidden]           "token (and position) embeddings, after any embedding scale or norm" <- [];
    AltupProjected "altup_projected" Input    Pass  [Token, Hidden]            "projections of the embeddings to AltUp's other streams" <- [&[Embed]];
    AltupStreams "altup_streams"  Input    Pass  [Token, Hidden]            "AltUp's streams that layer 0 reads: the embeddings, and the projections with their magnitude" <- [&[AltupProjected], &[Embed]];
    PredictRouter "predict_router" Norm     Layer [Token, Hidden]            "AltUp's router of the predictions, after tanh" <- [&[BlockOut, AltupStreams]];
    PredictCoefs "predict_coefs"  Norm     Layer [Token, Hidden]            "coefficients of the predictions of AltUp's streams" <- [&[PredictRouter]];
    AltupPredicted "altup_predicted" Norm     Layer [Token, Hidden]            "predictions of AltUp's streams, side by side" <- [&[PredictCoefs], &[BlockOut, AltupStreams]];
    AttnNorm     "attn_norm"      Norm     Layer [Token, Hidden]           "output of the norm before attention" <- [&[AltupPredicted, BlockOut, Embed]];
    MixerIn      "mixer_in"       Qkv      Layer [Token, Hidden]           "projections of a recurrent layer, before they are split" <- [&[AttnNorm, BlockOut, Embed]];
    ConvIn       "conv_in"        Qkv      Layer [Token, Hidden]           "input of the short convolution, gated if the layer has a gate before it" <- [&[MixerIn, AttnNorm, BlockOut, Embed]];
    MixerGate    "mixer_gate"     Qkv      Layer [Token, Hidden]           "gate of a recurrent layer's norm, before its activation" <- [&[AttnNorm, BlockOut, Embed]];
    BetaLogit    "beta_logit"     Qkv      Layer [Token, Head]             "logits of β of the gated delta rule" <- [&[AttnNorm, BlockOut, Embed]];
    DecayLogit   "decay_logit"    Qkv      Layer [Token, Head]             "projections that the decay of linear attention is computed from" <- [&[AttnNorm, BlockOut, Embed]];
    ConvOut      "conv_out"       Qkv      Layer [Token, Hidden]           "short convolution with its bias, before any activation" <- [&[ConvIn]];
    ConvAct      "conv_act"       Qkv      Layer [Token, Hidden]           "short convolution after its activation" <- [&[ConvOut]];
    StepSize     "step_size"      Qkv      Layer [Token, Head]             "step sizes of a recurrence, after softplus and limits" <- [&[MixerIn]];
    QLatent      "q_latent"       Qkv      Layer [Token, Hidden]           "compressed queries" <- [&[AttnNorm, BlockOut, Embed]];
    QLatentNorm  "q_latent_norm"  Qkv      Layer [Token, Hidden]           "compressed queries after their norm" <- [&[QLatent]];
    Q            "q"              Qkv      Layer [Token, Head, HeadDim]    "queries after projection and bias, before q-norm and RoPE" <- [&[QLatentNorm, AttnNorm, BlockOut, Embed]];
    K            "k"              Qkv      Layer [Token, KvHead, HeadDim]  "keys after projection and bias, before k-norm and RoPE" <- [&[AttnNorm, BlockOut, Embed]];
    V            "v"              Qkv      Layer [Token, KvHead, HeadDim]  "values after projection and bias" <- [&[AttnNorm, BlockOut, Embed]];
    AttnGate     "attn_gate"      Qkv      Layer [Token, Hidden]           "output gate of attention, before its sigmoid" <- [&[AttnNorm, BlockOut, Embed]];
    KvLatent     "kv_latent"      Qkv      Layer [Token, Hidden]           "compressed keys and values, and the part of keys that rotates" <- [&[AttnNorm, BlockOut, Embed]];
    KvLatentNorm "kv_latent_norm" Qkv      Layer [Token, Hidden]           "compressed keys and values after their norm" <- [&[KvLatent]];
    QNorm        "q_norm"         Qkv      Layer [Token, Head, HeadDim]    "queries after their norm, of each head or of all" <- [&[Q]];
    KNorm        "k_norm"         Qkv      Layer [Token, KvHead, HeadDim]  "keys after their norm, of each head or of all" <- [&[K]];
    VNorm        "v_norm"         Qkv      Layer [Token, KvHead, HeadDim]  "values after a norm of each head, which has no weight" <- [&[V]];
    QRope        "q_rope"         Rope     Layer [Token, Head, HeadDim]    "queries after RoPE" <- [&[QNorm, Q]];
    KRope        "k_rope"         Rope     Layer [Token, KvHead, HeadDim]  "keys after RoPE; latents and the rotated part of keys, if these are compressed" <- [&[KvLatentNorm, KNorm, K], &[KvLatent]];
    QScaled      "q_scaled"       Rope     Layer [Token, Head, HeadDim]    "queries times the temperature of their position" <- [&[QRope]];
    QRopeNorm    "q_rope_norm"    Rope     Layer [Token, Head, HeadDim]    "queries after RoPE and a norm of each head" <- [&[QRope]];
    KRopeNorm    "k_rope_norm"    Rope     Layer [Token, KvHead, HeadDim]  "keys after RoPE and a norm of each head" <- [&[KRope]];
    KCache       "k_cache"        Rope     Layer [Key, KvHead, HeadDim]    "keys of every position so far, as attention reads them" <- [&[KRopeNorm, KRope]];
    VCache       "v_cache"        Rope     Layer [Key, KvHead, HeadDim]    "values of every position so far, as attention reads them" <- [&[VNorm, V, KvLatentNorm]];
    QUnit        "q_unit"         Rope     Layer [Token, Hidden]           "queries of linear attention after their L2 norm, before any scale, heads merged" <- [&[ConvAct]];
    KUnit        "k_unit"         Rope     Layer [Token, Hidden]           "keys of linear attention after their L2 norm, heads merged" <- [&[ConvAct]];
    Beta         "beta"           Rope     Layer [Token, Head]             "β of the gated delta rule (write strength, 0 to 1)" <- [&[BetaLogit]];
    Decay        "decay"          Rope     Layer [Token, Head]             "logarithms of the decay of the state of linear attention" <- [&[DecayLogit]];
    RecurrentState "recurrent_state" Rope  Layer [Head, HeadDim, State]    "recurrent state after the pass's last token" <- [&[ConvAct], &[StepSize, KUnit, ConvAct], &[Beta, ConvAct], &[Decay, ConvAct]];
    KExpanded    "k_expanded"     Rope     Layer [Key, Head, HeadDim]      "keys of every position so far, expanded from latents" <- [&[VCache], &[KCache]];
    VExpanded    "v_expanded"     Rope     Layer [Key, Head, HeadDim]      "values of every position so far, expanded from latents" <- [&[VCache]];
    AttnScores   "attn_scores"    Scores   Layer [Head, Token, Key]        "scaled q·k, before ALiBi, mask and softmax" <- [&[QRopeNorm, QScaled, QRope], &[KExpanded, KCache]];
    AttnWeights  "attn_weights"   Scores   Layer [Head, Token, Key]        "attention weights, after mask and softmax" <- [&[AttnScores]];
    AttnLatent   "attn_latent"    AttnOut  Layer [Token, Head, HeadDim]    "weights · latents, before they are expanded to values" <- [&[AttnWeights], &[VCache]];
    AttnContext  "attn_context"   AttnOut  Layer [Token, Hidden]           "weights · v, heads merged" <- [&[AttnLatent, AttnWeights], &[VExpanded, VCache]];
    AttnGated    "attn_gated"     AttnOut  Layer [Token, Hidden]           "weights · v times the sigmoid of the gate" <- [&[AttnContext], &[AttnGate]];
    RecurrentOut "recurrent_out"  AttnOut  Layer [Token, Hidden]           "output of the recurrence with heads merged, before the gated norm" <- [&[ConvAct], &[StepSize, QUnit, ConvAct], &[KUnit, ConvAct], &[Beta, ConvAct], &[Decay, ConvAct]];
    RecurrentNorm "recurrent_norm" AttnOut Layer [Token, Hidden]           "gated norm of the recurrence's output" <- [&[RecurrentOut], &[MixerGate, MixerIn]];
    MixerOut     "mixer_out"      AttnOut  Layer [Token, Hidden]           "output of a recurrence in parallel with attention, after its output projection" <- [&[RecurrentNorm]];
    ConvGated    "conv_gated"     AttnOut  Layer [Token, Hidden]           "short convolution times the gate after it" <- [&[ConvOut], &[MixerIn]];
    AttnSubNorm  "attn_sub_norm"  AttnOut  Layer [Token, Hidden]           "norm before the output projection" <- [&[AttnContext]];
    AttnOut      "attn_out"       AttnOut  Layer [Token, Hidden]           "attention, or what replaces it, after the output projection and bias" <- [&[AttnSubNorm, AttnGated, AttnContext, RecurrentNorm, ConvGated]];
    AttnPostNorm "attn_post_norm" AttnOut  Layer [Token, Hidden]           "norm after attention, before the residual add" <- [&[AttnOut]];
    AttnResidual "attn_residual"  AttnOut  Layer [Token, Hidden]           "the residual stream after attention was added" <- [&[AttnPostNorm, AttnOut], &[MixerOut], &[AltupPredicted, BlockOut, Embed]];
    LaurelLow    "laurel_low"     AttnOut  Layer [Token, Hidden]            "first projection of a learned low-rank residual" <- [&[AttnNorm]];
    LaurelHigh   "laurel_high"    AttnOut  Layer [Token, Hidden]            "second projection of a learned low-rank residual" <- [&[LaurelLow]];
    LaurelNorm   "laurel_norm"    AttnOut  Layer [Token, Hidden]            "norm of a learned low-rank residual" <- [&[LaurelHigh]];
    LaurelOut    "laurel_out"     AttnOut  Layer [Token, Hidden]            "learned low-rank residual with its input added" <- [&[LaurelNorm], &[AttnNorm]];
    LaurelResidual "laurel_residual" AttnOut  Layer [Token, Hidden]            "the residual stream plus the low-rank residual, divided by √2" <- [&[AttnResidual], &[LaurelOut]];
    FfnNorm      "ffn_norm"       FfnOut   Layer [Token, Hidden]           "output of the norm before the feed-forward block" <- [&[LaurelResidual, AttnResidual, BlockOut, Embed]];
    RouterNorm   "router_norm"    FfnOut   Layer [Token, Hidden]           "input of the router after its own norm and factors" <- [&[AttnResidual]];
    RouterLogits "router_logits"  FfnOut   Layer [Token, Expert]           "logits of the experts, before any softmax" <- [&[RouterNorm, FfnNorm, AttnResidual]];
    ExpertScores "expert_scores"  FfnOut   Layer [Token, Expert]           "scores by which experts are chosen, with a correction bias and before groups are left out" <- [&[RouterLogits]];
    Experts      "experts"        FfnOut   Layer [Token, Chosen]           "indices of the chosen experts of a token, in any order" <- [&[ExpertScores, RouterLogits]];
    ExpertWeights "expert_weights" FfnOut  Layer [Token, Chosen]           "weights of the chosen experts, after softmax and normalisation" <- [&[RouterLogits], &[Experts]];
    ExpertNorm   "expert_norm"    FfnOut   Layer [Token, Hidden]           "output of the norm before experts, if they have a norm of their own" <- [&[AttnResidual]];
    ExpertLatent "expert_latent"  FfnOut   Layer [Token, Hidden]           "compressed inputs of experts" <- [&[FfnNorm]];
    ExpertIn     "expert_in"      FfnOut   Layer [Token, Chosen, Hidden]   "inputs of the chosen experts, times their weights" <- [&[FfnNorm, AttnResidual], &[ExpertWeights]];
    ExpertGate   "expert_gate"    FfnOut   Layer [Token, Chosen, Ffn]      "gate projections of the chosen experts, before the activation" <- [&[ExpertIn, ExpertLatent, ExpertNorm, FfnNorm, AttnResidual], &[Experts]];
    ExpertUp     "expert_up"      FfnOut   Layer [Token, Chosen, Ffn]      "up projections of the chosen experts" <- [&[ExpertIn, ExpertLatent, ExpertNorm, FfnNorm, AttnResidual], &[Experts]];
    ExpertAct    "expert_act"     FfnOut   Layer [Token, Chosen, Ffn]      "act(gate) · up of the chosen experts, or act(up) without a gate" <- [&[ExpertGate, ExpertUp], &[ExpertUp]];
    ExpertOut    "expert_out"     FfnOut   Layer [Token, Chosen, Hidden]   "outputs of the chosen experts after the down projection, before their weights" <- [&[ExpertAct], &[Experts]];
    RoutedLatent "routed_latent"  FfnOut   Layer [Token, Hidden]           "weighted sum over the chosen experts, before it is expanded" <- [&[ExpertOut], &[ExpertWeights]];
    RoutedOut    "routed_out"     FfnOut   Layer [Token, Hidden]           "weighted sum over the chosen experts, before the shared expert is added" <- [&[RoutedLatent, ExpertOut], &[RoutedLatent, ExpertWeights]];
    RoutedPostNorm "routed_post_norm" FfnOut Layer [Token, Hidden]         "norm of the weighted sum over the chosen experts" <- [&[RoutedOut]];
    SharedGate   "shared_gate"    FfnOut   Layer [Token, Ffn]              "gate projection of the shared expert, before the activation" <- [&[FfnNorm, AttnResidual]];
    SharedUp     "shared_up"      FfnOut   Layer [Token, Ffn]              "up projection of the shared expert" <- [&[FfnNorm, AttnResidual]];
    SharedAct    "shared_act"     FfnOut   Layer [Token, Ffn]              "act(gate) · up of the shared expert, or act(up) without a gate" <- [&[SharedGate, SharedUp], &[SharedUp]];
    SharedOut    "shared_out"     FfnOut   Layer [Token, Hidden]           "output of the shared expert after the down projection, before its weight" <- [&[SharedAct]];
    SharedPostNorm "shared_post_norm" FfnOut Layer [Token, Hidden]         "norm of the shared expert's output" <- [&[SharedOut]];
    SharedLogit  "shared_logit"   FfnOut   Layer [Token]                   "logit of the shared expert's weight" <- [&[FfnNorm, AttnResidual]];
    SharedWeight "shared_weight"  FfnOut   Layer [Token]                   "weight of the shared expert, after the sigmoid" <- [&[SharedLogit]];
    FfnGate      "ffn_gate"       FfnOut   Layer [Token, Ffn]              "gate projection, before the activation" <- [&[FfnNorm, AttnNorm, AttnResidual]];
    FfnSparse    "ffn_sparse"     FfnOut   Layer [Token, Ffn]               "gate above the threshold of a sparse layer, before the activation" <- [&[FfnGate]];
    FfnUp        "ffn_up"         FfnOut   Layer [Token, Ffn]              "up projection, before the activation" <- [&[FfnNorm, AttnNorm, AttnResidual]];
    FfnAct       "ffn_act"        FfnOut   Layer [Token, Ffn]              "act(gate) · up, or act(up) without a gate" <- [&[FfnSparse, FfnGate, FfnUp], &[FfnUp]];
    FfnSubNorm   "ffn_sub_norm"   FfnOut   Layer [Token, Ffn]              "norm before the down projection" <- [&[FfnAct]];
    FfnOut       "ffn_out"        FfnOut   Layer [Token, Hidden]           "feed-forward output after the down projection and bias, or the weighted sum over experts" <- [&[RoutedPostNorm, RoutedOut, FfnSubNorm, ExpertOut, FfnAct], &[SharedPostNorm, SharedOut, ExpertWeights], &[SharedWeight, ExpertWeights]];
    FfnPostNorm  "ffn_post_norm"  FfnOut   Layer [Token, Hidden]           "norm after the feed-forward block, before the residual add" <- [&[FfnOut]];
    FfnResidual  "ffn_residual"   BlockOut Layer [Token, Hidden]           "the residual stream after the feed-forward block was added, before the layer's embeddings" <- [&[FfnPostNorm], &[LaurelResidual, AttnResidual]];
    CorrectRouter "correct_router" BlockOut Layer [Token, Hidden]            "AltUp's router of the corrections, after tanh" <- [&[FfnResidual]];
    CorrectCoefs "correct_coefs"  BlockOut Layer [Token, Hidden]            "coefficients of the corrections of AltUp's streams, before 1 is added" <- [&[CorrectRouter]];
    AltupCorrected "altup_corrected" BlockOut Layer [Token, Hidden]            "corrected streams of AltUp, side by side" <- [&[CorrectCoefs], &[FfnResidual], &[AltupPredicted]];
    AltupActive  "altup_active"   BlockOut Layer [Token, Hidden]            "AltUp's active stream times its factors, which gates the layer's embeddings" <- [&[AltupCorrected]];
    LayerInput   "layer_input"    BlockOut Layer [Token, Ffn]              "embeddings of the tokens for this layer" <- [&[Embed]];
    LayerGate    "layer_gate"     BlockOut Layer [Token, Ffn]              "gate of the layer's embeddings, before the activation" <- [&[AltupActive, AltupCorrected, FfnResidual]];
    LayerAct     "layer_act"      BlockOut Layer [Token, Ffn]              "act(gate) times the layer's embeddings" <- [&[LayerGate], &[LayerInput]];
    LayerOut     "layer_out"      BlockOut Layer [Token, Hidden]           "the layer's embeddings after their projection to the stream" <- [&[LayerAct]];
    LayerPostNorm "layer_post_norm" BlockOut Layer [Token, Hidden]         "norm of the layer's embeddings, before they are added" <- [&[LayerOut]];
    BlockOut     "block_out"      BlockOut Layer [Token, Hidden]           "the layer's output, residual included; of AltUp, all streams side by side" <- [&[LayerPostNorm, FfnPostNorm, FfnOut], &[AltupCorrected, FfnResidual, AttnResidual, AttnOut], &[AttnResidual, BlockOut, Embed]];
    AltupUnembedded "altup_unembedded" Logits   Pass  [Token, Hidden]            "projections of AltUp's other streams after the last layer" <- [&[BlockOut]];
    AltupMean    "altup_mean"     Logits   Pass  [Token, Hidden]            "mean of AltUp's streams, with the magnitude of the first" <- [&[AltupUnembedded], &[BlockOut]];
    FinalNorm    "final_norm"     Logits   Pass  [Token, Hidden]           "output of the last norm" <- [&[AltupMean, BlockOut]];
    Logits       "logits"         Logits   Pass  [Token, Vocab]            "logits of every position" <- [&[FinalNorm]];
    LastLogits   "last_logits"    LastLogits Pass [Vocab]                  "the row of logits that sampling uses" <- [&[Logits]];
    Argmax       "argmax"         Argmax   Pass  []                        "the greedy choice, the lowest index on a tie" <- [&[LastLogits]];
    Probs        "probs"          Probs    Pass  [Vocab]                   "softmax(last_logits / temperature)" <- [&[LastLogits]];
    TokenLogprobs "token_logprobs" Probs   Pass  [Token]                   "log-probability of the token that followed, natural" <- [&[Logits]];
    TopIds       "top_ids"        Probs    Pass  [Token, Rank]             "ids of the most likely tokens after each position" <- [&[Logits]];
    TopLogprobs  "top_logprobs"   Probs    Pass  [Token, Rank]             "log-probabilities of the most likely tokens, natural" <- [&[Logits]];
    Generated    "generated"      Generation Run [Token]                   "the whole greedy continuation" <- [&[Argmax]];
}

/// Returns the checkpoint of a module's output, by the module's place in its layer and by the usual names of modules.
fn of_module(path: ModulePath) -> Checkpoint {
    const EMBEDDINGS: [&str; 8] = ["embed", "wte", "wpe", "patch", "conv1", "conv2", "position", "rotary"];
    const MIXERS: [&str; 7] = ["att", "mixer", "mamba", "conv", "recurrent", "temporal", "rwkv"];
    const FEED_FORWARD: [&str; 10] =
        ["mlp", "ffn", "feed", "moe", "expert", "router", "fc", "intermediate", "shared", "output"];
    let has = |part: &str, words: &[&str]| words.iter().any(|word| part.contains(word));
    let Some(parts) = path.in_layer() else {
        let is_embedding = |part: &str| has(part, &EMBEDDINGS) && part != "embed_out";
        return if path.parts().any(is_embedding) { Checkpoint::Input } else { Checkpoint::Logits };
    };
    let [first, rest @ ..] = parts.as_slice() else { return Checkpoint::BlockOut };
    let last = path.last();
    let is_norm = has(first, &["norm", "ln"]);
    let is_late =
        has(first, &["post", "ffn", "feed", "mlp", "ln_2", "ln2", "norm2", "norm_2", "final", "output"]);
    match () {
        () if is_norm && !is_late => Checkpoint::Norm,
        () if !is_norm && has(first, &MIXERS) => match rest {
            [] => Checkpoint::AttnOut,
            _ if has(last, &["rotary", "rope"]) => Checkpoint::Rope,
            _ if has(last, &["q", "k_", "v_", "key", "value", "c_attn", "in_proj"]) => Checkpoint::Qkv,
            _ => Checkpoint::AttnOut,
        },
        () if is_norm || has(first, &FEED_FORWARD) => Checkpoint::FfnOut,
        () => Checkpoint::BlockOut,
    }
}

impl Point {
    /// Returns the kind of the tap's values: real numbers or ids.
    pub fn kind(self) -> ValueKind {
        match self {
            Point::Tokens | Point::Experts | Point::Argmax | Point::TopIds | Point::Generated => {
                ValueKind::Token
            }
            _ => ValueKind::Real,
        }
    }

    /// Returns true if the tap's type depends only on the type of products. If an engine computes only products in a
    /// short type, the tap's values have that type.
    pub fn is_of_products(self) -> bool {
        use Point::{
            AltupProjected, AltupUnembedded, AttnContext, AttnGate, AttnGated, AttnOut, Beta, BetaLogit,
            ConvAct, ConvGated, ConvIn, ConvOut, CorrectCoefs, DecayLogit, ExpertAct, ExpertGate,
            ExpertLatent, ExpertOut, ExpertUp, FfnAct, FfnGate, FfnOut, FfnUp, K, KExpanded, KvLatent,
            LastLogits, LaurelHigh, LaurelLow, LayerGate, LayerOut, Logits, MixerGate, MixerIn, MixerOut,
            PredictCoefs, Q, QLatent, RoutedLatent, RoutedOut, RouterLogits, SharedAct, SharedGate,
            SharedLogit, SharedOut, SharedUp, SharedWeight, V, VExpanded,
        };
        let is_of_layers =
            matches!(self, Q | K | V | AttnContext | AttnOut | FfnGate | FfnUp | FfnAct | FfnOut);
        let is_of_experts =
            matches!(self, RouterLogits | ExpertLatent | ExpertGate | ExpertUp | ExpertAct | ExpertOut);
        let is_of_shared =
            matches!(self, RoutedLatent | RoutedOut | SharedGate | SharedUp | SharedAct | SharedOut)
                || matches!(self, SharedLogit | SharedWeight);
        let is_of_latents = matches!(self, QLatent | KvLatent | KExpanded | VExpanded);
        let is_of_convolutions = matches!(self, MixerIn | MixerOut | ConvIn | ConvOut | ConvAct | ConvGated);
        let is_of_linear_attention = matches!(self, MixerGate | BetaLogit | Beta | DecayLogit);
        let is_of_gates = matches!(self, AttnGate | AttnGated | LayerGate | LayerOut);
        let is_of_streams = matches!(self, AltupProjected | AltupUnembedded | PredictCoefs | CorrectCoefs)
            || matches!(self, LaurelLow | LaurelHigh);
        is_of_latents
            || is_of_streams
            || is_of_convolutions
            || is_of_linear_attention
            || is_of_gates
            || is_of_layers
            || is_of_experts
            || is_of_shared
            || matches!(self, Logits | LastLogits)
    }

    /// Returns true if the tap is an exact function of its inputs, apart from at most one rounding that is the same in
    /// every engine. If a dump lacks the tap, it is computed from the inputs.
    pub fn is_derived(self) -> bool {
        use Point::*;
        matches!(self, Embed | KCache | VCache | AttnResidual | FfnResidual | BlockOut | LastLogits | Argmax)
    }

    /// Returns true if the tap is computed from the logits for ids that a dump lists. It exists only in dumps that
    /// record it.
    pub fn is_of_named_ids(self) -> bool {
        matches!(self, Point::TokenLogprobs | Point::TopIds | Point::TopLogprobs)
    }

    /// Returns true for the embeddings and the taps between them and the layers.
    pub fn is_before_layers(self) -> bool {
        matches!(self, Point::Embed | Point::AltupProjected | Point::AltupStreams)
    }

    /// Returns true if only mixture-of-experts models have the tap.
    pub fn is_of_experts(self) -> bool {
        (Point::RouterNorm..=Point::SharedWeight).contains(&self)
    }

    /// Returns true if only mixtures with a shared expert have the tap.
    pub fn is_of_shared_expert(self) -> bool {
        (Point::RoutedOut..=Point::SharedWeight).contains(&self)
    }

    /// Returns true if only models without experts have the tap.
    pub fn is_of_one_block(self) -> bool {
        (Point::FfnGate..=Point::FfnSubNorm).contains(&self)
    }

    /// Returns true if the tap has an entry for each chosen expert. Engines store the chosen experts in different
    /// orders.
    pub fn is_of_chosen(self) -> bool {
        self.axes().contains(&TapAxis::Chosen)
    }

    /// Returns true if only layers with a short convolution or a recurrence have the tap.
    pub fn is_of_recurrent_layers(self) -> bool {
        use Point::{
            ConvGated, MixerIn, MixerOut, QUnit, RecurrentNorm, RecurrentOut, RecurrentState, StepSize,
        };
        (MixerIn..=StepSize).contains(&self)
            || (QUnit..=RecurrentState).contains(&self)
            || matches!(self, RecurrentOut | RecurrentNorm | MixerOut | ConvGated)
    }

    /// Returns true if the tap's heads are those of a recurrence. Their number may differ from the number of attention
    /// heads.
    pub fn has_own_heads(self) -> bool {
        use Point::{Beta, BetaLogit, Decay, DecayLogit, RecurrentState, StepSize};
        matches!(self, RecurrentState | StepSize | Beta | BetaLogit | Decay | DecayLogit)
    }

    /// Returns true if the layout of the tap's heads follows the RoPE pairing.
    pub fn follows_rope_pairing(self) -> bool {
        use Point::*;
        matches!(self, Q | K | QNorm | KNorm | QRope | KRope | QScaled | QRopeNorm | KRopeNorm | KCache)
    }
}

macro_rules! named {
    ($type:ident, $every:expr, $what:literal, $other:expr, $module:expr) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                $every.iter().copied().find(|known| known.name() == name).or_else(|| $other(name)).ok_or_else(
                    || {
                        let known: Vec<_> = $every.iter().map(|known| known.name()).collect();
                        format!(concat!("no ", $what, " is named '{}'; known: {}"), name, known.join(", "))
                    },
                )
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = String::deserialize(deserializer)?;
                name.parse().or_else(|problem| $module(&name).ok_or(problem)).map_err(D::Error::custom)
            }
        }
    };
}

named!(Checkpoint, Checkpoint::EVERY, "checkpoint", |_| None, |_: &str| None);
named!(Point, Point::ALL, "tap", of_path, of_module_name);

/// Parses the name of a module, which may be a single word in a report.
fn of_module_name(name: &str) -> Option<Point> {
    ModulePath::named(name).ok().map(Point::Module)
}

/// Parses the path of a module as the tap of its output. `None` for a single word, which is a misspelled tap name.
fn of_path(name: &str) -> Option<Point> {
    let has_parts = name.contains(['.', '*', '#']);
    has_parts.then(|| of_module_name(name)).flatten()
}

/// A tap point at one layer and pass of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// Tap.
    #[serde(rename = "tap")]
    pub point: Point,
    /// Layer, for taps inside a layer.
    pub layer: Option<usize>,
    /// Forward pass, for all taps except [`Point::Tokens`] and [`Point::Generated`].
    pub pass: Option<usize>,
}

impl Site {
    /// Returns a sort key for data-flow order: pass, then the taps before the layers, the layers, and the taps after
    /// them.
    pub fn flow_order(self) -> (usize, usize, Point) {
        let layer = match (self.layer, self.point) {
            (Some(layer), _) => layer + 1,
            (None, point) if point == Point::Tokens || point.is_before_layers() => 0,
            (None, Point::Module(_)) if self.point.checkpoint() == Checkpoint::Input => 0,
            (None, _) => usize::MAX,
        };
        let after_all = if self.point == Point::Tokens { 0 } else { usize::MAX };
        (self.pass.unwrap_or(after_all), layer, self.point)
    }
}

/// Hashes one number instead of each field, for speed: a dump is searched for every value of a run.
impl Hash for Site {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [layer, pass] = [self.layer, self.pass].map(|index| index.map_or(0, |index| index as u64 + 1));
        state.write_u64(self.point.number() | layer << 24 | pass << 44);
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.point)?;
        if let Some(layer) = self.layer {
            write!(f, ", layer {layer}")?;
        }
        if let Some(pass) = self.pass {
            write!(f, ", pass {pass}")?;
        }
        Ok(())
    }
}
