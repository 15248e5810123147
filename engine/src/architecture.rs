//! Names of the supported architectures, and their aliases in files.

/// Canonical name of each architecture, and aliases in config files, GGUF metadata and dumps.
const NAMES: &[(&str, &[&str])] = &[
    (
        "llama",
        &[
            "llama2",
            "llama3",
            "LlamaForCausalLM",
            "mistral",
            "MistralForCausalLM",
            "ministral",
            "MinistralForCausalLM",
            "mistral3",
            "Mistral3ForConditionalGeneration",
            "ministral3",
            "Ministral3ForCausalLM",
            "mixtral",
            "MixtralForCausalLM",
        ],
    ),
    ("qwen2", &["Qwen2ForCausalLM"]),
    ("qwen2moe", &["qwen2_moe", "Qwen2MoeForCausalLM"]),
    ("qwen3", &["Qwen3ForCausalLM"]),
    ("qwen3moe", &["qwen3_moe", "Qwen3MoeForCausalLM"]),
    ("qwen3next", &["qwen3_next", "Qwen3NextForCausalLM"]),
    ("qwen35", &["qwen3_5", "qwen3_5_text", "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"]),
    (
        "qwen35moe",
        &["qwen3_5_moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    ),
    ("gemma2", &["Gemma2ForCausalLM"]),
    ("gemma3", &["gemma3_text", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"]),
    ("gemma3n", &["gemma3n_text", "Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"]),
    ("gemma4", &["gemma4_text", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"]),
    ("olmo2", &["Olmo2ForCausalLM", "olmo3", "Olmo3ForCausalLM"]),
    ("smollm3", &["SmolLM3ForCausalLM"]),
    ("granite", &["GraniteForCausalLM"]),
    ("phi3", &["Phi3ForCausalLM"]),
    ("gemma", &["GemmaForCausalLM"]),
    ("seed_oss", &["SeedOssForCausalLM"]),
    ("ernie4_5", &["Ernie4_5ForCausalLM"]),
    ("exaone4", &["Exaone4ForCausalLM"]),
    ("glm4", &["Glm4ForCausalLM"]),
    ("chatglm", &["glm", "GlmForCausalLM"]),
    ("helium", &["HeliumForCausalLM"]),
    ("arcee", &["ArceeForCausalLM"]),
    ("olmoe", &["OlmoeForCausalLM"]),
    ("granitemoe", &["GraniteMoeForCausalLM"]),
    ("starcoder2", &["Starcoder2ForCausalLM"]),
    ("gptneox", &["gpt_neox", "GPTNeoXForCausalLM"]),
    ("stablelm", &["StableLmForCausalLM"]),
    ("command-r", &["cohere", "CohereForCausalLM"]),
    ("cohere2", &["Cohere2ForCausalLM"]),
    ("olmo", &["OlmoForCausalLM"]),
    ("jais2", &["Jais2ForCausalLM"]),
    ("nemotron", &["NemotronForCausalLM"]),
    ("phi2", &["phi", "PhiForCausalLM"]),
    ("falcon", &["FalconForCausalLM"]),
    ("opt", &["OPTForCausalLM"]),
    ("bloom", &["BloomForCausalLM"]),
    ("starcoder", &["gpt_bigcode", "GPTBigCodeForCausalLM"]),
    ("gptj", &["GPTJForCausalLM"]),
    ("hunyuan-dense", &["hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM"]),
    ("gpt-oss", &["gpt_oss", "GptOssForCausalLM"]),
    ("glm4moe", &["glm4_moe", "Glm4MoeForCausalLM"]),
    (
        "deepseek2",
        &[
            "deepseek_v3",
            "DeepseekV3ForCausalLM",
            "deepseek_v2",
            "DeepseekV2ForCausalLM",
            "kimi_k2",
            "glm4_moe_lite",
            "Glm4MoeLiteForCausalLM",
        ],
    ),
    ("dots1", &["Dots1ForCausalLM"]),
    ("minimax-m2", &["minimax_m2", "MiniMaxM2ForCausalLM"]),
    ("ernie4_5-moe", &["ernie4_5_moe", "Ernie4_5_MoeForCausalLM"]),
    ("granitehybrid", &["granitemoehybrid", "GraniteMoeHybridForCausalLM"]),
    ("lfm2", &["Lfm2ForCausalLM"]),
    ("lfm2moe", &["lfm2_moe", "Lfm2MoeForCausalLM"]),
    ("falcon-h1", &["falcon_h1", "FalconH1ForCausalLM"]),
    ("llama4", &["llama4_text", "Llama4ForCausalLM", "Llama4ForConditionalGeneration"]),
    ("nemotron_h", &["nemotron_h_moe", "NemotronHForCausalLM"]),
    ("gpt2", &["GPT2LMHeadModel"]),
    ("bitnet", &["BitNetForCausalLM"]),
];

/// Returns the canonical names.
pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name)
}

/// Returns the canonical architecture name, or `called` if it is unknown.
pub fn family(called: &str) -> &str {
    let is_it = |(name, others): &&(&str, &[&str])| *name == called || others.contains(&called);
    match NAMES.iter().find(is_it) {
        Some((name, _)) => name,
        // Names in bitnet.cpp's files, such as bitnet-b1.58 and bitnet-25.
        None if called.starts_with("bitnet") => "bitnet",
        None => called,
    }
}
