#!/usr/bin/env bash
# The long tests: what `make test` runs, more often and on a larger scale. About 55 minutes on 2 cores.
#
# Random name ops and crashes after any record (5,000 cases each), the brick's and the library's tests ten times, twenty
# rounds of killing server and mount under load.
set -eu
cd "$(dirname "$0")/../.."
PROPTEST_CASES=5000 cargo test --release -p hekate-replica
for round in 1 2 3 4 5 6 7 8 9 10; do
  echo "soak: round $round of 10"
  cargo test --release -p hekate-brick -p hekate-server -p hekate-client
done
# A million creates in each shape, and what they cost in the end against the beginning; some 15 minutes.
HEKATE_CREATES=1000000 cargo test --release -p hekate-brick --test creates -- --nocapture
cargo build --release -p hekate
for round in $(seq 20); do
  echo "soak: kills, round $round of 20"
  tests/e2e/run.sh everything_acknowledged_survives_kills writers_wait_for_a_killed_server a_killed_server_starts_again_and_again
done
