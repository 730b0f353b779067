#!/usr/bin/env bash
# Makes or mends the virtual environment .venv with remixer_tf and all it needs: the
# packages of requirements.lock, whose hashes pip checks.
#
# Does nothing when .venv is up to date: newer than setup.py, requirements.lock and
# this file, and free of the two nightly packages below. `make` runs it every time.
set -euo pipefail
cd "$(dirname "$0")"
stamp=.venv/.installed

# tfds-nightly and seqio-nightly (from `pip install t5`) own the same files as
# tensorflow-datasets and seqio: whichever was installed last is what Python imports.
nightlies() {
  find .venv/lib*/python3*/site-packages -maxdepth 1 \
    \( -name 'tfds_nightly-*.dist-info' -o -name 'seqio_nightly-*.dist-info' \) \
    2>/dev/null || true
}

if [ -e $stamp ] && [ -z "$(nightlies)" ] && [ ! setup.py -nt $stamp ] &&
  [ ! requirements.lock -nt $stamp ] && [ ! install.sh -nt $stamp ]; then
  exit 0
fi

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  python=
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
      2>/dev/null; then
      python=$candidate
      break
    fi
  done
  if [ -z "$python" ]; then
    echo "remixer_tf needs Python 3.11, 3.12 or 3.13; tried:" \
      "${PYTHON:-python3.11 python3.12 python3.13 python3}." \
      "Name one with: make PYTHON=/path/to/python3.11" >&2
    exit 1
  fi
  echo "Creating .venv with $("$python" --version)"
  "$python" -m venv --clear .venv
fi

# Python compiles a module when it is first imported: most never are.
install() {
  .venv/bin/python -m pip --disable-pip-version-check install --quiet --no-compile \
    --no-deps "$@"
}
echo "Installing remixer_tf in .venv: some minutes and 3.9 GB the first time"
rm -f $stamp
if [ -n "$(nightlies)" ]; then
  echo "Replacing tfds-nightly and seqio-nightly by tensorflow-datasets and seqio"
  .venv/bin/python -m pip uninstall --quiet --yes tfds-nightly seqio-nightly \
    tensorflow-datasets seqio
fi
install --require-hashes --requirement requirements.lock
install --no-build-isolation --editable .
touch $stamp
