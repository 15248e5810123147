"""Runs cases in several processes within a time budget, and packs what they wrote.

Each process claims the next case by creating a file. A CUDA error leaves a process unusable: it starts itself again.
"""

import os
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

PACKS, PACK_BYTES = 7, 18_000_000
SECONDS_TO_FINISH = 50  # of a running case, once the time budget is spent


@dataclass(frozen=True)
class Case:
    """A dump to make: its path below the output folder, and the function that writes it."""

    name: str
    make: Callable[[Path], None]


def work(cases: list[Case], out: Path, deadline: float) -> None:
    """Makes the cases that no other process has claimed."""
    claims = out / "claims"
    for number, case in enumerate(cases):
        if time.time() > deadline:
            return
        try:
            (claims / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        make(case, out)


def make(case: Case, out: Path) -> None:
    """Makes one case, and writes one line: its time, or its error."""
    start, error = time.monotonic(), None
    path = out / "dumps" / case.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with (out / f"log-{os.getpid()}").open("a") as log, redirect_stdout(log), redirect_stderr(log):
        print(f"==== {case.name}", flush=True)
        try:
            case.make(path)
        except (Exception, SystemExit) as raised:  # noqa: BLE001
            error = " ".join("".join(traceback.format_exception_only(raised)).split())[:400]
            traceback.print_exc()
    line = f"{case.name}: {time.monotonic() - start:.1f} s" + (f"; {error}" if error else "")
    with (out / "results.txt").open("a") as results:
        print(line, file=results)
    if error and ("CUDA error" in error or "device-side" in error or "CUBLAS_STATUS" in error):
        os.execv(sys.executable, [sys.executable, *sys.argv])


def run(count: int, out: Path, seconds: float, command: list[str]) -> None:
    """Starts `count` processes of a command, and ends those that do not finish in time."""
    (out / "claims").mkdir(parents=True)
    (out / "results.txt").touch()
    deadline = time.time() + seconds
    workers = [subprocess.Popen([*command, "--deadline", str(deadline)]) for _ in range(count)]
    while any(worker.poll() is None for worker in workers) and time.time() < deadline + SECONDS_TO_FINISH:
        time.sleep(2)
    for worker in workers:
        worker.kill()
    print((out / "results.txt").read_text(), flush=True)


def pack(out: Path, folder: Path, order: list[str]) -> None:
    """Packs the dumps, those first in `order` first, into a few archives; prints what has no room."""
    rank = {name: number for number, name in enumerate(order)}
    files = sorted(path for path in (out / "dumps").rglob("*") if path.is_file())
    files.sort(key=lambda path: min((rank[name] for name in order if str(path.relative_to(out / "dumps")).startswith(name)), default=len(rank)))
    groups: list[list[Path]] = [[]]
    size, left_out = 0, []
    for path in files:
        if size + path.stat().st_size > PACK_BYTES:
            if len(groups) == PACKS:
                left_out.append(str(path.relative_to(out)))
                continue
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += path.stat().st_size
    for number, group in enumerate(groups):
        with tarfile.open(folder / f"dumps{number}.tar.xz", "w:xz", preset=1) as archive:
            for path in group:
                archive.add(path, path.relative_to(out))
    with tarfile.open(folder / "logs.tar.gz", "w:gz") as archive:
        for path in [*out.glob("log-*"), out / "results.txt"]:
            archive.add(path, path.relative_to(out))
    print(f"{len(files)} files, {sum(map(len, groups))} packed, left out: {left_out[:20]} ({len(left_out)})", flush=True)
