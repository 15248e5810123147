//! Loads weights of experts and of their router.

use crate::error::{KeyError, Result};
use crate::model::decoder::names::DecoderNames;
use crate::model::decoder::{ExpertBiases, ExpertsConfig, LayerWeights};
use crate::weight::Matrix;

impl LayerWeights<'_, '_> {
    /// Returns the expert settings of the configuration.
    ///
    /// # Errors
    /// If the model has no experts.
    pub(crate) fn experts(&self) -> Result<ExpertsConfig> {
        let hint = "every file of this architecture must state this key".to_owned();
        let (file, key) = (self.weights.path().to_owned(), "number of experts".to_owned());
        self.config.experts.clone().ok_or(KeyError::Missing { file, key, hint }.into())
    }

    /// Returns two flags for the layer: true if it has attention or what replaces it, and true if it has a feed-forward
    /// block.
    pub(super) fn halves(&self) -> [bool; 2] {
        match &self.config.single_halves {
            Some(are_feed_forward) => [!are_feed_forward[self.layer], are_feed_forward[self.layer]],
            None => [true; 2],
        }
    }

    /// Returns the width of the layer's feed-forward block, if the layer has no experts.
    pub(super) fn dense_ffn_size(&self) -> Option<usize> {
        self.config.dense_ffn_size(self.layer)
    }

    /// Loads the correction bias of `count` experts.
    ///
    /// # Errors
    /// If it is missing, has another shape, or has a block type.
    pub(super) fn correction_bias(&mut self, count: usize) -> Result<Vec<f32>> {
        match self.names {
            DecoderNames::Gguf { .. } => self.bias("exp_probs_b", count),
            DecoderNames::HuggingFace { .. } => {
                let name = self.names.of_layer("exp_probs_b", self.layer);
                self.weights.flat_vector(&name, count)
            }
        }
    }

    /// Loads the factor of each expert's weight. In GGUF files, the factors are the scales of the down matrices.
    ///
    /// # Errors
    /// See [`LayerWeights::vector`].
    pub(super) fn expert_scales(&mut self, count: usize) -> Result<Vec<f32>> {
        if self.is_gguf() { Ok(Vec::new()) } else { self.vector("expert_scales", count) }
    }

    /// Loads the gate and up matrices of all experts. Some Hugging Face checkpoints store both in one tensor.
    ///
    /// # Errors
    /// See [`LayerWeights::matrix`].
    pub(crate) fn gates_and_ups(
        &mut self,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<[Vec<Matrix>; 2]> {
        let [gate, up] = ["ffn_gate_exps", "ffn_up_exps"].map(|name| self.names.of_layer(name, self.layer));
        let has_fused = self.has_in_gguf("ffn_gate_up_exps");
        let in_gguf = has_fused.then(|| self.names.of_layer("ffn_gate_up_exps", self.layer));
        if let Some(fused) = in_gguf.or_else(|| self.stacked_in_hugging_face("ffn_gate_up_exps")) {
            let both = self.weights.stacked(&fused, count, 2 * rows, cols)?;
            return Ok(halves(&both, rows));
        }
        if gate != up {
            return Ok([
                self.of_experts("ffn_gate_exps", count, rows, cols)?,
                self.of_experts("ffn_up_exps", count, rows, cols)?,
            ]);
        }
        if self.has_clamped_experts() {
            return self.alternating(&gate, count, rows, cols);
        }
        if self.has_input_rows() {
            let shape = [count, cols, 2 * rows];
            return Ok([
                self.transposed(&gate, &shape, 0, rows)?,
                self.transposed(&gate, &shape, rows, rows)?,
            ]);
        }
        let both = self.weights.stacked(&gate, count, 2 * rows, cols)?;
        Ok(halves(&both, rows))
    }

    /// Returns the name of the tensor that stacks the matrices of all experts, if a Hugging Face checkpoint has it.
    /// transformers 5 may save such a tensor even if the architecture has one tensor per expert.
    fn stacked_in_hugging_face(&self, name: &str) -> Option<String> {
        let of_each = |name: &str| self.names.of_layer(name, self.layer).contains("{}");
        let tensor =
            (!self.is_gguf() && of_each("ffn_down_exps")).then(|| self.names.of_layer(name, self.layer))?;
        self.weights.has(&tensor).then_some(tensor)
    }

    /// Loads the gate and up matrices of a shared expert. Some Hugging Face checkpoints store both in one tensor.
    ///
    /// # Errors
    /// See [`LayerWeights::matrix`].
    pub(super) fn shared_gate_and_up(&mut self, rows: usize, cols: usize) -> Result<[Matrix; 2]> {
        let names = ["ffn_gate_shexp", "ffn_up_shexp"];
        let [gate, up] = names.map(|name| self.names.of_layer(name, self.layer));
        if gate != up {
            return Ok([self.matrix(names[0], rows, cols)?, self.matrix(names[1], rows, cols)?]);
        }
        let both = self.matrix(names[0], rows.saturating_mul(2), cols)?;
        Ok([0, rows].map(|first| both.rows_from(first, rows)))
    }

    /// Returns true if the shared expert's output is multiplied by a weight, computed from a logit of each token.
    pub(super) fn has_weighted_shared_expert(&self) -> bool {
        self.config.experts.as_ref().is_some_and(|experts| experts.is_shared_weighted)
    }

    fn has_input_rows(&self) -> bool {
        self.config.experts.as_ref().is_some_and(|experts| experts.has_input_rows)
    }

    /// Loads outputs `first..first + rows` of each expert from a tensor whose rows are inputs, `[E, inputs, outputs]`.
    fn transposed(
        &mut self,
        name: &str,
        shape: &[usize; 3],
        first: usize,
        rows: usize,
    ) -> Result<Vec<Matrix>> {
        let [count, cols, outputs] = *shape;
        let of_expert = |expert: usize| {
            let at = |row: usize, col: usize| (expert * cols + col) * outputs + first + row;
            self.weights.gathered(name, shape, [rows, cols], at)
        };
        (0..count).map(of_expert).collect()
    }

    fn has_clamped_experts(&self) -> bool {
        self.config.experts.as_ref().is_some_and(|experts| experts.clamped.is_some())
    }

    /// Loads gates and ups that alternate in the columns of one tensor, whose rows are inputs.
    fn alternating(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<[Vec<Matrix>; 2]> {
        let shape = [count, cols, 2 * rows];
        let mut half = |first: usize| -> Result<Vec<Matrix>> {
            let of_expert = |expert: usize| {
                let at = |row: usize, col: usize| (expert * cols + col) * 2 * rows + 2 * row + first;
                self.weights.gathered(name, &shape, [rows, cols], at)
            };
            (0..count).map(of_expert).collect()
        };
        Ok([half(0)?, half(1)?])
    }

    /// Loads the biases of a router and of all experts.
    ///
    /// # Errors
    /// See [`LayerWeights::matrix`].
    pub(crate) fn expert_biases(&mut self, count: usize, rows: usize, cols: usize) -> Result<ExpertBiases> {
        let router = self.bias("ffn_gate_inp", count)?;
        let [gate, up, down] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]
            .map(|name| self.names.bias_of_layer(name, self.layer));
        let down = self.weights.matrix(&down, count, cols)?;
        let [gate, up] = match gate == up {
            false => [self.weights.matrix(&gate, count, rows)?, self.weights.matrix(&up, count, rows)?],
            true => {
                let mut half = |first: usize| {
                    let at = |row: usize, col: usize| row * 2 * rows + 2 * col + first;
                    self.weights.gathered(&gate, &[count, 2 * rows], [count, rows], at)
                };
                [half(0)?, half(1)?]
            }
        };
        Ok(ExpertBiases { router, gate, up, down })
    }

    /// Loads the matrices of all experts by their GGUF name. They are in one tensor in GGUF files, and in Hugging Face
    /// checkpoints whose tensor name contains no expert index. Otherwise there is one tensor for each expert.
    ///
    /// # Errors
    /// See [`LayerWeights::matrix`].
    pub(crate) fn of_experts(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<Matrix>> {
        let stacked = match name {
            "ffn_down_exps" => self.stacked_in_hugging_face("ffn_down_all_exps"),
            "ffn_up_exps" => self.stacked_in_hugging_face("ffn_up_all_exps"),
            _ => None,
        };
        let tensor = stacked.unwrap_or_else(|| self.names.of_layer(name, self.layer));
        match self.names {
            DecoderNames::Gguf { .. } => self.weights.stacked(&tensor, count, rows, cols),
            DecoderNames::HuggingFace { .. } if self.has_clamped_experts() || self.has_input_rows() => {
                self.transposed(&tensor, &[count, cols, rows], 0, rows)
            }
            DecoderNames::HuggingFace { .. } if !tensor.contains("{}") => {
                self.weights.stacked(&tensor, count, rows, cols)
            }
            DecoderNames::HuggingFace { .. } => (0..count)
                .map(|expert| self.weights.matrix(&tensor.replace("{}", &expert.to_string()), rows, cols))
                .collect(),
        }
    }
}

/// Splits fused matrices into gates and ups of `rows` rows each.
fn halves(both: &[Matrix], rows: usize) -> [Vec<Matrix>; 2] {
    [0, rows].map(|first| both.iter().map(|both| both.rows_from(first, rows)).collect())
}
