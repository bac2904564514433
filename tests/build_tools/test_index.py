from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_tools.errors import FileError, IndexingError, OutputExistsError, UsageError
from build_tools.wheels import index as index_module
from build_tools.wheels import index_memory, make_index
from build_tools.wheels.index_pages import encode_path
from build_tools.wheels.rules import RULES
from tests.build_tools.broken_wheels import BROKEN, Broken
from tests.build_tools.command_line import te_wheel
from tests.build_tools.sdist_factory import make_sdist
from tests.build_tools.tiny_project import CHECKOUT
from tests.build_tools.wheel_factory import STORED, Archive, make_wheel, metadata_text

DEMO = "demo-1.0-py3-none-any.whl"
BLOCKING = [broken for broken in BROKEN if RULES[broken.code].blocks and not broken.hashes]


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a test are younger than those that a run trusts: here all are old enough."""
    monkeypatch.setattr(index_memory, "SETTLED_NS", -(10**18))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read, run after run."""
    names: list[str] = []
    actual = index_module.read_distribution

    def noted(path: Path) -> Any:
        names.append(path.name)
        return actual(path)

    monkeypatch.setattr(index_module, "read_distribution", noted)
    return names


class Anchors(HTMLParser):
    """The links of a page: their attributes, and the text below ``file``."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []
        self._inside = False
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append({**dict(attrs), "file": ""})
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "a"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found[-1]["file"] = (self.found[-1]["file"] or "") + data


def anchors(simple: Path, project: str = "demo") -> list[dict[str, str | None]]:
    return Anchors(simple / project / "index.html").found


def page(simple: Path, project: str = "demo") -> Any:
    return json.loads((simple / project / "index.json").read_text())


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class TestPages:
    """Section 9 of the rules: PEP 503, 592, 658, 691, 700, 714."""

    def test_a_link_holds_what_an_installer_asks_for(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path, headers=["Requires-Python: >=3.11,<4"])
        made = make_index(tmp_path)
        metadata = hashlib.sha256(metadata_text(headers=["Requires-Python: >=3.11,<4"]).encode()).hexdigest()
        assert anchors(made.folder) == [
            {
                "href": f"../../{DEMO}#sha256={sha256(wheel)}",
                "data-requires-python": ">=3.11,<4",
                "data-core-metadata": f"sha256={metadata}",
                "data-dist-info-metadata": f"sha256={metadata}",
                "file": DEMO,
            }
        ]
        assert page(made.folder) == {
            "meta": {"api-version": "1.1"},
            "name": "demo",
            "versions": ["1.0"],
            "files": [
                {
                    "filename": DEMO,
                    "url": f"../../{DEMO}",
                    "hashes": {"sha256": sha256(wheel)},
                    "size": wheel.stat().st_size,
                    "requires-python": ">=3.11,<4",
                    "core-metadata": {"sha256": metadata},
                    "dist-info-metadata": {"sha256": metadata},
                }
            ],
        }

    def test_the_sidecar_is_metadata_byte_for_byte(self, tmp_path: Path) -> None:
        text = "Metadata-Version: 2.1\r\nName: demo\r\nVersion: 1.0\r\nX-Odd:  y\r\n\r\nJürgen\n"
        wheel = make_wheel(tmp_path, metadata=text)
        make_index(tmp_path)
        assert wheel.with_name(f"{wheel.name}.metadata").read_bytes() == text.encode()

    def test_a_plus_is_encoded_in_the_url_and_nowhere_else(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path, version="1!1.0+cu128")
        made = make_index(tmp_path)
        (link,) = anchors(made.folder)
        (file,) = page(made.folder)["files"]
        assert link["file"] == file["filename"] == wheel.name
        assert file["url"] == "../../demo-1%211.0%2Bcu128-py3-none-any.whl" == (link["href"] or "").partition("#")[0]
        assert page(made.folder)["versions"] == ["1!1.0+cu128"]
        assert wheel.with_name(f"{wheel.name}.metadata").exists()

    @given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1))
    def test_a_path_comes_back_from_its_url(self, name: str) -> None:
        assert unquote(encode_path(f"a/{name}")) == f"a/{name}"
        assert not set(encode_path(name)) & set("+#?&\"'<> ")

    def test_the_root_names_every_project_in_normal_form(self, tmp_path: Path) -> None:
        make_wheel(tmp_path, name="Demo_Pkg", filename="Demo_Pkg-1.0-py3-none-any.whl")
        make_wheel(tmp_path / "deep" / "down", name="alpha")
        made = make_index(tmp_path)
        assert made.projects == ("alpha", "demo-pkg")
        assert [link["href"] for link in Anchors(made.folder / "index.html").found] == ["alpha/", "demo-pkg/"]
        assert json.loads((made.folder / "index.json").read_text()) == {
            "meta": {"api-version": "1.1"},
            "projects": [{"name": "alpha"}, {"name": "demo-pkg"}],
        }
        assert anchors(made.folder, "alpha")[0]["href"] == (
            f"../../deep/down/alpha-1.0-py3-none-any.whl#sha256={made.files[1].sha256}"
        )

    def test_the_newest_version_stands_first_and_a_person_reads_size_tags_and_date(self, tmp_path: Path) -> None:
        for version in ("1.9", "1.10", "1.10.dev1"):
            os.utime(make_wheel(tmp_path, version=version), (86_400, 86_400))
        made = make_index(tmp_path)
        assert page(made.folder)["versions"] == ["1.10", "1.10.dev1", "1.9"]
        text = (made.folder / "demo" / "index.html").read_text()
        for cell in ("<td>1.10.dev1</td>", "<td>py3-none-any</td>", "<td>1970-01-02</td>", " B</td>"):
            assert cell in text

    def test_what_a_wheel_says_is_text_and_no_markup(self, tmp_path: Path) -> None:
        make_wheel(tmp_path, headers=['Requires-Python: >=3"><script>alert(1)</script>'])
        made = make_index(tmp_path)
        assert "<script" not in (made.folder / "demo" / "index.html").read_text()
        assert anchors(made.folder)[0]["data-requires-python"] == '>=3"><script>alert(1)</script>'

    def test_an_sdist_has_its_link_without_a_sidecar(self, tmp_path: Path) -> None:
        pkg_info = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nRequires-Python: >=3\n\n"
        sdist = make_sdist(tmp_path, {"demo-1.0/PKG-INFO": pkg_info})
        made = make_index(tmp_path)
        assert anchors(made.folder) == [
            {"href": f"../../{sdist.name}#sha256={sha256(sdist)}", "data-requires-python": ">=3", "file": sdist.name}
        ]
        assert sorted(path.name for path in tmp_path.iterdir()) == [sdist.name, "simple"]

    def test_links_lead_to_the_files_wherever_both_folders_are(self, tmp_path: Path) -> None:
        wheel = make_wheel(tmp_path / "a b#c" / "whl", version="1.0+x")
        made = make_index(wheel.parent, tmp_path / "out" / "deep")
        assert made.leaves
        url = urljoin((made.folder / "demo" / "index.html").as_uri(), anchors(made.folder)[0]["href"])
        assert Path(unquote(urlsplit(url).path)) == wheel
        assert not make_index(wheel.parent, tmp_path).leaves

    def test_a_base_url_stands_before_every_path(self, tmp_path: Path) -> None:
        make_wheel(tmp_path / "cu12", version="1.0+x")
        made = make_index(tmp_path, base_url="https://example.org/w/")
        expected = "https://example.org/w/cu12/demo-1.0%2Bx-py3-none-any.whl"
        assert page(made.folder)["files"][0]["url"] == expected
        assert not made.leaves

    @pytest.mark.parametrize(
        "url", ["", "example.org", "https://a b", "https://x?y", "https://x#y", "http://[", "x:\n"]
    )
    def test_what_is_no_url_is_refused(self, tmp_path: Path, url: str) -> None:
        make_wheel(tmp_path)
        with pytest.raises(UsageError, match="expected such as 'https://"):
            make_index(tmp_path, base_url=url)
        assert not (tmp_path / "simple").exists()


class TestAgain:
    """A second run reads what is new, and writes what differs."""

    def test_nothing_new_reads_and_writes_nothing(self, tmp_path: Path, read: list[str]) -> None:
        make_wheel(tmp_path)
        make_sdist(tmp_path)
        first = make_index(tmp_path)
        inodes = {path: path.stat().st_ino for path in tmp_path.rglob("*")}
        read.clear()
        again = make_index(tmp_path)
        assert (read, again.read, again.written, again.removed) == ([], 0, (), ())
        assert again.files == first.files
        assert inodes == {path: path.stat().st_ino for path in tmp_path.rglob("*")}

    def test_only_new_files_are_read_and_the_result_is_that_of_a_first_run(
        self, tmp_path: Path, read: list[str]
    ) -> None:
        make_wheel(tmp_path / "a")
        make_index(tmp_path / "a")
        read.clear()
        new = make_wheel(tmp_path / "a", version="1.1")
        make_index(tmp_path / "a")
        assert read == [new.name]
        after = tree(tmp_path / "a" / "simple")
        (tmp_path / "a" / "simple" / index_memory.FILE).unlink()
        read.clear()
        make_index(tmp_path / "a")
        assert sorted(read) == [DEMO, new.name]
        assert tree(tmp_path / "a" / "simple") == after

    def replaced_whole(self, wheel: Path, other: Path) -> None:
        os.replace(other, wheel)

    def replaced_in_place(self, wheel: Path, other: Path) -> None:
        wheel.write_bytes(other.read_bytes())

    @pytest.mark.parametrize("replace", [replaced_whole, replaced_in_place])
    def test_a_file_that_was_replaced_with_its_size_and_time_kept_is_read_again(
        self, tmp_path: Path, replace: Callable[[Any, Path, Path], None]
    ) -> None:
        stored = Archive(every={"method": STORED})
        wheel, other = (
            make_wheel(tmp_path / value, files={"demo/__init__.py": f"VALUE = {value}\n"}, archive=stored)
            for value in "12"
        )
        assert wheel.stat().st_size == other.stat().st_size
        info = wheel.stat()
        os.utime(other, ns=(info.st_atime_ns, info.st_mtime_ns))
        make_index(wheel.parent)
        replace(self, wheel, other)
        os.utime(wheel, ns=(info.st_atime_ns, info.st_mtime_ns))
        made = make_index(wheel.parent)
        assert made.read == 1
        assert page(made.folder)["files"][0]["hashes"]["sha256"] == sha256(wheel)

    def test_a_file_that_changed_a_moment_ago_is_read_again(
        self, tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(index_memory, "SETTLED_NS", 3600 * 10**9)
        make_wheel(tmp_path)
        make_index(tmp_path)
        make_index(tmp_path)
        assert read == [DEMO, DEMO]

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"tool": "0"}', '{"tool": null, "files": 3}', "[" * 100_000])
    def test_a_memory_that_is_odd_is_no_memory(self, tmp_path: Path, read: list[str], text: str) -> None:
        make_wheel(tmp_path)
        folder = make_index(tmp_path).folder
        before = tree(folder)
        (folder / index_memory.FILE).write_text(text.replace("null", f'"{index_module.index_memory.__version__}"'))
        make_index(tmp_path)
        assert read == [DEMO, DEMO]
        assert tree(folder) == before

    def test_a_sidecar_or_page_that_was_touched_is_made_right(self, tmp_path: Path) -> None:
        make_wheel(tmp_path)
        folder = make_index(tmp_path).folder
        before = tree(tmp_path)
        (tmp_path / f"{DEMO}.metadata").write_text("Name: evil")
        (folder / "demo" / "index.json").unlink()
        made = make_index(tmp_path)
        assert sorted(path.name for path in made.written) == [f"{DEMO}.metadata", "index.json"]
        assert tree(tmp_path) == before

    def test_what_is_gone_is_gone_from_the_index(self, tmp_path: Path) -> None:
        make_wheel(tmp_path, name="other")
        make_wheel(tmp_path, version="1.1").rename(gone := tmp_path / "demo-1.1-py3-none-any.whl")
        make_wheel(tmp_path)
        make_index(tmp_path)
        gone.unlink()
        (tmp_path / "other-1.0-py3-none-any.whl").unlink()
        made = make_index(tmp_path)
        assert [path.relative_to(tmp_path).as_posix() for path in made.removed] == [
            "simple/other/index.json",
            "simple/other/index.html",
            "demo-1.1-py3-none-any.whl.metadata",
            "other-1.0-py3-none-any.whl.metadata",
        ]
        assert sorted(path.name for path in made.folder.iterdir()) == [
            index_memory.FILE, "demo", "index.html", "index.json"
        ]  # fmt: skip
        (tmp_path / DEMO).unlink()
        assert make_index(tmp_path).projects == ()
        assert "<li>" not in (made.folder / "index.html").read_text()

    @pytest.mark.parametrize("number", range(10))
    def test_a_run_that_is_broken_off_leaves_whole_files_and_the_next_one_makes_the_same_index(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        for folder in ("clean", "broken"):
            make_wheel(tmp_path / folder, name="gone")
            make_index(tmp_path / folder)
            (tmp_path / folder / "gone-1.0-py3-none-any.whl").unlink()
            os.utime(make_wheel(tmp_path / folder), (1e9, 1e9))
            make_wheel(tmp_path / folder, name="other").rename(tmp_path / folder / "other-1.0-py3-none-any.whl")
            os.utime(tmp_path / folder / "other-1.0-py3-none-any.whl", (1e9, 1e9))
        steps = 0

        def broken(self: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > number:
                raise KeyboardInterrupt
            return publish(self, *arguments, **options)

        publish = index_module.OutputFile.publish
        made = make_index(tmp_path / "clean")
        assert len(made.written) + 1 == 9
        with monkeypatch.context() as patch:
            patch.setattr(index_module.OutputFile, "publish", broken)
            if number < 9:
                with pytest.raises(KeyboardInterrupt):
                    make_index(tmp_path / "broken")
        make_index(tmp_path / "broken")
        trees = [tree(tmp_path / folder) for folder in ("clean", "broken")]
        for found in trees:
            del found[f"simple/{index_memory.FILE}"]
        assert trees[0] == trees[1]

    def test_what_others_put_beside_the_pages_stays(self, tmp_path: Path) -> None:
        make_wheel(tmp_path)
        folder = make_index(tmp_path).folder
        (folder / "theirs").mkdir()
        (folder / "theirs" / "index.html").write_text("<a href=x>x</a>")
        (folder / "demo" / "notes.txt").write_text("mine")
        (tmp_path / DEMO).unlink()
        (tmp_path / f"{DEMO}.metadata").write_text("not what was written")
        make_index(tmp_path)
        assert (folder / "theirs" / "index.html").exists()
        assert (folder / "demo" / "notes.txt").exists()
        assert (tmp_path / f"{DEMO}.metadata").exists()

    def test_two_runs_at_once_make_one_whole_index(self, tmp_path: Path) -> None:
        for number in range(20):
            make_wheel(tmp_path, name=f"demo{number % 5}", version=f"1.{number}")
        command = [sys.executable, "-m", "build_tools", "index", "-q", str(tmp_path)]
        runs = [subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL) for _ in range(4)]
        assert [run.wait() for run in runs] == [0, 0, 0, 0]
        made = make_index(tmp_path)
        assert (len(made.files), made.written) == (20, ())
        assert not [path for path in tmp_path.rglob("*") if path.name.endswith("te-wheel-tmp")]

    def test_a_run_keeps_others_out_from_its_first_look_to_its_last_write(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fcntl = pytest.importorskip("fcntl")
        make_wheel(tmp_path)

        def is_held() -> bool:
            fd = os.open(tmp_path / "simple", os.O_RDONLY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(fd)
            return False

        held = []
        for module, name in (
            (index_module, "find_distributions"),
            (index_memory, "recall"),
            (index_memory, "to_bytes"),
        ):
            actual = getattr(module, name)

            def noted(*arguments: Any, actual: Any = actual, **options: Any) -> Any:
                held.append(is_held())
                return actual(*arguments, **options)

            monkeypatch.setattr(module, name, noted)
        make_index(tmp_path)
        assert held == [True, True, True]
        assert not is_held()


class TestRefused:
    def test_two_files_of_one_name_are_both_named_and_nothing_is_written(self, tmp_path: Path) -> None:
        make_wheel(tmp_path / "a")
        make_wheel(tmp_path / "b", description="other")
        make_wheel(tmp_path / "b", name="Other", filename="Other-1.0-py3-none-any.whl")
        make_wheel(tmp_path / "c", name="other")
        before = tree(tmp_path)
        with pytest.raises(IndexingError) as caught:
            make_index(tmp_path)
        a, b = tmp_path / "a" / DEMO, tmp_path / "b" / DEMO
        assert caught.value.faults == (
            f"'{a}' and '{b}' are one file to an installer: {DEMO}",
            f"'{tmp_path}/b/Other-1.0-py3-none-any.whl' and '{tmp_path}/c/other-1.0-py3-none-any.whl' "
            "are one file to an installer: other-1.0-py3-none-any.whl",
        )
        assert tree(tmp_path) == before
        assert not (tmp_path / "simple").exists()

    def test_an_index_of_others_is_left_alone(self, tmp_path: Path) -> None:
        make_wheel(tmp_path)
        (tmp_path / "simple").mkdir()
        (tmp_path / "simple" / "index.html").write_text("<html>theirs")
        before = tree(tmp_path)
        with pytest.raises(OutputExistsError, match="no page of this tool"):
            make_index(tmp_path)
        assert tree(tmp_path) == before

    @pytest.mark.parametrize("name", ["nowhere", "file"])
    def test_what_is_no_folder_is_said_to_be_none(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(FileError, match="expected a folder of wheels"):
            make_index(tmp_path / name)
        with pytest.raises(FileError):
            make_index(tmp_path, tmp_path / "file")


class TestBroken:
    """A broken file is named, the others are indexed."""

    def test_each_broken_file_is_named_and_the_good_one_is_offered(self, tmp_path: Path) -> None:
        make_wheel(tmp_path)
        broken = {
            "text-1.0-py3-none-any.whl": b"text",
            "noname.whl": (tmp_path / DEMO).read_bytes(),
            "demo-2.0-py3-none-any.whl": (tmp_path / DEMO).read_bytes(),
            "demo-1.0%2Bx-py3-none-any.whl": (tmp_path / DEMO).read_bytes(),
            "text-1.0.tar.gz": b"text",
        }
        for name, data in broken.items():
            (tmp_path / name).write_bytes(data)
        make_sdist(tmp_path).rename(tmp_path / "demo-3.0.tar.gz")
        (tmp_path / "link-1.0-py3-none-any.whl").symlink_to("nowhere")
        done = te_wheel("index", tmp_path, "--json")
        assert done.code == 2
        assert done.json["files"] == 1
        named = {Path(item["path"]).name for item in done.json["broken"]}
        assert named == {*broken, "demo-3.0.tar.gz", "link-1.0-py3-none-any.whl"}
        assert all(any(name in fault for fault in done.errors) for name in named), done.err
        assert [link["file"] for link in anchors(tmp_path / "simple")] == [DEMO]

    @pytest.mark.parametrize("broken", BLOCKING, ids=[broken.id for broken in BLOCKING])
    def test_a_wheel_that_repack_refuses_is_not_offered(self, tmp_path: Path, broken: Broken) -> None:
        wheel = broken.make(tmp_path)
        assert wheel in [path for path, _ in make_index(tmp_path).broken]

    def test_hidden_folders_and_the_pages_are_passed_by(self, tmp_path: Path) -> None:
        make_wheel(tmp_path / ".hidden")
        make_wheel(tmp_path / "simple", name="inside")
        make_wheel(tmp_path, name="shown")
        assert make_index(tmp_path).projects == ("shown",)


class TestCommandLine:
    def test_the_folder_is_data_and_the_counts_are_talk(self, tmp_path: Path) -> None:
        make_wheel(tmp_path)
        done = te_wheel("index", tmp_path)
        assert (done.code, done.lines) == (0, [str(tmp_path / "simple")])
        assert done.err == "1 file of 1 project, 1 read, 5 pages and sidecars written, 0 removed\n"

    def test_an_empty_folder_is_a_warning(self, tmp_path: Path) -> None:
        done = te_wheel("index", "-q", tmp_path)
        assert (done.code, done.err) == (0, f"warning: {tmp_path}: no wheel and no sdist that can be indexed\n")

    def test_links_that_leave_the_output_folder_are_a_note(self, tmp_path: Path) -> None:
        make_wheel(tmp_path / "in")
        done = te_wheel("index", tmp_path / "in", "-o", tmp_path / "out")
        assert done.err.startswith("note: the links lead out of the output folder: serve a folder above both")

    @pytest.mark.parametrize("option", ["-o", "--yanked"])
    def test_an_empty_path_is_a_mistake(self, tmp_path: Path, option: str) -> None:
        assert te_wheel("index", tmp_path, option, "").errors == [f"argument {option}: expected a path, got ''"]
