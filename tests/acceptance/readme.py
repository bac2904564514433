"""The README as a program: its console examples are run, its tables come from the code.

``python -m tests.acceptance.readme`` writes what they give into README.md; the test compares.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from build_tools.wheels import WheelEdit, repack
from build_tools.wheels.limits import LIMITS, Limits
from build_tools.wheels.rules import RULES, SOURCES
from tests.build_tools.wheel_factory import STORED, Archive, Member, make_wheel

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
_BLOCK = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
_SETUP = """te-wheel() { "$PYTHON" -m build_tools "$@"; }
torchrun() { OMP_NUM_THREADS=1 "$PYTHON" -m torch.distributed.run --standalone "$@"; }
"""
# What rounding makes of it differs from one machine to the next.
_ROUNDING = re.compile(r"\b\d\.\de[-+]\d\d\b")


def rendered() -> str:
    """README.md with the output of every example and the tables as they are now."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _prepare(folder)
        text = _BLOCK.sub(lambda block: _rendered_block(block[0], folder), README.read_text())
    tables = {"finding codes": codes_table, "sources": sources_table, "limits": limits_table}
    if importlib.util.find_spec("torch") is not None:  # else the table of attention stays as it is
        from tests.acceptance.attention_table import features_table

        tables["attention features"] = features_table
    for name, table in tables.items():
        marks = rf"(?<=<!-- {name}: generated, a test compares -->\n).*?(?=<!-- end of {name} -->)"
        made = table()
        text = re.sub(marks, lambda _, made=made: made, text, count=1, flags=re.DOTALL)  # type: ignore[misc]
    return text


def sources_table() -> str:
    """Where rules come from."""
    rows = ["| source | title |", "|---|---|"]
    for source, (title, address) in SOURCES.items():
        rows.append(f"| {source} | {f'[{title}]({address})' if address else title} |")
    return "\n".join(rows) + "\n"


def limits_table() -> str:
    """How much is read at most, and what `--limit` calls it."""
    text = dict(re.findall(r"^ {8}(\w+): (.*?)(?=^ {8}\w+: |\n\n)", Limits.__doc__ or "", re.DOTALL | re.MULTILINE))
    rows = ["| limit | default | of |", "|---|---|---|"]
    for name, default in LIMITS._asdict().items():
        rows.append(f"| `{name}` | {default:,} | {' '.join(text[name].split()).rstrip('.').replace('``', '`')} |")
    return "\n".join(rows) + "\n"


def codes_table() -> str:
    """The findings in the order of the table in the code."""
    rows = ["| code | rule | source | severity | repack |", "|---|---|---|---|---|"]
    for rule in RULES.values():
        refused = "refused" if rule.blocks else "carried"
        rows.append(f"| `{rule.code}` | {rule.summary} | {rule.source} | {rule.severity} | {refused} |")
    return "\n".join(rows) + "\n"


def _prepare(folder: Path) -> None:
    wheel = make_wheel(
        folder / "dist",
        files={"demo/__init__.py": "VALUE = 1\n", "demo/bin/run": Member("#!/bin/sh\necho run\n", mode=0o755)},
        metadata="Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nRequires-Python: >=3.11\n"
        'Requires-Dist: torch>=2.6\nProvides-Extra: all\nRequires-Dist: demo[gpu]; extra == "all"\n\n# demo\n',
        # Not compressed: what deflate makes, and so the digest, differs from one zlib to the next.
        archive=Archive(every={"method": STORED}),
    )
    plan = folder / "parts" / "pyproject.toml"
    plan.parent.mkdir()
    plan.write_text(
        '[tool.te-wheel.variants.cu12]\nname = "demo-cu12"\n\n[tool.te-wheel.variants.cu13]\nname = "demo-cu13"\n\n'
        '[tool.te-wheel.variants.meta]\nextras = ["cu12", "cu13"]\n'
    )
    by_hand = folder / "downloads" / "demo-1.0+CU130-py3-none-any.whl"
    by_hand.parent.mkdir()
    by_hand.write_bytes(wheel.read_bytes())
    make_wheel(
        folder / "patched",
        files={"demo/__init__.py": "VALUE = 2\n", "demo/patch.py": "FIXED = True\n"},
        record=lambda rows: [[*rows[0][:2], "9"], *rows[2:]],
        archive=Archive(prefix=b"#!/bin/sh\n", every={"method": STORED}),
    )
    cu12 = repack(wheel, folder / "renamed", WheelEdit(name="demo-cu12")).path
    cu12.rename(cu12.with_name("demo_cu13-1.0-py3-none-any.whl"))


def _rendered_block(block: str, folder: Path) -> str:
    if "torchrun" in block and importlib.util.find_spec("torch") is None:
        return block
    found = _run(block, folder)
    return block if _without_rounding(found) == _without_rounding(block) else found


def _without_rounding(block: str) -> str:
    """Each number that is as good as 0 as 0; others stay."""
    return _ROUNDING.sub(lambda number: "0" if float(number[0]) < 1e-13 else number[0], block)


def _run(block: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    out = []
    for line in block.splitlines():
        if line.startswith("$ "):
            command = ["bash", "-c", _SETUP + line[2:]]
            done = subprocess.run(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            out.append(f"{line}\n{done.stdout}")
    return "".join(out)


if __name__ == "__main__":
    README.write_text(rendered())
