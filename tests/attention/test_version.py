"""``te_pkg.__version__``: right in a checkout, and in every wheel that the release tooling may make of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import te_pkg
from te_pkg._version import VersionNotFoundError, find_version

PACKAGE = Path(te_pkg.__file__).parent


def install(
    folder: Path, dist_info: str, name: str, version: str | None, *, files: tuple[str, ...] | None = None
) -> None:
    """Lay a distribution into ``folder`` as an installer would; ``files=None`` writes no RECORD."""
    info = folder / dist_info
    info.mkdir(parents=True)
    line = "" if version is None else f"Version: {version}\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{line}")
    if files is not None:
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{dist_info}/RECORD")))


def package_in(folder: Path) -> Path:
    package = folder / "te_pkg"
    package.mkdir(parents=True)
    for source in PACKAGE.glob("*.py"):
        shutil.copy(source, package)
    return package / "__init__.py"


OURS = ("te_pkg/__init__.py", "te_pkg/_version.py")


def run_python(code: str, folder: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


class TestImport:
    def test_imports_neither_torch_nor_packaging(self):
        code = "import sys, te_pkg; print(sorted({'torch', 'packaging', 'numpy'} & set(sys.modules)))"
        assert run_python(code, PACKAGE.parent) == "[]"

    def test_the_version_needs_no_torch(self):
        code = "import sys, te_pkg; te_pkg.__version__; print('torch' in sys.modules)"
        assert run_python(code, PACKAGE.parent) == "False"

    def test_dir_lists_the_version_before_it_was_made(self):
        assert run_python("import te_pkg; print('__version__' in dir(te_pkg))", PACKAGE.parent) == "True"

    def test_an_unknown_name_is_an_attribute_error(self):
        with pytest.raises(AttributeError, match="module 'te_pkg' has no attribute 'nothing'"):
            te_pkg.nothing  # noqa: B018

    def test_marks_itself_as_typed(self):
        assert (PACKAGE / "py.typed").is_file()


class TestCheckout:
    @pytest.mark.parametrize(
        "raw",
        [
            b"2.21.0-dev0",
            b"2.21.0-dev0\n",
            b"\xef\xbb\xbf2.21.0-dev0\r\n",
            b"\r\n  v2.21.0.DEV0 \t\r\n\r\n",
            b"2.21.0.dev",
        ],
    )
    def test_version_file_is_normalised(self, tmp_path, raw):
        (tmp_path / "VERSION.txt").write_bytes(raw)
        assert find_version(package_in(tmp_path)) == "2.21.0.dev0"

    def test_goes_before_the_egg_that_a_build_left_behind(self, tmp_path):
        (tmp_path / "VERSION.txt").write_text("2.21.0-dev0\n")
        (tmp_path / "te_pkg.egg-info").mkdir()
        (tmp_path / "te_pkg.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: te-pkg\nVersion: 1.0\n")
        assert find_version(package_in(tmp_path)) == "2.21.0.dev0"

    @pytest.mark.parametrize("raw", [b"", b"two words\n", b"1.0\n2.0\n", b"\xff\xfe1"])
    def test_version_file_without_one_version_is_an_error_that_names_it(self, tmp_path, raw):
        (tmp_path / "VERSION.txt").write_bytes(raw)
        with pytest.raises(VersionNotFoundError, match=r"VERSION\.txt' holds .*, expected one version"):
            find_version(package_in(tmp_path))

    def test_single_files_linked_by_an_editable_install_lead_to_the_checkout(self, tmp_path):
        (tmp_path / "checkout").mkdir()
        (tmp_path / "checkout" / "VERSION.txt").write_text("2.21.0-dev0\n")
        init = package_in(tmp_path / "checkout")
        link = tmp_path / "links" / "te_pkg" / "__init__.py"
        link.parent.mkdir(parents=True)
        link.symlink_to(init)
        assert find_version(link) == "2.21.0.dev0"


class TestInstalledWheel:
    def test_its_own_metadata(self, tmp_path):
        install(tmp_path, "te_pkg-2.21.0.dev0.dist-info", "te-pkg", "2.21.0.dev0", files=OURS)
        assert find_version(package_in(tmp_path)) == "2.21.0.dev0"

    def test_metadata_in_another_spelling_is_normalised(self, tmp_path):
        install(tmp_path, "te_pkg-2.21.0_dev0.dist-info", "TE.Pkg", "2.21.0-dev0", files=OURS)
        assert find_version(package_in(tmp_path)) == "2.21.0.dev0"

    def test_relabelled(self, tmp_path):
        install(tmp_path, "te_pkg-2.21.0.dev0+cpu.dist-info", "te-pkg", "2.21.0.dev0+CPU", files=OURS)
        assert find_version(package_in(tmp_path)) == "2.21.0.dev0+cpu"

    def test_renamed_and_relabelled_in_a_fresh_interpreter(self, tmp_path):
        install(tmp_path, "te_pkg_cu12-2.21.0.dev0+cpu.dist-info", "te_pkg_cu12", "2.21.0.dev0+cpu", files=OURS)
        package_in(tmp_path)
        code = "import te_pkg; from te_pkg import __version__; print(te_pkg.__version__, __version__)"
        assert run_python(code, tmp_path) == "2.21.0.dev0+cpu 2.21.0.dev0+cpu"

    def test_renamed_to_something_else_is_found_by_its_files(self, tmp_path):
        install(tmp_path, "other-9.9.dist-info", "other", "9.9", files=("other.py",))
        install(tmp_path, "attention_for_all-3.0.dist-info", "attention-for-all", "3.0", files=OURS)
        assert find_version(package_in(tmp_path)) == "3.0"

    def test_without_a_file_list_is_found_by_its_name(self, tmp_path):
        install(tmp_path, "te_pkg_cu12-3.0.dist-info", "te_pkg_cu12", "3.0")
        assert find_version(package_in(tmp_path)) == "3.0"

    def test_goes_before_a_version_file_that_some_other_package_dropped(self, tmp_path):
        (tmp_path / "VERSION.txt").write_text("0.1\n")
        install(tmp_path, "te_pkg_cu12-3.0.dist-info", "te_pkg_cu12", "3.0", files=OURS)
        assert find_version(package_in(tmp_path)) == "3.0"

    def test_a_neighbour_whose_name_begins_alike_is_not_taken(self, tmp_path):
        install(tmp_path, "te_pkg_aaa_docs-9.9.dist-info", "te-pkg-aaa-docs", "9.9", files=("te_pkg_docs/index.html",))
        install(tmp_path, "te_pkg_cu12-3.0.dist-info", "te-pkg-cu12", "3.0", files=OURS)
        assert find_version(package_in(tmp_path)) == "3.0"

    def test_what_a_failed_uninstall_left_is_not_taken(self, tmp_path):
        install(tmp_path, "~e_pkg-1.0.dist-info", "te-pkg", "1.0", files=OURS)
        install(tmp_path, "te_pkg_cu12-3.0.dist-info", "te-pkg-cu12", "3.0", files=OURS)
        assert find_version(package_in(tmp_path)) == "3.0"

    def test_damaged_metadata_beside_it_does_no_harm(self, tmp_path):
        install(tmp_path, "te_pkg_aaa-1.dist-info", "te-pkg-aaa", None, files=OURS)
        install(tmp_path, "te_pkg_bbb-1.dist-info", "te-pkg-bbb", "not a version", files=OURS)
        (tmp_path / "empty-1.dist-info").mkdir()
        install(tmp_path, "te_pkg_cu12-3.0.dist-info", "te-pkg-cu12", "3.0", files=OURS)
        assert find_version(package_in(tmp_path)) == "3.0"

    def test_another_te_pkg_elsewhere_on_the_path_is_not_taken(self, tmp_path, monkeypatch):
        install(tmp_path / "elsewhere", "te_pkg-9.9.dist-info", "te-pkg", "9.9", files=OURS)
        monkeypatch.syspath_prepend(tmp_path / "elsewhere")
        install(tmp_path / "site", "te_pkg_cu12-3.0.dist-info", "te-pkg-cu12", "3.0", files=OURS)
        assert find_version(package_in(tmp_path / "site")) == "3.0"

    def test_run_from_inside_the_wheel_file(self, tmp_path):
        wheel = tmp_path / "te_pkg_cu12-3.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for source in PACKAGE.glob("*.py"):
                archive.write(source, f"te_pkg/{source.name}")
            archive.writestr(
                "te_pkg_cu12-3.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: te-pkg-cu12\nVersion: 3.0\n"
            )
        code = f"import sys; sys.path.insert(0, {str(wheel)!r}); import te_pkg; print(te_pkg.__version__)"
        assert run_python(code, tmp_path) == "3.0"


class TestNothingFound:
    def test_is_an_error_that_says_where_it_looked(self, tmp_path):
        with pytest.raises(VersionNotFoundError, match="no version of te_pkg found") as caught:
            find_version(package_in(tmp_path))
        assert str(tmp_path) in str(caught.value)
        assert str(tmp_path) in caught.value.folders

    def test_the_message_survives_a_from_import(self, tmp_path):
        package_in(tmp_path)
        code = "try:\n from te_pkg import __version__\nexcept RuntimeError as error:\n print(error)"
        assert "no version of te_pkg found" in run_python(code, tmp_path)


def test_this_very_package_has_a_normalised_version():
    from packaging.version import Version

    assert te_pkg.__version__ == str(Version(te_pkg.__version__))
    assert te_pkg.__version__ is te_pkg.__version__
