"""Check te_pkg.attention on an NVIDIA GPU: the tests marked `gpu`, then the speed of its kernels. Under 4 minutes.

    python scripts/gpu_check.py                    everything, on the first GPU
    python scripts/gpu_check.py --only checks      the tests alone; --only speed: the table alone
    python scripts/gpu_check.py --device cuda:1    the table on another GPU
    python scripts/gpu_check.py --goals            a goal that is missed counts as a failure

Needs torch with CUDA, Triton and pytest, nothing installed beside them, no network. Without a GPU it says so and exits
0. Exit status: 0 fine, 1 a test failed, a result was wrong or, with --goals, a goal was missed; 2 something could not
be run.

The table compares each result first. A kernel that moves rows is held against a device copy that reads and writes as
many bytes, `zero_padding_` against `masked_fill_`, attention against `dense`; they take turns, and medians are shown.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import random
import runpy
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from te_pkg.attention import PackedLayout

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

COPY_GOAL = 0.85
"""Of the bandwidth of a device copy."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    deadline = time.monotonic() + options.seconds
    reason = why_no_gpu()
    if reason is not None:
        print(f"no check was made: {reason}")
        return 0
    names = gpu_names()
    if int(options.device.removeprefix("cuda:")) >= len(names):
        print(f"error: there is no {options.device}, expected cuda:0 to cuda:{len(names) - 1}", file=sys.stderr)
        return 2
    print(describe(names, options.device))
    if importlib.util.find_spec("triton") is None:
        print("error: Triton is not installed, so there are no kernels to check", file=sys.stderr)
        return 2
    status = 0
    if options.only != "speed":
        # The table needs half a minute.
        status = run_checks(deadline - time.monotonic() - (0 if options.only else 40))
    if options.only != "checks":
        ignore_announcement()
        rows = list(measure(options.device, deadline))
        print(table(rows))
        status = max(status, verdict(rows, options.goals))
    print("fine" if status == 0 else "not fine")
    return status


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Check te_pkg.attention on an NVIDIA GPU.",
        epilog="Exit status: 0 fine or no GPU, 1 a failure, 2 something could not be run.",
    )
    parser.add_argument("--only", choices=("checks", "speed"), help="leave the other half out")
    parser.add_argument(
        "--device", default="cuda:0", type=cuda_device, help="the GPU of the table (default: %(default)s)"
    )
    parser.add_argument("--seconds", default=225.0, type=float, help="give up after this time (default: %(default)g)")
    parser.add_argument("--goals", action="store_true", help="fail where a goal of the table is missed")
    options = parser.parse_args(arguments)
    if not 0 < options.seconds < 1e6:  # nor nan
        parser.error(f"argument --seconds: expected more than 0 and less than 1000000, got {options.seconds:g}")
    return options


def cuda_device(text: str) -> str:
    kind, _, index = text.partition(":")
    if kind != "cuda" or not ((index or "0").isascii() and (index or "0").isdecimal()) or text.endswith(":"):
        raise argparse.ArgumentTypeError(f"expected cuda or cuda:N, got {text!r}")
    return f"cuda:{index or 0}"


def why_no_gpu() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no NVIDIA GPU"
    return None


def gpu_names() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def describe(names: Sequence[str], device: str) -> str:
    import torch

    triton = importlib.import_module("triton").__version__ if importlib.util.find_spec("triton") else "none"
    return (
        f"{len(names)} x {', '.join(dict.fromkeys(names))}; the table on {device}; torch {torch.__version__}, "
        f"CUDA {torch.version.cuda}, Triton {triton}, Python {sys.version.split()[0]}"
    )


# --- the tests marked `gpu` ---


def run_checks(seconds: float) -> int:
    """Run the tests marked `gpu` in a process of their own, because a fault on the device takes the process with it."""
    if importlib.util.find_spec("pytest") is None:
        print(
            "error: pytest is not installed, so the tests marked gpu were not run\n"
            "hint: pip install pytest, or --only speed",
            file=sys.stderr,
        )
        return 2
    modules = []
    for path, missing in gpu_modules(ROOT / "tests/attention"):
        if missing:
            print(f"left out: {path.relative_to(ROOT)}, because {', '.join(missing)} is not installed")
        else:
            modules.append(str(path.relative_to(ROOT)))
    if not modules:
        print("error: no test marked gpu could be run", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "pytest", "-W", "error", "-m", "gpu", "-p", "no:cacheprovider", *modules]
    sys.stdout.flush()
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=max(seconds, 1),
        )
    except subprocess.TimeoutExpired:
        print(f"error: the tests were stopped after {seconds:.0f} s", file=sys.stderr)
        return 2
    # 0 passed, 1 failed; else pytest could not go on.
    return done.returncode if done.returncode in (0, 1) else 2


def gpu_modules(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Each test module with a test marked `gpu`, and what it imports that is not there."""
    for path in sorted(folder.glob("test_*.py")):
        if "pytest.mark.gpu" in path.read_text(encoding="utf-8"):
            names = imported(path, folder.parent.parent, set())
            yield path, sorted(name for name in names if importlib.util.find_spec(name) is None)


def imported(path: Path, root: Path, seen: set[Path]) -> set[str]:
    """The top-level packages that a test module imports at its top, through helpers among the tests too."""
    seen.add(path)
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
        else:
            continue
        for name in names:
            helper = root.joinpath(*name.split(".")).with_suffix(".py")
            if name.startswith("tests.") and helper.exists():
                if helper not in seen:
                    found |= imported(helper, root, seen)
            else:
                found.add(name.split(".")[0])
    return found


# --- the table ---


@dataclass(frozen=True)
class Case:
    """One operation, and what it is held against."""

    name: str
    run: Callable[[], object]
    peer: Callable[[], object]
    is_right: Callable[[], bool]
    bytes: int
    """Read and written, by each of the two where both move as many."""
    goal: float | None
    peer_name: str = "copy"


@dataclass(frozen=True)
class Row:
    """What was measured of a case; None where there was no time left for it."""

    case: Case
    right: bool
    seconds: float | None = None
    peer_seconds: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the peer."""
        return self.peer_seconds / self.seconds if self.seconds and self.peer_seconds else None

    @property
    def reached(self) -> bool:
        return self.case.goal is None or (self.ratio is not None and self.ratio >= self.case.goal)


def ignore_announcement() -> None:
    """Triton 3.9 announces a change of its default whenever it compiles for a device."""
    warnings.filterwarnings("ignore", "TRITON_DEFAULT_FP_FUSION is unset", UserWarning)


def measure(device: str, deadline: float) -> Iterator[Row]:
    import torch

    with torch.cuda.device(device), torch.no_grad():
        room = torch.cuda.get_device_properties(device).total_memory
        rows = min(1 << 18, max(1 << 12, room // (64 * 4096)))
        for case in cases(device, rows):
            if time.monotonic() > deadline - 5:
                yield Row(case, True)
                continue
            case.run()
            if not case.is_right():
                yield Row(case, False)
                continue
            yield Row(case, True, *cuda_seconds(case.run, case.peer))
            torch.cuda.empty_cache()


def cases(device: str, rows: int, kernel: str = "triton") -> Iterator[Case]:
    """Batches of about ``rows`` rows, filled to about 55 %; one after the other, so that only one is in memory."""
    import torch

    for dtype, row, sequences, goal in (
        (torch.float32, (16, 64), 32, COPY_GOAL),
        (torch.bfloat16, (16, 64), 32, COPY_GOAL),
        (torch.bfloat16, (16, 64), max(rows // 16, 1), COPY_GOAL),
        (torch.bfloat16, (3, 331), 32, None),
        (torch.uint8, (2048,), 32, COPY_GOAL),
    ):
        batch = Batch(device, dtype, row, sequences, max(rows // sequences, 1), kernel)
        yield from moving(batch, goal)
        yield clearing(batch)
    yield from runpy.run_path(str(Path(__file__).with_name("gpu_attention.py")))["cases"](Case, device, rows)


@dataclass(frozen=True)
class Batch:
    """``sequences`` of at most ``longest`` rows, each row of shape ``row``."""

    device: str
    dtype: torch.dtype
    row: tuple[int, ...]
    sequences: int
    longest: int
    kernel: str

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {[self.sequences, self.longest, *self.row]}"


def moving(batch: Batch, goal: float | None) -> Iterator[Case]:
    from te_pkg.attention import PackedLayout

    rng = random.Random(0)
    lengths = [rng.randint(max(batch.longest // 10, 1), batch.longest) for _ in range(batch.sequences)]
    whole = PackedLayout.padded_batch(lengths, batch.longest).to(batch.device)
    packed = PackedLayout.from_lengths(lengths, device=batch.device)
    padded = PackedLayout.from_lengths(lengths, pad_to_multiple=16, device=batch.device)
    for operation, source, target in (
        ("pack", whole, packed),
        ("unpack", packed, whole),
        ("pad to 16", packed, padded),
    ):
        yield moving_case(f"{operation}, {batch}", batch, source, target, goal)


def moving_case(name: str, batch: Batch, source: PackedLayout, target: PackedLayout, goal: float | None) -> Case:
    import torch

    from te_pkg.attention import relayout

    x = torch.randint(1, 100, (source.total_tokens, *batch.row), device=batch.device, dtype=torch.uint8)
    x = x.to(batch.dtype)
    out = torch.full((target.total_tokens, *batch.row), 111, dtype=x.dtype, device=x.device)  # right nowhere
    moved = (sum(source.lengths or ()) + target.total_tokens) * out[:1].nbytes
    copied = torch.zeros(moved // 2, dtype=torch.uint8, device=x.device)
    copy = torch.empty_like(copied)

    def is_right() -> bool:
        real = target.token_mask()
        return torch.equal(out[real], x[source.token_mask()]) and not bool(out[~real].any())

    return Case(
        name,
        run=lambda: relayout(x, source, target, out=out, kernel=batch.kernel),
        peer=lambda: copy.copy_(copied),
        is_right=is_right,
        bytes=moved,
        goal=goal,
    )


def clearing(batch: Batch) -> Case:
    import torch

    from te_pkg.attention import PackedLayout, zero_padding_

    lengths = [batch.longest - batch.longest // 10] * batch.sequences
    layout = PackedLayout.padded_batch(lengths, batch.longest).to(batch.device)
    x = torch.ones(layout.total_tokens, *batch.row, dtype=batch.dtype, device=batch.device)
    other, padding = x.clone(), ~layout.token_mask().view(-1, *[1] * len(batch.row))
    return Case(
        f"zero_padding_, {batch}",
        run=lambda: zero_padding_(x, layout, kernel=batch.kernel),
        peer=lambda: other.masked_fill_(padding, 0),
        is_right=lambda: torch.equal(x, other.masked_fill(padding, 0)),
        bytes=int(padding.sum()) * x[:1].nbytes,
        goal=None,
        peer_name="masked_fill_",
    )


def cuda_seconds(run: Callable[[], object], peer: Callable[[], object], rounds: int = 15) -> tuple[float, float]:
    """Medians of both on the device, in turn."""
    import torch

    taken: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[], []]
    for number in range(rounds + 3):
        for work, events in zip((run, peer), taken, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            # The device is kept busy while the host launches, or the launch would be part of the time.
            torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
            start.record()
            work()
            end.record()
            if number >= 3:
                events.append((start, end))
        torch.cuda.synchronize()
    ours, theirs = (statistics.median(start.elapsed_time(end) for start, end in events) / 1e3 for events in taken)
    return ours, theirs


def table(rows: Sequence[Row]) -> str:
    lines = [("operation", "MB moved", "ms", "GB/s", "against", "ms", "ours is", "goal", "")]
    for row in rows:
        case = row.case
        goal = "" if case.goal is None else f"{case.goal:.0%}"
        if not row.right:
            end = "WRONG RESULT"
        elif row.ratio is None:
            end = "no time left"
        else:
            end = "" if row.reached else "below goal"
        if row.seconds and row.peer_seconds and row.ratio:
            ratio = f"{row.ratio:.0%}" if case.peer_name == "copy" else f"{row.ratio:.1f} x"
            bandwidth = f"{case.bytes / row.seconds / 1e9:.0f}"
            times = f"{row.seconds * 1e3:.3f}", bandwidth, case.peer_name, f"{row.peer_seconds * 1e3:.3f}", ratio
        else:
            times = "", "", case.peer_name, "", ""
        lines.append((case.name, f"{case.bytes / 1e6:.1f}", *times, goal, end))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in (0, 4, 8) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def verdict(rows: Sequence[Row], goals: bool) -> int:
    if not all(row.right for row in rows):
        return 1
    if any(row.ratio is None for row in rows):
        return 2
    return int(goals and not all(row.reached for row in rows))


if __name__ == "__main__":
    sys.exit(main())
