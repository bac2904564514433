"""Wheels whose archive is sound and whose files or values are not: one entry, one defect, as in ``broken_wheels``."""

from __future__ import annotations

import json
import stat

from tests.build_tools.broken_wheels import INFO, Broken
from tests.build_tools.broken_wheels import broken_wheel as _wheel
from tests.build_tools.wheel_factory import PACKAGE, STORED, Member, metadata_text, wheel_text

VARIANT: dict[str, object] = {
    "$schema": "https://example.org/v0.0.3.json",
    "default-priorities": {"namespace": ["nvidia"]},
    "variants": {"cu128": {"nvidia": {"cuda_version_lower_bound": ["12.8"]}}},
}
"""A right variant.json of the label ``cu128``."""
MODULE = "demo/x.cpython-311-x86_64-linux-gnu.so"


def _member(id: str, code: str, name: str, member: Member | str = "x = 1\n") -> Broken:
    return _wheel(id, code, name, files={**PACKAGE, name: member})


def _value(id: str, code: str, header: str, *named: str, version: str = "2.1", pypi: bool = False) -> Broken:
    """METADATA with one more header."""
    text = metadata_text(headers=[header]).replace("Metadata-Version: 2.1", f"Metadata-Version: {version}")
    return _wheel(id, code, f"{INFO}/METADATA", *named, metadata=text, pypi=pypi)


def _entry_points(id: str, text: str | bytes, *named: str) -> Broken:
    return _wheel(id, "entry-points", f"{INFO}/entry_points.txt", *named, dist_info_files={"entry_points.txt": text})


def _variant(id: str, code: str, content: object, *named: str, label: str = "cu128") -> Broken:
    text = content if isinstance(content, str) else json.dumps(content)
    return _wheel(id, code, *named, variant=label, dist_info_files={"variant.json": text})


def _changed(**changes: object) -> dict[str, object]:
    return {**VARIANT, **changes}


CONTENTS = [
    _member("a device", "zip-file-type", "demo/tty", Member("x", kind=stat.S_IFCHR)),
    _member("a pipe", "zip-file-type", "demo/pipe", Member("x", kind=stat.S_IFIFO)),
    *(
        _member(f"a member {name!r}", "zip-reserved-name", name)
        for name in ("demo/aux.py", "demo/NUL", "demo/com1.tar.gz", "demo/con/x.py", "demo/a:b", "demo/what?.txt")
    ),
    _wheel(
        "an entry_points.txt of two megabytes",
        "limit-exceeded",
        f"{INFO}/entry_points.txt",
        dist_info_files={"entry_points.txt": "#" * (2 << 20)},
    ),
    _wheel("INSTALLER", "dist-info-installer-file", f"{INFO}/INSTALLER", dist_info_files={"INSTALLER": "pip\n"}),
    _wheel("direct_url", "dist-info-installer-file", f"{INFO}/direct", dist_info_files={"direct_url.json": "{}"}),
    _member("a folder among the scripts", "data-scripts", "demo-1.0.data/scripts/sub/x"),
    _member("a file of purelib and the root", "data-conflict", "demo-1.0.data/purelib/demo/__init__.py"),
    _wheel(
        "a file of purelib and platlib",
        "data-conflict",
        tags="py3-none-linux_x86_64",
        files={**PACKAGE, "demo-1.0.data/purelib/a.py": "", "demo-1.0.data/platlib/a.py": ""},
    ),
    _member("platlib for any platform", "data-platlib", "demo-1.0.data/platlib/demo/b.py"),
    _member("an extension module for any platform", "wheel-pure", MODULE),
    _member("a pyd for any platform", "wheel-pure", "demo/x.pyd"),
    _wheel("no Generator", "wheel-generator", wheel=wheel_text().replace("Generator: wheel_factory\n", "")),
    # entry_points.txt
    _entry_points("entry points that are no INI", "demo\n"),
    _entry_points("an entry point without a group", "a = demo:main\n"),
    _entry_points("a group twice", "[a]\nx = demo:x\n[a]\ny = demo:y\n", "already exists"),
    _entry_points("a name twice", "[a]\nx = demo:x\nx = demo:y\n", "already exists"),
    _entry_points("entry points not UTF-8", b"[a]\n\xe9 = demo:x\n", "UTF-8"),
    _entry_points("a script without an object", "[console_scripts]\nx = demo\n", "module:main"),
    _entry_points("a script that is a path", "[console_scripts]\n../../x = demo:main\n", "../../x"),
    _entry_points("a script of a module that is none", "[gui_scripts]\nx = de-mo:main\n", "de-mo"),
    _entry_points("a script of a keyword", "[console_scripts]\nx = demo.import:main\n", "import"),
    _entry_points("an entry point of two objects", "[a]\nx = demo:a:b\n", "demo:a:b"),
    # METADATA
    _value("a requirement of a huge version", "metadata-value", f"Requires-Dist: foo=={'9' * 5000}"),
    _value("a requirement that is no ASCII", "metadata-value", "Requires-Dist: f\u00f6\u00f6"),
    _value("a requirement of ten thousand parentheses", "metadata-value", f"Requires-Dist: foo; {'(' * 10000}"),
    _value("an extra that is no name", "metadata-value", "Provides-Extra: a b", "a b"),
    _value("two extras of one normal form", "metadata-value", "Provides-Extra: a-b\nProvides-Extra: a_b", "a-b", "a_b"),
    _value("a licence that is none", "metadata-value", "License-Expression: Mine", "Mine", version="2.4"),
    _value("a licence file outside", "metadata-value", "License-File: ../LICENSE", "../LICENSE", version="2.4"),
    _value("a dynamic Name", "metadata-value", "Dynamic: Name", "name", version="2.2"),
    _value("a dynamic nothing", "metadata-value", "Dynamic: Nothing", "nothing", version="2.2"),
    _value("an import name that is none", "metadata-value", "Import-Name: de-mo", "de-mo", version="2.5"),
    _value("a project URL without a label", "metadata-value", "Project-URL: https://example.org", "Label, URL"),
    _value("a label of 33 characters", "metadata-value", f"Project-URL: {'x' * 33}, https://example.org", "32"),
    _value("a label twice", "metadata-value", "Project-URL: a, https://b.c\nProject-URL: a, https://b.d", "twice"),
    _value("a description twice", "metadata-field-repeated", "Description: demo"),
    _wheel("a Version of 30 digits", "metadata-value", "9" * 20, version="9" * 30),
    _value("a line separator in a value", "metadata-control", "Author: a\u2028Requires-Dist: evil", "u2028"),
    _value("a form feed in a value", "metadata-control", "License: a\x0cb", "x0c"),
    _wheel("an SBOM that is no JSON", "sbom", "not JSON", dist_info_files={"sboms/x.cdx.json": "{"}),
    _wheel(
        "an SBOM of another version",
        "sbom",
        "Demo@2.0",
        dist_info_files={"sboms/x.cdx.json": '{"metadata": {"component": {"purl": "pkg:pypi/Demo@2.0"}}}'},
    ),
    _value("a field before its version", "metadata-field-version", "Import-Name: demo", "2.5"),
    _value("a dynamic field before its version", "metadata-field-version", "Dynamic: Summary", "2.2"),
    _value("a licence file that is not there", "license-file", "License-File: LICENSE", "LICENSE", version="2.4"),
    # Variants
    _wheel("a label without variant.json", "variant-label", INFO, "cu128", variant="cu128"),
    _variant("variant.json without a label", "variant-label", VARIANT, f"{INFO}/variant.json", label=""),
    _variant("variant.json of another label", "variant-label", VARIANT, "cu128", "cu130", label="cu130"),
    _variant("variant.json that is no JSON", "variant-json", "{", "not JSON"),
    _variant("variant.json of ten thousand brackets", "variant-json", "[" * 100_000, "not JSON"),
    _variant("variant.json that is a list", "variant-json", [], "object"),
    _variant("no schema", "variant-json", {k: v for k, v in VARIANT.items() if k != "$schema"}, "$schema"),
    _variant("no variants", "variant-json", _changed(variants={}), "variants"),
    _variant("two variants", "variant-json", _changed(variants={"cu128": {}, "cu130": {}}), "2 labels"),
    _variant("no priorities", "variant-json", {k: v for k, v in VARIANT.items() if "prior" not in k}, "priorities"),
    _variant("a namespace without priority", "variant-json", _changed(**{"default-priorities": {"namespace": []}})),
    _variant("a namespace in capitals", "variant-json", _changed(variants={"cu128": {"NV": {"a": ["b"]}}}), "NV"),
    _variant("a feature without values", "variant-json", _changed(variants={"cu128": {"nvidia": {"a": []}}}), "a"),
    _variant("a value twice", "variant-json", _changed(variants={"cu128": {"nvidia": {"a": ["b", "b"]}}}), "twice"),
    _variant(
        "a namespace twice",
        "variant-json",
        _changed(**{"default-priorities": {"namespace": ["nvidia", "nvidia"]}}),
        "twice",
    ),
    _variant("a value that is a number", "variant-json", _changed(variants={"cu128": {"nvidia": {"a": [1]}}}), "a"),
    _variant(
        "a null variant with properties",
        "variant-json",
        _changed(variants={"null": {"nvidia": {"a": ["b"]}}}),
        "null",
        label="null",
    ),
]

RIGHT_SBOM = {
    "metadata": {"component": {"purl": "pkg:pypi/demo@1.0?file_name=x.whl"}},
    "components": [{"purl": "pkg:pypi/other@2.0"}, {"purl": "pkg:rpm/demo@3"}],
}
"""A right SBOM of the plain wheel."""

REFUSED_BY_PYPI = [
    _wheel("a local version", "pypi-local-version", "cu1", version="1.0+cu1", pypi=True),
    _wheel(
        "a file of 101 MiB",
        "pypi-size",
        files={**PACKAGE, "demo/x": Member(bytes(101 << 20), method=STORED)},
        pypi=True,
    ),
    _wheel("65 MiB of zeros", "pypi-ratio", files={**PACKAGE, "demo/x": bytes(65 << 20)}, pypi=True),
    _wheel("a data descriptor", "pypi-archive", "demo/x", files={"demo/x": Member("x", streamed=True)}, pypi=True),
    _wheel("a comment of a member", "pypi-archive", "demo/x", files={"demo/x": Member("x", comment=b"c")}, pypi=True),
    Broken(
        "a variant label",
        "pypi-filename",
        _variant("", "", VARIANT).make,
        ("cu128",),
        pypi=True,
    ),
    _wheel("a dist-info of another spelling", "pypi-filename", "Demo", dist_info="Demo-1.0.dist-info", pypi=True),
    _wheel("a dot in the name", "pypi-filename", "a.b", name="a.b", filename="a.b-1.0-py3-none-any.whl", pypi=True),
    *(
        _wheel(f"for {platform}", "pypi-platform", platform, tags=f"py3-none-{platform}", pypi=True)
        for platform in ("linux_x86_64", "manylinux_2_28_sparc", "macosx_11_3_arm64", "win_alpha")
    ),
    _value("a direct reference", "pypi-metadata", "Requires-Dist: a @ https://example.org/a.whl", "direct", pypi=True),
    _value("a private classifier", "pypi-metadata", "Classifier: Private :: Do Not Upload", "Private", pypi=True),
    _value("an unknown field", "pypi-metadata", "X-Custom: 1", "X-Custom", pypi=True),
    _value("a version of the future", "pypi-metadata", "Platform: any", "2.6", version="2.6", pypi=True),
    _value("a Keyword too many", "pypi-metadata", f"Summary: {'x' * 600}", version="2.1", pypi=True),
    _wheel("a name of the standard library", "pypi-name", "json", name="json", pypi=True),
]

RIGHT_VARIANT = {"variant": "cu128", "dist_info_files": {"variant.json": json.dumps(VARIANT)}}
"""What makes a right variant of the plain wheel."""
