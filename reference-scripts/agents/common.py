"""Differences between two dumps of one engine, for the scripts of this folder."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import dump_reader

# An engine whose values differ by more is wrong. It is a share of the largest value of the array. Correct engines of two languages
# differ by up to 4.3e-6, and the faults change values by more than 2e-5.
LARGEST = 2e-5


def difference(path: Path, base: Path, passes: int | None = None) -> tuple[float, str]:
    """The largest difference of any array that the correct engine recorded, and its site; `passes` limits it to the first ones."""
    manifest, records = dump_reader.read(path)
    right_manifest, right = dump_reader.read(base)
    if manifest["passes"][0] != right_manifest["passes"][0] or len(manifest["passes"]) != len(right_manifest["passes"]):
        return float("inf"), "other passes"
    arrays = {(record.tap, record.pass_index, record.layer): record.values for record in records}
    worst = (0.0, "-")
    for record in right:
        # Scores of masked keys may be anything; `attn_weights` shows the others.
        if record.tap == "attn_scores" or (passes is not None and record.pass_index not in range(passes)):
            continue
        site = record.key
        values = arrays.get((record.tap, record.pass_index, record.layer))
        if values is None or values.shape != record.values.shape:
            return float("inf"), f"no {site}"
        expected = record.values.astype("f8")
        with np.errstate(invalid="ignore"):
            share = np.abs(values - expected).max() / max(np.abs(expected).max(), 1e-30)
        share = float("inf") if np.isnan(share) else float(share)
        worst = max(worst, (share, site), key=lambda found: found[0])
    if passes is None and manifest.get("generated") != right_manifest.get("generated"):
        worst = max(worst, (1.0, "generated"), key=lambda found: found[0])
    return worst
