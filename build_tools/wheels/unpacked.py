"""A wheel as a folder to edit: unpack it, and pack the folder again.

Both take every name from METADATA and WHEEL: ``unpack`` makes the folder ``{name}-{version}``,
``pack`` writes the file, ``.dist-info`` and ``.data`` that the headers in the folder ask for,
whatever its own names are. So what was edited by hand in between packs to a right wheel.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from build_tools.errors import FileError, ReleaseError, TreeError, WheelError
from build_tools.version import parse_version
from build_tools.wheels import zip_format as fmt
from build_tools.wheels.archive_writer import ArchiveWriter, Content, write_all
from build_tools.wheels.deflate import Piece, deflate_files, file_blocks
from build_tools.wheels.finding import Finding
from build_tools.wheels.header_edit import edit_wheel
from build_tools.wheels.headers import Headers
from build_tools.wheels.member_names import check_names, leaves_tree
from build_tools.wheels.name import WheelName, compress_tags
from build_tools.wheels.new_tree import NewTree, require_names
from build_tools.wheels.output import OutputFile, OutputFolder
from build_tools.wheels.record import DIGEST_SIZES, Record, Row, digest_text
from build_tools.wheels.times import DOS_1980, epoch_dos_time
from build_tools.wheels.wheel import SIGNATURES, Wheel
from build_tools.wheels.zip_format import Entry


def unpack(wheel: str | os.PathLike[str], dest: str | os.PathLike[str] = ".") -> Path:
    """Unpack a wheel into ``dest/{name}-{version}``, which must not be there yet.

    The x bits and the symlinks of the archive are restored, other mode bits are not: what others may
    do is the umask's choice, and all may never write. Every member is held against its CRC and its
    digest in RECORD. A wheel whose parts disagree is unpacked, so that it can be mended; one that is
    no sound archive is not. The folder appears when it is whole.

    Returns:
        The folder.

    Raises:
        WheelError: the file is no wheel, or a member is unsafe or damaged.
        OutputExistsError: the folder is there already.
        FileError: a file cannot be read or written.
    """
    with Wheel.open(wheel) as source:
        source.refuse(f for f in source.findings if f.code.startswith(("zip-", "dist-info-count")))
        require_names(list(source.archive.by_name), source.path.name)
        with OutputFolder(Path(dest) / _folder_name(source)) as output:
            _write_tree(source, output.temporary)
            output.publish()
            return output.path


def _folder_name(wheel: Wheel) -> str:
    """``{name}-{version}`` of METADATA; of the file name where METADATA has none."""
    if wheel.project and wheel.version is not None:
        try:
            return WheelName(wheel.project, wheel.version).stem
        except ReleaseError:
            pass
    wheel.refuse(wheel.findings if wheel.name is None else ())
    assert wheel.name
    return wheel.name.stem


def _write_tree(wheel: Wheel, root: Path) -> None:
    archive = wheel.archive
    rows = {row.path: row.digest for row in wheel.record} if wheel.record else {}
    links: list[tuple[str, str]] = []
    with NewTree(root) as tree:
        for member in archive.members:
            if member.is_dir:
                tree.make_folder(member.name.removesuffix("/"))
                continue
            algorithm = rows.get(member.name, "").partition("=")[0]
            digest = hashlib.new(algorithm) if algorithm in DIGEST_SIZES else None
            # A link to nothing cannot be made; what installers make of it is an empty file.
            if member.is_symlink and member.size:
                data = archive.read(member, member.size)
                links.append((member.name, data.decode()))
                if digest:
                    digest.update(data)
            else:
                fd = tree.open_file(member.name, executable=bool(member.mode & 0o111))
                try:
                    for chunk in archive.chunks(member):
                        write_all(fd, chunk)
                        if digest:
                            digest.update(chunk)
                finally:
                    os.close(fd)
            if digest and digest_text(algorithm, digest.digest()) != rows[member.name]:
                raise WheelError(
                    f"{wheel.path.name}: {member.name}: its digest is not the one in RECORD [record-digest]"
                )
        # Last, so that nothing is ever written through one.
        for name, target in links:
            tree.make_link(name, target)


@dataclass(frozen=True, slots=True)
class Packed:
    """What ``pack`` made: the wheel, whether it has new bytes now, its size in bytes, what `check` says of it."""

    path: Path
    written: bool
    size: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Node:
    """A file or symlink of the tree: its path on the disk, its stat, its target if it is a link."""

    path: Path
    info: os.stat_result
    target: str | None


def pack(
    folder: str | os.PathLike[str],
    dest: str | os.PathLike[str] = ".",
    *,
    build: str | None = None,
    force: bool = False,
    fsync: bool = False,
) -> Packed:
    """Pack a folder into the wheel that its METADATA and WHEEL describe.

    ``.dist-info`` and ``.data`` are named anew, RECORD is written anew, signatures are dropped.
    x bits and symlinks are kept, members stand in sorted order with ``.dist-info`` last, and every
    time is SOURCE_DATE_EPOCH or 1980-01-01, so the same tree always gives the same bytes.
    Compression uses all cores.

    Args:
        folder: what ``unpack`` made, edited or not.
        dest: where the wheel goes, made if missing.
        build: the build tag in place of the one in WHEEL; ``""`` for none.
        force: replace a wheel that is there with other bytes.
        fsync: return only when the wheel is on the disk.

    Raises:
        TreeError: the folder is no unpacked wheel; every fault is named.
        OutputExistsError: the wheel is there with other bytes.
        FileError: a file cannot be read or written.
    """
    root = Path(folder)
    if Path(os.path.realpath(dest)).is_relative_to(os.path.realpath(root)):
        raise TreeError(
            f"{os.fspath(dest)!r} is inside {str(root)!r}: the wheel would become a part of the next one",
            hint="choose another folder with -d",
        )
    tree = _Tree(root, build)
    with OutputFile(Path(dest) / tree.name.filename) as output:
        size = tree.write(output.fd)
        with Wheel.open(output.temporary, filename=output.path.name) as proof:
            blocking = [finding for finding in proof.findings if finding.blocks]
            if blocking:
                raise TreeError([f"{root}: {finding}" for finding in blocking])
        written = output.publish(replace=force, fsync=fsync)
        return Packed(output.path, written, size, tuple(proof.findings))


class _Tree:
    """An unpacked wheel on the disk, read and ready to be written."""

    def __init__(self, root: Path, build: str | None) -> None:
        self._root = root
        self._time = epoch_dos_time() or DOS_1980
        self._nodes = self._scan()
        self._check()
        tops = dict.fromkeys(name.split("/", 1)[0] for name in self._nodes if "/" in name)
        infos = [top for top in tops if top.endswith(".dist-info")]
        datas = [top for top in tops if top.endswith(".data")]
        if len(infos) != 1:
            raise TreeError(
                f"{root}: expected one .dist-info folder, found {', '.join(infos) or 'none'}",
                hint="give the folder that `te-wheel unpack` made",
            )
        if len(datas) > 1:
            raise TreeError(f"{root}: expected at most one .data folder, found {', '.join(datas)}")
        self._dist_info = infos[0]
        missing = [file for file in ("METADATA", "WHEEL") if f"{infos[0]}/{file}" not in self._nodes]
        if missing:
            raise TreeError([f"{root}: {infos[0]} holds no {file}" for file in missing])
        self._own = {f"{infos[0]}/{file}": file for file in ("METADATA", "WHEEL")}
        metadata, wheel = self._headers("METADATA"), self._headers("WHEEL")
        self.name = self._read_name(metadata, wheel, build)
        self._folders = {infos[0]: self.name.dist_info, **dict.fromkeys(datas, self.name.data)}
        metadata = metadata.with_values("Version", [str(self.name.version)])
        self._contents = {"METADATA": metadata.to_bytes(), "WHEEL": edit_wheel(wheel, self.name).to_bytes()}

    def _scan(self) -> dict[str, _Node]:
        """Every file and symlink below the root, by the name that it gets in the archive."""
        nodes: dict[str, _Node] = {}
        faults: list[str] = []
        todo = [(self._root, "")]
        while todo:
            folder, prefix = todo.pop()
            try:
                with os.scandir(folder) as entries:
                    found = list(entries)
            except OSError as error:
                raise FileError.of("read", folder, error) from error
            for entry in found:
                name = prefix + entry.name
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    todo.append((Path(entry.path), f"{name}/"))
                elif stat.S_ISREG(info.st_mode):
                    nodes[name] = _Node(Path(entry.path), info, None)
                elif stat.S_ISLNK(info.st_mode):
                    nodes[name] = _Node(Path(entry.path), info, os.readlink(entry.path))
                else:
                    faults.append(f"{self._root}: {name} is no file, folder or symlink")
        if faults:
            raise TreeError(sorted(faults))
        return dict(sorted(nodes.items()))

    def _check(self) -> None:
        faults = []
        for name in self._nodes:
            try:
                name.encode()
            except UnicodeEncodeError:
                faults.append(f"{self._root}: the name {name!r} is not UTF-8")
        if not faults:
            faults += [f"{self._root}: {finding}" for finding in check_names(self._nodes) if finding.blocks]
        links = {name: node.target for name, node in self._nodes.items() if node.target is not None}
        faults += [
            f"{self._root}: the symlink {name} to {target!r} leaves the folder"
            for name, target in links.items()
            if leaves_tree(name, links)
        ]
        if faults:
            raise TreeError(faults)

    def _headers(self, file: str) -> Headers:
        node = self._nodes[f"{self._dist_info}/{file}"]
        try:
            return Headers.parse(node.path.read_bytes(), file)
        except WheelError as error:
            raise TreeError([f"{self._root}: {fault}" for fault in error.faults]) from None
        except OSError as error:
            raise FileError.of("read", node.path, error) from error

    def _read_name(self, metadata: Headers, wheel: Headers, build: str | None) -> WheelName:
        faults: list[str] = []
        names, versions = metadata.get_all("Name"), metadata.get_all("Version")
        for field, values in (("Name", names), ("Version", versions)):
            if len(values) != 1:
                faults.append(f"METADATA has {len(values)} {field} lines, expected one")
        builds = wheel.get_all("Build") if build is None else [build] if build else []
        if len(builds) > 1:
            faults.append(f"WHEEL has {len(builds)} Build lines, expected one at most")
        try:
            python, abi, platform = compress_tags(tag.strip() for tag in wheel.get_all("Tag") if tag.strip())
            if not faults:
                build = builds[0].strip() if builds else ""
                return WheelName(names[0].strip(), parse_version(versions[0].strip()), build, python, abi, platform)
        except ReleaseError as error:
            faults += error.faults
        raise TreeError([f"{self._root}: {fault}" for fault in faults])

    def _rename(self, name: str) -> str:
        top, slash, rest = name.partition("/")
        return self._folders.get(top, top) + slash + rest if slash else name

    def write(self, fd: int) -> int:
        """Write the wheel to ``fd`` from its start; return its size in bytes."""
        made_anew = {f"{self._dist_info}/{file}" for file in ("RECORD", *SIGNATURES)}
        inside = f"{self._dist_info}/"
        order = sorted(
            (name for name in self._nodes if name not in made_anew),
            key=lambda name: (name.startswith(inside), self._rename(name)),
        )
        writer = ArchiveWriter(fd)
        rows: list[Row] = []
        current = None
        for piece in deflate_files(order, self._blocks):
            if piece.source != current:
                current = piece.source
                writer.begin(self._entry(current))
            self._write_piece(writer, piece, rows)
        record = f"{self.name.dist_info}/RECORD"
        entry = Entry(name=record, method=fmt.DEFLATED, crc=0, compressed_size=0, size=0, dos_time=self._time)
        writer.add(Content.make(entry, Record((*rows, Row(record))).to_bytes()))
        return writer.finish()

    def _write_piece(self, writer: ArchiveWriter, piece: Piece[str], rows: list[Row]) -> None:
        writer.write(piece.data)
        if piece.summary:
            writer.end(piece.summary.crc, piece.summary.size)
            rows.append(
                Row(self._rename(piece.source), digest_text("sha256", piece.summary.sha256), piece.summary.size)
            )

    def _blocks(self, name: str) -> Iterator[bytes]:
        node = self._nodes[name]
        content = self._contents.get(self._own.get(name, ""))
        if content is not None:
            return iter([content])  # a file, also where the tree has a link in its place
        if node.target is not None:
            return iter([node.target.encode()])
        return self._file_blocks(node)

    def _file_blocks(self, node: _Node) -> Iterator[bytes]:
        try:
            yield from file_blocks(node.path)
        except OSError as error:
            raise FileError.of("read", node.path, error) from error

    def _entry(self, name: str) -> Entry:
        node = self._nodes[name]
        if node.target is not None and name not in self._own:
            mode = stat.S_IFLNK | 0o777
        else:
            mode = stat.S_IFREG | (0o755 if node.info.st_mode & 0o111 and node.target is None else 0o644)
        return Entry(
            name=self._rename(name),
            method=fmt.DEFLATED,
            crc=0,
            compressed_size=0,
            size=node.info.st_size,
            dos_time=self._time,
            external_attr=mode << 16,
        )
