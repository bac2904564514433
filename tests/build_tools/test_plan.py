from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from build_tools.errors import FileError, PlanError
from build_tools.plan import MINIMAL, Plan, find_version_file, read_plan
from build_tools.smoke_plan import SmokePlan
from build_tools.variant import Variant
from build_tools.wheels.edit import WheelEdit
from tests.build_tools.tiny_project import CHECKOUT

CORPUS = sorted((CHECKOUT / "tests" / "data" / "plans").glob("*.toml"))


def project(folder: Path, plan: str) -> Path:
    (folder / "pyproject.toml").write_text(plan)
    return folder


def faults_of(folder: Path) -> list[str]:
    with pytest.raises(PlanError) as caught:
        read_plan(folder)
    return [fault.removeprefix("pyproject.toml: ") for fault in caught.value.faults]


class TestValid:
    def test_every_key_reaches_the_edit(self, tmp_path: Path) -> None:
        (tmp_path / "a=b").write_text("")
        (tmp_path / "v").write_text("1.0")
        plan = """
            [tool.te-wheel]
            version-file = "v"
            [tool.te-wheel.smoke]
            requires = ["torch==2.13.0"]
            import = ["demo", "demo.core"]
            run = "demo.core.add(1, 2) == 3"
            [tool.te-wheel.variants.cu12]
            name = "Demo-cu12"
            version = "1.0"
            local = ""
            build = "7"
            python-tag = "py3"
            abi-tag = "none"
            platform-tag = "any"
            set = ["Summary: x"]
            add = ["Requires-Dist: torch"]
            remove = ["License"]
            add-file = ["a=b=demo/c"]
            remove-file = ["demo/**"]
            [tool.te-wheel.variants.cpu]
            local = "cpu"
        """
        assert read_plan(project(tmp_path, plan)) == Plan(
            tmp_path / "v",
            SmokePlan(("torch==2.13.0",), ("demo", "demo.core"), "demo.core.add(1, 2) == 3"),
            (
                Variant(
                    "cu12",
                    WheelEdit(
                        name="Demo-cu12",
                        version="1.0",
                        local="",
                        build="7",
                        python_tag="py3",
                        abi_tag="none",
                        platform_tag="any",
                        set=("Summary: x",),
                        add=("Requires-Dist: torch",),
                        remove=("License",),
                        add_file=(f"{tmp_path / 'a=b'}=demo/c",),
                        remove_file=("demo/**",),
                    ),
                ),
                Variant("cpu", WheelEdit(local="cpu")),
            ),
        )

    def test_variants_keep_the_order_of_the_file(self, tmp_path: Path) -> None:
        plan = "".join(f'[tool.te-wheel.variants.{id_}]\nlocal = "{id_}"\n' for id_ in ("z", "a", "m"))
        assert [variant.id for variant in read_plan(project(tmp_path, plan)).variants] == ["z", "a", "m"]

    def test_the_minimal_plan_of_the_hint_is_one(self, tmp_path: Path) -> None:
        assert read_plan(project(tmp_path, MINIMAL)) == Plan(
            None, SmokePlan(), (Variant("cpu", WheelEdit(local="cpu")),)
        )

    def test_version_txt_needs_no_mention(self, tmp_path: Path) -> None:
        (tmp_path / "VERSION.txt").write_text("1.0")
        assert read_plan(project(tmp_path, MINIMAL)).version_file == tmp_path / "VERSION.txt"

    def test_a_snippet_may_have_several_lines(self, tmp_path: Path) -> None:
        plan = f"[tool.te-wheel.smoke]\nrun = '''\nx = 1\nassert x\n'''\n{MINIMAL}"
        assert read_plan(project(tmp_path, plan)).smoke.run == "x = 1\nassert x\n"

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ('local = "a"', 'local = "b"'),
            ('local = ""', 'local = "a"'),
            ('name = "a"', 'name = "b"'),
            ('build = "1"', 'build = "2"'),
            ('platform-tag = "any"', 'platform-tag = "win32"'),
            ('name = "a"\nlocal = "c"', 'name = "a"\nlocal = "d"'),
        ],
    )
    def test_variants_that_differ_in_one_label_make_two_files(self, tmp_path: Path, one: str, other: str) -> None:
        plan = f"[tool.te-wheel.variants.a]\n{one}\n[tool.te-wheel.variants.b]\n{other}\n"
        assert len(read_plan(project(tmp_path, plan)).variants) == 2


class TestInvalid:
    @pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])
    def test_each_broken_plan_has_exactly_the_faults_that_it_says(self, path: Path, tmp_path: Path) -> None:
        text = path.read_text()
        expected = [line.removeprefix("# fault: ") for line in text.splitlines() if line.startswith("# fault: ")]
        assert expected
        assert faults_of(project(tmp_path, text)) == expected

    def test_no_plan_is_answered_with_one(self, tmp_path: Path) -> None:
        with pytest.raises(PlanError, match=r"holds no \[tool\.te-wheel\]") as caught:
            read_plan(project(tmp_path, "[project]\nname = 'demo'\n"))
        assert (caught.value.hint or "").endswith('[tool.te-wheel.variants.cpu] and below it local = "cpu"')

    def test_no_pyproject_is_answered_with_a_plan(self, tmp_path: Path) -> None:
        with pytest.raises(PlanError, match="is not there") as caught:
            read_plan(tmp_path)
        assert (caught.value.hint or "").endswith('[tool.te-wheel.variants.cpu] and below it local = "cpu"')

    def test_what_is_no_toml_says_where(self, tmp_path: Path) -> None:
        with pytest.raises(PlanError, match=r"is no valid TOML: .*line 2"):
            read_plan(project(tmp_path, "[tool.te-wheel.variants.a]\n[tool.te-wheel.variants.a]\n"))
        (tmp_path / "pyproject.toml").write_bytes(b"\xff")
        with pytest.raises(PlanError, match=r"is not UTF-8: .* at byte 0"):
            read_plan(tmp_path)

    def test_toml_that_is_nested_without_end_is_no_traceback(self, tmp_path: Path) -> None:
        with pytest.raises(PlanError, match="is no valid TOML: it is nested too deeply"):
            read_plan(project(tmp_path, f"x = {'[' * 200_000}"))

    def test_a_snippet_that_is_nested_without_end_is_a_fault(self) -> None:
        assert SmokePlan(run="-" * 200_000 + "1").faults == ("run is no Python: it is nested too deeply",)

    def test_a_requirement_with_thousands_of_digits_is_a_fault_or_none(self) -> None:
        assert len(SmokePlan(requires=(f"demo=={'9' * 5000}",)).faults) <= 1

    def test_a_folder_that_is_not_there_is_named_itself(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match="nodir' is not there, expected the folder of a project"):
            read_plan(tmp_path / "nodir")
        (tmp_path / "file").write_text("")
        with pytest.raises(FileError, match="file' is no folder, expected the folder of a project"):
            read_plan(tmp_path / "file")

    def test_a_folder_in_the_place_of_pyproject_is_no_traceback(self, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").mkdir()
        with pytest.raises(FileError, match="cannot read"):
            read_plan(tmp_path)


class TestVersionFile:
    def test_it_is_found_however_broken_the_variants_are(self, tmp_path: Path) -> None:
        (tmp_path / "v").write_text("1.0")
        plan = '[tool.te-wheel]\nversion-file = "v"\nvariants = 1\n'
        assert find_version_file(project(tmp_path, plan)) == tmp_path / "v"

    def test_a_project_may_have_none(self, tmp_path: Path) -> None:
        assert find_version_file(tmp_path) is None
        assert find_version_file(project(tmp_path, "")) is None

    def test_one_that_is_named_must_be_there(self, tmp_path: Path) -> None:
        with pytest.raises(PlanError, match="version-file 'v' is no file of the project"):
            find_version_file(project(tmp_path, '[tool.te-wheel]\nversion-file = "v"\n'))


class TestOwnPlan:
    """The plan of this repository."""

    def test_it_has_two_renamed_wheels_and_a_labelled_one(self) -> None:
        variants = {variant.id: variant.edit for variant in read_plan(CHECKOUT).variants}
        assert list(variants) == ["cu12", "cu13", "cpu"]
        for id_ in ("cu12", "cu13"):
            edit = variants[id_]
            assert (edit.name, edit.platform_tag) == (f"te_pkg_{id_}", "manylinux_2_28_x86_64")
            assert [line.partition(":")[0] for line in edit.add] == ["Requires-Dist"]
        assert variants["cpu"] == WheelEdit(local="cpu")

    def test_its_torch_is_the_one_that_the_tests_run_with(self) -> None:
        extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        torch = [text for text in extras["test"] if Requirement(text).name == "torch"]
        assert list(read_plan(CHECKOUT).smoke.requires) == torch
