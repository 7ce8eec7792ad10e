#!/usr/bin/env bash
# What the promises cost: durable 4 KiB overwrites over a wire, with each piece of safety switched off in turn (as root, some 10 minutes).
#
#   bench/pieces.sh OUT.jsonl [DELAY] [SECONDS]
#
# Builds a program of its own that has the switches (feature `planted`); never use it for anything else. What is written without them
# is thrown away. Lines as of lanes.py, with `without`: 0 nothing, 27 lists of unsettled writes, 28 stamps (counts alone are compared),
# 101 sync, 102 checksums, 103 times (the inode's leader is not told).
set -eu
cd "$(dirname "$0")/.."
OUT=$1 DELAY=${2:-200} SECONDS_EACH=${3:-8}
if [ -z "${HEKATE:-}" ]; then
  cargo build --release -p hekate --features planted
  HEKATE=$(readlink -f "${CARGO_TARGET_DIR:-target}/release/hekate")
fi
for without in 0 27 28 101 102 103; do
  HEKATE=$HEKATE HEKATE_PLANTED=$without python3 -B bench/lanes.py --delays "$DELAY" --modes leader,hsr --jobs 1,8 --seconds "$SECONDS_EACH" --out "$OUT"
done
