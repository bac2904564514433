"""What this package refuses to do: one family, and each kind is also the builtin that a caller expects."""

from __future__ import annotations

from collections.abc import Iterable

# A tensor of garbage has as many faults as entries.
_FAULTS_SHOWN = 20


class AttentionError(Exception):
    """Root of the family."""


class ArgumentTypeError(AttentionError, TypeError):
    """An argument is of a type that cannot be meant."""


class SizeError(AttentionError, ValueError):
    """A size is negative."""


class OffsetOverflowError(AttentionError, OverflowError):
    """An offset does not fit into int32.

    Attributes:
        offset: the offset, in rows.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset

    def __reduce__(self) -> tuple[type[OffsetOverflowError], tuple[str, int]]:
        return type(self), (str(self), self.offset)


class LayoutError(AttentionError, ValueError):
    """Offsets, lengths or sizes that are no layout.

    Attributes:
        faults: every fault of the input, one sentence each; the message shows the first of them.

    Raises:
        ArgumentTypeError: a ``TypeError``; ``faults`` is one ``str``, whose letters are no faults.
    """

    def __init__(self, faults: Iterable[str]) -> None:
        if isinstance(faults, str):
            raise ArgumentTypeError(f"faults must be several sentences, got {faults!r}")
        self.faults = tuple(faults)
        shown = self.faults[:_FAULTS_SHOWN]
        hidden = len(self.faults) - len(shown)
        super().__init__("\n".join([*shown, f"and {hidden} faults more"] if hidden else shown))

    def __reduce__(self) -> tuple[type[LayoutError], tuple[tuple[str, ...]]]:
        return type(self), (self.faults,)


class HostReadError(AttentionError, RuntimeError):
    """A value is needed on the host where none may be read: under CUDA graph capture, or of tensors without values."""


class CaptureError(AttentionError, RuntimeError):
    """A CUDA graph that is being captured could not record what was asked for."""


class ArgumentError(AttentionError, ValueError):
    """An argument has a value that cannot be meant."""


class PaddingError(AttentionError, ValueError):
    """A layout has padding where what was asked for has none."""


class GradientError(AttentionError, RuntimeError):
    """A gradient would have to flow where none can."""


class KernelUnavailableError(AttentionError, RuntimeError):
    """The kernel that was asked for does not exist or cannot run here.

    Attributes:
        kernel: its name, as asked for.
        reason: why not.
    """

    def __init__(self, kernel: str, reason: str) -> None:
        self.kernel, self.reason = kernel, reason
        super().__init__(f"kernel {kernel!r} is not available: {reason}")

    def __reduce__(self) -> tuple[type[KernelUnavailableError], tuple[str, str]]:
        return type(self), (self.kernel, self.reason)


class BackendUnavailableError(AttentionError, RuntimeError):
    """The backend that was asked for does not exist or cannot serve what it is asked to.

    Attributes:
        backend: its name, as asked for.
        reason: why not.
    """

    def __init__(self, backend: str, reason: str) -> None:
        self.backend, self.reason = backend, reason
        super().__init__(f"backend {backend!r} cannot serve this: {reason}")

    def __reduce__(self) -> tuple[type[BackendUnavailableError], tuple[str, str]]:
        return type(self), (self.backend, self.reason)


class RankError(AttentionError, RuntimeError):
    """A rank of the group refused the call, disagrees with the others about it, or did not answer.

    Attributes:
        ranks: which, as counted in the group.
        faults: what each did, one sentence each.
    """

    def __init__(self, ranks: Iterable[int], faults: Iterable[str]) -> None:
        self.ranks, self.faults = tuple(ranks), tuple(faults)
        super().__init__("\n".join(self.faults))

    def __reduce__(self) -> tuple[type[RankError], tuple[tuple[int, ...], tuple[str, ...]]]:
        return type(self), (self.ranks, self.faults)
