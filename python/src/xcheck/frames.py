"""Rows as a data frame of the installed library."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def frame(rows: list[dict[str, Any]]) -> Any:
    """Returns the rows as a pandas or polars frame, whichever is installed (pandas first), else as they are."""
    if find_spec("pandas"):
        return import_module("pandas").DataFrame(rows).convert_dtypes()
    if find_spec("polars"):
        return import_module("polars").DataFrame(rows, infer_schema_length=None)
    return rows
