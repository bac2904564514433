#!/usr/bin/env bash
# Runs the test suite in its own environment, .venvs/test; arguments go to pytest. Needs python3 (3.11 or newer) with
# venv, and a package registry.
#
#   scripts/test.sh [-k NAME] [-m 'not network and not slow'] ...
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

fill() {
  local torch
  torch=$("$env/bin/python" -c 'import re, sys, tomllib
with open(sys.argv[1], "rb") as file:
    extra = tomllib.load(file)["project"]["optional-dependencies"]["test"]
print(next(text for text in extra if re.match(r"torch\b(?!-)", text)))' "$root/pyproject.toml")
  # First and by itself, so that no open range elsewhere makes pip look at other versions, gigabytes each.
  pip_install "$torch"
  pip_install -e "$root[test]"
  pip_install -e "$root/build_tools"
}

prepare_environment test "$root/pyproject.toml" "$root/build_tools/pyproject.toml" "${BASH_SOURCE[0]}"
cd -- "$root"
exec "$env/bin/python" -m pytest "$@"
