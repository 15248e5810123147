"""Checks a submission: the verdicts of another judge over PortBugs, and prints its figures.

A submission must hold a verdict for every fault, twin and variant at every level that it names. Anything else is refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from figures import HEADER, Figures

HERE = Path(__file__).resolve().parent
LEVELS = ("taps", "blocks", "logits", "logprobs")
VERDICTS = ("pass", "fail", "inconclusive", "error")


def cases() -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    """Returns the version of the set, and its runs by id and role."""
    faults, variants = (json.loads((HERE / f"{name}.json").read_text()) for name in ("faults", "variants"))
    runs = {(case["id"], role): case for case in faults["faults"] for role in ("fault", "twin")}
    return faults["version"], runs | {(case["id"], "variant"): case for case in variants["variants"]}


def levels_of(case: dict[str, Any], role: str, level: str) -> bool:
    """Tests that a run exists at a level: models of other architectures record no log-probabilities."""
    return "torch" not in case or level != "logprobs"


def problems(submission: Any) -> list[str]:
    """Lists what is wrong with a submission."""
    version, runs = cases()
    if not isinstance(submission, dict) or not isinstance(submission.get("results"), list):
        return ["a submission is an object with 'tool', 'version', 'set', 'levels' and 'results', a list"]
    found = [f"'{name}' must be a text that is not empty" for name in ("tool", "version")
             if not (isinstance(submission.get(name), str) and submission[name].strip())]  # fmt: skip
    if submission.get("set") != version:
        found.append(f"'set' is {submission.get('set')!r}, expected {version}: the version in faults.json")
    levels = submission.get("levels")
    if not isinstance(levels, list) or not levels or any(level not in LEVELS or levels.count(level) > 1 for level in levels):
        return [*found, f"'levels' must be a list of {', '.join(LEVELS)}, each at most once"]
    expected = {(name, role, level) for (name, role), case in runs.items() for level in levels if levels_of(case, role, level)}
    seen: set[tuple[Any, Any, Any]] = set()
    for place, row in enumerate(submission["results"]):
        key = tuple(row.get(name) for name in ("id", "role", "level")) if isinstance(row, dict) else (None, None, None)
        found += [f"results[{place}]: {problem}" for problem in row_problems(row, key, expected, seen)]
        seen |= {key} & expected if all(isinstance(part, str) for part in key) else set()
    missing = sorted(expected - seen)
    if missing:
        found.append(f"{len(missing)} verdicts are missing, the first: {' '.join(missing[0])}")
    return found


def row_problems(row: Any, key: tuple[Any, Any, Any], expected: set[tuple[str, str, str]], seen: set[Any]) -> list[str]:
    if not all(isinstance(part, str) for part in key) or key not in expected:
        return [f"no such run: id {key[0]!r}, role {key[1]!r}, level {key[2]!r}"]
    found = ["a second verdict of the same run"] if key in seen else []
    if row.get("verdict") not in VERDICTS:
        found.append(f"verdict {row.get('verdict')!r}, expected one of {', '.join(VERDICTS)}")
    site = row.get("site")
    if site is not None and not is_site(site):
        found.append("'site' must be null or an object with 'tap' (a text), 'layer' (a number, null outside of layers) and 'pass'")
    causes = row.get("causes", [])
    if not isinstance(causes, list) or not all(isinstance(cause, str) for cause in causes):
        found.append("'causes' must be a list of texts")
    seconds = row.get("seconds", 0)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
        found.append("'seconds' must be a number of at least 0")
    if row.get("verdict") == "pass" and (site or causes):
        found.append("a run that passes has no site and no causes")
    return found


def is_site(site: Any) -> bool:
    """Tests a site's fields. JSON's true and false are no numbers."""
    if not isinstance(site, dict) or not isinstance(site.get("tap"), str) or "layer" not in site:
        return False
    counts = [site.get("pass"), *([] if site["layer"] is None else [site["layer"]])]
    return all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts)


def check(path: Path) -> None:
    """Prints the figures of a submission, or what is wrong with it; ends with exit code 1 then."""
    try:
        submission = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")
    found = problems(submission)
    if found:
        more = f"\n... and {len(found) - 20} more" if len(found) > 20 else ""
        sys.exit(f"{path}: refused\n" + "\n".join(found[:20]) + more)
    print(HEADER, *submission_rows(submission), sep="\n")


def submission_rows(submission: dict[str, Any]) -> list[str]:
    """Returns a row of the page's table for each level of a checked submission."""
    _, runs = cases()
    table = []
    for level in submission["levels"]:
        rows = [(runs[row["id"], row["role"]], row["role"], {"site": None, "causes": [], **row})
                for row in submission["results"] if row["level"] == level]  # fmt: skip
        table.append(Figures(rows, level).row(submission["tool"], causes=True))
    return table


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python submission.py FILE.json")
    check(Path(sys.argv[1]))
