#!/usr/bin/env python3
"""The shards of a plan as Ray tasks, their reports put together; the exit code is that of the whole.

    python contrib/ray_xcheck.py --shards 16 --reports /shared/reports run --model /shared/model.gguf --reference /shared/dump

Every node sees the same paths. A task whose worker dies is given to another (Ray Core retries; Ray Jobs do not), and goes
on from what its shard has finished (--resume). XCHECK names the binary.
"""

import argparse
import json
import os
import subprocess
import sys

import ray

XCHECK = os.environ.get("XCHECK", "xcheck")
VERDICTS = {0: "pass", 1: "fail", 3: "inconclusive"}


def plan(arguments, shards):
    """One entry for each shard: its name and what it needs, if nothing is narrowed."""
    known, _ = plan_arguments().parse_known_args(arguments[1:])
    command = [XCHECK, "plan", "--model", known.model, "--reference", known.dump, "--shards", str(shards)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def plan_arguments():
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model", "-m")
    parser.add_argument("--reference", "-r", "--candidate", dest="dump")
    return parser


@ray.remote(max_retries=3, retry_exceptions=[RuntimeError])
def judge(arguments, shard, report):
    """The exit code of a shard; what is no verdict is tried again."""
    command = [XCHECK, *arguments, "--shard", shard, "--resume", "--report", report]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in VERDICTS:
        raise RuntimeError(f"shard {shard}: {done.stderr.strip()}")
    return shard, done.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--reports", required=True, help="a folder that every node sees")
    parser.add_argument("--cpus", type=int, default=1, help="of each task")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="run, check or audit, and what it takes")
    asked = parser.parse_args()
    reports = os.path.abspath(asked.reports)
    ray.init(address=os.environ.get("RAY_ADDRESS"), ignore_reinit_error=True)
    waiting, folders = [], []
    for entry in plan(asked.arguments, asked.shards):
        folders.append(os.path.join(reports, entry["shard"].replace("/", "of")))
        task = judge.options(num_cpus=asked.cpus, memory=entry["weights_bytes"] + entry["dump_bytes"])
        waiting.append(task.remote(asked.arguments, entry["shard"], folders[-1]))
    while waiting:
        done, waiting = ray.wait(waiting)
        try:
            shard, code = ray.get(done[0])
            print(f"shard {shard}: {VERDICTS[code]}", flush=True)
        except (ray.exceptions.RayError, RuntimeError) as error:
            print(f"given up: {error}", file=sys.stderr, flush=True)
    folders = [folder for folder in folders if os.path.isdir(folder)]
    return subprocess.run([XCHECK, "merge", *folders, "--report", os.path.join(reports, "all")]).returncode


if __name__ == "__main__":
    sys.exit(main())
