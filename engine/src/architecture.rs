//! The architectures that are known, and what files call them.

/// The name of each, and others that config files, GGUF metadata and dumps write.
const NAMES: &[(&str, &[&str])] = &[
    (
        "llama",
        &[
            "llama2",
            "llama3",
            "LlamaForCausalLM",
            "mistral",
            "MistralForCausalLM",
            "mixtral",
            "MixtralForCausalLM",
        ],
    ),
    ("qwen2", &["Qwen2ForCausalLM"]),
    ("qwen3", &["Qwen3ForCausalLM"]),
    ("qwen3moe", &["qwen3_moe", "Qwen3MoeForCausalLM"]),
    ("gemma2", &["Gemma2ForCausalLM"]),
    ("gemma3", &["gemma3_text", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"]),
    ("olmo2", &["Olmo2ForCausalLM"]),
    ("smollm3", &["SmolLM3ForCausalLM"]),
    ("granite", &["GraniteForCausalLM"]),
    ("phi3", &["Phi3ForCausalLM"]),
    ("gpt2", &["GPT2LMHeadModel"]),
    ("bitnet", &["BitNetForCausalLM"]),
];

/// The name of each.
pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name)
}

/// The name of the architecture that a file calls so; as it is, where that is none that is known.
pub fn family(called: &str) -> &str {
    let is_it = |(name, others): &&(&str, &[&str])| *name == called || others.contains(&called);
    match NAMES.iter().find(is_it) {
        Some((name, _)) => name,
        // bitnet.cpp's files: bitnet-b1.58, bitnet-25 …
        None if called.starts_with("bitnet") => "bitnet",
        None => called,
    }
}
