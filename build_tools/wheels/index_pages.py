"""The pages of an index: HTML for people, pip and uv; JSON for programs.

Source: Simple repository API, <https://packaging.python.org/specifications/simple-repository-api/>
(PEP 503, 592, 629, 658, 691, 700, 714).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple
from urllib.parse import quote

from build_tools.report import human_size
from build_tools.wheels.distribution import Distribution

MARK = '<meta name="generator" content="te-wheel index">'
"""What tells a page of ours from any other."""
_API = "1.1"
_STYLE = (
    "body{font-family:sans-serif;margin:2rem}table{border-collapse:collapse}"
    "th,td{padding:.2rem .8rem;text-align:left;white-space:nowrap}"
    "td.size{text-align:right}tr:nth-child(even){background:#f4f4f4}.yanked a{text-decoration:line-through}"
)


class Link(NamedTuple):
    """A file on a page.

    Attributes:
        file: the distribution.
        url: where it is, absolute or seen from the page; percent-encoded.
        date: seconds since 1970 of the file's last change.
        yanked: why nobody should take it, or ``None`` where one may.
    """

    file: Distribution
    url: str
    date: float
    yanked: str | None = None


def encode_path(path: str) -> str:
    """A relative path as a part of a URL: ``+`` is ``%2B``, since some servers read it as a blank.

    >>> encode_path("cu12/demo-1.0+cu128-py3-none-any.whl")
    'cu12/demo-1.0%2Bcu128-py3-none-any.whl'
    """
    return quote(path.encode(errors="surrogateescape"))


def root_html(projects: Iterable[str]) -> bytes:
    """The page that lists the projects."""
    rows = [f'<li><a href="{name}/">{name}</a></li>' for name in projects]
    return _page("Simple index", ["<ul>", *rows, "</ul>"])


def root_json(projects: Iterable[str]) -> bytes:
    """The list of projects for programs."""
    return _json({"meta": {"api-version": _API}, "projects": [{"name": name} for name in projects]})


def project_html(project: str, links: Sequence[Link]) -> bytes:
    """The page of a project: a table in which each file is one link."""
    heads = ("file", "version", "size", "tags", "Python", "date", "")
    rows = ["<table>", "<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    rows += [_row(link) for link in links]
    return _page(project, [*rows, "</table>"])


def project_json(project: str, links: Sequence[Link]) -> bytes:
    """The page of a project for programs."""
    versions = list(dict.fromkeys(link.file.version for link in links))
    files = [_file(link) for link in links]
    return _json({"meta": {"api-version": _API}, "name": project, "versions": versions, "files": files})


def _file(link: Link) -> dict[str, object]:
    file = link.file
    facts: dict[str, object] = {
        "filename": file.filename,
        "url": link.url,
        "hashes": {"sha256": file.sha256},
        "size": file.size,
    }
    if file.requires_python is not None:
        facts["requires-python"] = file.requires_python
    if file.metadata_sha256 is not None:
        facts["core-metadata"] = facts["dist-info-metadata"] = {"sha256": file.metadata_sha256}
    if link.yanked is not None:
        facts["yanked"] = link.yanked or True
    return facts


def _row(link: Link) -> str:
    file = link.file
    attributes = {"href": f"{link.url}#sha256={file.sha256}"}
    if file.requires_python is not None:
        attributes["data-requires-python"] = file.requires_python
    if file.metadata_sha256 is not None:
        for key in ("data-core-metadata", "data-dist-info-metadata"):  # PEP 714, and what was before it
            attributes[key] = f"sha256={file.metadata_sha256}"
    note = ""
    if link.yanked is not None:
        attributes["data-yanked"] = link.yanked
        note = f"yanked: {link.yanked}" if link.yanked else "yanked"
    anchor = " ".join(f'{key}="{escape(value)}"' for key, value in attributes.items())
    date = datetime.fromtimestamp(link.date, UTC).date().isoformat()
    python = file.requires_python or "any"
    cells = [escape(text) for text in (file.tags or "sdist", python, date, note)]
    begin = '<tr class="yanked">' if link.yanked is not None else "<tr>"
    return (
        f"{begin}<td><a {anchor}>{escape(file.filename)}</a></td><td>{escape(file.version)}</td>"
        f'<td class="size">{human_size(file.size)}</td>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    )


def _page(title: str, body: Sequence[str]) -> bytes:
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{_API}">',
        MARK,
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
        *body,
        "</body>",
        "</html>",
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _json(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"
