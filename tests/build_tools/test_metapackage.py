from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from build_tools import release as release_module
from build_tools.errors import EditError, FileError, ReleaseError
from build_tools.release import release
from build_tools.release_record import format_table
from build_tools.wheels import check_wheel
from tests.build_tools.test_release import names, stand_in, sums_of, write_plan
from tests.build_tools.tiny_project import make_project
from tests.build_tools.wheel_factory import make_wheel, metadata_text

PLAN = """
[tool.te-wheel.variants.cu12]
name = "demo-cu12"
[tool.te-wheel.variants.cu13]
name = "demo-cu13"
platform-tag = "manylinux_2_28_x86_64"
[tool.te-wheel.variants.base]
name = "demo-base"
local = "x"
[tool.te-wheel.variants.meta]
set = ["Summary: Chooses"]
add = ["Requires-Dist: packaging"]
extras = ["cu12", "cu13"]
requires = ["base"]
"""
META = "demo-1.0-py3-none-any.whl"
OTHERS = [
    "demo_base-1.0+x-cp311-cp311-linux_x86_64.whl",
    "demo_cu12-1.0-cp311-cp311-linux_x86_64.whl",
    "demo_cu13-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
]


def source(folder: Path, **changes: Any) -> Path:
    headers = ["Requires-Dist: torch", "Provides-Extra: test", 'Requires-Dist: pytest; extra == "test"']
    return make_wheel(folder, **{"headers": headers, "tags": "cp311-cp311-linux_x86_64", **changes})


def metadata_of(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return archive.read(member).decode()


class TestMade:
    def test_its_metadata_is_the_sources_with_other_requirements(self, tmp_path: Path) -> None:
        release(write_plan(tmp_path, PLAN), tmp_path / "out", wheel=source(tmp_path / "in"), smoke=False)
        assert names(tmp_path / "out") == sorted([META, *OTHERS, "SHA256SUMS", "release.json"])
        expected = metadata_text().replace("A small wheel\n", "Chooses\n", 1).replace(
            "Description-Content-Type: text/markdown\n",
            "Description-Content-Type: text/markdown\n"
            "Requires-Dist: packaging\n"
            "Requires-Dist: demo-base==1.0+x\n"
            'Requires-Dist: demo-cu12==1.0; extra == "cu12"\n'
            'Requires-Dist: demo-cu13==1.0; extra == "cu13"\n'
            "Provides-Extra: cu12\n"
            "Provides-Extra: cu13\n",
        )  # fmt: skip
        assert metadata_of(tmp_path / "out" / META) == expected

    def test_it_holds_its_own_headers_and_licences_and_nothing_else(self, tmp_path: Path) -> None:
        files = {"entry_points.txt": "[console_scripts]\nx = demo:x\n", "licenses/a/LICENSE": "mine", "NOTICE": "old"}
        wheel = source(
            tmp_path / "in", headers=["License-File: a/LICENSE", "License-File: NOTICE"], dist_info_files=files
        )
        release(write_plan(tmp_path, PLAN), tmp_path / "out", wheel=wheel, smoke=False, only=["meta"])
        info = "demo-1.0.dist-info"
        with zipfile.ZipFile(tmp_path / "out" / META) as archive:
            assert sorted(archive.namelist()) == [
                f"{info}/{file}" for file in ("METADATA", "NOTICE", "RECORD", "WHEEL", "licenses/a/LICENSE")
            ]
            assert "\nTag: py3-none-any\n" in archive.read(f"{info}/WHEEL").decode()
        assert check_wheel(tmp_path / "out" / META, hashes=True) == []

    def test_it_may_be_made_alone_and_still_names_the_others(self, tmp_path: Path) -> None:
        release(write_plan(tmp_path, PLAN), tmp_path / "a", wheel=source(tmp_path / "in"), smoke=False)
        release(write_plan(tmp_path, PLAN), tmp_path / "b", wheel=source(tmp_path / "in"), smoke=False, only=["meta"])
        assert list(sums_of(tmp_path / "b")) == [META]
        assert sums_of(tmp_path / "b")[META] == sums_of(tmp_path / "a")[META]

    def test_one_of_the_projects_own_name_takes_the_place_of_the_built_wheel(self, tmp_path: Path) -> None:
        project = make_project(tmp_path / "project", plan=PLAN)
        done = release(project, tmp_path / "out", smoke=False)
        assert [artifact.variant for artifact in done.artifacts] == ["cu12", "cu13", "base", "meta"]
        assert "demo-cu12==1.0.dev0" in metadata_of(tmp_path / "out" / "demo-1.0.dev0-py3-none-any.whl")

    def test_one_of_another_name_stands_beside_the_built_wheel(self, tmp_path: Path) -> None:
        plan = PLAN.replace("set =", 'name = "demo-all"\nset =')
        done = release(make_project(tmp_path / "project", plan=plan), tmp_path / "out", smoke=False)
        assert [artifact.variant for artifact in done.artifacts] == [None, "cu12", "cu13", "base", "meta"]
        assert "Name: demo-all\n" in metadata_of(tmp_path / "out" / "demo_all-1.0.dev0-py3-none-any.whl")

    def test_a_local_label_of_the_source_is_not_its_own(self, tmp_path: Path) -> None:
        wheel = source(tmp_path / "in", version="1.0+cu128")
        release(write_plan(tmp_path, PLAN), tmp_path / "out", wheel=wheel, smoke=False, only=["meta"])
        assert "Requires-Dist: demo-cu12==1.0+cu128;" in metadata_of(tmp_path / "out" / META)

    def test_there_is_nothing_to_try_and_no_warning(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in(monkeypatch, lambda wheel, **_: pytest.fail("it was tried"))
        plan = write_plan(tmp_path, PLAN)
        done = release(plan, tmp_path / "out", wheel=source(tmp_path / "in"), only=["meta"])
        assert done.skipped == ()
        assert f"{META}: import skipped: a metapackage has no files" in format_table(done)


class TestRefused:
    def refused(self, tmp_path: Path, wheel: Path, out: Path) -> tuple[str, ...]:
        before = names(out)
        with pytest.raises(ReleaseError) as caught:
            release(write_plan(tmp_path, PLAN), out, wheel=wheel, smoke=False)
        assert isinstance(caught.value, EditError)
        assert names(out) == before
        return caught.value.faults

    def test_a_source_that_would_lie_beside_it_under_one_name(self, tmp_path: Path) -> None:
        wheel = source(tmp_path / "out")
        (fault,) = self.refused(tmp_path, wheel, tmp_path / "out")
        assert fault == f"{wheel.name} lies in the output folder, and the metapackage 'meta' bears its name"

    def test_a_source_whose_metadata_knows_no_extras(self, tmp_path: Path) -> None:
        wheel = source(tmp_path / "in", metadata="Metadata-Version: 1.2\nName: demo\nVersion: 1.0\n\n")
        (fault,) = self.refused(tmp_path, wheel, tmp_path / "out")
        assert fault == "variant 'meta': Provides-Extra needs Metadata-Version 2.1, this wheel has 1.2"


def test_it_is_not_made_where_a_part_could_not_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = release_module.repack

    def repack(wheel: Path, folder: Path, edit: Any, **options: Any) -> Any:
        if edit.name == "demo-cu12" and not options.get("dry_run"):
            raise FileError("no space left")
        return write(wheel, folder, edit, **options)

    monkeypatch.setattr(release_module, "repack", repack)
    done = release(write_plan(tmp_path, PLAN), tmp_path / "out", wheel=source(tmp_path / "in"), smoke=False)
    assert [failure.variant for failure in done.failures] == ["cu12", "meta"]
    assert done.faults[1] == "variant 'meta': it requires 'cu12', which could not be written"
    assert META not in names(tmp_path / "out")
