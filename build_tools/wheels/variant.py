"""variant.json of a wheel variant, held against its draft and the label of the file name.

Source: PEP 825 (draft), <https://peps.python.org/pep-0825/>. What the draft does not define is let be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from build_tools.wheels.name import shorten

FILE = "variant.json"
NULL = "null"
"""The label of the variant without properties."""
_FEATURE = re.compile(r"[a-z0-9_]+\Z")
_VALUE = re.compile(r"[a-z0-9_.]+\Z")


def variant_faults(data: bytes, label: str | None) -> tuple[list[str], list[str]]:
    """What is wrong with a variant.json by itself, and what disagrees with the label.

    Args:
        data: its bytes.
        label: the label of the file name, ``None`` where it has none.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        return [f"not JSON: {shorten(str(error))}"], []
    if not isinstance(content, dict):
        return ["not a JSON object"], []
    faults = [] if isinstance(content.get("$schema"), str) else ["'$schema' is no text"]
    variants = content.get("variants")
    if not isinstance(variants, dict) or not variants:
        return [*faults, "'variants' is no object with a label"], []
    if len(variants) > 1:
        faults.append(f"'variants' holds {len(variants)} labels, expected one: {shorten(', '.join(variants))}")
    namespaces: dict[str, None] = {}
    for name, properties in variants.items():
        faults += _property_faults(name, properties)
        if isinstance(properties, dict):
            namespaces |= dict.fromkeys(properties)
    faults += _priority_faults(content.get("default-priorities"), list(namespaces))
    disagreements = []
    if label is not None and label not in variants:
        disagreements.append(f"it is for {shorten(', '.join(variants))}, the file name has the label {label!r}")
    return faults, disagreements


def _property_faults(label: str, properties: object) -> Iterator[str]:
    shown = repr(shorten(label, 60))
    if not _VALUE.match(label):
        yield f"the label {shown} holds something else than a-z, 0-9, '_' and '.'"
    if not isinstance(properties, dict):
        yield f"the properties of {shown} are no object"
        return
    if label == NULL and properties:
        yield f"the variant {NULL!r} has properties, expected none"
    for namespace, features in properties.items():
        if not _FEATURE.match(namespace) or not isinstance(features, dict):
            yield f"{shown}: the namespace {shorten(namespace, 60)!r} is no object under a name of a-z, 0-9 and '_'"
            continue
        for feature, values in features.items():
            right = isinstance(values, list) and values and all(isinstance(v, str) and _VALUE.match(v) for v in values)
            if not _FEATURE.match(feature) or not right:
                yield f"{shown}: {namespace} :: {shorten(feature, 60)} is no list of values of a-z, 0-9, '_' and '.'"
            elif len(set(values)) < len(values):
                yield f"{shown}: {namespace} :: {shorten(feature, 60)} has a value twice"


def _priority_faults(priorities: object, namespaces: list[str]) -> Iterator[str]:
    if not isinstance(priorities, dict):
        yield "'default-priorities' is no object"
        return
    order = priorities.get("namespace")
    if not isinstance(order, list) or not all(isinstance(name, str) and _FEATURE.match(name) for name in order):
        yield "'default-priorities' has no list 'namespace' of names of a-z, 0-9 and '_'"
    elif len(set(order)) < len(order):
        yield "'default-priorities' has a namespace twice"
    elif missing := [name for name in namespaces if name not in order]:
        yield f"'default-priorities' lacks the namespaces {shorten(', '.join(missing))}"
