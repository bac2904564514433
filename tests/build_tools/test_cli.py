"""The command line as a shell and a CI job see it: exit codes, streams, ``show``."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from build_tools.cli import _parser
from tests.build_tools.command_line import te_wheel
from tests.build_tools.wheel_factory import PACKAGE, Archive, make_wheel
from tests.build_tools.wheel_reader import read_right

ROOT = Path(__file__).parents[2]
COMMANDS = [
    "version",
    "build",
    "show",
    "repack",
    "unpack",
    "pack",
    "check",
    "diff",
    "index",
    "pins",
    "smoke",
    "release",
]


def shell(line: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which ``$TE_WHEEL`` is the command and ``$1`` the first argument."""
    values = {**os.environ, "PYTHONPATH": str(ROOT), "TE_WHEEL": f"{sys.executable} -m build_tools", **environment}
    command = ["sh", "-c", line, "sh", *map(str, arguments)]
    return subprocess.run(command, env=values, capture_output=True, text=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_data_and_success(command: str) -> None:
    outcome = te_wheel(command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert command in outcome.out


def test_the_help_names_every_command() -> None:
    outcome = te_wheel("--help")
    assert outcome.code == 0
    assert all(command in outcome.out for command in COMMANDS)


def test_every_command_leads_to_a_function() -> None:
    (commands,) = [action.choices for action in _parser()._actions if action.choices]
    assert list(commands) == COMMANDS
    for parser in dict(commands).values():
        module, _, function = parser.get_default("run").partition(".")
        assert callable(getattr(import_module(f"build_tools.{module}"), function))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["repack"],
        ["check"],
        ["version", "1.0", "2.0"],
        ["repack", "--nonsense", "x.whl"],
        ["unpack", "a", "b"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_2_and_one_line(arguments: list[str]) -> None:
    outcome = te_wheel(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.errors) == 1
    assert "--help" in outcome.err


def test_nothing_heavy_is_imported_to_start_and_torch_never() -> None:
    code = (
        "import sys; from build_tools.cli import main; before = set(sys.modules); main(['--help']); "
        "print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    for heavy in ("torch", "numpy", "packaging", "asyncio", "tomllib", "zipfile", "subprocess"):
        assert f"'{heavy}'" not in run.stderr


def test_a_real_run_imports_no_torch(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    code = (
        "import sys; from build_tools.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or 'torch' in sys.modules or 'numpy' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "repack", str(wheel), "--name", "other"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


# Streams


def test_data_goes_to_stdout_and_talk_to_stderr(tmp_path: Path) -> None:
    run = shell('$TE_WHEEL repack "$1" --name other', make_wheel(tmp_path))
    assert (run.returncode, run.stdout) == (0, f"{tmp_path / 'other-1.0-py3-none-any.whl'}\n")
    assert "\x1b" not in run.stderr


def test_quiet_leaves_the_data_alone(tmp_path: Path) -> None:
    outcome = te_wheel("repack", "--quiet", make_wheel(tmp_path), "--name", "other")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.lines == [str(tmp_path / "other-1.0-py3-none-any.whl")]


@pytest.mark.parametrize("command", ['$TE_WHEEL show "$1"', '$TE_WHEEL check "$1" --json', "$TE_WHEEL --help"])
def test_a_reader_that_left_is_no_traceback(command: str, tmp_path: Path) -> None:
    run = shell(f"({command}; echo done >&2) | true", make_wheel(tmp_path))
    assert "Traceback" not in run.stderr
    assert "Exception ignored" not in run.stderr
    assert "error" not in run.stderr.replace("0 errors", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("command", ["$TE_WHEEL version 1.0", '$TE_WHEEL show "$1"', '$TE_WHEEL check "$1" --json'])
def test_a_full_stdout_is_exit_2_in_plain_words(command: str, tmp_path: Path) -> None:
    run = shell(f"{command} > /dev/full", make_wheel(tmp_path))
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert "error: " in run.stderr


def test_under_github_actions_each_fault_is_an_annotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path, files={**PACKAGE, "demo/a\n::set-output name=x::y": "x"})
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    outcome = te_wheel("repack", wheel, "--name", "other")
    annotations = [line for line in outcome.err.splitlines() if line.startswith("::")]
    assert len(annotations) == len(outcome.errors)
    assert all(line.startswith("::error") for line in annotations)


def test_a_path_with_any_character_is_printed_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "a b'c\N{SNOWMAN}"
    run = shell('$TE_WHEEL repack "$1" --name other --quiet', make_wheel(folder))
    assert run.stdout == f"{folder / 'other-1.0-py3-none-any.whl'}\n"


# show


def test_show_gives_every_fact_as_json(tmp_path: Path) -> None:
    headers = ["Requires-Python: >=3.11", "Requires-Dist: numpy", "Requires-Dist: demo[x]; extra == 'y'"]
    wheel = make_wheel(tmp_path, version="1.0+cu128", build="7", tags="py2.py3-none-any", headers=headers)
    (shown,) = te_wheel("show", wheel, "--json").json
    expected = {
        "path": str(wheel),
        "name": "demo",
        "version": "1.0+cu128",
        "build": "7",
        "tags": ["py2-none-any", "py3-none-any"],
        "requires_python": ">=3.11",
        "requires_dist": ["numpy", "demo[x]; extra == 'y'"],
        "files": len(read_right(wheel)),
        "size": wheel.stat().st_size,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "agrees": True,
    }
    assert {key: shown[key] for key in expected} == expected


def test_show_gives_the_same_facts_as_text(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, version="1.0+cu128", build="7", headers=["Requires-Dist: numpy>=2"])
    out = te_wheel("show", wheel).out
    for fact in (str(wheel), "demo", "1.0+cu128", "7", "py3-none-any", "numpy>=2"):
        assert fact in out


@pytest.mark.parametrize(
    "filename", ["demo-1.1-py3-none-any.whl", "other-1.0-py3-none-any.whl", "demo-1.0-py2-none-any.whl"]
)
def test_show_says_where_a_wheel_disagrees(filename: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, filename=filename)
    (shown,) = te_wheel("show", wheel, "--json").json
    assert shown["agrees"] is False


def test_show_of_many_names_the_one_that_is_not_there(tmp_path: Path) -> None:
    wheel, missing = make_wheel(tmp_path), tmp_path / "missing-1.0-py3-none-any.whl"
    outcome = te_wheel("show", missing, wheel, "--json")
    assert outcome.code == 2
    assert [("error" in entry, entry["path"]) for entry in outcome.json] == [(True, str(missing)), (False, str(wheel))]


# Values and streams that a shell can give


@pytest.mark.parametrize("option", ["--name", "--version", "--local", "--set", "--add-file", "-o"])
def test_two_dashes_are_no_value(option: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    outcome = te_wheel("repack", wheel, f"{option}=--" if option != "-o" else "--out-dir=--")
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.errors) == 1
    assert os.listdir(tmp_path) == [wheel.name]


@pytest.mark.parametrize(
    "arguments",
    [
        ["repack", ""], ["repack", "x.whl", "-o", ""], ["show", ""], ["check", ""], ["unpack", ""],
        ["unpack", "x.whl", "-d", ""], ["pack", ""], ["pack", "x", "-d", ""], ["version", "--file", ""],
        ["smoke", ""], ["build", ""], ["build", "-o", ""], ["release", ""], ["release", "--wheel", ""],
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_empty_path_is_a_mistake_and_not_this_folder(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = te_wheel(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.errors) == 1
    assert outcome.errors[0].endswith("expected a path, got ''")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_lose_words_and_nothing_else(streams: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    run = shell(f'$TE_WHEEL repack "$1" --name other {streams}', wheel)
    assert run.returncode == 0
    assert "Traceback" not in run.stderr
    read_right(tmp_path / "other-1.0-py3-none-any.whl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_stderr_does_not_change_the_outcome(tmp_path: Path) -> None:
    run = shell('$TE_WHEEL repack "$1" --name other 2> /dev/full', make_wheel(tmp_path))
    assert (run.returncode, run.stdout) == (0, f"{tmp_path / 'other-1.0-py3-none-any.whl'}\n")


def test_what_the_terminal_cannot_show_is_escaped_and_a_path_stays_its_bytes(tmp_path: Path) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    wheel = make_wheel(tmp_path, headers=["Summary: \N{SNOWMAN}"])
    run = shell('$TE_WHEEL repack "$1" --set "Summary: \N{GREEK SMALL LETTER PI}" --dry-run', wheel, **ascii_only)
    assert run.returncode == 0, run.stderr
    assert "-> \\u03c0\n" in run.stdout
    assert "- \\u2603\n" in run.stdout
    folder = os.fsencode(tmp_path) + b"/\xff"
    values = {**os.environ, **ascii_only, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "build_tools", "repack", str(wheel), "--name", "other", "-q", "-o"]
    printed = subprocess.run([*map(os.fsencode, command), folder], env=values, capture_output=True)
    assert printed.stdout == folder + b"/other-1.0-py3-none-any.whl\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("command", ["repack", "check", "show"])
def test_json_is_json_whatever_the_paths_and_the_encoding(command: str, encoding: str, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + "/\N{SNOWMAN}\xe9".encode() + b"\xff"
    os.mkdir(folder)
    wheel = make_wheel(Path(os.fsdecode(folder)))
    values = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "build_tools", command, "--json", "-q", str(wheel)]
    words += ["--name", "other"] if command == "repack" else []
    printed = subprocess.run([*map(os.fsencode, words)], env=values, capture_output=True)
    (facts,) = json.loads(printed.stdout.decode(encoding))
    assert facts["path" if command != "repack" else "source"] == str(wheel)


@pytest.mark.parametrize("command", ["show", "unpack"])
def test_a_command_for_wheels_alone_knows_an_sdist(command: str, tmp_path: Path) -> None:
    sdist = tmp_path / "demo-1.0.tar.gz"
    sdist.write_bytes(gzip.compress(b"demo"))
    outcome = te_wheel(command, sdist)
    assert outcome.code == 2
    assert "not a zip archive: it is gzip, as an sdist is" in outcome.errors[0]


def test_what_is_one_is_told_as_one(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    assert "1 change\n" in te_wheel("repack", wheel, "--set", "Summary: x", "-o", tmp_path / "out").err
    commented = make_wheel(tmp_path / "commented", archive=Archive(comment=b"c"))
    assert f"{commented}: 0 errors, 1 warning\n" in te_wheel("check", commented).err


def test_a_start_leaves_out_what_would_double_its_time(tmp_path: Path) -> None:
    code = (
        "import sys; from build_tools.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or bool({'dataclasses', 'inspect', 'shutil', 'tempfile', 'zipfile'} & set(sys.modules)))"
    )
    command = [sys.executable, "-I", "-c", f"sys = __import__('sys'); sys.path.insert(0, {str(ROOT)!r}); {code}"]
    command += ["repack", str(make_wheel(tmp_path)), "--name", "other"]
    assert subprocess.run(command, capture_output=True).returncode == 0
