"""The report of a comparison, as the xcheck program wrote it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import page
from .errors import VerdictError
from .frames import frame

NOT_CAUSES = ("partial", "unknown", "unfinished")  # kinds of findings that only describe a failure
REFUTED = ("fail", "inconclusive")  # verdicts of `confirm` that show that a cause explains only some failures


@dataclass(frozen=True)
class Cause:
    """A named fault that reproduces the failing values."""

    name: str
    """Kind of the fault; `xcheck causes` lists them."""
    supposed: str | None
    """What the engine computes differently, as a value of `--suppose`; None if the option cannot express it."""
    sentence: str
    """What is wrong and where, in words."""
    confirm: str | None
    """The command that repeats the comparison with the fault injected; None if `--suppose` cannot express it."""
    confirmed: str | None
    """The verdict of that command: `pass` if the cause explains everything; None if the program did not run it."""


class Report:
    """The result of `check`, `run`, `compare` or `probe`.

    data: the content of `report.json` (docs/reference/report-format.md lists the fields).
    path: the folder with report.json, report.html, report.md and junit.xml.
    """

    def __init__(self, data: dict[str, Any], path: str | os.PathLike[str]):
        self.data = data
        self.path = Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Reads the report in the folder `path`, which `xcheck --report` wrote."""
        return cls(json.loads((Path(path) / "report.json").read_text(encoding="utf-8")), path)

    @property
    def verdict(self) -> str:
        """`pass`, `fail` or `inconclusive`: the worst verdict over all references; `error` if nothing was judged."""
        verdict: str = self.data["verdict"]
        return verdict

    @property
    def passed(self) -> bool:
        """True if the verdict is pass."""
        return self.verdict == "pass"

    @property
    def references(self) -> list[dict[str, Any]]:
        """The compared dumps, as in `report.json`."""
        references: list[dict[str, Any]] = self.data["references"]
        return references

    @property
    def sentence(self) -> str | None:
        """What is wrong, in one sentence; None after a pass."""
        if self.passed:
            return None
        return next(self._sentences(), f"The verdict is {self.verdict}.")

    def _sentences(self) -> Iterator[str]:
        """The sentences that explain the verdict: of the dumps, of the whole report, and of a server's checks."""
        if self.data.get("error"):
            yield self.data["error"]
        yield from (each.get("sentence") or each["reason"] for each in self._decisive())
        if self.data["reason"]:
            yield self.data["reason"]
        for check in self.data.get("server", {}).get("checks", []):
            if check["verdict"] == self.verdict:
                yield f"{check['check']}: {check['found']}"

    def _decisive(self) -> list[dict[str, Any]]:
        """The dumps that have the verdict of the report."""
        return [each for each in self.references if not self.passed and each["verdict"] == self.verdict]

    @property
    def first_divergence(self) -> dict[str, Any] | None:
        """The first failing site (`tap`, `layer`, `pass`, ...), as in `report.json`; None without a failure."""
        return next((each["first_divergence"] for each in self.references if each["first_divergence"]), None)

    @property
    def causes(self) -> list[Cause]:
        """The causes that reproduce the failing values, in the order of the report."""
        return [
            Cause(*(finding.get(name) for name in ("kind", "supposed", "what", "confirm", "confirmed")))
            for each in self._decisive()
            for finding in each["findings"]
            if finding["kind"] not in NOT_CAUSES
        ]

    @property
    def sites(self) -> Any:
        """One row per compared site: a pandas or polars frame if one of them is installed, else a list of dicts."""
        return frame([_site(each["name"], row) for each in self.references for row in each["results"]])

    def to_html(self) -> str:
        """Returns the page `report.html`, which needs no network."""
        return (self.path / "report.html").read_text(encoding="utf-8")

    def raise_for_verdict(self) -> None:
        """Raises `VerdictError` unless the verdict is pass."""
        __tracebackhide__ = True
        if not self.passed:
            raise VerdictError(self)

    def __str__(self) -> str:
        lines = [f"{self.verdict.upper()}: {self.sentence}" if self.sentence else self.verdict]
        lines += [f"  {name + ':':<9} {text}" for name, text in self._details()]
        return "\n".join([*lines, f"  report:   {self.path / 'report.html'}"])

    def _details(self) -> Iterator[tuple[str, str]]:
        """The first cause and the command that confirms it, unless that failed; or else the program's next step."""
        cause = next(iter(self.causes), None)
        if cause and cause.confirmed not in REFUTED:
            yield "cause", cause.sentence
            if cause.confirm:
                yield "confirm", cause.confirm
                return
        for each in self._decisive()[:1]:
            if each["remedy"]:
                yield "remedy", each["remedy"]
            if each["next"]:
                yield "next", each["next"][0]

    def __repr__(self) -> str:
        return f"<xcheck.Report {self.verdict}: {self.path}>"

    def _repr_html_(self) -> str:
        return page.summary(self.verdict, self.sentence, self.references)


def _site(reference: str, row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row of `results` as a flat row. The errors are the judged ones: local if measured, else accumulated."""
    error = page.field(row, "local") or page.field(row, "accumulated") or {}
    sides = [row["exact"][side] for side in ("candidate", "reference")] if row["exact"] else []
    return {
        "reference": reference,
        **{name: row[name] for name in ("checkpoint", "tap", "layer", "pass", "position", "tokens", "verdict")},
        **{name: page.number(error.get(name)) for name in ("max_abs", "mean_abs", "cosine")},
        "err_bound": page.number(page.field(row, "bound_ratio")),
        "over": sum(page.field(side, "over") for side in sides) if sides else None,
        "reason": row["reason"],
    }
