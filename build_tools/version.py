"""Text -> one normalised :class:`packaging.version.Version`, and the paths that follow from it.

Source: Version specifiers (PyPA), <https://packaging.python.org/specifications/version-specifiers/>.
Parsing and normalisation are packaging's own; no path is ever built from the raw text.
"""

from __future__ import annotations

import os
from pathlib import Path

from packaging.version import Version

from build_tools.errors import FileError, VersionError

_EXAMPLE = "2.21.0.dev0"
_MAX_FILE = 64 << 10


def parse_version(text: str) -> Version:
    """Parse ``text`` in any spelling that the specification accepts.

    >>> str(parse_version("2.21.0-dev0"))
    '2.21.0.dev0'

    Raises:
        VersionError: ``text`` is no version; the message holds it and a valid example.
    """
    try:
        return Version(text)
    except ValueError:  # InvalidVersion is one; another comes of numbers with thousands of digits
        shown = text if len(text) <= 100 else f"{text[:97]}..."
        raise VersionError(
            f"invalid version {shown!r}: expected a version such as {_EXAMPLE!r}", hint=_version_hint(text)
        ) from None


def normalize_version(text: str) -> str:
    """The normalised text of a version: what every file name, folder and header holds.

    >>> normalize_version("v1.0+CU_128")
    '1.0+cu.128'

    Raises:
        VersionError: ``text`` is no version.
    """
    return str(parse_version(text))


def read_version(path: str | os.PathLike[str]) -> Version:
    """Read the one version that a version file holds.

    Surrounding white space, blank lines, a UTF-8 byte order mark and CRLF are ignored.

    Raises:
        VersionError: the file is empty, holds a second line or a comment, or no valid version.
        FileError: the file cannot be read.
    """
    where = os.fspath(path)
    try:
        if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
            raise FileError(f"the version file {where!r} is no regular file")
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE + 1)
        if len(data) > _MAX_FILE:
            raise VersionError(f"{where}: holds more than {_MAX_FILE} bytes, expected one version such as {_EXAMPLE!r}")
        text = data.decode("utf-8-sig")
    except FileError:
        raise
    except OSError as error:
        raise FileError.of("read the version file", path, error) from error
    except UnicodeDecodeError:
        raise VersionError(f"{where}: not UTF-8 text, expected one version such as {_EXAMPLE!r}") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise VersionError(f"{where}: empty, expected one version such as {_EXAMPLE!r}")
    if len(lines) > 1:
        raise VersionError(
            f"{where}: holds {len(lines)} lines ({lines[0]!r}, then {lines[1]!r}), "
            f"expected one version such as {_EXAMPLE!r} and nothing else"
        )
    try:
        return parse_version(lines[0])
    except VersionError as error:
        raise VersionError(f"{where}: {error}", hint=error.hint) from None


def parse_local(text: str) -> str:
    """Normalise a local version label: ``CU_128`` -> ``cu.128``, ``0012`` -> ``12``.

    Raises:
        VersionError: ``text`` is no local version label.
    """
    try:
        local = Version(f"0+{text}").local
    except ValueError:
        local = None
    if local is None or "+" in text or text != text.strip():
        raise VersionError(
            f"invalid local version label {text!r}: expected letters and digits in segments "
            "separated by '.', '-' or '_', such as 'cu128'"
        )
    return local


def with_local(version: Version, local: str) -> Version:
    """``version`` with its local label replaced by ``local``, or removed where ``local`` is ``""``.

    >>> str(with_local(Version("1.0+cpu"), "cu128"))
    '1.0+cu128'
    """
    return Version(f"{version.public}+{parse_local(local)}" if local else version.public)


def _version_hint(text: str) -> str | None:
    public, plus, local = text.partition("+")
    if plus:
        try:
            Version(public)
        except ValueError:
            return None
        return f"{public!r} is a version, {local!r} after the '+' is no local label"
    return None
