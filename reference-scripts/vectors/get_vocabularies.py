#!/usr/bin/env python3
"""Gets real vocabularies for the tests: Llama 2's, GPT-2's, Llama 3's and Qwen 2's, as llama.cpp has them.

They come inside the source distribution of llama-cpp-python on PyPI (77 MB, its hash pinned), and go to
tests/data/vocabularies, which git ignores. Tests that need them are skipped without them, and say so.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
DEFAULT_OUT = SCRIPTS.parent / "tests" / "data" / "vocabularies"
NAMES = [f"ggml-vocab-{name}.gguf" for name in ("llama-spm", "gpt-2", "llama-bpe", "qwen2")]


def download(folder: Path) -> Path:
    """The source distribution, by pip, which checks the hash."""
    requirements = SCRIPTS / "requirements-vocabularies.txt"
    options = ["--no-deps", "--no-binary", "llama-cpp-python", "--require-hashes", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "-r", str(requirements)]
    subprocess.run(command, check=True)
    return next(folder.glob("*.tar.gz"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sdist", type=Path, help="the source distribution, if it is there already")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to write to")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        sdist = arguments.sdist or download(Path(folder))
        with tarfile.open(sdist) as archive:
            members = {Path(member.name).name: member for member in archive if member.isfile()}
            for name in NAMES:
                with archive.extractfile(members[name]) as source, open(arguments.out / name, "wb") as target:
                    shutil.copyfileobj(source, target)
                print(f"{arguments.out / name}: {(arguments.out / name).stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
