#!/usr/bin/env bash
# The long tests: what `make test` runs, more often and on a larger scale; hours on 2 cores. Each part can be run alone:
# run.sh [PART...]; without one all of them, in this order.
set -eu
cd "$(dirname "$0")/../.."

histories() { # 100,000 histories of a brick, the power cut at each of their calls: some 70 minutes
  tests/soak/histories.sh
}
damage() { # all histories of a brick of one or two steps, and damage to each block of an index: five minutes
  HEKATE_ALL=1 cargo test --release -p hekate-brick --lib -- histories::small index_damage
  cargo build --release -p hekate
  HEKATE_STRIDE=7 tests/e2e/run.sh a_damaged_index_is_named_and_never_a_panic
}
order() { # 20,000 runs of the brick's machine whose IO ends in any order or never
  HEKATE_RUNS=20000 cargo test --release -p hekate-brick machine::tests
}
creates() { # a million creates in each shape, and what they cost in the end against the beginning: some 15 minutes
  HEKATE_CREATES=1000000 cargo test --release -p hekate-brick --test creates -- --nocapture
}
fuzz() { # libFuzzer for an hour, all decoders
  make fuzz MINUTES=60
  HEKATE_FUZZ_MUTATIONS=10000 cargo test --release -p hekate-fuzz-targets --test stable
}
replica() { # random name ops, and crashes after any record, 5,000 cases each
  PROPTEST_CASES=5000 cargo test --release -p hekate-replica
}
seeds() { # 10,000 simulated clusters under faults, 10,000 narrow ones of each kind, and the planted bugs: six hours
  HEKATE_SEEDS=10000 cargo test --release -p hekate-sim faults_stop -- --nocapture
  HEKATE_SEEDS=10000 cargo test --release -p hekate-sim narrow_ -- --nocapture --test-threads 1
  cargo test --release -p hekate-sim --features planted planted_bugs_are_found -- --nocapture
}
explore() { # all states of the larger models of the protocol, up to 4 GiB of memory: ten minutes
  HEKATE_EXPLORE=large cargo test --release -p hekate-explore -- --nocapture --test-threads 1
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
posix() { # fsx with a million operations on each kind of file and mount, and pjdfstest ten times: some 50 minutes
  cargo build --release -p hekate
  HEKATE_FSX_OPS=1000000 tests/e2e/run.sh fsx_finds_what_it_wrote
  for round in $(seq 10); do
    echo "soak: pjdfstest, round $round of 10"
    tests/e2e/run.sh pjdfstest_as_root pjdfstest_as_nobody
  done
}

reexport() { # a mount that Samba serves on: a minute
  cargo build --release -p hekate
  tests/e2e/run.sh test_samba.py -m soak
}
s3_kills() { # 500 doors and servers killed in the middle of PUTs, parts, completions and deletes: 40 minutes
  cargo build --release -p hekate
  HEKATE_KILLS=500 tests/e2e/run.sh nothing_answered_is_lost_when_doors_and_servers_are_killed
  HEKATE_S3_STEPS=1000 tests/e2e/run.sh both_doors_see_each_other_at_once
}
s3_clients() { # awscli, s3cmd, rclone, restic and mc against the S3 door: five minutes
  cargo build --release -p hekate
  tests/e2e/run.sh test_s3_clients.py -m soak
}
disks() { # vDisks: 20,000 histories, 50 kills of servers and doors in mid-write, and a guest that boots from one: two hours
  cargo build --release -p hekate
  HEKATE_VDISK_HISTORIES=7000 cargo test --release -p hekate-vdisk --lib histories
  HEKATE_KILLS=50 tests/e2e/run.sh a_vdisk_goes_on_when_its_server_is_killed acknowledged_bytes_are_there_after_the_door_was_killed
  tests/e2e/run.sh test_nbd_guest.py -m soak
}
translators() { # the long tests of translators, then pjdfstest, fsx and random system calls above each transparent one and above random stacks: an hour
  # Less: HEKATE_STACKS=N random stacks [10], pjdfstest above the first HEKATE_PJDFSTESTS of them [all], HEKATE_SINGLE=0 for none above each one;
  # HEKATE_FSX_OPS and HEKATE_OPS as for the tests alone, HEKATE_SWAP_S of test_swaps.py, HEKATE the program [built].
  [ -n "${HEKATE:-}" ] || cargo build --release -p hekate
  tests/e2e/run.sh test_translators.py test_swaps.py -m soak
  local one=("negative-lookup:lifetime=1s" trace:file=/dev/null io-stats python:translator=hello python:translator=negative_lookup)
  local layers suites stacks=${HEKATE_STACKS:-10}
  if [ "${HEKATE_SINGLE:-1}" != 0 ]; then
    for layers in "${one[@]}"; do
      echo "soak: translators: $layers"
      HEKATE_TRANSLATORS=$layers tests/e2e/run.sh test_posix.py test_fsx.py test_against_ext4.py
    done
  fi
  for round in $(seq "$stacks"); do
    layers=$(shuf -n $((2 + RANDOM % 4)) -e "${one[@]}" | tr '\n' ' ')
    suites=(test_fsx.py test_against_ext4.py)
    [ "$round" -gt "${HEKATE_PJDFSTESTS:-$stacks}" ] || suites+=(test_posix.py)
    echo "soak: translators, stack $round of $stacks: $layers"
    HEKATE_TRANSLATORS=$layers tests/e2e/run.sh "${suites[@]}"
  done
}
containers() { # a Debian root made on an overlay on a mount, and used on overlays of two kinds: ten minutes, 60 MB from a mirror
  cargo build --release -p hekate
  tests/e2e/run.sh test_container_roots.py -m soak
}
programs() { # git, SQLite and PostgreSQL on mounts, killed with the server 30 times and more: half an hour
  cargo build --release -p hekate
  HEKATE_GIT_COMMITS=0 tests/e2e/run.sh git_does_what_it_does_on_a_local_disk
  HEKATE_ROUNDS=30 tests/e2e/run.sh postgres_survives_kills_together_with_the_server
  HEKATE_ROUNDS=50 tests/e2e/run.sh sqlite_in_rollback_mode_survives_kills sqlite_in_wal_mode_survives_kills \
    sqlite_over_two_mounts_loses_no_update
}
memory() { # a million files, and a million names in one directory, and what they take of memory: an hour
  cargo build --release -p hekate
  HEKATE_FILES=1000000 tests/e2e/run.sh many_files_take_bounded_memory many_names_in_a_directory
  HEKATE_FILES=10000 tests/e2e/run.sh thousands_of_names_are_listed_in_order
}
against_ext4() { # a million random system calls on mounts and on ext4, half of them on two mounts in turn: about an hour
  cargo build --release -p hekate
  for round in $(seq 5); do
    echo "soak: against ext4, round $round of 5"
    HEKATE_SEED=$RANDOM HEKATE_OPS=100000 HEKATE_SHORTEN_S=300 tests/e2e/run.sh one_mount_does_what_ext4_does two_mounts_in_turn_do_what_ext4_does
  done
}
chaos() { # the kinds that make test leaves out, then 200 faults of processes, network and disks on a cluster in namespaces, as root (docs/chaos.md): an hour
  cargo build --release -p hekate
  cargo build -p hekate-sim --bin check-history
  tests/e2e/run.sh test_chaos.py -m soak
  HEKATE=$(readlink -f "${CARGO_TARGET_DIR:-target}/release/hekate") \
    CHECK_HISTORY=$(readlink -f "${CARGO_TARGET_DIR:-target}/debug/check-history") python3 -B tests/chaos/run.py --cycles 200
}
mounts() { # 2,000 rounds of histories of three mounts, half of them while the server is killed: about an hour
  cargo build --release -p hekate
  for round in $(seq 5); do
    echo "soak: mounts, round $round of 5"
    HEKATE_HISTORIES=200 tests/e2e/run.sh three_mounts_see_one_order three_mounts_see_one_order_while_the_server_dies
  done
}
modes() { # the program with the modes for measuring (cargo feature `measuring`), end to end, and the one without defaults: five minutes
  cargo build --release -p hekate --features measuring
  HEKATE=${CARGO_TARGET_DIR:-target}/release/hekate tests/e2e/run.sh -m measuring
  cargo check -p hekate --no-default-features
}
guest() { # the end-to-end tests in a Debian 12 guest with Linux 6.1 under qemu: two hours if it is emulated
  tests/guest/run.sh
}
clocks() { # a guest with a cluster over etcd, whose clock is set forwards and back under load: an hour and more if it is emulated
  E2E_SETTINGS="HEKATE_SET_CLOCK=1" GUEST_STEADY=1 tests/guest/run.sh test_clocks.py -m soak
}
power() { # 50 times the power of a guest with a cluster is cut under load, two sets of torn disks each (docs/chaos.md): two hours if it is emulated
  cargo build --release -p hekate
  HEKATE=$(readlink -f "${CARGO_TARGET_DIR:-target}/release/hekate") python3 -B tests/chaos/power/run.py --rounds 50
}
etcd() { # the tests over etcd ten times, and what idle servers cost it: ten minutes
  for round in $(seq 10); do
    echo "soak: etcd, round $round of 10"
    cargo test -p hekate-etcd
  done
  cargo test -p hekate-etcd --test etcd -- --ignored --nocapture
}
package() { # the Debian package: linted, installed, removed, and booted by systemd: five minutes
  tests/package/run.sh
}

parts="replica explore seeds rounds order creates kills chaos against_ext4 mounts modes translators reexport s3_clients s3_kills disks containers programs posix memory etcd damage histories fuzz package power clocks guest"
for part in ${*:-$parts}; do
  case " $parts " in
  *" $part "*) "$part" ;;
  *) echo "soak: there is no part $part; parts: $parts" >&2; exit 64 ;;
  esac
done
