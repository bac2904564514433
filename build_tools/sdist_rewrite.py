"""An sdist -> the same under another name or version, member by member.

The file name, the top folder, ``PKG-INFO`` and setuptools' ``.egg-info`` follow; every other file keeps its bytes,
and so says what it said: :attr:`Repacked.notes` names a name or a version that the source itself writes.

Source: Source distribution format (PyPA),
<https://packaging.python.org/specifications/source-distribution-format/>.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from build_tools.errors import BuildError, EditError, ReleaseError, WheelError
from build_tools.input_file import open_input
from build_tools.sdist import ENDING, Sdist, open_tar_gz, read_sdist
from build_tools.version import parse_version, with_local
from build_tools.wheels.change import Change, header_changes
from build_tools.wheels.edit import WheelEdit
from build_tools.wheels.file_identity import identity, is_same_file
from build_tools.wheels.header_edit import edit_metadata
from build_tools.wheels.headers import Headers
from build_tools.wheels.name import WheelName, normalize_name, parse_stem
from build_tools.wheels.output import OutputFile
from build_tools.wheels.repacked import Repacked
from build_tools.wheels.times import epoch_seconds

_MAX_TEXT = 32 << 20
_MAX_MEMBERS = 200_000
_ALLOWED = {"name", "version", "local", "set", "add", "remove"}


def repack_sdist(
    sdist: str | os.PathLike[str],
    out_dir: str | os.PathLike[str] | None = None,
    edit: WheelEdit | None = None,
    *,
    replace: bool = False,
    force: bool = False,
    fsync: bool = False,
    dry_run: bool = False,
) -> Repacked:
    """Rewrite one sdist.

    Args:
        sdist: the ``.tar.gz`` to read; its file name, top folder and PKG-INFO agree.
        edit: ``name``, ``version``, ``local``, and headers of PKG-INFO (``set``, ``add``, ``remove``).
        out_dir, replace, force, fsync, dry_run: as for :func:`build_tools.wheels.repack`.

    Returns:
        The path of the output, what changed, and in ``notes`` what was not touched.

    Raises:
        FileError: a file cannot be read or written.
        WheelError: the file is no sdist, disagrees with itself, or holds a member that leaves its folder.
        EditError: the edit asks for what an sdist does not have, or cannot be applied.
        OutputExistsError: the output is there with other bytes, or is the input.

    The same input and edit always give the same bytes. Members keep order, times and modes; owners go.

    >>> repack_sdist("demo-1.0.tar.gz", "out", WheelEdit(name="demo-cu12")).path  # doctest: +SKIP
    PosixPath('out/demo_cu12-1.0.tar.gz')
    """
    path = Path(sdist)
    before = identity(path)
    with ExitStack() as stack:
        plan = _Plan(_read(path), edit or WheelEdit())
        target = (path.parent if out_dir is None else Path(out_dir)) / f"{plan.new.stem}{ENDING}"
        made = Repacked(path, target, plan.changes, written=False, size=None, notes=plan.notes)
        if dry_run:
            return made
        mode = path.stat().st_mode & 0o7777 if is_same_file(path, target) else None
        output = stack.enter_context(OutputFile(target, mode=mode))
        plan.write(output)
        _read(output.temporary, target.name)  # the proof: it is read as any sdist is, before it gets its name
        size = output.temporary.stat().st_size
        return made._replace(size=size, written=output.succeed(path, before, replace=replace, force=force, fsync=fsync))


class _Source(NamedTuple):
    """An sdist that agrees with itself."""

    path: Path
    folder: str
    old: WheelName
    headers: Headers


def _read(path: Path, filename: str | None = None) -> _Source:
    try:
        sdist = read_sdist(path)
    except BuildError as error:
        raise WheelError(error.faults, hint=error.hint) from error
    name = filename or path.name
    if not name.endswith(ENDING):
        raise WheelError(f"{name}: expected an sdist, {{name}}-{{version}}{ENDING}")
    try:
        old = WheelName(sdist.name, parse_version(sdist.version))
        expected = (old.name, str(old.version))
        faults = [
            f"{what} {stem!r} disagrees with PKG-INFO, expected {old.stem!r}"
            for what, stem in (("the file name", name.removesuffix(ENDING)), ("the top folder", sdist.folder))
            if _parts(stem) != expected
        ]
    except ReleaseError as error:
        faults = [f"PKG-INFO: {fault}" for fault in error.faults]
    if faults:
        raise WheelError([f"{name}: {fault}" for fault in faults])
    return _Source(path, sdist.folder, old, _headers(path, sdist))


def _parts(stem: str) -> tuple[str, str] | None:
    try:
        name, version = parse_stem(stem)
    except ReleaseError:
        return None
    return name, str(version)


def _headers(path: Path, sdist: Sdist) -> Headers:
    with _archive(path) as archive:
        member = archive.getmember(f"{sdist.folder}/PKG-INFO")
        return Headers.parse(_data(archive, member), "PKG-INFO")


class _Plan:
    """What one edit makes of one sdist: decided, not yet written."""

    def __init__(self, source: _Source, edit: WheelEdit) -> None:
        self._source = source
        self._epoch = epoch_seconds()
        self._check_edit(edit)
        old = source.old
        version = old.version if edit.version is None else parse_version(edit.version)
        if edit.local is not None:
            version = with_local(version, edit.local)
        self.new = WheelName(edit.name or old.project, version)
        self._edit = edit
        headers = self._edited(source.headers)
        self._contents = {f"{source.folder}/PKG-INFO": headers.to_bytes()}
        self._folders: dict[str, str] = {}
        self.notes: tuple[str, ...] = ()
        with _archive(source.path) as archive:
            members = list(islice(archive, _MAX_MEMBERS + 1))
            self._check_members(members)
            self._plan_egg_info(archive, members)
            self.notes = tuple(self._untouched(archive))
        changes = [
            Change("filename", "name", source.path.name, f"{self.new.stem}{ENDING}"),
            Change("folder", "top", source.folder, self.new.stem),
            *(Change("folder", "egg-info", was, will) for was, will in self._folders.items()),
            *header_changes("PKG-INFO", source.headers, headers),
        ]
        self.changes = tuple(change for change in changes if change.old != change.new)

    def _check_edit(self, edit: WheelEdit) -> None:
        given = [
            field for field, value in edit._asdict().items() if value not in (None, (), False) and field not in _ALLOWED
        ]
        if given:
            options = ", ".join(f"--{field.replace('_', '-')}" for field in given)
            raise EditError(
                f"{self._source.path.name}: {options}: for wheels alone",
                hint="an sdist takes --name, --version, --local, --set, --add and --remove",
            )

    def _edited(self, headers: Headers) -> Headers:
        return edit_metadata(headers, self._source.old, self.new, self._edit)

    def _check_members(self, members: list[tarfile.TarInfo]) -> None:
        faults = [f"it holds more than {_MAX_MEMBERS} members"] if len(members) > _MAX_MEMBERS else []
        for member in members:
            parts = member.name.split("/")
            if member.name.startswith("/") or ".." in parts or "\\" in member.name:
                faults.append(f"{member.name!r} leaves the folder of the sdist")
            elif not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                faults.append(f"{member.name!r} is a device or a pipe")
            elif member.issym() and _leaves(member.name, member.linkname):
                faults.append(f"the symlink {member.name!r} to {member.linkname!r} leaves the folder of the sdist")
        if faults:
            raise WheelError([f"{self._source.path.name}: {fault}" for fault in faults])

    def _plan_egg_info(self, archive: tarfile.TarFile, members: list[tarfile.TarInfo]) -> None:
        """The ``.egg-info`` folders of the project itself, as setuptools leaves them in an sdist."""
        regular = {member.name: member for member in members if member.isreg()}
        for name, member in regular.items():
            folder, _, file = name.rpartition("/")
            if file != "PKG-INFO" or not folder.endswith(".egg-info"):
                continue
            headers = Headers.parse(_data(archive, member), name)
            if _normal(headers.get("Name")) != self._source.old.name:
                continue
            self._contents[name] = self._edited(headers).to_bytes()
            above = folder.rpartition("/")[0]
            renamed = self.new.name != self._source.old.name
            self._folders[folder] = f"{above}/{self.new.stem.partition('-')[0]}.egg-info" if renamed else folder
            if renamed and any(f"{other.name}/".startswith(f"{self._folders[folder]}/") for other in members):
                raise EditError(f"{self._source.path.name}: {self._folders[folder]} is there already")
            listed = regular.get(f"{folder}/SOURCES.txt")
            if listed is not None:
                was, will = (path.partition("/")[2].encode() + b"/" for path in (folder, self._folders[folder]))
                lines = _data(archive, listed).splitlines(keepends=True)
                self._contents[listed.name] = b"".join(
                    will + line.removeprefix(was) if line.startswith(was) else line for line in lines
                )

    def _untouched(self, archive: tarfile.TarFile) -> Iterator[str]:
        """What the source itself says, and a build of the output will go by."""
        old, new = self._source.old, self.new
        if (old.name, old.version) == (new.name, new.version):
            return
        try:
            member = archive.getmember(f"{self._source.folder}/pyproject.toml")
            project = tomllib.loads(_data(archive, member).decode()).get("project", {})
        except (KeyError, ValueError, RecursionError):
            project = {}
        stated = {key: project.get(key) for key in ("name", "version")} if isinstance(project, dict) else {}
        wanted = {"name": self.new.project, "version": str(self.new.version)}
        for key, value in stated.items():
            if isinstance(value, str) and value != wanted[key] and getattr(old, key) != getattr(new, key):
                yield f"pyproject.toml says {key} {value!r}, and so will a wheel that is built from this sdist"
        if "version" not in stated or stated["version"] is None:
            yield "a version that the source writes elsewhere is not touched, and a build goes by that"

    def _rename(self, name: str) -> str:
        for was, will in self._folders.items():
            if name == was or name.startswith(f"{was}/"):
                name = will + name[len(was) :]
                break
        top, slash, rest = name.partition("/")
        return (self.new.stem if top == self._source.folder else top) + slash + rest

    def write(self, output: OutputFile) -> None:
        """Write the output; the input is read a second time, member by member."""
        time = self._epoch if self._epoch is not None else _gzip_time(self._source.path)
        with (
            _archive(self._source.path) as archive,
            output.stream() as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=time) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target,
        ):
            for member in archive:
                data = self._contents.get(member.name)
                stream = (
                    io.BytesIO(data) if data is not None else archive.extractfile(member) if member.isreg() else None
                )
                if data is not None:
                    member.size = len(data)
                    member.mtime = self._epoch if self._epoch is not None else member.mtime
                # What a PAX header says would win over what is set here.
                member.pax_headers = {key: v for key, v in member.pax_headers.items() if key in ("mtime", "comment")}
                if data is not None and self._epoch is not None:
                    member.pax_headers.pop("mtime", None)
                if member.islnk():
                    member.linkname = self._rename(member.linkname)
                member.name = self._rename(member.name)
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                target.addfile(member, stream)


@contextmanager
def _archive(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with open_tar_gz(path) as (archive, _):
            yield archive
    except BuildError as error:
        raise WheelError(error.faults, hint=error.hint) from error


def _data(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.size > _MAX_TEXT:
        raise WheelError(f"{member.name} holds {member.size} bytes, at most {_MAX_TEXT} are read")
    stream = archive.extractfile(member)
    return stream.read() if stream is not None else b""


def _normal(name: str | None) -> str | None:
    try:
        return normalize_name((name or "").strip())
    except ReleaseError:
        return None


def _leaves(name: str, target: str) -> bool:
    """Whether a symlink leads out of the top folder of ``name``."""
    place = os.path.normpath(f"{name.rpartition('/')[0]}/{target}")
    return target.startswith("/") or place.split("/")[0] != name.split("/")[0]


def _gzip_time(path: Path) -> int:
    """When the gzip header says that it was made: seconds since 1970."""
    with open_input(path) as file:
        return int.from_bytes(file.read(8)[4:], "little")
