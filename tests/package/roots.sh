#!/usr/bin/env bash
# Makes the Debian 12 systems that the package is tested in, unless they are there: roots.sh DIRECTORY
#
# fresh.tar: what the package depends on, systemd and man; tools.tar: lintian, and the shells and readers of man pages that few
# machines have. 600 MB there, some 200 MB to fetch. What is there is kept until this script changes.
set -eu
directory=$1
wanted=$(sha256sum <"$0" | cut -d' ' -f1)
[ "$(cat "$directory/made-by" 2>/dev/null || true)" != "$wanted" ] || exit 0

say() { echo "package: $*" >&2; }
give_up() { echo "package: $*" >&2; exit 2; }
[ "$(id -u)" = 0 ] || give_up "root makes them, for they are to have files of all users"
command -v mmdebstrap >/dev/null || give_up "mmdebstrap is missing; run scripts/setup.sh soak"
mkdir -p "$directory"
rm -f "$directory/made-by"

root() { # NAME PACKAGES
  say "fetching and unpacking Debian 12 with $2 (minutes)"
  # They need not be safe from a power cut.
  mmdebstrap --quiet --variant=minbase --mode=root --include="$2" --dpkgopt=force-unsafe-io bookworm "$directory/$1.tar" \
    >"$directory/$1.log" 2>&1 || give_up "that failed: $(tail -n 3 "$directory/$1.log")"
}
root fresh fuse3,man-db,mount,procps,systemd,systemd-sysv
root tools lintian,mandoc,zsh,fish
echo "$wanted" >"$directory/made-by"
