"""The table of all rules that are checked: the one list of codes.

``te-wheel check`` prints them, ``repack`` refuses a wheel for those that *block*, and the README
shows the same list (a test compares them).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

_SPECIFICATIONS = "https://packaging.python.org/specifications"
SOURCES = {
    "VS": ("Version specifiers", f"{_SPECIFICATIONS}/version-specifiers/"),
    "BDF": ("Binary distribution format", f"{_SPECIFICATIONS}/binary-distribution-format/"),
    "RIP": ("Recording installed projects", f"{_SPECIFICATIONS}/recording-installed-packages/"),
    "CM": ("Core metadata", f"{_SPECIFICATIONS}/core-metadata/"),
    "EP": ("Entry points", f"{_SPECIFICATIONS}/entry-points/"),
    "SDF": ("Source distribution format", f"{_SPECIFICATIONS}/source-distribution-format/"),
    "PEP 825": ("Wheel variants (draft)", "https://peps.python.org/pep-0825/"),
    "ZIP": ("What indexes and installers ask of an archive", "https://docs.pypi.org/archives/"),
    "PyPI": ("What PyPI refuses (`--pypi` alone)", "https://docs.pypi.org/"),
    "LIM": ("What this tool reads at most (`--limit`)", ""),
}
"""What a rule comes from: abbreviation -> title and address."""

_SYNC = "`te-wheel repack --sync filename` or `--sync metadata` makes the sides agree"
_RECORD = "`te-wheel repack --repair` writes RECORD anew"
_ARCHIVE = "`te-wheel repack --repair` writes the archive anew"
_CLEAN = "`te-wheel repack` writes it in normal form"
_HEADER = "`te-wheel repack --set 'Field: value'` replaces a header, `--remove Field` removes it"
_HAND = "`te-wheel unpack`, mend it by hand, `te-wheel pack`"
_FILES = "`te-wheel repack --remove-file` and `--add-file` take members out and put them in"
_BUILD = "build it anew: this cannot be mended without guessing"
_LIMIT = "`te-wheel check --limit NAME=NUMBER` raises a limit, where you trust the file"


class Severity(StrEnum):
    """``ERROR`` makes ``te-wheel check`` fail; ``WARNING`` does so with ``--strict`` only."""

    ERROR = "error"
    WARNING = "warning"


class Rule(NamedTuple):
    """A rule: its stable code, where it stands, how to mend a breach, and what happens to a wheel that breaks it."""

    code: str
    source: str
    summary: str
    hint: str
    severity: Severity = Severity.ERROR
    blocks: bool = True
    """Whether ``repack`` refuses the wheel: it could not be rewritten without guessing."""

    @property
    def specification(self) -> str:
        """Title and address of where the rule comes from."""
        title, address = SOURCES[self.source]
        return f"{title}, {address}" if address else title


def _table(rules: Iterable[Rule]) -> dict[str, Rule]:
    return {rule.code: rule for rule in rules}


def _error(code: str, source: str, summary: str, hint: str) -> Rule:
    """A rule for `check` alone: a rewrite carries what breaks it."""
    return Rule(code, source, summary, hint, blocks=False)


def _warning(code: str, source: str, summary: str, hint: str) -> Rule:
    return Rule(code, source, summary, hint, Severity.WARNING, blocks=False)


RULES: dict[str, Rule] = _table(
    [
        # The archive
        Rule("zip-not-a-zip", "ZIP", "the file is a zip archive", _BUILD),
        Rule("zip-truncated", "ZIP", "the archive is whole", _BUILD),
        Rule("zip-trailing-data", "ZIP", "nothing follows the end record", _ARCHIVE),
        Rule("zip-prefix", "ZIP", "nothing stands before the first member", _ARCHIVE),
        _error("zip-gap", "ZIP", "no unclaimed bytes stand between members", _CLEAN),
        Rule("zip-overlap", "ZIP", "no two members share bytes", _BUILD),
        Rule("zip-duplicate", "ZIP", "no member stands twice", _BUILD),
        Rule("zip-header-mismatch", "ZIP", "local and central header agree", _BUILD),
        Rule("zip-encrypted", "BDF", "no member is encrypted", _BUILD),
        Rule("zip-method", "BDF", "members are stored or deflated", _BUILD),
        _error("zip-flags", "ZIP", "the flags of local and central header agree", _CLEAN),
        _error("zip-extra", "ZIP", "extra fields are whole, ZIP64 stands only where a number needs it", _CLEAN),
        _error("zip-version", "ZIP", "no member needs a zip version above 4.5", _CLEAN),
        Rule("zip-name-encoding", "ZIP", "a name that is not ASCII is UTF-8 and flagged so", _BUILD),
        Rule("zip-unsafe-name", "ZIP", "every name stays inside the archive, on every system", _BUILD),
        _error(
            "zip-odd-name", "ZIP", "names have no invisible characters and no part over 255 bytes", _HAND
        ),
        Rule("zip-name-conflict", "ZIP", "no file is also a folder or a symlink with members below it", _BUILD),
        Rule("zip-symlink-escape", "ZIP", "a symlink stays inside the archive", _BUILD),
        _error("zip-file-type", "ZIP", "a member is a file, a folder or a symlink, no device, pipe or socket", _HAND),
        Rule("zip-data", "ZIP", "the data of a member inflates to its size and CRC", _BUILD),
        _error("zip-case-collision", "ZIP", "no two names differ by case alone", _HAND),
        _warning("zip-reserved-name", "ZIP", "a wheel for Windows has no names that Windows reserves", _HAND),
        _warning("zip-not-clean", "ZIP", "no data descriptors, comments or extra fields", _CLEAN),
        _warning("zip-symlink", "ZIP", "installers unpack symlinks as small text files", _HAND),
        Rule("limit-exceeded", "LIM", "the file stays within what is read at most", _LIMIT),
        # Names
        Rule(
            "filename", "BDF", "the file name is {name}-{version}(-{build})?-{python}-{abi}-{platform}.whl",
            "`te-wheel repack --sync metadata` names the file as METADATA and WHEEL say",
        ),
        _warning("filename-spelling", "BDF", "the file name is in normal form", _CLEAN),
        Rule("dist-info-count", "BDF", "exactly one top-level .dist-info", _HAND),
        Rule("dist-info-file", "BDF", ".dist-info holds METADATA, WHEEL and RECORD", _HAND),
        Rule("dist-info-name", "BDF", ".dist-info bears the name and version of the file name", _SYNC),
        _warning("dist-info-spelling", "BDF", ".dist-info is in normal form", _CLEAN),
        _warning("dist-info-order", "BDF", ".dist-info stands last in the archive, RECORD last of all", _CLEAN),
        _warning(
            "dist-info-installer-file", "RIP", ".dist-info has no file that only an installer writes", _FILES
        ),
        Rule("data-name", "BDF", "at most one .data, with the name and version of the file name", _SYNC),
        _error("data-scheme", "BDF", ".data holds purelib, platlib, headers, scripts and data alone", _HAND),
        _error("data-scripts", "BDF", ".data/scripts holds files and no folders", _HAND),
        _error("data-conflict", "BDF", "no two members are installed to one path", _HAND),
        _warning("data-platlib", "BDF", "a wheel for any platform has no .data/platlib", _HAND),
        _warning("data-spelling", "BDF", ".data is in normal form", _CLEAN),
        _error("entry-points", "EP", "entry_points.txt is UTF-8 INI with valid names and object references", _FILES),
        # METADATA and WHEEL
        Rule("metadata-invalid", "CM", "METADATA is UTF-8 header lines, a blank line, then the description", _HAND),
        Rule("metadata-version", "CM", "Metadata-Version stands once and its major version is known", _HAND),
        _warning("metadata-version-new", "CM", "Metadata-Version is one that this tool knows", _BUILD),
        Rule("metadata-name", "CM", "Name stands once, is valid, and agrees with the file name", _SYNC),
        Rule("metadata-version-field", "VS", "Version stands once, is valid, and agrees with the file name", _SYNC),
        _warning(
            "metadata-version-spelling", "VS", "Version is in normal form",
            "`te-wheel repack --version V` writes it so",
        ),
        _error("metadata-value", "CM", "the values of fields are what the specification allows", _HEADER),
        _error("metadata-field-repeated", "CM", "a field that stands once at most does so", _HEADER),
        _warning(
            "metadata-field-version", "CM", "a field stands under a Metadata-Version that knows it",
            "build it with a newer backend: a rewrite never changes Metadata-Version",
        ),
        _warning("metadata-control", "CM", "no value holds a character at which some readers end a line", _HEADER),
        _error("license-file", "CM", "a License-File stands in .dist-info/licenses", _FILES),
        Rule("wheel-invalid", "BDF", "WHEEL is header lines with a known Wheel-Version", _HAND),
        Rule("wheel-tags", "BDF", "the Tag lines of WHEEL are the tags of the file name", _SYNC),
        _warning("wheel-tags-spelling", "BDF", "one Tag line for each tag, none blank, none twice", _CLEAN),
        Rule("wheel-build", "BDF", "Build in WHEEL is the build tag of the file name", _SYNC),
        _error("wheel-root", "BDF", "Root-Is-Purelib stands once and is true or false", _HAND),
        _warning("wheel-generator", "BDF", "Generator names the program that made the wheel", _HAND),
        _warning(
            "wheel-pure", "BDF", "a wheel for any platform holds no extension modules",
            "`te-wheel repack --platform-tag`, `--abi-tag` and `--python-tag` say what it runs on",
        ),
        _warning("sbom", "BDF", "an SBOM is JSON and gives the wheel itself its own version", _FILES),
        # Variants
        _error(
            "variant-label", "PEP 825", "a label in the file name and variant.json come together and agree",
            "name the file as variant.json says, or `te-wheel repack --remove-file '*.dist-info/variant.json'`",
        ),
        _error("variant-json", "PEP 825", "variant.json is what the draft defines", _FILES),
        # RECORD
        Rule("record-invalid", "RIP", "RECORD is UTF-8 CSV with three fields in every row", _RECORD),
        _error("record-blank-line", "RIP", "RECORD has no blank line", _RECORD),
        Rule("record-path", "RIP", "every path of RECORD is relative and stays inside", _RECORD),
        Rule("record-duplicate", "RIP", "no path stands twice in RECORD", _RECORD),
        Rule("record-missing-row", "RIP", "every file has a row in RECORD", _RECORD),
        Rule("record-missing-member", "RIP", "every row of RECORD has a file", _RECORD),
        Rule("record-directory", "RIP", "RECORD lists no directories", _RECORD),
        Rule("record-no-digest", "RIP", "every file but RECORD has a digest", _RECORD),
        Rule("record-weak-digest", "RIP", "digests are sha256 or stronger", _RECORD),
        Rule(
            "record-digest-form", "RIP", "digests are url-safe base64 without padding, of the right length", _RECORD
        ),
        Rule("record-size", "RIP", "the size in RECORD is the size of the file", _RECORD),
        _warning("record-no-size", "RIP", "every file but RECORD has a size", _RECORD),
        Rule("record-own-row", "RIP", "the row of RECORD itself has neither digest nor size", _RECORD),
        Rule(
            "record-digest", "RIP", "the digest in RECORD is that of the file",
            "find out which of the two is right; `te-wheel repack --repair` takes the file",
        ),
        _warning("record-signature", "RIP", "RECORD.jws and RECORD.p7s are deprecated (PEP 815)", _CLEAN),
        # Source distributions
        _error("sdist-filename", "SDF", "the file name is {name}-{version}.tar.gz, agreeing with PKG-INFO", _BUILD),
        _warning("sdist-filename-spelling", "SDF", "the file name is in normal form", "rename the file and its folder"),
        _error("sdist-format", "SDF", "the file is a whole gzipped tar, and no zip", _BUILD),
        _warning("sdist-tar-format", "SDF", "the tar is in pax format, without sparse members", _BUILD),
        _error("sdist-folder", "SDF", "one top folder bears the name of the file and holds everything", _BUILD),
        _error("sdist-pkg-info", "SDF", "the top folder holds PKG-INFO", _BUILD),
        _warning("sdist-metadata-version", "SDF", "PKG-INFO has Metadata-Version 2.2 or newer", _BUILD),
        _warning("sdist-duplicate", "SDF", "no member stands twice", _BUILD),
        _warning("sdist-pyproject", "SDF", "the top folder holds pyproject.toml", "add one: pip needs it to build"),
        _error("sdist-member", "SDF", "members and links stay inside, none is a device or a pipe", _BUILD),
        # What an index refuses
        _error("pypi-local-version", "PyPI", "the version has no local label", "`repack --local ''` removes it"),
        _error(
            "pypi-size", "PyPI", "a file has 100 MiB at most, unless the project was given more",
            "ask for a higher limit, or leave files out",
        ),
        _error("pypi-ratio", "PyPI", "what inflates to over 64 MiB is at most 50 times smaller packed", _FILES),
        _error("pypi-archive", "PyPI", "the archive reads the same from its start and from its end", _CLEAN),
        _error(
            "pypi-filename", "PyPI", "the file name is in normal form without a variant label, .dist-info has its name",
            _CLEAN,
        ),
        _error(
            "pypi-platform", "PyPI", "every platform tag is one that PyPI knows",
            "use auditwheel, delocate or delvewheel",
        ),
        _error("pypi-metadata", "PyPI", "METADATA is valid as a whole, up to Metadata-Version 2.5", _HEADER),
        _warning("pypi-name", "PyPI", "a new project does not bear the name of a standard library module", _HEADER),
    ]
)  # fmt: skip
