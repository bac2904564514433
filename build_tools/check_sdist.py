"""Every finding of a source distribution.

Source: Source distribution format (PyPA),
<https://packaging.python.org/specifications/source-distribution-format/>.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from packaging.version import Version

from build_tools.errors import FileError, ReleaseError
from build_tools.sdist import ENDING
from build_tools.sdist_reader import SdistContents, read_tar, read_zip
from build_tools.version import parse_version
from build_tools.wheels.check_metadata import check_license_files, check_values
from build_tools.wheels.finding import Finding, Findings
from build_tools.wheels.header_checks import Claim, attempt, check_metadata, metadata_number
from build_tools.wheels.headers import Headers
from build_tools.wheels.limits import LIMITS, MAX_SYMLINKS, Limits
from build_tools.wheels.member_names import leaves_tree
from build_tools.wheels.name import normalize_name, shorten, stem

ENDINGS = (ENDING, ".tgz", ".tar.bz2", ".tar.xz", ".tar.Z", ".tar", ".zip")
"""What sdists are or were called."""
_LEAVES = re.compile(r"\A/|\A[A-Za-z]:|\\|(?:\A|/)\.\.(?:/|\Z)|[\x00-\x1f\x7f]")
_KNOWS_DYNAMIC = (2, 2)
_MEND = "change the project and build the sdist anew"


def is_sdist(path: str | os.PathLike[str]) -> bool:
    """Whether a path has the name of an sdist, a legacy one included."""
    return os.fspath(path).endswith(ENDINGS)


def check_sdist(path: str | os.PathLike[str], *, pypi: bool = False, limits: Limits = LIMITS) -> list[Finding]:
    """Check that an sdist agrees with itself and with the specifications.

    Args:
        path: the sdist.
        pypi: whether to find what PyPI refuses too.
        limits: how much of the file is read.

    Returns:
        Every breach of every rule. A file that is no sdist has findings, it is no error.

    Raises:
        FileError: the file is not there, is no regular file or cannot be read.
    """
    where = Path(path)
    size = _size(where)
    found = Findings()
    ending = next((ending for ending in ENDINGS if where.name.endswith(ending)), "")
    if ending != ENDING:
        found.add("sdist-format", f"{where.name!r} is no .tar.gz file, the one format of an sdist")
    claim = _check_filename(where.name.removesuffix(ending), found)
    contents = SdistContents()
    if ending == ".zip":
        contents = read_zip(where, limits, found)
    elif ending in (ENDING, ".tgz"):
        contents = read_tar(where, limits, found)
    _check_members(contents, found)
    if contents.names:
        _check_folder(contents, where.name.removesuffix(ending), claim, found)
    version = None
    for name, data in contents.pkg_info.items():
        version = _check_pkg_info(name, data, contents, claim, found)
    if pypi:
        _check_pypi(where.name, size, contents, claim, version, found)
    # What mends a wheel does not mend an sdist.
    return [f if f.code.startswith(("sdist-", "pypi-")) else f._replace(hint=_MEND) for f in found.all()]


def _size(path: Path) -> int:
    try:
        if not path.is_file():
            path.stat()
            raise FileError(f"{str(path)!r} is no regular file, expected an sdist")
        return path.stat().st_size
    except FileError:
        raise
    except OSError as error:
        raise FileError.of("read", path, error) from error


def _check_filename(text: str, found: Findings) -> Claim | None:
    # Legacy names hold more dashes: the version stands behind the last one, or it holds some itself.
    cuts = [place for place, char in enumerate(text) if char == "-"]
    cut = next((place for place in reversed(cuts) if _is_version(text[place + 1 :])), max(cuts, default=-1))
    name, version = text[: max(cut, 0)], text[cut + 1 :]
    if cut < 0:
        found.add("sdist-filename", f"{text!r} holds no '-': expected {{name}}-{{version}}")
        return None
    normal = attempt(found, lambda: normalize_name(name), "sdist-filename")
    parsed = attempt(found, lambda: parse_version(version), "sdist-filename")
    if normal is None or parsed is None:
        return None
    if stem(normal, parsed) != text:
        message = f"{text!r} is not in normal form, expected {stem(normal, parsed)!r}"
        found.add("sdist-filename-spelling", message)
    return Claim(normal, parsed, name, "the file name")


def _is_version(text: str) -> bool:
    try:
        parse_version(text)
    except ReleaseError:
        return False
    return True


def _check_members(contents: SdistContents, found: Findings) -> None:
    for name in sorted(contents.names):
        if _LEAVES.search(name):
            found.add("sdist-member", f"unsafe member name {shorten(name)!r}", shorten(name))
    if len(contents.links) > MAX_SYMLINKS:
        found.add("limit-exceeded", f"{len(contents.links)} symlinks, at most {MAX_SYMLINKS} are followed")
        return
    for name, target in contents.links.items():
        if leaves_tree(name, contents.links):
            found.add("sdist-member", f"the symlink to {shorten(target)!r} leaves the sdist", name)


def _check_folder(contents: SdistContents, text: str, claim: Claim | None, found: Findings) -> None:
    tops = sorted({name.split("/", 1)[0] for name in contents.names})
    if len(tops) > 1 or tops[0] in contents.files:
        found.add("sdist-folder", f"expected one top folder, found {shorten(', '.join(map(repr, tops)))}")
    folder = text if text in tops else tops[0]
    if folder != text:
        expected = stem(claim.name, claim.version) if claim else text
        code = "sdist-filename-spelling" if folder == expected else "sdist-folder"
        found.add(code, f"the top folder is {shorten(folder)!r}, the file name says {text!r}")
    if f"{folder}/PKG-INFO" not in contents.pkg_info:
        found.add("sdist-pkg-info", f"the sdist holds no {shorten(folder)}/PKG-INFO")
    if f"{folder}/pyproject.toml" not in contents.files:
        found.add("sdist-pyproject", f"the sdist holds no {shorten(folder)}/pyproject.toml")


def _check_pkg_info(
    where: str, data: bytes, contents: SdistContents, claim: Claim | None, found: Findings
) -> Version | None:
    headers, faults = Headers.read(data, "PKG-INFO")
    for fault in faults:
        found.add("metadata-invalid", fault, where)
    check_metadata(headers, claim, where, found)
    found.extend(check_values(headers, where))
    found.extend(check_license_files(headers, where.partition("/")[0], contents.files, where))
    number = metadata_number((headers.get("Metadata-Version") or "").strip())
    if number is not None and number < _KNOWS_DYNAMIC:
        message = f"Metadata-Version is {number[0]}.{number[1]}, an sdist has 2.2 or newer"
        found.add("sdist-metadata-version", message, where)
    try:
        return parse_version((headers.get("Version") or "").strip())
    except ReleaseError:
        return None


def _check_pypi(
    filename: str, size: int, contents: SdistContents, claim: Claim | None, version: Version | None, found: Findings
) -> None:
    from build_tools.wheels.check_pypi import check_pypi_metadata, check_size

    check_size(size, found)
    if claim is not None and filename != (expected := stem(claim.name, claim.version) + ENDING):
        found.add("pypi-filename", f"the file name is {filename!r}, PyPI takes {expected!r} alone")
    for where, data in contents.pkg_info.items():
        check_pypi_metadata(Headers.read(data, "PKG-INFO")[0], version, where, found)
