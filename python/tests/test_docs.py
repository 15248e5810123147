"""The tables of taps in the documents are the package's own, and their Python names what the package has."""

from __future__ import annotations

import ast
import re

import pytest

import xcheck
from conftest import ROOT

LETTERS = dict(token="T", head="H", kv_head="Hkv", head_dim="D", hidden="d", ffn="F", key="S", vocab="V", rank="k")
LETTERS |= dict(expert="E", chosen="c", state="M")


def shapes() -> dict[str, str]:
    """Each tap's shape in the letters of the documents."""
    letters = {tap.name: ",".join(LETTERS[axis] for axis in tap.axes) for tap in xcheck.TAPS.values()}
    joined = ("attn_context", "attn_sub_norm", "attn_gate", "attn_gated")
    return {**letters, **dict.fromkeys(joined, "T,H*D")}


def test_the_readme_lists_every_tap():
    text = (ROOT / "python" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (layer|pass|sequence) \| \[(.*)\] \| (.*) \|$", text, re.MULTILINE)
    ours = [(tap.name, tap.scope, shapes()[tap.name], tap.what) for tap in xcheck.TAPS.values()]
    assert [
        (name, scope, shape.replace(", ", ",").replace("·", "*"), what) for name, scope, shape, what in rows
    ] == ours


def test_the_contract_lists_the_same_taps_with_the_same_shapes():
    text = (ROOT / "docs" / "reference" / "dump-format.md").read_text(encoding="utf-8").partition("## Taps")[2]
    table = {}
    for names, shape in re.findall(r"^\| ((?:`\w+` ?)+) \| \d* ?\(?\w+\)? \| ([^|]*) \|", text, re.MULTILINE):
        names, kinds = re.findall(r"`(\w+)`", names), shape.strip().split(" / ")
        for name in names:
            last = kinds[-1] if name[0] in "kv" else kinds[0]
            table[name] = {"[] u32": "", "same": "T,H,D" if name[0] == "q" else "T,Hkv,D"}.get(last, last)
    assert table.pop("generated") == "N u32"
    assert table == shapes()


PAGES = [ROOT / "README.md", ROOT / "python" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = [
    pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S))
]


def test_the_documents_have_snippets():
    fences = sum(len(re.findall(r"^\s*```+\s*python", page.read_text(encoding="utf-8"), re.M)) for page in PAGES)
    assert len(SNIPPETS) == fences >= 15


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_names_what_the_package_has(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "xcheck":
            assert hasattr(xcheck, node.attr), node.attr


@pytest.mark.parametrize("page", ["SUMMARY.md", "index.md"])
def test_python_is_the_first_guide(page):
    _, guides = (ROOT / "docs" / page).read_text(encoding="utf-8").split("# How-to guides", 1)
    assert re.search(r"\]\(([^)]*)\)", guides)[1] == "how-to/check-from-python.md"
