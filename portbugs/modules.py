"""Faults in architectures that xcheck does not know itself: tiny seeded transformers models, recorded by module.

`reference-scripts/atlas` makes the models and records them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "reference-scripts/atlas"))

LAYER = re.compile(r"\.(layers|h|blocks)\.(\d+)$")
STAR = re.compile(r"\.(\d+)(?=\.|$)")
PATCHES: dict[str, Callable[[Any], Any]] = {}


def fault(name: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def add(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        PATCHES[name] = function
        return function

    return add


def weights(model: Any, ending: str) -> list[Tensor]:
    found = [weight for name, weight in [*model.named_parameters(), *model.named_buffers()] if name.endswith(ending)]
    if not found:
        raise ValueError(f"no weight ends with '{ending}'")
    return found


def classes(model: Any, *names: str) -> list[Any]:
    found = [module for module in model.modules() if type(module).__name__ in names]
    if not found:
        raise ValueError(f"no module of {names}")
    return found


def attributes(model: Any, name: str, value: Any) -> None:
    """Sets a number that modules keep."""
    found = [module for module in model.modules() if name in vars(module)]
    if not found:
        raise ValueError(f"no module has '{name}'")
    for module in found:
        setattr(module, name, value)


def config(*path: str, value: Any) -> Callable[[Any], Any]:
    """Returns a patch that builds the model again with one key of its configuration changed."""
    def patch(model: Any) -> Any:
        from faults import rebuilt  # of the atlas

        return rebuilt(model, path, value)

    return patch


PATCHES["deepseek-routed-scaling-unread"] = config("routed_scaling_factor", value=1.0)
PATCHES["deepseek-rope-not-interleaved"] = config("rope_interleave", value=False)
PATCHES["olmoe-softmax-over-chosen"] = config("norm_topk_prob", value=True)
PATCHES["glm4-whole-head-rotated"] = config("rope_parameters", "partial_rotary_factor", value=1.0)
PATCHES["cohere-logit-scale-missing"] = config("logit_scale", value=1.0)
PATCHES["cohere2-window-unread"] = config("layer_types", value=["full_attention"] * 4)
PATCHES["oss-yarn-unread"] = config("rope_parameters", value={"rope_type": "default", "rope_theta": 150000.0})
PATCHES["oss-window-unread"] = config("sliding_window", value=64)
PATCHES["llama4-temperature-unread"] = config("attn_temperature_tuning", value=False)
PATCHES["llama4-chunks-unread"] = config("layer_types", value=["full_attention"] * 4)
PATCHES["falcon-h1-head-multiplier-missing"] = config("lm_head_multiplier", value=1.0)
PATCHES["nemotron-silu-for-relu2"] = config("hidden_act", value="silu")
PATCHES["deepseek-scale-of-latent-size"] = lambda model: attributes(model, "scaling", 40**-0.5)


@fault("oss-sinks-unread")
def _(model: Any) -> None:
    for sinks in weights(model, "sinks"):
        sinks.fill_(-1e4)


@fault("oss-swiglu-limit-unread")
def _(model: Any) -> None:
    attributes(model, "limit", 1e6)


@fault("oss-gate-up-not-interleaved")
def _(model: Any) -> None:
    for name in ("gate_up_proj", "gate_up_proj_bias"):
        for weight in weights(model, name):
            half = weight.shape[-1] // 2
            order = torch.arange(2 * half).view(2, half).T.flatten()
            weight.copy_(weight[..., order])


def routed(model: Any, choose: Callable[[Any, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Replaces the router of DeepSeek V3 by `choose`, which returns the scores to weigh by and the chosen experts."""
    for gate in classes(model, "DeepseekV3TopkRouter"):
        def forward(x: Tensor, gate: Any = gate) -> tuple[Tensor, Tensor, Tensor]:
            logits = torch.nn.functional.linear(x.view(-1, gate.hidden_dim).float(), gate.weight.float())
            scores, chosen = choose(gate, logits.sigmoid())
            picked = scores.gather(1, chosen)
            return logits, picked / (picked.sum(-1, keepdim=True) + 1e-20) * gate.routed_scaling_factor, chosen

        gate.forward = forward


def groups(gate: Any, biased: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns the experts chosen from the best groups."""
    parts = biased.view(len(biased), gate.num_group, -1)
    best = score(parts).topk(gate.topk_group, -1).indices
    mask = torch.zeros(parts.shape[:2]).scatter_(1, best, 1).bool()[..., None]
    return parts.masked_fill(~mask, -torch.inf).flatten(1).topk(gate.top_k, -1).indices


@fault("deepseek-bias-in-expert-weights")
def _(model: Any) -> None:
    def choose(gate: Any, scores: Tensor) -> tuple[Tensor, Tensor]:
        biased = scores + gate.e_score_correction_bias
        return biased, groups(gate, biased, lambda parts: parts.topk(2, -1).values.sum(-1))

    routed(model, choose)


@fault("deepseek-groups-by-largest-score")
def _(model: Any) -> None:
    routed(model, lambda gate, scores: (scores, groups(gate, scores + gate.e_score_correction_bias, lambda parts: parts.amax(-1))))


@fault("qwen3-next-norm-without-one")
def _(model: Any) -> None:
    for norm in classes(model, "Qwen3NextRMSNorm"):
        norm.weight.sub_(1)


@fault("qwen3-next-shared-gate-unread")
def _(model: Any) -> None:
    for gate in [module for name, module in model.named_modules() if name.endswith("shared_expert_gate")]:
        gate.forward = lambda x: torch.full((*x.shape[:-1], 1), 100.0)


@fault("qwen3-next-ba-shards-scrambled")
def _(model: Any) -> None:
    for weight in weights(model, "in_proj_ba.weight"):
        groups = weight.view(2, 2, 2, -1)  # key heads, (b, a), value heads of a key head
        weight.copy_(groups.transpose(0, 1).reshape(weight.shape).clone())


@fault("llama4-norm-over-all-heads")
def _(model: Any) -> None:
    for norm in classes(model, "Llama4TextL2Norm"):
        norm.forward = lambda x, norm=norm: x * torch.rsqrt(x.float().square().mean((-1, -2), keepdim=True) + norm.eps).type_as(x)


@fault("bloom-alibi-slopes-off-by-one")
def _(model: Any) -> None:
    from transformers.models.bloom import modeling_bloom as code

    old, right = model.transformer.forward, code._get_alibi_slopes

    def forward(*given: Any, **named: Any) -> Any:
        code._get_alibi_slopes = lambda heads, device: right(heads, device) * 2 ** (8 / heads)  # 2^(-8h/n) for 2^(-8(h+1)/n)
        try:
            return old(*given, **named)
        finally:
            code._get_alibi_slopes = right

    model.transformer.forward = forward


@fault("mpt-alibi-unread")
def _(model: Any) -> None:
    old = model.transformer.build_mpt_alibi_tensor
    model.transformer.build_mpt_alibi_tensor = lambda *given, **named: old(*given, **named) * 0


@fault("mamba-time-bias-twice")
def _(model: Any) -> None:
    for bias in weights(model, "dt_proj.bias"):
        bias.mul_(2)


@fault("mamba2-norm-before-gate")
def _(model: Any) -> None:
    for norm in classes(model, "MambaRMSNormGated"):
        def forward(x: Tensor, gate: Tensor | None = None, norm: Any = norm) -> Tensor:
            y = norm.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon))
            return y if gate is None else y * torch.nn.functional.silu(gate)

        norm.forward = forward


@fault("mamba-convolution-reshaped")
def _(model: Any) -> None:
    for weight in weights(model, "conv1d.weight"):
        inner, _, width = weight.shape
        weight.copy_(weight[:, 0].T.reshape(inner, 1, width).clone())


# --- runs ---


@cache
def model_folder(name: str) -> Path:
    """Returns the folder of a tiny model; it is made if it is missing."""
    from tiny_models import make, quiet

    quiet()
    folder = ROOT / "portbugs/data/models" / name
    if not (folder / "config.json").exists():
        make(name, folder)
    return folder


class MadeModules:
    """One run of a case, recorded by module."""

    def __init__(self, case: dict[str, Any], fault: bool = False, like: MadeModules | None = None, force: bool = False, plain: bool = False) -> None:
        from recorder import run
        from run_candidate import load_model, prompt

        self.case = case
        folder = model_folder(case["torch"])
        self.model = load_model(folder, case["dtype"])
        tokens = prompt(self.model)[0][:14]
        if fault:
            with torch.no_grad():
                self.model = PATCHES[case["id"]](self.model) or self.model
        given, decode = ([tokens], 0 if case.get("schedule", {}).get("decode") == 0 else 1) if like is None else (like.run.given, 0)
        self.run = run(self.model, given, decode, like.run.values if like and force else None)

    def write(self, path: Path, level: str) -> None:
        from recorder import Run, write_dump
        from run_candidate import settings

        write_dump(path, self.model, Run(self.run.given, self.kept(level)), settings(self.model, self.case["dtype"]))

    def kept(self, level: str) -> dict[Any, Tensor]:
        wanted = {"taps": lambda name: True, "blocks": lambda name: name == "logits" or LAYER.search(name),
                  "logits": lambda name: name == "logits"}[level]  # fmt: skip
        return {site: value for site, value in self.run.values.items() if wanted(site.module)}

    def values(self, level: str) -> dict[Any, Tensor]:
        return {(site.module, site.index, site.call): value for site, value in self.kept(level).items() if value.is_floating_point()}


def site_of(module: str, index: int) -> dict[str, Any]:
    layer = STAR.search(module)
    return {"tap": STAR.sub(".*", module, count=1), "layer": int(layer[1]) if layer else None, "pass": index}


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Finds the first module that the twin, given the faulty run's outputs, computes otherwise."""
    faulty = MadeModules(case, fault=True)
    twin = MadeModules(case, like=faulty, force=True)
    sites, passes = [], []
    for site, value in faulty.run.values.items():
        other = twin.run.values.get(site)
        if other is None or other.shape != value.shape or not torch.equal(value, other):
            sites.append(site_of(site.module, site.index))
            passes.append(site.index)
    if not sites:
        raise ValueError(f"{case['id']}: the fault changes no value")
    own = MadeModules(case, like=faulty)
    levels = [level for level in ("taps", "blocks", "logits")
              if any(not torch.equal(value, own.run.values[site]) for site, value in faulty.kept(level).items() if site in own.run.values)]  # fmt: skip
    count = len(faulty.run.given)
    wrong = sorted(set(passes))
    return {"site": sites[0], "passes": "all" if len(wrong) == count else "prompt" if wrong == [0] else wrong, "levels": levels}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, model in json.loads(sys.argv[1]).items():
        try:
            print(name, answer({"id": name, "torch": model, "dtype": "f32"}))
        except Exception as error:
            print(name, type(error).__name__, str(error)[:300])
