#!/usr/bin/env bash
# Environment and checks: ruff, mypy, and all tests but the slow ones.
#
#   launch/test.sh                    everything, three test files at a time
#   launch/test.sh tests/model        arguments go to pytest, and then only it runs
#   launch/test.sh -m slow            the tests that take longer
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
cd -- "$root"
prepare_environment requirements.txt requirements-test.txt
trap say_how_python_is_run EXIT

if (($# == 0)); then
  "$venv_python" -m ruff check
  "$venv_python" -m ruff format --check
  "$venv_python" -m mypy
  set -- -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 --durations=12
fi
"$venv_python" -m pytest "$@"
