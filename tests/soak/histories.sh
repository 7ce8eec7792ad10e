#!/usr/bin/env bash
# Power cuts at every call of random histories of a brick: histories.sh [FIRST] [LAST]; 0 to 99,999 unless told.
#
# In slices, each with a line when it is done, so that a run that was ended can be gone on with. About 1,500 histories a
# minute on 2 cores. A failure prints the history, shortened, and its number for HEKATE_HISTORY.
set -eu
cd "$(dirname "$0")/../.."
first=${1:-0} last=${2:-99999} slice=2500
cargo test --release -p hekate-brick --no-run
while [ "$first" -le "$last" ]; do
  count=$((last - first + 1 < slice ? last - first + 1 : slice))
  HEKATE_HISTORIES_FROM=$first HEKATE_HISTORIES=$count cargo test --quiet --release -p hekate-brick \
    histories::whatever_happened -- --nocapture | grep -E "histories|panicked|HEKATE"
  first=$((first + count))
done
