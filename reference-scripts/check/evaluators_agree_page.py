"""Writes the page and the JSON file of `evaluators_agree.py`."""

from __future__ import annotations
import json
from typing import Any


def as_json(rows, versions):
    return json.dumps({"versions": versions, "rows": rows}, indent=1)


def written(results):
    return ""
