#!/bin/sh
# Makes build/peers/NAME from requirements/peers/NAME.txt: an environment for another
# system, in which the programs of docs/moving are run. Does nothing if it is up to date.
# Needs Python 3.11, and .venv for its uv.
#
# Usage: tools/python/make_peer.sh NAME
set -eu

cd "$(dirname "$0")/../.."
lock=requirements/peers/$1.txt
environment=build/peers/$1
stamp=$environment/.installed

find_python() {
  for candidate in .venv/bin/python python3.11; do
    if "$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info[:2] != (3, 11))' \
      >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  echo "error: $lock is for Python 3.11, and there is none with its venv module." \
    'On Debian: apt-get install python3.11-venv' >&2
  return 1
}

wanted() { cksum "$lock" && pwd; }

if [ -f "$stamp" ] && [ "$(wanted)" = "$(cat "$stamp")" ]; then
  exit 0
fi
# PyTorch without CUDA is not on PyPI. It comes from links given to pip, or from PyTorch's
# own index, which uv knows.
set --
if grep -q '^torch.*+cpu' "$lock"; then
  for links in ${PIP_FIND_LINKS:-}; do
    set -- "$@" --find-links "$links"
  done
  [ $# -gt 0 ] || set -- --torch-backend=cpu
fi
python=$(find_python)
echo "Making $environment from $lock."
rm -rf "$environment"
"$python" -m venv --without-pip "$environment"
.venv/bin/uv pip install --quiet --python "$environment/bin/python" \
  --no-python-downloads --system-certs --no-deps --require-hashes "$@" -r "$lock" || {
  echo "error: $lock could not be installed; the lines above have the reason. It takes" \
    'a package index, such as PyPI, that can be reached.' >&2
  exit 1
}
wanted >"$stamp"
