"""The command te-wheel; with ``python -m build_tools`` straight from a checkout.

This file and ``__init__.py`` beside it parse on any Python, so that an old one says what is missing.
"""

import signal
import sys


def run() -> None:
    """Say what is missing, or run the command line."""
    # Until that listens, an interrupt ends the process as the system does it: without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    missing = ""
    if sys.version_info < (3, 11):  # noqa: UP036
        missing = "Python 3.11 or newer is needed, this is " + sys.version.split()[0]
    else:
        try:
            import packaging.version  # noqa: F401
        except ImportError:
            missing = "the package 'packaging' is not installed: " + sys.executable + " -m pip install packaging"
    if missing:
        sys.stderr.write("error: " + missing + "\n")
        sys.exit(2)
    from build_tools.cli import entry_point

    entry_point()


if __name__ == "__main__":
    run()
