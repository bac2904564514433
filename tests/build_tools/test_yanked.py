from __future__ import annotations

from pathlib import Path

import pytest

from build_tools.errors import FileError, IndexingError
from build_tools.wheels import make_index
from tests.build_tools.test_index import DEMO, anchors, page
from tests.build_tools.wheel_factory import make_wheel


def test_a_line_yanks_a_file_or_versions_and_says_why(tmp_path: Path) -> None:
    for version in ("1.0", "1.1", "1.1+cpu", "2.0"):
        make_wheel(tmp_path, version=version)
    (tmp_path / "yanked.txt").write_text(f'# broken\n\n{DEMO}   fails "here" & <there>\nDEMO==1.1\n')
    made = make_index(tmp_path)
    assert {link["file"]: link["data-yanked"] for link in anchors(made.folder) if "data-yanked" in link} == {
        DEMO: 'fails "here" & <there>',
        "demo-1.1-py3-none-any.whl": "",
        "demo-1.1+cpu-py3-none-any.whl": "",
    }
    said = {file["filename"]: file.get("yanked", False) for file in page(made.folder)["files"]}
    assert (said[DEMO], said["demo-1.1-py3-none-any.whl"], said["demo-2.0-py3-none-any.whl"]) == (
        'fails "here" & <there>',
        True,
        False,
    )
    (tmp_path / "yanked.txt").unlink()
    assert not [link for link in anchors(make_index(tmp_path).folder) if "data-yanked" in link]


def test_a_range_yanks_pre_releases_and_development_versions_in_it(tmp_path: Path) -> None:
    for version in ("1.1", "1.2.dev1", "1.3rc1", "2.0"):
        make_wheel(tmp_path, version=version)
    (tmp_path / "yanked.txt").write_text("demo>1.1,<2 tried out\n")
    versions = [
        file["filename"].split("-")[1] for file in page(make_index(tmp_path).folder)["files"] if "yanked" in file
    ]
    assert versions == ["1.3rc1", "1.2.dev1"]


def test_every_line_that_names_nothing_is_a_fault_and_nothing_is_written(tmp_path: Path) -> None:
    make_wheel(tmp_path)
    (tmp_path / "list").write_text("demo==1.1 gone\ndemo-2.0-py3-none-any.whl\n")
    with pytest.raises(IndexingError) as caught:
        make_index(tmp_path, yanked_file=tmp_path / "list")
    assert caught.value.faults == (
        "list:1: 'demo==1.1' names no file of the index",
        "list:2: 'demo-2.0-py3-none-any.whl' names no file of the index",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [DEMO, "list"]


@pytest.mark.parametrize("what", ["demo", "demo[x]==1", "==1", "demo==1;python_version<'3'", "\N{BULLET}"])
def test_a_line_that_is_neither_is_answered_with_both(tmp_path: Path, what: str) -> None:
    make_wheel(tmp_path)
    (tmp_path / "yanked.txt").write_text(f"{what} why\n")
    with pytest.raises(IndexingError, match=r"yanked\.txt:1: .* is neither a file name nor versions"):
        make_index(tmp_path)


def test_a_list_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot read"):
        make_index(tmp_path, yanked_file=tmp_path / "nowhere")
