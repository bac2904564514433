"""The version of the package that is running, whatever the distribution that brought it is called.

Release tooling renames a wheel (``te_pkg_cu12``) and relabels it (``2.21.0.dev0+cpu``), so that asking for the
metadata of ``te-pkg`` may find nothing, or something else that lies further down ``sys.path``. The files beside the
package cannot be mistaken: an installer puts the ``.dist-info`` folder into the folder that holds the package, and a
checkout has ``VERSION.txt`` there.

Sources: Recording installed projects, <https://packaging.python.org/specifications/recording-installed-packages/>;
Version specifiers, <https://packaging.python.org/specifications/version-specifiers/>.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_DISTRIBUTION = "te-pkg"
_INIT = "te_pkg/__init__.py"
_VERSION_FILE = "VERSION.txt"


class VersionNotFoundError(RuntimeError):
    """Nothing beside the package tells its version.

    A ``RuntimeError``, not an ``AttributeError``: ``from te_pkg import __version__`` turns the latter into an
    ``ImportError`` that has lost the message.

    Attributes:
        folders: where was looked.
    """

    def __init__(self, message: str, folders: tuple[str, ...]) -> None:
        super().__init__(message)
        self.folders = folders


def find_version(init_file: str | os.PathLike[str]) -> str:
    """The normalised version of the package whose ``__init__.py`` is ``init_file``.

    In the folder that holds the package, the first that is there:

    1. the metadata of the installed wheel: ``te-pkg`` or a name that starts with ``te-pkg-``, else whichever
       distribution lists the package among its files;
    2. ``VERSION.txt``, in any spelling that the specification accepts (a checkout, an editable install, an sdist);
    3. the metadata of an egg, which a build leaves behind in a checkout and which goes stale there.

    Links are followed only where the folder itself has nothing: an editable install may link single files.

    >>> find_version("te_pkg/__init__.py")  # doctest: +SKIP
    '2.21.0.dev0'

    Raises:
        VersionNotFoundError: nothing is there, or ``VERSION.txt`` holds no version.
    """
    init_path = Path(init_file)
    folders = tuple(dict.fromkeys(str(path.parent.parent) for path in (init_path.absolute(), init_path.resolve())))
    for folder in folders:
        version = _wheel_version(folder) or _file_version(Path(folder, _VERSION_FILE), folders) or _egg_version(folder)
        if version is not None:
            return version
    raise VersionNotFoundError(
        f"no version of te_pkg found: expected the metadata of an installed distribution that holds {_INIT!r}, "
        f"or {_VERSION_FILE!r}, in {' or '.join(map(repr, folders))}; hint: install te-pkg, or run it from a checkout",
        folders,
    )


def _wheel_version(folder: str) -> str | None:
    exact = [dist for dist in distributions(name=_DISTRIBUTION, path=[folder]) if _is_wheel(dist) and _owns(dist)]
    if exact:
        return _version_of(exact[0])
    # Reading the file list of every distribution is slow: only where no name matches.
    wheels = [dist for dist in distributions(path=[folder]) if _is_wheel(dist)]
    named = [dist for dist in wheels if _is_ours(_name_of(dist))]
    candidates = sorted(named, key=lambda dist: _doubts(dist, folder)) or [dist for dist in wheels if _owns(dist)]
    return next(_versions(candidates), None)


def _egg_version(folder: str) -> str | None:
    return next(_versions(distributions(name=_DISTRIBUTION, path=[folder])), None)


def _file_version(path: Path, folders: tuple[str, ...]) -> str | None:
    try:
        raw = path.read_bytes()
    except OSError:  # also a path inside a zip archive
        return None
    text = raw.decode("utf-8-sig", errors="backslashreplace").strip()
    try:
        return str(Version(text))
    except InvalidVersion:
        raise VersionNotFoundError(
            f"{str(path)!r} holds {text!r}, expected one version such as '2.21.0.dev0'", folders
        ) from None


def _versions(found: Iterable[Distribution]) -> Iterator[str]:
    for dist in found:
        version = _version_of(dist)
        if version is not None:
            yield version


def _doubts(dist: Distribution, folder: str) -> tuple[bool, bool, bool]:
    """Sorts first what is most surely the distribution that brought the package."""
    name = _name_of(dist)
    # A failed uninstall leaves "~e_pkg-1.0.dist-info" behind: its metadata carries our name, its folder does not.
    misnamed = all(_version_of(other) != _version_of(dist) for other in distributions(name=name, path=[folder]))
    return misnamed, not _owns(dist), name != _DISTRIBUTION


def _is_ours(name: str) -> bool:
    return name == _DISTRIBUTION or name.startswith(f"{_DISTRIBUTION}-")


def _is_wheel(dist: Distribution) -> bool:
    return dist.read_text("METADATA") is not None


def _owns(dist: Distribution) -> bool:
    return any(file.as_posix() == _INIT for file in dist.files or ())


def _name_of(dist: Distribution) -> str:
    return canonicalize_name(_header(dist, "Name") or "")


def _version_of(dist: Distribution) -> str | None:
    try:
        return str(Version(_header(dist, "Version") or ""))
    except InvalidVersion:
        return None


def _header(dist: Distribution, field: str) -> str | None:
    # `dist.name` and `dist.version` answer a damaged METADATA differently from one Python to the next.
    values = dist.metadata.get_all(field)
    return values[0] if values else None
