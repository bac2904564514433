"""The commands of te-wheel that look at wheels and rewrite them: show, repack, diff, unpack, pack, check.

Each takes its arguments, makes one call and prints what came back. A command's module is imported when the
command runs, so that a tool which CI starts often starts fast.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING

from build_tools.console import Console, printable
from build_tools.errors import ReleaseError
from build_tools.outcome import COULD_NOT, DONE, FINDINGS, print_json
from build_tools.report import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from build_tools.wheels.change import Change
    from build_tools.wheels.facts import WheelFacts
    from build_tools.wheels.finding import Finding
    from build_tools.wheels.limits import Limits


def show(arguments: argparse.Namespace, console: Console) -> int:
    """Print the facts of each wheel."""
    from build_tools.parallel import in_order
    from build_tools.wheels.facts import read_facts
    from build_tools.wheels.selection import select_files

    code = DONE
    shown: list[str] = []
    listed: list[dict[str, object]] = []
    wheels = select_files(arguments.wheels)
    with console.progress(wheels) as progress:
        read = list(in_order(progress.watched(read_facts), wheels, arguments.jobs))
    for wheel, facts in read:
        if isinstance(facts, ReleaseError):
            code = COULD_NOT
            console.error(facts.faults, facts.hint)
            listed.append({"path": str(wheel), "error": str(facts)})
            continue
        shown.append(_facts_text(facts))
        listed.append(
            {
                "path": str(wheel),
                "filename": facts.filename,
                "name": facts.name,
                "version": facts.version,
                "build": facts.build,
                "tags": list(facts.tags),
                "requires_python": facts.requires_python,
                "requires_dist": list(facts.requires_dist),
                "files": facts.files,
                "size": facts.size,
                "sha256": facts.sha256,
                "agrees": facts.agrees,
            }
        )
    if arguments.json:
        print_json(listed)
    elif shown:
        print("\n\n".join(shown))
    return code


def _facts_text(facts: WheelFacts) -> str:
    rows = [
        ("name", facts.name),
        ("version", facts.version),
        ("build", facts.build or "none"),
        ("tags", " ".join(facts.tags)),
        ("file name", facts.filename),
        ("python", facts.requires_python or "any"),
        *[("requires" if i == 0 else "", value) for i, value in enumerate(facts.requires_dist)],
        ("files", str(facts.files)),
        ("size", f"{facts.size:,} bytes"),
        ("sha256", facts.sha256),
        ("agrees", "yes" if facts.agrees else "no"),
        *[("", f"{finding.severity}: {finding}") for finding in facts.findings],
    ]
    return "\n".join([printable(str(facts.path)), *(printable(f"  {label:<10} {value}") for label, value in rows)])


def repack(arguments: argparse.Namespace, console: Console) -> int:
    """Rewrite each wheel and print its new path."""
    from build_tools.batch import repack_all
    from build_tools.wheels.edit import WheelEdit
    from build_tools.wheels.name import decode_url
    from build_tools.wheels.selection import select_files

    edit = WheelEdit(
        name=arguments.name,
        version=arguments.version,
        local=arguments.local,
        build=arguments.build,
        python_tag=arguments.python_tag,
        abi_tag=arguments.abi_tag,
        platform_tag=arguments.platform_tag,
        set=arguments.set,
        add=arguments.add,
        remove=arguments.remove,
        add_file=arguments.add_file,
        sbom_add=arguments.sbom_add,
        remove_file=arguments.remove_file,
        sync=arguments.sync,
        repair=arguments.repair,
    )
    wheels = select_files(arguments.wheels)
    progress = console.progress(wheels)
    made = repack_all(
        wheels,
        arguments.out_dir,
        edit,
        replace=arguments.replace,
        force=arguments.force,
        fsync=arguments.fsync,
        dry_run=arguments.dry_run,
        verify=arguments.verify,
        jobs=arguments.jobs,
        watch=progress.at,
    )
    code = DONE
    listed: list[dict[str, object]] = []
    summary: list[tuple[str, ...]] = []
    with progress, closing(made):
        for source, result in made:
            sha256 = None
            if arguments.json and not isinstance(result, ReleaseError):
                try:
                    sha256 = result.sha256
                except ReleaseError as error:  # of this output: the others go on
                    result = error
            if isinstance(result, ReleaseError):
                code = COULD_NOT
                console.error(result.faults, result.hint)
                listed.append({"source": str(source), "error": str(result)})
                summary.append((source.name, "not written", "-"))
                continue
            for text in _warnings(result.findings):
                console.warning(f"{result.path.name}: {text}")
            if decode_url(source.name) != source.name:
                console.note(f"{source.name!r} is read as {decode_url(source.name)!r}")
            for text in result.notes:
                console.note(f"{result.path.name}: {text}")
            changes = [str(change) for change in result.changes]
            summary.append((source.name, result.path.name, str(len(changes))))
            if arguments.json:
                listed.append(
                    {
                        "source": str(source),
                        "path": str(result.path),
                        "sha256": sha256,
                        "size": result.size,
                        "written": result.written,
                        "changes": [change.facts for change in result.changes],
                    }
                )
            elif arguments.dry_run:
                console.data("\n".join([str(result.path), *(printable(f"  {change}") for change in changes)]))
            else:
                count = counted(len(changes), "change") if changes else "no changes"
                console.say("\n".join([f"{source.name}: {count}", *(f"  {change}" for change in changes)]))
                if not result.written:
                    console.note(f"{str(result.path)!r} was there already with the same bytes, nothing was written")
                console.data(str(result.path))
    if arguments.json:
        print_json(listed)
    console.summary("Repacked wheels", ("wheel", "became", "changes"), summary)
    return code


def _warnings(findings: Iterable[Finding]) -> Iterator[str]:
    """The first finding of each code, with how many there are."""
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(finding)
    for first, *more in by_code.values():
        yield f"{first} (and {len(more)} more)" if more else str(first)


def diff(arguments: argparse.Namespace, console: Console) -> int:
    """Print what differs between two wheels."""
    from build_tools.wheels.diff import diff_wheels

    differences = diff_wheels(arguments.a, arguments.b)
    if arguments.json:
        facts = [change.facts for change in differences]
        print_json({"a": arguments.a, "b": arguments.b, "differences": facts})
    else:
        for change in differences:
            console.data(printable(str(change)), _change_colour(change))
    console.say(counted(len(differences), "difference") if differences else "no differences")
    return FINDINGS if differences else DONE


def _change_colour(change: Change) -> str | None:
    if change.old is None:
        return "added"
    return "removed" if change.new is None else None


def unpack(arguments: argparse.Namespace, console: Console) -> int:
    """Unpack, and print the folder."""
    from build_tools.wheels.unpacked import unpack

    print(unpack(arguments.wheel, arguments.dest))
    return DONE


def pack(arguments: argparse.Namespace, console: Console) -> int:
    """Pack, and print the wheel."""
    from build_tools.wheels.unpacked import pack

    packed = pack(arguments.folder, arguments.dest, build=arguments.build, force=arguments.force)
    for text in _warnings(packed.findings):
        console.warning(f"{packed.path.name}: {text}")
    if not packed.written:
        console.note(f"{str(packed.path)!r} was there already with the same bytes, nothing was written")
    print(packed.path)
    return DONE


def check(arguments: argparse.Namespace, console: Console) -> int:
    """Print every finding; a file that breaks a rule is exit code 1."""
    from build_tools.parallel import in_order
    from build_tools.wheels.limits import Limits
    from build_tools.wheels.rules import Severity
    from build_tools.wheels.selection import DISTRIBUTIONS, select_files

    limits = Limits.parse(arguments.limit)
    code = DONE
    listed: list[dict[str, object]] = []
    rows: list[tuple[str, ...]] = []
    files = select_files(arguments.files, DISTRIBUTIONS)
    with ExitStack() as stack:
        progress = stack.enter_context(console.progress(files))
        check_one = progress.watched(partial(_check_file, arguments=arguments, limits=limits))
        checked = stack.enter_context(closing(in_order(check_one, files, arguments.jobs)))
        for path, findings in checked:
            if isinstance(findings, ReleaseError):
                code = COULD_NOT
                console.error(findings.faults, findings.hint)
                listed.append({"path": str(path), "error": str(findings)})
                rows.append((path.name, "not read", "-"))
                continue
            errors = sum(finding.severity is Severity.ERROR for finding in findings)
            warnings = len(findings) - errors
            if (errors or (warnings and arguments.strict)) and code == DONE:
                code = FINDINGS
            listed.append(
                {
                    "path": str(path),
                    "findings": [finding.facts for finding in findings],
                }
            )
            for finding in findings:
                if not arguments.json:
                    console.data(printable(f"{path}: {finding.severity}: {finding}"))
                text = f"{finding}\n{finding.mend}"
                console.annotate(str(finding.severity), text, file=str(path), title=finding.code)
            for mend, codes in _mends(findings).items():
                console.hint(f"{', '.join(codes)}: {mend}")
            console.say(f"{path}: {counted(errors, 'error')}, {counted(warnings, 'warning')}")
            rows.append((path.name, str(errors), str(warnings)))
    if arguments.json:
        print_json(listed)
    console.summary("Checked files", ("file", "errors", "warnings"), rows)
    return code


def _check_file(path: str, arguments: argparse.Namespace, limits: Limits) -> list[Finding]:
    from build_tools.check_sdist import check_sdist, is_sdist
    from build_tools.wheels.check import check_wheel

    if is_sdist(path):
        return check_sdist(path, pypi=arguments.pypi, limits=limits)
    return check_wheel(path, hashes=arguments.hashes, pypi=arguments.pypi, limits=limits)


def _mends(findings: Iterable[Finding]) -> dict[str, list[str]]:
    """What mends findings, each with the codes of those that it mends."""
    mends: dict[str, list[str]] = {}
    for finding in findings:
        codes = mends.setdefault(finding.mend, [])
        if finding.code not in codes:
            codes.append(finding.code)
    return mends
