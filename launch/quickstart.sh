#!/usr/bin/env bash
# Everything on a fresh machine: environment, data, a small study, its report.
#
#   launch/quickstart.sh              configs/studies/quickstart.py into runs/quickstart
#   launch/quickstart.sh --help       what else it takes
#
# Needs Python 3.11 or newer ($PYTHON, or python3) and bash. Typed again, it goes on where it was.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
cd -- "$root"

find_python
mkdir -p runs
exec 9<>runs/.quickstart.lock
PYTHONPATH="$root" "$python" -m looped_jax.lock 9 runs/.quickstart.lock "launch/quickstart.sh" || exit
prepare_environment requirements.txt

# The process stays the same from here on, and with it the lock and the pid that it names.
exec "$venv_python" -m launch.quickstart "$@"
