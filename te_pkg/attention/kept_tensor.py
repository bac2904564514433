"""One tensor that is kept: what it was when it was stored, and which CUDA streams may use it."""

from __future__ import annotations

import torch

__all__ = ["KeptTensor", "Streams"]


class KeptTensor:
    """A kept tensor and what it was when it was stored."""

    __slots__ = ("address", "shape", "streams", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.version = tensor._version
        self.address = tensor.data_ptr()
        self.shape = tensor.shape
        self.streams = Streams(tensor) if tensor.is_cuda else None

    def is_intact(self) -> bool:
        """Whether nobody changed it in place, as far as torch tells."""
        tensor = self.tensor
        return tensor._version == self.version and tensor.data_ptr() == self.address and tensor.shape == self.shape


class Streams:
    """The CUDA streams that may use a kept tensor.

    It was filled on one stream, perhaps behind much other work, and its memory goes back to that stream's pool. Another
    stream must first wait, and be known to the allocator. Asking the event whether it is done would be simpler, but a
    query breaks a capture that another thread has under way.
    """

    __slots__ = ("_admitted", "_filled")

    def __init__(self, tensor: torch.Tensor) -> None:
        stream = torch.cuda.current_stream(tensor.device)
        self._filled = stream.record_event()
        self._admitted = {stream.cuda_stream}

    def admit_current(self, tensor: torch.Tensor) -> None:
        """Let the current stream use ``tensor`` once it has been filled."""
        if torch._C._cuda_getCurrentRawStream(tensor.device.index) in self._admitted:
            return
        stream = torch.cuda.current_stream(tensor.device)
        stream.wait_event(self._filled)
        tensor.record_stream(stream)
        self._admitted.add(stream.cuda_stream)
