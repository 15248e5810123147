//! How the files of an architecture state its experts: how a token's experts are chosen and their outputs weighted, and
//! which experts all tokens share.

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::decoder::layer_sizes::{GgufLayers, SizeRule};
use crate::model::decoder::state_space_files::{self, SingleHalf};
use crate::model::decoder::{DenseFiles, ExpertsConfig};
use crate::model::json::Config;
use crate::ops::activation::ClampedGlu;
use crate::ops::experts::{ExpertGroups, ExpertRouting, RouterPrecision, ScoreFunction};

/// Expert settings in the files of an architecture.
#[derive(Clone, Copy)]
pub(crate) struct ExpertFiles {
    /// Key of one expert's feed-forward size, in `config.json` and, after the architecture's name, in GGUF files.
    pub(crate) ffn_size: [&'static str; 2],
    /// Key in `config.json` that states whether the chosen experts' weights are divided by their sum. If the
    /// architecture has no such key, they always are.
    pub(crate) normalised: Option<&'static str>,
    /// True if softmax reads only the logits of the chosen experts.
    pub(crate) is_of_chosen: bool,
    /// Clamped GLU of the experts, if they have one. All their matrices, and the router, then have biases.
    pub(crate) clamped: Option<ClampedGlu>,
    /// True if llama.cpp divides the chosen experts' weights by their sum. `None` if the GGUF file decides.
    pub(crate) gguf_normalised: Option<bool>,
    /// Shared expert, if there is one.
    pub(crate) shared: Option<SharedExpertFiles>,
    /// True if llama.cpp computes the weight of a shared expert as a sigmoid; false for SiLU divided by its argument.
    pub(crate) has_plain_sigmoid: bool,
    /// True if the architecture's authors round the experts' weights to the activation type.
    pub(crate) is_rounded: bool,
    /// True if the architecture's authors round only the weighted sum, not its products and partial sums.
    pub(crate) mixes_whole: bool,
    /// True if the architecture's authors also round scores and the sum of the weights.
    pub(crate) rounds_scores: bool,
    /// Number that transformers adds to the sum of the weights.
    pub(crate) added: f32,
    /// Function that computes scores from logits.
    pub(crate) function: ScoreFunction,
    /// Score function for GGUF files that do not state one. `None` if llama.cpp always uses `function`.
    pub(crate) gguf_function: Option<ScoreFunction>,
    /// Arithmetic of the router's logits.
    pub(crate) precision: RouterPrecision,
    /// True if experts have a correction bias.
    pub(crate) has_bias: bool,
    /// True if files may state groups of experts and a factor of the weights.
    pub(crate) may_have_groups: bool,
    /// Number of a group's largest scores that transformers adds up to the group's score. llama.cpp adds two.
    pub(crate) summed: usize,
    /// Layers without experts.
    pub(crate) dense: DenseFiles,
    /// True if the routing weights multiply the inputs of experts instead of their outputs.
    pub(crate) weighs_inputs: bool,
    /// True if Hugging Face files stack experts as `[experts, inputs, outputs]` instead of `[experts, outputs, inputs]`.
    pub(crate) has_input_rows: bool,
    /// Condition under which a model of this architecture has experts.
    pub(crate) presence: ExpertPresence,
    /// True if experts run next to a feed-forward block, and the experts, the feed-forward block and the router each
    /// have norms of their own.
    pub(crate) has_branch_norms: bool,
    /// Key of the size of experts' compressed inputs, if inputs may be compressed.
    pub(crate) latent: Option<&'static str>,
}

/// Condition under which a model of an architecture has experts. In GGUF files without experts, the number of
/// experts is absent or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertPresence {
    /// All models.
    Always,
    /// The number of experts in `config.json` is not 0.
    Counted,
    /// `config.json` has this key.
    Switched(&'static str),
    /// `config.json` lists layers with experts (Nemotron-H).
    Listed,
}

/// Keys of a shared expert's feed-forward size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedExpertFiles {
    /// Keys of the expert's size, in `config.json` and in GGUF files. Its output is weighted by a logit of each token.
    Weighted([&'static str; 2]),
    /// Keys of the expert's size, in `config.json` and in GGUF files. Its output is added without a weight.
    Unweighted([&'static str; 2]),
    /// Key in `config.json` of the shared expert's size, as a multiple of one expert's size. The shared expert has no
    /// weight.
    Count(&'static str),
    /// No key: every layer with experts has a shared expert of the size of one expert. The shared expert has no weight.
    Always,
}

/// Keys of the number of experts in `config.json`.
const COUNT: [&str; 4] = ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];

impl ExpertFiles {
    /// Mixtral's experts.
    pub(crate) const MIXTRAL: Self = Self {
        ffn_size: ["intermediate_size", "feed_forward_length"],
        normalised: None,
        is_of_chosen: false,
        clamped: None,
        gguf_normalised: Some(true),
        shared: None,
        has_plain_sigmoid: false,
        is_rounded: false,
        mixes_whole: false,
        rounds_scores: false,
        added: 0.0,
        function: ScoreFunction::Softmax,
        gguf_function: None,
        precision: RouterPrecision::Activations,
        has_bias: false,
        may_have_groups: false,
        summed: 2,
        dense: DenseFiles::Never,
        weighs_inputs: false,
        has_input_rows: false,
        presence: ExpertPresence::Always,
        has_branch_norms: false,
        latent: None,
    };

    /// DeepSeek V3's experts: sigmoid, a correction bias, groups, a factor, and shared experts.
    pub(crate) const DEEPSEEK_V3: Self = Self {
        ffn_size: ["moe_intermediate_size", "expert_feed_forward_length"],
        normalised: Some("norm_topk_prob"),
        gguf_normalised: None,
        shared: Some(SharedExpertFiles::Count("n_shared_experts")),
        function: ScoreFunction::Sigmoid,
        gguf_function: Some(ScoreFunction::Sigmoid),
        precision: RouterPrecision::Unrounded,
        has_bias: true,
        may_have_groups: true,
        dense: DenseFiles::First("first_k_dense_replace"),
        ..Self::MIXTRAL
    };

    /// Returns true if experts may be chosen by other scores than the softmax of the logits.
    pub(crate) fn may_have_scores(&self) -> bool {
        self.function != ScoreFunction::Softmax || self.has_bias || self.may_have_groups
    }

    /// Returns true if a model has experts, according to its `config.json`.
    pub(crate) fn are_in_json(&self, file: &Config) -> Result<bool> {
        match self.presence {
            ExpertPresence::Always => Ok(true),
            ExpertPresence::Counted => Ok(one_of(file, &COUNT)? > 0),
            ExpertPresence::Switched(key) => Ok(file.optional_bool(key)?.unwrap_or(false)),
            ExpertPresence::Listed => Ok(state_space_files::kinds(file)?.contains(&SingleHalf::Experts)),
        }
    }

    /// Returns true if a model has experts, according to its GGUF file.
    pub(super) fn are_in_gguf(&self, file: &Gguf, architecture: &str) -> Result<bool> {
        let count = file.optional::<usize>(&format!("{architecture}.expert_count"))?;
        Ok(self.presence == ExpertPresence::Always || count.unwrap_or(0) > 0)
    }

    /// Reads the experts of a `config.json`. transformers has several names for their numbers.
    pub(super) fn in_json(&self, file: &Config, ffn_size: usize) -> Result<ExpertsConfig> {
        const USED: [&str; 3] = ["num_experts_per_tok", "moe_k", "top_k_experts"];
        const SHARED: [&str; 4] = [
            "n_shared_experts",
            "num_shared_experts",
            "shared_expert_intermediate_size",
            "moe_num_shared_experts",
        ];
        let shared = self.shared.and_then(|shared| match shared {
            SharedExpertFiles::Weighted([key, _])
            | SharedExpertFiles::Unweighted([key, _])
            | SharedExpertFiles::Count(key) => Some(key),
            SharedExpertFiles::Always => None,
        });
        let is_sized = matches!(self.shared, Some(SharedExpertFiles::Unweighted(_)));
        for key in SHARED.into_iter().filter(|key| Some(*key) != shared) {
            match is_sized && key == SHARED[0] {
                true => {
                    file.only(key, &[1.into()], "1 or absent (several shared experts are not supported)")?
                }
                false => file.only(key, &[0.into()], "0 or absent (shared experts are not supported)")?,
            }
        }
        if self.may_name_method() {
            let expected = "false (DeepSeek V2's weights are not divided by their sum)";
            file.only("norm_topk_prob", &[false.into()], expected)?;
        }
        let least = "1e-12 or absent (other least sums of weights are not supported)";
        file.only("moe_norm_min", &[1e-12.into()], least)?;
        let stated = self.normalised.map_or(Ok(Some(true)), |key| file.optional_bool(key))?;
        let shared_ffn_size = match (self.shared, shared) {
            (Some(SharedExpertFiles::Count(_)), Some(key)) => {
                let count = file.optional_usize(key)?.unwrap_or(0);
                (count > 0).then(|| count.saturating_mul(ffn_size))
            }
            (Some(SharedExpertFiles::Always), _) => Some(ffn_size),
            (_, key) => key.map(|key| file.require_usize(key)).transpose()?,
        };
        let (groups, scale) = self.groups_in_json(file)?;
        let settings = self.settings();
        let routing = ExpertRouting {
            used: one_of(file, &USED)?,
            is_normalised: stated.unwrap_or(false) && !self.weighs_inputs,
            function: self.function_in_json(file)?,
            groups,
            scale,
            added: self.added,
            ..settings.routing
        };
        let has_bias = self.has_bias && file.optional_bool("use_expert_bias")?.unwrap_or(true);
        let clamped = self.clamped.map(|glu| clamped_glu(file, glu)).transpose()?;
        let count = one_of(file, &COUNT)?;
        let latent = self.latent.map_or(Ok(None), |key| file.optional_usize(key))?;
        Ok(ExpertsConfig { count, routing, shared_ffn_size, clamped, has_bias, latent, ..settings })
    }

    /// Reads the groups of experts and the factor of their weights.
    fn groups_in_json(&self, file: &Config) -> Result<(Option<ExpertGroups>, f32)> {
        const SCALE: &str = "routed_scaling_factor";
        if !self.may_have_groups {
            file.only("n_group", &[1.into()], "1 or absent (groups of experts are not supported)")?;
            file.only(SCALE, &[1.0.into(), 1.into()], "1 or absent (scaled weights are not supported)")?;
            return Ok((None, 1.0));
        }
        let is_grouped = !self.may_name_method() || self.names_groups(file)?;
        let count = file.optional_usize("n_group")?.filter(|_| is_grouped).unwrap_or(1);
        let used = file.optional_usize("topk_group")?.unwrap_or(1);
        let scale = file.optional_positive(SCALE)?.unwrap_or(1.0);
        Ok(((count > 1).then_some(ExpertGroups { count, used, summed: self.summed }), scale))
    }

    /// Returns true for experts of DeepSeek V2, whose files name the method of the choice.
    fn may_name_method(&self) -> bool {
        self.may_have_groups && self.function == ScoreFunction::Softmax
    }

    /// Returns true if the method by which experts are chosen uses groups.
    fn names_groups(&self, file: &Config) -> Result<bool> {
        const KEY: &str = "topk_method";
        const GROUPS: &str = "group_limited_greedy";
        let expected = format!("\"greedy\" or {GROUPS:?} (other choices of experts are not supported)");
        file.only(KEY, &["greedy".into(), GROUPS.into()], &expected)?;
        Ok(file.optional_str(KEY)? == Some(GROUPS))
    }

    /// Reads the function that computes scores from logits.
    fn function_in_json(&self, file: &Config) -> Result<ScoreFunction> {
        let name = if self.function == ScoreFunction::Sigmoid { "sigmoid" } else { "softmax" };
        for key in ["scoring_func", "score_function"] {
            let expected = format!("{name:?} (other scores of experts are not supported)");
            file.only(key, &[name.into()], &expected)?;
        }
        Ok(self.function)
    }

    /// Reads the experts of a GGUF file. Keys for the routing are rejected if they state something that llama.cpp does
    /// not compute.
    pub(super) fn in_gguf(&self, layers: &GgufLayers, ffn_size: usize) -> Result<ExpertsConfig> {
        let (file, architecture) = (layers.file, layers.architecture);
        let key = |name: &str| format!("{architecture}.{name}");
        let none = |name: &str, supported: &[usize], what: &str| match file.optional::<usize>(&key(name))? {
            Some(found) if !supported.contains(&found) => {
                Err(Error::bad_key(file.tensors.path(), &key(name), found, what))
            }
            _ => Ok(()),
        };
        match self.shared {
            Some(SharedExpertFiles::Count(_) | SharedExpertFiles::Always) => {}
            Some(SharedExpertFiles::Unweighted(_)) => {
                none("expert_shared_count", &[0, 1], "1 (several shared experts are not supported)")?;
            }
            _ => none("expert_shared_count", &[0], "0 (shared experts are not supported)")?,
        }
        let scale = file.optional::<f32>(&key("expert_weights_scale"))?.filter(|scale| *scale != 0.0);
        if !self.may_have_groups {
            none("expert_group_count", &[0, 1], "1 (groups of experts are not supported)")?;
        }
        let may_be_scaled =
            |scale: f32| scale == 1.0 || self.may_have_groups && scale > 0.0 && scale.is_finite();
        if let Some(scale) = scale.filter(|scale| !may_be_scaled(*scale)) {
            let expected = match self.may_have_groups {
                true => "a positive number",
                false => "1 (scaled expert weights are not supported)",
            };
            return Err(Error::bad_key(file.tensors.path(), &key("expert_weights_scale"), scale, expected));
        }
        if self.dense == DenseFiles::Never {
            none("leading_dense_block_count", &[0], "0 (layers without experts are not supported)")?;
        }
        if !matches!(self.dense, DenseFiles::Interleaved(_)) {
            none("interleave_moe_layer_step", &[0, 1], "1 (layers without experts are not supported)")?;
        }
        let usual = self.usual_in_gguf(file, architecture, layers.count);
        let function = self.function_in_gguf(file, &key("expert_gating_func"), usual)?;
        let shared_ffn_size = match self.shared {
            Some(SharedExpertFiles::Always) => Some(ffn_size),
            Some(SharedExpertFiles::Weighted([_, shared]) | SharedExpertFiles::Unweighted([_, shared])) => {
                match layers.optional_size(shared, SizeRule::Same)? {
                    Some(width) => Some(width),
                    None => Some(layers.size("feed_forward_length", SizeRule::Same)?),
                }
            }
            Some(SharedExpertFiles::Count(_)) => {
                let count = file.optional::<usize>(&key("expert_shared_count"))?.unwrap_or(0);
                let stated = file.optional::<usize>(&key("expert_shared_feed_forward_length"))?;
                (count > 0).then(|| stated.unwrap_or_else(|| count.saturating_mul(ffn_size)))
            }
            None => {
                none("expert_shared_feed_forward_length", &[0], "0 (shared experts are not supported)")?;
                None
            }
        };
        let count = file.optional::<usize>(&key("expert_group_count"))?.unwrap_or(0);
        let groups = match count {
            0 | 1 => None,
            count => {
                Some(ExpertGroups { count, used: file.require(&key("expert_group_used_count"))?, summed: 2 })
            }
        };
        let settings = self.settings();
        let routing = ExpertRouting {
            used: file.require(&key("expert_used_count"))?,
            is_normalised: self.normalised_in_gguf(file, &key("expert_weights_norm"))?,
            function,
            groups,
            scale: scale.unwrap_or(1.0),
            ..settings.routing
        };
        let has_bias =
            self.has_bias && file.tensors.iter().any(|(name, _)| name.ends_with(".exp_probs_b.bias"));
        let count = file.require(&key("expert_count"))?;
        let latent = self.latent.map_or(Ok(None), |name| file.optional(&key(name)))?;
        let latent = latent.filter(|width| *width > 0);
        Ok(ExpertsConfig { count, routing, shared_ffn_size, has_bias, latent, ..settings })
    }

    /// Returns the settings that depend only on the architecture. The other settings are read from the file.
    fn settings(&self) -> ExpertsConfig {
        let routing = ExpertRouting {
            used: 0,
            is_normalised: false,
            is_of_chosen: self.is_of_chosen,
            is_rounded: self.is_rounded,
            mixes_whole: self.mixes_whole,
            rounds_scores: self.rounds_scores,
            precision: self.precision,
            function: self.function,
            bias: Vec::new(),
            groups: None,
            scale: 1.0,
            scales: Vec::new(),
            added: 0.0,
        };
        ExpertsConfig {
            count: 0,
            routing,
            shared_ffn_size: None,
            is_shared_weighted: matches!(self.shared, Some(SharedExpertFiles::Weighted(_))),
            has_plain_sigmoid: self.has_plain_sigmoid,
            clamped: self.clamped,
            has_bias: self.has_bias,
            weighs_inputs: self.weighs_inputs,
            has_input_rows: self.has_input_rows,
            has_branch_norms: self.has_branch_norms,
            latent: None,
        }
    }
}

/// Reads a number whose key has several names. A default applies only if the file has none of the names.
fn one_of(file: &Config, keys: &[&str]) -> Result<usize> {
    let mut found: Option<(&str, usize)> = None;
    let is_stated = keys.iter().any(|key| file.states(key));
    for key in keys.iter().filter(|key| !is_stated || file.states(key)) {
        match (file.optional_usize(key)?, found) {
            (Some(number), Some((other, known))) if number != known => {
                return Err(file.bad_key(other, known, format!("{number}, the value of {key}")));
            }
            (Some(number), None) => found = Some((key, number)),
            _ => {}
        }
    }
    found.map_or_else(|| file.require_usize(keys[0]), |(_, number)| Ok(number))
}

/// Reads the factor and limit of a clamped GLU.
fn clamped_glu(file: &Config, default: ClampedGlu) -> Result<ClampedGlu> {
    Ok(ClampedGlu {
        alpha: file.optional_positive("swiglu_alpha")?.unwrap_or(default.alpha),
        limit: file.optional_positive("swiglu_limit")?.unwrap_or(default.limit),
    })
}
