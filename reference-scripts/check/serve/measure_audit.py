#!/usr/bin/env python3
"""Measures `xcheck probe --audit`: how many answers it needs to tell in which state a real server serves a model.

Each --served NAME=KIND:FILE[,OPTION...] is one state. KIND is xcheck (`xcheck serve`), llama_cpp (`python -m
llama_cpp.server`), llama_server (llama.cpp's own) or vllm. The options follow the server's usual ones, e.g. `--type_k,2`.
The script starts each server on a free port, audits it with each seed against --model, and prints a row of a Markdown
table for each audit. States and seeds are chosen before the audit runs; nothing is tuned to the results.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def command(kind: str, file: str, options: list[str], port: int, arguments: argparse.Namespace) -> list[str]:
    place = ["--host", "127.0.0.1", "--port", str(port)]
    match kind:
        case "xcheck":
            return [arguments.xcheck, "serve", "--model", file, *place, *options]
        case "llama_cpp":
            fixed = ["--logits_all", "true", "--n_ctx", "256", "--n_threads", "1", "--n_threads_batch", "1"]
            return [arguments.python, "-m", "llama_cpp.server", "--model", file, *place, *fixed, *options]
        case "llama_server":
            return ["llama-server", "--model", file, *place, "--ctx-size", "256", "--threads", "1", *options]
        case "vllm":
            fixed = ["--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "4"]
            return [arguments.vllm, "-m", "vllm.entrypoints.openai.api_server", "--model", file, *place, *fixed, *options]
    sys.exit(f"unknown kind of server: {kind}")


def wait(url: str, server: subprocess.Popen) -> None:
    """Waits until the server answers."""
    for _ in range(600):
        if server.poll() is not None:
            sys.exit(f"the server ended with status {server.returncode}")
        try:
            urllib.request.urlopen(f"{url}/v1/models", timeout=5).read()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    sys.exit("the server did not start in 5 minutes")


def audited(url: str, seed: int, arguments: argparse.Namespace) -> dict:
    words = [arguments.xcheck, "probe", url, "--audit", "--model", arguments.model, "--seed", str(seed)]
    words += ["--requests", str(arguments.requests), "--no-report", "--format", "json"]
    words += [word for other in arguments.against for word in ("--against", other)]
    words += ["--top", str(arguments.top)] if arguments.top else []
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode not in (0, 1, 3):
        sys.exit(done.stderr)
    report = json.loads(done.stdout)
    print(f"{report['verdict'].upper()}  {report['sentence']}", file=sys.stderr)
    return report


def row(name: str, kind: str, seed: int, report: dict) -> str:
    claimed = report["states"][0]["rejected_after"]
    left = [state["name"] for state in report["states"] if state["rejected_after"] is None]
    cells = [name, kind, seed, report["tokens"], report["verdict"], claimed or "-", report["answers"], ", ".join(left) or "none"]
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xcheck", default="xcheck", help="the program")
    parser.add_argument("--python", default=sys.executable, help="a Python with llama_cpp.server")
    parser.add_argument("--vllm", default=sys.executable, help="a Python with vllm")
    parser.add_argument("--model", required=True, help="the claimed model")
    parser.add_argument("--against", action="append", default=[], help="another model that may be served")
    parser.add_argument("--served", action="append", required=True, help="NAME=KIND:FILE[,OPTION...]")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--top", type=int)
    arguments = parser.parse_args()
    print("| served | server | seed | tokens | verdict | model rejected after | answers | states that remain |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for served in arguments.served:
        name, rest = served.split("=", 1)
        kind, rest = rest.split(":", 1)
        file, *options = rest.split(",")
        port = free_port()
        server = subprocess.Popen(
            command(kind, file, options, port, arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait(url, server)
            for seed in range(1, arguments.seeds + 1):
                print(row(name, kind, seed, audited(url, seed, arguments)), flush=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
