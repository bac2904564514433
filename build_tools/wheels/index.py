"""A folder of wheels and sdists -> a static index that pip and uv install from.

::

    OUT/simple/index.html, index.json               the projects
    OUT/simple/NAME/index.html, index.json          the files of one
    FOLDER/.../demo-1.0-py3-none-any.whl.metadata   its METADATA, beside each wheel

The files stay where they are; the pages link to them. Only new and changed ones are read. Each page
appears whole, a run waits for another one in the same folder, and what did not change is not written.

Source: Simple repository API, <https://packaging.python.org/specifications/simple-repository-api/>.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.version import Version

from build_tools.errors import FileError, IndexingError, OutputExistsError, ReleaseError, UsageError
from build_tools.wheels import index_memory, index_pages, yanked
from build_tools.wheels.distribution import SIDECAR, Distribution, Stamp, find_distributions, read_distribution
from build_tools.wheels.index_pages import Link, encode_path
from build_tools.wheels.output import OutputFile, remove_leftovers

try:
    import fcntl
except ImportError:  # Windows: two runs at once still write whole pages
    fcntl = None  # type: ignore[assignment]

SIMPLE = "simple"
_PAGES = ("index.html", "index.json")


@dataclass(frozen=True, slots=True)
class Index:
    """What an index holds, and what a run changed.

    Attributes:
        folder: the folder of the pages, ``OUT/simple``: what ``--index-url`` points to.
        projects: the projects, in normal form, sorted.
        files: every distribution, sorted by its path.
        read: how many of them were new or changed, and so were read.
        written, removed: pages and sidecars that have other bytes now, or are gone.
        broken: what could not be indexed, each with the reason.
        leaves: whether links lead out of ``OUT``, so that a server must serve a folder above both.
    """

    folder: Path
    projects: tuple[str, ...]
    files: tuple[Distribution, ...]
    read: int
    written: tuple[Path, ...]
    removed: tuple[Path, ...]
    broken: tuple[tuple[Path, ReleaseError], ...]
    leaves: bool

    @property
    def facts(self) -> dict[str, Any]:
        """The run for programs: paths as text, the number of ``files`` and of those ``read``."""
        return {
            "folder": str(self.folder),
            "projects": list(self.projects),
            "files": len(self.files),
            "read": self.read,
            "written": list(map(str, self.written)),
            "removed": list(map(str, self.removed)),
            "broken": [{"path": str(path), "error": str(error)} for path, error in self.broken],
        }


def make_index(
    folder: str | os.PathLike[str],
    out_dir: str | os.PathLike[str] | None = None,
    *,
    base_url: str | None = None,
    yanked_file: str | os.PathLike[str] | None = None,
) -> Index:
    """Make or renew the index of the wheels and sdists below a folder.

    Args:
        folder: where they are, at any depth; hidden folders are passed by.
        out_dir: where ``simple/`` goes, made if missing; ``folder`` itself unless given.
        base_url: the URL under which ``folder`` is served; links are relative unless given.
        yanked_file: the list of yanked files, in the form of :mod:`build_tools.wheels.yanked`;
            ``yanked.txt`` in ``folder`` unless given, where there is one.

    Returns:
        What the index holds now. Look at :attr:`Index.broken`: a broken file does not stop the others.

    Raises:
        IndexingError: two files have one name (both are told), or a line of the yanked list is wrong.
        OutputExistsError: ``simple/`` is there and no index of this tool.
        UsageError: ``base_url`` is no URL.
        FileError: a folder cannot be read, or a page not be written.
        Nothing is written then, but where the disk fills up.

    Example: after ``make_index("dist")`` both of these install the same file::

        python -m http.server -d dist
        pip install --index-url http://127.0.0.1:8000/simple/ demo
        pip install --index-url file:///path/to/dist/simple/ demo
    """
    root = Path(folder)
    simple = Path(out_dir if out_dir is not None else folder) / SIMPLE
    if not root.is_dir():
        raise FileError(
            f"{str(root)!r} is {'no folder' if root.exists() else 'not there'}, expected a folder of wheels"
        )
    base = _check_url(base_url)
    _require_ours(simple)
    with _alone(simple):
        return _Run(root, simple, base, yanked_file).make()


def _check_url(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        parts = urlsplit(text)
        odd = bool(parts.query or parts.fragment or not parts.scheme) or text.split() != [text]
    except ValueError:
        odd = True
    if odd or not text.isprintable():
        raise UsageError(f"the base URL {text!r} is none, expected such as 'https://example.org/wheels'")
    return text.rstrip("/")


def _require_ours(simple: Path) -> None:
    page = simple / _PAGES[0]
    if simple.exists() and not simple.is_dir():
        raise FileError(f"{str(simple)!r} is no folder, expected the folder of the index")
    if page.exists() and not _is_ours(page):
        raise OutputExistsError(
            f"{str(page)!r} is there, and no page of this tool", hint="choose another folder with -o, or remove it"
        )


def _is_ours(page: Path) -> bool:
    try:
        with page.open("rb") as file:
            return index_pages.MARK.encode() in file.read(1024)
    except OSError:
        return False


@contextlib.contextmanager
def _alone(simple: Path) -> Iterator[None]:
    """Make the folder of the pages and wait until no other run works there; an empty one goes again on failure."""
    missing = [path for path in (simple, *simple.parents) if not path.exists()]
    fd = -1
    try:
        simple.mkdir(parents=True, exist_ok=True)
        if fcntl is not None:
            fd = os.open(simple, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    except BaseException as error:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError) and not isinstance(error, ReleaseError):
            raise FileError.of("write", error.filename or simple, error) from error
        raise
    finally:
        if fd >= 0:
            os.close(fd)


class _Run:
    """One run over one folder."""

    def __init__(self, root: Path, simple: Path, base: str | None, yanked_file: str | os.PathLike[str] | None) -> None:
        self._root = root
        self._simple = simple
        self._base = base
        self._yanked_file = Path(yanked_file) if yanked_file is not None else root / yanked.DEFAULT
        self._yanked_given = yanked_file is not None
        self._written: list[Path] = []
        self._removed: list[Path] = []
        self._broken: list[tuple[Path, ReleaseError]] = []

    def make(self) -> Index:
        """Read what is new, refuse what cannot be, then write what differs."""
        began = time.time_ns()
        memory = index_memory.recall(self._simple)
        stamps = find_distributions(self._root, leave=self._simple)
        known = {path: entry for path, entry in memory.items() if stamps.get(path) == entry[0]}
        sidecars: dict[str, bytes] = {}
        new = self._read([path for path in stamps if path not in known], stamps, sidecars)
        entries = {path: entry for path in stamps if (entry := known.get(path) or new.get(path)) is not None}
        self._require_distinct(entries)
        files = {path: file for path, (_, file) in entries.items()}
        reasons = self._reasons(files)

        self._write_sidecars(files, sidecars)
        projects = self._write_pages(entries, reasons)
        self._remove_gone(projects, memory, stamps)
        if new or entries.keys() != memory.keys():
            self._write(self._simple / index_memory.FILE, index_memory.to_bytes(entries, began), told=False)
        return Index(
            self._simple, tuple(projects), tuple(files.values()), len(new), tuple(self._written),
            tuple(self._removed), tuple(self._broken), self._leaves(),
        )  # fmt: skip

    # -- reading ------------------------------------------------------------------------------

    def _read(
        self, paths: list[str], stamps: Mapping[str, Stamp | None], sidecars: dict[str, bytes]
    ) -> dict[str, tuple[Stamp, Distribution]]:
        """Read files, on all cores: digests are taken outside of the interpreter's lock."""
        found: dict[str, tuple[Stamp, Distribution]] = {}
        if not paths:
            return found
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for path, result in zip(paths, pool.map(self._read_one, paths), strict=True):
                stamp = stamps[path]
                if isinstance(result, ReleaseError):
                    self._broken.append((self._root / path, result))
                elif stamp is not None:
                    file, metadata = result
                    found[path] = (stamp, file)
                    if metadata is not None:
                        sidecars[path] = metadata
        return found

    def _read_one(self, path: str) -> tuple[Distribution, bytes | None] | ReleaseError:
        try:
            return read_distribution(self._root / path)
        except ReleaseError as error:
            return error

    def _require_distinct(self, entries: Mapping[str, tuple[Stamp, Distribution]]) -> None:
        paths: dict[str, list[str]] = {}
        for path, (_, file) in entries.items():
            paths.setdefault(file.normal_filename, []).append(str(self._root / path))
        faults = [
            f"{' and '.join(map(repr, same))} are one file to an installer: {name}"
            for name, same in paths.items()
            if len(same) > 1
        ]
        if faults:
            raise IndexingError(faults, hint="nothing was written: keep one of them, or make an index for each folder")

    def _reasons(self, files: Mapping[str, Distribution]) -> dict[str, str]:
        if not self._yanked_given and not self._yanked_file.exists():
            return {}
        yanks = yanked.read_yanked(self._yanked_file)
        broken = {path.name for path, _ in self._broken}
        return yanked.find_yanked(
            [yank for yank in yanks if yank.what not in broken], files.values(), self._yanked_file
        )

    # -- writing ------------------------------------------------------------------------------

    def _write(self, path: Path, data: bytes, *, told: bool = True) -> None:
        try:
            if path.read_bytes() == data:
                return
        except OSError:
            pass  # missing, or to be replaced: whoever writes it says what is wrong
        with OutputFile(path, sweep=False) as output:
            with output.stream() as stream:
                stream.write(data)
            if output.publish(replace=True, fsync=False) and told:
                self._written.append(path)

    def _write_sidecars(self, files: Mapping[str, Distribution], sidecars: Mapping[str, bytes]) -> None:
        swept: set[Path] = set()
        for path, file in files.items():
            if file.metadata_sha256 is None:
                continue
            target = self._root / f"{path}{SIDECAR}"
            # Held against its digest, not against a stamp: it is small, and must be what the page says.
            if _has_digest(target, file.metadata_sha256):
                continue
            data = sidecars.get(path)
            if data is None:
                _, data = read_distribution(self._root / path)
            if target.parent not in swept:
                remove_leftovers(target.parent)
                swept.add(target.parent)
            self._write(target, data or b"")

    def _write_pages(self, entries: Mapping[str, tuple[Stamp, Distribution]], reasons: Mapping[str, str]) -> list[str]:
        prefix = self._base if self._base is not None else self._relative(self._simple / "project")
        links: dict[str, list[Link]] = {}
        for path, (stamp, file) in entries.items():
            url = f"{prefix}/{encode_path(path)}"
            links.setdefault(file.project, []).append(Link(file, url, stamp.mtime_ns / 1e9, reasons.get(file.filename)))
        projects = sorted(links)
        remove_leftovers(self._simple)
        for project in projects:
            listed = sorted(links[project], key=lambda link: link.file.filename)
            listed.sort(key=lambda link: _parsed(link.file.version), reverse=True)
            self._write(self._simple / project / _PAGES[0], index_pages.project_html(project, listed))
            self._write(self._simple / project / _PAGES[1], index_pages.project_json(project, listed))
        self._write(self._simple / _PAGES[0], index_pages.root_html(projects))
        self._write(self._simple / _PAGES[1], index_pages.root_json(projects))
        return projects

    def _relative(self, page: Path) -> str:
        # As text: it is a URL that is resolved, and that knows nothing of links between folders.
        try:
            return encode_path(Path(os.path.relpath(os.path.abspath(self._root), os.path.abspath(page))).as_posix())
        except ValueError:  # two drives
            raise UsageError(
                f"no relative link leads from {str(self._simple)!r} to {str(self._root)!r}", hint="give --base-url"
            ) from None

    def _leaves(self) -> bool:
        if self._base is not None:
            return False
        return not Path(os.path.abspath(self._root)).is_relative_to(os.path.abspath(self._simple.parent))

    def _remove_gone(
        self, projects: list[str], memory: index_memory.Memory, stamps: Mapping[str, Stamp | None]
    ) -> None:
        """Remove the pages of projects that are gone, and the sidecars of wheels that are; nothing that is not ours."""
        kept = set(projects)
        with os.scandir(self._simple) as entries:
            gone = [Path(entry.path) for entry in entries if entry.name not in kept and entry.is_dir()]
        for folder in sorted(gone):
            if _is_ours(folder / _PAGES[0]):
                # The mark goes last: a run that is interrupted here leaves what the next one knows for its own.
                for page in reversed(_PAGES):
                    self._remove(folder / page)
                with contextlib.suppress(OSError):
                    folder.rmdir()
        for path, (_, file) in memory.items():
            sidecar = self._root / f"{path}{SIDECAR}"
            if path not in stamps and file.metadata_sha256 and _has_digest(sidecar, file.metadata_sha256):
                self._remove(sidecar)

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            self._removed.append(path)


def _has_digest(path: Path, sha256: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


@cache
def _parsed(version: str) -> Version:
    return Version(version)
