#!/usr/bin/env python3
"""Many clients at once against `xcheck serve`: nothing lost, nothing mixed up, memory bounded.

    cargo build --release --features serve
    python3 reference-scripts/check/serve/load.py target/release/xcheck --model tiny-llama2 --minutes 10

Starts a server of its own. Each of so many different requests is asked alone first; then all clients ask them in an order of
their own, at once, streamed and whole, greedy and drawn, and every answer must be the one that was given alone, to the last
bit of every log-probability. Some clients leave in the middle. Needs Python alone. Ends with status 1 where one answer differs.
"""

import argparse
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

REQUESTS = 96


def request(index: int, vocabulary: int) -> dict:
    """One of many, each with an answer of its own."""
    draw = random.Random(index)
    body = {
        "prompt": [draw.randrange(3, vocabulary) for _ in range(draw.randrange(1, 100))],
        "max_tokens": draw.randrange(1, 60),
        "temperature": draw.choice([0, 0.7, 1.3]),
        "seed": index,
        "logprobs": draw.choice([0, 5]),
        "ignore_eos": True,
        "return_token_ids": True,
    }
    if index % 3 == 0:
        body["echo"] = True
    return body


class Client:
    """A connection that is kept."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def post(self, body: dict) -> http.client.HTTPResponse:
        self.connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        return self.connection.getresponse()

    def whole(self, body: dict):
        """The choice; None where there was no room."""
        response = self.post(body)
        text = response.read()
        if response.status == 429:
            return None
        assert response.status == 200, (response.status, text)
        return json.loads(text)["choices"][0]

    def streamed(self, body: dict):
        """What the chunks come to: texts, ids and log-probabilities."""
        response = self.post(body | {"stream": True})
        text = response.read().decode()
        if response.status == 429:
            return None
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        assert lines and lines[-1] == "[DONE]", text[-200:]
        chunks = [json.loads(line)["choices"][0] for line in lines[:-1]]
        lists = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
        return {
            "text": "".join(chunk["text"] for chunk in chunks),
            "token_ids": [id for chunk in chunks for id in chunk.get("token_ids", [])],
            "token_logprobs": [number for one in lists for number in one["token_logprobs"]],
        }

    def leaves(self, body: dict) -> None:
        """Reads the beginning and hangs up."""
        self.post(body | {"stream": True}).read(40)
        self.connection.close()


def of_whole(choice: dict) -> dict:
    """The same of a whole answer."""
    return {key: choice[key] for key in ("text", "token_ids")} | {"token_logprobs": choice["logprobs"]["token_logprobs"]}


class Tally:
    """What has happened so far."""

    def __init__(self) -> None:
        self.lock, self.whole, self.streamed, self.left, self.full, self.wrong = threading.Lock(), 0, 0, 0, 0, []

    def add(self, name: str) -> None:
        with self.lock:
            setattr(self, name, getattr(self, name) + 1)


def work(port: int, number: int, requests: list, alone: list, until: float, tally: Tally) -> None:
    """One client."""
    draw, client = random.Random(number), Client(port)
    while time.monotonic() < until:
        index = draw.randrange(len(requests))
        kind = draw.random()
        try:
            if kind < 0.05:
                client.leaves(requests[index])
                tally.add("left")
                continue
            found = client.whole(requests[index]) if kind < 0.5 else client.streamed(requests[index])
            if found is None:
                tally.add("full")
                time.sleep(draw.uniform(0.05, 0.2))
                continue
            is_right = found == alone[index] if kind < 0.5 else found == of_whole(alone[index])
            tally.add("whole" if kind < 0.5 else "streamed")
            if not is_right:
                tally.wrong.append((index, found))
        except Exception as problem:  # noqa: BLE001 - whatever it is, an answer was lost
            tally.wrong.append((index, repr(problem)))
            client = Client(port)


def figures(port: int) -> dict:
    """The figures of /metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("xcheck", type=Path)
    parser.add_argument("--model", default="tiny-llama2")
    parser.add_argument("--vocabulary", type=int, default=512, help="ids of prompts are below")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--options", default="--queue 40", help="more for xcheck serve")
    parser.add_argument("--mix-up", action="store_true", help="plant a fault: expect the answer to another request once")
    arguments = parser.parse_args()
    command = [arguments.xcheck, "serve", "--model", arguments.model, "--port", "0", *arguments.options.split()]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        sys.exit(loaded(server, arguments))
    finally:
        server.terminate()
        print("the server ended with", server.wait(30), flush=True)


def loaded(server: subprocess.Popen, arguments: argparse.Namespace) -> int:
    """Runs the load and tells what came of it."""
    line = server.stdout.readline().strip()
    print(line, flush=True)
    port = int(line.rsplit(":", 1)[1])
    requests = [request(index, arguments.vocabulary) for index in range(REQUESTS)]
    alone = [Client(port).whole(one) for one in requests]
    assert len({json.dumps(choice) for choice in alone}) == REQUESTS, "two answers are alike: a mix-up would not be seen"
    if arguments.mix_up:
        alone[0], alone[1] = alone[1], alone[0]
    tally, start = Tally(), time.monotonic()
    until = start + 60 * arguments.minutes
    threads = [
        threading.Thread(target=work, args=(port, number, requests, alone, until, tally)) for number in range(arguments.clients)
    ]
    [thread.start() for thread in threads]
    show(port, start, tally)
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 30))
        show(port, start, tally)
    [thread.join() for thread in threads]
    time.sleep(1)
    last = show(port, start, tally)
    is_idle = last["xcheck_sequences_running"] == last["xcheck_sequences_waiting"] == 0
    is_idle = is_idle and last["xcheck_requests_in_flight"] == 1  # this very one
    for index, found in tally.wrong[:5]:
        print(f"WRONG: request {index}: {str(found)[:300]}")
    answers = tally.whole + tally.streamed
    is_right = not tally.wrong and is_idle and answers > 0
    print(f"{'PASS' if is_right else 'FAIL'}  {answers} answers, {len(tally.wrong)} wrong or lost; idle at the end: {is_idle}")
    return 0 if is_right else 1


def show(port: int, start: float, tally: Tally) -> dict:
    """A line of figures."""
    now = figures(port)
    print(
        f"{time.monotonic() - start:6.0f} s  {now['xcheck_resident_memory_bytes'] / 1e6:7.1f} MB resident  "
        f"{tally.whole} whole, {tally.streamed} streamed, {tally.left} left, {tally.full} times full, {len(tally.wrong)} wrong  "
        f"{now['xcheck_sequences_running']:.0f} running, {now['xcheck_sequences_waiting']:.0f} waiting, "
        f"{now['xcheck_generated_tokens_total']:.0f} tokens",
        flush=True,
    )
    return now


if __name__ == "__main__":
    main()
