# Sourced by the other scripts: finds a Python and keeps an environment in .venvs of the checkout.
# shellcheck shell=bash

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
child=''

say() { printf '%s\n' "$*" >&2; }

die() { # FAULT HINT
  say "error: $1"
  say "hint: $2"
  exit 2
}

# Runs a command that takes a while in a process group of its own, and ends that with this script: bash itself
# would wait for it, or leave it behind.
run_child() { # COMMAND...
  local code=0
  set -m
  "$@" 9>&- &
  child=$!
  set +m
  wait "$child" || code=$?
  child=''
  return "$code"
}

end_child() { # SIGNAL-NUMBER
  trap '' INT TERM HUP
  if [ -n "$child" ]; then
    kill -TERM -- "-$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  exit "$((128 + $1))"
}
trap 'end_child 1' HUP
trap 'end_child 2' INT
trap 'end_child 15' TERM

# Sets `python`: $PYTHON where that is set, else the first of the usual names that is new enough.
find_python() {
  local candidate version found=''
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
    python=$(command -v -- "$candidate") || python=''
    if [ -z "$python" ]; then
      if [ "$candidate" = "${PYTHON:-}" ]; then
        die "PYTHON is '$PYTHON', which is no program" "set PYTHON to a Python of 3.11 or newer, or unset it"
      fi
      continue
    fi
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null &&
      # A program that ignores what it is asked is no Python.
      [ "$("$python" -c 'print("te-wheel")' 2>/dev/null || true)" = te-wheel ]; then
      "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        die "$python has no module venv, or none of ensurepip" "install it; on Debian and Ubuntu: apt install python3-venv"
      return
    fi
    version=$("$python" --version 2>&1 | head -n 1) || true
    case $version in Python*) ;; *) version='no version' ;; esac
    found="${found:-$version ($python)}"
    [ "$candidate" = "${PYTHON:-}" ] && break
  done
  die "Python 3.11 or newer is needed, found ${found:-none}" "install one, or set PYTHON to its path"
}

# Makes .venvs/NAME, or uses it again: the caller's function `fill` fills it. The stamp is written last, so
# an environment that was interrupted is made anew; where only FILEs changed, it is filled again. Of two runs at
# once the second waits, where there is flock. Sets `env`.
prepare_environment() { # NAME FILE...
  local identity digest stamp
  find_python
  env="$root/.venvs/$1"
  shift
  stamp="$env/.complete"
  identity="$root $("$python" -c 'import sys; print(sys.base_prefix, sys.version.split()[0])')"
  digest=$(cat -- "$@" | "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')
  is_complete && return
  mkdir -p -- "$root/.venvs"
  if command -v flock >/dev/null; then
    exec 9>"$env.lock"
    if ! flock -n 9; then
      say "waiting for another run, which makes the environment $env"
      flock 9
    fi
  fi
  is_complete || make_environment
  exec 9>&-
}

is_complete() {
  [ -f "$stamp" ] && [ "$(cat -- "$stamp")" = "$identity"$'\n'"$digest" ]
}

make_environment() {
  if [ ! -f "$stamp" ] || [ "$(head -n 1 -- "$stamp")" != "$identity" ]; then
    say "making the environment $env"
    rm -rf -- "$env"
    run_child "$python" -m venv -- "$env"
  fi
  rm -f -- "$stamp"
  fill
  printf '%s\n%s\n' "$identity" "$digest" >"$stamp.new"
  mv -- "$stamp.new" "$stamp"
}

pip_install() {
  say "installing $*"
  run_child "$env/bin/python" -m pip install --disable-pip-version-check --no-input --quiet "$@" >&2 ||
    die "cannot install $*" "see what pip says above; is a package registry reachable?"
}
