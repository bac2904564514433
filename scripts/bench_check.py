"""Time `te-wheel check --hashes` against `editwheel validate`.

    python scripts/bench_check.py FILE...            wheels of your own
    python scripts/bench_check.py --folder site      a wheel of 1 GB made of the shared libraries below a folder
    python scripts/bench_check.py --folder site --one    all of them as one member

Both must find nothing first. Then they run in turn, one round after the other, each as a whole process; the medians,
the peaks of memory and the ratios of each round are printed. What inflates is what is installed: zlib, or isal and
zlib-ng. Without editwheel its part is left out, visibly.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import itertools
import statistics
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from bench_repack import DATE, find_program, run_process  # noqa: E402

from build_tools.wheels.inflater import fastest  # noqa: E402

GB = 1_000_000_000
INFO = "demo-1.0.dist-info"
TEXTS = {
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n\n# demo\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


def libraries(folder: Path, size: int) -> list[Path]:
    """Shared libraries below ``folder``, the longest first, ``size`` bytes in all; again from the first, if few."""
    found = [path for path in folder.rglob("*.so*") if path.is_file() and path.stat().st_size > 100_000]
    if not found:
        raise SystemExit(f"no shared library of over 100 kB below {folder}")
    found.sort(key=lambda path: (-path.stat().st_size, path))
    chosen = []
    for path in itertools.cycle(found):
        if size <= 0:
            break
        chosen.append(path)
        size -= path.stat().st_size
    return chosen


def make_wheel(target: Path, paths: list[Path], *, one: bool) -> Path:
    """A wheel of these files, at the level that build backends take."""
    wheel = target / "demo-1.0-py3-none-any.whl"
    rows = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, parts: list[Path] | bytes) -> None:
            info = zipfile.ZipInfo(name, DATE)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            digest, size = hashlib.sha256(), 0
            with archive.open(info, "w", force_zip64=True) as file:
                for data in [parts] if isinstance(parts, bytes) else (path.read_bytes() for path in parts):
                    file.write(data)
                    digest.update(data)
                    size += len(data)
            text = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={text},{size}")

        if one:
            add("demo/all.bin", paths)
        else:
            for number, path in enumerate(paths):
                add(f"demo/lib{number}/{path.name}.bin", [path])
        for name, data in TEXTS.items():
            add(name, data)
        archive.writestr(zipfile.ZipInfo(f"{INFO}/RECORD", DATE), "\n".join([*rows, f"{INFO}/RECORD,,"]) + "\n")
    return wheel


def measure(wheel: Path, peer: str | None, rounds: int) -> None:
    commands = {"te-wheel check --hashes": [sys.executable, "-m", "build_tools", "check", "-q", "--hashes", str(wheel)]}
    if peer:
        commands["editwheel validate"] = [peer, "validate", str(wheel)]
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    peaks = dict.fromkeys(commands, 0)
    # The first round is not counted: what finds a fault ends here.
    for number in range(rounds + 1):
        for name, command in commands.items():
            took, peak = run_process(command)
            peaks[name] = max(peaks[name], peak)
            if number:
                seconds[name].append(took)
    ours = seconds["te-wheel check --hashes"]
    print(f"\n{wheel.name}: {wheel.stat().st_size:,} bytes, {rounds} rounds, medians")
    print(f"{'':24}{'seconds':>10}{'peak MiB':>10}{'te-wheel / it':>15}")
    for name, theirs in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        print(f"{name:24}{statistics.median(theirs):10.3f}{peaks[name] / 1024:10.1f}{ratio:15.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheels", nargs="*", type=Path, metavar="FILE", help="wheels without fault")
    parser.add_argument("--folder", type=Path, help="make a wheel of 1 GB of the shared libraries below it")
    parser.add_argument("--one", action="store_true", help="all of them as one member")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not arguments.wheels and not arguments.folder:
        parser.error("expected a FILE or --folder")
    if arguments.rounds < 1:
        parser.error("--rounds: expected at least 1")
    peer = find_program(sys.executable, "editwheel")
    print(f"inflates with {fastest().name}, sums with {fastest().crc32.__module__}")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        wheels = list(arguments.wheels)
        if arguments.folder:
            wheels.append(make_wheel(Path(name), libraries(arguments.folder, GB), one=arguments.one))
        for wheel in wheels:
            measure(wheel, peer, arguments.rounds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
