"""What an SBOM says of the wheel itself follows a rewrite; every other byte stays (R25)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_tools.errors import WheelError
from build_tools.wheels import WheelEdit, check_wheel, diff_wheels, repack
from build_tools.wheels.json_text import MAX_DEPTH, read_strings, replace_strings
from build_tools.wheels.name import WheelName
from build_tools.wheels.sbom import Purl, follow_sbom
from tests.build_tools.command_line import te_wheel
from tests.build_tools.wheel_factory import make_wheel
from tests.build_tools.wheel_reader import content, read_right

OLD = WheelName.parse("demo-1.0-py3-none-any.whl")
NEW = WheelName.parse("demo_cu12-1.0+c1-py3-none-any.whl")

# The form of auditwheel: one component for the wheel, one for each library that was copied into it.
OWN = "pkg:pypi/demo@1.0?file_name=demo-1.0-py3-none-any.whl"
OTHER = "pkg:rpm/almalinux/libgomp@8.5.0-28.el8?x=demo@1.0"
CYCLONE = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.4",
    "version": 1,
    "serialNumber": "urn:uuid:3e671687-395b-41f5-a30f-a58921a69b79",
    "metadata": {"component": {"type": "library", "bom-ref": OWN, "name": "demo", "version": "1.0", "purl": OWN}},
    "components": [
        {"type": "library", "name": "libgomp", "version": "1.0", "purl": OTHER, "bom-ref": "r1"},
        {"type": "library", "name": "demo", "version": "2.0", "purl": "pkg:pypi/demo@2.0"},
        {"type": "library", "name": "demo-other", "version": "1.0", "purl": "pkg:pypi/demo-other@1.0"},
        {"type": "library", "name": "demo", "version": "1.0", "purl": "pkg:npm/demo@1.0"},
    ],
    "dependencies": [{"ref": OWN, "dependsOn": ["r1", OWN]}, {"ref": "r1"}],
}
NEW_OWN = "pkg:pypi/demo-cu12@1.0%2Bc1?file_name=demo_cu12-1.0%2Bc1-py3-none-any.whl"


def follow(document: Any, *, indent: int | None = None, old: WheelName = OLD, new: WheelName = NEW) -> Any:
    data = json.dumps(document, indent=indent).encode()
    return json.loads(follow_sbom(data, [old], new, "Demo-cu12"))


def test_r25_the_wheel_itself_follows_and_other_components_stay() -> None:
    followed = follow(CYCLONE)
    own = {"type": "library", "bom-ref": NEW_OWN, "name": "Demo-cu12", "version": "1.0+c1", "purl": NEW_OWN}
    assert followed == {
        **CYCLONE,
        "metadata": {"component": own},
        "dependencies": [{"ref": NEW_OWN, "dependsOn": ["r1", NEW_OWN]}, {"ref": "r1"}],
    }


@pytest.mark.parametrize("indent", [None, 0, 1, 4])
def test_every_other_byte_stays_whatever_the_layout(indent: int | None) -> None:
    def spelled(document: Any) -> str:
        return json.dumps(document, indent=indent).replace("libgomp", "lib\\u0067omp\\/") + "\r\n"

    followed = follow_sbom(spelled(CYCLONE).encode(), [OLD], NEW, "Demo-cu12")
    assert followed.decode() == spelled(follow(CYCLONE))


def test_a_subject_without_a_purl_is_told_by_its_name() -> None:
    document = {"metadata": {"component": {"name": "DEMO", "version": "1.0", "author": "demo"}, "tools": []}}
    assert follow(document)["metadata"]["component"] == {"name": "Demo-cu12", "version": "1.0+c1", "author": "demo"}
    other = {"metadata": {"component": {"name": "app", "version": "1.0"}}, "components": [{"name": "demo"}]}
    assert follow(other) == other


def test_spdx_2_packages_follow() -> None:
    reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": OWN}
    package = {"SPDXID": "SPDXRef-1", "name": "demo", "versionInfo": "1.0", "packageFileName": OLD.filename}
    other = {"SPDXID": "SPDXRef-2", "name": "demo", "versionInfo": "1.0", "packageFileName": "demo-1.0.tar.gz"}
    document = {
        "spdxVersion": "SPDX-2.3",
        "name": "demo",
        "packages": [{**package, "externalRefs": [reference]}, other],
    }
    followed = follow(document)
    assert followed["packages"][0] == {
        "SPDXID": "SPDXRef-1",
        "name": "Demo-cu12",
        "versionInfo": "1.0+c1",
        "packageFileName": NEW.filename,
        "externalRefs": [{**reference, "referenceLocator": NEW_OWN}],
    }
    assert (followed["packages"][1], followed["name"]) == (other, "demo")


def test_spdx_3_elements_follow() -> None:
    element = {"type": "software_Package", "name": "demo", "software_packageVersion": "1.0", "software_packageUrl": OWN}
    followed = follow({"@context": "x", "@graph": [{"type": "Tool", "name": "demo"}, element]})
    assert followed["@graph"] == [
        {"type": "Tool", "name": "demo"},
        {**element, "name": "Demo-cu12", "software_packageVersion": "1.0+c1", "software_packageUrl": NEW_OWN},
    ]


def test_a_rewrite_that_changes_nothing_keeps_every_byte() -> None:
    odd = OWN.replace("demo@1.0", "De.Mo@1.0.0").replace("?", "?arch=x&").upper().replace("PKG:PYPI", "pkg:PyPI")
    data = json.dumps({"metadata": {"component": {"name": "DEMO", "version": "v1.0", "purl": odd}}}).encode()
    assert follow_sbom(data, [OLD], OLD, "Demo") == data


def test_a_new_build_tag_changes_the_file_name_alone() -> None:
    new = WheelName.parse("demo-1.0-7-py3-none-any.whl")
    followed = follow(CYCLONE, new=new)["metadata"]["component"]
    assert followed["purl"] == "pkg:pypi/demo@1.0?file_name=demo-1.0-7-py3-none-any.whl"
    assert (followed["name"], followed["version"]) == ("demo", "1.0")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff{}", b"[1,]", b"{'a': 1}", b'{"a": 1, "a": 2}', b"[" * 100_000 + b"]" * 100_000, b'"\t"'],
    ids=["empty", "cut", "not UTF-8", "comma", "quotes", "a key twice", "deep", "a control character"],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(WheelError, match="not JSON in UTF-8"):
        follow_sbom(data, [OLD], NEW, "x")


@pytest.mark.parametrize(
    "text", ["pkg:pypi/demo", "pkg:pypi/@1.0", "pkg:pypi/demo@", "pkg:pypi/a/b@1", "pkg:npm/demo@1.0", "demo@1.0"]
)
def test_what_is_no_purl_of_a_release_is_none(text: str) -> None:
    assert Purl.parse(text) is None


@pytest.mark.parametrize(
    "text", ["pkg:pypi/demo@1.0.0", "pkg:PYPI/DEMO@v1.0", "pkg:pypi/demo@1.0#x", "pkg:pypi/d%65mo@1.0"]
)
def test_a_purl_means_the_wheel_in_any_spelling(text: str) -> None:
    purl = Purl.parse(text)
    assert purl is not None
    assert purl.is_of(OLD)
    assert str(purl) == text


# In a wheel


def sboms(wheel: Path) -> dict[str, Any]:
    members = read_right(wheel)
    return {
        name.rpartition("/")[2]: json.loads(read.data)
        for name, read in members.items()
        if "/sboms/" in name and name.endswith(".json")
    }


def with_sbom(folder: Path, **description: Any) -> Path:
    files = {"sboms/auditwheel.cdx.json": json.dumps(CYCLONE, indent=2), "sboms/notes.txt": OWN}
    return make_wheel(folder, dist_info_files=files, **description)


def test_r25_a_rewritten_wheel_has_an_sbom_of_itself_and_says_that_it_changed(tmp_path: Path) -> None:
    wheel = with_sbom(tmp_path)
    made = repack(wheel, tmp_path / "out", WheelEdit(name="Demo-cu12", local="c1"))
    assert sboms(made.path) == {"auditwheel.cdx.json": follow(CYCLONE)}
    assert content(read_right(made.path), "/sboms/notes.txt") == OWN.encode()
    (change,) = [change for change in made.changes if change.where == "files"]
    assert change.field == "demo_cu12-1.0+c1.dist-info/sboms/auditwheel.cdx.json"
    assert diff_wheels(wheel, made.path) == made.changes
    assert check_wheel(made.path, hashes=True) == []
    back = repack(made.path, tmp_path / "back", WheelEdit(name="demo", local=""))
    assert back.path.read_bytes() == repack(wheel, tmp_path / "plain", WheelEdit()).path.read_bytes()


def test_an_sbom_follows_a_sync_from_whichever_side_it_spoke_of(tmp_path: Path) -> None:
    wheel = with_sbom(tmp_path, filename="demo-1.0+c1-py3-none-any.whl")
    made = repack(wheel, tmp_path / "out", WheelEdit(sync="filename"))
    component = sboms(made.path)["auditwheel.cdx.json"]["metadata"]["component"]
    assert (component["version"], component["purl"].partition("?")[0]) == ("1.0+c1", "pkg:pypi/demo@1.0%2Bc1")


def test_an_sbom_that_cannot_be_read_stays_and_is_named(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, dist_info_files={"sboms/bad.json": "{"})
    outcome = te_wheel("repack", wheel, "-o", tmp_path / "out", "--local", "x")
    assert outcome.code == 0
    assert "bad.json stays as it is: not JSON" in outcome.err
    assert read_right(Path(outcome.out.strip()))["demo-1.0+x.dist-info/sboms/bad.json"].data == b"{"


def test_sbom_add_puts_a_document_into_the_wheel(tmp_path: Path) -> None:
    document = tmp_path / "build.spdx.json"
    document.write_text('{"spdxVersion": "SPDX-2.3"}')
    outcome = te_wheel("repack", with_sbom(tmp_path), "-o", tmp_path / "out", "--sbom-add", document, "--local", "c1")
    assert outcome.code == 0, outcome.err
    assert sboms(Path(outcome.out.strip())).keys() == {"auditwheel.cdx.json", "build.spdx.json"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.xml", "<bom/>"),
        ("a.json", "{"),
        ("a.json", "[]"),
        ("a.json", "{}"),
        ("a.json", '{"x": "\ud800"}'),
        ("b.json", None),
    ],
)
def test_what_is_no_sbom_is_not_added(name: str, text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text, errors="surrogatepass")
    outcome = te_wheel("repack", make_wheel(tmp_path), "-o", tmp_path / "out", "--sbom-add", tmp_path / name)
    assert (outcome.code, outcome.out) == (2, "")
    assert name in outcome.errors[0]


# The places of strings in a JSON text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


def strings_of(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        return [(path, value)]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [pair for key, inner in items for pair in strings_of(inner, (*path, key))]


@given(JSON, st.sampled_from([None, 0, 3]), st.booleans())
def test_every_string_value_is_found_with_its_path_and_place(value: Any, indent: int | None, ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    found = read_strings(text)
    assert [(string.path, string.value) for string in found] == strings_of(value)
    assert all(json.loads(text[string.start : string.end]) == string.value for string in found)


@given(JSON, st.text(max_size=4), st.integers(0, 5))
def test_replacing_strings_changes_these_and_nothing_else(value: Any, new: str, step: int) -> None:
    text = json.dumps(value, indent=1)
    found = read_strings(text)
    chosen = found[::step] if step else []
    replaced = replace_strings(text, [(string, new) for string in chosen])
    places = {string.path for string in chosen}
    assert strings_of(json.loads(replaced)) == [
        (path, new if path in places else old) for path, old in strings_of(value)
    ]
    assert replace_strings(text, []) == text


def test_nesting_is_bounded() -> None:
    assert read_strings("[" * MAX_DEPTH + '"x"' + "]" * MAX_DEPTH)[0].value == "x"
    with pytest.raises(ValueError, match="deeper"):
        read_strings("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
