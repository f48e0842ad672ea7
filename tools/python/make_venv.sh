#!/bin/sh
# Makes .venv with the packages of requirements.lock and this package, installed from the
# checkout. `make_venv.sh core` makes build/core from requirements/core.lock instead, which
# has no TensorFlow. Does nothing if the environment is up to date, and starts again if an
# earlier run was interrupted: the stamp, which lists what is installed, is written last.
#
# Environment: PYTHON, the interpreter to use instead of searching for one.
set -eu

cd "$(dirname "$0")/../.."
case ${1:-} in
  core)
    target=test-core venv=build/core lock=requirements/core.lock newest=14
    supported='3.9 to 3.14'
    reason='its packages are locked for no other'
    ;;
  *)
    target=venv venv=.venv lock=requirements.lock newest=11
    supported='3.9, 3.10 or 3.11'
    reason='TensorFlow Federated 0.87 supports no other'
    ;;
esac
stamp=$venv/.installed

# Runs the interpreter, because one that exists may not run, such as a shim of pyenv.
is_supported="import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, $newest))"
runs() { "$1" -c "$is_supported" >/dev/null 2>&1; }
can_make_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }
version_of() { "$1" -c 'import platform; print(platform.python_version())'; }

find_python() {
  if [ -n "${PYTHON:-}" ]; then
    candidates=$PYTHON
  else
    candidates='python3.11 python3.10 python3.9 python3 python'
    [ "$newest" = 11 ] || candidates="python3.14 python3.13 python3.12 $candidates"
  fi
  without_venv=
  for candidate in $candidates; do
    runs "$candidate" || continue
    if can_make_venv "$candidate"; then
      echo "$candidate"
      return
    fi
    : "${without_venv:=$candidate}"
  done
  if [ -n "$without_venv" ]; then
    minor=$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    cat >&2 <<END
error: $without_venv (Python $minor) cannot make virtual environments: it lacks its
venv or ensurepip module. On Debian and Ubuntu:

    apt-get install python$minor-venv
END
  elif [ -n "${PYTHON:-}" ]; then
    cat >&2 <<END
error: PYTHON=$PYTHON is not a Python $supported that runs, and
$reason. Name one of these, or leave PYTHON out to
search for one.
END
  else
    cat >&2 <<END
error: no Python $supported found (tried: $candidates), and
$reason. On Debian:

    apt-get install python3.11 python3.11-venv

or name one that is installed elsewhere: make $target PYTHON=/path/to/python3.11
END
  fi
  return 1
}

# Prints the expected stamp: checksums of the files that decide what is installed, the
# version of Python, and the folder, because an environment cannot be moved.
wanted() {
  cksum "$lock" setup.py
  grep '^__version__' tff_dp_aggregators/__init__.py
  version_of "$1"
  pwd
}

# Prints one requirement of the lock, with its hashes.
locked() {
  awk -v name="$1" '
    /^[^ ]/ { wanted = index($0, name "==") == 1 }
    wanted { print }
  ' "$lock"
}

# Compiles to bytecode, as pip does. TensorFlow and TFF have 5,000 modules, and compiling
# them takes 8 s of each start if PYTHONDONTWRITEBYTECODE is set.
install_with_uv() {
  locked uv >"$venv/uv.lock" &&
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
      --no-deps --require-hashes -r "$venv/uv.lock" &&
    uv_install --compile-bytecode --require-hashes -r "$lock" &&
    uv_install --no-build-isolation -e .
}

# Uses the system's certificates, as pip does.
uv_install() {
  "$venv/bin/uv" pip install --python "$venv/bin/python" --no-python-downloads \
    --system-certs --no-deps "$@"
}

install_with_pip() {
  pip_install --require-hashes -r "$lock" &&
    pip_install --no-build-isolation -e .
}

pip_install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-deps "$@"
}

# Only one run at a time. The lock is on the checkout's folder. Processes that an
# interrupted run left behind hold it too, so that no files are removed while they run.
if command -v flock >/dev/null; then
  exec 9<.
  flock -n 9 || {
    echo "Waiting for another run that makes $venv." >&2
    flock 9
  }
fi

current=$venv/bin/python
if [ -f "$stamp" ] && runs "$current" &&
  [ "$(wanted "$current")" = "$(cat "$stamp")" ] &&
  { [ -z "${PYTHON:-}" ] ||
    [ "$(version_of "$PYTHON" 2>/dev/null)" = "$(version_of "$current")" ]; }; then
  exit 0
fi

# Compares folders, because an environment's interpreter is a link to the one that made it.
if [ -n "${PYTHON:-}" ] && [ "$(dirname "$PYTHON")" -ef "$venv/bin" ]; then
  echo "error: PYTHON=$PYTHON is the environment to be made; name another one." >&2
  exit 1
fi
python=$(find_python)
echo "Making $venv from $lock with Python $(version_of "$python")."
rm -rf "$venv"
"$python" -m venv "$venv"
if ! install_with_uv; then
  echo 'uv could not install the lock; trying pip, which takes longer.' >&2
  install_with_pip
fi
wanted "$current" >"$stamp"
