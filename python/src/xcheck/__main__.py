"""Runs the xcheck program: `python -m xcheck check --model M --candidate D`."""

from __future__ import annotations

import subprocess
import sys

from .errors import UsageError
from .program import find


def main() -> int:
    """Returns the exit code of the program."""
    try:
        return subprocess.run([find(), *sys.argv[1:]], check=False).returncode
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
