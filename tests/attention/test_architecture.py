"""The house of the package: which module may know which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Each module may import those above it and no other. A new one goes in where what it needs ends.
ORDER = """
te_pkg._version
te_pkg
te_pkg.attention.errors
te_pkg.attention.capture
te_pkg.attention.kept_tensor
te_pkg.attention.caching
te_pkg.attention.offsets
te_pkg.attention.padding
te_pkg.attention.layout_checks
te_pkg.attention.length_checks
te_pkg.attention.layout_picture
te_pkg.attention.layout_tree
te_pkg.attention.masks
te_pkg.attention.layout_rows
te_pkg.attention.layout
te_pkg.attention.cu_seqlens
te_pkg.attention.offset_pairs
te_pkg.attention.replay_checks
te_pkg.attention.padding_decisions
te_pkg.attention.kernels
te_pkg.attention.kernels.words
te_pkg.attention.kernels.row_index
te_pkg.attention.kernels.reference
te_pkg.attention.kernels.cpu
te_pkg.attention.kernels.triton_rows
te_pkg.attention.kernels.host
te_pkg.attention.kernels.operators
te_pkg.attention.buffer_checks
te_pkg.attention.bert_padding
te_pkg.attention.relayout
te_pkg.attention.zeroing
te_pkg.attention.backends.problem
te_pkg.attention.backends.dense
te_pkg.attention.backends.widths
te_pkg.attention.backends.pieces
te_pkg.attention.backends.efficient
te_pkg.attention.backends.sdpa
te_pkg.attention.backends.flash_layout
te_pkg.attention.backends.varlen
te_pkg.attention.backends.flash_attn
te_pkg.attention.backends.flex
te_pkg.attention.backends
te_pkg.attention.backends.operators
te_pkg.attention.attention_checks
te_pkg.attention.packed_attention
te_pkg.attention.batch_layouts
te_pkg.attention.module_checks
te_pkg.attention.module
te_pkg.attention.context_parallel.partition
te_pkg.attention.context_parallel.merge
te_pkg.attention.context_parallel.exchange
te_pkg.attention.context_parallel.agreement
te_pkg.attention.context_parallel.shards
te_pkg.attention.context_parallel.blocks
te_pkg.attention.context_parallel.partial
te_pkg.attention.context_parallel.request
te_pkg.attention.context_parallel.ring
te_pkg.attention.context_parallel.all_gather
te_pkg.attention.context_parallel.all_to_all
te_pkg.attention.context_parallel.attention
te_pkg.attention.context_parallel.token_batch
te_pkg.attention.context_parallel
te_pkg.attention
te_pkg.attention.context_parallel.demo
te_pkg.attention.context_parallel.__main__
""".split()  # noqa: SIM905 - a list to read from top to bottom


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / "te_pkg").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module of the package that is imported, at the top or in a function; not what is there for types alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in ORDER else str(node.module)
        elif not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield from imports(node)


def test_the_order_names_every_module() -> None:
    assert sorted(ORDER) == sorted(modules())


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_what_stands_above_it(module: str) -> None:
    above = ORDER[: ORDER.index(module)]
    found = {name for name in imports(ast.parse(modules()[module].read_text())) if name.split(".")[0] == "te_pkg"}
    assert found <= set(above)


def test_an_import_is_found_wherever_it_stands() -> None:
    source = """
if TYPE_CHECKING:
    from te_pkg.attention.layout import PackedLayout
from te_pkg.attention import capture
def late():
    import te_pkg.attention.zeroing
    try:
        from te_pkg.attention.errors import LayoutError
    except ImportError:
        pass
"""
    assert list(imports(ast.parse(source))) == [
        "te_pkg.attention.capture",
        "te_pkg.attention.zeroing",
        "te_pkg.attention.errors",
    ]
