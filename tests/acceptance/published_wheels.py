"""Small, well-known wheels from many build backends and years, and where they are kept between runs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from build_tools.wheels.name import normal_form

CACHE = Path(__file__).parents[2] / ".cache" / "wheels" / "published"
PURE = "py3-none-any"
LINUX = "cp311-cp311-manylinux_2_17_x86_64"
OLD_LINUX = "cp37-cp37m-manylinux1_x86_64"
MAC = "cp311-cp311-macosx_11_0_arm64"
WINDOWS = "cp311-cp311-win_amd64"
PROGRAM = "py3-none-manylinux_2_17_x86_64"
_MORE_PLATFORMS = {"manylinux_2_17_x86_64": ("manylinux2014_x86_64", "manylinux_2_12_x86_64")}


@dataclass(frozen=True, slots=True)
class Published:
    """A published wheel.

    Attributes:
        kind: the interpreter, ABI and platform to ask for.
        backend: what built it, as its WHEEL or its project says.
        true_findings: codes of the errors that it has, each with the reason why it is no false one.
    """

    project: str
    version: str
    backend: str
    kind: str = PURE
    true_findings: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        return f"{self.project}-{self.version}-{self.kind.rpartition('-')[2]}"


UNKNOWN = (("metadata-value", "Description-Content-Type: UNKNOWN, which setuptools of 2017 and 2018 wrote"),)


def _all(backend: str, text: str, kind: str = PURE) -> list[Published]:
    return [Published(*item.split("=="), backend, kind) for item in text.split()]


WHEELS = [
    *_all(
        "setuptools with wheel, 2015 to 2020",
        "six==1.10.0 requests==2.11.1 urllib3==1.22 chardet==3.0.4 idna==2.6 pytz==2017.3 python-dateutil==2.6.1 "
        "click==6.7 pyparsing==2.4.7 packaging==16.8 wheel==0.29.0 setuptools==40.0.0 docutils==0.16 "
        "Cython==0.29.21 ruamel.yaml==0.16.12",
    ),
    *(
        Published(project, version, "setuptools with wheel, 2017 and 2018", true_findings=UNKNOWN)
        for project, version in (
            ("attrs", "17.4.0"),
            ("Jinja2", "2.10"),
            ("Werkzeug", "0.14.1"),
            ("pluggy", "0.6.0"),
            ("tqdm", "4.19.5"),
        )
    ),
    *_all(
        "setuptools", "setuptools-scm==8.1.0 jaraco.classes==3.4.0 certifi==2024.8.30 trove-classifiers==2024.10.21.16"
    ),
    *_all(
        "hatchling", "hatchling==1.25.0 platformdirs==4.3.6 iniconfig==2.0.0 colorama==0.4.6 scikit-build-core==0.10.7"
    ),
    *_all(
        "flit",
        "flit_core==3.9.0 tomli==2.0.1 installer==0.7.0 itsdangerous==2.2.0 pyproject_hooks==1.2.0 "
        "markdown-it-py==3.0.0 more-itertools==10.5.0 typing_extensions==3.7.4.3",
    ),
    *_all("poetry", "rich==13.9.4 poetry-core==1.9.1 tomlkit==0.13.2"),
    *_all("pdm", "pdm-backend==2.4.3 unearth==0.17.2 findpython==0.6.2"),
    *_all("meson-python", "meson-python==0.17.1"),
    *_all("meson-python", "contourpy==1.3.1", LINUX),
    *_all("whey, enscons, pbr", "whey==0.1.1 enscons==0.30.0 pbr==6.1.0"),
    *_all("maturin", "rpds-py==0.22.3 orjson==3.10.12", LINUX),
    *_all("maturin, programs", "uv-build==0.9.0 ninja==1.11.1.3 nvidia-nvtx-cu12==12.4.127", PROGRAM),
    *_all("scikit-build-core", "iminuit==2.30.1 pyzmq==26.2.0", LINUX),
    *_all("cibuildwheel and auditwheel", "MarkupSafe==3.0.2 PyYAML==6.0.2 cffi==1.17.1 multidict==6.1.0", LINUX),
    *_all("auditwheel, 2019 and 2020", "MarkupSafe==1.1.1 cffi==1.14.0 greenlet==0.4.17 simplejson==3.17.2", OLD_LINUX),
    *_all("delocate", "shapely==2.0.6 wrapt==1.17.0", MAC),
    *_all("delvewheel", "shapely==2.0.6 contourpy==1.3.1", WINDOWS),
]


def find(wheel: Published) -> Path | None:
    """The wheel in the cache, if it is there."""
    for path in (CACHE / wheel.kind).glob("*.whl"):
        name, version = path.name.split("-")[:2]
        if (normal_form(name), version) == (normal_form(wheel.project), wheel.version):
            return path
    return None


def download(wheels: Iterable[Published]) -> str:
    """Bring what is not in the cache there, in as few runs as may be; what the registry said where it refused."""
    rounds: dict[tuple[str, int], list[Published]] = defaultdict(list)
    for wheel in wheels:
        if find(wheel) is None:
            number = 0
            while any(other.project == wheel.project for other in rounds[wheel.kind, number]):
                number += 1
            rounds[wheel.kind, number].append(wheel)
    said = ""
    for (kind, _), missing in rounds.items():
        if missing:
            said += _ask(kind, missing)
    return said


def _ask(kind: str, wheels: list[Published]) -> str:
    python, abi, platform = kind.split("-")
    platforms = (platform, *_MORE_PLATFORMS.get(platform, ()))
    number = python.removeprefix("cp")
    options = ["--python-version", f"{number[0]}.{number[1:]}" if python.startswith("cp") else "3.11"]
    options += ["--implementation", "cp" if python.startswith("cp") else "py"]
    options += [word for name in dict.fromkeys((abi, "abi3", "none")) for word in ("--abi", name)]
    options += [word for name in platforms for word in ("--platform", name)]
    (CACHE / kind).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", "--retries", "1", "--timeout", "20", *options, "-d", folder,
            *(f"{wheel.project}=={wheel.version}" for wheel in wheels),
        ]  # fmt: skip
        done = subprocess.run(command, text=True, capture_output=True)
        for path in Path(folder).glob("*.whl"):
            path.replace(CACHE / kind / path.name)
    return "".join(line for line in done.stderr.splitlines() if line.startswith("ERROR"))[-300:]
