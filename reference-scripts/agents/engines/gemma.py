"""Runs Gemma 2 or 3 of Hugging Face's layout in numpy: engine.py MODEL OUT TOKEN..."""

import json
import sys
from pathlib import Path

import numpy as np
import xcheck

RECORDED = None
DECODED = 4


def load(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, weights = json.loads(data[8 : 8 + length]), {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, shape = 8 + length + entry["data_offsets"][0], entry["shape"]
            weights[name] = np.frombuffer(data, "<f4", np.prod(shape), start).reshape(shape)
    return weights


def softmax(x):
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def gelu(x):
    return np.float32(0.5) * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)))


def soft_cap(x, cap):
    return x if cap is None else np.float32(cap) * np.tanh(x / np.float32(cap))


class Engine:
    def __init__(self, folder, dump):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights, self.dump = load(folder / "model.safetensors"), dump
        self.heads, self.kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.head_dim = self.config["head_dim"]
        self.eps = np.float32(self.config["rms_norm_eps"])
        self.sliding = [kind == "sliding_attention" for kind in self.config["layer_types"]]
        self.keys, self.values = [None] * len(self.sliding), [None] * len(self.sliding)
        self.length = 0

    def tap(self, name, value, layer=None):
        return self.dump.tap(name, value, layer) if RECORDED is None or name in RECORDED else value

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T

    def norm(self, x, name):
        normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)
        return normed * (1 + self.weights[f"{name}.weight"])

    def theta(self, layer):
        rope = self.config["rope_parameters"]
        kind = self.config["layer_types"][layer]
        return rope[kind]["rope_theta"] if kind in rope else rope["rope_theta"]

    def rope(self, x, layer, positions):
        half = self.head_dim // 2
        angles = positions[:, None] * self.theta(layer) ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None].astype("f4"), np.sin(angles)[:, None].astype("f4")
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def mask(self, layer, queries, keys):
        distance = np.arange(keys - queries, keys)[:, None] - np.arange(keys)
        hidden = distance < 0
        if self.sliding[layer]:
            hidden |= distance >= self.config["sliding_window"]
        return np.where(hidden, np.float32(-np.inf), np.float32(0))

    def attention(self, x, layer, positions):
        name = f"model.layers.{layer}.self_attn"
        q = self.tap("q", self.linear(x, f"{name}.q_proj").reshape(len(x), self.heads, -1), layer)
        k = self.tap("k", self.linear(x, f"{name}.k_proj").reshape(len(x), self.kv_heads, -1), layer)
        v = self.tap("v", self.linear(x, f"{name}.v_proj").reshape(len(x), self.kv_heads, -1), layer)
        if f"{name}.q_norm.weight" in self.weights:
            q = self.tap("q_norm", self.norm(q, f"{name}.q_norm"), layer)
            k = self.tap("k_norm", self.norm(k, f"{name}.k_norm"), layer)
        q = self.tap("q_rope", self.rope(q, layer, positions), layer)
        k = self.tap("k_rope", self.rope(k, layer, positions), layer)
        if self.length:
            k, v = np.concatenate([self.keys[layer], k]), np.concatenate([self.values[layer], v])
        self.keys[layer], self.values[layer] = k, v
        k, v = (np.repeat(x, self.heads // self.kv_heads, 1) for x in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) * np.float32(self.config["query_pre_attn_scalar"] ** -0.5)
        scores = soft_cap(scores, self.config.get("attn_logit_softcapping"))
        weights = softmax(scores + self.mask(layer, len(q), len(k)))
        self.tap("attn_weights", weights, layer)
        context = np.einsum("hts,shd->thd", weights, v).reshape(len(x), -1)
        self.tap("attn_context", context, layer)
        return self.tap("attn_out", self.linear(context, f"{name}.o_proj"), layer)

    def feed_forward(self, x, layer):
        name = f"model.layers.{layer}.mlp"
        gate = self.tap("ffn_gate", self.linear(x, f"{name}.gate_proj"), layer)
        up = self.tap("ffn_up", self.linear(x, f"{name}.up_proj"), layer)
        act = self.tap("ffn_act", gelu(gate) * up, layer)
        return self.tap("ffn_out", self.linear(act, f"{name}.down_proj"), layer)

    def block(self, x, layer, positions):
        name = f"model.layers.{layer}"
        h = self.tap("attn_norm", self.norm(x, f"{name}.input_layernorm"), layer)
        h = self.attention(h, layer, positions)
        x = x + self.tap("attn_post_norm", self.norm(h, f"{name}.post_attention_layernorm"), layer)
        self.tap("attn_residual", x, layer)
        h = self.tap("ffn_norm", self.norm(x, f"{name}.pre_feedforward_layernorm"), layer)
        h = self.feed_forward(h, layer)
        return x + self.tap("ffn_post_norm", self.norm(h, f"{name}.post_feedforward_layernorm"), layer)

    def forward(self, tokens):
        positions = np.arange(self.length, self.length + len(tokens))
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[tokens] * np.float32(np.sqrt(self.config["hidden_size"]))
        self.tap("embed", x)
        for layer in range(len(self.sliding)):
            x = self.tap("block_out", self.block(x, layer, positions), layer)
        self.length += len(tokens)
        x = self.tap("final_norm", self.norm(x, "model.norm"))
        logits = self.tap("logits", soft_cap(x @ embedding.T, self.config.get("final_logit_softcapping")))
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
