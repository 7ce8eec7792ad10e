#!/usr/bin/env bash
# Mutation tests of a brick's journal, log and recovery: mutants.sh [FILE...]. What no test notices is listed as missed in
# target/mutants/mutants.out/missed.txt; docs/mutants/brick.txt says why each known one is left. What an earlier run caught is
# not tried again.
set -eu
cd "$(dirname "$0")/.."
cargo mutants --version >/dev/null 2>&1 || {
  echo "mutants: cargo-mutants is missing; run: cargo install cargo-mutants --locked" >&2
  exit 2
}
files=("$@")
[ ${#files[@]} -gt 0 ] || files=(journal/read.rs machine/log.rs opening/recovery.rs journal.rs journal/format.rs machine/checkpoint.rs)
named=()
for file in "${files[@]}"; do named+=(-f "crates/brick/src/$file"); done
# Fewer histories than `make test` has: one that goes wrong is found soon, or not at all.
export HEKATE_HISTORIES=40 HEKATE_RUNS=40
# A mutant that loops for ever may ask for memory for ever.
ulimit -v 8388608
mkdir -p target/mutants
# `--lib` for the build too: the tests of the library are all that run.
exec cargo mutants -p hekate-brick "${named[@]}" -o target/mutants --profile mutants --timeout 150 --no-shuffle --iterate \
  --cargo-arg=--lib -- -- --skip all_histories_of_one_or_two
