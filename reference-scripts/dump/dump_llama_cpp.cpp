// Dumps every intermediate value of a llama.cpp model's greedy run, in xcheck's dump format.
//
// The model runs twice: plainly, and with a callback that sees each graph node as it is computed. Nothing is
// written unless both runs agree bit for bit in every logit: asking for a node splits the graph's execution and
// may undo a fusion of operations, and a dump is worth something only if that changed nothing.
//
// One file over the public llama.h and ggml headers; build_dump_llama_cpp.sh says how it is compiled.

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef XCHECK_PRODUCER
#define XCHECK_PRODUCER "llama.cpp" // a fork says its own name here
#endif
#ifndef XCHECK_PRODUCER_VERSION
#define XCHECK_PRODUCER_VERSION "unknown" // llama.h has no version that every age of it offers
#endif
#ifndef XCHECK_BUILD_FLAGS
#define XCHECK_BUILD_FLAGS "unknown"
#endif

namespace {

namespace fs = std::filesystem;

// ---------------------------------------------------------------------------------------------------
// Old and new llama.h. A name that the installed header lacks drops out of the overload set, because every
// use of it depends on a template parameter; of those that remain, `Newer` prefers the newer name.

struct Older {};
struct Newer : Older {};

#define XCHECK_RENAMED(name, newer, older)                                                                       \
    template <class... A> auto name(Newer, A... a) -> decltype(newer(a...)) { return newer(a...); }              \
    template <class... A> auto name(Older, A... a) -> decltype(older(a...)) { return older(a...); }

// The overload that is not taken may name a function the new header calls deprecated.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

// Before the vocabulary had a type of its own, the functions on it took the model; before backends could be
// libraries of their own, there were none to load.
template <class Model> Model model_itself(Model model) { return model; }
void nothing_to_load() {}

XCHECK_RENAMED(load_backends, ggml_backend_load_all, nothing_to_load)
XCHECK_RENAMED(load_model, llama_model_load_from_file, llama_load_model_from_file)
XCHECK_RENAMED(free_model, llama_model_free, llama_free_model)
XCHECK_RENAMED(make_context, llama_init_from_model, llama_new_context_with_model)
XCHECK_RENAMED(vocab_of, llama_model_get_vocab, model_itself)
XCHECK_RENAMED(vocab_size, llama_vocab_n_tokens, llama_n_vocab)
XCHECK_RENAMED(rope_type, llama_model_rope_type, llama_rope_type)

#pragma GCC diagnostic pop

// Sets a parameter if this llama.h has it.
#define XCHECK_OPTIONAL_FIELD(field)                                                                             \
    template <class P, class V> auto set_##field(Newer, P & params, V value) -> decltype(params.field, void()) { \
        params.field = static_cast<decltype(params.field)>(value);                                               \
    }                                                                                                            \
    template <class P, class V> void set_##field(Older, P &, V) {}

XCHECK_OPTIONAL_FIELD(use_extra_bufts)
XCHECK_OPTIONAL_FIELD(flash_attn)
XCHECK_OPTIONAL_FIELD(flash_attn_type)
XCHECK_OPTIONAL_FIELD(op_offload)
XCHECK_OPTIONAL_FIELD(swa_full)
XCHECK_OPTIONAL_FIELD(kv_unified)

// ---------------------------------------------------------------------------------------------------
// Messages.

[[noreturn]] void fail(const std::string & message) {
    throw std::runtime_error(message);
}

// The first line that llama.cpp logged as an error: why a load or a decode failed. Later ones repeat that it did.
std::string & first_error() {
    static std::string line;
    return line;
}

void keep_error(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR && first_error().empty()) {
        first_error().assign(text, std::strcspn(text, "\n"));
    }
}

std::string because() {
    return first_error().empty() ? "" : ": " + first_error();
}

void show_progress(const char * run, int pass, int passes) {
    std::fprintf(stderr, "\r%s run: pass %d of %d%s", run, pass, passes, pass == passes ? "\n" : "");
}

std::string joined(const std::set<std::string> & names) {
    std::string text;
    for (const std::string & name : names) text += (text.empty() ? "" : " ") + name;
    return text;
}

// ---------------------------------------------------------------------------------------------------
// The command line.

const char * const USAGE =
    "usage: dump_llama_cpp --model FILE.gguf (--prompt TEXT | --tokens 1,2,3) --out DIR|FILE.safetensors [options]\n"
    "\n"
    "Dumps every intermediate value of a greedy run: the prompt as one pass, then one pass per decoded token.\n"
    "\n"
    "  --model FILE.gguf    the model\n"
    "  --prompt TEXT        the input, tokenized by llama.cpp, BOS included where the model wants one\n"
    "  --tokens 1,2,3       the input as token ids\n"
    "  --decode N           passes after the prompt's (default 4); N + 1 tokens are generated, EOS does not stop it\n"
    "  --kv TYPE            type of the KV cache: f16 (llama.cpp's default), f32, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, ...\n"
    "  --flash on|off       flash attention, llama.cpp's default; no scores and weights then (default off)\n"
    "  --threads N          threads (default 1)\n"
    "  --repack on|off      weights rearranged for other kernels, llama.cpp's default (default off)\n"
    "  --out PATH           a new directory of .npy files, or one .safetensors file\n"
    "  --help               this text\n";

struct Options {
    std::string model;
    std::optional<std::string> prompt;
    std::vector<llama_token> tokens;
    int decode = 4;
    ggml_type kv_cache = GGML_TYPE_F16;
    bool flash = false;
    int threads = 1;
    bool repack = false;
    fs::path out;
};

int parse_number(const std::string & option, const std::string & text, int lowest) {
    char * end = nullptr;
    const long value = std::strtol(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || value < lowest || value > INT32_MAX) {
        fail(option + ": '" + text + "' is not a whole number of at least " + std::to_string(lowest));
    }
    return static_cast<int>(value);
}

std::vector<llama_token> parse_tokens(const std::string & list) {
    std::vector<llama_token> tokens;
    for (size_t start = 0; start <= list.size();) {
        const size_t comma = std::min(list.find(',', start), list.size());
        tokens.push_back(parse_number("--tokens", list.substr(start, comma - start), 0));
        start = comma + 1;
    }
    return tokens;
}

ggml_type parse_kv_cache(const std::string & name) {
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const char * known = ggml_type_name(static_cast<ggml_type>(type));
        if (known && name == known) return static_cast<ggml_type>(type);
    }
    fail("--kv: '" + name + "' is no type of ggml: give f16, f32, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl");
}

bool parse_switch(const std::string & option, const std::string & value) {
    if (value == "on") return true;
    if (value == "off") return false;
    fail(option + ": '" + value + "' is neither on nor off");
}

void set_option(Options & options, const std::string & name, const std::string & value) {
    if      (name == "--model")   options.model    = value;
    else if (name == "--prompt")  options.prompt   = value;
    else if (name == "--tokens")  options.tokens   = parse_tokens(value);
    else if (name == "--decode")  options.decode   = parse_number(name, value, 0);
    else if (name == "--kv")      options.kv_cache = parse_kv_cache(value);
    else if (name == "--flash")   options.flash    = parse_switch(name, value);
    else if (name == "--threads") options.threads  = parse_number(name, value, 1);
    else if (name == "--repack")  options.repack   = parse_switch(name, value);
    else if (name == "--out")     options.out      = value;
    else fail("unknown option " + name + " (--help lists them)");
}

// A place that cannot be written is found out now rather than after the model ran.
void prepare_out(const fs::path & out) {
    if (!out.has_filename()) fail("--out: " + out.string() + " should not end in a slash");
    if (out.extension() != ".safetensors" && fs::exists(out) && !fs::is_empty(out)) {
        fail(out.string() + " exists and is not an empty directory");
    }
    if (out.has_parent_path()) fs::create_directories(out.parent_path());
}

Options parse_options(int argc, char ** argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) fail(std::string(argv[i]) + " needs a value (--help lists the options)");
        set_option(options, argv[i], argv[i + 1]);
    }
    if (options.model.empty()) fail("--model is missing");
    if (options.out.empty()) fail("--out is missing");
    if (options.prompt.has_value() == !options.tokens.empty()) fail("give either --prompt or --tokens");
    prepare_out(options.out);
    return options;
}

// ---------------------------------------------------------------------------------------------------
// The taps and where the graph has them.
// T = tokens of the pass, S = tokens so far, d = hidden size, H / Hkv = heads, D = head size.

// A layer's taps in data-flow order: the order of the dump.
const std::vector<std::string> LAYER_TAPS = {
    "predict_router", "predict_coefs", "altup_predicted", "attn_norm", "laurel_low", "laurel_high", "laurel_norm", "laurel_out", "mixer_in", "conv_in", "mixer_gate", "beta_logit", "decay_logit", "conv_out", "conv_act", "step_size",
    "q_latent", "q_latent_norm", "q", "k", "v", "attn_gate", "kv_latent", "kv_latent_norm", "q_norm", "k_norm", "v_norm",
    "q_rope", "k_rope", "q_scaled", "q_rope_norm", "k_rope_norm", "k_cache", "v_cache", "q_unit", "k_unit", "beta", "decay", "recurrent_state",
    "attn_scores", "attn_weights", "attn_latent", "attn_context", "attn_gated", "recurrent_out", "recurrent_norm", "mixer_out",
    "conv_gated", "attn_sub_norm", "attn_out", "attn_post_norm", "attn_residual",
    "laurel_residual", "ffn_norm", "router_norm", "router_logits", "expert_scores", "experts", "expert_weights", "expert_norm", "expert_latent", "expert_in", "expert_gate", "expert_up", "expert_act", "expert_out",
    "routed_latent", "routed_out", "routed_post_norm", "shared_gate", "shared_up", "shared_act", "shared_out", "shared_post_norm", "shared_logit", "shared_weight",
    "ffn_gate", "ffn_sparse", "ffn_up", "ffn_act", "ffn_sub_norm", "ffn_out", "ffn_post_norm",
    "ffn_residual", "correct_router", "correct_coefs", "altup_corrected", "altup_active", "layer_input", "layer_gate", "layer_act", "layer_out", "layer_post_norm", "block_out",
};

// Those that every architecture has: a missing one is worth a warning.
const std::vector<std::string> COMMON_OUTSIDE_TAPS = {"embed", "final_norm"};
const std::vector<std::string> COMMON_LAYER_TAPS = {
    "attn_norm", "attn_out", "attn_residual", "ffn_norm", "ffn_out", "block_out",
};
const std::vector<std::string> ATTENTION_TAPS = {
    "q", "k", "v", "q_rope", "k_rope", "k_cache", "v_cache", "attn_scores", "attn_weights", "attn_context",
};
const std::vector<std::string> CONVOLUTION_TAPS = {"conv_in", "conv_out"};

const std::vector<std::string> NO_TAPS = {};
const std::vector<std::string> FFN_TAPS = {"ffn_up", "ffn_act"};
const std::vector<std::string> EXPERT_TAPS = {
    "experts", "expert_weights", "expert_gate", "expert_up", "expert_act", "expert_out",
};

// The per-head taps, with the cache whose last axis is their head size: a projection's node does not know its heads.
const std::map<std::string, std::string> HEAD_TAPS = {
    {"q", "k_cache"},
    {"k", "k_cache"},
    {"v", "v_cache"},
    {"q_norm", "k_cache"},
    {"k_norm", "k_cache"},
    {"q_rope", "k_cache"},
    {"k_rope", "k_cache"},
    {"q_scaled", "k_cache"},
    {"v_norm", "v_cache"},
    {"q_rope_norm", "k_cache"},
    {"k_rope_norm", "k_cache"},
};

// A node that applies a weight of the model gives a tap, whatever this llama.cpp calls the node: the names of
// weights are GGUF's. A bias or a scale is applied after its matrix, and the last node of a tap counts.
const std::map<std::string, std::string> WEIGHT_TAPS = {
    {"attn_norm", "attn_norm"},
    {"attn_norm_2", "attn_norm_2"}, // Falcon: see Recorder::name_two_norms
    {"attn_q", "q"},
    {"attn_k", "k"},
    {"attn_v", "v"},
    {"attn_q_a", "q_latent"}, // latent attention, as are the next four
    {"attn_q_a_norm", "q_latent_norm"},
    {"attn_q_b", "q"},
    {"attn_kv_a_mqa", "kv_latent"},
    {"attn_kv_a_norm", "kv_latent_norm"},
    {"attn_q_norm", "q_norm"},
    {"attn_k_norm", "k_norm"},
    {"attn_sub_norm", "attn_sub_norm"},
    {"attn_output", "attn_out"},
    {"post_attention_norm", "attn_post_norm"},
    {"ssm_in", "mixer_in"}, // Mamba-2, as are the next two
    {"ssm_conv1d", "conv_out"},
    {"ssm_out", "mixer_out"}, // see Recorder::name_mixer
    {"ssm_beta", "beta_logit"}, // Qwen 3.5, as is the next
    {"ssm_alpha", "decay_logit"},
    {"shortconv.in_proj", "mixer_in"},
    {"shortconv.conv", "conv_out"},
    {"shortconv.out_proj", "attn_out"},
    {"ffn_norm", "ffn_norm"},
    {"ffn_gate", "ffn_gate"},
    {"ffn_up", "ffn_up"},
    {"ffn_gate_inp", "router_logits"},
    {"ffn_gate_exps", "expert_gate"},
    {"ffn_up_exps", "expert_up"},
    {"ffn_down_exps", "expert_out"},
    {"ffn_latent_down", "expert_latent"}, // Nemotron-H, as is the next
    {"ffn_latent_up", "routed_out"},
    {"pre_ffw_norm_2", "expert_norm"}, // Gemma 4, as are the next two
    {"post_ffw_norm_2", "routed_post_norm"},
    {"post_ffw_norm_1", "shared_post_norm"},
    {"ffn_gate_shexp", "shared_gate"},
    {"ffn_up_shexp", "shared_up"},
    {"ffn_down_shexp", "shared_out"},
    {"ffn_gate_inp_shexp", "shared_logit"},
    {"ffn_sub_norm", "ffn_sub_norm"},
    {"ffn_down", "ffn_out"},
    {"post_ffw_norm", "ffn_post_norm"},
    {"inp_gate", "layer_gate"}, // Gemma 4, as are the next two
    {"proj", "layer_out"},
    {"post_norm", "layer_post_norm"},
    {"altup_proj", "altup_projected"}, // Gemma 3n, as are the next eight
    {"altup_unembd_proj", "altup_unembedded"},
    {"altup_predict_coef", "predict_coefs"},
    {"altup_correct_coef", "correct_coefs"},
    {"altup_correct_scale", "altup_active"},
    {"laurel_l", "laurel_low"},
    {"laurel_r", "laurel_high"},
    {"laurel_post_norm", "laurel_norm"},
    {"output_norm", "final_norm"},
    {"token_embd_norm", "final_norm"}, // LFM2
};

// Taps that are the input of a weight's product.
const std::map<std::string, std::string> INPUT_TAPS = {
    {"shortconv.out_proj", "conv_gated"},
    {"ssm_out", "recurrent_norm"},
    {"altup_predict_coef", "predict_router"}, // Gemma 3n, as is the next
    {"altup_correct_coef", "correct_router"},
};

// How three ggml axes (0 is the fastest) become a tap's axes, slowest first. `cells` is the one that runs over
// the KV cache, which is padded; -1 if none does.
struct Layout {
    std::array<int, 3> axes;
    int cells;
};

constexpr Layout ROWS   = {{2, 1, 0}, -1}; // [features, T] or [D, H, T]
constexpr Layout SCORES = {{2, 1, 0}, 0};  // [S, T, H] -> H,T,S
constexpr Layout KEYS   = {{1, 2, 0}, 1};  // [D, S, Hkv] -> S,Hkv,D
constexpr Layout HEADS  = {{1, 2, 0}, -1}; // [D, T, H]
constexpr Layout VALUES = {{0, 2, 1}, 0};  // [S, D, Hkv] -> S,Hkv,D
constexpr Layout STREAMS = {{1, 2, 0}, -1}; // [d, T, n] -> T,n,d
constexpr Layout WINDOW = {{2, 0, 1}, -1}; // [k - 1 + T, C] -> k-1+T,C

// The other nodes, by name and operation: one name can stand for several nodes. `operand` is which source of the
// node holds the value, -1 for the node itself. Several rules may match one node.
struct NodeRule {
    const char * node;
    const char * op;
    const char * tap;
    Layout layout = ROWS;
    int operand = -1;
};

const std::vector<NodeRule> NODE_RULES = {
    // What enters layer 0: the last of these that the architecture has.
    {"inp_embd", "GET_ROWS", "embed"},
    {"embd", "GET_ROWS", "embed"},
    {"model.embed_tokens", "GET_ROWS", "embed"}, // LFM2, Qwen3-Next
    {"model.input_embed", "GET_ROWS", "embed"},  // Qwen 3.5
    {"inp_scaled", "SCALE", "embed"}, // Gemma
    {"inp_embd_scaled", "SCALE", "embed"}, // AFMoE
    {"embd", "SCALE", "embed"},       // Granite, as is the next
    {"inp_embd", "SCALE", "embed"},
    {"inp_norm", "ADD", "embed"},     // BLOOM: after the norm of embeddings
    {"inpL", "ADD", "embed"},         // GPT-2: plus the position's embedding
    // q, k and v as parts of one fused projection (GPT-2).
    {"Qcur", "VIEW", "q"},
    {"Kcur", "VIEW", "k"},
    {"Vcur", "VIEW", "v"},
    // Qwen3-Next: queries and output gate as parts of one projection.
    {"Qcur_view", "VIEW", "q"},
    {"gate", "VIEW", "attn_gate"},
    {"Qcur_reshaped", "VIEW", "q"}, // Qwen 3.5, as is the next
    {"gate_reshaped", "CONT", "attn_gate"},
    {"attn_pregate", "CONT", "attn_context"},
    {"attn_pregate", "RESHAPE", "k_cache", KEYS, 1},
    {"attn_pregate", "RESHAPE", "v_cache", KEYS, 2},
    {"attn_pregate", "RESHAPE", "attn_context"},
    {"attn_gated", "MUL", "attn_gated"},
    // Its linear attention; see also rule_sources.
    {"z", "MUL_MAT", "mixer_gate"},
    {"b", "VIEW", "beta_logit"},
    {"a", "VIEW", "decay_logit"},
    {"conv_output_silu", "UNARY", "conv_act"},
    {"gate", "MUL", "decay"},
    {"new_state", "VIEW", "recurrent_state"},
    {"final_output", "RESHAPE", "recurrent_norm"},
    {"Qcur", "ROPE", "q_rope"},
    {"Kcur", "ROPE", "k_rope"},
    {"Qcur-post-rope", "ROPE", "q_rope"}, // Falcon-H1, as is the next
    {"Kcur-post-rope", "ROPE", "k_rope"},
    {"Qcur_normed", "RMS_NORM", "q_rope_norm"}, // Llama 4, as are the next three
    {"Kcur_normed", "RMS_NORM", "k_rope_norm"},
    {"ffn_moe_weighted", "MUL", "expert_in"}, // see sources_of
    {"ffn_moe_out_merged", "ADD", "shared_sum"},
    {"Qcur_pos", "ROPE", "q_rope"}, // Apertus, as is the next
    {"Kcur_pos", "ROPE", "k_rope"},
    {"Qcur_rope", "ROPE", "q_rope"}, // Jais 2
    {"Kcur_rope", "ROPE", "k_rope"},
    {"Qcur", "CONCAT", "q_rope"}, // latent attention, as are the next two
    {"Kcur", "CONCAT", "k_rope"},
    {"kqv", "MUL_MAT", "attn_latent", HEADS},
    // The cache as the two products read it. The values are stored transposed when flash attention is off.
    {"kq", "MUL_MAT", "k_cache", KEYS, 0},
    {"kqv", "MUL_MAT", "v_cache", VALUES, 0},
    {"kq", "MUL_MAT", "attn_scores", SCORES}, // not scaled yet: see Recorder::scale_scores
    {"kq_scaled_2", "SCALE", "attn_scores", SCORES}, // softly capped
    {"kq_soft_max", "SOFT_MAX", "attn_weights", SCORES},
    {"kq_soft_max_ext", "SOFT_MAX", "attn_weights", SCORES},
    // Flash attention is one node, of which this is another shape: it has no scores, and reads values as they lie.
    {"kqv_out", "RESHAPE", "k_cache", KEYS, 1},
    {"kqv_out", "RESHAPE", "v_cache", KEYS, 2},
    {"kqv_out", "RESHAPE", "attn_context"},
    {"kqv_out", "CONT", "attn_context"},
    {"kqv_merged_cont", "CONT", "attn_context"},
    {"mamba2_y_add_d", "ADD", "recurrent_out"},
    {"ffn_inp", "ADD", "attn_residual"},
    {"sa_out", "ADD", "attn_residual"}, // Gemma
    {"attn_residual", "ADD", "attn_residual"},
    {"ffn_swiglu", "GLU", "ffn_act"},
    {"ffn_geglu", "GLU", "ffn_act"},
    {"ffn_gate_par", "MUL", "ffn_act"}, // before there were GLU nodes
    {"ffn_gelu", "UNARY", "ffn_act"},   // GPT-2
    {"ffn_sqr(relu)", "SQR", "ffn_act"}, // Arcee
    {"attn_norm", "NORM", "attn_norm"}, // OLMo, whose norms have no weights, as the next two
    {"ffn_norm", "NORM", "ffn_norm"},
    {"result_norm", "NORM", "final_norm"},
    {"ffn_sub_out", "GLU", "ffn_act"},  // BitNet, as are the next two
    {"ffn_sub_out", "MUL", "ffn_act"},
    {"ffn_out", "MUL", "ffn_act"},
    {"l_out", "ADD", "block_out"},
    {"l_out", "MUL", "block_out"}, // Gemma 4, as are the next two
    {"pe_in", "ADD", "ffn_residual"},
    {"Vcur_normed", "RMS_NORM", "v_norm"},
    {"nemotron_h_block_out", "ADD", "single_out"}, // see Recorder::name_single_half
    {"inp_stacked", "CONCAT", "altup_streams", STREAMS}, // Gemma 3n, as are the next eight
    {"predictions", "ADD", "altup_predicted", STREAMS},
    {"laurel_out", "ADD", "laurel_out"},
    {"attn_gated", "ADD", "attn_residual"},
    {"attn_laurel", "SCALE", "laurel_residual"},
    {"attn_ffw_laurel_gated", "ADD", "ffn_residual"},
    {"corrected", "ADD", "altup_corrected", STREAMS},
    {"l_out", "CONCAT", "block_out", STREAMS},
    {"unembd_merged", "SCALE", "altup_mean"},
    // A mixture of experts. What they are weighed by is the last of the four that the architecture has.
    {"ffn_moe_probs_biased", "ADD", "biased_scores"}, // with a correction bias
    {"ffn_moe_probs", "SOFT_MAX", "expert_scores"},   // without one, where groups are chosen
    {"ffn_moe_group_topk", "VIEW", "expert_groups"},
    {"ffn_moe_topk", "VIEW", "experts"},
    {"ffn_moe_weights", "GET_ROWS", "expert_weights"},
    {"ffn_moe_weights_norm", "DIV", "expert_weights"},
    {"ffn_moe_weights_scaled", "SCALE", "expert_weights"},
    {"ffn_moe_weights_softmax", "RESHAPE", "expert_weights"}, // gpt-oss, as is the next
    {"ffn_moe_swiglu_oai", "GLU", "expert_act"},
    {"ffn_moe_swiglu", "GLU", "expert_act"},
    {"ffn_moe_gate_par", "MUL", "expert_act"},
    {"ffn_moe_relu_sqr", "SQR", "expert_act"}, // Nemotron-H
    {"ffn_moe_geglu", "GLU", "expert_act"},    // Gemma 4, as are the next three
    {"ffn_moe_gate", "VIEW", "expert_gate"},
    {"ffn_moe_up", "VIEW", "expert_up"},
    {"ffn_moe_combined", "ADD", "shared_sum"},
    {"ffn_moe_out", "ADD", "mixed_out"}, // see Recorder::name_mixed, as is the next
    {"ffn_moe_out", "CONT", "mixed_out"},
    // With a shared expert: see Recorder::name_shared.
    {"ffn_shexp_gate", "DIV", "shared_weight"},
    {"shared_expert_gate_sigmoid", "UNARY", "shared_weight"},
    {"ffn_out", "ADD", "shared_sum"},
};

// "Qcur-3" is Qcur of layer 3, "embd" belongs to no layer (-1).
struct Name {
    std::string base;
    int layer = -1;
};

Name node_name(const ggml_tensor * node) {
    const std::string name = node->name;
    const size_t digits = name.find_last_not_of("0123456789") + 1;
    if (digits == name.size() || digits < 2 || name[digits - 1] != '-') return {name};
    return {name.substr(0, digits - 1), std::stoi(name.substr(digits))};
}

// "blk.3.attn_q.weight" is attn_q of layer 3, "output_norm.weight" is output_norm of no layer, "blk.3.shortconv.conv.weight" is
// shortconv.conv.
Name weight_name(const ggml_tensor * weight) {
    std::string name = weight->name;
    int layer = -1, prefix = 0;
    if (std::sscanf(name.c_str(), "blk.%d.%n", &layer, &prefix) == 1) name.erase(0, prefix);
    return {name.substr(0, name.rfind('.')), layer};
}

// ---------------------------------------------------------------------------------------------------
// Recording.

struct Value {
    std::vector<int64_t> shape;
    std::vector<float> data;
};

using Taps = std::map<std::string, Value>;

// The taps of one pass, by layer; -1 holds those of no layer.
using PassTaps = std::map<int, Taps>;

float element(const ggml_tensor * tensor, const char * at) {
    if (tensor->type == GGML_TYPE_F16) {
        ggml_fp16_t half;
        std::memcpy(&half, at, sizeof half);
        return ggml_fp16_to_fp32(half);
    }
    if (tensor->type == GGML_TYPE_I32) {
        int32_t number;
        std::memcpy(&number, at, sizeof number);
        return number;
    }
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// The values of a row of blocks, which are contiguous.
void decode_row(const ggml_tensor * tensor, const char * row, int64_t count, std::vector<float> & data) {
    data.resize(data.size() + count);
    ggml_get_type_traits(tensor->type)->to_float(row, data.data() + data.size() - count, count);
}

void check_readable(const ggml_tensor * tensor, const Layout & layout) {
    const std::string name = tensor->name;
    const ggml_backend_buffer_t buffer = tensor->view_src ? tensor->view_src->buffer : tensor->buffer;
    if (!ggml_backend_buffer_is_host(buffer)) fail("node " + name + " is not in the memory of the CPU");
    const bool has_blocks = ggml_is_quantized(tensor->type) && layout.axes[2] == 0;
    if (!has_blocks && tensor->type != GGML_TYPE_F32 && tensor->type != GGML_TYPE_F16 && tensor->type != GGML_TYPE_I32) {
        fail("node " + name + " is of type " + ggml_type_name(tensor->type) + ", neither f32, f16 nor i32");
    }
    if (tensor->ne[3] != 1) fail("node " + name + " has four axes");
}

// The values of a tensor in the layout's order; the cache is cut to its first `cells` columns.
Value gather(const ggml_tensor * tensor, const Layout & layout, int64_t cells) {
    check_readable(tensor, layout);
    std::array<int64_t, 3> count;
    for (int i = 0; i < 3; i++) {
        count[i] = layout.axes[i] == layout.cells ? cells : tensor->ne[layout.axes[i]];
    }
    Value value{{count.begin(), count.end()}, {}};
    value.data.reserve(count[0] * count[1] * count[2]);
    const auto stride = [&](int i) { return tensor->nb[layout.axes[i]]; };
    for (int64_t a = 0; a < count[0]; a++) {
        for (int64_t b = 0; b < count[1]; b++) {
            const char * row = static_cast<const char *>(tensor->data) + a * stride(0) + b * stride(1);
            if (ggml_is_quantized(tensor->type)) decode_row(tensor, row, count[2], value.data);
            for (int64_t c = 0; c < count[2] && !ggml_is_quantized(tensor->type); c++) {
                value.data.push_back(element(tensor, row + c * stride(2)));
            }
        }
    }
    return value;
}

// One value that a node gives: a tap, and how the tensor holds it.
struct Source {
    int layer;
    std::string tap;
    const ggml_tensor * tensor;
    Layout layout;
};

// True if a node multiplies by a Hadamard matrix.
bool is_rotation(const ggml_tensor * node) {
    if (node->op != GGML_OP_MUL_MAT) return false;
    return std::strcmp(node->src[0]->name, "attn_inp_k_rot") == 0 || std::strcmp(node->src[0]->name, "attn_inp_v_rot") == 0;
}

// The node behind reshapes and views.
const ggml_tensor * computed(const ggml_tensor * tensor) {
    while (tensor->op == GGML_OP_RESHAPE || tensor->op == GGML_OP_VIEW || tensor->op == GGML_OP_CONT) tensor = tensor->src[0];
    return tensor;
}

// The tap of a norm of rotated queries or keys (Hunyuan).
std::string norm_after_rope(const std::string & tap, const ggml_tensor * node) {
    if (tap != "q_norm" && tap != "k_norm") return tap;
    const ggml_tensor * norm = node->src[0];
    const bool is_after = norm->op == GGML_OP_RMS_NORM && computed(norm->src[0])->op == GGML_OP_ROPE;
    return is_after ? (tap == "q_norm" ? "q_rope_norm" : "k_rope_norm") : tap;
}

// True for the scale of a matrix, "blk.3.attn_q.scale", also reshaped.
bool is_scale(const ggml_tensor * tensor) { return std::strstr(tensor->name, ".scale") != nullptr; }

std::vector<Source> weight_sources(const ggml_tensor * node) {
    std::vector<Source> sources;
    for (const ggml_tensor * operand : {node->src[0], node->src[1]}) {
        if (!operand) continue;
        const Name name = weight_name(operand);
        if (is_scale(operand)) {
            // Factors of the router's inputs (Gemma 4).
            if (name.base == "ffn_gate_inp") sources.push_back({name.layer, "router_norm", node, ROWS});
            continue;
        }
        const auto tap = WEIGHT_TAPS.find(name.base);
        if (tap == WEIGHT_TAPS.end()) continue;
        const bool is_of_streams = name.base == "altup_proj" || name.base == "altup_unembd_proj";
        sources.push_back({name.layer, norm_after_rope(tap->second, node), node, is_of_streams ? STREAMS : ROWS});
        const auto input = INPUT_TAPS.find(name.base);
        if (input != INPUT_TAPS.end()) sources.push_back({name.layer, input->second, node->src[1], ROWS});
        if (node->op == GGML_OP_SSM_CONV) sources.push_back({name.layer, "conv_in", node->src[0], WINDOW});
        // The node kqv_out is not rotated back yet.
        const bool reads_rotated = tap->second == "attn_out" && is_rotation(computed(node->src[1]));
        if (reads_rotated) sources.push_back({name.layer, "attn_context", node->src[1], ROWS});
    }
    return sources;
}

// The product of a matrix times its scale, which replaces the product. Experts' scales are gathered.
std::vector<Source> scaled_sources(const ggml_tensor * node) {
    if (node->op != GGML_OP_MUL) return {};
    const ggml_tensor * product = node->src[0];
    const bool is_of_expert = product->op == GGML_OP_MUL_MAT_ID && node->src[1]->op == GGML_OP_GET_ROWS;
    if (!is_of_expert && !(product->op == GGML_OP_MUL_MAT && is_scale(node->src[1]))) return {};
    std::vector<Source> sources = weight_sources(product);
    if (!sources.empty()) sources.resize(1, sources[0]);
    for (Source & source : sources) source.tensor = node;
    return sources;
}

std::vector<Source> node_sources(const ggml_tensor * node) {
    std::vector<Source> sources;
    const Name name = node_name(node);
    for (const NodeRule & rule : NODE_RULES) {
        if (name.base != rule.node || std::strcmp(ggml_op_name(node->op), rule.op) != 0) continue;
        const ggml_tensor * computed = node->op == GGML_OP_RESHAPE ? node->src[0] : node;
        const ggml_tensor * tensor = rule.operand < 0 ? node : computed->src[rule.operand];
        sources.push_back({name.layer, rule.tap, tensor, rule.layout});
    }
    return sources;
}

// The node of a gated delta rule has no name: its output, a view, has one.
std::vector<Source> rule_sources(const ggml_tensor * node) {
    const Name name = node_name(node);
    const bool is_output = name.base == "attn_output" && node->op == GGML_OP_VIEW;
    if (!is_output || std::strcmp(ggml_op_name(node->src[0]->op), "GATED_DELTA_NET") != 0) return {};
    ggml_tensor * const * inputs = node->src[0]->src;
    return {
        {name.layer, "q_unit", inputs[0], ROWS},
        {name.layer, "k_unit", inputs[1], ROWS},
        {name.layer, "beta", inputs[4], ROWS},
        {name.layer, "recurrent_out", node, ROWS},
    };
}

// Rotated queries and keys without a name (LFM2): those of normed ones.
std::vector<Source> rotation_sources(const ggml_tensor * node) {
    if (node->op != GGML_OP_ROPE) return {};
    std::vector<Source> sources = weight_sources(node->src[0]);
    for (Source & source : sources) {
        if (source.tap != "q_norm" && source.tap != "k_norm") return {};
        source.tap = source.tap == "q_norm" ? "q_rope" : "k_rope";
        source.tensor = node;
    }
    return sources;
}

// Queries times a factor for each token (Llama 4, Ministral 3), which may have the name of all queries.
std::vector<Source> temperature_sources(const ggml_tensor * node) {
    const Name name = node_name(node);
    const bool has_factors = node->op == GGML_OP_MUL && ggml_nelements(node->src[1]) == node->ne[2];
    const bool are_queries = name.base == "Qcur" || name.base == "Qcur_attn_temp_scaled";
    if (!are_queries || !has_factors) return {};
    return {{name.layer, "q_scaled", node, ROWS}};
}

// The embeddings of a layer and their product with an activation, which have no name (Gemma 4).
std::vector<Source> embedding_sources(const ggml_tensor * node) {
    if (node->op != GGML_OP_MUL || node->src[0]->op != GGML_OP_UNARY) return {};
    const std::vector<Source> gate = weight_sources(node->src[0]->src[0]);
    if (gate.empty() || gate[0].tap != "layer_gate") return {};
    return {{gate[0].layer, "layer_act", node, ROWS}, {gate[0].layer, "layer_input", node->src[1], ROWS}};
}

// Unnamed nodes of Gemma 3n's feed-forward block: the gate's largest values minus a threshold, and the product after the
// activation.
std::vector<Source> sparse_sources(const ggml_tensor * node) {
    if (node->op == GGML_OP_MUL && node->src[1]->op == GGML_OP_UNARY) {
        const std::vector<Source> up = weight_sources(node->src[0]);
        if (!up.empty() && up[0].tap == "ffn_up") return {{up[0].layer, "ffn_act", node, ROWS}};
    }
    if (node->op != GGML_OP_UNARY || node->src[0]->op != GGML_OP_SUB) return {};
    const std::vector<Source> gate = weight_sources(node->src[0]->src[0]);
    if (gate.empty() || gate[0].tap != "ffn_gate") return {};
    return {{gate[0].layer, "ffn_sparse", node, ROWS}};
}

// Unnamed nodes of Mamba-2: the convolution after its activation, and the recurrent state after the pass.
std::vector<Source> state_space_sources(const ggml_tensor * node) {
    if (node->op == GGML_OP_SSM_SCAN) return {{weight_name(node->src[3]).layer, "recurrent_state", node, ROWS}};
    if (node->op != GGML_OP_UNARY || node->src[0]->op != GGML_OP_ADD) return {};
    const std::vector<Source> sources = weight_sources(node->src[0]);
    if (sources.empty() || sources[0].tap != "conv_out") return {};
    return {{sources[0].layer, "conv_act", node, ROWS}};
}

std::vector<Source> sources_of(const ggml_tensor * node) {
    if (const std::vector<Source> scaled = scaled_sources(node); !scaled.empty()) return scaled;
    std::vector<Source> sources = weight_sources(node);
    for (const std::vector<Source> & unnamed : {rotation_sources(node), state_space_sources(node), rule_sources(node), temperature_sources(node), embedding_sources(node), sparse_sources(node)}) {
        sources.insert(sources.end(), unnamed.begin(), unnamed.end());
    }
    std::vector<Source> named = node_sources(node);
    // Elsewhere the node of this name has the experts' outputs.
    const bool is_of_outputs = node->op == GGML_OP_MUL && node->src[0]->op != GGML_OP_REPEAT;
    const auto is_other = [&](const Source & source) { return source.tap == "expert_in" && is_of_outputs; };
    named.erase(std::remove_if(named.begin(), named.end(), is_other), named.end());
    sources.insert(sources.end(), named.begin(), named.end());
    return sources;
}

// Collects the taps of one pass while llama.cpp computes it.
class Recorder {
  public:
    void begin(int64_t tokens, int64_t cells) {
        tokens_ = tokens;
        cells_ = cells;
    }

    // The taps since `begin`, in their final shapes.
    PassTaps finish() {
        if (error_) std::rethrow_exception(error_);
        for (auto & [layer, taps] : taps_) {
            if (layer < 0) continue;
            name_mixer(taps);
            name_mixed(taps);
            copy_missing_rope(taps);
            name_two_norms(taps);
            name_ffn_norm(taps);
            name_single_half(taps);
            name_shared(taps);
            split_gate_and_up(taps);
            copy_missing_values(taps);
            shape_heads(taps);
            shape_latents(taps);
            shape_linear_attention(taps);
            if (has_tiled_heads_) order_value_heads(taps);
            shape_experts(taps);
        }
        return std::exchange(taps_, {{-1, {}}});
    }

    // The types and the buffers of the matrices; a buffer of repacked weights has a name of its own.
    const std::set<std::string> & weight_types() const { return weight_types_; }
    const std::set<std::string> & weight_buffers() const { return weight_buffers_; }

    // True if queries, keys and values are rotated for a cache of blocks.
    bool rotates() const { return rotates_; }

    // For llama_context_params.cb_eval: called before a node is computed (is it wanted?) and, if so, after.
    // llama.cpp is not made for exceptions: one is kept, and stops the graph.
    static bool on_node(ggml_tensor * node, bool ask, void * recorder) {
        auto & self = *static_cast<Recorder *>(recorder);
        try {
            return ask ? self.wants(node) : self.take(node);
        } catch (...) {
            self.error_ = std::current_exception();
            return false;
        }
    }

  private:
    bool wants(const ggml_tensor * node) {
        if (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID) note_weight(node->src[0]);
        rotates_ = rotates_ || is_rotation(node);
        return !sources_of(node).empty();
    }

    bool take(const ggml_tensor * node) {
        for (const Source & source : sources_of(node)) {
            Value value = gather(source.tensor, source.layout, cells_);
            if (source.tap == "conv_in") keep_latest(value);
            else if (source.tap == "recurrent_state") keep_matrices(value, node);
            else if (source.layout.cells < 0) value.shape = rows_shape(source, value);
            const int layer = source.tap == "embed" ? -1 : source.layer; // BLOOM's node has the name of layer 0's
            taps_[layer][source.tap] = std::move(value);
            if (source.tap == "ffn_norm") keep_residual(taps_[source.layer], node);
            if (source.tap == "attn_weights") scale_scores(taps_[source.layer], node);
        }
        return true; // go on
    }

    // Drops the inputs of earlier passes, which the convolution's input contains too.
    void keep_latest(Value & value) const {
        const int64_t channels = value.shape[2];
        value.data.erase(value.data.begin(), value.data.end() - tokens_ * channels);
        value.shape = {tokens_, channels};
    }

    // Keeps only the recurrent state: GGML_OP_SSM_SCAN returns the outputs, then the state of all heads.
    static void keep_matrices(Value & value, const ggml_tensor * scan) {
        if (scan->op != GGML_OP_SSM_SCAN) return;
        const int64_t * sizes = scan->src[0]->ne;
        value.data.erase(value.data.begin(), value.data.end() - sizes[0] * sizes[1] * sizes[2]);
        value.shape = {sizes[2], sizes[1], sizes[0]};
    }

    std::vector<int64_t> rows_shape(const Source & source, const Value & value) const {
        if (ggml_nrows(source.tensor) % tokens_ != 0) {
            fail("node " + std::string(source.tensor->name) + " does not hold the rows of every token");
        }
        return {tokens_, static_cast<int64_t>(value.data.size()) / tokens_};
    }

    // The stream has no name of its own in Phi-3: it is what the norm before the feed-forward block reads.
    void keep_residual(Taps & taps, const ggml_tensor * ffn_norm) const {
        const ggml_tensor * norm = ffn_norm->src[0];
        if (taps.count("attn_residual") || !norm || norm->op != GGML_OP_RMS_NORM) return;
        Value value = gather(norm->src[0], ROWS, cells_);
        value.shape = rows_shape({0, "", norm->src[0], ROWS}, value);
        taps["attn_residual"] = std::move(value);
    }

    // Softmax multiplies by 1/sqrt(D) itself, in f32 and before anything else: its scores are kq times that.
    static void scale_scores(Taps & taps, const ggml_tensor * softmax) {
        float scale;
        std::memcpy(&scale, softmax->op_params, sizeof scale);
        for (float & score : taps["attn_scores"].data) score *= scale;
    }

    // Values that are projected like keys have no node of their own (Gemma 4).
    static void copy_missing_values(Taps & taps) {
        if (taps.count("v_norm") && taps.count("k")) taps.insert({"v", taps["k"]});
    }

    // Without RoPE (GPT-2), what enters the attention is the projection itself.
    static void copy_missing_rope(Taps & taps) {
        for (const char * projection : {"q", "k"}) {
            if (taps.count(projection)) taps.insert({std::string(projection) + "_rope", taps[projection]});
        }
    }

    // A recurrence in place of attention; in Falcon-H1 it is in parallel with attention.
    static void name_mixer(Taps & taps) {
        if (taps.count("attn_out") || !taps.count("mixer_out")) return;
        taps["attn_out"] = std::move(taps["mixer_out"]);
        taps.erase("mixer_out");
    }

    // Falcon's norm before attention is the second, if there are two: the first is the norm before the feed-forward block.
    static void name_two_norms(Taps & taps) {
        if (!taps.count("attn_norm_2")) return;
        taps["ffn_norm"] = std::move(taps["attn_norm"]);
        taps["attn_norm"] = std::move(taps["attn_norm_2"]);
        taps.erase("attn_norm_2");
    }

    // Seed-OSS's norm before the feed-forward block has the name of a norm after attention.
    static void name_ffn_norm(Taps & taps) {
        if (taps.count("ffn_norm") || !taps.count("attn_norm") || !taps.count("attn_post_norm")) return;
        taps["ffn_norm"] = std::move(taps["attn_post_norm"]);
        taps.erase("attn_post_norm");
    }

    // A feed-forward block next to experts (Gemma 4) is a shared expert. Its nodes have the names of a block's.
    static void name_mixed(Taps & taps) {
        if (!taps.count("mixed_out")) return;
        if (taps.count("ffn_gate")) {
            for (const char * part : {"gate", "up", "act", "out"}) {
                taps[std::string("shared_") + part] = std::move(taps[std::string("ffn_") + part]);
                taps.erase(std::string("ffn_") + part);
            }
        }
        taps["ffn_out"] = std::move(taps["mixed_out"]);
        taps.erase("mixed_out");
    }

    // A layer that is a feed-forward block alone (Nemotron-H) has its norm under the name of a norm before attention. The sum of
    // its experts and their shared expert has the name of a layer's output.
    static void name_single_half(Taps & taps) {
        if (taps.count("single_out")) {
            if (taps.count("block_out")) taps["shared_sum"] = std::move(taps["block_out"]);
            taps["block_out"] = std::move(taps["single_out"]);
            taps.erase("single_out");
        }
        if (taps.count("attn_out") || taps.count("ffn_norm") || !taps.count("ffn_out") || !taps.count("attn_norm")) return;
        taps["ffn_norm"] = std::move(taps["attn_norm"]);
        taps.erase("attn_norm");
    }

    // One matrix for both (Phi-3): the gate is the first half of what it gives.
    static void split_gate_and_up(Taps & taps) {
        if (taps.count("ffn_gate") || !taps.count("ffn_up") || !taps.count("ffn_act")) return;
        const Value both = taps["ffn_up"];
        const int64_t tokens = both.shape[0], width = taps["ffn_act"].shape[1];
        if (both.shape[1] != 2 * width) return;
        Value gate{{tokens, width}, {}}, up = gate;
        for (int64_t token = 0; token < tokens; token++) {
            const float * row = both.data.data() + token * 2 * width;
            gate.data.insert(gate.data.end(), row, row + width);
            up.data.insert(up.data.end(), row + width, row + 2 * width);
        }
        taps["ffn_gate"] = std::move(gate);
        taps["ffn_up"] = std::move(up);
    }

    // The shared expert's activation has the name of a block's, and its sum with the others comes after theirs.
    static void name_shared(Taps & taps) {
        if (taps.count("shared_out") && taps.count("shared_sum")) {
            taps[taps.count("routed_out") ? "routed_latent" : "routed_out"] = std::move(taps["ffn_out"]);
            taps["ffn_out"] = std::move(taps["shared_sum"]);
            if (taps.count("ffn_act")) taps["shared_act"] = std::move(taps["ffn_act"]);
            taps.erase("ffn_act");
            for (const char * tap : {"shared_logit", "shared_weight"}) {
                if (taps.count(tap)) taps[tap].shape.resize(1);
            }
        }
        taps.erase("shared_sum");
    }

    static void shape_heads(Taps & taps) {
        for (const auto & [tap, cache] : HEAD_TAPS) {
            if (!taps.count(tap) || !taps.count(cache)) continue;
            std::vector<int64_t> & shape = taps[tap].shape;
            const int64_t head_size = taps[cache].shape.back();
            shape = {shape[0], shape[1] / head_size, head_size};
        }
    }

    // Queries have other heads than the cache, before they are projected to latents. Elsewhere no sum is of latents.
    static void shape_latents(Taps & taps) {
        if (!taps.count("kv_latent")) taps.erase("attn_latent");
        if (!taps.count("kv_latent") || !taps.count("q_rope") || !taps.count("q")) return;
        const int64_t heads = taps["q_rope"].shape[1];
        for (const char * tap : {"q", "attn_latent"}) {
            if (!taps.count(tap)) continue;
            Value & value = taps[tap];
            const int64_t tokens = value.shape[0];
            value.shape = {tokens, heads, static_cast<int64_t>(value.data.size()) / tokens / heads};
        }
    }

    // Each query and key head of linear attention stands for several heads of values.
    static void shape_linear_attention(Taps & taps) {
        if (!taps.count("recurrent_out") || !taps.count("beta") || !taps.count("conv_in") || !taps.count("mixer_gate")) return;
        const int64_t tokens = taps["beta"].shape[0], heads = taps["beta"].shape[1];
        const int64_t keys = (taps["conv_in"].shape[1] - taps["mixer_gate"].shape[1]) / 2;
        for (const char * tap : {"q_unit", "k_unit"}) {
            Value & value = taps[tap];
            if (value.shape[1] == keys) continue; // not repeated
            const int64_t width = value.shape[1] / heads, each = value.shape[1] / keys;
            Value kept{{tokens, heads / each * width}, {}};
            for (int64_t row = 0; row < tokens * heads; row += each) {
                const float * head = value.data.data() + row * width;
                kept.data.insert(kept.data.end(), head, head + width);
            }
            value = std::move(kept);
        }
    }

    // Files of Qwen 3.5 have the first value head of every key head, then the second ones, and so on. A dump has the heads in
    // the order of Hugging Face files.
    static void order_value_heads(Taps & taps) {
        if (!taps.count("recurrent_state") || !taps.count("beta")) return;
        const int64_t heads = taps["beta"].shape[1], keys = taps["k_unit"].shape[1];
        const int64_t key_heads = keys / taps["recurrent_state"].shape[2], each = heads / key_heads;
        for (const char * tap : {"conv_in", "conv_out", "conv_act", "mixer_gate", "beta_logit", "decay_logit", "beta", "decay",
                                 "recurrent_state", "recurrent_out", "recurrent_norm"}) {
            Value & value = taps[tap];
            const int64_t rows = tap == std::string("recurrent_state") ? 1 : value.shape[0], all = value.data.size() / rows;
            const int64_t first = std::strncmp(tap, "conv_", 5) == 0 ? 2 * keys : 0, width = (all - first) / heads;
            const std::vector<float> tiled = value.data;
            for (int64_t row = 0; row < rows; row++) {
                for (int64_t head = 0; head < heads; head++) {
                    const int64_t place = head % each * key_heads + head / each;
                    const auto from = tiled.begin() + row * all + first + place * width;
                    std::copy_n(from, width, value.data.begin() + row * all + first + head * width);
                }
            }
        }
    }

    // Their nodes know neither how many a token has chosen.
    static void shape_experts(Taps & taps) {
        if (!taps.count("experts")) return;
        if (!taps.count("expert_groups") && !taps.count("biased_scores")) taps.erase("expert_scores");
        taps.erase("expert_groups");
        if (taps.count("biased_scores")) taps["expert_scores"] = std::move(taps["biased_scores"]);
        taps.erase("biased_scores");
        const int64_t chosen = taps["experts"].shape[1];
        for (const char * tap : {"expert_in", "expert_gate", "expert_up", "expert_act", "expert_out"}) {
            if (!taps.count(tap)) continue;
            std::vector<int64_t> & shape = taps[tap].shape;
            shape = {shape[0], chosen, shape[1] / chosen};
        }
    }

    void note_weight(const ggml_tensor * weight) {
        if (!std::strstr(weight->name, ".weight")) return; // the KV cache
        has_tiled_heads_ = has_tiled_heads_ || std::strstr(weight->name, ".ssm_alpha.");
        weight_types_.insert(ggml_type_name(weight->type));
        weight_buffers_.insert(ggml_backend_buffer_name(weight->buffer));
    }

    int64_t tokens_ = 0;
    int64_t cells_ = 0;
    PassTaps taps_ = {{-1, {}}};
    std::set<std::string> weight_types_;
    std::set<std::string> weight_buffers_;
    bool rotates_ = false;
    bool has_tiled_heads_ = false;
    std::exception_ptr error_;
};

// ---------------------------------------------------------------------------------------------------
// Running.

using Model = std::unique_ptr<llama_model, void (*)(llama_model *)>;
using Context = std::unique_ptr<llama_context, void (*)(llama_context *)>;

Model open_model(const Options & options) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    set_use_extra_bufts(Newer(), params, options.repack); // weights repacked for other kernels than their type's own
    Model model(load_model(Newer(), options.model.c_str(), params), [](llama_model * m) { free_model(Newer(), m); });
    if (!model) fail("cannot load " + options.model + because());
    return model;
}

Context open_context(llama_model * model, const Options & options, size_t tokens, Recorder * recorder) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx           = tokens + options.decode;
    params.n_batch         = tokens; // the prompt is one batch and one graph
    params.n_ubatch        = tokens;
    params.n_threads       = options.threads;
    params.n_threads_batch = options.threads;
    params.type_k          = options.kv_cache;
    params.type_v          = options.kv_cache;
    params.offload_kqv     = false;
    if (recorder) {
        params.cb_eval           = Recorder::on_node;
        params.cb_eval_user_data = recorder;
    }
    // The enum's "disabled" and "enabled" are 0 and 1 too.
    set_flash_attn_type(Newer(), params, options.flash ? 1 : 0);
    set_flash_attn(Newer(), params, options.flash);
    set_op_offload(Newer(), params, false);
    set_swa_full(Newer(), params, true); // sliding-window layers keep every position
    set_kv_unified(Newer(), params, true);
    Context context(make_context(Newer(), model, params), llama_free);
    if (!context) fail("cannot create a context" + because());
    return context;
}

std::vector<llama_token> tokenize(const llama_model * model, const std::string & text) {
    const auto * vocab = vocab_of(Newer(), model);
    if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) fail("the model has no tokenizer: give --tokens");
    const auto fill = [&](llama_token * tokens, int room) {
        const bool add_special = true, parse_special = true; // as transformers' tokenizers do by default
        return llama_tokenize(vocab, text.data(), text.size(), tokens, room, add_special, parse_special);
    };
    std::vector<llama_token> tokens(-fill(nullptr, 0)); // without room it says how much it needs, negated
    if (tokens.empty()) fail("the prompt has no tokens");
    fill(tokens.data(), tokens.size());
    return tokens;
}

std::vector<llama_token> input_tokens(const llama_model * model, const Options & options) {
    if (options.prompt) return tokenize(model, *options.prompt);
    const int size = vocab_size(Newer(), vocab_of(Newer(), model));
    for (const llama_token token : options.tokens) {
        if (token < size) continue;
        fail("--tokens: " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(size));
    }
    return options.tokens;
}

// One forward pass: its first position, its tokens, and their logits, T x V.
struct Pass {
    int position;
    std::vector<llama_token> tokens;
    std::vector<float> logits;
    size_t vocab;

    std::vector<float> last_logits() const { return {logits.end() - vocab, logits.end()}; }

    // The lowest id among the largest logits of the last row.
    llama_token greedy() const { return std::max_element(logits.end() - vocab, logits.end()) - (logits.end() - vocab); }
};

// Every position's logits are wanted, or the last layer would drop the other rows.
void decode(llama_context * context, const Pass & pass) {
    const int count = pass.tokens.size();
    llama_batch batch = llama_batch_init(count, 0, 1);
    batch.n_tokens = count;
    for (int i = 0; i < count; i++) {
        batch.token[i]     = pass.tokens[i];
        batch.pos[i]       = pass.position + i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i]    = true;
    }
    const int status = llama_decode(context, batch);
    llama_batch_free(batch);
    if (status != 0) fail("llama_decode failed with status " + std::to_string(status) + because());
}

Pass run_pass(llama_context * context, int position, const std::vector<llama_token> & tokens, size_t vocab) {
    Pass pass{position, tokens, {}, vocab};
    decode(context, pass);
    const float * logits = llama_get_logits(context);
    pass.logits.assign(logits, logits + tokens.size() * vocab);
    return pass;
}

struct Run {
    std::vector<Pass> passes;
    std::vector<PassTaps> taps; // one per pass, if they were recorded
};

// The prompt, then `options.decode` greedy passes of one token each.
Run run_greedily(llama_model * model, const Options & options, std::vector<llama_token> tokens, Recorder * recorder) {
    const Context context = open_context(model, options, tokens.size(), recorder);
    const size_t vocab = vocab_size(Newer(), vocab_of(Newer(), model));
    Run run;
    for (int position = 0, index = 0; index <= options.decode; index++) {
        if (recorder) recorder->begin(tokens.size(), position + tokens.size());
        run.passes.push_back(run_pass(context.get(), position, tokens, vocab));
        if (recorder) run.taps.push_back(recorder->finish());
        position += tokens.size();
        tokens = {run.passes.back().greedy()};
        show_progress(recorder ? "recorded" : "plain", index + 1, options.decode + 1);
    }
    return run;
}

// Recording must not have changed a bit of any logit.
void check_same(const std::vector<Pass> & plain, const std::vector<Pass> & recorded) {
    for (size_t i = 0; i < plain.size(); i++) {
        const std::vector<float> & a = plain[i].logits;
        const std::vector<float> & b = recorded[i].logits;
        if (plain[i].tokens != recorded[i].tokens || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0) {
            fail("pass " + std::to_string(i) + ": recording changed the logits; nothing written");
        }
    }
}

// An architecture whose nodes have other names still gives a useful dump, but its user should know.
void warn_of_missing(const PassTaps & pass) {
    std::set<std::string> missing;
    for (const auto & [layer, taps] : pass) {
        if (layer >= 0 && taps.count("attn_out") != taps.count("ffn_out")) continue; // one half
        for (const std::string & tap : layer < 0 ? COMMON_OUTSIDE_TAPS : COMMON_LAYER_TAPS) {
            if (!taps.count(tap)) missing.insert(tap);
        }
        const bool is_recurrent = taps.count("conv_in");
        for (const std::string & tap : layer < 0 ? NO_TAPS : is_recurrent ? CONVOLUTION_TAPS : ATTENTION_TAPS) {
            if (!taps.count(tap)) missing.insert(tap);
        }
        const bool has_experts = taps.count("router_logits");
        for (const std::string & tap : layer < 0 ? NO_TAPS : has_experts ? EXPERT_TAPS : FFN_TAPS) {
            if (!taps.count(tap)) missing.insert(tap);
        }
    }
    if (missing.empty()) return;
    std::fprintf(stderr, "warning: found no node for: %s\n", joined(missing).c_str());
}

// ---------------------------------------------------------------------------------------------------
// The dump's tensors.

struct Tensor {
    std::string tap;
    int pass;  // -1 if it belongs to none
    int layer; // -1 if it belongs to none
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<char> bytes;

    // Its path in the dump, without .npy: p0/l00/attn_norm, p0/logits, generated.
    std::string key() const {
        char directory[32] = "";
        if (layer >= 0) std::snprintf(directory, sizeof directory, "p%d/l%02d/", pass, layer);
        else if (pass >= 0) std::snprintf(directory, sizeof directory, "p%d/", pass);
        return directory + tap;
    }
};

// Floats are f32, token ids are u32. The machine is taken to be little-endian, as a dump is.
template <class T>
Tensor make_tensor(const std::string & tap, int pass, int layer, const std::vector<int64_t> & shape,
                   const std::vector<T> & data) {
    static_assert(sizeof(T) == 4, "f32 or u32");
    const char * bytes = reinterpret_cast<const char *>(data.data());
    const char * dtype = std::is_same_v<T, float> ? "f32" : "u32";
    return {tap, pass, layer, dtype, shape, {bytes, bytes + data.size() * sizeof(T)}};
}

// softmax(logits), in double.
std::vector<float> probabilities(const std::vector<float> & logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - largest);
    std::vector<float> result;
    for (const float logit : logits) result.push_back(std::exp(logit - largest) / sum);
    return result;
}

void add_layer(std::vector<Tensor> & tensors, int pass, int layer, const Taps & taps) {
    for (const std::string & tap : LAYER_TAPS) {
        const auto found = taps.find(tap);
        if (found == taps.end()) continue;
        const Value & value = found->second;
        if (tap == "experts") {
            const std::vector<uint32_t> numbers(value.data.begin(), value.data.end());
            tensors.push_back(make_tensor(tap, pass, layer, value.shape, numbers));
            continue;
        }
        tensors.push_back(make_tensor(tap, pass, layer, value.shape, value.data));
    }
}

void add_pass(std::vector<Tensor> & tensors, int index, const Pass & pass, const PassTaps & taps) {
    const int64_t rows = pass.tokens.size(), vocab = pass.vocab;
    const auto add = [&](const char * tap, const std::vector<int64_t> & shape, const auto & data) {
        tensors.push_back(make_tensor(tap, index, -1, shape, data));
    };
    const Taps & outside = taps.at(-1);
    const auto add_recorded = [&](const char * tap) {
        if (outside.count(tap)) add(tap, outside.at(tap).shape, outside.at(tap).data);
    };
    for (const char * tap : {"embed", "altup_projected", "altup_streams"}) add_recorded(tap);
    for (const auto & [layer, layer_taps] : taps) {
        if (layer >= 0) add_layer(tensors, index, layer, layer_taps);
    }
    for (const char * tap : {"altup_unembedded", "altup_mean", "final_norm"}) add_recorded(tap);
    add("logits", {rows, vocab}, pass.logits);
    add("last_logits", {vocab}, pass.last_logits());
    add("argmax", {}, std::vector<uint32_t>{static_cast<uint32_t>(pass.greedy())});
    add("probs", {vocab}, probabilities(pass.last_logits()));
}

std::vector<llama_token> generated(const Run & run) {
    std::vector<llama_token> tokens;
    for (const Pass & pass : run.passes) tokens.push_back(pass.greedy());
    return tokens;
}

std::vector<Tensor> dump_tensors(const Run & run) {
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < run.passes.size(); i++) add_pass(tensors, i, run.passes[i], run.taps[i]);
    const std::vector<llama_token> tokens = generated(run);
    tensors.push_back(make_tensor("generated", -1, -1, {static_cast<int64_t>(tokens.size())}, tokens));
    return tensors;
}

// ---------------------------------------------------------------------------------------------------
// SHA-256 (FIPS 180-4), so that a dump names the file it came from.

class Sha256 {
  public:
    void update(const char * data, size_t size) {
        length_ += size;
        for (size_t i = 0; i < size; i++) {
            block_[filled_++] = data[i];
            if (filled_ == block_.size()) compress();
        }
    }

    std::string hex_digest() {
        const uint64_t bits = length_ * 8;
        const char one = '\x80', zero = '\0';
        update(&one, 1);
        while (filled_ != 56) update(&zero, 1);
        for (int shift = 56; shift >= 0; shift -= 8) {
            const char byte = static_cast<char>(bits >> shift);
            update(&byte, 1);
        }
        std::string hex;
        for (const uint32_t word : state_) {
            char digits[9];
            std::snprintf(digits, sizeof digits, "%08x", word);
            hex += digits;
        }
        return hex;
    }

  private:
    static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

    static uint32_t word(const uint8_t * bytes) {
        return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
    }

    void compress() {
        std::array<uint32_t, 64> w;
        for (int i = 0; i < 16; i++) w[i] = word(&block_[4 * i]);
        for (int i = 16; i < 64; i++) {
            const uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
            const uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        auto [a, b, c, d, e, f, g, h] = state_;
        for (int i = 0; i < 64; i++) {
            const uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
            const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + K[i] + w[i];
            const uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
            const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
        }
        const std::array<uint32_t, 8> next = {a, b, c, d, e, f, g, h};
        for (int i = 0; i < 8; i++) state_[i] += next[i];
        filled_ = 0;
    }

    static constexpr std::array<uint32_t, 64> K = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    };

    std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<uint8_t, 64> block_;
    size_t filled_ = 0;
    uint64_t length_ = 0;
};

std::string sha256_of_file(const std::string & path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> chunk(1 << 20);
    Sha256 hash;
    while (file.read(chunk.data(), chunk.size()), file.gcount() > 0) hash.update(chunk.data(), file.gcount());
    return hash.hex_digest();
}

// ---------------------------------------------------------------------------------------------------
// The manifest.

std::string quote(const std::string & text) {
    std::string json = "\"";
    for (const char c : text) {
        char escape[8];
        std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned char>(c));
        if (c == '"' || c == '\\') json += {'\\', c};
        else if (static_cast<unsigned char>(c) < 0x20) json += escape;
        else json += c;
    }
    return json + "\"";
}

// A JSON object's members; the values are JSON already.
using Members = std::vector<std::pair<std::string, std::string>>;

std::string object(const Members & members, const std::string & separator = ", ") {
    std::string json;
    for (const auto & [key, value] : members) json += (json.empty() ? "" : separator) + quote(key) + ": " + value;
    return "{" + json + "}";
}

std::string array(const std::vector<std::string> & items, const std::string & separator = ", ") {
    std::string json;
    for (const std::string & item : items) json += (json.empty() ? "" : separator) + item;
    return "[" + json + "]";
}

template <class T> std::string numbers(const std::vector<T> & values) {
    std::vector<std::string> items;
    for (const T value : values) items.push_back(std::to_string(value));
    return array(items);
}

// A GGUF metadata value as text, empty if the file has none.
std::string metadata(const llama_model * model, const char * key) {
    char value[256];
    return llama_model_meta_val_str(model, key, value, sizeof value) < 0 ? "" : value;
}

// GGUF names of one family's variants.
std::string family(const std::string & gguf_architecture) {
    return gguf_architecture.rfind("bitnet", 0) == 0 ? "bitnet" : gguf_architecture;
}

std::string producer_json(const Options & options, const Recorder & recorder) {
    Members settings = {
        {"weights", quote(joined(recorder.weight_types()))},
        {"weight_buffers", quote(joined(recorder.weight_buffers()))},
        {"kv_cache", quote(ggml_type_name(options.kv_cache))},
        {"flash_attention", quote(options.flash ? "on" : "off")},
        {"threads", std::to_string(options.threads)},
        {"build_flags", quote(XCHECK_BUILD_FLAGS)},
        {"system_info", quote(llama_print_system_info())},
    };
    if (ggml_is_quantized(options.kv_cache)) settings.push_back({"attention_rotation", quote(recorder.rotates() ? "on" : "off")});
    return object({
        {"name", quote(XCHECK_PRODUCER)},
        {"version", quote(XCHECK_PRODUCER_VERSION)},
        {"settings", object(settings)},
    });
}

std::string model_json(const llama_model * model, const std::string & path) {
    const std::string name = metadata(model, "general.name");
    const std::string architecture = metadata(model, "general.architecture");
    return object({
        {"name", quote(name.empty() ? fs::path(path).stem().string() : name)},
        {"architecture", quote(family(architecture))},
        {"gguf_architecture", quote(architecture)},
        {"sha256", quote(sha256_of_file(path))},
    });
}

// llama.cpp's "normal" RoPE rotates (2i, 2i + 1), every other kind (i, i + D/2).
std::string layout_json(const llama_model * model) {
    switch (rope_type(Newer(), model)) {
        case LLAMA_ROPE_TYPE_NONE: return object({});
        case LLAMA_ROPE_TYPE_NORM: return object({{"rope_pairing", quote("interleaved")}});
        default:                   return object({{"rope_pairing", quote("half")}});
    }
}

std::string input_json(const Options & options, const std::vector<llama_token> & tokens) {
    Members input;
    if (options.prompt) input.push_back({"prompt", quote(*options.prompt)});
    input.push_back({"tokens", numbers(tokens)});
    input.push_back({"decode", quote("greedy")});
    return object(input);
}

std::string passes_json(const std::vector<Pass> & passes) {
    std::vector<std::string> items;
    for (const Pass & pass : passes) {
        items.push_back(object({{"position", std::to_string(pass.position)}, {"tokens", numbers(pass.tokens)}}));
    }
    return array(items);
}

std::string tensor_json(const Tensor & tensor) {
    Members row = {{"tap", quote(tensor.tap)}};
    if (tensor.pass >= 0) row.push_back({"pass", std::to_string(tensor.pass)});
    if (tensor.layer >= 0) row.push_back({"layer", std::to_string(tensor.layer)});
    row.push_back({"dtype", quote(tensor.dtype)});
    row.push_back({"shape", numbers(tensor.shape)});
    row.push_back({"file", quote(tensor.key() + ".npy")});
    return object(row);
}

std::string manifest_json(const llama_model * model, const Options & options, const Run & run,
                          const std::string & producer, const std::vector<Tensor> & tensors) {
    std::vector<std::string> rows;
    for (const Tensor & tensor : tensors) rows.push_back(tensor_json(tensor));
    return object({
        {"format", quote("xcheck-dump")},
        {"version", "1"},
        {"producer", producer},
        {"model", model_json(model, options.model)},
        {"layout", layout_json(model)},
        {"input", input_json(options, run.passes.front().tokens)},
        {"passes", passes_json(run.passes)},
        {"generated", numbers(generated(run))},
        {"tensors", array(rows, ",\n  ")},
    }, ",\n ") + "\n";
}

// ---------------------------------------------------------------------------------------------------
// The containers.

std::ofstream create_file(const fs::path & path) {
    std::ofstream file(path, std::ios::binary);
    if (!file) fail("cannot write " + path.string());
    return file;
}

void close_file(std::ofstream & file, const fs::path & path) {
    file.close();
    if (!file) fail("cannot write " + path.string());
}

template <class Integer> void write_little_endian(std::ofstream & file, Integer value) {
    for (size_t i = 0; i < sizeof value; i++) file.put(static_cast<char>(value >> 8 * i));
}

// A Python tuple: (), (5,), (9, 128).
std::string tuple(const std::vector<int64_t> & shape) {
    std::string items;
    for (const int64_t length : shape) items += (items.empty() ? "" : " ") + std::to_string(length) + ",";
    if (shape.size() > 1) items.pop_back();
    return "(" + items + ")";
}

// NumPy's format, version 1.0: the header is padded so that the data starts at a multiple of 64.
void write_npy(const fs::path & path, const Tensor & tensor) {
    const std::string type = tensor.dtype == "f32" ? "<f4" : "<u4";
    std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + tuple(tensor.shape) + ", }";
    header.append(63 - (10 + header.size()) % 64, ' ').push_back('\n');

    std::ofstream file = create_file(path);
    file.write("\x93NUMPY\x01\x00", 8);
    write_little_endian(file, static_cast<uint16_t>(header.size()));
    file << header;
    file.write(tensor.bytes.data(), tensor.bytes.size());
    close_file(file, path);
}

void write_directory(const fs::path & out, const std::string & manifest, const std::vector<Tensor> & tensors) {
    for (const Tensor & tensor : tensors) {
        const fs::path path = out / (tensor.key() + ".npy");
        fs::create_directories(path.parent_path());
        write_npy(path, tensor);
    }
    std::ofstream file = create_file(out / "manifest.json");
    file << manifest;
    close_file(file, out / "manifest.json");
}

std::string safetensors_header(const std::string & manifest, const std::vector<Tensor> & tensors) {
    Members entries = {{"__metadata__", object({{"xcheck", quote(manifest)}})}};
    size_t offset = 0;
    for (const Tensor & tensor : tensors) {
        const std::vector<size_t> offsets = {offset, offset + tensor.bytes.size()};
        entries.push_back({tensor.key(), object({
            {"dtype", quote(tensor.dtype == "f32" ? "F32" : "U32")},
            {"shape", numbers(tensor.shape)},
            {"data_offsets", numbers(offsets)},
        })});
        offset = offsets[1];
    }
    std::string header = object(entries);
    return header.append((8 - header.size() % 8) % 8, ' '); // the data stays aligned
}

void write_safetensors(const fs::path & out, const std::string & manifest, const std::vector<Tensor> & tensors) {
    const std::string header = safetensors_header(manifest, tensors);
    std::ofstream file = create_file(out);
    write_little_endian(file, static_cast<uint64_t>(header.size()));
    file << header;
    for (const Tensor & tensor : tensors) file.write(tensor.bytes.data(), tensor.bytes.size());
    close_file(file, out);
}

// ---------------------------------------------------------------------------------------------------

void dump(const Options & options) {
    llama_log_set(keep_error, nullptr);
    llama_backend_init();
    load_backends(Newer());
    const Model model = open_model(options);
    const std::vector<llama_token> tokens = input_tokens(model.get(), options);

    const Run plain = run_greedily(model.get(), options, tokens, nullptr);
    Recorder recorder;
    const Run recorded = run_greedily(model.get(), options, tokens, &recorder);
    check_same(plain.passes, recorded.passes);
    warn_of_missing(recorded.taps.front());

    const std::vector<Tensor> tensors = dump_tensors(recorded);
    const std::string producer = producer_json(options, recorder);
    const std::string manifest = manifest_json(model.get(), options, recorded, producer, tensors);
    const auto write = options.out.extension() == ".safetensors" ? write_safetensors : write_directory;
    write(options.out, manifest, tensors);
}

} // namespace

int main(int argc, char ** argv) {
    if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
        std::fputs(USAGE, stdout);
        return 0;
    }
    try {
        dump(parse_options(argc, argv));
    } catch (const std::exception & error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
    return 0;
}
