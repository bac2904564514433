#!/usr/bin/env python3
"""Rewrite wheels from a checkout: the repackaging step of a CI job; the options are those of ``te-wheel repack``.

    python scripts/repack_wheel.py dist/demo-1.0-py3-none-any.whl --name demo-cu12 --local cu128 -o out

Needs Python 3.11 and ``packaging``. This file itself parses on any Python, so that an old one says what is missing.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    from build_tools.__main__ import run

    sys.argv.insert(1, "repack")
    run()
