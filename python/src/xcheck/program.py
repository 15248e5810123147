"""Finds the xcheck program, and runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .errors import UsageError

VERDICTS = (0, 1, 3)  # exit codes: pass, fail, inconclusive
USAGE = 2


def find() -> str:
    """Returns the path of the program: that in the variable XCHECK, else next to this Python, else on PATH."""
    named = os.environ.get("XCHECK")
    if named:
        program = shutil.which(named)
        if program is None:
            raise UsageError(f"XCHECK={named} is not a program: set it to the path of xcheck")
        return program
    for folder in (*_script_folders(), None):
        program = shutil.which("xcheck", path=folder)
        if program is not None:
            return program
    raise UsageError(
        "no xcheck program next to this Python or on PATH: run `pip install .` in a clone of xcheck, "
        "or set XCHECK to the path of the program"
    )


def _script_folders() -> Iterator[str]:
    """The folders where pip puts programs: of this environment, and of the user."""
    yield sysconfig.get_path("scripts")
    user = f"{os.name}_user"
    if user in sysconfig.get_scheme_names():
        yield sysconfig.get_path("scripts", user)


def run_json(arguments: Sequence[str]) -> Any:
    """Runs the program with `--format json` and returns the document that it prints."""
    done = subprocess.run([find(), *arguments, "--format", "json"], capture_output=True, encoding="utf-8", check=False)
    if done.returncode == USAGE:
        raise UsageError(json.loads(done.stdout)["error"])
    if done.returncode not in VERDICTS:
        raise RuntimeError(f"xcheck ended with code {done.returncode}: {done.stderr.strip() or 'no message'}")
    return json.loads(done.stdout)


def arguments(options: dict[str, Any]) -> list[str]:
    """Returns keyword arguments as options of the program.

    A name is written with `_` for `-`, and `pass_` for `pass`. True sets a flag, None and False leave the option out.
    Numbers in a list are joined by commas; of other lists, each value sets the option once.
    """
    found: list[str] = []
    for name, value in options.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        if value is True:
            found.append(option)
        elif value is not None and value is not False:
            found += [word for text in _texts(value) for word in (option, text)]
    return found


def _texts(value: Any) -> list[str]:
    if isinstance(value, os.PathLike):
        return [os.fspath(value)]
    if isinstance(value, str) or not isinstance(value, Iterable):
        return [str(value)]
    values = [text for each in value for text in _texts(each)]
    return [",".join(values)] if all(each.isdigit() for each in values) else values
