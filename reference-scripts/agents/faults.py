"""Faults that ports really have, each as edits of the text of an engine in `engines/`.

`models` limits a fault to the models on which it changes values. `decode` marks faults that the prompt's pass does not show.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    name: str
    edits: tuple[tuple[str, str], ...]
    models: tuple[str, ...] = ()
    decode: bool = False

    def fits(self, model: str) -> bool:
        return not self.models or model in self.models

    def plant(self, text: str) -> str:
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} occurs {text.count(old)} times, expected 1")
            text = text.replace(old, new)
        return text


def fault(name: str, *edits: tuple[str, str], models: tuple[str, ...] = (), decode: bool = False) -> Fault:
    return Fault(name, edits, models, decode)


LLAMA = [
    fault(
        "rope_theta",
        ('rope["rope_theta"]', 'self.config.get("rope_theta", 10000.0)'),
        models=("tiny-llama3", "tiny-qwen2", "tiny-qwen3"),
    ),
    fault(
        "rope_pairing",
        ("a, b = np.split(x, 2, -1)", "a, b = x[..., ::2], x[..., 1::2]"),
        (
            "np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)",
            "np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)",
        ),
    ),
    fault("rope_direction", ("[a * cos - b * sin, b * cos + a * sin]", "[a * cos + b * sin, b * cos - a * sin]")),
    fault("rope_scaling", ('rope.get("rope_type")', 'rope.get("type")'), models=("tiny-llama3",)),
    fault(
        "rope_smooth",
        (
            "(1 - smooth) * frequencies / factor + smooth * frequencies",
            "smooth * frequencies / factor + (1 - smooth) * frequencies",
        ),
        models=("tiny-llama3",),
    ),
    fault("scale_missing", ("q, k) / np.float32(np.sqrt(self.head_dim))", "q, k)")),
    fault(
        "scale_head_dim",
        ("np.sqrt(self.head_dim)", 'np.sqrt(self.config["hidden_size"] // self.heads)'),
        models=("tiny-qwen3",),
    ),
    fault(
        "eps",
        ('self.config["rms_norm_eps"]', 'self.config.get("layer_norm_eps", 1e-6)'),
        models=("tiny-llama2", "tiny-llama3"),
    ),
    fault(
        "eps",
        ('self.config["rms_norm_eps"]', 'self.config.get("layer_norm_eps", 1e-5)'),
        models=("tiny-qwen2", "tiny-qwen3"),
    ),
    fault(
        "eps_outside", ("np.sqrt(mean + self.eps)", "(np.sqrt(mean) + self.eps)"), models=("tiny-llama2", "tiny-llama3")
    ),
    fault(
        "gqa_mapping",
        ("np.repeat(k, groups, 1), np.repeat(v, groups, 1)", "np.tile(k, (1, groups, 1)), np.tile(v, (1, groups, 1))"),
        models=("tiny-llama3", "tiny-qwen2", "tiny-qwen3"),
    ),
    fault(
        "mask_off_by_one",
        (
            "np.arange(len(k)) > np.arange(len(k) - len(q), len(k))[:, None]",
            "np.arange(len(k)) > np.arange(len(k) - len(q), len(k))[:, None] + 1",
        ),
    ),
    fault(
        "residual_normed_attention",
        ("x + self.attention(h, layer, positions)", "h + self.attention(h, layer, positions)"),
    ),
    fault("residual_normed_ffn", ("x + self.feed_forward(h, layer)", "h + self.feed_forward(h, layer)")),
    fault(
        "activation_quick_gelu",
        ("gate / (1 + np.exp(-gate)) * up", "gate / (1 + np.exp(np.float32(-1.702) * gate)) * up"),
    ),
    fault("gate_up_swap", ("gate / (1 + np.exp(-gate)) * up", "up / (1 + np.exp(-up)) * gate")),
    fault(
        "tied_lm_head",
        (
            'if self.config["tie_word_embeddings"] else',
            'if self.config.get("tie_word_embeddings", True) or "lm_head" not in self.weights else',
        ),
        models=("tiny-llama2", "tiny-llama3"),
    ),
    fault("bias_forgotten", ('.get(f"{name}.bias")', '.get(f"{name}_bias")'), models=("tiny-qwen2",)),
    fault(
        "norm_after_rope",
        (
            '        q = self.tap("q_rope", self.rope(q, positions), layer)\n        k = self.tap("k_rope", self.rope(k, positions), layer)\n',
            "",
        ),
        (
            '        if f"{name}.q_norm.weight" in',
            '        q = self.tap("q_rope", self.rope(q, positions), layer)\n        k = self.tap("k_rope", self.rope(k, positions), layer)\n        if f"{name}.q_norm.weight" in',
        ),
        models=("tiny-qwen3",),
    ),
    fault("k_norm_weight", ('f"{name}.k_norm"', 'f"{name}.q_norm"'), models=("tiny-qwen3",)),
    fault("ffn_norm_weight", ('f"{name}.post_attention_layernorm"', 'f"{name}.input_layernorm"')),
    fault(
        "cache_not_extended",
        ("self.cache[layer] = k, v", "if not self.length:\n            self.cache[layer] = k, v"),
        decode=True,
    ),
    fault(
        "decode_position", ("np.arange(self.length, self.length + len(tokens))", "np.arange(len(tokens))"), decode=True
    ),
    fault(
        "decode_position_off_by_one",
        (
            "positions = np.arange(self.length, self.length + len(tokens))",
            "start = max(self.length - 1, 0)\n        positions = np.arange(start, start + len(tokens))",
        ),
        decode=True,
    ),
    fault(
        "decode_rope_on_cached",
        (
            "k, v = (np.concatenate(pair) for pair in zip(self.cache[layer], (k, v)))",
            "old_k, old_v = self.cache[layer]\n            k, v = np.concatenate([self.rope(old_k, np.arange(len(old_k))), k]), np.concatenate([old_v, v])",
        ),
        decode=True,
    ),
]

GEMMA = [
    fault("norm_weight_offset", ('(1 + self.weights[f"{name}.weight"])', 'self.weights[f"{name}.weight"]')),
    fault("embed_scale", (' * np.float32(np.sqrt(self.config["hidden_size"]))', "")),
    fault(
        "attn_softcap",
        ('self.config.get("attn_logit_softcapping")', 'self.config.get("attn_logit_softcap")'),
        models=("tiny-gemma2",),
    ),
    fault(
        "final_softcap",
        ('self.config.get("final_logit_softcapping")', 'self.config.get("final_logit_softcap")'),
        models=("tiny-gemma2",),
    ),
    fault("attn_scale", ('self.config["query_pre_attn_scalar"]', 'self.config["hidden_size"]')),
    fault(
        "rope_theta_local",
        ("return rope[kind]", 'kind = "full_attention"\n        return rope[kind]'),
        models=("tiny-gemma3",),
    ),
    fault(
        "rope_pairing",
        ("a, b = x[..., :half], x[..., half:]", "a, b = x[..., ::2], x[..., 1::2]"),
        (
            "np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)",
            "np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)",
        ),
    ),
    fault("window_off_by_one", ("distance >= self.config", "distance > self.config")),
    fault("window_missing", ('kind == "sliding_attention" for kind', 'kind == "sliding" for kind')),
    fault("layer_pattern", ("if self.sliding[layer]:", "if self.sliding[layer - 1]:")),
    fault("activation_silu", ("gelu(gate) * up", "gate / (1 + np.exp(-gate)) * up")),
    fault("activation_quick_gelu", ("gelu(gate) * up", "gate / (1 + np.exp(np.float32(-1.702) * gate)) * up")),
    fault(
        "post_norm_after_residual",
        (
            'x = x + self.tap("attn_post_norm", self.norm(h, f"{name}.post_attention_layernorm"), layer)',
            'x = self.tap("attn_post_norm", self.norm(x + h, f"{name}.post_attention_layernorm"), layer)',
        ),
    ),
    fault("ffn_norm_weight", ('f"{name}.pre_feedforward_layernorm"', 'f"{name}.post_attention_layernorm"')),
    fault(
        "gqa_mapping",
        ("np.repeat(x, self.heads // self.kv_heads, 1)", "np.tile(x, (1, self.heads // self.kv_heads, 1))"),
        models=("tiny-gemma2",),
    ),
    fault("decode_window_missing", ("if self.sliding[layer]:", "if self.sliding[layer] and queries > 1:"), decode=True),
    fault(
        "decode_position",
        ("positions = np.arange(self.length, self.length + len(tokens))", "positions = np.arange(len(tokens))"),
        decode=True,
    ),
    fault(
        "decode_cache_not_extended",
        (
            "self.keys[layer], self.values[layer] = k, v",
            "if not self.length:\n            self.keys[layer], self.values[layer] = k, v",
        ),
        decode=True,
    ),
]

GPT2 = [
    fault("eps", ('self.config["layer_norm_epsilon"]', 'self.config.get("layer_norm_eps", 1e-6)')),
    fault("variance_unbiased", ("(centred * centred).mean(-1, keepdims=True)", "x.var(-1, ddof=1, keepdims=True)")),
    fault(
        "norm_bias",
        (
            'normed * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]',
            'normed * self.weights[f"{name}.weight"]',
        ),
    ),
    fault("rms_norm", ("centred = x - x.mean(-1, keepdims=True)", "centred = x")),
    fault("qkv_order", ("q, k, v = np.split(", "k, q, v = np.split(")),
    fault("scale_missing", (" / np.float32(np.sqrt(self.head_dim))", "")),
    fault("mask_off_by_one", ("len(k) - len(q), dtype=bool", "len(k) - len(q) + 1, dtype=bool")),
    fault("activation_quick_gelu", ("gelu(up)", "up / (1 + np.exp(np.float32(-1.702) * up))")),
    fault(
        "linear_bias",
        (
            'self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]\n\n    def norm',
            'self.weights[f"{name}.weight"]\n\n    def norm',
        ),
    ),
    fault("residual_normed", ("x + self.attention(h, layer)", "h + self.attention(h, layer)")),
    fault("decode_wpe", ("wpe[self.length : self.length + len(tokens)]", "wpe[: len(tokens)]"), decode=True),
    fault("cache_not_extended", ("self.cache[layer] = k, v", "self.cache.setdefault(layer, (k, v))"), decode=True),
]

C = [
    fault("rope_theta", ("powf(10000.0f,", "powf(500000.0f,")),
    fault(
        "rope_pairing",
        (
            "for (size_t i = 0; i < size; i += 2) {",
            "for (size_t i = 0; i < size; i++) {\n            if (i % head >= head / 2) continue;",
        ),
        ("(float)(i % head) / (float)head)", "(float)(2 * (i % head)) / (float)head)"),
        ("b = pair[1];", "b = pair[head / 2];"),
        ("pair[1] = a * s + b * c;", "pair[head / 2] = a * s + b * c;"),
    ),
    fault(
        "rope_direction",
        ("pair[0] = a * c - b * s;", "pair[0] = a * c + b * s;"),
        ("pair[1] = a * s + b * c;", "pair[1] = b * c - a * s;"),
    ),
    fault("gqa_mapping", ("return h / (size_t)(m->heads / m->kv_heads);", "return h % (size_t)m->kv_heads;")),
    fault("eps", ("1e-5f", "1e-6f")),
    fault("scale_missing", ("                row[s] /= sqrtf((float)d);\n", "")),
    fault("scale_dim", ("row[s] /= sqrtf((float)d);", "row[s] /= sqrtf((float)dim);")),
    fault(
        "activation_up",
        ("gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i]", "gate[i] = up[i] / (1.0f + expf(-up[i])) * gate[i]"),
    ),
    fault(
        "weight_order",
        ("m->down = m->gate + layers * ffn * dim;", "m->up = m->gate + layers * ffn * dim;"),
        ("m->up = m->down + layers * ffn * dim;", "m->down = m->up + layers * ffn * dim;"),
        ("m->final_norm = m->up + layers * ffn * dim;", "m->final_norm = m->down + layers * ffn * dim;"),
    ),
    fault("mask_missing", ("size_t visible = m->positions + t + 1,", "size_t visible = seen,")),
    fault("ffn_norm_weight", ("rms_norm(x, m->ffn_norm + layer * dim,", "rms_norm(x, m->attn_norm + layer * dim,")),
    fault(
        "decode_position",
        ("rotate(q, rows, dim, d, m->positions);", "rotate(q, rows, dim, d, 0);"),
        ("rotate(k, rows, kv, d, m->positions);", "rotate(k, rows, kv, d, 0);"),
        decode=True,
    ),
    fault(
        "decode_position_q",
        ("rotate(q, rows, dim, d, m->positions);", "rotate(q, rows, dim, d, m->positions ? m->positions - 1 : 0);"),
        decode=True,
    ),
    fault(
        "decode_cache_slot",
        ("*v = values + m->positions * kv;", "*v = values + (m->positions > 0 ? m->positions - 1 : 0) * kv;"),
        decode=True,
    ),
]

ROPE = """        self.rope(&mut q, self.heads);
        self.rope(&mut k, self.kv_heads);
        dump.tap("q_rope", Some(layer), &q_shape, &q);
        dump.tap("k_rope", Some(layer), &kv_shape, &k);
"""

RUST = [
    fault("rope_theta", ('config.number("rope_theta")', "10000.0"), models=("tiny-qwen3",)),
    fault(
        "rope_pairing",
        ("let (a, b) = (head[i], head[i + half]);", "let (a, b) = (head[2 * i], head[2 * i + 1]);"),
        ("head[i] = a * cos - b * sin;", "head[2 * i] = a * cos - b * sin;"),
        ("head[i + half] = b * cos + a * sin;", "head[2 * i + 1] = b * cos + a * sin;"),
    ),
    fault("rope_exponent", ("-2.0 * i as f64 / self.head_dim as f64", "-(i as f64) / self.head_dim as f64")),
    fault("gqa_mapping", ("head / (self.heads / self.kv_heads)", "head % self.kv_heads"), models=("tiny-qwen3",)),
    fault(
        "scale", ("1.0 / (d as f32).sqrt()", "1.0 / ((self.hidden / self.heads) as f32).sqrt()"), models=("tiny-qwen3",)
    ),
    fault("scale_missing", ("1.0 / (d as f32).sqrt()", "1.0 / d as f32")),
    fault("eps", ('config.number("rms_norm_eps") as f32', "1e-5"), models=("tiny-qwen3",)),
    fault("eps", ('config.number("rms_norm_eps") as f32', "1e-6"), models=("tiny-llama2",)),
    fault("activation_quick_gelu", ("gate / (1.0 + (-gate).exp()) * up", "gate / (1.0 + (-1.702 * gate).exp()) * up")),
    fault("mask_missing", ("let seen = self.length + row + 1;", "let seen = self.length + rows;")),
    fault("mask_own_token", ("let seen = self.length + row + 1;", "let seen = (self.length + row).max(1);")),
    fault(
        "residual_normed",
        (
            "let out = self.feed_forward(&h, layer, dump);",
            "let out = self.feed_forward(&h, layer, dump);\n            x.copy_from_slice(&h);",
        ),
    ),
    fault(
        "tied_lm_head",
        ('config.is_true("tie_word_embeddings")', 'config.text.contains("tie_word_embeddings")'),
        models=("tiny-llama2",),
    ),
    fault(
        "norm_after_rope",
        (ROPE, ""),
        ("        if let Some(gain) = self", ROPE + "        if let Some(gain) = self"),
        models=("tiny-qwen3",),
    ),
    fault("decode_position", ("(self.length + row) as f64", "row as f64"), decode=True),
]
