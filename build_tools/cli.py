"""The command line: arguments -> one call, errors -> exit codes.

Exit codes: 0 done, 1 findings (check, diff, smoke, release), 2 could not. A command's module is imported when
the command is chosen, so that a tool which CI starts often starts fast.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

from build_tools.console import Console
from build_tools.errors import ReleaseError, UsageError
from build_tools.outcome import COULD_NOT

_REPEATED = {
    "wheels", "files", "set", "add", "remove", "add_file", "sbom_add", "remove_file", "imports", "requires", "only",
    "limit",
}  # fmt: skip
_PATHS = {
    "wheels": "WHEEL", "wheel": "WHEEL", "files": "FILE", "folder": "DIR", "src": "SRC", "project": "SRC",
    "a": "A", "b": "B", "out_dir": "-o", "dest": "-d", "file": "--file", "built": "--wheel",
    "yanked": "--yanked",
}  # fmt: skip
_INTERRUPTED = "interrupted; nothing half-written is left"
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class _HelpFormatter(argparse.HelpFormatter):
    """Made once for each argument; left to itself it would import shutil, bz2 and lzma to learn the width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_terminal_width() - 2)


@cache
def _terminal_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1).columns or 80
    except (OSError, ValueError):
        return 80


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_HelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see `{self.prog} --help`")


def entry_point() -> NoReturn:
    """The command ``te-wheel``."""
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    try:
        for number in heard:
            signal.signal(number, _interrupt)
        sys.unraisablehook = _interrupt_again
        _prepare_streams()
        # One command and out: looking for cycles among a wheel's 70,000 members costs a tenth of the run.
        gc.disable()
        code = main(sys.argv[1:])
    except KeyboardInterrupt:  # before main listens, or while it tells of another end
        Console().error([_INTERRUPTED])
        code = COULD_NOT
    if hasattr(signal, "setitimer"):  # an interrupt that was to come again comes too late
        signal.setitimer(signal.ITIMER_REAL, 0)
    for number in heard:  # all is done, and whoever reads the output may keep this waiting for ever
        signal.signal(number, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # All is closed and flushed: to take the interpreter apart object by object would cost a sixth of a small run.
    os._exit(code)


def _prepare_streams() -> None:
    """A stream that is closed takes everything; no text is ever refused by one that is open."""
    # A path that is no UTF-8 goes out as the bytes that came in, what the encoding lacks as an escape.
    codecs.register_error("te-wheel", _encode)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="te-wheel")


def _encode(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    bad = error.object[error.start]
    if "\udc80" <= bad <= "\udcff":
        return bad.encode(errors="surrogateescape"), error.start + 1
    return bad.encode("ascii", "backslashreplace"), error.start + 1


def _interrupt(number: int, frame: object) -> NoReturn:
    # The first one is enough: another must not stop the cleaning up. By a function: SIG_IGN would make Python
    # complain of one that came a moment before.
    for each in _SIGNALS:
        signal.signal(each, _pass_by)
    raise KeyboardInterrupt


def _interrupt_again(lost: sys.UnraisableHookArgs) -> None:
    """An interrupt that came inside a callback of the interpreter ends there: let it come again a moment later."""
    if isinstance(lost.exc_value, KeyboardInterrupt) and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
    else:
        sys.__unraisablehook__(lost)


def _pass_by(number: int, frame: object) -> None:
    pass


def main(argv: Sequence[str]) -> int:
    """Run one command; return its exit code. Prints, but never exits and never raises for a user's fault."""
    console = Console()
    try:
        arguments = _parser().parse_args(list(argv))
        _check_values(arguments)
        console = Console(quiet=arguments.quiet)
        module, _, function = arguments.run.partition(".")
        code: int = getattr(import_module(f"build_tools.{module}"), function)(arguments, console)
        sys.stdout.flush()
        return code
    except SystemExit as exit:  # --help and --version
        return exit.code if isinstance(exit.code, int) else COULD_NOT
    except ReleaseError as error:
        console.error(error.faults, error.hint)
    except KeyboardInterrupt:
        console.error([_INTERRUPTED])
    except BrokenPipeError:
        # Whoever read the output has left: nothing more to say, and nothing may be flushed to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        console.error([f"{error.filename or 'the operating system'}: {error.strerror or error}"])
    except MemoryError:
        console.error(["out of memory"])
    except Exception:
        # Not the user's fault; and Python's own exit code 1 would read as findings.
        import traceback

        traceback.print_exc()
        console.error(["this is a fault of te-wheel itself"], "please report it with the lines above")
    return COULD_NOT


def _check_values(arguments: argparse.Namespace) -> None:
    """Refuse ``--name=--``, which argparse before Python 3.12 takes for no value, and a path that is empty."""
    for name, value in vars(arguments).items():
        values = value if isinstance(value, list) and name in _REPEATED else [value]
        if any(item == [] for item in values):
            raise UsageError(f"argument --{name.replace('_', '-')}: expected a value, got '--'")
        if name in _PATHS and "" in values:
            # The file system would read it as this folder.
            raise UsageError(f"argument {_PATHS[name]}: expected a path, got ''")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="te-wheel",
        description="Turn one built wheel into the wheels that a release publishes.",
        epilog="exit codes: 0 done, 1 findings (check, diff, smoke, release), 2 could not",
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version of te-wheel")
    parser.set_defaults(quiet=False)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)

    def command(name: str, run: str, help: str) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        sub.set_defaults(run=run)
        sub.add_argument("-q", "--quiet", action="store_true", help="say warnings and errors alone")
        return sub

    sub = command("version", "release_commands.version", "print a version in normal form")
    sub.add_argument("raw", nargs="?", metavar="RAW", help="a version in any spelling (default: read VERSION.txt)")
    sub.add_argument("--file", metavar="F", help="the version file to read")
    sub.add_argument("--local", metavar="L", help='replace the local label; "" removes it')
    sub.add_argument("--stem", metavar="NAME", help="print NAME-VERSION as paths spell it, such as te_pkg-2.21.0.dev0")

    sub = command(
        "build", "release_commands.build", "build wheel and sdist of a project and prove that they bear its version"
    )
    sub.add_argument("src", nargs="?", default=".", metavar="SRC", help="the project (default: this folder)")
    _out_dir(sub, "dist")
    sub.add_argument("--local", metavar="L", help="give the wheel a local label; the sdist stays public")
    _verbose(sub)

    sub = command("show", "wheel_commands.show", "print what wheels say of themselves and whether it agrees")
    sub.add_argument("wheels", nargs="+", metavar="WHEEL", help="a wheel, or a folder of wheels")
    _jobs(sub)
    _json(sub)

    sub = command(
        "repack", "wheel_commands.repack", "rewrite wheels without recompressing them; prints each output path"
    )
    _repack_arguments(sub)

    sub = command("unpack", "wheel_commands.unpack", "unpack a wheel into the folder NAME-VERSION")
    sub.add_argument("wheel", metavar="WHEEL")
    sub.add_argument("-d", "--dest", default=".", metavar="DIR", help="where the folder goes (default: this folder)")

    sub = command("pack", "wheel_commands.pack", "pack a folder into the wheel that its METADATA and WHEEL describe")
    sub.add_argument("folder", metavar="DIR")
    sub.add_argument("-d", "--dest", default=".", metavar="DIR", help="where the wheel goes (default: this folder)")
    sub.add_argument("--build", metavar="B", help='the build tag; "" removes it')
    sub.add_argument("--force", action="store_true", help="replace a wheel that is there with other bytes")

    sub = command("check", "wheel_commands.check", "report every rule that wheels and sdists break")
    sub.add_argument("files", nargs="+", metavar="FILE", help="a wheel, an sdist, or a folder of them")
    sub.add_argument("--hashes", action="store_true", help="inflate every member and compare sizes, CRCs and digests")
    sub.add_argument("--pypi", action="store_true", help="report what PyPI refuses too")
    sub.add_argument("--strict", action="store_true", help="fail on warnings too")
    sub.add_argument(
        "--limit", action="append", default=[], metavar="NAME=N", help="read more or less of a file; repeatable"
    )
    _jobs(sub)
    _json(sub)

    sub = command(
        "diff", "wheel_commands.diff", "report what a user would notice between two wheels; exit 1 if anything"
    )
    sub.add_argument("a", metavar="A", help="the old wheel")
    sub.add_argument("b", metavar="B", help="the new wheel")
    _json(sub)

    sub = command(
        "index", "release_commands.index", "make a static index of wheels and sdists that pip and uv install from"
    )
    sub.add_argument("folder", metavar="DIR", help="where the files are, at any depth; they stay there")
    sub.add_argument("-o", "--out-dir", metavar="DIR", help="where the folder `simple` goes (default: DIR itself)")
    sub.add_argument("--base-url", metavar="URL", help="where DIR is served (default: relative links)")
    sub.add_argument("--yanked", metavar="FILE", help="what nobody should take (default: yanked.txt in DIR)")
    _json(sub)

    sub = command(
        "pins", "release_commands.pins", "print the exact requirements that tie the parts of a release together"
    )
    sub.add_argument("folder", metavar="DIR", help="where the wheels and sdists are, at any depth")
    _json(sub)

    sub = command(
        "smoke", "release_commands.smoke", "install a wheel into a fresh environment, import it, compare versions"
    )
    sub.add_argument("wheel", metavar="WHEEL")
    sub.add_argument(
        "--import", dest="imports", action="append", default=[], metavar="M", help="a module to import; repeatable"
    )
    sub.add_argument("--run", dest="code", metavar="CODE", help="Python code to run after the imports")
    sub.add_argument(
        "--requires", action="append", default=[], metavar="REQ", help="a requirement to install first; repeatable"
    )

    sub = command(
        "release", "release_commands.release", "build, make every variant of [tool.te-wheel], check and try each"
    )
    sub.add_argument("project", nargs="?", default=".", metavar="SRC", help="the project (default: this folder)")
    _out_dir(sub, "dist")
    sub.add_argument("--only", action="append", default=[], metavar="VARIANT", help="make this variant; repeatable")
    sub.add_argument("--wheel", dest="built", metavar="FILE", help="start from this wheel instead of building one")
    _verbose(sub)
    sub.add_argument("--fresh", action="store_true", help="do again what a run that did not end has done")
    _jobs(sub)
    sub.add_argument("--no-smoke", dest="smoke", action="store_false", help="do not install and import the wheels")
    sub.add_argument("--force", action="store_true", help="replace outputs that are there with other bytes")
    _json(sub)
    return parser


def _repack_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("wheels", nargs="+", metavar="WHEEL", help="a wheel, an sdist, or a folder of wheels")
    _out_dir(sub, None)
    name = sub.add_argument_group("name and version")
    name.add_argument("--name", metavar="N", help="new distribution name")
    name.add_argument("--version", metavar="V", help="new version; drops a local label that V does not have")
    name.add_argument("--local", metavar="L", help='new local label, such as cu128; "" removes it')
    name.add_argument("--build", metavar="B", help='new build tag; "" removes it')
    name.add_argument("--python-tag", metavar="T", help="new Python tag, such as py3; several joined by '.'")
    name.add_argument("--abi-tag", metavar="T", help="new ABI tag, such as none")
    name.add_argument("--platform-tag", metavar="T", help="new platform tag, such as manylinux_2_28_x86_64")
    headers = sub.add_argument_group("METADATA")
    headers.add_argument(
        "--set", action="append", default=[], metavar="'F: v'", help="replace all lines of a field; repeatable"
    )
    headers.add_argument("--add", action="append", default=[], metavar="'F: v'", help="add a line; repeatable")
    headers.add_argument("--remove", action="append", default=[], metavar="F", help="remove a field; repeatable")
    files = sub.add_argument_group("files")
    files.add_argument("--add-file", action="append", default=[], metavar="SRC=DEST", help="add a file; repeatable")
    files.add_argument(
        "--sbom-add", action="append", default=[], metavar="FILE", help="add a CycloneDX or SPDX document; repeatable"
    )
    files.add_argument(
        "--remove-file", action="append", default=[], metavar="GLOB", help="remove members; * in a part, ** across"
    )
    mend = sub.add_argument_group("a wheel that is not sound")
    mend.add_argument(
        "--sync",
        choices=("filename", "metadata"),
        help="where the parts disagree, the side that wins; comes first",
    )
    mend.add_argument("--repair", action="store_true", help="mend RECORD, archive and folders where it takes no guess")
    run = sub.add_argument_group("the run")
    run.add_argument("--replace", action="store_true", help="remove the input once the output is on the disk")
    run.add_argument("--force", action="store_true", help="replace an output that is there with other bytes")
    run.add_argument("--fsync", action="store_true", help="return only when the output is on the disk")
    run.add_argument("--dry-run", action="store_true", help="print what would change, write nothing")
    run.add_argument(
        "--verify", choices=("structure", "hashes"), default="structure",
        help="how closely input and output are read: hashes compares every CRC and digest (default: structure)",
    )  # fmt: skip
    _jobs(run)
    _json(run)


def _out_dir(sub: argparse.ArgumentParser, default: str | None) -> None:
    shown = default or "the folder of each input"
    sub.add_argument("-o", "--out-dir", default=default, metavar="DIR", help=f"where outputs go (default: {shown})")


def _verbose(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("-v", "--verbose", action="store_true", help="show the output of the build as it comes")


def _jobs(sub: Any) -> None:
    sub.add_argument(
        "--jobs", type=_positive, metavar="N", help="how many files to work on at once (default: one on each core)"
    )


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not number:
        raise argparse.ArgumentTypeError(f"expected a number from 1, got {text!r}")
    return number


def _json(sub: Any) -> None:
    sub.add_argument("--json", action="store_true", help="print the same facts as JSON")


class _PrintVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from build_tools import __version__

        print(f"te-wheel {__version__}")
        parser.exit()
