//! Numerics that are made of other numerics: the operations that they leave to these.

/// Methods of [`Numerics`](crate::numerics::Numerics) that the inner numerics do: `forward!(inner: embed, add);`. Name also
/// those that the trait has a default for: the inner numerics may have their own.
macro_rules! forward {
    ($inner:tt: $($name:ident),* $(,)?) => { $(forward!(@$name $inner);)* };
    (@$name:ident $inner:tt ($($argument:ident: $type:ty),*) -> $result:ty) => {
        fn $name(&self, $($argument: $type),*) -> $result {
            self.$inner.$name($($argument),*)
        }
    };
    (@name $inner:tt) => { forward!(@name $inner () -> &'static str); };
    (@weight_types $inner:tt) => { forward!(@weight_types $inner () -> &'static [DType]); };
    (@native_types $inner:tt) => { forward!(@native_types $inner () -> &'static [DType]); };
    (@activation_type $inner:tt) => { forward!(@activation_type $inner () -> DType); };
    (@activation_codes $inner:tt) => { forward!(@activation_codes $inner () -> Option<ActivationCodes>); };
    (@cache_noise $inner:tt) => { forward!(@cache_noise $inner () -> f64); };
    (@cache_type $inner:tt) => { forward!(@cache_type $inner () -> DType); };
    (@embed $inner:tt) => { forward!(@embed $inner (table: &Matrix, tokens: &[u32]) -> Tensor); };
    (@scale $inner:tt) => { forward!(@scale $inner (x: &Tensor, by: Multiplier) -> Tensor); };
    (@rms_norm $inner:tt) => { forward!(@rms_norm $inner (x: &Tensor, norm: &RmsNorm) -> Tensor); };
    (@layer_norm $inner:tt) => { forward!(@layer_norm $inner (x: &Tensor, norm: &LayerNorm) -> Tensor); };
    (@linear $inner:tt) => { forward!(@linear $inner (x: &Tensor, w: &Matrix) -> Tensor); };
    (@linear_of_pass $inner:tt) => {
        forward!(@linear_of_pass $inner (x: &Tensor, w: &Matrix, tokens: usize) -> Tensor);
    };
    (@adds_rows_alike $inner:tt) => { forward!(@adds_rows_alike $inner (w: &Matrix, tokens: usize) -> bool); };
    (@affine $inner:tt) => { forward!(@affine $inner (x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor); };
    (@bit_linear $inner:tt) => {
        forward!(@bit_linear $inner (x: &Tensor, w: &Matrix, factor: Option<Factor>) -> Tensor);
    };
    (@rope_table $inner:tt) => {
        forward!(@rope_table $inner (rope: &Rope, positions: Range<usize>) -> RopeTable);
    };
    (@rotate $inner:tt) => { forward!(@rotate $inner (x: &Tensor, table: &RopeTable) -> Tensor); };
    (@to_cache $inner:tt) => { forward!(@to_cache $inner (x: Tensor) -> Tensor); };
    (@scores $inner:tt) => { forward!(@scores $inner (q: &Tensor, k: &Tensor, scale: Scale) -> Tensor); };
    (@softmax $inner:tt) => { forward!(@softmax $inner (scores: &Tensor, mask: Mask) -> Tensor); };
    (@context $inner:tt) => { forward!(@context $inner (weights: &Tensor, v: &Tensor) -> Tensor); };
    (@sums_of_values $inner:tt) => { forward!(@sums_of_values $inner (tokens: usize) -> DType); };
    (@activation $inner:tt) => {
        forward!(@activation $inner (x: &Tensor, activation: Activation) -> Tensor);
    };
    (@gated $inner:tt) => {
        forward!(@gated $inner (gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor);
    };
    (@likelihoods $inner:tt) => { forward!(@likelihoods $inner (logits: &Tensor) -> Tensor); };
    (@choose $inner:tt) => { forward!(@choose $inner (logits: &Tensor, used: usize) -> Tensor); };
    (@expert_weights $inner:tt) => {
        forward!(@expert_weights $inner (logits: &Tensor, chosen: &Tensor, routing: Routing) -> Tensor);
    };
    (@linear_of_expert $inner:tt) => {
        forward!(@linear_of_expert $inner (x: &Tensor, w: &Matrix) -> Tensor);
    };
    (@routed $inner:tt) => {
        forward!(@routed $inner (x: &Tensor, w: &[Matrix], chosen: &Tensor) -> Tensor);
    };
    (@mix $inner:tt) => { forward!(@mix $inner (outputs: &Tensor, weights: &Tensor) -> Tensor); };
    (@add $inner:tt) => { forward!(@add $inner (a: &Tensor, b: &Tensor) -> Tensor); };
    (@probabilities $inner:tt) => {
        forward!(@probabilities $inner (logits: &Tensor, temperature: f32) -> Tensor);
    };
}

pub(crate) use forward;
