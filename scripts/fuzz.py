"""Look for bytes that the wheel tooling cannot stand, guided by the code that they reach. Needs the package atheris.

    python scripts/fuzz.py                              every target, a minute in all
    python scripts/fuzz.py --target archive --seconds 600
    python scripts/fuzz.py --target archive crash-0f3a  that input alone, to see what it does

Targets and what must hold for them stand in tests/build_tools/fuzz_targets.py, where their first inputs come from too.
What is learnt is kept in .cache/fuzz, so a later run goes on. An input that breaks a target is kept as
.cache/fuzz/TARGET-crash-*, and the exit code is 1. Without atheris it is 2.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".cache" / "fuzz"
NAMES = ("archive", "headers", "record", "plan")
sys.path.insert(0, str(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", type=Path, help="run these inputs and no others")
    parser.add_argument("--target", action="append", choices=NAMES, help="default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together (default: 60)")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    targets = arguments.target or list(NAMES)
    if arguments.inputs:
        return run_inputs(targets, arguments.inputs)
    if importlib.util.find_spec("atheris") is None:
        print("fuzz.py: the package atheris is not installed, so nothing was tried", file=sys.stderr)
        return 2
    seconds = max(1, arguments.seconds // len(targets))
    if arguments.in_this_process:
        fuzz(targets[0], seconds)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    # The fuzzer ends its process without any cleaning up, so its files lie where this one removes them.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    try:
        with tempfile.TemporaryDirectory(dir=memory, prefix="te-wheel-fuzz") as scratch:
            return fuzz_all(targets, seconds, scratch)
    except KeyboardInterrupt:
        print("fuzz.py: interrupted", file=sys.stderr)
        return 130


def fuzz_all(targets: list[str], seconds: int, scratch: str) -> int:
    """Each target in a process of its own, with its temporary files in ``scratch``."""
    broken = []
    for target in targets:
        command = [sys.executable, __file__, "--in-this-process", "--target", target, "--seconds", str(seconds)]
        env = {**os.environ, "TMPDIR": scratch}
        done = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        lines = done.stdout.splitlines()
        tried = [line.split()[-1] for line in lines if line.startswith("stat::number_of_executed_units")]
        print(f"{target}: {tried[-1] if tried else 'unknown'} inputs in {seconds} s", flush=True)
        if done.returncode:
            broken.append(target)
            print("\n".join(lines[-60:]))
    print("fuzz.py:", f"broken: {', '.join(broken)}, see {KEPT}" if broken else "nothing found")
    return int(bool(broken))


def run_inputs(targets: list[str], inputs: list[Path]) -> int:
    from tests.build_tools.fuzz_targets import TARGETS

    for target in targets:
        for path in inputs:
            TARGETS[target](path.read_bytes())
            print(f"{target}: {path}: right")
    return 0


def fuzz(name: str, seconds: int) -> None:
    """Never returns: the fuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["build_tools"]):
        from tests.build_tools.fuzz_targets import TARGETS, corpus

    learnt = KEPT / name
    learnt.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as first:
        for data in corpus(name):
            (Path(first) / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        limits = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048", "-max_len=20000"]
        options = ["-print_final_stats=1", "-verbosity=1", f"-artifact_prefix={KEPT}/{name}-"]
        atheris.Setup([sys.argv[0], *limits, *options, str(learnt), first], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
