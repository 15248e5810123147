"""Runs a Llama or Qwen model of Hugging Face's layout in numpy: engine.py MODEL OUT TOKEN..."""

import json
import sys
from pathlib import Path

import numpy as np
import xcheck

RECORDED = None
DECODED = 4


def load(folder):
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                start, shape = 8 + length + entry["data_offsets"][0], entry["shape"]
                weights[name] = np.frombuffer(data, "<f4", np.prod(shape), start).reshape(shape)
    return weights


def softmax(x):
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


class Engine:
    def __init__(self, folder, dump):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights, self.dump = load(folder), dump
        self.heads, self.kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.head_dim = self.config.get("head_dim") or self.config["hidden_size"] // self.heads
        self.eps = np.float32(self.config["rms_norm_eps"])
        self.frequencies = self.rope_frequencies()
        self.cache = [None] * self.config["num_hidden_layers"]
        self.length = 0

    def tap(self, name, value, layer=None):
        return self.dump.tap(name, value, layer) if RECORDED is None or name in RECORDED else value

    def rope_frequencies(self):
        rope = self.config["rope_parameters"]
        theta = rope["rope_theta"]
        frequencies = theta ** -(np.arange(0, self.head_dim, 2) / self.head_dim)
        if rope.get("rope_type") == "llama3":
            factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
            turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
            smooth = np.clip((turns - low) / (high - low), 0, 1)
            frequencies = (1 - smooth) * frequencies / factor + smooth * frequencies
        return frequencies

    def linear(self, x, name):
        y = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def norm(self, x, name):
        mean = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + self.eps) * self.weights[f"{name}.weight"]

    def rope(self, x, positions):
        angles = positions[:, None] * self.frequencies
        cos, sin = np.cos(angles)[:, None].astype("f4"), np.sin(angles)[:, None].astype("f4")
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, x, layer, positions):
        name = f"model.layers.{layer}.self_attn"
        q, k, v = (self.linear(x, f"{name}.{part}_proj").reshape(len(x), -1, self.head_dim) for part in "qkv")
        self.tap("q", q, layer), self.tap("k", k, layer), self.tap("v", v, layer)
        if f"{name}.q_norm.weight" in self.weights:
            q = self.tap("q_norm", self.norm(q, f"{name}.q_norm"), layer)
            k = self.tap("k_norm", self.norm(k, f"{name}.k_norm"), layer)
        q = self.tap("q_rope", self.rope(q, positions), layer)
        k = self.tap("k_rope", self.rope(k, positions), layer)
        if self.cache[layer] is not None:
            k, v = (np.concatenate(pair) for pair in zip(self.cache[layer], (k, v)))
        self.cache[layer] = k, v
        groups = self.heads // self.kv_heads
        k, v = np.repeat(k, groups, 1), np.repeat(v, groups, 1)
        scores = np.einsum("thd,shd->hts", q, k) / np.float32(np.sqrt(self.head_dim))
        self.tap("attn_scores", scores, layer)
        hidden = np.arange(len(k)) > np.arange(len(k) - len(q), len(k))[:, None]
        weights = self.tap("attn_weights", softmax(np.where(hidden, np.float32(-np.inf), scores)), layer)
        context = np.einsum("hts,shd->thd", weights, v).reshape(len(x), -1)
        self.tap("attn_context", context, layer)
        return self.tap("attn_out", self.linear(context, f"{name}.o_proj"), layer)

    def feed_forward(self, x, layer):
        name = f"model.layers.{layer}.mlp"
        gate = self.tap("ffn_gate", self.linear(x, f"{name}.gate_proj"), layer)
        up = self.tap("ffn_up", self.linear(x, f"{name}.up_proj"), layer)
        act = self.tap("ffn_act", gate / (1 + np.exp(-gate)) * up, layer)
        return self.tap("ffn_out", self.linear(act, f"{name}.down_proj"), layer)

    def forward(self, tokens):
        positions = np.arange(self.length, self.length + len(tokens))
        x = self.tap("embed", self.weights["model.embed_tokens.weight"][tokens])
        for layer in range(len(self.cache)):
            name = f"model.layers.{layer}"
            h = self.tap("attn_norm", self.norm(x, f"{name}.input_layernorm"), layer)
            x = self.tap("attn_residual", x + self.attention(h, layer, positions), layer)
            h = self.tap("ffn_norm", self.norm(x, f"{name}.post_attention_layernorm"), layer)
            x = self.tap("block_out", x + self.feed_forward(h, layer), layer)
        self.length += len(tokens)
        h = self.tap("final_norm", self.norm(x, "model.norm"))
        head = "model.embed_tokens" if self.config["tie_word_embeddings"] else "lm_head"
        logits = self.tap("logits", self.linear(h, head))
        self.tap("last_logits", logits[-1])
        return int(self.tap("argmax", logits[-1].argmax().astype("u4")))


def main(folder, out, tokens):
    config = json.loads((folder / "config.json").read_text())
    generated = []
    with xcheck.Dump(out, producer="engine", config=config, tokens=tokens, rope_pairing="half") as dump:
        engine, read = Engine(folder, dump), tokens
        for _ in range(DECODED + 1):
            with dump.forward(read):
                generated.append(engine.forward(read))
            read = generated[-1:]
        dump.generated(generated)
    print(*generated)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [int(token) for token in sys.argv[3:]])
