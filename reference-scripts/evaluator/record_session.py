"""Records one session of the evaluator's worker, for tests that run without torch.

    PYTHONPATH=python/src:python/tests python reference-scripts/evaluator/record_session.py [OUT]

Makes a tiny Llama, a dump of a run with a wrong norm epsilon, and writes into OUT (default tests/data/evaluator):
dump.safetensors, requests.jsonl (one request per line) and REQUEST.bin (the worker's answer to the request). The model's
directory in the requests is "MODEL", the dump "DUMP".
"""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import tiny
from module_recorder import record
from xcheck.evaluator.protocol import decoded

ROOT = Path(__file__).resolve().parents[2]
SITE = {"module": "model.layers.1.input_layernorm", "call": 0, "pass": 0}
TOKENS = [[17, 3, 81, 45, 9], [51]]


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "data" / "evaluator"
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model_path = tiny.make("llama", Path(folder))
        model = tiny.load(model_path)
        model.model.layers[1].input_layernorm.variance_epsilon = 1e-4
        dump = record(model, TOKENS, out / "dump.safetensors")
        requests = [
            {"protocol": 1, "request": "evaluate", "model": str(model_path), "dump": str(dump), "runs": 4},
            {
                "protocol": 1,
                "request": "causes",
                "module": "model.layers.1.input_layernorm",
                "call": 0,
                "pass": 0,
                "seconds": 60,
            },
        ]
        answers = answered(requests)
    for request, answer in zip(requests, answers, strict=True):
        (out / f"{request['request']}.bin").write_bytes(answer)
    for request in requests:
        request.update({key: name for key, name in (("model", "MODEL"), ("dump", "DUMP")) if key in request})
    (out / "requests.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    print(f"{sum(map(len, answers))} bytes of answers")


def answered(requests: list[dict[str, object]]) -> list[bytes]:
    """Returns the bytes that the worker writes for each request."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python" / "src"), "OMP_NUM_THREADS": "1"}
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    command = [sys.executable, "-m", "xcheck.evaluator"]
    output = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE, env=environment, check=True).stdout
    stream, ends = io.BytesIO(output), [0]
    for _ in requests:
        while decoded(stream) is not None:
            pass
        ends.append(stream.tell())
    return [output[begin:end] for begin, end in itertools.pairwise(ends)]


if __name__ == "__main__":
    main()
