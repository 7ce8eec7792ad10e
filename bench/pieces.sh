#!/usr/bin/env bash
# What the promises cost: durable 4 KiB overwrites over a wire, with each piece of safety switched off in turn (as root, some 10 minutes).
#
#   bench/pieces.sh OUT.jsonl [DELAY] [SECONDS]
#
# Builds a program that has the switches (feature `planted`); use it for nothing else: it loses data. Lines as of lanes.py, with
# `without`: `nothing`, or the switch (crates/proto/src/planted.rs): fast-write-not-listed (no lists of unsettled writes),
# stamps-not-compared (counts alone are), sync-off, checksums-off, times-off (no request to the inode's leader).
set -eu
cd "$(dirname "$0")/.."
OUT=$1 DELAY=${2:-200} SECONDS_EACH=${3:-8}
if [ -z "${HEKATE:-}" ]; then
  cargo build --release -p hekate --features planted,measuring
  HEKATE=$(readlink -f "${CARGO_TARGET_DIR:-target}/release/hekate")
fi
for without in '' fast-write-not-listed stamps-not-compared sync-off checksums-off times-off; do
  HEKATE=$HEKATE HEKATE_PLANTED=$without python3 -B bench/lanes.py --delays "$DELAY" --modes leader,hsr --jobs 1,8 --seconds "$SECONDS_EACH" --out "$OUT"
done
