"""The judges: xcheck, and the gates that engines commonly use. Each returns a verdict, a first wrong site, and causes."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Key = tuple[str, int, int | None]  # tap or module, pass, layer
Tensors = dict[Key, Tensor]


def answer(verdict: str, site: dict[str, Any] | None = None, causes: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"verdict": verdict, "site": site, "causes": causes or [], **more}


# --- xcheck ---

LIMIT = 1800  # seconds for one call; a busy machine needs long for other architectures
UNNAMED = ("partial", "unknown", "unfinished", "non_finite")


def xcheck(program: str, model: Path, dumps: list[Path], report: Path, options: list[str]) -> list[dict[str, Any]]:
    """Runs `xcheck check` on dumps of one model, and reads its JSON."""
    command = [program, "check", "--model", str(model), *(part for dump in dumps for part in ("--candidate", str(dump))),
               "--report", str(report), "--format", "json", "--threads", "1", *options]  # fmt: skip
    start = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        whole = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        whole = {"error": f"no answer within {LIMIT} s"}
    except json.JSONDecodeError:
        whole = {"error": (done.stderr or done.stdout)[-300:]}
    seconds = (time.monotonic() - start) / len(dumps)
    judged: dict[str, list[dict[str, Any]]] = {dump.stem: [] for dump in dumps}
    for entry in whole.get("references", []):
        judged[next(stem for stem in judged if entry["name"] == stem or entry["name"].startswith(stem + "#"))].append(entry)
    return [read(judged[dump.stem], whole.get("error"), seconds) for dump in dumps]


def read(entries: list[dict[str, Any]], error: str | None, seconds: float) -> dict[str, Any]:
    """Reads the answer for one dump; a dump of several sequences has an entry for each, and the first failing one counts."""
    if not entries and error and error.startswith("the input tokens differ"):
        return answer("fail", {"tap": "tokens", "layer": None, "pass": 0}, sentence=error, seconds=round(seconds, 3))
    if not entries:
        return answer("error", sentence=error, seconds=round(seconds, 3))
    worst = [name for name in ("fail", "inconclusive", "tie", "pass") if any(entry["verdict"] == name for entry in entries)]
    entry = next(entry for entry in entries if entry["verdict"] == worst[0])
    first = entry["first_divergence"]
    site = first and {name: first.get(name) for name in ("tap", "layer", "pass")}
    if site and site["tap"] == "tokens":  # xcheck's report has the tokens of all passes in one row
        site["pass"] = 0
    confirmed = [finding for finding in entry["findings"] if finding["kind"] not in UNNAMED and finding["confirmed"] != "fail"]
    named = [names(finding) for finding in confirmed]
    return answer(worst[0], site, named[0] if named else [], others=sorted({kind for group in named[1:] for kind in group}),
                  sentence=entry["sentence"], unclear=unclear(entry), seconds=round(seconds, 3))  # fmt: skip


def unclear(entry: dict[str, Any]) -> str | None:
    """Says why a failing run has no name: what was tried, or the limit that was reached."""
    if "time limit" in (entry["sentence"] or ""):
        return "time limit"
    finding = next(iter(entry["findings"]), None)
    if finding and finding["kind"] == "non_finite":
        return "NaN or infinity"
    if finding is None or finding["kind"] in UNNAMED:
        tried = re.search(r"tried: ([^)]*)", finding["what"]) if finding else None
        return f"tried: {tried[1]}" if tried else "nothing fits"
    return f"nearest: {finding['supposed'] or finding['kind']}" if finding["confirmed"] == "fail" else None


def names(finding: dict[str, Any]) -> list[str]:
    """Lists the causes that a finding supposes together, then those that explain the values as well."""
    told = [finding["kind"], *(finding.get("supposed") or "").split(" and ")]
    told += [other if isinstance(other, str) else other["kind"] for other in finding["remaining"]]
    return list(dict.fromkeys(re.split("[=@]", name)[0] for name in told if name))


# --- gates ---


def nmse(limit: float, by: str) -> Callable[[Tensor, Tensor], bool]:
    """MSE over the reference's variance, or over its mean square."""
    def accepts(x: Tensor, ref: Tensor) -> bool:
        scale = ref.var(unbiased=False) if by == "variance" else ref.square().mean()
        return bool((x - ref).square().mean() / scale < limit) if scale > 0 else torch.equal(x, ref)

    return accepts


def cosine(limit: float) -> Callable[[Tensor, Tensor], bool]:
    return lambda x, ref: bool(F.cosine_similarity(x.flatten(), ref.flatten(), 0) >= limit) or torch.equal(x, ref)


def pcc(limit: float) -> Callable[[Tensor, Tensor], bool]:
    """Pearson's correlation, as tt-metal's comp_pcc."""
    def accepts(x: Tensor, ref: Tensor) -> bool:
        a, b = x.flatten() - x.mean(), ref.flatten() - ref.mean()
        return bool(a @ b / (a.norm() * b.norm()) >= limit) or torch.equal(x, ref) or x.numel() == 1

    return accepts


def msprobe(x: Tensor, ref: Tensor) -> bool:
    """Refuses a cosine below 0.99 with an absolute error above 0.001, a cosine below 0.9, and an absolute error above 1."""
    error = float((x - ref).abs().max())
    return error <= 1 and cosine(0.9)(x, ref) and (error <= 1e-3 or cosine(0.99)(x, ref))


CLOSE = {"f32": (1.3e-6, 1e-5), "bf16": (1.6e-2, 1e-5), "f16": (1e-3, 1e-5)}  # rtol, atol of torch.testing.assert_close


def assert_close(dtype: str) -> Callable[[Tensor, Tensor], bool]:
    rtol, atol = CLOSE[dtype]
    return lambda x, ref: torch.allclose(x, ref, rtol=rtol, atol=atol)


def divergence(limit: float) -> Callable[[Tensor, Tensor], bool]:
    """The mean KL divergence of the reference's and the candidate's distributions."""
    def accepts(x: Tensor, ref: Tensor) -> bool:
        p, q = torch.log_softmax(ref, -1), torch.log_softmax(x, -1)
        return bool((p.exp() * (p - q)).sum(-1).mean() < limit)

    return accepts


def gates(dtype: str) -> dict[str, tuple[tuple[str, ...], Callable[[Tensor, Tensor], bool]]]:
    """Lists each gate with the levels of recording that it reads."""
    every = ("taps", "blocks", "logits")
    return {
        "NMSE < 1e-2": (every, nmse(1e-2, "variance")),
        "NMSE < 5e-4": (every, nmse(5e-4, "square")),
        "cosine ≥ 0.99": (every, cosine(0.99)),
        "cosine ≥ 0.999": (every, cosine(0.999)),
        "PCC ≥ 0.99": (every, pcc(0.99)),
        "assert_close": (every, assert_close(dtype)),
        "msprobe": (every, msprobe),
        "KL < 1e-2": (("logits",), divergence(1e-2)),
        "KL < 1e-3": (("logits",), divergence(1e-3)),
    }


def site_of(tap: str, index: int, layer: int | None) -> dict[str, Any]:
    if "." not in tap:
        return {"tap": tap, "layer": layer, "pass": index}
    from modules import site_of  # a module

    return site_of(tap, index)


def gate(accepts: Callable[[Tensor, Tensor], bool], candidate: Tensors, reference: Tensors) -> dict[str, Any]:
    """Compares the recorded values in order of execution; the first refused value is the site."""
    seen = False
    for key, value in candidate.items():
        other = reference.get(key)
        if other is None:
            continue
        seen = True
        if other.shape != value.shape or not (value.isfinite().all() and accepts(value.float(), other.float())):
            return answer("fail", site_of(*key))
    return answer("pass" if seen else "inconclusive")


def logprobs_close(candidate: list[tuple[int, list[int]]], reference: list[tuple[int, list[int]]]) -> dict[str, Any]:
    """vLLM's check_logprobs_close: at the first other token, each one must be among the other's likeliest; then it stops."""
    for index, ((token, top), (other, other_top)) in enumerate(zip(candidate, reference)):
        if token != other:
            close = token in other_top and other in top
            return answer("pass") if close else answer("fail", {"tap": "generated", "layer": None, "pass": index})
    return answer("pass")
