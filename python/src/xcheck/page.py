"""The summary of a report in a notebook: the verdict, the sentence, and a table of checkpoints."""

from __future__ import annotations

from html import escape
from typing import Any

COLOURS = {"pass": "#1a7f37", "tie": "#1a7f37", "fail": "#cf222e", "inconclusive": "#9a6700", "known": "#9a6700"}
FORMER = {
    "local": "introduced",
    "accumulated": "total",
    "bound_ratio": "headroom",
    "over": "beyond",
}  # names in version 3
HEAD = ("checkpoint", "worst site", "max abs", "err/bound", "over", "verdict")


def summary(verdict: str, sentence: str | None, references: list[dict[str, Any]]) -> str:
    """Returns the summary as HTML."""
    head = f"<p>{_verdict(verdict)} {escape(sentence or '')}</p>"
    return head + "".join(f"<p>{escape(each['name'])}</p>{_table(each)}" for each in references)


def _table(reference: dict[str, Any]) -> str:
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    return f"<table><tr>{head}</tr>{''.join(map(_row, reference['checkpoints']))}</table>"


def _row(checkpoint: dict[str, Any]) -> str:
    figures = field(checkpoint, "local") or field(checkpoint, "accumulated") or {}
    cells = (
        escape(checkpoint["checkpoint"]),
        escape(_site(checkpoint["worst"])),
        _figure(figures.get("max_abs")),
        _figure(field(checkpoint, "bound_ratio")),
        _figure(field(checkpoint, "over")),
        _verdict(checkpoint["verdict"]) if checkpoint["worst"] else "no data",
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _site(site: dict[str, Any] | None) -> str:
    """Returns a site as the program's table has it: `q_rope L0 p0`."""
    if site is None:
        return ""
    layer = "" if site["layer"] is None else f" L{site['layer']}"
    part = "" if site["pass"] is None else f" p{site['pass']}"
    return f"{site['tap']}{layer}{part}"


def _verdict(verdict: str) -> str:
    colour = COLOURS.get(verdict, "inherit")
    return f'<b style="color:{colour}">{escape(verdict.upper() if verdict == "fail" else verdict)}</b>'


def _figure(value: Any) -> str:
    found = number(value)
    return "" if found is None else f"{found:.2g}" if isinstance(found, float) else str(found)


def field(row: dict[str, Any], name: str) -> Any:
    """Returns a field of `report.json`, version 4 or 3."""
    return row[name if name in row else FORMER[name]]


def number(value: Any) -> Any:
    """Returns a number of `report.json`, where `"nan"`, `"inf"` and `"-inf"` are strings."""
    return float(value) if isinstance(value, str) else value
