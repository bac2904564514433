"""What a CUDA graph checks each time that it is replayed: offsets that its capture took to be free of padding.

A capture records one branch for ever, while its buffers are refilled. So the offsets are compared inside the graph, by
operations on their device, and what differs is noted in memory that was there before the capture: memory that is first
made while a graph captures belongs to that graph's pool, and the next replay overwrites it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from te_pkg.attention.errors import AttentionError
from te_pkg.attention.offsets import ordinary

__all__ = ["ReplayCheck", "StaleOffsets", "StalePaddingDecision", "read_checks"]

_ENTRIES_SHOWN = 5


@dataclass(frozen=True)
class StaleOffsets:
    """A pair of offset buffers that broke the answer which a graph was captured with.

    Attributes:
        arguments: the names under which the two were given, such as ``("cu_seqlens_q", "cu_seqlens_q_padded")``.
        shape: of each, ``(b + 1,)``.
        dtypes: of each.
        device: where they are.
        entries: where they differed in a replay. Entry ``i`` differs if the slots of sequences ``0 .. i - 1`` hold more
            rows than those sequences have.
    """

    arguments: tuple[str, ...]
    shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, torch.dtype]
    device: torch.device
    entries: tuple[int, ...]

    def __str__(self) -> str:
        names = " and ".join(self.arguments)
        dtypes = " and ".join(dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in self.dtypes))
        shown = ", ".join(map(str, self.entries[:_ENTRIES_SHOWN]))
        more = ", ..." if len(self.entries) > _ENTRIES_SHOWN else ""
        return f"{names}, {dtypes} {list(self.shape)} on {self.device}, differ at entry {shown}{more}"


class StalePaddingDecision(AttentionError, RuntimeError):
    """A graph was replayed with padding that its capture had ruled out, so what it computed may be wrong.

    Attributes:
        buffers: the offsets that changed.
    """

    def __init__(self, buffers: Iterable[StaleOffsets]) -> None:
        self.buffers = tuple(buffers)
        super().__init__(
            "\n".join(
                [
                    "a CUDA graph was replayed with padding between sequences, captured without:",
                    *map(str, self.buffers),
                    "hint: results since the last verify_replay() may be wrong. Ask resolve_pad_between_seqs once in "
                    "eager with the buffers as they are now and capture again, or capture with pad_between_seqs=True, "
                    "which is right for every padding",
                ]
            )
        )

    def __reduce__(self) -> tuple[type[StalePaddingDecision], tuple[tuple[StaleOffsets, ...]]]:
        return type(self), (self.buffers,)


class ReplayCheck:
    """Compares a pair of offsets in every graph that relies on it. Made in eager, before the capture.

    Args:
        cu_seqlens: int32 or int64 ``[b + 1]``.
        cu_seqlens_padded: likewise, on the same device.
    """

    __slots__ = ("_buffers", "_differing", "_names")

    def __init__(self, cu_seqlens: torch.Tensor, cu_seqlens_padded: torch.Tensor) -> None:
        with ordinary(), torch.no_grad():
            self._differing = torch.zeros(
                cu_seqlens.shape, dtype=_dtype_of(cu_seqlens, cu_seqlens_padded), device=cu_seqlens.device
            )
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None
        self._names: dict[str, None] = {}

    @property
    def device(self) -> torch.device:
        """Where the pair of offsets is."""
        return self._differing.device

    @property
    def nbytes(self) -> int:
        """Memory that the check holds, in bytes."""
        return self._differing.nbytes

    def fits(self, cu_seqlens: torch.Tensor, cu_seqlens_padded: torch.Tensor) -> bool:
        """Whether the pair is still what this was made for and recorded of. No host sync.

        ``set_``, ``resize_`` and ``.data =`` give a tensor other memory, and graphs go on reading the old.
        """
        note = self._differing
        if (note.shape, note.device) != (cu_seqlens.shape, cu_seqlens.device):
            return False
        if note.dtype != _dtype_of(cu_seqlens, cu_seqlens_padded):
            return False
        if self._buffers is None:
            return True
        return all(map(_is_same_memory, self._buffers, (cu_seqlens, cu_seqlens_padded)))

    def record(
        self,
        cu_seqlens: torch.Tensor,
        cu_seqlens_padded: torch.Tensor,
        names: tuple[str, ...],
        *,
        with_last: bool,
    ) -> None:
        """Run the comparison, so that a capture records it: two small kernels. No host sync.

        The memory of the offsets is kept from now on, because each replay reads it, whatever the caller lets go of.

        Args:
            cu_seqlens: the pair that the check was made for.
            cu_seqlens_padded: likewise.
            names: what the caller calls them, for the error.
            with_last: the last sequence's slot must be full as well.
        """
        if self._buffers is None:
            # Aliases: they hold the memory, and leave the caller's own tensor free to go.
            self._buffers = cu_seqlens.detach(), cu_seqlens_padded.detach()
        self._names.update(dict.fromkeys(names))
        stop = cu_seqlens.shape[0] if with_last else cu_seqlens.shape[0] - 1
        cu, padded = self._buffers
        # Never cleared by a replay, so that what one of them met is still there after the next.
        self._differing[:stop].bitwise_or_(torch.bitwise_xor(cu[:stop], padded[:stop]))

    def take(self, differing: list[int]) -> StaleOffsets | None:
        """What the replays met, out of the noted numbers; the note is cleared where there was something."""
        if not any(differing) or self._buffers is None:
            return None
        self._differing.zero_()
        return StaleOffsets(
            tuple(self._names),
            tuple(self._differing.shape),
            (self._buffers[0].dtype, self._buffers[1].dtype),
            self.device,
            tuple(i for i, difference in enumerate(differing) if difference),
        )


def _dtype_of(cu_seqlens: torch.Tensor, cu_seqlens_padded: torch.Tensor) -> torch.dtype:
    return torch.promote_types(cu_seqlens.dtype, cu_seqlens_padded.dtype)


def _is_same_memory(buffer: torch.Tensor, tensor: torch.Tensor) -> bool:
    return (
        buffer.data_ptr() == tensor.data_ptr()
        and buffer.shape == tensor.shape
        and buffer.stride() == tensor.stride()
        and buffer.dtype == tensor.dtype
    )


def read_checks(checks: Iterable[ReplayCheck]) -> dict[ReplayCheck, StaleOffsets]:
    """What the replays since the last time met, of those checks that found something.

    Host sync: waits for all work on each device that has a check, whatever stream a graph was replayed on, then copies
    the notes to the host, once for each device.
    """
    by_device: dict[torch.device, list[ReplayCheck]] = {}
    for check in checks:
        by_device.setdefault(check.device, []).append(check)
    found = {}
    for device, here in by_device.items():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        noted = torch.cat([check._differing for check in here]).tolist()
        for check in here:
            size = check._differing.shape[0]
            stale = check.take(noted[:size])
            noted = noted[size:]
            if stale is not None:
                found[check] = stale
        if found and device.type == "cuda":
            torch.cuda.synchronize(device)  # or a replay on another stream might note before the clearing
    return found
