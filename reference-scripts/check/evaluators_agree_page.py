"""Writes the page of `evaluators_agree.py` from its JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]
INTRO = """# The two evaluators compared

Use this page to see how far our engine (`--evaluator native`) and torch (`--evaluator torch`) agree. Both evaluate the
same models in `f64`, with separate code. If they differ, one of them has a fault, or one of the limits below applies.

transformers ran each shipped Hugging Face model of a native architecture in f32 and bf16, with
{prompt}, without a fault and with faults injected into the model. Each run was
recorded twice: as taps, which our engine judged, and as outputs of modules, which torch judged. The first wrong sites
agree if the module computes the tap. If no module returns the tap, such as a key after RoPE, the module of the tap's
operation counts, or the next module that reads the tap. `site_names.py` decides this from the order in which a correct
model computes taps and modules.

A fault that changes no value of a model in a type is left out. `pass` for a fault means that it is below the error
bounds.

To repeat it (half an hour on two cores), run this in an environment with torch and transformers:

```sh
cargo build --release
python reference-scripts/check/evaluators_agree.py
```

The results are in `reference-scripts/check/evaluators_agree.json`. They were measured with
{versions}.

These models were measured with a later program than the others: tiny-llama3, tiny-gemma3, tiny-gemma4, tiny-gptoss,
tiny-qwen3-yarn, tiny-qwen2moe, tiny-mixtral, tiny-deepseekv2, tiny-lfm2moe and tiny-llama4-chunks.
"""
LIMITS = """## Limits

- **Small faults in bf16.** Our engine knows where transformers rounds, and compares bits. torch's error bound is
  several bf16 steps. If a fault is smaller than the bound, torch detects it at a later module or not at all. The table
  shows the error at the module divided by torch's bound; it is below 1.
- **Values between modules.** Granite multiplies the embedding outside of any module. The norm that reads the product
  cancels a wrong factor. torch therefore detects a wrong factor only at `post_attention_layernorm`. The table counts
  this as the same site.
- **Choices of experts.** Recorded modules contain the logits of a router, and not the experts that it chooses. If two
  logits are equal in bf16, or differ by less than their rounding, the torch evaluator tries each possible choice of
  experts. If no choice explains the values, for example because of a fault inside the experts, the evaluator judges only
  the other tokens. Our engine reads the chosen experts from the taps.
- **Order.** Gemma 3n and Gemma 4 compute an embedding for each layer before the first layer. Our engine judges it in
  the layer that reads it, as `layer_input`. The table counts `model.per_layer_projection_norm` as the same site if
  `layer_input` is wrong.
"""
ALL = """## All runs

A cell shows the first wrong tap and the first wrong module, each with its layer, and with its pass if it is not 0.
Differences are bold.
"""
REASONS = {
    "bf16": "below torch's bound in bf16",
    "tie": "rounding can decide which experts are chosen",
    None: "**not explained**",
}


def written(results: dict[str, Any]) -> str:
    """Returns the page."""
    rows = results["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    intro = INTRO.format(versions=versions, prompt=results["run"])
    parts = [intro, "## Results\n", *counts(rows), "\n## Differences\n", *differences(rows), ""]
    parts += [LIMITS, ALL]
    for model in dict.fromkeys(row["model"] for row in rows):
        parts += [f"### {model}\n", *table([row for row in rows if row["model"] == model]), ""]
    return "\n".join(parts).rstrip() + "\n"


def as_json(results: dict[str, Any]) -> str:
    """Returns the results as JSON, with a run in each line."""
    rows = ",\n".join(json.dumps(row) for row in results["rows"])
    others = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in results.items() if key != "rows"]
    return "{" + ",\n".join([*others, f'"rows": [\n{rows}\n]']) + "}\n"


def counts(rows: list[Row]) -> Iterable[str]:
    heads = ("type", "correct runs", "pass with both", "faults", "fail with both", "same verdict", "and first site")
    yield f"| {' | '.join(heads)} |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        mine = [row for row in rows if row["dtype"] == dtype]
        correct = [row for row in mine if row["fault"] == "none"]
        faults = [row for row in mine if row["fault"] != "none"]
        both = sum(row["native"]["verdict"] == row["torch"]["verdict"] == "pass" for row in correct)
        failed = sum(row["native"]["verdict"] == row["torch"]["verdict"] == "fail" for row in faults)
        same = sum(row["native"]["verdict"] == row["torch"]["verdict"] for row in faults)
        agree = sum(row["how"] is not None for row in faults)
        yield f"| {dtype} | {len(correct)} | {both} | {len(faults)} | {failed} | {same} | {agree} |"


def differences(rows: list[Row]) -> Iterable[str]:
    yield "| model | type | fault | our engine | torch | torch's error there | reason |"
    yield "|---|---|---|---|---|---:|---|"
    for row in rows:
        if row["how"] is None:
            there = "" if row["torch_there"] is None else f"{row['torch_there']:.2g} of its bound"
            cells = [row["model"], row["dtype"], row["fault"], shown(row["native"]), shown(row["torch"]), there]
            yield f"| {' | '.join([*cells, REASONS[reason(row)]])} |"


def reason(row: Row) -> str | None:
    """Returns the limit that explains a difference, by what was measured."""
    if row["tied"]:
        return "tie"
    below = row["torch_there"] is not None and row["torch_there"] <= 1
    return "bf16" if row["dtype"] == "bf16" and below and row["native"]["verdict"] == "fail" else None


def shown(result: Row) -> str:
    """Describes a verdict and its first wrong site."""
    if "tap" not in result:
        return str(result["verdict"])
    layer = "" if result["layer"] is None else f" {result['layer']}"
    number = f", pass {result['pass']}" if result["pass"] else ""
    return f"`{short(result['tap'])}`{layer}{number}"


def short(site: str) -> str:
    """Returns a module's path within its layer."""
    return site.split(".*.")[-1]


def table(rows: list[Row]) -> Iterable[str]:
    types = list(dict.fromkeys(row["dtype"] for row in rows))
    yield f"| fault | {' | '.join(types)} |"
    yield f"|---|{'---|' * len(types)}"
    for fault in dict.fromkeys(row["fault"] for row in rows):
        found = {row["dtype"]: row for row in rows if row["fault"] == fault}
        cells = [cell(found[dtype]) if dtype in found else "–" for dtype in types]
        yield f"| {fault} | {' | '.join(cells)} |"


def cell(row: Row) -> str:
    pair = [shown(row["native"]), shown(row["torch"])]
    text = pair[0] if "tap" not in row["native"] and pair[0] == pair[1] else " / ".join(pair)
    return text if row["how"] is not None else f"**{text}**"
