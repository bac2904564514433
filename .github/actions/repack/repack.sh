#!/usr/bin/env bash
# The step of the action: repacks $WHEELS (one path or pattern on each line) with $OPTIONS (quoted as in a shell),
# and gives the paths of the outputs to the steps behind it through $GITHUB_OUTPUT. Runs on the bash 3.2 of macOS.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../../../scripts/environment.sh"

fill() { pip_install 'packaging>=24.2'; }

find_wheels() { # sets `wheels`
  local pattern files
  local IFS=''
  shopt -s nullglob
  while read -r pattern || [ -n "$pattern" ]; do
    # Blanks around a line are the indentation of the YAML.
    pattern=${pattern#"${pattern%%[![:space:]]*}"}
    pattern=${pattern%"${pattern##*[![:space:]]}"}
    [ -n "$pattern" ] || continue
    # Only the pattern characters act: IFS is empty, so blanks stay where they are.
    # shellcheck disable=SC2206
    files=($pattern)
    if [ ! -e "$pattern" ] && [ "${#files[@]}" -eq 0 ]; then
      die "no file matches '$pattern'" "look at the input \`wheels\`; the step runs in $PWD"
    fi
    if [ -e "$pattern" ]; then files=("$pattern"); fi
    wheels+=("${files[@]}")
  done <<<"${WHEELS-}"
  shopt -u nullglob
  [ "${#wheels[@]}" -gt 0 ] || die "no wheel is given" "name them in the input \`wheels\`"
}

split_options() { # sets `options`
  local words word
  words=$(mktemp "${RUNNER_TEMP:-${TMPDIR:-/tmp}}/te-wheel.XXXXXX")
  if ! "$env/bin/python" -c 'import os, shlex, sys
try:
    words = shlex.split(os.environ.get("OPTIONS", ""), comments=True)
except ValueError as error:
    sys.exit(str(error))
sys.stdout.write("".join(word + "\0" for word in words))' >"$words" 2>"$words.why"; then
    word=$(cat -- "$words.why")
    rm -f -- "$words" "$words.why"
    die "the input \`options\` cannot be split: $word" "quote it as in a shell"
  fi
  while IFS='' read -r -d '' word; do options+=("$word"); done <"$words"
  rm -f -- "$words" "$words.why"
}

wheels=()
options=()
find_wheels
prepare_environment repack "${BASH_SOURCE[0]}"
split_options
code=0
# An array that is empty counts as unset before bash 4.4.
made=$("$env/bin/python" "$root/scripts/repack_wheel.py" ${options[@]+"${options[@]}"} -- "${wheels[@]}") || code=$?
if [ -n "${GITHUB_OUTPUT-}" ]; then
  end="end-of-wheels-$RANDOM$RANDOM$RANDOM"
  printf 'wheels<<%s\n%s\n%s\n' "$end" "$made" "$end" >>"$GITHUB_OUTPUT"
fi
[ -z "$made" ] || printf '%s\n' "$made"
exit "$code"
