"""Writes arrays as a dump beside the report, so that commands in the report find them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .dump import Dump
from .errors import DumpError


def write(arrays: Mapping[Any, Any], tokens: Any, model: str | os.PathLike[str] | None, folder: Path) -> Path:
    """Writes `{tap or (tap, layer): array}` of one pass over `tokens` as `candidate.safetensors` in `folder`."""
    if tokens is None:
        raise DumpError("the candidate is a dictionary of arrays: tokens= must list the token ids that the engine read")
    out = folder / "candidate.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    with Dump(out, producer="candidate", **_facts(model)) as dump, dump.forward(tokens):
        for site, value in arrays.items():
            tap, layer = site if isinstance(site, tuple) else (site, None)
            dump.tap(tap, value, layer)
    return out


def _facts(model: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Architecture and heads from `config.json` of a model's folder. For any other model, xcheck reads them itself."""
    config = Path(model) / "config.json" if model is not None else None
    if config is None or not config.is_file():
        return {"architecture": "unknown"}
    return {"config": json.loads(config.read_text(encoding="utf-8"))}
