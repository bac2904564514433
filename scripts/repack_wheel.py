#!/usr/bin/env python3
"""Rewrite wheels from a checkout: the repackaging step of a CI job; the options are those of ``te-wheel repack``.

    python scripts/repack_wheel.py dist/demo-1.0-py3-none-any.whl --name demo-cu12 --local cu128 -o out

Needs Python 3.11 and ``packaging``. This file itself parses on any Python, so that an old one says what is missing.
"""

import signal
import sys


def main():
    # Until the command line listens, an interrupt ends the process as the system does it: without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.version_info < (3, 11):  # noqa: UP036
        return missing("Python 3.11 or newer is needed, this is " + sys.version.split()[0])
    try:
        import packaging.version  # noqa: F401
    except ImportError:
        return missing("the package 'packaging' is not installed: " + sys.executable + " -m pip install packaging")
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from build_tools.cli import entry_point

    sys.argv.insert(1, "repack")
    return entry_point()


def missing(what):
    sys.stderr.write("error: " + what + "\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
