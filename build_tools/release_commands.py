"""The commands of te-wheel that make a release: version, build, index, pins, smoke, release.

Each takes its arguments, makes one call and prints what came back. A command's module is imported when the
command runs, so that a tool which CI starts often starts fast.
"""

from __future__ import annotations

import argparse

from build_tools.console import Console, printable
from build_tools.errors import UsageError
from build_tools.outcome import COULD_NOT, DONE, FINDINGS, print_json
from build_tools.report import counted


def version(arguments: argparse.Namespace, console: Console) -> int:
    """Print a version, or what paths make of it."""
    from build_tools.version import parse_version, read_version, with_local

    if arguments.raw is not None and arguments.file is not None:
        raise UsageError("give a version or --file, not both", hint="see `te-wheel version --help`")
    if arguments.raw is not None:
        version = parse_version(arguments.raw)
    else:
        version = read_version(arguments.file or "VERSION.txt")
    if arguments.local is not None:
        version = with_local(version, arguments.local)
    if arguments.stem is not None:
        from build_tools.wheels.name import stem

        print(stem(arguments.stem, version))
    else:
        print(version)
    return DONE


def build(arguments: argparse.Namespace, console: Console) -> int:
    """Build, and print both paths."""
    from build_tools.project import build_project

    built = build_project(
        arguments.src, arguments.out_dir, local=arguments.local, verbose=arguments.verbose, report=console.say
    )
    print(built.wheel)
    print(built.sdist)
    return DONE


def index(arguments: argparse.Namespace, console: Console) -> int:
    """Make or renew an index, and print its folder."""
    from build_tools.wheels.index import make_index

    made = make_index(arguments.folder, arguments.out_dir, base_url=arguments.base_url, yanked_file=arguments.yanked)
    for _, error in made.broken:
        console.error(error.faults, error.hint)
    if not made.files:
        console.warning(f"{arguments.folder}: no wheel and no sdist that can be indexed")
    if made.leaves and made.files:
        console.note("the links lead out of the output folder: serve a folder above both, or give --base-url")
    counts = f"{counted(len(made.files), 'file')} of {counted(len(made.projects), 'project')}, {made.read} read"
    console.say(f"{counts}, {len(made.written)} pages and sidecars written, {len(made.removed)} removed")
    if arguments.json:
        print_json(made.facts)
    else:
        print(made.folder)
    return COULD_NOT if made.broken else DONE


def pins(arguments: argparse.Namespace, console: Console) -> int:
    """Print the requirements that tie the parts of a release together."""
    from build_tools.pins import read_pins

    found = read_pins(arguments.folder)
    for _, error in found.broken:
        console.error(error.faults, error.hint)
    for warning in found.warnings:
        console.warning(warning)
    if arguments.json:
        print_json(found.facts)
    for pin in () if arguments.json else found.pins:
        print(pin)
    return COULD_NOT if found.broken else DONE


def smoke(arguments: argparse.Namespace, console: Console) -> int:
    """Try a wheel; 1 where it fails, 2 where what was asked for could not be tried."""
    from build_tools.smoke import smoke_wheel
    from build_tools.smoke_plan import SmokePlan
    from build_tools.smoke_result import Outcome

    asked = SmokePlan(tuple(arguments.requires), tuple(arguments.imports), arguments.code)
    if asked.faults:
        raise UsageError([f"--{fault}" for fault in asked.faults], hint="see `te-wheel smoke --help`")
    result = smoke_wheel(
        arguments.wheel, imports=asked.imports, run=asked.run, requires=asked.requires, report=console.say
    )
    for part, status in result.parts:
        print(printable(f"{part}: {status}"))
    if result.failed:
        return FINDINGS
    return COULD_NOT if asked != SmokePlan() and result.imported.outcome is Outcome.SKIPPED else DONE


def release(arguments: argparse.Namespace, console: Console) -> int:
    """Make the release and print its table."""
    from build_tools.release import release as make_release
    from build_tools.release_record import format_table

    done = make_release(
        arguments.project,
        arguments.out_dir,
        only=arguments.only,
        wheel=arguments.built,
        smoke=arguments.smoke,
        force=arguments.force,
        fresh=arguments.fresh,
        jobs=arguments.jobs,
        verbose=arguments.verbose,
        report=console.say,
    )
    if arguments.json:
        print_json(done.facts)
    else:
        print(format_table(done))
    for warning in (*done.warnings, *done.skipped):
        console.warning(warning)
    console.error(done.faults, done.hint)
    rows = [
        [artifact.file.path.name, artifact.check, *(str(status) for _, status in artifact.smoke.parts)]
        for artifact in done.artifacts
    ]
    rows += [[f"variant {failure.variant}: not written", "failed", "-", "-", "-"] for failure in done.failures]
    console.summary(f"Release of {done.name} {done.version}", ("wheel", "check", "install", "import", "version"), rows)
    if done.failures:
        return COULD_NOT
    return FINDINGS if done.failed else DONE
