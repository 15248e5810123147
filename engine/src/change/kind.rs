//! The kinds of mistakes that ports make: names for reports, each with its meaning.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

macro_rules! kinds {
    ($($variant:ident $name:literal $meaning:literal;)*) => {
        /// What is computed otherwise.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $(#[doc = $meaning] $variant,)* }

        impl Kind {
            /// Every kind, in the order in which a forward pass comes by them.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            /// The name in reports and on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }

            /// One line for a person.
            pub fn meaning(self) -> &'static str {
                match self { $(Kind::$variant => $meaning,)* }
            }
        }
    };
}

kinds! {
    TokensBos "tokens_bos" "the token that begins a sequence, added or left out";
    TokensPrompt "tokens_prompt" "other tokens than those of the prompt";
    EmbedScale "embed_scale" "what embeddings are multiplied with";
    PositionEmbedding "position_embedding" "the position whose learned embedding is added";
    NormKind "norm_kind" "another norm: RMSNorm, LayerNorm, L2";
    NormEps "norm_eps" "the epsilon of a norm";
    NormVariance "norm_variance" "how the epsilon and the mean square make the divisor of a norm";
    NormWeightOffset "norm_weight_offset" "what is added to the weight of a norm";
    NormWeightOrder "norm_weight_order" "a normed row, rounded before or after its gain";
    NormWeights "norm_weights" "the weight of another layer or norm, or none";
    NormMissing "norm_missing" "a norm that is left out";
    NormScope "norm_scope" "over how many values a norm goes: a head, or all heads";
    NormOrder "norm_order" "a norm before or after what it stands beside";
    RopePairing "rope_pairing" "which two values of a head rotate together";
    RopeTheta "rope_theta" "the base of RoPE's frequencies";
    RopeScaling "rope_scaling" "how RoPE's frequencies are stretched";
    RopePosition "rope_position" "the position that RoPE turns by";
    RopeDirection "rope_direction" "the sense in which RoPE turns";
    RopeMissing "rope_missing" "RoPE that is left out";
    RopeLayers "rope_layers" "which layers rotate: one that does, and should not";
    RopeOnV "rope_on_v" "values that are rotated, too";
    RopeWidth "rope_width" "how many values of a head rotate";
    RopePrecision "rope_precision" "what RoPE's frequencies, angles or tables are rounded to";
    QkPermutation "qk_permutation" "rows of the q and k projections in the order of the other pairing";
    QkvSwap "qkv_swap" "one of the projections q, k and v in the place of another";
    FusedOrder "fused_order" "projections that lie in one matrix (q, k and v; gate and up), cut in another order";
    GqaMapping "gqa_mapping" "which key head a query head reads";
    HeadOrder "head_order" "heads in another order";
    AttnScale "attn_scale" "what q·k is multiplied with";
    Softcap "softcap" "scores or logits that are capped, or are not";
    MaskCausal "mask_causal" "keys after a query that it sees, or its own that it does not";
    MaskWindow "mask_window" "how many of the latest keys a query sees";
    MaskSequences "mask_sequences" "keys of another sequence, or of padding, that a query sees";
    SoftmaxAxis "softmax_axis" "the axis along which softmax goes";
    SoftmaxPrecision "softmax_precision" "what softmax is computed in";
    CacheStale "cache_stale" "rows of the cache that belong to another position or time";
    CachePosition "cache_position" "rows of the cache at other places than their positions";
    Activation "activation" "the nonlinearity of the feed-forward block";
    ExpertCount "expert_count" "how many experts a token chooses";
    ExpertWeights "expert_weights" "whether the weights of experts are divided by the sum of all, or of those that are chosen";
    ExpertOrder "expert_order" "experts in the place of others";
    GateUpSwap "gate_up_swap" "gate and up, each in the place of the other";
    ResidualMissing "residual_missing" "a residual connection that is left out, or adds nothing";
    ResidualScale "residual_scale" "what is multiplied with before a residual add";
    LayerOrder "layer_order" "the weights of another layer";
    LayerMissing "layer_missing" "a layer that is left out";
    LayerPattern "layer_pattern" "which layers slide and which see all";
    WeightTransposed "weight_transposed" "a matrix with rows and columns exchanged";
    WeightMissing "weight_missing" "a weight that is zero or was not loaded";
    WeightCorruption "weight_corruption" "elements of a weight that are others: row:column=value, or row:byte=value of stored blocks";
    WeightPrecision "weight_precision" "a weight that is rounded to a shorter type";
    WeightScale "weight_scale" "a weight that is multiplied with a number";
    WeightLayout "weight_layout" "how the blocks of a quantised weight are decoded";
    BiasMissing "bias_missing" "a bias that is left out";
    ActivationQuant "activation_quant" "how activations are quantised where they meet weights";
    LmHead "lm_head" "the matrix that makes logits";
    LogitScale "logit_scale" "what logits are multiplied with";
    LogitsRow "logits_row" "the row of logits that sampling uses";
    Probs "probs" "how logits become probabilities: their temperature, or what stands in the place of softmax";
    Logprobs "logprobs" "which log-probability is given: its base, its row, its token, and over what it is taken";
    Sampling "sampling" "how a token is chosen from its logits";
    SamplingTie "sampling_tie" "which of the likeliest tokens is chosen";
    NonFinite "non_finite" "values that are not numbers";
    Arithmetic "arithmetic" "where and to what an engine rounds";
    DumpAxes "dump_axes" "axes of a dump in another order than it says";
    DumpTap "dump_tap" "a value that a dump holds under the name of another";
    DumpLayers "dump_layers" "layers of a dump that are counted from another number";
    DumpStorage "dump_storage" "values of a dump that were rounded when they were stored";
    Partial "partial" "some rows, heads, channels, columns or blocks, and no others";
    Unknown "unknown" "nothing of what ports are known to get wrong";
}

impl Kind {
    /// Whether the model's files do not say it: engines differ in it.
    pub fn is_of_numerics(self) -> bool {
        matches!(self, Kind::ActivationQuant | Kind::RopePrecision | Kind::SoftmaxPrecision)
    }

    /// Whether it says what is computed otherwise, and not only where values are wrong.
    pub fn is_cause(self) -> bool {
        !matches!(self, Kind::Partial | Kind::Unknown)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name).ok_or_else(|| {
            format!("nothing is called '{name}' that can be supposed; `xcheck causes` lists what can")
        })
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
