"""The family of errors: whatever its constructor takes, each one travels between processes."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from te_pkg.attention import errors
from te_pkg.attention.errors import (
    ArgumentTypeError,
    AttentionError,
    BackendUnavailableError,
    KernelUnavailableError,
    LayoutError,
    OffsetOverflowError,
    RankError,
)

FAMILY = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, AttentionError)]
ARGUMENTS = {
    LayoutError: (["one", "two"],),
    OffsetOverflowError: ("beyond", 2**31),
    KernelUnavailableError: ("triton", "there is none"),
    BackendUnavailableError: ("varlen", "it needs CUDA"),
    RankError: ((1, 3), ("rank 1 left", "rank 3 disagrees")),
}


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_every_error_pickles_and_copies_with_its_facts(kind, twin):
    error = kind(*ARGUMENTS.get(kind, ("what was met",)))
    other = twin(error)
    assert type(other) is kind
    assert str(other) == str(error)
    assert vars(other) == vars(error)


@pytest.mark.parametrize("kind", [kind for kind in FAMILY if kind is not AttentionError])
def test_every_error_is_also_the_builtin_that_a_caller_expects(kind):
    assert issubclass(kind, (ValueError, TypeError, RuntimeError, OverflowError))


def test_the_letters_of_a_string_are_no_faults():
    with pytest.raises(ArgumentTypeError, match="faults must be several sentences, got 'abc'"):
        LayoutError("abc")
