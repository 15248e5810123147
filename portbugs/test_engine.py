"""The engine without faults is transformers: `python -m pytest portbugs`."""

import json
from pathlib import Path

import pytest
import torch
from engine import Engine, Rows
from patches import FAULTS
from runs import ROOT, Schedule, run
from safetensors import safe_open

DUMPS = [dump for place in ("checkpoints/*/dumps", "tests/data/architectures/*/dumps")
         for dump in sorted(ROOT.glob(place + "/transformers-f32.safetensors"))]  # fmt: skip
OTHER = ("tiny-bitnet", "tiny-bitnet-b158", "tiny-gemma3-vision", "tiny-llama2c")  # no case uses these


@pytest.mark.parametrize("dump", [dump for dump in DUMPS if dump.parts[-3] not in OTHER], ids=lambda dump: dump.parts[-3])
def test_taps_equal_those_of_transformers_up_to_rounding(dump: Path) -> None:
    file = safe_open(dump, "pt")
    head = json.loads(file.metadata()["xcheck"])
    passes = run(Engine(dump.parent.parent / "hf", "f32"), Schedule([head["input"]["tokens"]]), given=[rows(one) for one in head["passes"]])
    compared = 0
    for tensor in (one for one in head["tensors"] if "pass" in one):
        theirs, ours = file.get_tensor(tensor["file"].removesuffix(".npy")).float(), passes[tensor["pass"]].taps.get((tensor["tap"], tensor.get("layer")))
        if ours is None or tensor["tap"] == "attn_scores":  # masked scores are recorded as other large numbers
            continue
        ours = ours.float()
        if tensor["tap"] == "experts":
            theirs, ours = theirs.sort(-1).values, ours.sort(-1).values
        error = (theirs - ours).abs().max() / theirs.abs().max().clamp_min(1e-9)
        assert error < 1e-5, (tensor["tap"], tensor.get("layer"), tensor["pass"])
        compared += 1
    assert compared > 0.8 * len(head["tensors"])


def rows(one: dict) -> Rows:
    count = len(one["tokens"])
    return Rows(one["tokens"], [0] * count, list(range(one["position"], one["position"] + count)))


def test_every_fault_changes_a_value() -> None:
    from make import Made, entries, same

    torch.set_num_threads(1)
    for case in entries("faults"):
        if case["id"] in FAULTS:
            faulty = Made(case, fault=True)
            twin = Made(case, like=faulty)
            changed = {tap for one, other in zip(faulty.passes, twin.passes) for (tap, layer), value in one.taps.items()
                       if not same(value, other.taps.get((tap, layer)))}  # fmt: skip
            assert changed, case["id"]
