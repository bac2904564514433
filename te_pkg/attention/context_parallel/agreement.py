"""Do all ranks mean the same? Asked before data moves, so that a difference is an error and not a wrong result.

Each rank sends the others a checksum of what it knows, four numbers in all. Only where these differ, the facts
themselves follow, and every rank ends with an error that names the rank and the difference. A rank that refuses its
arguments takes part too: the others learn of it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch

from te_pkg.attention.context_parallel.exchange import Ranks
from te_pkg.attention.errors import RankError

__all__ = ["Fact", "agree", "differences"]

Fact: TypeAlias = str | int | float | bool | Sequence[int] | None


def agree(ranks: Ranks, facts: Mapping[str, Fact], failure: Exception | None = None) -> None:
    """Return on all ranks if all have the same facts and none has failed; else raise on all. Waits for the others.

    Args:
        ranks: who is asked.
        facts: by name, in one order.
        failure: why this rank cannot go on; raised here, after the others were told.

    Raises:
        RankError: a ``RuntimeError``; names each rank that refused or differs, and how. Also where one did not answer.
    """
    text = json.dumps(dict(facts)) if failure is None else f"{type(failure).__name__}: {failure}"
    encoded = text.encode()
    digest = int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little", signed=True)
    mine = [int(failure is not None), digest, len(encoded)]
    try:
        records = ranks.swap(torch.tensor(mine, device="cpu")).tolist() if ranks.size > 1 else [mine]
        if failure is None and all(record == mine for record in records):
            return
        texts = _swap_texts(ranks, encoded, [length for *_, length in records])
    except RankError:
        if failure is not None:
            raise failure from None
        raise
    if failure is not None:
        raise failure
    refused = {
        rank: f"rank {rank} refused the call: {text}"
        for rank, (text, record) in enumerate(zip(texts, records, strict=True))
        if record[0]
    }
    found = refused or differences([json.loads(text) for text in texts])
    raise RankError(found, found.values())


def differences(facts: Sequence[Mapping[str, Fact]]) -> dict[int, str]:
    """For each rank that differs from most others, or from rank 0 where there is no majority, how.

    >>> differences([{"method": "p2p"}, {"method": "p2p"}, {"method": "a2a"}])
    {2: "rank 2: method is 'a2a', expected 'p2p' as on rank 0"}
    """
    texts = [json.dumps(dict(known)) for known in facts]
    # The first of those that occur equally often.
    like = texts.index(Counter(texts).most_common(1)[0][0])
    found = {}
    for rank, known in enumerate(facts):
        expected = facts[like]
        # Of two different passes nothing else can be compared.
        names = ["pass"] if known.get("pass") != expected.get("pass") else sorted({*known, *expected})
        named = [
            _difference(name, known.get(name), expected.get(name))
            for name in names
            if known.get(name) != expected.get(name)
        ]
        if named:
            found[rank] = f"rank {rank}: {'; '.join(named)} as on rank {like}"
    return found


def _difference(name: str, found: Fact, expected: Fact) -> str:
    if isinstance(found, list) and isinstance(expected, list):
        if len(found) != len(expected):
            return f"{name} has {len(found)} entries, expected {len(expected)}"
        places = [i for i, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other]
        first = places[0]
        more = f" ({len(places) - 1} more entries differ)" if len(places) > 1 else ""
        return f"{name}[{first}] is {found[first]!r}, expected {expected[first]!r}{more}"
    return f"{name} is {found!r}, expected {expected!r}"


def _swap_texts(ranks: Ranks, mine: bytes, lengths: Sequence[int]) -> list[str]:
    if ranks.size == 1:
        return [mine.decode()]
    padded = list(mine) + [0] * (max(lengths) - len(mine))
    rows = ranks.swap(torch.tensor(padded, dtype=torch.uint8, device="cpu")).tolist()
    return [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]
