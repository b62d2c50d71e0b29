#!/usr/bin/env bash
# All checks, cheapest first. Stops at the first stage that fails.
set -euo pipefail
bin=$1/bin
cd "$(dirname "$0")/.."
# One torch thread a process: two spinning OpenMP threads on two busy cores only wait for each other.
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

need() { # what, apt packages: installed where CI is set, else its tests are skipped visibly
  local what=$1; shift
  local apt_line="apt-get install -y --no-install-recommends $*"
  if [ -n "${CI:-}" ]; then
    echo "== $what is missing: $apt_line"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && $apt_line >/dev/null
  else
    echo "== $what tests are SKIPPED: not installed here. To run them: sudo $apt_line"
  fi
}
if ! command -v pg_ctl >/dev/null && ! ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1; then
  need PostgreSQL postgresql
fi
command -v chromium >/dev/null || need Chromium chromium fonts-dejavu-core

stage() { # name, command...
  local name=$1 start=$SECONDS; shift
  echo "== $name"
  "$@"
  echo "== $name: done in $((SECONDS - start)) s"
}

stage "ruff" "$bin/ruff" check -q .
stage "format" "$bin/ruff" format -q --check .
stage "import contracts" "$bin/lint-imports"
# One process for half a minute: it runs beside the tests, which wait now and then. Alone: make lint.
"$bin/mypy" &
types=$!
# Three processes on two cores: many tests wait for a server, a lease or a sleeping drafter. Two runs,
# since each process loads every test file first.
tests=("$bin/pytest" -q -n 3 -p no:schemathesis --durations 12)
slow="postgres or browser or crash or package or model"
stage "tests and calibration" "${tests[@]}" --dist worksteal -m "not ($slow)"
stage "types" wait "$types"
# By file: what a file shares, such as the package's fresh environment or the engine of a real model, is
# built once. In our order, the longest first: left to itself the scheduler goes by the number of tests.
stage "PostgreSQL, browser, crash, package, real model" \
  "${tests[@]}" --dist loadfile --no-loadscope-reorder -m "$slow"
echo "== all stages passed"
