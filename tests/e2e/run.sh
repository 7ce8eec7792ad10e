#!/usr/bin/env bash
# Tests of the whole program from outside, on real mounts: run.sh [NAME | test_FILE.py | OPTION]...
#
# A NAME becomes a -k of pytest, which has all other options: run.sh -k rename -x; run.sh test_locks.py -n 4. Without names all
# tests run, side by side, and one that fails runs once more in the end.
#
# Environment: HEKATE=PROGRAM (else it is built in release), E2E_DIR=DIR for everything that the tests write [/var/tmp],
# E2E_WORKERS=N: so many tests at a time [2 a processor], E2E_AGAIN=0: none runs again, E2E_PATIENCE=N: all time limits N times as long [1],
# HEKATE_OWN_MOUNT=1: the first mount of a store is the server's own (serve --mount),
# CHECK_HISTORY=PROGRAM that judges recorded histories (else it is built),
# HEKATE_POSIX_TOOLS=DIR with what tests/posix/tools.sh builds (else it is built).
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
if [ -z "${HEKATE:-}" ]; then
  cargo build --release -p hekate
  HEKATE=$target/release/hekate
fi
HEKATE=$(readlink -f "$HEKATE")
export HEKATE
[ -x "$HEKATE" ] || { echo "hekate e2e: HEKATE=$HEKATE is no program" >&2; exit 2; }

files=() names='' options=() chosen='' once='' before=''
for word; do
  case "$before" in
  -[kmnopcWr] | --junitxml | --dist | --maxfail | --durations | --deselect | --ignore) options+=("$word") ;;
  *)
    case "$word" in
    -*) options+=("$word") ;;
    */*) files+=("$word") ;;
    *.py | *.py::*) files+=("tests/e2e/$word") ;;
    *) names="${names:+$names or }$word" ;;
    esac
    ;;
  esac
  case "$word" in
  -k* | -m* | --lf | --last-failed | --deselect* | --ignore*) chosen=1 ;;
  -x | --exitfirst | --maxfail*) once=1 ;;
  esac
  before=$word
done
if [ -n "$names" ]; then options+=(-k "$names"); fi
if [ -z "$chosen$names" ] && [ ${#files[@]} = 0 ]; then
  options=(-n "${E2E_WORKERS:-$(($(nproc) * 2))}" --dist loadgroup "${options[@]}")
  [ -n "$once" ] || [ "${E2E_AGAIN:-1}" = 0 ] || options+=(--again)
fi
# These two run programs of others, which are built once.
case "$names ${files[*]} $chosen" in
'  ' | *1 | *pjdfstest* | *posix* | *fsx*) HEKATE_POSIX_TOOLS=${HEKATE_POSIX_TOOLS:-$(tests/posix/tools.sh)} && export HEKATE_POSIX_TOOLS ;;
esac
# The judge of histories, which all of its tests would wait for.
if [ -z "$chosen$names${files[*]}${CHECK_HISTORY:-}" ] && command -v cargo >/dev/null; then
  cargo build -q -p hekate-sim --bin check-history
  CHECK_HISTORY=$(readlink -f "$target/debug/check-history") && export CHECK_HISTORY
fi
# Debian's Python, for which Debian's pytest is.
mkdir -p "$target" 2>/dev/null || true
export PYTHONDONTWRITEBYTECODE=1
# boto3, as scripts/setup.sh unpacks it.
export PYTHONPATH=$(readlink -f "$target")/boto3${PYTHONPATH:+:$PYTHONPATH}
# Other clients of S3, which scripts/setup.sh soak fetches.
export HEKATE_S3_CLIENTS=${HEKATE_S3_CLIENTS:-$(readlink -f "$target")/s3-clients}
exec /usr/bin/python3 -m pytest -c tests/e2e/pytest.ini -o cache_dir="$(readlink -f "$target")/pytest" "${options[@]}" "${files[@]:-tests/e2e}"
