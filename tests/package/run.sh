#!/usr/bin/env bash
# The Debian package in Debian 12 systems that are thrown away afterwards: installed, removed, booted, linted: run.sh [PACKAGE.deb]
#
# Without one it is made (scripts/deb.sh). Needs root, some 700 MB under target/ and minutes.
set -eu
cd "$(dirname "$0")/../.."
[ "$(id -u)" = 0 ] || { echo "package: it mounts and changes roots, so it needs root" >&2; exit 2; }
package=${1:-$(scripts/deb.sh)}
roots=$(readlink -f "${CARGO_TARGET_DIR:-target}")/package
tests/package/roots.sh "$roots"
tests/package/inside.sh "$roots/tools.tar" "$package" tests/package/lint.sh
tests/package/inside.sh "$roots/fresh.tar" "$package" tests/package/install.sh
tests/package/boot.sh "$roots/fresh.tar" "$package" tests/package/booted.sh
echo "package: passed"
