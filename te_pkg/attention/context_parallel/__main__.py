"""``torchrun --nproc_per_node 2 -m te_pkg.attention.context_parallel --demo``"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist

from te_pkg.attention.context_parallel.demo import report
from te_pkg.attention.errors import AttentionError

_START = "torchrun --nproc_per_node 2 -m te_pkg.attention.context_parallel --demo"


def main(argv: Sequence[str]) -> int:
    """Run the demonstration as one of the ranks that torchrun started; rank 0 speaks for all.

    Returns:
        0 where it ran, 2 where it could not.
    """
    parser = argparse.ArgumentParser(prog="python -m te_pkg.attention.context_parallel", description=f"start: {_START}")
    parser.add_argument(
        "--demo", action="store_true", help="cut a layout over the ranks, attend, compare to one process"
    )
    demo = parser.parse_args(argv).demo
    if not demo or "RANK" not in os.environ:
        missing = "no ranks were started" if demo else "there is nothing to do without --demo"
        sys.stderr.write(f"error: {missing}\nhint: {_START}\n")
        return 2
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        for line in report():
            if dist.get_rank() == 0:
                sys.stdout.write(f"{line}\n")
    except AttentionError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
