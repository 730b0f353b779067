#!/usr/bin/env bash
# Writes requirements.lock: all that `make install` installs, with SHA-256 hashes, for
# Python 3.11 to 3.13. Versions come from constraints.txt. It needs uv.
set -euo pipefail
cd "$(dirname "$0")/.."
compile=(uv pip compile --quiet --universal --python-version 3.11 --generate-hashes
  --no-header --no-annotate)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# These two come without their dependencies (see setup.py).
grep -vE '^(seqio|t5)==' constraints.txt >"$work/constraints.txt"
grep -E '^(seqio|t5)==' constraints.txt >"$work/alone.txt"
"${compile[@]}" --constraint "$work/constraints.txt" --no-emit-package seqio \
  --extra dev --output-file "$work/all.txt" setup.py >/dev/null
"${compile[@]}" --no-deps --output-file "$work/alone.lock" "$work/alone.txt" >/dev/null
{
  echo "# Made by .ci/lock.sh; change constraints.txt or setup.py and run it again."
  cat "$work/all.txt" "$work/alone.lock"
} >requirements.lock
