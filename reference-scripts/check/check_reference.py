#!/usr/bin/env python3
"""Tries `xcheck run --make-references` from an empty cache, with real engines: from a model's name to a verdict.

For each engine: the environment is begun and killed (SIGKILL) while it is made, then made; the dump is begun and killed,
then made; the run must pass. Needs PyPI, and for llama.cpp a C++ compiler. What it took is printed. Everything is written
into a folder of its own, which is removed.

    reference-scripts/check/check_reference.py --xcheck target/release/xcheck [--only transformers] [--work DIR]
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKPOINTS = Path(__file__).resolve().parents[2] / "checkpoints"
MODELS = {"transformers": "tiny-qwen3/hf", "llama.cpp": "tiny-qwen3/tiny-qwen3-q8_0.gguf", "mlx": "tiny-qwen3/hf"}
# What is asked for: mlx-lm's attention is one operation, which shows no scores (checkpoint 4).
CHECKPOINTS_OF = {"transformers": "all", "llama.cpp": "all", "mlx": "input,1-3,5-12"}
POLL = 0.01


def size(folder: Path) -> int:
    """Bytes on the disk, of files with several names once."""
    blocks = {}
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # it is being written
        blocks[status.st_ino] = status.st_blocks * 512
    return sum(blocks.values())


class Try:
    """One engine, on a copy of a model, from an empty cache."""

    def __init__(self, xcheck: Path, engine: str, work: Path):
        self.xcheck, self.engine, self.work, self.cache = xcheck, engine, work, work / "cache"
        source = CHECKPOINTS / MODELS[engine]
        self.model = work / "model" / source.name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        self.model.parent.mkdir(parents=True)
        copy(source, self.model)
        self.dumps = self.model / "dumps" if source.is_dir() else self.model.parent / "dumps"
        self.environments, self.uv = self.cache / "environments", work / "uv"

    def start(self) -> subprocess.Popen:
        command = [self.xcheck, "run", "--model", self.model, "--make-references", "--yes"]
        environment = os.environ | {"XCHECK_CACHE": str(self.cache), "UV_CACHE_DIR": str(self.uv)}
        return subprocess.Popen(
            [*command, "--with", self.engine, "--checkpoint", CHECKPOINTS_OF[self.engine], "--no-report"],
            cwd=self.work, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def kill_when(self, what: str, reached) -> None:
        """Kills it and all that it started as soon as `reached`."""
        process = self.start()
        while not reached():
            if process.poll() is not None:
                sys.exit(f"error: {self.engine}: it ended before {what}:\n{process.stderr.read()}")
            time.sleep(POLL)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(f"{self.engine}: killed in the middle of {what}", flush=True)

    def is_installing(self) -> bool:
        """Some of the environment is there, or of what it is made from."""
        return size(self.environments) + size(self.uv) > 20_000_000

    def is_dumping(self) -> bool:
        """The engine has said something: the first line of the log is the command, written before it is started."""
        log = self.cache / "logs" / f"dump-{self.engine}-{self.model.stem}.log"
        return log.is_file() and len(log.read_bytes().splitlines()) > 1

    def finish(self, what: str) -> float:
        """Runs it to its end, which must be a pass."""
        started = time.monotonic()
        process = self.start()
        stdout, stderr = process.communicate()
        if process.returncode != 0 or "pass" not in stdout:
            sys.exit(f"error: {self.engine}: {what}: exit code {process.returncode}\n{stdout}{stderr}")
        return time.monotonic() - started

    def check_left(self) -> None:
        """Nothing half made is left."""
        left = [*self.environments.glob(".*"), *self.dumps.glob(".*")]
        if left or len(list(self.environments.iterdir())) != 1 or len(list(self.dumps.iterdir())) != 1:
            sys.exit(f"error: {self.engine}: left: {left}")

    def run(self) -> None:
        self.kill_when("making the environment", self.is_installing)
        if any(not path.name.startswith(".") for path in self.environments.iterdir()) or self.dumps.exists() and any(
            not path.name.startswith(".") for path in self.dumps.iterdir()
        ):
            sys.exit(f"error: {self.engine}: something half made has its name")
        started = time.monotonic()
        self.kill_when("the dump", self.is_dumping)
        print(f"{self.engine}: environment of {size(self.environments) / 1e9:.2f} GB, {time.monotonic() - started:.0f} s")
        again = self.finish("after it was killed twice")
        self.check_left()
        print(f"{self.engine}: dump and verdict (pass), {again:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xcheck", type=Path, required=True)
    parser.add_argument("--only", choices=MODELS, help="this engine alone (default: transformers and llama.cpp)")
    parser.add_argument("--work", type=Path, help="where to make the folder (default: that for temporary files)")
    arguments = parser.parse_args()
    for engine in [arguments.only] if arguments.only else ["transformers", "llama.cpp"]:
        with tempfile.TemporaryDirectory(dir=arguments.work) as work:
            Try(arguments.xcheck.resolve(), engine, Path(work)).run()


if __name__ == "__main__":
    main()
