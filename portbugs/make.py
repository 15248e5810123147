"""Makes the dumps of PortBugs from seeds.

    python make.py                       # faults, all taps, into data/: 38 MB
    python make.py --twins               # the twins and the correct variants too
    python make.py --only ID --level blocks --out DIR
    python make.py --answers             # computes `site`, `passes` and `levels` of faults.json again
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import modules
import torch
from engine import Engine
from patches import FAULTS
from runs import LEVELS, Pass, Schedule, follow, manifest, model_folder, run, tensors_of, write
from variants import apply

HERE = Path(__file__).resolve().parent


def entries(name: str) -> list[dict[str, Any]]:
    return json.loads((HERE / f"{name}.json").read_text())[name]


def schedule_of(case: dict[str, Any], vocabulary: int, fault: bool) -> Schedule:
    """Returns the schedule of a case; its tokens follow from the seed."""
    given = dict(case.get("schedule", {}))
    if "tokens" in case:
        return Schedule([case["wrong_tokens"] if fault else case["tokens"]], **{"decode": 3, **given})
    lengths = given.pop("prompts", [14])
    seed = random.Random(case["id"])
    prompts = [[1, *(seed.randrange(3, vocabulary) for _ in range(length - 1))] for length in lengths]
    return Schedule(prompts, **{"decode": 3, **given})


class Made:
    """One run of a case: the engine, its schedule and its recorded passes."""

    def __init__(self, case: dict[str, Any], fault: bool = False, like: Made | None = None, force: bool = False, plain: bool = False) -> None:
        self.case = case
        self.engine = Engine(model_folder(case["model"]), case.get("dtype", "f32"))
        self.schedule = schedule_of(case, self.engine.embedding.shape[0], fault)
        if not plain:
            apply(self.engine, case.get("features", {}))
        if fault and "wrong_tokens" not in case:
            FAULTS[case["id"]](self.engine)
        given = [one.rows for one in like.passes] if like else None
        self.passes: list[Pass] = run(self.engine, self.schedule, given, like.passes if like and force else None)

    def write(self, path: Path, level: str) -> None:
        write(path, manifest(self.engine, self.schedule, self.passes), tensors_of(self.engine, self.passes), level, self.case,
              [rows for rows, _ in follow(self.passes)])


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Finds the first wrong site: the first value that the twin, continuing from the faulty run's values, computes otherwise."""
    if "wrong_tokens" in case:
        return {"site": {"tap": "tokens", "layer": None, "pass": 0}, "passes": "all", "levels": list(LEVELS)}
    if "torch" in case:
        return modules.answer(case)
    faulty = Made(case, fault=True)
    twin = Made(case, like=faulty, force=True)
    site, passes = None, []
    for index, (wrong, right) in enumerate(zip(faulty.passes, twin.passes)):
        for (tap, layer), value in wrong.taps.items():
            other = right.taps.get((tap, layer))
            if same(value, other) or tap == "attn_scores" and torch.allclose(value, other, 1e-5, 1e-5):
                continue  # scores of keys that attention does not read have another rounding
            site = site or {"tap": "token_logprobs" if tap == "every_logprob" else tap, "layer": layer, "pass": index}
            passes.append(index)
    if site is None:
        raise ValueError(f"{case['id']}: the fault changes no value")
    wrong = sorted(set(passes))
    return {"site": site, "passes": "all" if len(wrong) == len(faulty.passes) else "prompt" if wrong == [0] else wrong,
            "levels": visible(faulty, Made(case, like=faulty))}  # fmt: skip


def visible(faulty: Made, twin: Made) -> list[str]:
    """Lists the levels of recording at which a value differs from the twin's on the same tokens."""
    following = [{name: value for name, (_, value) in tensors_of(run.engine, run.passes).items()} for run in (faulty, twin)]
    changed = {tap for (tap, index, layer), value in following[0].items() if not same(value, following[1].get((tap, index, layer)))}
    return [level for level, taps in LEVELS.items() if changed & set(taps or changed)]


def same(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    return b is not None and torch.equal(a, b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "data")
    parser.add_argument("--level", choices=LEVELS, default="taps")
    parser.add_argument("--only", nargs="*", help="ids of cases")
    parser.add_argument("--twins", action="store_true", help="also the twins, and the variants")
    parser.add_argument("--references", action="store_true", help="a plain run on the same tokens beside each dump")
    parser.add_argument("--answers", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.answers:
        return write_answers(args.only)
    args.out.mkdir(parents=True, exist_ok=True)
    roles = [(case, role) for case in entries("faults") for role in ("fault", "twin")]
    roles += [(case, "variant") for case in entries("variants")]
    if args.only:
        roles = [(case, role) for case, role in roles if case["id"] in args.only]
    elif not args.twins:
        roles = [(case, role) for case, role in roles if role == "fault"]
    index = [make(case, role, args) for case, role in roles]
    (args.out / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    return None


def make(case: dict[str, Any], role: str, args: argparse.Namespace) -> dict[str, Any]:
    """Writes the dump of a run, and returns its row of index.json."""
    name = case["id"] + (".twin" if role == "twin" else "")
    model = modules.model_folder(case["torch"]) if "torch" in case else model_folder(case["model"])
    row = {"id": case["id"], "role": role, "level": args.level, "model": str(model), "dump": f"{name}.safetensors"}
    if "torch" in case and args.level == "logprobs":
        return {**row, "dump": None}
    run = made(case, fault=role == "fault")
    run.write(args.out / row["dump"], args.level)
    if args.references:
        row["reference"] = f"{name}.reference.safetensors"
        made(case, like=run, plain=True).write(args.out / row["reference"], args.level)
    return {**row, "prompt": case["prompt"]} if "prompt" in case else row


def made(case: dict[str, Any], **how: Any) -> Made | modules.MadeModules:
    return (modules.MadeModules if "torch" in case else Made)(case, **how)


def write_answers(only: list[str] | None) -> None:
    path = HERE / "faults.json"
    whole = json.loads(path.read_text())
    for case in whole["faults"]:
        if not only or case["id"] in only:
            case.update(answer(case))
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
