"""Where tests get their sdists from; those with a defect in the archive itself come from ``broken_sdists``."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

INFO = "Metadata-Version: 2.1\nName: Demo\nVersion: 1.0\nRequires-Dist: demo[gpu]; extra == 'all'\n\nName: x\n"
EGG = "demo-1.0/src/demo.egg-info"
FILES = {
    "demo-1.0/PKG-INFO": INFO,
    "demo-1.0/pyproject.toml": "[project]\nname = 'demo'\nversion = '1.0'\n",
    "demo-1.0/src/demo/__init__.py": "__version__ = '1.0'\n",
    f"{EGG}/PKG-INFO": INFO,
    f"{EGG}/SOURCES.txt": "pyproject.toml\nsrc/demo/__init__.py\nsrc/demo.egg-info/PKG-INFO\nsrc/demo.egg-info2/x\n",
    "demo-1.0/vendor/other.egg-info/PKG-INFO": INFO.replace("Demo", "other"),
}


def make_sdist(
    folder: Path,
    files: dict[str, str] = FILES,
    *,
    name: str = "demo-1.0.tar.gz",
    mtime: float = 1.5,
    mode: int = 0o755,
    also: Callable[[tarfile.TarFile], None] = lambda archive: None,
) -> Path:
    """Write one sdist into ``folder`` and return its path.

    Args:
        files: what it holds, in order.
        name: the file name.
        mtime: of the first file; each next one is a second younger.
        mode: of every file.
        also: adds members behind the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for number, (member, text) in enumerate(files.items()):
            data = text.encode()
            info = tarfile.TarInfo(member)
            info.size, info.mtime, info.mode, info.uid, info.uname = len(data), mtime + number, mode, 1000, "somebody"
            archive.addfile(info, io.BytesIO(data))
        also(archive)
    return path
