"""Which time a build bears: the caller's, the commit's, the sdist's, or 1980."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from build_tools.errors import EditError
from build_tools.project import build_project
from build_tools.source_time import source_time
from tests.build_tools.tiny_project import make_project

FIRST = 315_532_800
COMMIT = 1_767_225_600  # 2026-01-01 00:00:00 UTC


@pytest.fixture(autouse=True)
def no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)


def commit(folder: Path, *paths: str, when: int = COMMIT) -> None:
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    git(folder, "add", *paths)
    git(folder, "commit", "-q", "-m", "x", when=when)


def git(folder: Path, *arguments: str, when: int = COMMIT) -> None:
    dates = {f"GIT_{who}_DATE": f"{when} +0300" for who in ("AUTHOR", "COMMITTER")}
    people = {f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **dates, **people, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True)


def test_the_time_of_the_last_commit_counts_and_changes_that_are_not_committed_do_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    commit(tmp_path, "a")
    (tmp_path / "b").write_text("b")
    assert source_time(tmp_path) == COMMIT
    commit(tmp_path, "b", when=COMMIT + 5)
    assert source_time(tmp_path) == COMMIT + 5


def test_a_checkout_around_the_project_says_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    commit(tmp_path, "a")
    (tmp_path / "build").mkdir()
    assert source_time(tmp_path / "build") == FIRST


def test_the_caller_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("a")
    commit(tmp_path, "a")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert source_time(tmp_path) == 1_700_000_000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    with pytest.raises(EditError, match="soon"):
        source_time(tmp_path)


def test_an_unpacked_sdist_has_the_time_of_its_pkg_info(tmp_path: Path) -> None:
    (tmp_path / "PKG-INFO").write_text("")
    os.utime(tmp_path / "PKG-INFO", (COMMIT, COMMIT))
    assert source_time(tmp_path) == COMMIT


def test_without_git_and_without_anything_it_is_1980(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source_time(tmp_path) == FIRST


def test_two_builds_of_one_commit_give_the_same_bytes_and_bear_its_time(tmp_path: Path) -> None:
    project = make_project(tmp_path / "source")
    commit(project, ".")
    built = [build_project(project, tmp_path / str(number)) for number in range(2)]
    assert built[0].wheel.read_bytes() == built[1].wheel.read_bytes()
    assert built[0].sdist.read_bytes() == built[1].sdist.read_bytes()
    with zipfile.ZipFile(built[0].wheel) as wheel:
        text = next(wheel.read(name) for name in wheel.namelist() if name.endswith("/METADATA"))
    assert f"SOURCE_DATE_EPOCH {COMMIT}".encode() in text
