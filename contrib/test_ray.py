#!/usr/bin/env python3
"""ray_xcheck.py on this machine with several worker processes, one of which is killed on the way.

    python3 -m venv .venv-ray && .venv-ray/bin/pip install ray
    cargo build --release && .venv-ray/bin/python contrib/test_ray.py target/release/xcheck

The report must be that of one process, byte for byte but for the command.
"""

import json
import os
import stat
import subprocess
import sys
import tempfile

xcheck = os.path.abspath(sys.argv[1])
adapter = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ray_xcheck.py")
folder = tempfile.mkdtemp()
killed = os.path.join(folder, "killed")

# The first that judges shard 2 kills the Ray worker that has started it.
wrapper = os.path.join(folder, "xcheck")
with open(wrapper, "w") as file:
    file.write(f"""#!/bin/sh
case "$*" in *"--shard 2/"*) test -e {killed} || {{ echo $PPID > {killed}; kill -9 $PPID; exit 9; }} ;; esac
echo "$PPID $*" >> {folder}/calls
exec {xcheck} "$@"
""")
os.chmod(wrapper, os.stat(wrapper).st_mode | stat.S_IXUSR)

run = ["run", "--model", "tiny-llama3", "--reference", "transformers-f32"]
environment = {**os.environ, "XCHECK": wrapper, "RAY_AUTH_MODE": "disabled"}
done = subprocess.run(
    [sys.executable, adapter, "--shards", "4", "--reports", f"{folder}/reports", *run],
    env=environment, capture_output=True, text=True,
)
print(done.stdout, done.stderr[-2000:])
assert done.returncode == 0, done.returncode
assert os.path.exists(killed), "no worker was killed"

subprocess.run([xcheck, *run, "--introduced", "--report", f"{folder}/whole"], check=True, stdout=subprocess.DEVNULL)


def told(path):
    report = json.load(open(path))
    report.pop("command")
    return json.dumps(report)


assert told(f"{folder}/whole/report.json") == told(f"{folder}/reports/all/report.json"), "another report"
calls = [line.split(" ", 1) for line in open(f"{folder}/calls") if " --shard " in line]
workers = {worker for worker, _ in calls}
print(f"ok: worker {open(killed).read().strip()} was killed, {len(calls)} shards were judged by {len(workers)} workers")
