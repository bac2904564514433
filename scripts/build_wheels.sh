#!/usr/bin/env bash
# Makes the release: builds the wheel, rewrites it for each variant of [tool.te-wheel] in pyproject.toml, checks,
# installs and imports each, and writes SHA256SUMS and release.json. Needs python3 (3.11 or newer) with venv, and a
# package registry; makes its own environment in .venvs/build.
#
#   scripts/build_wheels.sh [-o DIR] [--only VARIANT]... [--wheel FILE]      (-h shows all options)
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/build_wheels.sh [options]

Makes the release of this checkout: builds the wheel, makes every variant of [tool.te-wheel] in pyproject.toml, checks,
installs and imports each, and writes SHA256SUMS and release.json. For another project: te-wheel release SRC.

  -o, --out-dir DIR   where outputs go (default: dist in the current folder)
  --only VARIANT      make this variant; repeatable
  --wheel FILE        start from this wheel instead of building one
  -v, --verbose       show the output of the build as it comes
  --no-smoke          do not install and import the wheels
  --fresh             do again what a run that did not end has done
  --jobs N            how many variants to make and try at once (default: one on each core)
  --force             replace outputs that are there with other bytes
  --json              print the same facts as JSON
  -q, --quiet         say warnings and errors alone
  -h, --help          show this and exit

PYTHON names the Python to use (3.11 or newer).
END
}

for argument in "$@"; do
  case $argument in -h | --help)
    usage
    exit 0
    ;;
  esac
done

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

fill() {
  pip_install 'packaging>=24.2' 'build>=1.3'
  # The checkout itself: found behind what is installed, and seen by no child of this environment's Python.
  # As bytes in ASCII, since a .pth file is read in the encoding of whatever locale there is.
  "$env/bin/python" -c 'import os, pathlib, sys, sysconfig
line = "import os, sys; sys.path.append(os.fsdecode(" + repr(os.fsencode(sys.argv[1])) + "))\n"
pathlib.Path(sysconfig.get_path("purelib"), "checkout.pth").write_text(line, encoding="ascii")' "$root"
}

prepare_environment build "${BASH_SOURCE[0]}"
exec "$env/bin/python" -P -m build_tools release "$root" "$@"
