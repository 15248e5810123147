//! Kinds of mistakes in ports: names for reports, each with its meaning.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::change::CauseFamily;

macro_rules! kinds {
    ($($family:ident { $($variant:ident $name:literal $meaning:literal;)* })*) => {
        /// Kind of a cause.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum CauseKind { $($(#[doc = $meaning] #[serde(rename = $name)] $variant,)*)* }

        impl CauseKind {
            /// All kinds, in the order of a forward pass.
            pub const ALL: &'static [CauseKind] = &[$($(CauseKind::$variant,)*)*];

            /// Returns the name in reports and on the command line.
            pub fn name(self) -> &'static str {
                match self { $($(CauseKind::$variant => $name,)*)* }
            }

            /// Returns a description in one line.
            pub fn meaning(self) -> &'static str {
                match self { $($(CauseKind::$variant => $meaning,)*)* }
            }

            /// Returns the part of a model or of a run that the kind belongs to.
            pub fn family(self) -> CauseFamily {
                match self { $($(CauseKind::$variant => CauseFamily::$family,)*)* }
            }
        }
    };
}

kinds! {
    Tokens {
        TokensBos "tokens_bos" "a BOS token that is added or missing";
        TokensPrompt "tokens_prompt" "prompt tokens that differ";
    }
    Embeddings {
        EmbedScale "embed_scale" "the factor that embeddings are multiplied by";
        PositionEmbedding "position_embedding" "the position whose learned embedding is added";
    }
    Norms {
        NormKind "norm_kind" "another kind of norm: RMSNorm, LayerNorm, L2";
        NormEps "norm_eps" "the epsilon of a norm";
        NormVariance "norm_variance" "how the epsilon and the mean square form the divisor of a norm";
        NormWeightOffset "norm_weight_offset" "the offset added to the weight of a norm";
        NormWeightOrder "norm_weight_order" "a normed row, rounded before or after its gain";
        NormWeights "norm_weights" "the weight of another layer or norm, or no weight";
        NormMissing "norm_missing" "a missing norm";
        NormScope "norm_scope" "the number of values that a norm covers: one head, all heads, or a part of a row";
        NormOrder "norm_order" "a norm before its neighbour instead of after it, or the reverse";
    }
    Rope {
        RopePairing "rope_pairing" "which two values of a head rotate together";
        RopeTheta "rope_theta" "the base of RoPE's frequencies";
        RopeScaling "rope_scaling" "the scaling of RoPE's frequencies";
        RopeFrequencies "rope_frequencies" "the frequencies of some of RoPE's pairs";
        RopePosition "rope_position" "the position that RoPE uses";
        RopeDirection "rope_direction" "the direction of RoPE's rotation";
        RopeMissing "rope_missing" "missing RoPE";
        RopeLayers "rope_layers" "RoPE in a layer that should not have it";
        RopeOnV "rope_on_v" "RoPE applied to v too";
        RopeWidth "rope_width" "the part of a head that rotates";
        RopePrecision "rope_precision" "the type that RoPE's frequencies, angles or tables are rounded to";
    }
    Linear {
        QkPermutation "qk_permutation" "rows of the q and k projections in the order of the other RoPE pairing";
        QkvSwap "qkv_swap" "one of the q, k and v projections in place of another";
        FusedOrder "fused_order" "fused projections (q, k and v; gate and up) split in another order";
    }
    Attention {
        GqaMapping "gqa_mapping" "the key-value head that a query head reads";
        HeadOrder "head_order" "heads in another order";
        AttnGate "attn_gate" "the output gate of attention: missing, or with another activation function";
        QueryTemperature "query_temperature" "the factor of queries that depends on their position: missing, or computed for other positions";
        AttnScale "attn_scale" "the factor that q·k is multiplied by";
        Softcap "softcap" "softcapping of scores or logits that is missing, or extra";
    }
    Masks {
        MaskCausal "mask_causal" "a causal mask that shows later keys, or hides visible ones";
        MaskWindow "mask_window" "the sliding window: its size, its alignment, kept first keys";
        MaskSequences "mask_sequences" "keys of another sequence, or of padding, that a query sees";
    }
    Attention {
        SoftmaxAxis "softmax_axis" "the axis of softmax";
        SoftmaxPrecision "softmax_precision" "the type that softmax is computed in";
        SoftmaxSum "softmax_sum" "keys that only softmax's sum counts: zero rows of a cache, a sink";
        Alibi "alibi" "ALiBi: missing, or with other slopes";
        AttnMerge "attn_merge" "the shares by which attention over cached and over new keys is merged";
    }
    Cache {
        CacheStale "cache_stale" "rows of the cache that belong to another position or time";
        CachePosition "cache_position" "rows of the cache at other positions than their own";
        CacheRotation "cache_rotation" "keys without RoPE, or with RoPE applied twice; either the keys of this pass or the cached ones";
        CacheRow "cache_row" "rows of the cache that hold zeros, or values of another position, pass, layer or sequence";
        RowSource "row_source" "rows of a tap that hold the values of another position, pass, layer or sequence";
        CacheScale "cache_scale" "a factor on cached keys or values, such as the scale of an 8-bit cache that is not undone";
    }
    Recurrence {
        LinearBeta "linear_beta" "β of the gated delta rule";
        LinearDecay "linear_decay" "the decay of the state of linear attention";
        DeltaRule "delta_rule" "the steps of a gated delta rule: heads and inputs that it reads";
        ConvKernel "conv_kernel" "the weights of a short convolution in another order";
        ConvState "conv_state" "the inputs of a short convolution that a layer keeps between passes";
        ConvBias "conv_bias" "the bias of a short convolution: missing, or added twice";
        StepSize "step_size" "the step sizes of a recurrence: their bias, softplus or limits";
        StateDecay "state_decay" "the decay of a recurrent state";
        StateGroups "state_groups" "the group of heads whose B and C a head of a recurrence reads";
        StateSkip "state_skip" "the skip connection of a recurrence";
        StateKept "state_kept" "the recurrent state that a layer keeps between passes";
        GatedNorm "gated_norm" "the gate of a norm: missing, another function, or applied after the norm";
        ConvGate "conv_gate" "a gate of a short convolution: missing, with an activation, or another part of the projection";
    }
    Activations {
        Activation "activation" "the activation function of the feed-forward block";
        ActivationSparsity "activation_sparsity" "the threshold of a sparse gate: missing, another share or deviation, or not subtracted";
    }
    Experts {
        ExpertCount "expert_count" "the number of experts per token";
        ExpertScores "expert_scores" "the scores by which experts are chosen: their function of the logits, their correction bias";
        ExpertGroups "expert_groups" "the groups of experts that a token chooses from";
        ExpertWeights "expert_weights" "the weights of experts: normalised over all or chosen ones, with the correction bias, used in the sum";
        ExpertOrder "expert_order" "experts in place of other experts";
        SharedExpert "shared_expert" "the shared expert of a mixture: missing, or added without its weight";
    }
    Linear {
        GateUpSwap "gate_up_swap" "gate and up projections swapped";
    }
    Residuals {
        ResidualMissing "residual_missing" "a residual connection that is missing, or adds nothing";
        RouterScale "router_scale" "the factor of a router's normed input, 1/√d: missing, inverted or applied twice";
        LayerScale "layer_scale" "the factor of a layer's output, or of its embeddings: missing, inverted or applied twice";
        LowRankResidual "low_rank_residual" "a learned low-rank residual (LAuReL): missing, without its input, or added to the residual stream with another factor";
        AltupRouter "altup_router" "the router of AltUp: without its norm, the factor of its inputs, or tanh";
        AltupPrediction "altup_prediction" "the prediction of AltUp's streams: missing, transposed, or without the streams";
        AltupCorrection "altup_correction" "the correction of AltUp's streams: missing, or with other coefficients or differences";
        AltupScale "altup_scale" "the factors of AltUp's active stream: missing";
        AltupMagnitude "altup_magnitude" "AltUp's projected streams or their mean: not rescaled, copies of the embeddings, a sum, or the first stream alone";
        LayerStreams "layer_streams" "the streams of AltUp that a layer's embeddings are added to";
        ResidualScale "residual_scale" "the factor of a branch or of the stream before a residual add";
    }
    Layers {
        LayerOrder "layer_order" "the weights of another layer";
        LayerMissing "layer_missing" "a missing layer";
        LayerPattern "layer_pattern" "which layers use a sliding window, and which full attention";
    }
    Linear {
        WeightTransposed "weight_transposed" "a matrix with rows and columns exchanged";
        WeightMissing "weight_missing" "a weight that is zero or was not loaded";
        WeightCorruption "weight_corruption" "changed elements of a weight: row:column=value, or row:byte=value for stored blocks";
        WeightPrecision "weight_precision" "a weight rounded to a shorter type";
        WeightScale "weight_scale" "a weight multiplied by a number";
        WeightLayout "weight_layout" "the decoding of the blocks of a quantised weight";
        BiasMissing "bias_missing" "a missing bias";
        BiasScale "bias_scale" "the number of times that a bias is added; ranks:2 means once by each of 2 devices";
        PartialSum "partial_sum" "the input columns that a product adds up: 1/2 means the first of two equal parts, rank:1/2 those of the first of two devices";
        WeightShards "weight_shards" "shards of a weight in another order, or one of them repeated";
        WeightLowRank "weight_low_rank" "a weight that differs by a matrix of low rank, such as an adapter (LoRA)";
        WeightGroups "weight_groups" "scales and zero points of the groups of a quantised weight";
        SplitK "split_k" "the parts of a sum that are rounded to a short type before they are added: their number, or columns:8 for parts of 8 columns";
        ActivationQuant "activation_quant" "the quantisation of activations before products with weights";
        InputScale "input_scale" "the scale of quantised activations that the file states: not applied, of another matrix, or replaced by scales of the values";
        PreQuantScale "pre_quant_scale" "the factors that multiply the inputs of a quantised weight: not applied, inverted, or applied twice";
    }
    Logits {
        LmHead "lm_head" "the matrix that computes logits";
        LogitScale "logit_scale" "the factor that logits are multiplied by";
        RepetitionPenalty "repetition_penalty" "a factor on the logits of tokens already read; sampled:1.1 applies it only to rows from which a token is drawn";
        PresencePenalty "presence_penalty" "a number that is subtracted from the logits of tokens already read";
        FrequencyPenalty "frequency_penalty" "a number that is subtracted from a logit for each time that its token was read";
        LogitsRow "logits_row" "the row of logits that sampling uses";
        Probs "probs" "probabilities from logits: the temperature, or another function than softmax";
        Logprobs "logprobs" "which log-probability is reported: its base, row, token or normalisation";
    }
    Sampling {
        Sampling "sampling" "the choice of a token from its logits";
        SamplingTie "sampling_tie" "which of several equally likely tokens is chosen";
    }
    Numerics {
        NonFinite "non_finite" "values that are NaN or infinite";
        Arithmetic "arithmetic" "where an engine rounds, and to which type";
    }
    Dump {
        ModelCode "model_code" "a configuration value, a constant or an operation of a model that torch evaluates";
        DumpAxes "dump_axes" "axes of a dump in another order than declared";
        DumpTap "dump_tap" "a value recorded under the name of another tap";
        DumpLayers "dump_layers" "layers of a dump numbered from another first number";
        DumpStorage "dump_storage" "values of a dump that were rounded when they were stored";
    }
    Unnamed {
        Partial "partial" "only some rows, heads, channels, columns or blocks";
        Unknown "unknown" "no known cause";
        Unfinished "unfinished" "the search for causes reached its time limit";
    }
}

impl CauseKind {
    /// Returns true if engines may differ in this setting because the model's files do not state it.
    pub fn is_of_numerics(self) -> bool {
        matches!(
            self,
            CauseKind::ActivationQuant
                | CauseKind::RopePrecision
                | CauseKind::SoftmaxPrecision
                | CauseKind::SplitK
        )
    }

    /// Returns true if the value is a number that a search can solve for: a scale, an epsilon or a base.
    pub fn is_parameter(self) -> bool {
        matches!(
            self,
            CauseKind::EmbedScale
                | CauseKind::NormEps
                | CauseKind::RopeTheta
                | CauseKind::AttnScale
                | CauseKind::CacheScale
                | CauseKind::ResidualScale
                | CauseKind::WeightScale
                | CauseKind::LogitScale
        )
    }

    /// Returns true for a penalty on tokens already read. Its value can be read from logits alone.
    pub fn is_penalty(self) -> bool {
        matches!(
            self,
            CauseKind::RepetitionPenalty | CauseKind::PresencePenalty | CauseKind::FrequencyPenalty
        )
    }

    /// Returns true if the kind names a fault. `Partial`, `Unknown` and `Unfinished` state only that values are wrong.
    pub fn is_cause(self) -> bool {
        !matches!(self, CauseKind::Partial | CauseKind::Unknown | CauseKind::Unfinished)
    }
}

impl fmt::Display for CauseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for CauseKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .iter()
            .copied()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| format!("unknown cause '{name}'; list all causes with: xcheck causes"))
    }
}
