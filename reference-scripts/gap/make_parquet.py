#!/usr/bin/env python3
"""Writes sequences of tests/data/gap as Parquet, with the writers and the settings that people use, and as JSONL.

All files of a run have the same data. Needs pyarrow, pandas, polars, duckdb and numpy.
"""

import argparse
import base64
import io
import json
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

SEQUENCES = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, default=Path("tests/data/gap/tiny-qwen3.jsonl"))
    parser.add_argument("--routes", type=Path, default=Path("tests/data/gap/tiny-qwen3moe.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("tests/data/gap/parquet"))
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    rows = [row(number, json.loads(line)) for number, line in enumerate(open(options.pairs))][:SEQUENCES]
    with open(options.out / "same.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    write_all(rows, options.out)
    routes([json.loads(line) for line in open(options.routes)], options.out)
    refused(rows, options.out)


def row(number: int, line: dict) -> dict:
    """A sequence with the log-probabilities of both sides; null at the prompt, and at one scored token."""
    prompt = line["prompt_length"]
    unscored = [None] * prompt
    mask = [0] * prompt + [1] * (len(line["tokens"]) - prompt)
    rollout, trainer = ([float(np.float32(value)) for value in line[name]] for name in ("bf16_cache", "bf16_sdpa"))
    if number == 3:
        rollout[7] = trainer[7] = None
    return {
        "tokens": line["tokens"],
        "rollout_logprobs": unscored + rollout,
        "trainer_logprobs": unscored + trainer,
        "prompt_length": prompt,
        "temperature": None if number == 2 else 1.0,
        "version": 100 + number,
        "mask": mask,
        "dtype": "bf16",
        "text": f"not read {number}",
    }


def write_all(rows: list[dict], out: Path) -> None:
    frame = pd.DataFrame(rows)
    frame.to_parquet(out / "pandas.parquet")
    table = pa.table(columns(rows, pa.list_, pa.int64(), pa.float32()))
    pq.write_table(table, out / "pyarrow-snappy.parquet")
    shifted = [row | {"rollout_logprobs": shifted_left(row["rollout_logprobs"])} for row in rows]
    pq.write_table(pa.table(columns(shifted, pa.list_, pa.int64(), pa.float32())), out / "shifted.parquet")
    large = pa.table(columns(rows, pa.large_list, pa.uint32(), pa.float64()))
    pq.write_table(large, out / "pyarrow-zstd-v2.parquet", compression="zstd", data_page_version="2.0", row_group_size=2)
    pq.write_table(table, out / "pyarrow-gzip-plain.parquet", compression="gzip", use_dictionary=False)
    encodings = {"tokens.list.element": "DELTA_BINARY_PACKED", "version": "DELTA_BINARY_PACKED"}
    encodings |= {f"{side}_logprobs.list.element": "BYTE_STREAM_SPLIT" for side in ("rollout", "trainer")}
    settings = {"compression": "lz4", "use_dictionary": False, "column_encoding": encodings}
    pq.write_table(
        table, out / "pyarrow-lz4-pages.parquet", data_page_size=100, write_batch_size=16, write_page_checksum=True, **settings
    )
    small = pa.table(columns(rows, pa.list_, pa.int16(), pa.float32()))
    pq.write_table(small, out / "pyarrow-none-v2.parquet", compression="none", data_page_version="2.0", data_page_size=200)
    pl.DataFrame(rows).write_parquet(out / "polars.parquet")
    pl.DataFrame(rows).write_parquet(out / "polars-lz4-pages.parquet", compression="lz4", data_page_size=128, row_group_size=4)
    duckdb.sql(f"copy (select * from frame) to '{out}/duckdb.parquet' (format parquet)")
    duckdb.sql(f"copy (select * from frame) to '{out}/duckdb-v2.parquet' (format parquet, parquet_version v2, codec zstd)")


def shifted_left(logprobs: list) -> list:
    """Log-probabilities one token too early, as if the logits were not shifted."""
    return [*logprobs[1:], None]


def columns(rows: list[dict], list_of, token: pa.DataType, logprob: pa.DataType) -> dict[str, pa.Array]:
    kinds = {"tokens": list_of(token), "mask": list_of(pa.bool_()), "version": pa.int32(), "prompt_length": pa.uint8()}
    kinds |= {f"{side}_logprobs": list_of(logprob) for side in ("rollout", "trainer")}
    kinds |= {"temperature": pa.float32(), "dtype": pa.string(), "text": pa.string()}
    return {name: pa.array([value(kind, row[name]) for row in rows], kind) for name, kind in kinds.items()}


def value(kind: pa.DataType, value):
    return [bool(one) for one in value] if getattr(kind, "value_type", None) == pa.bool_() else value


def routes(rows: list[dict], out: Path) -> None:
    """The experts of both sides: lists of lists of lists, and the text that vLLM sends (.npy in base64)."""
    sides = ("rollout", "trainer")
    columns = {name: pa.array([row[name] for row in rows]) for name in ("tokens", "prompt_length")}
    columns |= {f"{side}_logprobs": pa.array([row[side] for row in rows], pa.list_(pa.float32())) for side in sides}
    nested = pa.list_(pa.list_(pa.list_(pa.int16())))
    columns["rollout_routed_experts"] = pa.array([row["rollout_routes"] for row in rows], nested)
    columns["trainer_routed_experts"] = pa.array([npy(row["trainer_routes"]) for row in rows])
    pq.write_table(pa.table(columns), out / "routes.parquet", data_page_size=300, row_group_size=10)


def npy(experts: list) -> str:
    file = io.BytesIO()
    np.save(file, np.array(experts, np.uint8))
    return base64.b64encode(file.getvalue()).decode()


def refused(rows: list[dict], out: Path) -> None:
    """Files that cannot be compared."""
    nested = [{"tokens": row["tokens"], "logprobs": [{"value": one} for one in row["rollout_logprobs"]]} for row in rows]
    pq.write_table(pa.Table.from_pylist(nested), out / "refused-nested.parquet")
    one = {"tokens": rows[0]["tokens"], "logprobs": rows[0]["rollout_logprobs"]}
    pq.write_table(pa.Table.from_pylist([one]), out / "refused-brotli.parquet", compression="brotli")
    pq.write_table(pa.Table.from_pylist([{"tokens": [1, 2], "scores": [0.0, 1.0]}]), out / "refused-missing.parquet")
    pq.write_table(pa.Table.from_pylist([one | {"logprobs": ["a", "b"]}]), out / "refused-texts.parquet")
    zeros = {name: pa.array([np.zeros(9_000_000, np.float32)]) for name in ("tokens", "logprobs")}
    pq.write_table(pa.table(zeros), out / "refused-zeros.parquet", data_page_size=1 << 28)
    # One page each: 32 MB in 1.5 kB, and 128 million values in 8 kB.
    page = {"data_page_size": 1 << 30, "max_rows_per_page": 1 << 30}
    large = {name: pa.array([np.zeros(1000)] * 4000) for name in ("tokens", "logprobs")}
    pq.write_table(pa.table(large), out / "refused-page.parquet", compression="zstd", use_dictionary=False, **page)
    values = {name: pa.array([np.zeros(8000, np.float32)] * 16000) for name in ("tokens", "logprobs")}
    pq.write_table(pa.table(values), out / "refused-values.parquet", **page)
    encrypted(pa.Table.from_pylist([one]), out / "refused-encrypted.parquet")


def encrypted(table: pa.Table, path: Path) -> None:
    """Writes a table with an encrypted footer; the key stays in this process."""

    class Vault(pe.KmsClient):
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            return base64.b64encode(key_bytes)

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
            return base64.b64decode(wrapped_key)

    configuration = pe.EncryptionConfiguration(footer_key="footer", column_keys={"all": ["tokens.list.element", "logprobs.list.element"]})
    factory = pe.CryptoFactory(lambda _: Vault())
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


if __name__ == "__main__":
    main()
