"""What the model's configuration says of heads and layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import DumpError


@dataclass(frozen=True)
class Heads:
    """How many heads there are, and how wide; None where nobody said."""

    n_heads: int | None = None
    n_kv_heads: int | None = None
    head_dim: int | None = None

    def __post_init__(self) -> None:
        if self.n_heads and self.n_kv_heads and self.n_heads % self.n_kv_heads:
            raise DumpError(f"n_heads={self.n_heads} is no multiple of n_kv_heads={self.n_kv_heads}")

    @property
    def known(self) -> bool:
        return None not in (self.n_heads, self.n_kv_heads, self.head_dim)

    def size(self, axis: str) -> int | None:
        """The length of an axis, if it is one that this tells."""
        if axis == "group":
            return self.n_heads // self.n_kv_heads if self.n_heads and self.n_kv_heads else None
        return {"head": self.n_heads, "kv_head": self.n_kv_heads, "head_dim": self.head_dim}.get(axis)


@dataclass(frozen=True)
class Config:
    """What a dump takes from a model's configuration."""

    architecture: str | None = None
    n_layers: int | None = None
    heads: Heads = Heads()


def read_config(config: Any) -> Config:
    """Reads transformers' configuration, or `config.json` as a dictionary; of a model that also sees, its text part."""
    if config is None:
        return Config()
    # transformers refuses the attribute of a size that differs between layers (Gemma 4): this is the first kind's.
    own = {} if isinstance(config, Mapping) else getattr(config, "__dict__", {})
    get = config.get if isinstance(config, Mapping) else lambda name: own.get(name) or getattr(config, name, None)

    def first(*names: str) -> Any:
        return next((value for name in names if (value := get(name)) is not None), None)

    text = get("text_config")
    if text is not None and text is not config:
        return read_config(text)
    n_heads, hidden = first("num_attention_heads", "n_head"), first("hidden_size", "n_embd")
    head_dim = first("head_dim") or (hidden // n_heads if hidden and n_heads else None)
    model_type = get("model_type")
    return Config(
        architecture=_without_suffix(model_type) if model_type else None,
        n_layers=first("num_hidden_layers", "n_layer"),
        heads=Heads(n_heads, first("num_key_value_heads") or n_heads, head_dim),
    )


def _without_suffix(model_type: str) -> str:
    """`gemma3_text` is the family gemma3."""
    return model_type[: -len("_text")] if model_type.endswith("_text") else model_type
