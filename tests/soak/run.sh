#!/usr/bin/env bash
# The long tests: what `make test` runs, more often and on a larger scale. About six hours on 2 cores; each part can be
# run alone: run.sh [PART...], parts: histories order creates fuzz replica rounds kills seeds against_ext4 mounts.
set -eu
cd "$(dirname "$0")/../.."

histories() { # 100,000 histories of a brick, the power cut at each of their calls: some 70 minutes
  tests/soak/histories.sh
}
order() { # 20,000 runs of the brick's machine whose IO ends in any order or never
  HEKATE_RUNS=20000 cargo test --release -p hekate-brick machine::tests
}
creates() { # a million creates in each shape, and what they cost in the end against the beginning: some 15 minutes
  HEKATE_CREATES=1000000 cargo test --release -p hekate-brick --test creates -- --nocapture
}
fuzz() { # libFuzzer for an hour, all decoders
  make fuzz MINUTES=60
}
replica() { # random name ops, and crashes after any record, 5,000 cases each
  PROPTEST_CASES=5000 cargo test --release -p hekate-replica
}
seeds() { # 5,000 simulated clusters under faults, and the planted bugs: about half an hour
  HEKATE_SEEDS=5000 cargo test -p hekate-sim faults_stop -- --nocapture
  cargo test -p hekate-sim --features planted planted_bugs_are_found -- --nocapture
}
rounds() { # the tests of brick, server and library ten times
  for round in $(seq 10); do
    echo "soak: round $round of 10"
    cargo test --release -p hekate-brick -p hekate-server -p hekate-client
  done
}
kills() { # 500 processes killed under load, with one server and with three, and everything acknowledged looked for: an hour
  cargo build --release -p hekate
  HEKATE_KILLS=500 tests/e2e/run.sh everything_acknowledged_survives_kills \
    acknowledged_by_three_survives_kills
  for round in $(seq 20); do
    echo "soak: kills, round $round of 20"
    tests/e2e/run.sh writers_wait_for_a_killed_server a_killed_server_starts_again_and_again processes_are_killed_under_load
  done
}
against_ext4() { # a million random system calls on mounts and on ext4, half of them on two mounts in turn: about an hour
  cargo build --release -p hekate
  for round in $(seq 5); do
    echo "soak: against ext4, round $round of 5"
    HEKATE_OPS=100000 HEKATE_SHORTEN_S=300 tests/e2e/run.sh one_mount_does_what_ext4_does two_mounts_in_turn_do_what_ext4_does
  done
}
mounts() { # 2,000 rounds of histories of three mounts, half of them while the server is killed: about an hour
  cargo build --release -p hekate
  for round in $(seq 5); do
    echo "soak: mounts, round $round of 5"
    HEKATE_ROUNDS=200 tests/e2e/run.sh three_mounts_see_one_order three_mounts_see_one_order_while_the_server_dies
  done
}

for part in ${*:-replica seeds rounds order creates kills against_ext4 mounts histories fuzz}; do
  case $part in
  histories | order | creates | fuzz | replica | rounds | kills | seeds | against_ext4 | mounts) "$part" ;;
  *) echo "soak: there is no part $part; parts: histories order creates fuzz replica rounds kills seeds against_ext4 mounts" >&2; exit 64 ;;
  esac
done
