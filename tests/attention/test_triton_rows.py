"""The Triton kernels compile for a GPU, also where there is none."""

from __future__ import annotations

import importlib
import re

import pytest

triton = pytest.importorskip("triton", reason="needs the extra 'triton'")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning")

WIDE = {"FLAT": True, "ROWS": 4, "COLUMNS": 512, "PERIOD": 0}
NARROW = {"FLAT": False, "ROWS": 1024, "COLUMNS": 2, "PERIOD": 2}
# Triton makes a constant of each number that is 1.
ONES = dict.fromkeys(("row_words", "run_words", "across", "x_row", "x_run", "out_row", "out_run"), 1)
ALIGNED = {"x", "out", "fill", "x_row", "out_row", "x_run", "out_run", "row_words", "run_words"}


def compiled(name: str, word: str, offset: str, constants: dict[str, object], *, aligned: bool = False) -> str:
    """The PTX for an H100."""
    module = importlib.import_module("te_pkg.attention.kernels.triton_rows")
    kernel = getattr(module, name)
    if not isinstance(kernel, triton.JITFunction):
        pytest.skip("this process runs Triton under its interpreter")
    types = {}
    for argument in kernel.arg_names:
        if argument in ("x", "out", "fill"):
            types[argument] = f"*{word}"
        elif argument in ("cu_seqlens", "source", "target", "slots"):
            types[argument] = f"*{offset}"
        elif argument in constants:
            types[argument] = "constexpr"
        else:
            types[argument] = "i64" if argument.endswith(("_row", "_run")) else "i32"
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, argument in enumerate(kernel.arg_names)
        if aligned and argument in ALIGNED
    }
    constants = {name: value for name, value in constants.items() if name in types}
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


@pytest.mark.parametrize("name", ["_move_kernel", "_fill_kernel"])
@pytest.mark.parametrize(
    ("word", "offset", "constants"),
    [("i64", "i32", WIDE), ("u8", "i64", NARROW), ("i16", "i32", NARROW), ("i32", "i32", WIDE | ONES)],
)
def test_every_variant_compiles(name, word, offset, constants):
    assert "st.global" in compiled(name, word, offset, constants)


@pytest.mark.parametrize("name", ["_move_kernel", "_fill_kernel"])
def test_aligned_rows_are_written_16_bytes_at_a_time(name):
    stores = re.findall(r"st\.global\S*", compiled(name, "i64", "i32", WIDE, aligned=True))
    assert set(stores) == {"st.global.v2.b64"}
