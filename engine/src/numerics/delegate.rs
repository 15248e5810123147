//! Macro for numerics that wrap other numerics: forwards methods to the inner numerics.

/// Implements methods of [`Numerics`](crate::numerics::Numerics) by calling the inner numerics: `delegate!(inner:
/// embed, add);`. List methods with a default as well, since the inner numerics may override them.
macro_rules! delegate {
    ($inner:tt: $($name:ident),* $(,)?) => { $(delegate!(@$name $inner);)* };
    (@$name:ident $inner:tt ($($argument:ident: $type:ty),*) -> $result:ty) => {
        fn $name(&self, $($argument: $type),*) -> $result {
            self.$inner.$name($($argument),*)
        }
    };
    (@name $inner:tt) => { delegate!(@name $inner () -> &'static str); };
    (@weight_types $inner:tt) => { delegate!(@weight_types $inner () -> &'static [DType]); };
    (@native_types $inner:tt) => { delegate!(@native_types $inner () -> &'static [DType]); };
    (@activation_type $inner:tt) => { delegate!(@activation_type $inner () -> DType); };
    (@activation_codes $inner:tt) => { delegate!(@activation_codes $inner () -> Option<ActivationCodes>); };
    (@cache_noise $inner:tt) => { delegate!(@cache_noise $inner () -> f64); };
    (@cache_type $inner:tt) => { delegate!(@cache_type $inner () -> DType); };
    (@embed $inner:tt) => { delegate!(@embed $inner (table: &Matrix, tokens: &[u32]) -> Tensor); };
    (@scale $inner:tt) => { delegate!(@scale $inner (x: &Tensor, by: Multiplier) -> Tensor); };
    (@rms_norm $inner:tt) => { delegate!(@rms_norm $inner (x: &Tensor, norm: &RmsNorm) -> Tensor); };
    (@layer_norm $inner:tt) => { delegate!(@layer_norm $inner (x: &Tensor, norm: &LayerNorm) -> Tensor); };
    (@linear $inner:tt) => { delegate!(@linear $inner (x: &Tensor, w: &Matrix) -> Tensor); };
    (@linear_of_pass $inner:tt) => {
        delegate!(@linear_of_pass $inner (x: &Tensor, w: &Matrix, bias: Option<&[f32]>, tokens: usize) -> Tensor);
    };
    (@adds_rows_alike $inner:tt) => { delegate!(@adds_rows_alike $inner (w: &Matrix, tokens: usize) -> bool); };
    (@affine $inner:tt) => { delegate!(@affine $inner (x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor); };
    (@bit_linear $inner:tt) => {
        delegate!(@bit_linear $inner (x: &Tensor, w: &Matrix, factor: Option<Factor>) -> Tensor);
    };
    (@rope_table $inner:tt) => {
        delegate!(@rope_table $inner (rope: &Rope, positions: Range<usize>) -> RopeTable);
    };
    (@rotate $inner:tt) => { delegate!(@rotate $inner (x: &Tensor, table: &RopeTable) -> Tensor); };
    (@cache_transform $inner:tt) => {
        delegate!(@cache_transform $inner (of: crate::numerics::CachedKind, head_dim: usize) -> Option<usize>);
    };
    (@to_cache $inner:tt) => { delegate!(@to_cache $inner (x: Tensor) -> Tensor); };
    (@scores $inner:tt) => { delegate!(@scores $inner (q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor); };
    (@softmax $inner:tt) => { delegate!(@softmax $inner (scores: &Tensor, mask: Mask) -> Tensor); };
    (@softmax_with_sinks $inner:tt) => {
        delegate!(@softmax_with_sinks $inner (scores: &Tensor, mask: Mask, sinks: &[f32]) -> Tensor);
    };
    (@add_alibi $inner:tt) => {
        delegate!(@add_alibi $inner (scores: &Tensor, slopes: &[f32], mask: Mask) -> Tensor);
    };
    (@clamped_glu $inner:tt) => {
        delegate!(@clamped_glu $inner (gate: &Tensor, up: &Tensor, glu: ClampedGlu) -> Tensor);
    };
    (@context $inner:tt) => { delegate!(@context $inner (weights: &Tensor, v: &Tensor) -> Tensor); };
    (@sums_of_values $inner:tt) => { delegate!(@sums_of_values $inner (tokens: usize) -> DType); };
    (@activation $inner:tt) => {
        delegate!(@activation $inner (x: &Tensor, activation: Activation) -> Tensor);
    };
    (@gated $inner:tt) => {
        delegate!(@gated $inner (gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor);
    };
    (@likelihoods $inner:tt) => { delegate!(@likelihoods $inner (logits: &Tensor) -> Tensor); };
    (@router_logits $inner:tt) => {
        delegate!(@router_logits $inner (x: &Tensor, w: &Matrix, precision: RouterPrecision) -> Tensor);
    };
    (@scores_of_logits $inner:tt) => {
        delegate!(@scores_of_logits $inner (logits: &Tensor, function: ScoreFunction) -> Tensor);
    };
    (@expert_scores $inner:tt) => {
        delegate!(@expert_scores $inner (logits: &Tensor, routing: &ExpertRouting) -> Tensor);
    };
    (@choose $inner:tt) => { delegate!(@choose $inner (scores: &Tensor, routing: &ExpertRouting) -> Tensor); };
    (@expert_weights $inner:tt) => {
        delegate!(@expert_weights $inner (logits: &Tensor, chosen: &Tensor, routing: &ExpertRouting) -> Tensor);
    };
    (@linear_of_expert $inner:tt) => {
        delegate!(@linear_of_expert $inner (x: &Tensor, w: &Matrix) -> Tensor);
    };
    (@routed $inner:tt) => {
        delegate!(@routed $inner (x: &Tensor, w: &[Matrix], chosen: &Tensor) -> Tensor);
    };
    (@mix $inner:tt) => { delegate!(@mix $inner (outputs: &Tensor, weights: &Tensor, scores: &Tensor, is_whole: bool) -> Tensor); };
    (@shared_weights $inner:tt) => { delegate!(@shared_weights $inner (logits: &Tensor) -> Tensor); };
    (@add_shared $inner:tt) => {
        delegate!(@add_shared $inner (routed: &Tensor, outputs: &Tensor, weights: Option<&Tensor>) -> Tensor);
    };
    (@mix_streams $inner:tt) => { delegate!(@mix_streams $inner (streams: &Tensor, coefs: &Tensor) -> Tensor); };
    (@match_magnitude $inner:tt) => { delegate!(@match_magnitude $inner (x: &Tensor, like: &Tensor) -> Tensor); };
    (@mean_of_streams $inner:tt) => {
        delegate!(@mean_of_streams $inner (streams: &Tensor, count: usize) -> Tensor);
    };
    (@sparse_gate $inner:tt) => {
        delegate!(@sparse_gate $inner (gate: &Tensor, sparsity: crate::ops::sparse_gate::GateSparsity) -> Tensor);
    };
    (@row_scaled $inner:tt) => { delegate!(@row_scaled $inner (x: &Tensor, factors: &Tensor) -> Tensor); };
    (@tempered $inner:tt) => {
        delegate!(@tempered $inner
            (q: &Tensor, temperature: &crate::ops::row_factor::QueryTemperature, positions: std::ops::Range<usize>) -> Tensor);
    };
    (@short_convolution $inner:tt) => {
        delegate!(@short_convolution $inner (x: &Tensor, conv: &crate::ops::short_convolution::ShortConvolution) -> Tensor);
    };
    (@l2_norm $inner:tt) => {
        delegate!(@l2_norm $inner (x: &Tensor, norm: crate::ops::l2_norm::L2Norm) -> Tensor);
    };
    (@decay $inner:tt) => {
        delegate!(@decay $inner (a: &Tensor, rates: &crate::ops::decay::DecayRates) -> Tensor);
    };
    (@delta_rule $inner:tt) => {
        delegate!(@delta_rule $inner (tokens: &crate::ops::delta_rule::DeltaTokens, state: &Tensor) -> [Tensor; 2]);
    };
    (@silu_gated $inner:tt) => { delegate!(@silu_gated $inner (normed: &Tensor, gate: &Tensor) -> Tensor); };
    (@gated_by_part $inner:tt) => {
        delegate!(@gated_by_part $inner (projected: &Tensor, part: usize, x: &Tensor) -> Tensor);
    };
    (@step_sizes $inner:tt) => {
        delegate!(@step_sizes $inner (dt: &Tensor, rule: &crate::ops::state_space::StepRule, is_single: bool) -> Tensor);
    };
    (@recurrence $inner:tt) => {
        fn recurrence(
            &self,
            x: &Tensor,
            steps: &Tensor,
            before: &Tensor,
            space: &crate::ops::state_space::StateSpace,
            is_single: bool,
        ) -> [Tensor; 2] {
            self.$inner.recurrence(x, steps, before, space, is_single)
        }
    };
    (@recurs_alike $inner:tt) => { delegate!(@recurs_alike $inner () -> bool); };
    (@gated_norm $inner:tt) => {
        delegate!(@gated_norm $inner (gate: &Tensor, x: &Tensor, norm: &RmsNorm, is_single: bool) -> Tensor);
    };
    (@add $inner:tt) => { delegate!(@add $inner (a: &Tensor, b: &Tensor) -> Tensor); };
    (@add_halves $inner:tt) => { delegate!(@add_halves $inner (a: &Tensor, b: &Tensor) -> Tensor); };
    (@probabilities $inner:tt) => {
        delegate!(@probabilities $inner (logits: &Tensor, temperature: f32) -> Tensor);
    };
}

pub(crate) use delegate;
