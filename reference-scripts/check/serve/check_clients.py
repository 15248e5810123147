#!/usr/bin/env python3
"""Asks `xcheck serve` by real clients, unchanged: lm-evaluation-harness, and OpenAI's Python client.

    cargo build --release --features serve
    python3 reference-scripts/check/serve/check_clients.py target/release/xcheck
    python3 reference-scripts/check/serve/check_clients.py target/release/xcheck --model model.gguf

The clients are installed below .venv-serve, from PyPI at pinned versions (--python takes an environment that has them). A task
with a data set of its own is written for the harness, so that nothing is fetched from a hub; its requests pass through a recorder.
Each log-likelihood must be what the logits of `xcheck dump` come to for the same ids, to the last bit. Prints a line for
each check; ends with status 1 where one fails, and with SKIPPED and status 0 where the clients cannot be installed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
VENV = ROOT / ".venv-serve"
MODEL = ROOT / "checkpoints" / "tiny-llama2" / "hf"
TASK = """task: xcheck_{kind}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
doc_to_text: "{{{{context}}}}"
{more}
"""
KINDS = {
    "loglikelihood": 'doc_to_target: "{{continuation}}"\nmetric_list:\n  - metric: perplexity\n  - metric: acc',
    "multiple_choice": 'doc_to_target: 0\ndoc_to_choice: "{{[continuation, other]}}"\nmetric_list:\n  - metric: acc',
    "generate_until": 'doc_to_target: "{{continuation}}"\ngeneration_kwargs:\n  until: ["."]\n  max_gen_toks: 24\n'
    "  temperature: 0\nmetric_list:\n  - metric: exact_match",
}
ROWS = [
    {"context": "Once upon a", "continuation": " time", "other": " tree"},
    {"context": "Once upon a time, there was a little", "continuation": " girl who liked to play", "other": " dog."},
    {"context": "The cat sat on the", "continuation": " mat and was happy.", "other": " moon"},
    {"context": "Tom went to the park with", "continuation": " his mom.", "other": " a big red ball"},
    {"context": "One day,", "continuation": " she saw a bird", "other": " it was"},
]


def with_clients(arguments: argparse.Namespace) -> None:
    """Goes on in the environment that has the clients."""
    if arguments.python:
        python = arguments.python
    else:
        python = VENV / "bin" / "python"
        if not python.exists():
            made = [[sys.executable, "-m", "venv", VENV], [python, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"]]
            if any(subprocess.run(command, check=False).returncode for command in made):
                shutil.rmtree(VENV, ignore_errors=True)
                print("SKIPPED: the clients cannot be installed")
                sys.exit(0)
    os.environ["XCHECK_CLIENTS"] = "1"
    os.execv(python, [str(python), *sys.argv])


def asked(url: str, body: bytes | None) -> bytes:
    """What a server answers."""
    with urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"})) as response:
        return response.read()


def encoded(url: str, text: str) -> list[int]:
    """The ids of a text by the server, which a test of xcheck's own holds against the tokenizer."""
    body = json.dumps({"prompt": text, "add_special_tokens": False})
    return json.loads(asked(f"{url}/tokenize", body.encode()))["tokens"]


class Recorder(ThreadingHTTPServer):
    """Passes requests on, and keeps them with their answers."""

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), Recording)
        self.url, self.kept = url, []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Recording(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = self.passed_on(body)
        if self.path == "/v1/completions":
            self.server.kept.append((json.loads(body), json.loads(answer)))

    def do_GET(self) -> None:
        self.passed_on(None)

    def passed_on(self, body: bytes | None) -> bytes:
        answer = asked(self.server.url + self.path, body)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        return answer

    def log_message(self, *_) -> None:
        pass


class Checks:
    """Counts what is not as it should be."""

    def __init__(self) -> None:
        self.failed = 0

    def check(self, name: str, is_right: bool, told: object = "") -> None:
        self.failed += not is_right
        print(f"{'ok    ' if is_right else 'FAILED'} {name} {'' if is_right else told}", flush=True)


class Own:
    """What our own runs say."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments, self.folder, self.known = arguments, folder, {}

    def logprobs(self, ids: list[int]):
        """Of each token but the first: by the logits of a dump, in f64, rounded once."""
        import numpy
        from safetensors.numpy import load_file

        key = tuple(ids)
        if key not in self.known:
            out = self.folder / f"dump-{len(self.known)}.safetensors"
            tokens = ",".join(map(str, ids))
            command = [self.arguments.xcheck, "dump", "--model", self.arguments.model, "--tokens", tokens, "--decode", "0"]
            options = ["--out", out, *self.arguments.options.split()]
            subprocess.run([*command, *options], check=True, capture_output=True)
            logits = load_file(out)["p0/logits"].astype(numpy.float64)
            out.unlink()
            top = logits.max(axis=1, keepdims=True)
            sums = top[:, 0] + numpy.log(numpy.exp(logits - top).sum(axis=1))
            exact = logits[numpy.arange(len(ids) - 1), ids[1:]] - sums[:-1]
            self.known[key] = exact.astype(numpy.float32), logits.argmax(axis=1)
        return self.known[key]

    def generated(self, ids: list[int], count: int) -> list[int]:
        tokens = ",".join(map(str, ids))
        command = [self.arguments.xcheck, "generate", "--model", self.arguments.model, "--tokens", tokens, "-n", str(count)]
        options = ["--format", "json", *self.arguments.options.split()]
        done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)["sequences"][0]["tokens"]


def harness(checks: Checks, own: Own, url: str, name: str, folder: Path) -> None:
    """lm-evaluation-harness on tasks of its three kinds, which tokenises by the server."""
    import lm_eval
    import numpy
    from lm_eval.tasks import TaskManager

    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for kind, more in KINDS.items():
        (folder / f"xcheck_{kind}.yaml").write_text(TASK.format(kind=kind, data=data, more=more))
    recorder = Recorder(url)
    base = f"http://127.0.0.1:{recorder.server_port}/v1/completions"
    result = lm_eval.simple_evaluate(
        model="local-completions",
        model_args=f"model={name},base_url={base},num_concurrent=1,max_length=200",
        tasks=[f"xcheck_{kind}" for kind in KINDS],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        log_samples=True,
        batch_size=2,
        bootstrap_iters=0,
    )
    echoed = [(body, answer) for body, answer in recorder.kept if body.get("echo")]
    scored = [pair for body, answer in echoed for pair in zip(prompts(body), choices(answer), strict=True)]
    count = 3 * len(ROWS)
    version = metadata.version("lm_eval")
    checks.check(f"lm_eval {version} has asked for {len(scored)} log-likelihoods", len(scored) == count)
    same = 0
    for ids, choice in scored:
        expected, _ = own.logprobs(ids)
        found = numpy.array(choice["logprobs"]["token_logprobs"][1 : len(ids)], dtype=numpy.float32)
        same += found.tobytes() == expected.tobytes()
    checks.check("every one is that of our dump, bit for bit", same == count, f"{same} of {count}")
    first, choice = scored[0]
    other, _ = own.logprobs([*first[:-1], first[-1] ^ 1])
    found = numpy.array(choice["logprobs"]["token_logprobs"][1 : len(first)], dtype=numpy.float32)
    checks.check("and of other tokens it is not", found.tobytes() != other.tobytes())
    sums(checks, own, url, result["samples"]["xcheck_loglikelihood"])
    told = [sample["resps"][0][0] for sample in result["samples"]["xcheck_generate_until"]]
    checks.check("it has generated texts up to the stop", any(told) and not any("." in text for text in told), told)


def sums(checks: Checks, own: Own, url: str, samples: list) -> None:
    """What the harness makes of them: a sum for each continuation, and whether each token was the likeliest."""
    right = 0
    for sample in samples:
        context, continuation = sample["doc"]["context"], sample["doc"]["continuation"]
        ids = encoded(url, context + continuation)
        count = len(ids) - len(encoded(url, context))
        logprobs, likeliest = own.logprobs(ids)
        total = sum(float(str(number)) for number in logprobs[-count:])
        is_greedy = list(likeliest[-count - 1 : -1]) == ids[-count:]
        found, greedy = sample["resps"][0][0]
        if float(found) != total or str(greedy) != str(is_greedy):
            print(f"       {context!r} {continuation!r}: {found} {greedy}, ours {total} {is_greedy}")
        right += float(found) == total and str(greedy) == str(is_greedy)
    checks.check("its sums and its marks of greedy ones are ours", right == len(ROWS), f"{right} of {len(ROWS)}")


def choices(answer: dict) -> list:
    """In the order of the prompts."""
    return sorted(answer["choices"], key=lambda choice: choice["index"])


def prompts(body: dict) -> list:
    """The ids that were sent."""
    prompt = body["prompt"]
    return prompt if isinstance(prompt[0], list) else [prompt]


def openai_client(checks: Checks, own: Own, url: str, name: str) -> None:
    """OpenAI's client: whole and streamed answers, models, errors."""
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    checks.check(f"openai {openai.__version__} lists the model", [one.id for one in client.models.list()] == [name])
    order = {"model": name, "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}
    whole = client.completions.create(**order, logprobs=2, extra_body={"return_token_ids": True})
    ids = whole.choices[0].model_extra["prompt_token_ids"]
    generated = own.generated(ids, 20)
    checks.check("a completion is what xcheck generate gives", whole.choices[0].model_extra["token_ids"] == generated)
    logprobs, _ = own.logprobs(ids + generated)
    import numpy

    found = numpy.array(whole.choices[0].logprobs.token_logprobs, dtype=numpy.float32)
    decoded = numpy.abs(found - logprobs[len(ids) - 1 :]).max()
    print(f"       log-probabilities while decoding and of one pass over all differ by at most {decoded:.2g}")
    chunks = list(client.completions.create(**order, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    checks.check("a stream comes to the same text", text == whole.choices[0].text, (text, whole.choices[0].text))
    checks.check("with the same usage", chunks[-1].usage.total_tokens == whole.usage.total_tokens)
    messages = [{"role": "user", "content": "Tell a tale."}]
    talk = {"model": name, "messages": messages, "max_completion_tokens": 20, "temperature": 0}
    chat = client.chat.completions.create(**talk, logprobs=True, top_logprobs=3)
    content = chat.choices[0].message.content
    checks.check(f"a chat is answered: {content[:40]!r}", bool(content) and len(chat.choices[0].logprobs.content) > 0)
    chunks = client.chat.completions.create(**talk, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    checks.check("and streamed likewise", streamed == content, streamed)
    try:
        client.completions.create(**order, n=2)
        checks.check("what is not supported is refused", False)
    except openai.BadRequestError as refused:
        checks.check(f"what is not supported is refused: {refused.body['message']}", refused.param == "n")
    try:
        client.chat.completions.create(**talk | {"model": "gpt-4"})
        checks.check("another model is not found", False)
    except openai.NotFoundError as refused:
        checks.check("another model is not found", refused.code == "model_not_found")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("xcheck", type=Path)
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--options", default="--numerics f32", help="how to compute, for all commands")
    parser.add_argument("--chat-template", type=Path, help="where the model has none")
    parser.add_argument("--python", help="an interpreter that has the clients")
    arguments = parser.parse_args()
    if "XCHECK_CLIENTS" not in os.environ:
        with_clients(arguments)
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        os.environ["HF_DATASETS_CACHE"] = str(folder / "datasets")
        template = arguments.chat_template
        if template is None and not arguments.model.endswith(".gguf"):
            template = folder / "chat.jinja"
            template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
        command = [arguments.xcheck, "serve", "--model", arguments.model, "--port", "0", *arguments.options.split()]
        command += ["--chat-template", template] if template else []
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            line = server.stdout.readline().strip()
            print(line, flush=True)
            url, name = line.rsplit(" ", 1)[1], line.split(" with numerics ")[0]
            own = Own(arguments, folder)
            openai_client(checks, own, url, name)
            harness(checks, own, url, name, folder)
        finally:
            server.terminate()
        checks.check("the server ends in peace", server.wait(30) == 0)
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
