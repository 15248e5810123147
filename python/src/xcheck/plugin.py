"""The pytest plugin: the fixture `xcheck_dump`, the option `--xcheck-report`, and properties in JUnit files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from .dump import Dump
from .testing import CURRENT, RunningTest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("xcheck")
    group.addoption("--xcheck-report", metavar="DIR", help="Keep the report of each assert_faithful in a folder of DIR")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lets assert_faithful know the test that calls it."""
    folders = _folders(item.config.getoption("--xcheck-report"), item.nodeid)

    def record(name: str, value: str) -> None:
        item.user_properties.append((name, value))

    token = CURRENT.set(RunningTest(lambda: next(folders), record))
    yield
    CURRENT.reset(token)


def _folders(root: str | None, test: str) -> Iterator[Path | None]:
    """Yields a folder for each report of a test: its name, then its name with -2, -3, ..."""
    name = re.sub(r"[^\w.-]+", "-", test).strip("-")
    for number in count(1):
        yield Path(root, name if number == 1 else f"{name}-{number}").absolute() if root else None


@pytest.fixture
def xcheck_dump(tmp_path: Path) -> Callable[..., Dump]:
    """Opens a dump in the folder of the test: `with xcheck_dump(tokens=ids, architecture="llama") as dump:`.

    Takes the arguments of `xcheck.Dump`, of which none but `architecture` (or `config`) is required. The closed dump is
    a candidate for `xcheck.assert_faithful`.
    """

    def open_dump(out: str = "candidate.safetensors", *, producer: str = "candidate", **facts: Any) -> Dump:
        return Dump(tmp_path / out, producer=producer, **facts)

    return open_dump
