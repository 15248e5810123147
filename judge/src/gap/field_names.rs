//! Names of the fields of a sequence in the files of rollout engines and trainers.

/// The file whose log-probabilities are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicySide {
    /// The engine that sampled the tokens.
    Rollout,
    /// The program that computes gradients.
    Trainer,
}

impl PolicySide {
    /// Returns the name in messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Trainer => "trainer",
        }
    }

    /// Returns the trainer for the rollout, and the rollout for the trainer.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Rollout => Self::Trainer,
            Self::Trainer => Self::Rollout,
        }
    }

    /// Returns true unless a field's name shows that the field belongs to the other side.
    pub(crate) fn owns(self, name: &str) -> bool {
        name.strip_prefix(self.other().name()).is_none_or(|rest| !rest.starts_with('_'))
    }

    /// Returns the names of this side's log-probabilities, most specific first.
    ///
    /// Names are those of TRL 1.16.0, verl 0.9.1, OpenRLHF 0.11.2, NeMo-RL and slime of 2026.
    pub(crate) fn logprobs(self) -> &'static [&'static str] {
        match self {
            Self::Rollout => &[
                "rollout_logprobs",
                "rollout_log_probs",        // verl, OpenRLHF, slime
                "sampling_per_token_logps", // TRL
                "generation_logprobs",      // NeMo-RL
                "logprobs",
            ],
            Self::Trainer => &[
                "trainer_logprobs",
                "old_log_probs",       // verl
                "old_per_token_logps", // TRL
                "prev_logprobs",       // NeMo-RL
                "action_log_probs",    // OpenRLHF
                "log_probs",           // slime
                "logprobs",
            ],
        }
    }
}

/// A field of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SequenceField {
    /// Ids of the prompt and of the completion.
    Tokens,
    /// Ids of the prompt alone.
    Prompt,
    /// Ids of the completion alone.
    Completion,
    /// Number of tokens of the prompt.
    PromptLength,
    /// Number of tokens of the completion.
    CompletionLength,
    /// Number of tokens without padding.
    Length,
    /// Mask with ones at the tokens that are scored.
    Mask,
    /// Temperature: divisor of the logits.
    Temperature,
    /// Version: training step of the weights.
    Version,
    /// Type of the side's arithmetic.
    Dtype,
    /// Experts that the side chose for each token and layer.
    Routes,
    /// Experts for the prompt, if `Routes` contains only those for the completion.
    PromptRoutes,
}

impl SequenceField {
    /// All fields.
    pub(crate) const ALL: [Self; 12] = [
        Self::Tokens,
        Self::Prompt,
        Self::Completion,
        Self::PromptLength,
        Self::CompletionLength,
        Self::Length,
        Self::Mask,
        Self::Temperature,
        Self::Version,
        Self::Dtype,
        Self::Routes,
        Self::PromptRoutes,
    ];

    /// Returns the names of the field: ours first, then those of the libraries.
    pub(crate) fn names(self) -> &'static [&'static str] {
        match self {
            Self::Tokens => &["tokens", "input_ids", "sequences"],
            Self::Prompt => &["prompt_ids", "prompts"],
            Self::Completion => &["completion_ids", "responses"],
            Self::PromptLength => &["prompt_length"],
            Self::CompletionLength => &["response_length"],
            Self::Length => &["lengths", "input_lengths"],
            Self::Mask => {
                &["mask", "completion_mask", "response_mask", "token_mask", "action_mask", "loss_mask"]
            }
            Self::Temperature => &["temperature"],
            Self::Version => &["version", "weight_version"],
            Self::Dtype => &["dtype"],
            Self::Routes => &["routed_experts", "rollout_routed_experts", "trainer_routed_experts"],
            Self::PromptRoutes => &["prompt_routed_experts"], // vLLM 0.21
        }
    }

    /// Returns the nesting depth of lists in the field.
    pub(crate) fn depth(self) -> u8 {
        match self {
            Self::Tokens | Self::Prompt | Self::Completion | Self::Mask => 1,
            Self::PromptLength
            | Self::CompletionLength
            | Self::Length
            | Self::Temperature
            | Self::Version
            | Self::Dtype => 0,
            Self::Routes | Self::PromptRoutes => 3,
        }
    }

    /// Returns the field with a name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.names().contains(&name))
    }
}
