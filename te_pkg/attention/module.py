"""Attention as a module with Transformer Engine's argument names: a user of theirs changes the import only.

``t`` rows of a packed buffer, ``b`` sequences, ``s`` longest sequence, ``h`` heads, ``h_kv`` groups of them, ``d`` head
size. What they support and this does not is refused by name and value; what cannot change a result is accepted.

Source: ``transformer_engine.pytorch.DotProductAttention``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from te_pkg.attention.batch_layouts import Side, layout_of_batch, layout_of_rows, masks_of
from te_pkg.attention.errors import ArgumentError, ArgumentTypeError, LayoutError
from te_pkg.attention.layout import PackedLayout
from te_pkg.attention.masks import window_faults
from te_pkg.attention.module_checks import call_type_faults, constructor_type_faults, is_plainly, number_faults
from te_pkg.attention.packed_attention import packed_attention
from te_pkg.attention.padding_decisions import resolve_pad_between_seqs

__all__ = ["DotProductAttention"]

_FORMATS = ("sbhd", "bshd", "thd")
_MASK_TYPES = (
    "no_mask",
    "padding",
    "causal",
    "padding_causal",
    "causal_bottom_right",
    "padding_causal_bottom_right",
)


class DotProductAttention(torch.nn.Module):
    """Attention for ``qkv_format`` ``thd``, ``bshd`` and ``sbhd``; has no parameters.

    >>> attention = DotProductAttention(num_attention_heads=1, kv_channels=8, qkv_format="thd",
    ...                                 attn_mask_type="padding_causal")
    >>> v = torch.tensor([2.0, 4.0, float("nan"), 7.0]).view(4, 1, 1).expand(4, 1, 8)
    >>> cu, padded = torch.tensor([0, 2, 3]), torch.tensor([0, 3, 4])
    >>> attention(torch.zeros(4, 1, 8), torch.zeros(4, 1, 8), v, cu_seqlens_q=cu, cu_seqlens_kv=cu,
    ...           cu_seqlens_q_padded=padded, cu_seqlens_kv_padded=padded)[:, 0]
    tensor([2., 3., 0., 7.])

    Arguments have Transformer Engine's names, order and defaults. Those that only say where and how they compute
    (``layer_number``, ``name``, ``sequence_parallel``, ``cp_comm_type``, ``cp_stream``, ``cp_global_ranks``) change
    nothing here.

    Args:
        num_attention_heads: ``h`` of all tensor-parallel ranks together.
        kv_channels: ``d``, or ``(d, d_v)``.
        num_gqa_groups: ``h_kv`` of all tensor-parallel ranks together; None: ``h``.
        attention_dropout: the share of weights that become 0 in training.
        qkv_format: ``"sbhd"``, ``"bshd"`` or ``"thd"``.
        attn_mask_type: ``"no_mask"``, ``"padding"``, ``"causal"``, ``"padding_causal"``, ``"causal_bottom_right"`` or
            ``"padding_causal_bottom_right"``; also with commas.
        window_size: ``(left, right)`` beside the diagonal, -1 without bound.
        bottom_right_diagonal: where the diagonal of a window lies without ``causal``; None: at the bottom right.
        tp_size: how many tensor-parallel ranks share the heads.
        softmax_scale: None: ``1 / sqrt(d)``.

    Raises:
        ArgumentTypeError: a ``TypeError`` with every fault; an argument is of a type that cannot be meant.
        ArgumentError: a ``ValueError`` with every fault; a value that cannot be meant, or that is not supported.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[..., Any] | None = None,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: list[int] | None = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool | None = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        strange = constructor_type_faults(
            num_attention_heads,
            kv_channels,
            num_gqa_groups,
            attn_mask_type,
            tp_size,
            window_size,
            bottom_right_diagonal,
        )
        wrong_types, numbers = number_faults(softmax_scale=softmax_scale, attention_dropout=attention_dropout)
        if strange + wrong_types:
            raise ArgumentTypeError("\n".join(strange + wrong_types))
        tracked = get_rng_state_tracker is not None and attention_dropout > 0 and not sequence_parallel
        faults = [
            f"{called} is {value!r}, expected {expected}"
            for called, value, is_wrong, expected in (
                ("tp_group", tp_group, tp_group is not None, "None; hint: tp_size says how many ranks share the heads"),
                (
                    "cp_group",
                    cp_group,
                    cp_group is not None,
                    "None; hint: te_pkg.attention.context_parallel does that",
                ),
                ("get_rng_state_tracker", get_rng_state_tracker, tracked, "None where there is dropout"),
                ("softmax_type", softmax_type, softmax_type != "vanilla", "'vanilla'"),
                ("return_max_logit", return_max_logit, bool(return_max_logit), "False"),
                ("attention_type", attention_type, attention_type not in ("self", "cross"), "'self' or 'cross'"),
                ("tp_size", tp_size, tp_size < 1, "at least 1"),
            )
            if is_wrong
        ]
        groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        if groups < 1 or num_attention_heads % groups:
            faults.append(
                f"num_gqa_groups is {groups}, expected a divisor of num_attention_heads {num_attention_heads}"
            )
        elif tp_size >= 1 and groups % tp_size:
            faults.append(f"tp_size is {tp_size}, expected a divisor of the {groups} groups of heads")
        sizes = tuple(kv_channels) if isinstance(kv_channels, (tuple, list)) else (kv_channels, kv_channels)
        if min(sizes) < 1:
            faults.append(f"kv_channels is {kv_channels!r}, expected at least 1")
        faults += numbers + window_faults(window_size, "window_size")[1]
        faults += _format_faults(qkv_format) + _mask_faults(_mask_type(attn_mask_type))
        if faults:
            raise ArgumentError("\n".join(faults))
        self.heads = num_attention_heads // tp_size
        self.groups = groups // tp_size
        self.sizes = sizes
        self.attention_dropout = attention_dropout
        self.qkv_format = qkv_format
        self.attn_mask_type = _mask_type(attn_mask_type)
        self.window_size = window_size
        self.bottom_right_diagonal = bottom_right_diagonal
        self.attention_type = attention_type
        self.softmax_scale = softmax_scale
        self.layer_number = layer_number

    def extra_repr(self) -> str:
        """What `print` shows."""
        return (
            f"heads={self.heads}, groups={self.groups}, sizes={self.sizes}, qkv_format={self.qkv_format!r}, "
            f"attn_mask_type={self.attn_mask_type!r}"
        )

    def forward(
        self,
        query_layer: torch.Tensor | None = None,
        key_layer: torch.Tensor | None = None,
        value_layer: torch.Tensor | None = None,
        attention_mask: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        qkv_format: str | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        cu_seqlens_q_padded: torch.Tensor | None = None,
        cu_seqlens_kv_padded: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        fast_zero_fill: bool = True,
        inference_params: Any = None,
        pad_between_seqs: bool | None = None,
        fp8_output: bool | None = False,
        bf16_backward: bool | None = False,
        num_splits: int | None = 1,
        score_mod: Any = None,
        score_mod_bprop: Any = None,
        score_mod_tensors: Any = None,
        score_mod_bprop_tensors: Any = None,
        qkv_layer: torch.Tensor | None = None,
        kv_layer: torch.Tensor | None = None,
        qkv_interleave_dim: int = -3,
    ) -> torch.Tensor:
        """Attention within each sequence; arguments have Transformer Engine's names and order.

        Offsets on a CUDA device are not read where ``max_seqlen_q`` and ``max_seqlen_kv`` are given, else once: one
        host sync. Whether there is padding between sequences is then asked by value, and remembered, see
        :func:`~te_pkg.attention.resolve_pad_between_seqs`; it chooses how, and never changes a result, so that an
        explicit ``pad_between_seqs=False`` is looked into like None. Only inputs and output are kept for the backward
        pass, and ``checkpoint_core_attention`` has nothing to save.

        Args:
            query_layer: ``[t, h, d]``, ``[b, s, h, d]`` or ``[s, b, h, d]``.
            key_layer: likewise with ``h_kv`` heads.
            value_layer: likewise, ``d_v``.
            attention_mask: bool ``[b, 1, 1, s]``, True for padding, which stands behind the real rows; two of them for
                queries and keys that differ. Only for batches whose ``attn_mask_type`` has ``padding``, where there are
                no offsets.
            cu_seqlens_q: int32 ``[b + 1]``, real rows of the queries' sequences.
            cu_seqlens_kv: likewise, of the keys'.
            cu_seqlens_q_padded: int32 ``[b + 1]``, where each begins in a packed buffer; a batch has its own slots.
            cu_seqlens_kv_padded: likewise.
            max_seqlen_q: an upper bound of the lengths; None: the longest.
            max_seqlen_kv: likewise.
            pad_between_seqs: True: expect padding between sequences.
            qkv_layer: all three in one, beside each other in dimension ``qkv_interleave_dim``.
            kv_layer: likewise, keys and values.

        Returns:
            ``[t, h * d_v]``, ``[b, s, h * d_v]`` or ``[s, b, h * d_v]``; 0 on padding.

        Raises:
            ArgumentError: a ``ValueError`` with every fault; what is not supported, by name and value.
            ArgumentTypeError: a ``TypeError``; a tensor is missing, or is none.
            LayoutError: a ``ValueError`` with every fault; offsets that are no layout, or tensors that do not fit.
        """
        strange = call_type_faults(
            attn_mask_type, window_size, bottom_right_diagonal, pad_between_seqs, max_seqlen_q, max_seqlen_kv
        )
        if strange:
            raise ArgumentTypeError("\n".join(strange))
        mask_type = self.attn_mask_type if attn_mask_type is None else _mask_type(attn_mask_type)
        form = self.qkv_format if qkv_format is None else qkv_format
        refused = {
            "core_attention_bias_type": (core_attention_bias_type, core_attention_bias_type == "no_bias", "'no_bias'"),
            "num_splits": (num_splits, num_splits is None or is_plainly(num_splits, 1), "None or 1"),
            "fp8_output": (fp8_output, fp8_output is None or is_plainly(fp8_output, False), "False"),
            "bf16_backward": (bf16_backward, bf16_backward is None or is_plainly(bf16_backward, False), "False"),
            **{
                name: (value, value is None, "None")
                for name, value in (
                    ("core_attention_bias", core_attention_bias),
                    ("alibi_slopes", alibi_slopes),
                    ("inference_params", inference_params),
                    ("score_mod", score_mod),
                    ("score_mod_bprop", score_mod_bprop),
                    ("score_mod_tensors", score_mod_tensors),
                    ("score_mod_bprop_tensors", score_mod_bprop_tensors),
                )
            },
        }
        faults = [
            f"{name} is {value!r}, expected {want}" for name, (value, is_fine, want) in refused.items() if not is_fine
        ]
        faults += _format_faults(form) + _mask_faults(mask_type)
        if form == "thd" and "padding" not in mask_type:
            faults.append(f"attn_mask_type is {mask_type!r}, expected one with padding for qkv_format 'thd'")
        if faults:
            raise ArgumentError("\n".join(faults))
        tensors = _taken_apart(query_layer, key_layer, value_layer, qkv_layer, kv_layer, qkv_interleave_dim)
        self._check_heads(tensors, form)
        sides = (
            Side("q", tensors.q, cu_seqlens_q, cu_seqlens_q_padded, max_seqlen_q),
            Side("kv", tensors.k, cu_seqlens_kv, cu_seqlens_kv_padded, max_seqlen_kv),
        )
        if form == "thd":
            between = pad_between_seqs is True or resolve_pad_between_seqs(
                cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded
            )
            layout, keys = _both(sides, lambda side: layout_of_rows(side, between))
            rows = tensors
        else:
            batch_first = Tensors(*(x.transpose(0, 1) for x in tensors)) if form == "sbhd" else tensors
            padded = "padding" in mask_type
            of_q, of_kv = masks_of(attention_mask) if padded else (None, None)
            sides = sides[0]._replace(rows=batch_first.q, mask=of_q), sides[1]._replace(rows=batch_first.k, mask=of_kv)
            layout, keys = _both(sides, lambda side: layout_of_batch(side, padded))
            rows = Tensors(*(x.flatten(0, 1) for x in batch_first))
        out = packed_attention(
            *rows,
            layout,
            keys,
            causal="causal" in mask_type,
            align=self._align(mask_type, bottom_right_diagonal),
            window=_window(self.window_size if window_size is None else window_size, mask_type),
            scale=self.softmax_scale if self.softmax_scale is not None else self.sizes[0] ** -0.5,
            dropout_p=self.attention_dropout if self.training else 0.0,
        ).flatten(1)
        if form == "thd":
            return out
        out = out.view(*batch_first.q.shape[:2], out.shape[-1])
        return out.transpose(0, 1).contiguous() if form == "sbhd" else out

    def _align(self, mask_type: str, bottom_right_diagonal: bool | None) -> str:
        if "causal" in mask_type:
            return "bottom_right" if "bottom_right" in mask_type else "top_left"
        asked = self.bottom_right_diagonal if bottom_right_diagonal is None else bottom_right_diagonal
        return "top_left" if asked is False else "bottom_right"

    def _check_heads(self, tensors: Tensors, form: str) -> None:
        dimensions = 3 if form == "thd" else 4
        letters = f"[{', '.join(form)}]"
        expected = ((self.heads, self.sizes[0]), (self.groups, self.sizes[0]), (self.groups, self.sizes[1]))
        faults = []
        for name, x, heads in zip(("query_layer", "key_layer", "value_layer"), tensors, expected, strict=True):
            if x.ndim != dimensions:
                faults.append(f"{name} is {x.ndim}-D with shape {list(x.shape)}, expected {dimensions}-D {letters}")
            elif x.shape[-2:] != heads:
                faults.append(f"{name} ends in {list(x.shape[-2:])}, expected {list(heads)}, heads and their size")
        if not faults and tensors.v.shape[:-2] != tensors.k.shape[:-2]:
            found, wanted = list(tensors.v.shape[:-2]), list(tensors.k.shape[:-2])
            faults.append(f"value_layer begins with {found}, expected {wanted} as key_layer, {letters}")
        if faults:
            raise LayoutError(faults)


class Tensors(NamedTuple):
    """Queries, keys and values."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def _both(sides: tuple[Side, Side], layout_of: Callable[[Side], PackedLayout]) -> tuple[PackedLayout, PackedLayout]:
    """One layout for both where they are described alike, which self-attention is known by."""
    layout = layout_of(sides[0])
    return layout, layout if sides[1].is_like(sides[0]) else layout_of(sides[1])


def _taken_apart(
    q: torch.Tensor | None,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    qkv: torch.Tensor | None,
    kv: torch.Tensor | None,
    dimension: int,
) -> Tensors:
    given = {"query_layer": q, "key_layer": k, "value_layer": v, "qkv_layer": qkv, "kv_layer": kv}
    names = {name for name, value in given.items() if value is not None}
    ways = ({"query_layer", "key_layer", "value_layer"}, {"qkv_layer"}, {"query_layer", "kv_layer"})
    if names not in ways:
        raise ArgumentTypeError(
            f"given are {', '.join(sorted(names)) or 'none'}, expected query_layer, key_layer and value_layer; "
            "qkv_layer; or query_layer and kv_layer"
        )
    strange = [
        f"{name} must be a tensor, got {given[name]!r}"
        for name in sorted(names)
        if not isinstance(given[name], torch.Tensor)
    ]
    if strange:
        raise ArgumentTypeError("\n".join(strange))
    together = qkv if qkv is not None else kv
    if together is not None:
        count = 3 if qkv is not None else 2
        if dimension not in (-3, -2) or together.ndim < 4 or together.shape[dimension] != count:
            raise LayoutError(
                [
                    f"{'qkv_layer' if count == 3 else 'kv_layer'} has shape {list(together.shape)}, expected {count} "
                    f"in dimension qkv_interleave_dim, which is -3 or -2, got {dimension}"
                ]
            )
        parts = together.unbind(dimension)
        q, k, v = parts if q is None else (q, *parts)
    if q is None or k is None or v is None:
        raise ArgumentTypeError("query_layer, key_layer and value_layer must be tensors")
    return Tensors(q, k, v)


def _mask_type(text: str) -> str:
    text = text.replace(",", "_")
    return "padding_causal" if text == "causal_padding" else text


def _mask_faults(mask_type: str) -> list[str]:
    if mask_type in _MASK_TYPES:
        return []
    return [f"attn_mask_type is {mask_type!r}, expected one of {', '.join(map(repr, _MASK_TYPES))}"]


def _format_faults(form: str) -> list[str]:
    return [] if form in _FORMATS else [f"qkv_format is {form!r}, expected one of {', '.join(map(repr, _FORMATS))}"]


def _window(window: tuple[int, int] | None, mask_type: str) -> tuple[int, int] | None:
    # Theirs, where (-1, 0) says causal, which the type of the mask does not.
    if window is not None and tuple(window) == (-1, 0) and "causal" not in mask_type:
        warnings.warn(f"window_size is (-1, 0), which attn_mask_type {mask_type!r} makes (-1, -1)", stacklevel=3)
        return None
    return window
