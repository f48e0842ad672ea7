#!/bin/sh
# Builds the sdist, and the wheel from it, into dist/. Installs each into a new environment
# with the packages of requirements.lock, and there makes the report of a published model
# and runs a simulation, as a user would.
set -eu

cd "$(dirname "$0")/../.."
uv=.venv/bin/uv
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Uses the system's certificates, as pip does.
install() {
  "$uv" pip install --quiet --python "$environment/bin/python" \
    --no-python-downloads --system-certs --no-deps "$@"
}

commit=$(git rev-parse HEAD 2>/dev/null || true)
rm -rf dist
"$uv" build --quiet --no-build-isolation --python .venv/bin/python --out-dir dist .

for file in dist/*.tar.gz dist/*.whl; do
  environment=$scratch/$(basename "$file")
  .venv/bin/python -c 'import sys, venv; venv.create(sys.argv[1])' "$environment"
  install --require-hashes -r requirements.lock
  install --no-build-isolation "$file"
  (
    cd "$scratch"
    "$environment/bin/tff-dp-report" --mechanism=tree --num_rounds=2000 \
      --rounds_between=313 --max_participations=6 --noise_multiplier=7 \
      --target_delta=1e-10 >report.txt
    # A package built from a checkout names its commit in reports.
    for words in '(8.5261, 1e-10)' "$commit"; do
      grep -qF -e "$words" report.txt || {
        echo "error: the report does not say $words:" >&2
        cat report.txt >&2
        exit 1
      }
    done
    "$environment/bin/tff-dp-plan" --help >/dev/null
    "$environment/bin/tff-dp-participation" --help >/dev/null
    # In a folder that has another `experiments`.
    rm -rf elsewhere
    mkdir -p elsewhere/experiments
    cd elsewhere
    touch experiments/__init__.py
    echo 'print("my own")' >experiments/simulate.py
    [ "$("$environment/bin/python" -m experiments.simulate)" = 'my own' ]
    for command in "$environment"/bin/tff-dp-*; do
      "$command" --help >/dev/null
    done
    simulate="$environment/bin/python -m tff_dp_aggregators.experiments.simulate"
    $simulate --help | grep -qF 'tff-dp-simulate --mechanism'
    # Into a file, because a worker process may keep the output open.
    "$environment/bin/tff-dp-simulate" --num_rounds=2 --run_dir=run >log 2>&1 ||
      { cat log >&2; exit 1; }
    "$environment/bin/tff-dp-report" --run_dir=run >report.txt
    grep -qF -e "$commit" report.txt || {
      echo "error: the report of a run does not say $commit" >&2
      exit 1
    }
    cd ..
    # All layers, including those that need TensorFlow.
    "$environment/bin/python" -I -c '
import importlib, pathlib, sys
import tff_dp_aggregators as package
assert pathlib.Path(sys.prefix) in pathlib.Path(package.__file__).parents, package
for name in package.__all__:
  getattr(package, name)
' 2>log || { cat log >&2; exit 1; }
  )
  echo "$file works."
done
