"""A decoder in torch with a seam at each operation: the engine whose faults and variants PortBugs judges.

It runs Llama, Mistral, Qwen 2 and 3, Gemma 2 and 3, OLMo 2, Phi 3, Granite, SmolLM 3, GPT-2, Mixtral and Qwen's mixtures of
experts from a Hugging Face folder. All values are f32 tensors. `result` rounds what an operation stores, `inner` rounds between the
steps of one operation, as transformers' eager code does in bf16 and f16; a fused engine rounds results only. A fault or a
variant replaces methods or changes attributes (`patch`). Without changes, the values are those of transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PAD = None  # the sequence of a padding row, or of a rejected draft token


@dataclass
class Rows:
    """The rows of one pass: tokens, the sequence of each, and its position there."""

    tokens: list[int]
    sequence: list[int | None]
    position: list[int]

    def of(self, sequence: int | None) -> list[int]:
        return [row for row, owner in enumerate(self.sequence) if owner == sequence]

    def sequences(self) -> list[int]:
        return list(dict.fromkeys(owner for owner in self.sequence if owner is not None))


@dataclass
class Cache:
    """Keys and values of one layer in order of arrival, with the sequence and position of each row."""

    keys: Tensor | None = None
    values: Tensor | None = None
    sequence: list[int | None] = field(default_factory=list)
    position: list[int] = field(default_factory=list)

    def rows(self, sequence: int) -> list[int]:
        return [row for row, owner in enumerate(self.sequence) if owner == sequence]


def patch(engine: Engine, **methods: Callable[..., Any]) -> None:
    """Replaces methods; each replacement is called with the former method first."""
    for name, method in methods.items():
        setattr(engine, name, partial(method, getattr(engine, name)))


Packed = tuple[Tensor, Tensor, Tensor, Tensor]  # codes [N, K], zero points and scales [N, G], the group of each input [K]


def unpacked(tensors: dict[str, Tensor], config: dict[str, Any] | None) -> dict[str, Packed]:
    """Returns the parts of quantised matrices: GPTQ's 4 bits, or 8-bit floats with a scale for each block."""
    packed: dict[str, Packed] = {}
    for name in [name for name in tensors if name.endswith((".qweight", ".weight_scale_inv"))] if config else []:
        base = name.rsplit(".", 1)[0]
        if name.endswith(".qweight"):
            shifts = torch.arange(0, 32, 4)
            codes = (tensors[name][:, None] >> shifts[None, :, None] & 15).flatten(0, 1).T
            zeros = (tensors[f"{base}.qzeros"][..., None] >> shifts & 15).flatten(1).T
            zeros = zeros + (config.get("checkpoint_format") == "gptq")
            packed[base] = (codes.float(), zeros.float(), tensors[f"{base}.scales"].float().T, tensors[f"{base}.g_idx"].long())
        else:
            codes, (rows, columns) = tensors[f"{base}.weight"].float(), config["weight_block_size"]
            scales = tensors[name].float().repeat_interleave(rows, 0)[: len(codes)]
            packed[base] = (codes, torch.zeros_like(scales), scales, torch.arange(codes.shape[1]) // columns)
    return packed


def decoded(codes: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor) -> Tensor:
    return (codes - zeros[:, groups]) * scales[:, groups]


class Engine:
    """One model, its cache, and the taps of the current pass."""

    def __init__(self, folder: Path, dtype: str = "f32") -> None:
        config = json.loads((folder / "config.json").read_text())
        self.config: dict[str, Any] = config
        self.dtype, self.kv, self.fused, self.pairing = dtype, dtype, False, "half"
        get = config.get
        self.kind: str = config["model_type"]
        self.gpt2, self.gemma = self.kind == "gpt2", self.kind.startswith("gemma")
        self.d = get("hidden_size") or config["n_embd"]
        self.n_heads = get("num_attention_heads") or config["n_head"]
        self.n_kv = get("num_key_value_heads") or self.n_heads
        self.head_dim = get("head_dim") or self.d // self.n_heads
        self.n_layers = get("num_hidden_layers") or config["n_layer"]
        self.eps = get("rms_norm_eps") or config["layer_norm_epsilon"]
        self.act = get("hidden_activation") or get("hidden_act") or config["activation_function"]
        self.embed_scale = self.store(torch.tensor(self.d**0.5)).item() if self.gemma else get("embedding_multiplier", 1.0)
        self.residual_scale, self.logit_scale = get("residual_multiplier", 1.0), 1 / get("logits_scaling", 1.0)
        self.scale = get("attention_multiplier") or (get("query_pre_attn_scalar") or self.head_dim) ** -0.5
        self.score_cap, self.logit_cap = get("attn_logit_softcapping"), get("final_logit_softcapping")
        types = get("layer_types") or ["sliding_attention" if self.kind == "mistral" else "full_attention"] * self.n_layers
        self.windows: list[int | None] = [get("sliding_window") if kind.startswith("sliding") else None for kind in types]
        self.chosen, self.norm_topk = get("num_experts_per_tok", 0), get("norm_topk_prob", True)
        self.ropes: list[dict[str, Any] | None] = [self.rope_of(kind, layer) for layer, kind in enumerate(types)]
        self.layers = self.load(folder)
        self.caches = [Cache() for _ in range(self.n_layers)]
        self.taps: dict[tuple[str, int | None], Tensor] = {}
        self.force: dict[tuple[str, int | None], Tensor] | None = None
        self.index = -1
        self.settings: dict[str, Any] = {}
        self.record_scores = True
        self.own: list[int] = []  # rows of the sequence whose attention is computed, and the cache rows that it reads
        self.read_rows: list[int] = []

    # --- rounding ---

    def store(self, x: Tensor) -> Tensor:
        """Rounds to the engine's type."""
        return x if self.dtype == "f32" else x.to(DTYPES[self.dtype]).float()

    def result(self, x: Tensor) -> Tensor:
        return self.store(x)

    def inner(self, x: Tensor) -> Tensor:
        return x if self.fused else self.store(x)

    def stream(self, x: Tensor) -> Tensor:
        """Rounds the residual stream."""
        return self.store(x)

    def tap(self, name: str, value: Tensor, layer: int | None = None) -> Tensor:
        """Records a value and returns what the next operation reads."""
        self.taps[name, layer] = value.clone()
        if self.force is not None and (name, layer) in self.force:
            return self.force[name, layer].clone()
        return value

    # --- weights ---

    def load(self, folder: Path) -> list[dict[str, Any]]:
        tensors: dict[str, Tensor] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                for name in file.keys():
                    tensors[name.removeprefix("transformer.").removeprefix("model.")] = file.get_tensor(name)
        self.packed = unpacked(tensors, self.config.get("quantization_config"))
        tensors |= {f"{name}.weight": decoded(*parts) for name, parts in self.packed.items()}
        self.tensors = tensors = {name: self.store(value.float()) for name, value in tensors.items()}
        self.embedding = tensors.get("embed_tokens.weight", tensors.get("wte.weight"))
        self.positions = tensors.get("wpe.weight")
        self.head = (tensors.get("lm_head.weight", self.embedding), None)
        self.final_norm = (tensors.get("norm.weight", tensors.get("ln_f.weight")), tensors.get("ln_f.bias"))
        return [(self.gpt2_layer if self.gpt2 else self.llama_layer)(layer) for layer in range(self.n_layers)]

    def gpt2_layer(self, layer: int) -> dict[str, Any]:
        def linear(name: str) -> tuple[Tensor, Tensor]:
            return self.tensors[f"h.{layer}.{name}.weight"].T.contiguous(), self.tensors[f"h.{layer}.{name}.bias"]

        weight, bias = linear("attn.c_attn")
        parts = zip("qkv", weight.chunk(3), bias.chunk(3))
        norms = {tap: tuple(self.tensors[f"h.{layer}.{name}.{part}"] for part in ("weight", "bias"))
                 for tap, name in (("attn_norm", "ln_1"), ("ffn_norm", "ln_2"))}  # fmt: skip
        return {**norms, **{name: (w, b) for name, w, b in parts}, "o": linear("attn.c_proj"), "up": linear("mlp.c_fc"),
                "down": linear("mlp.c_proj")}  # fmt: skip

    def llama_layer(self, layer: int) -> dict[str, Any]:
        def at(name: str) -> Tensor | None:
            return self.tensors.get(f"layers.{layer}.{name}")

        def linear(name: str) -> tuple[Tensor | None, Tensor | None]:
            return at(f"{name}.weight"), at(f"{name}.bias")

        def ffn(prefix: str, names: tuple[str, str, str]) -> dict[str, Any]:
            return {key: linear(f"{prefix}.{name}") for key, name in zip(("gate", "up", "down"), names)}

        second = "pre_feedforward_layernorm" if self.gemma else "post_attention_layernorm"
        post = self.gemma or self.kind == "olmo2"
        w: dict[str, Any] = {
            "attn_norm": at("input_layernorm.weight"), "attn_post_norm": at("post_attention_layernorm.weight") if post else None,
            "ffn_norm": None if self.kind == "olmo2" else at(f"{second}.weight"),
            "ffn_post_norm": at("post_feedforward_layernorm.weight"),
            "q_norm": at("self_attn.q_norm.weight"), "k_norm": at("self_attn.k_norm.weight"),
        }  # fmt: skip
        w = {name: (weight, None) for name, weight in w.items()}
        w |= {name: linear(f"self_attn.{name}_proj") for name in "qkvo"}
        if (fused := at("self_attn.qkv_proj.weight")) is not None:
            sizes = [self.n_heads * self.head_dim, self.n_kv * self.head_dim, self.n_kv * self.head_dim]
            w |= {name: (part, None) for name, part in zip("qkv", fused.split(sizes))}
        w |= ffn("mlp", ("gate_proj", "up_proj", "down_proj"))
        if (fused := at("mlp.gate_up_proj.weight")) is not None:
            w |= {name: (part, None) for name, part in zip(("gate", "up"), fused.chunk(2))}
        for name, names in (("block_sparse_moe", ("w1", "w3", "w2")), ("mlp", ("gate_proj", "up_proj", "down_proj"))):
            if at(f"{name}.gate.weight") is not None:
                count = self.config.get("num_local_experts") or self.config["num_experts"]
                w |= {"router": linear(f"{name}.gate"), "experts": [ffn(f"{name}.experts.{e}", names) for e in range(count)]}
                if at(f"{name}.shared_expert_gate.weight") is not None:
                    w |= {"shared": ffn(f"{name}.shared_expert", names), "shared_router": linear(f"{name}.shared_expert_gate")}
        return {name: value for name, value in w.items() if value and not (isinstance(value, tuple) and value[0] is None)}

    # --- operations ---

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiplies [.., n, k] with [.., k, m]."""
        return a @ b

    def linear(self, layer: int | None, name: str, x: Tensor, w: tuple[Tensor, Tensor | None]) -> Tensor:
        y = self.matmul(x, w[0].T)
        return self.result(y if w[1] is None else y + w[1])

    def norm(self, layer: int | None, name: str, x: Tensor, w: tuple[Tensor, Tensor | None]) -> Tensor:
        if self.gpt2:
            return self.result(F.layer_norm(x, x.shape[-1:], w[0], w[1], self.eps))
        y = x * torch.rsqrt(self.mean_square(layer, name, x) + self.eps)
        return self.result(y * (1 + w[0])) if self.gemma else self.result(self.inner(y) * w[0])

    def mean_square(self, layer: int | None, name: str, x: Tensor) -> Tensor:
        return x.square().mean(-1, keepdim=True)

    def head_norm(self, layer: int, name: str, x: Tensor, w: tuple[Tensor, None]) -> Tensor:
        """Normalises each head, or all heads together where the weight has their length (OLMo 2)."""
        return self.norm(layer, name, x.flatten(1) if w[0].numel() > self.head_dim else x, w).view_as(x)

    def embed(self, rows: Rows) -> Tensor:
        x = self.embedding[rows.tokens]
        if self.positions is not None:
            x = x + self.positions[self.learned_positions(rows)]
        return self.result(x * self.embed_scale) if self.embed_scale != 1 else self.result(x)

    def learned_positions(self, rows: Rows) -> list[int]:
        return rows.position

    def rope_of(self, layer_type: str, layer: int) -> dict[str, Any] | None:
        """Returns the RoPE parameters of a layer, None without RoPE."""
        c = self.config
        if self.gpt2 or not c.get("no_rope_layers", [1] * self.n_layers)[layer]:
            return None
        rope = c["rope_parameters"]
        return dict(rope.get(layer_type, rope)) | {"max": c["max_position_embeddings"]}

    def frequencies(self, layer: int, rope: dict[str, Any]) -> tuple[Tensor, float]:
        """Returns the frequency of each pair, and the factor of cosines and sines."""
        kind, factor = rope["rope_type"], rope.get("factor", 1.0)
        width = self.rope_width(rope)
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width)
        if kind == "linear":
            return plain / factor, 1.0
        if kind == "llama3":
            low, high, old = (rope[k] for k in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
            wave = 2 * math.pi / plain
            smooth = (old / wave - low) / (high - low)
            mixed = (1 - smooth) * plain / factor + smooth * plain
            return torch.where(wave > old / low, plain / factor, torch.where(wave < old / high, plain, mixed)), 1.0
        if kind == "yarn":
            return self.yarn(rope, plain, width)
        if kind == "longrope":
            old = rope["original_max_position_embeddings"]
            factor = rope["max"] / old
            scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(old))
            return plain / torch.tensor(rope["long_factor" if self.long_factors(rope) else "short_factor"]), scale
        return plain, 1.0

    def long_factors(self, rope: dict[str, Any]) -> bool:
        return self.seen() > rope["original_max_position_embeddings"]

    def seen(self) -> int:
        return max(self.rows.position) + 1

    def rope_width(self, rope: dict[str, Any]) -> int:
        return int(self.head_dim * rope.get("partial_rotary_factor", 1.0))

    def yarn(self, rope: dict[str, Any], plain: Tensor, width: int) -> tuple[Tensor, float]:
        old, factor, theta = rope["original_max_position_embeddings"], rope["factor"], rope["rope_theta"]

        def mscale(m: float) -> float:
            return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0

        def dimension(turns: float) -> float:
            return width * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
        if rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        ramp = ((torch.arange(width // 2).float() - low) / ((high - low) or 0.001)).clamp(0, 1)
        both = rope.get("mscale") and rope.get("mscale_all_dim")
        scale = mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"]) if both else mscale(1.0)
        return plain / factor * ramp + plain * (1 - ramp), rope.get("attention_factor") or scale

    def rotate(self, layer: int, name: str, x: Tensor, positions: list[int]) -> Tensor:
        """Rotates the pairs of queries or keys [T, H, D]."""
        rope = self.ropes[layer]
        if rope is None:
            return x
        frequencies, factor = self.frequencies(layer, rope)
        angles = torch.tensor(positions).float()[:, None, None] * frequencies
        cos, sin = (self.inner(value * factor) for value in (angles.cos(), angles.sin()))
        width = 2 * frequencies.numel()
        a, b = self.pairs(x[..., :width])
        turned = (self.inner(a * cos) - self.inner(b * sin), self.inner(b * cos) + self.inner(a * sin))
        return torch.cat([self.result(self.unpaired(*turned)), x[..., width:]], -1)

    def pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(x.chunk(2, -1)) if self.pairing == "half" else (x[..., ::2], x[..., 1::2])

    def unpaired(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b], -1) if self.pairing == "half" else torch.stack([a, b], -1).flatten(-2)

    # --- cache and attention ---

    def kv_type(self, x: Tensor, name: str) -> Tensor:
        """Rounds keys or values to the cache's type."""
        if self.kv == "int8":
            scale = x.abs().amax(-1, keepdim=True) / 127
            return (x / scale.clamp_min(1e-30)).round().clamp(-127, 127) * scale
        if self.kv.startswith("f8"):
            return x.to({"f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2}[self.kv]).float()
        return x if self.kv == "f32" else x.to(DTYPES[self.kv]).float()

    def append(self, layer: int, k: Tensor, v: Tensor, rows: Rows) -> None:
        cache = self.caches[layer]
        k, v = self.kv_type(k, "k"), self.kv_type(v, "v")
        cache.keys = k if cache.keys is None else torch.cat([cache.keys, k])
        cache.values = v if cache.values is None else torch.cat([cache.values, v])
        cache.sequence += rows.sequence
        cache.position += rows.position

    def read(self, layer: int, sequence: int) -> tuple[Tensor, Tensor, list[int]]:
        """Returns keys, values and positions that attention of a sequence reads."""
        return self.rows_of(layer, self.caches[layer].rows(sequence))

    def rows_of(self, layer: int, rows: list[int], positions: list[int] | None = None) -> tuple[Tensor, Tensor, list[int]]:
        """Returns these rows of the cache, with their positions unless others are given."""
        cache, self.read_rows = self.caches[layer], rows
        return cache.keys[rows], cache.values[rows], positions or [cache.position[row] for row in rows]

    def visible(self, layer: int, queries: list[int], keys: list[int]) -> Tensor:
        """Returns the mask [T, S]: True where a query sees a key."""
        distance = torch.tensor(queries)[:, None] - torch.tensor(keys)[None, :]
        seen = distance >= 0
        return seen if self.windows[layer] is None else seen & (distance < self.windows[layer])

    def grouped(self, x: Tensor) -> Tensor:
        """Repeats KV heads for their query heads: [S, Hkv, D] to [H, S, D]."""
        return x.repeat_interleave(self.n_heads // self.n_kv, 1).transpose(0, 1)

    def scores(self, layer: int, q: Tensor, keys: Tensor) -> Tensor:
        s = self.inner(self.inner(self.matmul(q.transpose(0, 1), self.grouped(keys).transpose(1, 2))) * self.scale)
        return self.capped(s, self.score_cap) if self.score_cap else s

    def capped(self, x: Tensor, cap: float) -> Tensor:
        return self.inner(self.inner(torch.tanh(self.inner(x / cap))) * cap)

    def softmax(self, layer: int, scores: Tensor, mask: Tensor) -> Tensor:
        return self.inner(torch.softmax(scores.masked_fill(~mask, -torch.inf), -1))

    def attend(self, layer: int, q: Tensor, rows: Rows, sequence: int) -> Tensor:
        """Returns the context [T, H·D] of one sequence's rows."""
        keys, values, positions = self.read(layer, sequence)
        scores = self.scores(layer, q, keys)
        mask = self.visible(layer, rows.position, positions)
        whole = len(self.own) == len(self.rows.tokens) and len(positions) == len(self.caches[layer].sequence)
        alone = whole and self.record_scores
        scores = self.tap("attn_scores", scores, layer) if alone else scores
        weights = self.softmax(layer, scores, mask)
        if alone:
            weights = self.tap("attn_weights", weights, layer)
        elif self.record_scores:
            # Unread keys have scores too; those that attention reads are recorded with its own rounding.
            self.collect(layer, "attn_scores", self.scores(layer, q, self.caches[layer].keys), range(len(self.caches[layer].keys)))
            self.collect(layer, "attn_scores", scores, self.read_rows)
            self.collect(layer, "attn_weights", weights, self.read_rows)
        return self.result(self.matmul(weights, self.grouped(values)).transpose(0, 1).flatten(1))

    def collect(self, layer: int, name: str, part: Tensor, keys: Iterable[int]) -> None:
        """Records scores or weights of one sequence among those of a batch, [H, T, S]; they are zero at other rows."""
        shape = (self.n_heads, len(self.rows.tokens), len(self.caches[layer].sequence))
        whole = self.taps.setdefault((name, layer), torch.zeros(shape))
        whole[:, torch.tensor(self.own)[:, None], torch.tensor(list(keys))[None]] = part

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        self.append(layer, k, v, rows)
        cache = self.caches[layer]
        cache.keys = self.tap("k_cache", cache.keys, layer)
        cache.values = self.tap("v_cache", cache.values, layer)
        context = torch.zeros(len(rows.tokens), self.n_heads * self.head_dim)
        for sequence in rows.sequences():
            self.own = own = rows.of(sequence)
            context[own] = self.attend(layer, q[own], Rows([], [], [rows.position[row] for row in own]), sequence)
        return context

    # --- feed-forward ---

    def activation(self, layer: int, x: Tensor) -> Tensor:
        if self.act in ("gelu_new", "gelu_pytorch_tanh"):
            return F.gelu(x, approximate="tanh")
        return {"silu": F.silu, "gelu": F.gelu, "relu": F.relu}[self.act](x)

    def activated(self, layer: int, gate: Tensor | None, up: Tensor) -> Tensor:
        if gate is None:
            return self.result(self.activation(layer, up))
        return self.result(self.inner(self.activation(layer, gate)) * up)

    def ffn(self, layer: int, x: Tensor) -> Tensor:
        w = self.layers[layer]
        if "experts" in w:
            return self.mixture(layer, x)
        gate = self.tap("ffn_gate", self.linear(layer, "gate", x, w["gate"]), layer) if "gate" in w else None
        up = self.tap("ffn_up", self.linear(layer, "up", x, w["up"]), layer)
        act = self.tap("ffn_act", self.activated(layer, gate, up), layer)
        return self.linear(layer, "down", act, w["down"])

    def route(self, layer: int, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the chosen experts and their weights [T, c]."""
        weights, experts = torch.softmax(logits, -1).topk(self.chosen, -1)
        if self.norm_topk:
            weights = weights / weights.sum(-1, keepdim=True)
        return experts, self.result(weights)

    def expert(self, layer: int, number: int, x: Tensor) -> dict[str, Tensor]:
        w = self.layers[layer]["experts"][number]
        gate, up = (self.linear(layer, f"expert_{name}", x, w[name]) for name in ("gate", "up"))
        act = self.activated(layer, gate, up)
        return {"expert_gate": gate, "expert_up": up, "expert_act": act, "expert_out": self.linear(layer, "expert_down", act, w["down"])}

    def mixture(self, layer: int, x: Tensor) -> Tensor:
        w = self.layers[layer]
        shared = self.shared(layer, x) if "shared" in w else None
        logits = self.tap("router_logits", self.linear(layer, "router", x, w["router"]), layer)
        experts, weights = self.route(layer, logits)
        experts = self.tap("experts", experts, layer)
        weights = self.tap("expert_weights", weights, layer)
        parts: dict[str, Tensor] = {}
        for token, chosen in enumerate(experts.tolist()):
            for slot, number in enumerate(chosen):
                for name, value in self.expert(layer, number, x[token : token + 1]).items():
                    parts.setdefault(name, torch.zeros(*experts.shape, value.shape[-1]))[token, slot] = value[0]
        parts = {name: self.tap(name, value, layer) for name, value in parts.items()}
        routed = self.combined(layer, experts, weights, parts["expert_out"])
        if shared is None:
            return routed
        return self.result(self.tap("routed_out", routed, layer) + shared)

    def combined(self, layer: int, experts: Tensor, weights: Tensor, outputs: Tensor) -> Tensor:
        """Adds the weighted outputs in the order of the expert numbers."""
        order = experts.argsort(-1)
        terms = self.inner(outputs * weights[..., None]).gather(1, order[..., None].expand_as(outputs))
        total = torch.zeros_like(terms[:, 0])
        for slot in range(terms.shape[1]):
            total = self.inner(total + terms[:, slot])
        return self.result(total)

    def shared(self, layer: int, x: Tensor) -> Tensor:
        w = self.layers[layer]["shared"]
        gate, up = (self.tap(f"shared_{name}", self.linear(layer, f"shared_{name}", x, w[name]), layer) for name in ("gate", "up"))
        act = self.tap("shared_act", self.activated(layer, gate, up), layer)
        out = self.tap("shared_out", self.linear(layer, "shared_down", act, w["down"]), layer)
        logit = self.tap("shared_logit", self.linear(layer, "shared_router", x, self.layers[layer]["shared_router"])[:, 0], layer)
        weight = self.tap("shared_weight", self.result(torch.sigmoid(logit)), layer)
        return self.inner(weight[:, None] * out)

    # --- the model ---

    def residual(self, layer: int, name: str, x: Tensor, branch: Tensor) -> Tensor:
        branch = self.inner(branch * self.residual_scale) if self.residual_scale != 1 else branch
        return self.stream(x + branch)

    def optional_norm(self, layer: int, name: str, x: Tensor) -> Tensor:
        w = self.layers[layer].get(name)
        return x if w is None else self.tap(name, self.norm(layer, name, x, w), layer)

    def block(self, layer: int, x: Tensor, rows: Rows) -> Tensor:
        h = self.optional_norm(layer, "attn_norm", x)
        q, k, v = self.qkv(layer, h, rows)
        context = self.tap("attn_context", self.attention(layer, q, k, v, rows), layer)
        out = self.tap("attn_out", self.linear(layer, "o", context, self.layers[layer]["o"]), layer)
        out = self.optional_norm(layer, "attn_post_norm", out)
        x = self.tap("attn_residual", self.residual(layer, "attn_residual", x, out), layer)
        out = self.tap("ffn_out", self.ffn(layer, self.optional_norm(layer, "ffn_norm", x)), layer)
        out = self.optional_norm(layer, "ffn_post_norm", out)
        return self.residual(layer, "block_out", x, out)

    def qkv(self, layer: int, h: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        w = self.layers[layer]
        taken = {}
        for name in "qkv":
            x = self.linear(layer, name, h, w[name])
            x = self.tap(name, x.view(len(x), -1, self.head_dim), layer)
            if f"{name}_norm" in w:
                x = self.tap(f"{name}_norm", self.head_norm(layer, f"{name}_norm", x, w[f"{name}_norm"]), layer)
            taken[name] = x
        for name in "qk":
            taken[name] = self.tap(f"{name}_rope", self.rotate(layer, name, taken[name], rows.position), layer)
        return taken["q"], taken["k"], taken["v"]

    def logits(self, x: Tensor) -> Tensor:
        y = self.linear(None, "head", x, self.head)
        y = self.inner(y * self.logit_scale) if self.logit_scale != 1 else y
        return self.result(self.capped(y, self.logit_cap) if self.logit_cap else y)

    def forward(self, rows: Rows) -> Tensor:
        """Computes one pass and returns its logits [T, V]."""
        self.index, self.rows, self.taps = self.index + 1, rows, {}
        x = self.tap("embed", self.embed(rows))
        for layer in range(self.n_layers):
            x = self.tap("block_out", self.block(layer, x, rows), layer)
        x = self.tap("final_norm", self.norm(None, "final_norm", x, self.final_norm))
        return self.tap("logits", self.logits(x))

    # --- what a server returns ---

    def last(self, logits: Tensor, row: int) -> Tensor:
        """Returns the row that the next token is chosen from."""
        return logits[row]

    def choose(self, logits: Tensor) -> int:
        return int(logits.argmax())

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits.float(), -1)

    def logprobs(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits.float(), -1)

    def followed(self, logprobs: Tensor) -> Tensor:
        """Returns the rows in which the token after each row is looked up."""
        return logprobs
