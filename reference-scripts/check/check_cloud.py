#!/usr/bin/env python3
"""Reads a model and a dump that ship from real implementations of the clouds' stores: Amazon's by moto, Azure's by Azurite.

    cargo build --release --features cloud
    python3 reference-scripts/check/check_cloud.py target/release/xcheck
    python3 reference-scripts/check/check_cloud.py target/release/xcheck --azure     # needs npm

Both are installed below .venv-cloud, from PyPI and npm, and run on this machine only. moto checks signatures, so that the
right keys must be taken for a run to pass, and wrong ones must be refused. Prints a line for each check; ends with status 1
where one fails.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-cloud"
PACKAGES = ["moto[server]", "boto3", "azure-storage-blob"]
BUCKET = "models"
MODEL = "tiny-llama2/hf"
GGUF = "tiny-llama2/tiny-llama2-q8_0.gguf"
DUMP = "tiny-llama2/dumps/transformers-f32.safetensors"
# Azurite's account, the same everywhere.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
SETTINGS = ("AWS_", "AZURE_", "AZURITE_", "GOOGLE_", "HF_", "XCHECK_")


class Checks:
    """Runs xcheck with the variables of a store, and counts what is not as it should be."""

    def __init__(self, xcheck: Path, cache: Path) -> None:
        self.xcheck, self.cache, self.failed = xcheck, cache, 0

    def run(self, name: str, arguments: list[str], variables: dict, code: int, expected: list[str], never=()) -> None:
        """The exit code, what the output must hold, and what it must not."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith(SETTINGS)}
        environment |= variables | {"XCHECK_CACHE": str(self.cache)}
        done = subprocess.run(
            [self.xcheck, *arguments], env=environment, capture_output=True, text=True, cwd=self.cache.parent, timeout=300
        )
        said = done.stdout + done.stderr
        missing = [text for text in expected if text not in " ".join(said.split())]
        told = [text for text in never if text in said]
        is_right = done.returncode == code and not missing and not told
        self.failed += not is_right
        print(f"{'ok    ' if is_right else 'FAILED'} {name}", flush=True)
        if not is_right:
            print(f"exit code {done.returncode}, missing {missing}, told {len(told)} secrets\n{said}", flush=True)


def files() -> list[str]:
    """What is put into the bucket, by its path below checkpoints/."""
    folder = ROOT / "checkpoints" / MODEL
    return [f"{MODEL}/{file.name}" for file in folder.iterdir()] + [GGUF, DUMP]


def content(path: str) -> bytes:
    return (ROOT / "checkpoints" / path).read_bytes()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def server(command: list[str], port: int, environment: dict):
    """A server that is there when this begins and gone when it ends."""
    process = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        else:
            sys.exit(f"{command[0]} does not answer on port {port}")
        yield
    finally:
        process.terminate()
        process.wait()


def read_all(checks: Checks, scheme: str, variables: dict) -> None:
    """What must work from any store."""
    model, dump, gguf = (f"{scheme}://{BUCKET}/{path}" for path in (MODEL, DUMP, GGUF))
    for name in ["a model and its dump", "the same again, from the cache"]:
        run = ["run", "--model", model, "--reference", dump, "--no-report"]
        checks.run(f"{scheme}: {name}", run, variables, 0, ["pass transformers-f32", f"read in parts from {scheme}://"])
    layer = ["--layer", "2", "--introduced", "--no-report"]
    checks.run(f"{scheme}: one layer", ["run", "--model", model, "--reference", dump, *layer], variables, 0, ["L2"])
    checks.run(f"{scheme}: inspect", ["inspect", gguf], variables, 0, ["read in parts, ETag", "GGUF version 3"])
    checks.run(f"{scheme}: compare", ["compare", "tiny-llama2/transformers-f32", dump], variables, 0, ["bit-identical, 100 %"])
    missing = ["inspect", f"{scheme}://{BUCKET}/none.gguf"]
    checks.run(f"{scheme}: an object that is not there", missing, variables, 2, ["HTTP 404", "there is no such object"])
    missing = ["inspect", f"{scheme}://no-such-bucket/none.gguf"]
    checks.run(f"{scheme}: a bucket that is not there", missing, variables, 2, ["HTTP 404", "there is no such object"])


def amazon(checks: Checks) -> None:
    import boto3
    import requests

    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(VENV / "bin" / "moto_server"), "--host", "127.0.0.1", "--port", str(port)]
    with server(command, port, {"INITIAL_NO_AUTH_ACTION_COUNT": "1000"}):
        options = {"endpoint_url": endpoint, "region_name": "us-east-1"}
        options |= {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing"}
        users, store = boto3.client("iam", **options), boto3.client("s3", **options)
        users.create_user(UserName="reader")
        policy = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
        users.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
        key = users.create_access_key(UserName="reader")["AccessKey"]
        store.create_bucket(Bucket=BUCKET)
        for path in files():
            store.put_object(Bucket=BUCKET, Key=path, Body=content(path))
        requests.post(f"{endpoint}/moto-api/reset-auth", data="0", timeout=30).raise_for_status()
        right = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }
        read_all(checks, "s3", right)
        refuse_wrong_keys(checks, right)


def refuse_wrong_keys(checks: Checks, right: dict) -> None:
    run = ["run", "--model", f"s3://{BUCKET}/{MODEL}", "--reference", f"s3://{BUCKET}/{DUMP}", "--no-report"]
    secrets = [right["AWS_ACCESS_KEY_ID"], right["AWS_SECRET_ACCESS_KEY"], "AKIAWRONG", "wr0ngsecret", "Signature="]
    for name, wrong, expected in [
        ("a key that nobody has", {"AWS_ACCESS_KEY_ID": "AKIAWRONG"}, "HTTP 403 (InvalidAccessKeyId)"),
        ("a wrong secret", {"AWS_SECRET_ACCESS_KEY": "wr0ngsecret"}, "HTTP 403 (SignatureDoesNotMatch)"),
    ]:
        said = [expected, "no access", "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"]
        checks.run(f"s3: {name}", ["inspect", f"s3://{BUCKET}/{GGUF}"], right | wrong, 2, said, secrets)
        checks.run(f"s3: {name}, for a model", run, right | wrong, 2, said, secrets)


def azure(checks: Checks) -> None:
    from azure.storage.blob import BlobServiceClient

    folder, port = VENV / "azurite", free_port()
    if not (folder / "node_modules").is_dir():
        subprocess.run(["npm", "install", "--silent", "--prefix", str(folder), "azurite"], check=True)
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(folder / "node_modules" / ".bin" / "azurite-blob"), "--inMemoryPersistence", "--skipApiVersionCheck"]
    with server([*command, "--blobHost", "127.0.0.1", "--blobPort", str(port)], port, {}):
        store = BlobServiceClient(f"{endpoint}/devstoreaccount1", credential=AZURITE_KEY)
        store.create_container(BUCKET)
        for path in files():
            store.get_blob_client(BUCKET, path).upload_blob(content(path))
        right = {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": endpoint,
            "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
            "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY,
            "AZURE_ALLOW_HTTP": "true",
        }
        read_all(checks, "az", right)
        wrong = right | {"AZURE_STORAGE_ACCOUNT_KEY": "d3JvbmdrZXk="}
        said = ["HTTP 403 (AuthorizationFailure)", "AZURE_STORAGE_ACCOUNT_KEY"]
        arguments = ["inspect", f"az://{BUCKET}/{GGUF}"]
        checks.run("az: a wrong key", arguments, wrong, 2, said, [AZURITE_KEY, "d3JvbmdrZXk="])


def in_the_environment_of_its_packages() -> None:
    """Goes on in .venv-cloud, which is made where it is not there."""
    python = VENV / "bin" / "python"
    if Path(sys.prefix) == VENV:
        return
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    os.execv(python, [str(python), *sys.argv])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("xcheck", type=Path, help="the program, built with --features cloud")
    parser.add_argument("--azure", action="store_true", help="Azure's store, too, by Azurite, which npm installs")
    arguments = parser.parse_args()
    in_the_environment_of_its_packages()
    with tempfile.TemporaryDirectory() as folder:
        checks = Checks(arguments.xcheck.resolve(), Path(folder) / "cache")
        amazon(checks)
        if arguments.azure:
            azure(checks)
    print("all as it should be" if checks.failed == 0 else f"{checks.failed} failed")
    sys.exit(checks.failed != 0)


if __name__ == "__main__":
    main()
