"""Runs GPT-2 of Hugging Face's layout in numpy: engine.py MODEL OUT TOKEN..."""

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


class Engine:
    def __init__(self, folder, dump):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights, self.dump = load(folder / "model.safetensors"), dump
        self.heads, self.layers = self.config["n_head"], self.config["n_layer"]
        self.head_dim = self.config["n_embd"] // self.heads
        self.cache = {}
        self.length = 0

    def tap(self, name, value, layer=None):
        return self.dump.tap(name, value, layer) if RECORDED is None or name in RECORDED else value

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        normed = centred / np.sqrt(variance + np.float32(self.config["layer_norm_epsilon"]))
        return normed * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, x, layer):
        name = f"transformer.h.{layer}.attn"
        q, k, v = np.split(self.linear(x, f"{name}.c_attn"), 3, -1)
        q, k, v = (part.reshape(len(x), self.heads, self.head_dim) for part in (q, k, v))
        self.tap("q", q, layer), self.tap("k", k, layer), self.tap("v", v, layer)
        if layer in self.cache:
            k, v = np.concatenate([self.cache[layer][0], k]), np.concatenate([self.cache[layer][1], v])
        self.cache[layer] = k, v
        scores = np.einsum("thd,shd->hts", q, k) / np.float32(np.sqrt(self.head_dim))
        self.tap("attn_scores", scores, layer)
        seen = np.tri(len(q), len(k), len(k) - len(q), dtype=bool)
        weights = self.tap("attn_weights", softmax(np.where(seen, scores, np.float32(-np.inf))), layer)
        context = np.einsum("hts,shd->thd", weights, v).reshape(len(x), -1)
        self.tap("attn_context", context, layer)
        return self.tap("attn_out", self.linear(context, f"{name}.c_proj"), layer)

    def feed_forward(self, x, layer):
        name = f"transformer.h.{layer}.mlp"
        up = self.tap("ffn_up", self.linear(x, f"{name}.c_fc"), layer)
        act = self.tap("ffn_act", gelu(up), layer)
        return self.tap("ffn_out", self.linear(act, f"{name}.c_proj"), layer)

    def forward(self, tokens):
        wte, wpe = self.weights["transformer.wte.weight"], self.weights["transformer.wpe.weight"]
        x = self.tap("embed", wte[tokens] + wpe[self.length : self.length + len(tokens)])
        for layer in range(self.layers):
            name = f"transformer.h.{layer}"
            h = self.tap("attn_norm", self.norm(x, f"{name}.ln_1"), layer)
            x = self.tap("attn_residual", x + self.attention(h, layer), layer)
            h = self.tap("ffn_norm", self.norm(x, f"{name}.ln_2"), layer)
            x = self.tap("block_out", x + self.feed_forward(h, layer), layer)
        self.length += len(tokens)
        x = self.tap("final_norm", self.norm(x, "transformer.ln_f"))
        logits = self.tap("logits", x @ wte.T)
        self.tap("last_logits", logits[-1])
        return int(self.tap("argmax", logits[-1].argmax().astype("u4")))


def main(folder, out, tokens):
    config = json.loads((folder / "config.json").read_text())
    generated = []
    with xcheck.Dump(out, producer="engine", config=config, tokens=tokens) as dump:
        engine, read = Engine(folder, dump), tokens
        for _ in range(DECODED + 1):
            with dump.forward(read):
                generated.append(engine.forward(read))
            read = generated[-1:]
        dump.generated(generated)
    print(*generated)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [int(token) for token in sys.argv[3:]])
