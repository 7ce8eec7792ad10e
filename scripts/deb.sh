#!/usr/bin/env bash
# Makes the Debian package in target/debian and prints where it is: deb.sh
#
# Environment: HEKATE=PROGRAM to pack (else it is built in release).
set -eu
cd "$(dirname "$0")/.."
say() { echo "deb: $*" >&2; }
give_up() { echo "deb: $*" >&2; exit 2; }

for program in dpkg-shlibdeps:dpkg-dev strip:binutils gzip:gzip python3:python3; do
  command -v "${program%%:*}" >/dev/null || give_up "${program%%:*} is missing; run: apt-get install ${program##*:}"
done

# One version, built once and kept.
wanted=3.8.0
mkdir -p "${CARGO_TARGET_DIR:-target}/package"
tools=$(readlink -f "${CARGO_TARGET_DIR:-target}")/package
if [ "$("$tools/bin/cargo-deb" --version 2>/dev/null || true)" != "cargo-deb $wanted" ]; then
  say "building cargo-deb $wanted (minutes)"
  CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_TARGET_DIR=$tools/build \
    cargo install --quiet --locked --force --root "$tools" cargo-deb@$wanted >&2
  rm -rf "$tools/build"
fi

if [ -z "${HEKATE:-}" ]; then
  cargo build --release --locked -p hekate --features variation >&2
  HEKATE=${CARGO_TARGET_DIR:-target}/release/hekate
fi

# All that cargo-deb packs lies where crates/hekate/Cargo.toml says, wherever cargo builds.
stage=target/deb
rm -rf $stage
mkdir -p $stage
strip -o $stage/hekate "$HEKATE"
$stage/hekate man $stage/man
find $stage/man -type f -exec gzip -9n {} +
for shell in bash zsh fish; do $stage/hekate completion $shell >$stage/hekate.$shell; done
scripts/licences.py | gzip -9n >$stage/third-party-licences.txt.gz

"$tools/bin/cargo-deb" --no-build --no-strip --quiet --package hekate --output target/debian/ "$@"
