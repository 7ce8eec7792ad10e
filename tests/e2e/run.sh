#!/usr/bin/env bash
# Tests of the whole program from outside, on real mounts: run.sh [NAME...], all without a name.
#
# Environment: HEKATE=PROGRAM (else it is built in release), E2E_DIR=DIR for everything that the tests write [/var/tmp],
# HEKATE_OWN_MOUNT=1: the first mount of a store is the server's own (serve --mount),
# HEKATE_POSIX_TOOLS=DIR with what tests/posix/tools.sh builds (else it is built).
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${HEKATE:-}" ]; then
  cargo build --release -p hekate
  HEKATE=${CARGO_TARGET_DIR:-target}/release/hekate
fi
HEKATE=$(readlink -f "$HEKATE")
export HEKATE
[ -x "$HEKATE" ] || { echo "hekate e2e: HEKATE=$HEKATE is no program" >&2; exit 2; }
# These two run programs of others, which are built once.
case "${*:-all}" in
  all | *pjdfstest* | *fsx*) HEKATE_POSIX_TOOLS=${HEKATE_POSIX_TOOLS:-$(tests/posix/tools.sh)} && export HEKATE_POSIX_TOOLS ;;
esac
exec python3 -B tests/e2e/suite.py "$@"
