"""pip and uv install from an index that ``te-wheel index`` made: over http, from the disk, and under a base URL."""

from __future__ import annotations

import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from build_tools.release import release
from build_tools.wheels import make_index
from tests.acceptance.judges import Verdict, import_from, require, run
from tests.build_tools.wheel_factory import make_wheel


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A static server, as ``python -m http.server`` is one, that notes what it is asked for."""

    asked: list[str]

    def log_request(self, code: object = "-", size: object = "-") -> None:
        self.asked.append(self.path)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The URL of a folder, and the paths that are asked for."""
    asked: list[str] = []
    handler = functools.partial(type("Handler", (Quiet,), {"asked": asked}), directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def install(tool: str, index: str, target: Path, *requirements: str) -> Verdict:
    """Install with everything that is required; there is no other index."""
    require(tool)
    if tool == "pip":
        options = ["--isolated", "--no-cache-dir", "--no-compile", "--root-user-action", "ignore"]
        command = ["pip", "install", *options, "--index-url", index, "--target", str(target)]
    else:
        options = ["--no-config", "--no-cache", "--default-index", index, "--python", sys.executable]
        command = ["uv", "pip", "install", *options, "--target", str(target)]
    return run([sys.executable, "-m", *command, *requirements], NO_PROXY="127.0.0.1", PIP_CONFIG_FILE="/dev/null")


def versions(target: Path) -> list[str]:
    return sorted(path.name.removesuffix(".dist-info") for path in target.glob("*.dist-info"))


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    folder = tmp_path / "a dist"
    for version in ("1.0", "1.0+cu128", "1.1", "1!0.5+cpu"):
        make_wheel(folder / "whl", name="demo", version=version)
    make_wheel(folder, name="old", headers=["Requires-Python: >=99"], version="2.0")
    make_wheel(folder, name="old", version="1.0")
    (folder / "yanked.txt").write_text("demo-1!0.5+cpu-py3-none-any.whl wrong epoch\n")
    return folder


@pytest.mark.parametrize("tool", ["pip", "uv"])
@pytest.mark.parametrize(
    ("requirement", "installed"),
    [
        ("demo", "demo-1.1"),  # the yanked one is not taken
        ("demo==1.0+cu128", "demo-1.0+cu128"),
        ("demo==1!0.5+cpu", "demo-1!0.5+cpu"),  # unless it is asked for
        ("old", "old-1.0"),  # the newer one is not for this Python
    ],
)
class TestInstall:
    def test_over_http(self, dist: Path, tmp_path: Path, tool: str, requirement: str, installed: str) -> None:
        make_index(dist)
        with served(dist) as (url, asked):
            verdict = install(tool, f"{url}/simple/", tmp_path / "target", requirement)
        assert verdict.accepted, verdict.said
        assert versions(tmp_path / "target") == [installed]
        name = installed.partition("-")[0]
        assert import_from(tmp_path / "target", name).accepted
        assert not [path for path in asked if "+" in path]
        assert [path for path in asked if path.endswith(".whl.metadata")], "the sidecar spares the wheel"

    def test_from_the_disk(self, dist: Path, tmp_path: Path, tool: str, requirement: str, installed: str) -> None:
        made = make_index(dist, tmp_path / "elsewhere")
        verdict = install(tool, f"{made.folder.as_uri()}/", tmp_path / "target", requirement)
        assert verdict.accepted, verdict.said
        assert versions(tmp_path / "target") == [installed]


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_pages_and_files_may_lie_on_two_servers(dist: Path, tmp_path: Path, tool: str) -> None:
    with served(dist) as (files, _), served(tmp_path / "out") as (pages, asked):
        make_index(dist, tmp_path / "out", base_url=files)
        verdict = install(tool, f"{pages}/simple/", tmp_path / "target", "demo==1.0+cu128")
    assert verdict.accepted, verdict.said
    assert versions(tmp_path / "target") == ["demo-1.0+cu128"]
    assert "/simple/demo/" in asked
    assert not [path for path in asked if path.endswith((".whl", ".metadata"))]


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_a_wheel_that_is_not_what_the_index_says_is_refused(dist: Path, tmp_path: Path, tool: str) -> None:
    made = make_index(dist)
    make_wheel(dist / "whl", version="1.1", files={"demo/__init__.py": "VALUE = 'other'\n"})
    verdict = install(tool, f"{made.folder.as_uri()}/", tmp_path / "target", "demo==1.1")
    assert not verdict.accepted
    assert "hash" in verdict.said.lower()


PARTS = """
[tool.te-wheel.variants.cu12]
name = "demo-cu12"
[tool.te-wheel.variants.cu13]
name = "demo-cu13"
[tool.te-wheel.variants.meta]
extras = ["cu12", "cu13"]
"""


@pytest.mark.parametrize("tool", ["pip", "uv"])
@pytest.mark.parametrize(
    ("requirement", "installed"),
    [
        ("demo", ["demo-1.0"]),
        ("demo[cu12]", ["demo-1.0", "demo_cu12-1.0"]),
        ("demo[cu13]==1.0", ["demo-1.0", "demo_cu13-1.0"]),
    ],
)
def test_an_extra_of_the_metapackage_takes_the_part_of_its_release(
    tmp_path: Path, tool: str, requirement: str, installed: list[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text(PARTS)
    release(tmp_path, tmp_path / "dist", wheel=make_wheel(tmp_path / "built"), smoke=False)
    make_wheel(tmp_path / "dist", name="demo_cu12", version="2.0")  # a part of another release
    made = make_index(tmp_path / "dist")
    verdict = install(tool, f"{made.folder.as_uri()}/", tmp_path / "target", requirement)
    assert verdict.accepted, verdict.said
    assert versions(tmp_path / "target") == installed
