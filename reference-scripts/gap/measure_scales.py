#!/usr/bin/env python3
"""Measures the size of rounding with the correct pairs of make_pairs.py, and how well the error model describes them.

For each pair of columns: the scale s, which is the root mean square difference of the log-odds, and quantiles of
|difference| / s in the classes of p. If the model holds, they do not depend on p. --plot writes an SVG file: quantiles of
difference / s in each class of p, of all pairs of a type, over the quantiles of a normal distribution.
"""

import argparse
import json
from pathlib import Path
from statistics import NormalDist

import numpy as np

CLASSES = [
    ("p > 0.9", -0.105, 0.0), ("0.5 to 0.9", -0.693, -0.105),
    ("0.14 to 0.5", -2.0, -0.693), ("p < 0.14", -99.0, -2.0),
]
PAIRS = [
    ("f32_cache", "f32_sdpa"), ("f32_cache", "f32_trl"), ("f32_eager", "f32_padded"), ("f16_cache", "f16_sdpa"),
    ("f16_cache", "f32_sdpa"), ("f16_cache", "f16_eager"), ("bf16_cache", "bf16_sdpa"), ("bf16_cache", "bf16_eager"),
    ("bf16_cache", "f32_sdpa"), ("bf16_cache", "bf16_autocast"), ("bf16_eager", "bf16_autocast"),
]
COLOURS = ["#1b6ca8", "#d1642c", "#3f8f4f", "#8b5fbf"]
REACH = 4.5  # largest value of the plot; larger ones are at its edge
STORAGE = 3e-6  # rounding of z - lse(z) in f32
SCALES = {"f32": 3.5e-5, "f16": 0.018, "bf16": 0.156}


def log_odds(logprob: np.ndarray) -> np.ndarray:
    return logprob - np.log(np.maximum(-np.expm1(np.minimum(logprob, 0)), STORAGE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path, nargs="+", help="files of make_pairs.py")
    parser.add_argument("--plot", type=Path, help="SVG file to write")
    options = parser.parse_args()
    classes = " | ".join(name for name, *_ in CLASSES)
    print(f"| model | pair | scale | mean abs Δ | {classes} | 99 % / s | max / s |")
    print("|---" * (6 + len(CLASSES)) + "|")
    largest: dict[str, float] = {}
    by_type: dict[str, list[list[np.ndarray]]] = {}
    for path in options.pairs:
        rows = [json.loads(line) for line in open(path)]
        for one, other in PAIRS:
            if one in rows[0] and other in rows[0]:
                kind = max((one.split("_")[0], other.split("_")[0]), key=list(SCALES).index)
                scale, text, classes = measured(rows, one, other, SCALES[kind])
                by_type.setdefault(kind, []).append(classes)
                largest[kind] = max(largest.get(kind, 0), scale)
                print(f"| {path.stem} | {one}, {other} | {text}")
    print("\nlargest scales:", {kind: f"{scale:.2e}" for kind, scale in largest.items()})
    if options.plot:
        panels = {k: [np.concatenate(of) for of in zip(*by_type[k])] for k in SCALES if k in by_type}
        options.plot.write_text(svg(panels))


def measured(rows: list[dict], one: str, other: str, usual: float) -> tuple[float, str, list[np.ndarray]]:
    """Returns the scale, a row of the table, and difference / scale in each class."""
    a, b = (np.array([row[name] for row in rows], dtype=float).ravel() for name in (one, other))
    rest = np.maximum(-np.expm1(np.minimum(np.minimum(a, b), 0)), STORAGE)
    value = (log_odds(a) - log_odds(b)) * (usual * rest) / np.hypot(usual * rest, STORAGE)
    scale = float(np.sqrt(np.mean(value**2)))
    mean = (a + b) / 2
    classes = [value[(mean > low) & (mean <= high)] / scale for _, low, high in CLASSES]
    cells = [f"{np.sqrt(np.mean(of**2)):.2f}" if len(of) >= 20 else "–" for of in classes]
    tail = f"{np.quantile(np.abs(value), 0.99) / scale:.1f} | {np.abs(value).max() / scale:.1f}"
    return scale, f"{scale:.2e} | {np.abs(a - b).mean():.1e} | " + " | ".join(cells) + f" | {tail} |", classes


def svg(panels: dict[str, list[np.ndarray]]) -> str:
    """Draws a panel for each type."""
    side, gap, top = 260, 40, 30
    place = lambda at, x, y: (  # noqa: E731
        gap + at * (side + gap) + side * (x + REACH) / (2 * REACH), top + side * (REACH - y) / (2 * REACH)
    )
    width, height = gap + len(panels) * (side + gap), top + side + 60
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for at, (kind, classes) in enumerate(panels.items()):
        (x0, y1), (x1, y0) = place(at, -REACH, -REACH), place(at, REACH, REACH)
        lines.append(f'<rect x="{x0:.0f}" y="{y0:.0f}" width="{side}" height="{side}" fill="none" stroke="#999"/>')
        lines.append(f'<path d="M{x0:.0f} {y1:.0f}L{x1:.0f} {y0:.0f}" stroke="#999" stroke-dasharray="4"/>')
        lines.append(f'<text x="{x0:.0f}" y="{y0 - 8:.0f}">{kind}</text>')
        for mark in range(-4, 5):
            (x, _), (_, y) = place(at, mark, 0), place(at, 0, mark)
            lines.append(f'<text x="{x:.0f}" y="{y1 + 15:.0f}" text-anchor="middle">{mark}</text>')
            lines.append(f'<text x="{x0 - 6:.0f}" y="{y + 4:.0f}" text-anchor="end">{mark}</text>')
        for colour, values in zip(COLOURS, classes):
            for x in np.linspace(-3, 3, 49):
                chance = NormalDist().cdf(x)
                if len(values) * min(chance, 1 - chance) < 3:
                    continue
                x, y = place(at, x, float(np.clip(np.quantile(values, chance), -REACH, REACH)))
                lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>')
    for at, ((name, *_), colour) in enumerate(zip(CLASSES, COLOURS)):
        name = name.replace("<", "&lt;").replace(">", "&gt;")
        x = gap + 150 * at
        lines.append(f'<circle cx="{x}" cy="{height - 15}" r="4" fill="{colour}"/>')
        lines.append(f'<text x="{x + 10}" y="{height - 11}">{name if name[0] == "p" else "p " + name}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
