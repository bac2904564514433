"""The records of a zip archive, read and held against each other.

Nothing is trusted: each local header must agree with its central one, members may not overlap,
and nothing may stand before, between or behind them.
"""

from __future__ import annotations

import struct

from build_tools.wheels import zip_format as fmt
from build_tools.wheels.end_record import ReadAt, read_end, read_whole
from build_tools.wheels.finding import Finding, Findings
from build_tools.wheels.limits import LIMITS, Limits
from build_tools.wheels.member import LAYOUT, Member
from build_tools.wheels.zip_format import DEFLATED, LIMIT_32, LOCAL_SIGNATURE, STORED, UTF8, Entry, is_symlink_mode

_WINDOW = 16 << 10
"""Bytes that are read at once where headers stand close together."""
_NEAR = 1 << 10
"""Bytes between two local headers up to which they stand close together."""
_USUAL_VERSIONS = (10, 20)


class CentralDirectory:
    """The members of an archive in the order of its central directory, and what is wrong with its records.

    Attributes:
        members: in the order of the directory.
        by_name: each by its name; of several with one name, the last.
        odd: those that are symlinks, or folders that hold data.

    Args:
        read_at: gives up to so many bytes (second argument) from an offset (first).
        size: bytes of the file.
        limits: how much is read.
    """

    def __init__(self, read_at: ReadAt, size: int, limits: Limits = LIMITS) -> None:
        self._read_at = read_at
        self._size = size
        self._limits = limits
        self._extra_left = size
        self._window = b""
        self._window_at = 0
        self._last = -_NEAR
        self.members: list[Member] = []
        self.by_name: dict[str, Member] = {}
        self.odd: list[Member] = []
        self.found = Findings()
        self._find = self.found.add
        self._read()

    @property
    def findings(self) -> list[Finding]:
        """What is wrong with the records."""
        return self.found.all()

    def _read(self) -> None:
        end = read_end(self._read_at, self._size, self._find)
        if end is None:
            return
        entries, central_size, central_offset, central_end = end
        members, directory = self._limits.members, self._limits.directory
        if entries > members or central_size > directory:
            self._find(
                "limit-exceeded",
                f"{entries} members in a central directory of {central_size} bytes, "
                f"at most {members} and {directory} are read",
            )
            return
        start = central_end - central_size
        if start < 0 or central_offset > start:
            self._find("zip-truncated", f"the central directory should start at {central_offset}, the file is shorter")
            return
        # As every reader does it: the directory is the one that ends at the end record, and what its
        # offsets fall short by stands before the archive.
        self._read_members(read_whole(self._read_at, start, central_size), entries, start, start - central_offset)

    def _read_members(self, central: bytes, entries: int, central_start: int, shift: int) -> None:
        position = expected = 0
        in_order = True
        # Where members end that were looked at closely: a data descriptor may follow the data.
        ends: dict[int, int] = {}
        while position + fmt.CENTRAL.size <= len(central) and central.startswith(fmt.CENTRAL_SIGNATURE, position):
            fields = fmt.CENTRAL.unpack_from(central, position)
            name_length, extra_length, comment_length = fields[9:12]
            start = position + fmt.CENTRAL.size
            raw_name = central[start : start + name_length]
            numbers = central[position + 6 : position + 30]
            position = start + name_length + extra_length + comment_length
            if position > len(central) or len(self.members) == self._limits.members:
                break
            found = self._usual_member(fields, raw_name, numbers, shift)
            if found is None:
                extra = central[start + name_length : start + name_length + extra_length]
                found = self._read_member(fields, raw_name, extra, shift)
                member, begin, end = found
                if member.is_symlink or (member.is_dir and member.size):
                    self.odd.append(member)
                ends[len(self.members)] = end
            else:
                member, begin, end = found
            in_order = in_order and begin == expected
            expected = end
            if member.name in self.by_name:
                self._find("zip-duplicate", "the member stands twice", member.name)
            self.by_name[member.name] = member
            self.members.append(member)
        if len(self.members) != entries or position != len(central):
            self._find(
                "zip-truncated",
                f"the central directory holds {len(self.members)} members in {position} bytes, "
                f"its end record says {entries} in {len(central)}",
            )
        if not in_order or expected != central_start:
            extents = [
                (member.header_offset, ends.get(index, member.end), member.name)
                for index, member in enumerate(self.members)
            ]
            self._check_extents(extents, central_start)

    def _usual_member(
        self, fields: tuple[int, ...], raw_name: bytes, numbers: bytes, shift: int
    ) -> tuple[Member, int, int] | None:
        """As :meth:`_read_member`, of a member with which nothing can be wrong; ``None`` for any other.

        Its central header is one that this tooling could have written, and its local header has the same numbers.

        Args:
            numbers: the bytes of the central header that stand in a local one too.
        """
        (
            _, made_by, needed, flags, method, time, crc, compressed, size, _, extra, comment, disk, internal, external,
            offset,
        ) = fields  # fmt: skip
        usual = method == DEFLATED or (method == STORED and size == compressed)
        if not usual or extra or comment or disk or needed not in _USUAL_VERSIONS:
            return None
        if flags != (0 if raw_name.isascii() else UTF8) or LIMIT_32 in (compressed, size, offset):
            return None
        if is_symlink_mode(external >> 16) or (size and raw_name.endswith(b"/")):
            return None
        try:
            name = raw_name.decode()
        except UnicodeDecodeError:
            return None
        header = LOCAL_SIGNATURE + numbers + b"\0\0" + raw_name
        offset += shift
        data_offset = offset + len(header)
        end = data_offset + compressed
        if end > self._size or not self._stands_at(offset, header):
            return None
        packed = LAYOUT.pack(
            size, compressed, offset, data_offset, crc, time, external, internal, made_by, needed, method, True
        )
        return Member(name, packed), offset, end

    def _stands_at(self, offset: int, header: bytes) -> bool:
        """Whether the bytes at ``offset`` are these."""
        at = offset - self._window_at
        if at < 0 or at + len(header) > len(self._window):
            length = _WINDOW if 0 <= offset - self._last < _NEAR else len(header)
            self._window, self._window_at, at = self._read_at(offset, length), offset, 0
        self._last = offset
        return self._window.startswith(header, at)

    def _read_member(
        self, fields: tuple[int, ...], raw_name: bytes, extra: bytes, shift: int
    ) -> tuple[Member, int, int]:
        """The member, where its local header starts, and where its last byte (data descriptor included) ends."""
        _, made_by, needed, flags, method, dos_time, crc, compressed, size = fields[:9]
        comment, disk, internal, external, offset = fields[11:16]
        name = self._decode_name(raw_name, flags)
        wanted = sum(number == fmt.LIMIT_32 for number in (size, compressed, offset))
        self._check_extra(extra, 8 * wanted, raw_name, name, "central")
        size, compressed, offset = self._zip64(name, extra, size, compressed, offset)
        offset += shift
        if disk not in (0, fmt.LIMIT_16):
            self._find("zip-header-mismatch", f"it starts on disk {disk}", name)
        if flags & fmt.ENCRYPTED:
            self._find("zip-encrypted", "the member is encrypted, which a wheel may not be", name)
        if flags & ~fmt.KNOWN_FLAGS:
            self._find("zip-method", f"flag bits {flags & ~fmt.KNOWN_FLAGS:#x} change what the data means", name)
        if method not in (fmt.STORED, fmt.DEFLATED):
            self._find("zip-method", f"compression method {method} is not allowed, only stored and deflated", name)
        if method == fmt.STORED and size != compressed and not flags & fmt.ENCRYPTED:
            self._find("zip-header-mismatch", f"stored, yet {compressed} bytes hold {size}", name)
        if needed & 0xFF > fmt.ZIP64_VERSION and method in (fmt.STORED, fmt.DEFLATED):
            self._find("zip-version", f"it says that a reader must know zip {(needed & 0xFF) / 10}", name)
        needed = needed if needed in (10, 20) else 20
        head = self._read_at(offset, fmt.LOCAL.size + len(raw_name) + 20)
        local = None
        data_offset, clean = offset, False
        if len(head) < fmt.LOCAL.size or not head.startswith(fmt.LOCAL_SIGNATURE):
            self._find("zip-header-mismatch", f"no local header at byte {offset}", name)
        else:
            local = fmt.LOCAL.unpack_from(head)
            expected = fmt.pack_local(name, needed, method, dos_time, crc, compressed, size)
            data_offset = offset + fmt.LOCAL.size + local[8] + local[9]
            clean = head.startswith(expected) and data_offset == offset + len(expected)
        entry = Entry(name, method, crc, compressed, size, dos_time, made_by, needed, internal, external)
        member = Member.of(entry, offset, data_offset, clean=clean)
        if local is None:
            return member, offset, offset
        if clean and flags & fmt.DATA_DESCRIPTOR:
            self._find("zip-flags", "its central header tells of a data descriptor, its local one does not", name)
        end = data_offset + compressed if clean else self._compare(member, raw_name, flags, local, head)
        if comment:
            self._find("zip-not-clean", "its central header has a comment", name)
        if extra and size < fmt.LIMIT_32 and compressed < fmt.LIMIT_32 and offset < fmt.LIMIT_32:
            self._find("zip-not-clean", "its central header has an extra field", name)
        if end != member.end:
            self._find("zip-not-clean", "it has a data descriptor", name)
        if end > self._size:
            self._find("zip-truncated", f"its data ends at byte {end}, the file at {self._size}", name)
        return member, offset, end

    def _compare(self, member: Member, raw_name: bytes, central_flags: int, local: tuple[int, ...], head: bytes) -> int:
        """Hold the local header against the central one; return where the member ends."""
        _, needed, flags, method, _, crc, compressed, size, name_length, extra_length = local
        wrong = []
        if name_length != len(raw_name) or head[fmt.LOCAL.size : fmt.LOCAL.size + name_length] != raw_name:
            found = self._read_at(member.header_offset + fmt.LOCAL.size, min(name_length, 200))
            wrong.append(f"name {found.decode(errors='replace')!r}")
        if method != member.entry.method:
            wrong.append(f"method {method}, not {member.entry.method}")
        at = member.header_offset + fmt.LOCAL.size + name_length
        # Members that share no bytes have no more of it than the file is long; those that do are not waded through.
        self._extra_left -= extra_length
        extra = self._read_at(at, extra_length) if extra_length and self._extra_left >= 0 else b""
        large = size == fmt.LIMIT_32 or compressed == fmt.LIMIT_32
        self._check_extra(extra, 16 if large else 0, raw_name, member.name, "local")
        # The UTF-8 flag says nothing of a name that is ASCII.
        if (flags ^ central_flags) & (fmt.DATA_DESCRIPTOR | (0 if raw_name.isascii() else fmt.UTF8)):
            message = f"the flags of its headers differ: local {flags:#x}, central {central_flags:#x}"
            self._find("zip-flags", message, member.name)
        if needed & 0xFF > fmt.ZIP64_VERSION:
            self._find("zip-version", f"its local header needs zip {(needed & 0xFF) / 10}", member.name)
        if large:
            size, compressed, _ = self._zip64(member.name, extra, size, compressed, 0)
        elif extra_length:
            self._find("zip-not-clean", "its local header has an extra field", member.name)
        streamed = bool(flags & fmt.DATA_DESCRIPTOR)
        end = member.end
        if streamed:
            width = self._descriptor(member)
            if width is None:
                wrong.append("a data descriptor with other numbers")
            end += width or 0
        for what, here, there in (
            ("CRC", crc, member.entry.crc),
            ("compressed size", compressed, member.entry.compressed_size),
            ("size", size, member.size),
        ):
            if here != there and not (streamed and here == 0):
                wrong.append(f"{what} {here}, not {there}")
        if flags & fmt.ENCRYPTED:
            wrong.append("the encryption flag")
        if wrong:
            self._find("zip-header-mismatch", f"its local header has {', '.join(wrong)}", member.name)
        return end

    def _descriptor(self, member: Member) -> int | None:
        """The length of the data descriptor behind ``member``, or None if none of its forms fits."""
        raw = self._read_at(member.end, 24)
        for signature in (fmt.DESCRIPTOR_SIGNATURE, b""):
            for form in ("<LLL", "<LQQ"):
                body = struct.Struct(form)
                try:
                    expected = signature + body.pack(member.entry.crc, member.entry.compressed_size, member.size)
                except struct.error:
                    continue
                if raw.startswith(expected):
                    return len(expected)
        return None

    def _check_extra(self, extra: bytes, wanted: int, raw_name: bytes, name: str, where: str) -> None:
        """Find what readers differ over in extra fields.

        Args:
            wanted: the bytes that a ZIP64 field must have; 0 where none may be.
        """
        position = seen = 0
        while position < len(extra):
            kind, length = struct.unpack_from("<HH", extra, position) if position + 4 <= len(extra) else (0, len(extra))
            body = extra[position + 4 : position + 4 + length]
            position += 4 + length
            if position > len(extra):
                self._find("zip-extra", f"its {where} header has an extra field that is cut", name)
                return
            if kind == fmt.ZIP64_EXTRA:
                seen += 1
                if seen > 1 or length != wanted:
                    message = f"its {where} header has a ZIP64 field of {length} bytes, expected {wanted}, once at most"
                    self._find("zip-extra", message, name)
            elif kind == fmt.UNICODE_PATH_EXTRA and body[5:] != raw_name:
                self._find("zip-name-encoding", f"its {where} header gives another name in a Unicode path field", name)

    def _zip64(self, name: str, extra: bytes, size: int, compressed: int, offset: int) -> tuple[int, int, int]:
        if size < fmt.LIMIT_32 and compressed < fmt.LIMIT_32 and offset < fmt.LIMIT_32:
            return size, compressed, offset
        numbers = [size, compressed, offset]
        wanted = [i for i, number in enumerate(numbers) if number == fmt.LIMIT_32]
        position = 0
        while wanted and position + 4 <= len(extra):
            kind, length = struct.unpack_from("<HH", extra, position)
            if kind == fmt.ZIP64_EXTRA and position + 4 + length <= len(extra) and length >= 8 * len(wanted):
                for place, number in zip(
                    wanted, struct.unpack_from(f"<{len(wanted)}Q", extra, position + 4), strict=True
                ):
                    numbers[place] = number
                return numbers[0], numbers[1], numbers[2]
            position += 4 + length
        if wanted:
            self._find("zip-header-mismatch", "a number of 32 bits is full and no ZIP64 field holds it", name)
        return size, compressed, offset

    def _decode_name(self, raw: bytes, flags: int) -> str:
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            name = raw.decode("cp437")
            self._find("zip-name-encoding", "the name is not UTF-8", name)
            return name
        if not flags & fmt.UTF8 and not name.isascii():
            self._find("zip-name-encoding", "the name is not ASCII and not flagged as UTF-8", name)
        return name

    def _check_extents(self, extents: list[tuple[int, int, str]], central_start: int) -> None:
        position, before = 0, None
        for start, end, name in sorted(extents):
            if start < position:
                self._find("zip-overlap", f"it shares bytes with {before}", name)
            elif start > position and before is None:
                self._find("zip-prefix", f"{start} bytes stand before the first member")
            elif start > position:
                self._find("zip-gap", f"{start - position} unclaimed bytes stand before it", name)
            position, before = max(position, end), name
        if position > central_start:
            self._find("zip-overlap", "it reaches into the central directory", before)
        elif position < central_start:
            code = "zip-gap" if before is not None else "zip-prefix"
            self._find(code, f"{central_start - position} unclaimed bytes stand before the central directory")
