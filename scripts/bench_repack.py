"""Time `te-wheel repack` against a file copy, editwheel and `wheel unpack` + `wheel pack`.

    python scripts/bench_repack.py                    a made wheel of 700 MB and one of 10 kB
    python scripts/bench_repack.py --wheel FILE       your own wheel
    python scripts/bench_repack.py --skip wheel       without the slow peer
    python scripts/bench_repack.py --folder /dev/shm  where it works; RAM-backed by default where there is one

The results are compared first: every output must be a right wheel with the payload of the input.
Then the commands run in turn, one round after the other, each as a whole process, and the medians
and the ratios of each round are printed. A peer that is not installed is left out, visibly.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import itertools
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from build_tools.wheels import check_wheel  # noqa: E402

# A process counts the memory of the one that started it as its own, so a small one starts them.
LAUNCHER = """
import os, sys, time
start = time.perf_counter()
out = os.open(os.devnull, os.O_WRONLY)
actions = [(os.POSIX_SPAWN_DUP2, out, 1)]
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=actions)
_, status, usage = os.wait4(pid, 0)
print(time.perf_counter() - start, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
DATE = (2026, 1, 1, 0, 0, 0)


@dataclass
class Contender:
    """One way to do the job: makes ``out`` from the wheel, and where its wheel then is."""

    name: str
    commands: Callable[[Path, Path], list[list[str]]]
    output: Callable[[Path], Path]
    seconds: list[float] = field(default_factory=list)
    peak_kib: int = 0


def make_wheel(folder: Path, size: int, member: int) -> Path:
    """A wheel of about ``size`` bytes in members of ``member`` bytes, half of them stored, half deflated."""
    path = folder / "demo-1.0-py3-none-any.whl"
    source = random.Random(0)
    rows = []
    with zipfile.ZipFile(path, "w") as archive:

        def add(name: str, data: bytes, method: int) -> None:
            info = zipfile.ZipInfo(name, DATE)
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data, method, compresslevel=1)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}")

        add("demo/__init__.py", b"VALUE = 1\n", zipfile.ZIP_DEFLATED)
        for number in itertools.count():
            if sum(info.compress_size for info in archive.infolist()) > size - member // 2:
                break
            # Random bytes beside repeated ones: about what compiled code and its tables give.
            data = source.randbytes(member - member // 4) + bytes(member // 4)
            add(f"demo/lib/part{number:04}.so", data, zipfile.ZIP_STORED if number % 2 else zipfile.ZIP_DEFLATED)
        metadata = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nRequires-Dist: torch>=2.6\n\n# demo\n"
        add("demo-1.0.dist-info/METADATA", metadata.encode(), zipfile.ZIP_DEFLATED)
        tags = "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        add("demo-1.0.dist-info/WHEEL", tags.encode(), zipfile.ZIP_DEFLATED)
        record = "\n".join([*rows, "demo-1.0.dist-info/RECORD,,"]) + "\n"
        add("demo-1.0.dist-info/RECORD", record.encode(), zipfile.ZIP_DEFLATED)
    return path


def contenders(python: str) -> list[Contender]:
    """te-wheel, the copy, and the peers that this machine has."""
    here = [
        Contender("cp", lambda wheel, out: [["cp", str(wheel), str(out / "copy.whl")]], lambda out: out / "copy.whl"),
        Contender(
            "te-wheel repack",
            lambda wheel, out: [
                [python, "-m", "build_tools", "repack", "-q", "--name", "demo_cu12", str(wheel), "-o", str(out)]
            ],
            lambda out: next(out.glob("demo_cu12-*.whl")),
        ),
    ]
    peer = find_program(python, "editwheel")
    if peer:
        here.append(
            Contender(
                "editwheel",
                lambda wheel, out: [[peer, "edit", str(wheel), "-o", str(out / wheel.name), "--name", "demo_cu12"]],
                lambda out: next(out.glob("*.whl")),
            )
        )
    program = find_program(python, "wheel")
    if program:
        here.append(
            Contender(
                "wheel unpack + pack",
                lambda wheel, out: [
                    [program, "unpack", "-d", str(out), str(wheel)],
                    [program, "pack", "-d", str(out), str(out / "-".join(wheel.name.split("-")[:2]))],
                ],
                lambda out: next(out.glob("*.whl")),
            )
        )
    return here


def find_program(python: str, name: str) -> str | None:
    beside = Path(python).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        print(f"left out: {name} is not installed")
    return found


def run(contender: Contender, wheel: Path, folder: Path) -> Path:
    """Run it once in an empty folder, which is left as it is; time and peak memory are kept."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    runs = [run_process(command) for command in contender.commands(wheel, out)]
    contender.seconds.append(sum(seconds for seconds, _ in runs))
    contender.peak_kib = max(contender.peak_kib, *(peak for _, peak in runs))
    return out


def run_process(command: list[str]) -> tuple[float, int]:
    """Run a command to its end; its seconds and its peak memory in KiB."""
    # Bytecode is kept between runs, as it is for installed programs.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    start = [sys.executable, "-ISc", LAUNCHER]
    done = subprocess.run([*start, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stderr}")
    seconds, peak = done.stdout.rsplit(maxsplit=2)[-2:]
    return float(seconds), int(peak)


def payload(wheel: Path) -> dict[str, tuple[int, int]]:
    """Size and CRC of every member outside ``.dist-info``, the data inflated to prove the CRC."""
    with zipfile.ZipFile(wheel) as archive:
        found = {}
        for info in archive.infolist():
            if ".dist-info/" in info.filename:
                continue
            crc = 0
            with archive.open(info) as file:
                while data := file.read(1 << 20):
                    crc = zlib.crc32(data, crc)
            found[info.filename] = (info.file_size, crc)
        return found


def compare_results(wheel: Path, folder: Path, runners: list[Contender]) -> None:
    """Refuse to time what is wrong: each output holds the payload, and ours has no findings."""
    expected = payload(wheel)
    for contender in runners:
        output = contender.output(run(contender, wheel, folder))
        if contender.name == "cp":
            if output.read_bytes()[-4096:] != wheel.read_bytes()[-4096:]:
                raise SystemExit("cp: the copy differs")
        elif payload(output) != expected:
            raise SystemExit(f"{contender.name}: the payload of {output.name} differs")
        if contender.name == "te-wheel repack":
            findings = check_wheel(output, hashes=True)
            if findings:
                raise SystemExit(f"te-wheel: {output.name} has findings: {findings}")
        contender.seconds.clear()
        contender.peak_kib = 0


def measure(title: str, wheel: Path, folder: Path, runners: list[Contender], rounds: int) -> None:
    compare_results(wheel, folder, runners)
    slow = {contender.name for contender in runners if contender.name.startswith("wheel ")}
    for number in range(rounds):
        for contender in runners:
            # The slow one stands for minutes in a large wheel: one round of it says enough.
            if contender.name not in slow or number == 0 or wheel.stat().st_size < 1 << 20:
                run(contender, wheel, folder)
    print(f"\n{title}: {wheel.stat().st_size:,} bytes, {rounds} rounds, medians")
    print(f"{'':22}{'seconds':>10}{'peak MiB':>10}{'te-wheel / it':>15}")
    ours = next(contender for contender in runners if contender.name == "te-wheel repack")
    for contender in runners:
        ratio = statistics.median(a / b for a, b in zip(ours.seconds, contender.seconds, strict=False))
        print(
            f"{contender.name:22}{statistics.median(contender.seconds):10.3f}"
            f"{contender.peak_kib / 1024:10.1f}{ratio:15.2f}"
        )
    for contender in runners:
        contender.seconds.clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, help="time this wheel instead of made ones")
    parser.add_argument("--size", type=int, default=700, metavar="MB", help="size of the large made wheel")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--skip", action="append", default=[], metavar="PEER", help="leave a peer out, such as 'wheel'")
    parser.add_argument("--folder", type=Path, help="where to work (default: RAM-backed where there is one)")
    arguments = parser.parse_args()
    base = arguments.folder or (Path("/dev/shm") if Path("/dev/shm").is_dir() else None)
    with tempfile.TemporaryDirectory(dir=base) as name:
        folder = Path(name)
        runners = [each for each in contenders(sys.executable) if each.name.split()[0] not in arguments.skip]
        if arguments.wheel:
            measure("your wheel", arguments.wheel.resolve(), folder, runners, arguments.rounds)
            return 0
        large = folder / "large"
        large.mkdir()
        wheel = make_wheel(large, arguments.size * 1_000_000, 2_400_000)
        measure("large wheel", wheel, folder, runners, arguments.rounds)
        shutil.rmtree(large)
        small = folder / "small"
        small.mkdir()
        measure("small wheel", make_wheel(small, 10_000, 2_000), folder, runners, 3 * arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
