# Sourced by the other scripts: makes .venv hold what requirements files list.
#
#   root            the project's folder
#   venv_python     the interpreter of .venv
#   prepare_environment requirements.txt …
#   say_how_python_is_run
#
# The interpreter of a new .venv is $PYTHON, or python3. Typed again it does nothing unless a
# requirements file has changed; interrupted, it starts again where pip was.
# shellcheck shell=bash

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
venv_python=$venv/bin/python

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

prepare_environment() {
  find_python
  mkdir -p -- "$venv"
  exec 8<>"$venv/.lock"
  PYTHONPATH="$root" "$python" -m looped_jax.lock --wait 8 "$venv/.lock" \
    "another installation into .venv" || exit
  "$venv_python" -c '' 2>/dev/null || make_venv
  local file
  for file in "$@"; do
    # The stamp is a copy of what was installed, made when pip was through.
    if ! cmp -s "$root/$file" "$venv/$file.installed"; then
      "$venv_python" -m pip --version >/dev/null 2>&1 || make_venv
      install_packages "$file"
      cp -- "$root/$file" "$venv/$file.installed"
    fi
  done
  exec 8>&-
}

# For what is typed next: the scripts use .venv, and a new shell does not.
say_how_python_is_run() {
  printf '\nfor python as in the README, once in every new shell: . .venv/bin/activate\n'
}

find_python() {
  python=${PYTHON:-python3}
  local version
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    fail "$python does not run: set PYTHON to a Python of at least 3.11"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is Python $version; allowed: at least 3.11, for instance PYTHON=python3.12 $0"
}

make_venv() {
  echo "making .venv with $("$python" --version)"
  rm -f -- "$venv"/*.installed
  "$python" -m venv "$venv" || fail "cannot make $venv (Debian and Ubuntu have it in the package" \
    "python3-venv; if .venv is damaged, remove it)"
}

install_packages() {
  local file=$1 log=$venv/$1.log
  echo "installing $file into .venv (log: $log)"
  if ! "$venv_python" -m pip install --disable-pip-version-check --no-input --progress-bar=off \
    -r "$root/$file" 2>&1 | tee -- "$log" | show_progress; then
    tail -n 15 -- "$log" >&2
    fail "pip could not install $file; all it said is in $log"
  fi
}

# Turns what pip prints into one line that renews itself, or into a line every 15 seconds.
show_progress() {
  local line status packages=0 doing=starting began=$SECONDS shown=$SECONDS
  while true; do
    status=0
    IFS= read -r -t 1 line || status=$?
    if ((status > 128)); then # nothing new within a second
      line=''
    elif ((status > 0)); then
      break
    fi
    case $line in
      Collecting* | *'already satisfied'*) packages=$((packages + 1)) ;;
    esac
    case $line in
      Collecting* | *Downloading* | Installing*) doing=${line#"${line%%[![:space:]]*}"} ;;
    esac
    if [[ -t 1 ]]; then
      printf '\r\033[K  %s s, %s packages: %s' $((SECONDS - began)) "$packages" "${doing:0:50}"
    elif ((SECONDS - shown >= 15)); then
      shown=$SECONDS
      printf '  %s s, %s packages: %s\n' $((SECONDS - began)) "$packages" "${doing:0:50}"
    fi
  done
  if [[ -t 1 ]]; then printf '\r\033[K'; fi
}
