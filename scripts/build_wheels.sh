#!/usr/bin/env bash
# Makes the release: builds the wheel, rewrites it for each variant of [tool.te-wheel] in pyproject.toml, checks,
# installs and imports each, and writes SHA256SUMS and release.json. Needs python3 (3.11 or newer) with venv, and a
# package registry; makes its own environment in .venvs/build.
#
#   scripts/build_wheels.sh [-o DIR] [--only VARIANT]... [--wheel FILE]      (-h shows all options)
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

fill() {
  pip_install 'packaging>=24.2' 'build>=1.3'
  # The checkout itself: found behind what is installed, and seen by no child of this environment's Python.
  "$env/bin/python" -c 'import pathlib, sys, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "checkout.pth").write_text(sys.argv[1] + "\n", encoding="utf-8")' "$root"
}

prepare_environment build "${BASH_SOURCE[0]}"
exec "$env/bin/python" -P -m build_tools release "$root" "$@"
