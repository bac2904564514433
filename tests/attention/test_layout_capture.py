"""Layouts where nothing may be read: fake tensors, CUDA graph capture; and where reading is waiting, a GPU."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from te_pkg.attention import PackedLayout, Padding
from te_pkg.attention.capture import mark_capturing
from te_pkg.attention.errors import CaptureError, HostReadError, LayoutError
from tests.attention.layouts import facts
from tests.attention.no_sync import forbid_sync
from tests.attention.questions import offsets


class TestFakeTensors:
    def test_numbers_are_known_and_tensors_are_fake(self):
        with FakeTensorMode():
            made = PackedLayout.from_lengths([3, 2], 4)
            assert isinstance(made.cu_seqlens, FakeTensor)
            assert made.lengths == (3, 2)
            assert made.padding() == Padding.LAST | Padding.BETWEEN
            assert made.padding_rows().shape == (3,)
            assert made.token_mask().shape == (8,)
            assert made.padded_to(8).total_tokens == 16

    def test_offsets_are_not_read(self):
        with FakeTensorMode():
            made = PackedLayout.from_cu_seqlens(offsets(0, 3, 5), offsets(0, 4, 8), 8, 3)
            assert made.lengths is None
            assert made.position_ids().shape == (8,)
            with pytest.raises(LayoutError, match=r"total_tokens is not given.*\nmax_seqlen is not given"):
                PackedLayout.from_cu_seqlens(offsets(0, 3, 5))
            with pytest.raises(HostReadError, match="traced"):
                made.padding()

    def test_fake_tensors_are_seen_outside_their_mode(self):
        with FakeTensorMode():
            cu = offsets(0, 3, 5)
        assert PackedLayout.from_cu_seqlens(cu, None, 5, 3).lengths is None

    def test_masks_and_lengths(self):
        with FakeTensorMode():
            mask = torch.ones(2, 3, dtype=torch.bool)
            assert PackedLayout.from_token_mask(mask, total_tokens=6, max_seqlen=3).num_sequences == 2
            assert PackedLayout.padded_batch(torch.tensor([3, 2]), 4).total_tokens == 8

    def test_meta_tensors_have_no_values_either(self):
        cu = torch.empty(3, dtype=torch.int32, device="meta")
        made = PackedLayout.from_cu_seqlens(cu, cu, 8, 4)
        assert made.lengths is None
        assert made.token_mask().shape == (8,)
        with pytest.raises(LayoutError, match="the tensors have no values"):
            PackedLayout.from_cu_seqlens(cu)


class TestCapture:
    def test_a_layout_is_made_by_operations_on_the_device(self):
        cu, padded, lengths = offsets(0, 3, 5), offsets(0, 4, 8), torch.tensor([3, 2])
        with mark_capturing(), forbid_sync(uploads=False):
            made = PackedLayout.from_cu_seqlens(cu, padded, 8, 3)
            PackedLayout.from_lengths(lengths, 4, 8, max_seqlen=3)
            made.token_mask(), made.sequence_ids(), made.position_ids()
            made.flash_attn_kwargs(seqused=True)
            made.attention_mask(causal=True)
        assert facts(made) == (8, 3, None, None, None)

    def test_both_sizes_are_asked_for(self):
        with mark_capturing(), pytest.raises(LayoutError) as caught:
            PackedLayout.from_cu_seqlens(offsets(0, 3, 5))
        assert [fault.split()[0] for fault in caught.value.faults] == ["total_tokens", "max_seqlen"]

    def test_shapes_and_dtypes_are_still_checked(self):
        with mark_capturing(), pytest.raises(LayoutError) as caught:
            PackedLayout.from_cu_seqlens(torch.zeros(2), torch.zeros(2, 2, dtype=torch.int32), -1, 3)
        assert "cu_seqlens is floating point" in str(caught.value)
        assert "cu_seqlens_padded is 2-D" in str(caught.value)
        assert "total_tokens is -1" in str(caught.value)

    def test_a_size_on_a_device_would_be_a_read(self):
        with mark_capturing(), forbid_sync(), pytest.raises(LayoutError, match=r"max_seqlen is a tensor.* captured"):
            PackedLayout.from_cu_seqlens(offsets(0, 3), None, 3, torch.tensor(3))

    def test_numbers_on_the_host_cannot_go_to_a_device(self):
        with mark_capturing(), pytest.raises(CaptureError, match=r"cannot be copied to cuda:0.*hint: make the layout"):
            PackedLayout.from_lengths([3, 2], device="cuda:0")
        made = PackedLayout.from_lengths([3, 2])
        with mark_capturing(), pytest.raises(CaptureError, match="cannot be copied to cuda:0"):
            made.to("cuda:0")

    def test_lengths_of_a_tensor_on_the_host_cannot_go_to_a_device_either(self):
        with mark_capturing(), pytest.raises(CaptureError, match="cannot be copied to cuda:0"):
            PackedLayout.from_lengths(torch.tensor([3, 2]), 1, 5, "cuda:0", max_seqlen=3)

    def test_offsets_on_a_device_cannot_go_to_the_host(self, monkeypatch):
        made = PackedLayout.from_lengths([3, 2])
        monkeypatch.setattr(PackedLayout, "device", torch.device("cuda:0"))
        with mark_capturing(), pytest.raises(CaptureError, match="offsets on cuda:0 cannot be copied to cpu"):
            made.to("cpu")

    def test_what_is_known_spares_the_read(self):
        made = PackedLayout.from_lengths([3, 2], 4)
        with forbid_sync():
            made.padding(), made.padding_rows(), made.token_mask(), made.flash_attn_kwargs(seqused=True)
            made.padded_to(8), made.to("meta")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestOnAGpu:
    def test_numbers_reach_the_device_without_a_sync(self):
        torch.zeros(1, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        try:
            made = PackedLayout.from_lengths([3, 2, 4], 4, device="cuda")
            made.token_mask(), made.padding_rows(), made.padded_to(8), made.padding()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert made.cu_seqlens_padded.tolist() == [0, 4, 8, 12]

    def test_offsets_are_read_once_and_the_lengths_are_known(self):
        made = PackedLayout.from_cu_seqlens(offsets(0, 3, 5).cuda(), offsets(0, 4, 8).cuda())
        assert made.lengths == (3, 2)
        assert made.to("cpu").slot_offsets == (0, 4, 8)

    def test_a_graph_replays_refilled_offsets(self):
        cu, padded = offsets(0, 3, 5).cuda(), offsets(0, 4, 8).cuda()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ids = PackedLayout.from_cu_seqlens(cu, padded, 8, 4).sequence_ids()
        cu.copy_(offsets(0, 1, 5))
        graph.replay()
        assert ids.tolist() == [0, -1, -1, -1, 1, 1, 1, 1]

    def test_on_the_way_back_the_host_learns_the_lengths(self):
        with mark_capturing():
            made = PackedLayout.from_cu_seqlens(offsets(0, 3, 5).cuda(), offsets(0, 4, 8).cuda(), 8, 4)
        assert made.lengths is None
        assert made.to("cpu").lengths == (3, 2)
