"""The one place where tests get a project to build from: right ones, and ones whose build lies.

``make_project(folder)`` makes ``demo`` with VERSION.txt and a build backend of its own that needs no
registry. ``lies`` changes what the backend writes: ``wheel_file``, ``dist_info``, ``data``,
``metadata_name``, ``metadata_version``, ``sdist_file``, ``pkg_info_version``, ``extra_wheel``, or ``fail``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

_PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "demo"
dynamic = ["version"]
"""

_BACKEND = """\
import base64, hashlib, io, json, os, sys, tarfile, time, zipfile
from pathlib import Path

facts = json.loads(Path("backend.json").read_text())


def metadata(name, version):
    epoch = os.environ["SOURCE_DATE_EPOCH"]
    return f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n\\nSOURCE_DATE_EPOCH {epoch}\\n"


def build_sdist(folder, config_settings=None):
    if "fail" in facts:
        print(*(f"line {number}" for number in range(40)), sep="\\n")
        sys.exit(facts["fail"])
    top = facts["sdist_file"].removesuffix(".tar.gz")
    with tarfile.open(Path(folder, facts["sdist_file"]), "w:gz") as archive:
        for path in sorted(path for path in Path().rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            archive.add(path, f"{top}/{path}")
        info = tarfile.TarInfo(f"{top}/PKG-INFO")
        data = metadata("demo", facts["pkg_info_version"]).encode()
        info.size, info.mtime = len(data), time.time()
        archive.addfile(info, io.BytesIO(data))
    return facts["sdist_file"]


def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = facts["dist_info"]
    files = {path.as_posix(): path.read_bytes() for path in sorted(Path("demo").rglob("*.py"))}
    if "data" in facts:
        files[f"{facts['data']}/scripts/hello"] = b"#!python\\nprint('hello')\\n"
    files[f"{info}/METADATA"] = metadata(facts["metadata_name"], facts["metadata_version"]).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\\nGenerator: demo\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\\n"
        for name, data in files.items()
    ]
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\\n"]).encode()
    for name in [facts["wheel_file"], *facts.get("extra_wheel", [])]:
        with zipfile.ZipFile(Path(folder, name), "w") as archive:
            for member, data in files.items():
                archive.writestr(zipfile.ZipInfo(member), data)
    return facts["wheel_file"]
"""


def make_project(
    folder: Path,
    *,
    version_text: str | None = "1.0-dev0\n",
    built: str = "1.0.dev0",
    plan: str = "",
    module: str = "VALUE = 1\n",
    **lies: Any,
) -> Path:
    """Write a project into ``folder`` and return it.

    Args:
        version_text: the bytes of VERSION.txt; ``None`` for no such file.
        built: the version that the backend writes everywhere, unless it lies.
        plan: what to put behind ``[project]`` in pyproject.toml.
        module: the text of ``demo/__init__.py``.
        lies: what the backend writes instead of the truth.
    """
    (folder / "demo").mkdir(parents=True)
    (folder / "demo" / "__init__.py").write_text(module)
    (folder / "pyproject.toml").write_text(f"{_PYPROJECT}\n{plan}")
    (folder / "backend.py").write_text(_BACKEND)
    if version_text is not None:
        (folder / "VERSION.txt").write_text(version_text)
    facts: dict[str, object] = {
        "wheel_file": f"demo-{built}-py3-none-any.whl",
        "dist_info": f"demo-{built}.dist-info",
        "metadata_name": "demo",
        "metadata_version": built,
        "sdist_file": f"demo-{built}.tar.gz",
        "pkg_info_version": built,
    }
    (folder / "backend.json").write_text(json.dumps(facts | lies))
    return folder


def copy_checkout(target: Path) -> Path:
    """This repository's sources, without the tests and what builds and tools leave in a checkout."""
    left = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "dist", "build", "tests")
    return shutil.copytree(CHECKOUT, target, ignore=left)


@cache
def _registry_answers() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--timeout=10", "--retries=0"]
        return subprocess.run([*command, "--dest", folder, "packaging>=24.2"], capture_output=True).returncode == 0


def need_registry() -> None:
    """Skip the test where no package registry answers."""
    if not _registry_answers():
        pytest.skip("no package registry answers pip")
