"""The worker process of the evaluator: protocol, containers and errors."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from xcheck.evaluator.protocol import END, Answers, decoded, encoded

SOURCE = Path(__file__).resolve().parents[1] / "src"
SESSION = Path(__file__).resolve().parents[2] / "tests" / "data" / "evaluator"


def messages(stream):
    """Returns the messages of one answer."""
    found = []
    while (message := decoded(stream)) is not None:
        found.append(message)
    return found


def worker(*requests, code: str = "", **environment):
    """Returns the answer to each request. `code` runs before the worker."""
    lines = "".join((request if isinstance(request, str) else json.dumps(request)) + "\n" for request in requests)
    command = [sys.executable, "-c", f"{code}\nimport runpy; runpy.run_module('xcheck.evaluator', run_name='__main__')"]
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, input=lines.encode(), capture_output=True, env=env, check=False)
    assert done.returncode == 0, done.stderr.decode()
    stream = io.BytesIO(done.stdout)
    answers = [messages(stream) for _ in requests]
    assert stream.read() == b""
    return answers


def served(*requests):
    """Returns the answer to each request, from a worker in this process."""
    from xcheck.evaluator.__main__ import serve

    stream = io.BytesIO()
    serve([(request if isinstance(request, str) else json.dumps(request)).encode() for request in requests], stream)
    stream.seek(0)
    return [messages(stream) for _ in requests]


def only_error(answer):
    (message, tensors) = answer[-1]
    assert message["message"] == "error" and not tensors and len(answer) == 1
    return message["code"], message["text"]


def test_a_message_is_a_complete_safetensors_file(tmp_path):
    values = {"exact": np.arange(6.0).reshape(1, 2, 3), "sigma": np.zeros((1, 0, 3))}
    content = encoded({"message": "site", "module": "a.b"}, values)
    message, tensors = decoded(io.BytesIO(content))
    assert message == {"message": "site", "module": "a.b"}
    assert all(
        np.array_equal(tensors[name], value) and tensors[name].shape == value.shape for name, value in values.items()
    )
    safe_open = pytest.importorskip("safetensors").safe_open
    (tmp_path / "m.safetensors").write_bytes(content)
    with safe_open(tmp_path / "m.safetensors", "np") as file:
        assert np.array_equal(file.get_tensor("exact"), values["exact"])
        assert json.loads(file.metadata()["xcheck-evaluator"])["module"] == "a.b"


def test_an_answer_ends_with_eight_zero_bytes():
    stream = io.BytesIO()
    answers = Answers(stream)
    answers.send({"message": "progress"})
    answers.end()
    assert stream.getvalue().endswith(END)
    stream.seek(0)
    assert [message["message"] for message, _ in messages(stream)] == ["progress"]
    with pytest.raises(EOFError):
        decoded(io.BytesIO(encoded({"message": "x"}, {"exact": np.ones(3)})[:-1]))


def test_the_recorded_session_can_be_read():
    requests = [json.loads(line) for line in (SESSION / "requests.jsonl").read_text().splitlines()]
    answers = []
    for request in requests:
        with (SESSION / f"{request['request']}.bin").open("rb") as stream:
            answers.append(messages(stream))
            assert stream.read() == b""
    kinds = [message["message"] for message, _ in answers[0]]
    assert kinds[0] == "hello" and "site" in kinds and "error" not in kinds
    assert [message["message"] for message, _ in answers[1]] == ["cause"]
    for message, tensors in answers[0]:
        if message["message"] == "site":
            assert set(tensors) == {"exact", "sigma"} and tensors["exact"].shape == tensors["sigma"].shape
            assert np.isfinite(tensors["exact"]).all() and (tensors["sigma"] >= 0).all()


def test_without_torch_or_transformers_the_error_says_what_to_install():
    for name in ("torch", "transformers"):
        (answer,) = worker({"protocol": 1, "request": "evaluate"}, code=f"import sys; sys.modules[{name!r}] = None")
        code, text = only_error(answer)
        first = name if importlib.util.find_spec("torch") else "torch"  # torch is looked for first
        assert code == "no-transformers" and first in text and "install" in text


@pytest.mark.parametrize(("name", "version"), [("torch", "2.5.1+cpu"), ("transformers", "4.40.2")])
def test_an_old_library_is_refused(name, version):
    code = "import sys, types\n" + "".join(
        f"sys.modules[{other!r}] = types.ModuleType({other!r}); sys.modules[{other!r}].__version__ = {found!r}\n"
        for other, found in (("torch", "2.9.0"), ("transformers", "5.0.0"), (name, version))
    )
    (answer,) = worker({"protocol": 1, "request": "evaluate"}, code=code)
    assert only_error(answer)[0] == "old-torch" and version in only_error(answer)[1]


def test_an_invalid_request_is_refused():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert torch
    requests = ["not json", "[1]", {"protocol": 2}, {"protocol": 1, "request": "sing"}, {"request": "evaluate"},
                {"protocol": 1, "request": "causes", "module": "a"}]  # fmt: skip
    for answer in served(*requests):
        assert only_error(answer)[0] == "request"


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Returns the directory of a model, and a dump of it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("safetensors")
    import tiny
    from module_recorder import record

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("session")
    path = tiny.make("llama", folder)
    return path, record(tiny.load(path), [tiny.TOKENS], folder / "dump.safetensors")


def evaluate(model, dump):
    return {"protocol": 1, "request": "evaluate", "model": str(model), "dump": str(dump), "runs": 4}


def test_a_session_answers_evaluate_and_causes_and_prints_of_libraries_stay_off_stdout(session):
    model, dump = session
    code = (
        "import os, transformers\n"
        "old = transformers.AutoConfig.from_pretrained\n"
        "def noisy(*args, **options):\n"
        "    print('noise'); os.write(1, b'noise of a C library')\n"
        "    return old(*args, **options)\n"
        "transformers.AutoConfig.from_pretrained = noisy\n"
    )
    causes = {"protocol": 1, "request": "causes", "module": "lm_head", "call": 0, "pass": 0, "seconds": 5}
    first, second, third = worker(evaluate(model, dump), causes, evaluate(model, dump), code=code)
    assert first[0][0]["message"] == "hello"
    assert second == []
    assert [m for m, _ in first if m["message"] == "site"] == [m for m, _ in third if m["message"] == "site"]
    hello = first[0][0]
    assert hello["model_class"] == "LlamaForCausalLM" and hello["source"].endswith("llama/modeling_llama.py")


def test_the_search_for_causes_reports_progress(session):
    model, dump = session
    code = "import xcheck.evaluator.worker as w\nw.REPORT_INTERVAL = 0.0\n"
    causes = {"protocol": 1, "request": "causes", "module": "lm_head", "call": 0, "pass": 0, "seconds": 5}
    _, answer = worker(evaluate(model, dump), causes, code=code)
    assert answer and {message["message"] for message, _ in answer} == {"progress"}
    assert [message["done"] for message, _ in answer] == list(range(1, len(answer) + 1))


def test_the_three_containers_hold_the_same_dump(session, tmp_path):
    _, dump = session
    from safetensors.numpy import load_file

    from xcheck.evaluator.candidate import open_dump

    arrays, manifest = load_file(dump), open_dump(str(dump)).manifest
    folder = tmp_path / "folder"
    for name, values in arrays.items():
        file = folder / f"{name}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, values)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    import zipfile

    with zipfile.ZipFile(tmp_path / "dump.npz", "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name in arrays:
            archive.write(folder / f"{name}.npy", f"{name}.npy")
    dumps = [open_dump(str(path)) for path in (dump, folder, tmp_path / "dump.npz")]
    for row in dumps[0].rows.values():
        values = [one.value(row).numpy() for one in dumps]
        assert np.array_equal(values[0], values[1]) and np.array_equal(values[0], values[2])


def edited(dump, out, change):
    """Writes a dump with another manifest."""
    from safetensors.numpy import load_file, save_file

    from xcheck.evaluator.candidate import open_dump

    manifest = json.loads(json.dumps(open_dump(str(dump)).manifest))
    change(manifest)
    save_file(load_file(dump), out, {"xcheck": json.dumps(manifest)})
    return out


def test_broken_dumps_are_refused(session, tmp_path):
    model, dump = session
    (tmp_path / "text.safetensors").write_text("no dump at all")
    (tmp_path / "cut.safetensors").write_bytes(dump.read_bytes()[:-500])
    changes = [
        lambda m: m.update(format="other"),
        lambda m: m.update(tensors=[]),
        lambda m: m.pop("passes"),
        lambda m: m["tensors"][0].update(dtype="f7"),
        lambda m: m["producer"]["settings"].update(dtype="int8"),
        lambda m: m["tensors"][3].update(file="nowhere"),
    ]
    paths = [edited(dump, tmp_path / f"{at}.safetensors", change) for at, change in enumerate(changes)]
    paths += [tmp_path / "text.safetensors", tmp_path / "cut.safetensors", tmp_path / "none.safetensors", tmp_path]
    for path, answer in zip(paths, served(*(evaluate(model, path) for path in paths))):
        message = answer[-1][0]
        assert message["message"] == "error" and message["code"] == "dump", (path, message)


def test_a_module_or_call_that_does_not_exist_is_missing(session, tmp_path):
    model, dump = session

    def change(manifest):
        manifest["tensors"][0]["module"] = "model.nowhere"
        manifest["tensors"][1]["call"] = 3
        manifest["tensors"][2].update(shape=[1, 32, 10])

    path = edited(dump, tmp_path / "dump.safetensors", change)
    (answer,) = served(evaluate(model, path))
    missing = [message["why"] for message, _ in answer if message["message"] == "missing"]
    assert len(missing) == 3 and any("no such module" in why for why in missing)
    assert any("expected call 3" in why for why in missing) and any("shape" in why for why in missing)


def test_models_that_cannot_be_loaded_are_refused(session, tmp_path):
    model, dump = session
    config = json.loads((model / "config.json").read_text())
    configs = {
        "remote-code": {**config, "model_type": "brand_new", "auto_map": {"AutoModel": "modeling_x.X"}},
        "model": {**config, "model_type": "brand_new"},
    }
    for code, content in configs.items():
        (tmp_path / code).mkdir()
        (tmp_path / code / "config.json").write_text(json.dumps(content))
        (answer,) = served(evaluate(tmp_path / code, dump))
        assert only_error(answer)[0] == code
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "config.json").write_text(json.dumps(config))
    for path in (tmp_path / "without", tmp_path / "nowhere"):
        (answer,) = served(evaluate(path, dump))
        assert only_error(answer)[0] == "model"


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("qr", "unsupported-operation", "linalg_qr"),
        ("memory", "memory", "not enough memory"),
        ("type", "model", "TypeError"),
    ],
)
def test_an_unknown_operation_lack_of_memory_and_other_errors_are_named(session, monkeypatch, function, code, words):
    import torch
    import transformers.models.llama.modeling_llama as modeling

    model, dump = session
    old = modeling.LlamaMLP.forward

    def forward(self, x):
        if hasattr(x, "exact"):
            if function == "qr":
                torch.linalg.qr(x[0])
            if function == "memory":
                raise MemoryError
            raise TypeError("wrong")
        return old(self, x)

    monkeypatch.setattr(modeling.LlamaMLP, "forward", forward)
    (answer,) = served(evaluate(model, dump))
    message = answer[-1][0]
    assert message["message"] == "error" and message["code"] == code and words in message["text"]


def test_the_worker_ends_with_its_parent_in_the_middle_of_an_answer(tmp_path):
    import time

    started = tmp_path / "pid"
    busy = (
        "import os, time; import xcheck.evaluator.__main__ as m\n"
        f"def serve(requests, stream): open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(60)\n"
        "m.serve = serve; m.main()"
    )
    parent = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {busy!r}], stdin=-1); time.sleep(60)"
    )
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen([sys.executable, "-c", parent], env=env, stdout=subprocess.DEVNULL)

    def until(condition, seconds):
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            time.sleep(0.1)
        return condition()

    def is_running(pid):
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return status.rsplit(")", 1)[1].split()[0] != "Z"

    if not Path("/proc/self/stat").exists():
        process.kill()
        pytest.skip("no /proc")
    assert until(lambda: started.exists() and started.read_text(), 60)
    pid = int(started.read_text())
    assert is_running(pid)
    process.kill()
    process.wait()
    assert until(lambda: not is_running(pid), 20)


def with_inputs(**inputs):
    def change(manifest):
        manifest["inputs"] = {
            name: {"dtype": "i32", "shape": [1, 10], "file": "p0/ids", **entry} for name, entry in inputs.items()
        }

    return change


def test_other_inputs_are_checked(session, tmp_path):
    from safetensors.numpy import load_file, save_file

    from xcheck.evaluator.candidate import open_dump

    model, dump = session
    tokens = open_dump(str(dump)).passes[0]
    cases = {
        "right": with_inputs(input_ids={"shape": [1, len(tokens)]}),
        "a pass below 1": with_inputs(input_ids={"shape": [1, len(tokens)], "pass": 1}),
        "no such argument": with_inputs(pixel_values={"shape": [1, len(tokens)]}),
        "other tokens": with_inputs(input_ids={"shape": [1, len(tokens)], "file": "p0/other"}),
        "expected dtype": with_inputs(input_ids={"dtype": "u128"}),
        "the shape": with_inputs(input_ids={"shape": [1, 99]}),
        "expected one of eager": lambda m: m["producer"]["settings"].update(experts="magic"),
    }
    for at, (words, change) in enumerate(cases.items()):
        path = edited(dump, tmp_path / f"{at}.safetensors", change)
        manifest = json.dumps(open_dump_manifest(path))
        ids = np.array([tokens], dtype=np.int32)
        save_file({**load_file(path), "p0/ids": ids, "p0/other": ids + 1}, path, {"xcheck": manifest})
        (answer,) = served(evaluate(model, path))
        last = answer[-1][0]
        if words == "right":
            assert last["message"] != "error", last
        else:
            assert last["message"] == "error" and last["code"] == "dump" and words in last["text"], (words, last)


def open_dump_manifest(path):
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["xcheck"])


def test_files_outside_of_a_dump_are_refused(session, tmp_path):
    from safetensors.numpy import load_file

    from xcheck.evaluator.candidate import open_dump
    from xcheck.evaluator.errors import EvaluatorError

    _, dump = session
    manifest = open_dump_manifest(dump)
    folder = tmp_path / "dump"
    folder.mkdir()
    row = manifest["tensors"][0]
    values = load_file(dump)[row["file"]]
    np.save(tmp_path / "secret.npy", values)
    np.save(folder / "inside.npy", values)
    for file, is_right in (("inside", True), ("../secret", False), (str(tmp_path / "secret"), False)):
        manifest["tensors"] = [{**row, "file": file}]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        found = open_dump(str(folder))
        (one,) = found.rows.values()
        if is_right:
            assert np.array_equal(found.value(one).numpy(), values)
        else:
            with pytest.raises(EvaluatorError):
                found.value(one)
