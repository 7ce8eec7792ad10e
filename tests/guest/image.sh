#!/usr/bin/env bash
# Makes the disk, kernel and initrd of a Debian 12 guest from Debian's packages, as root: image.sh DIRECTORY
#
# About 1.3 GB there and some 300 MB to fetch. What is there is kept until this script changes.
set -eu
directory=$1
init=$(dirname "$(readlink -f "$0")")/init
wanted=$(cat "$(readlink -f "$0")" "$init" | sha256sum | cut -d' ' -f1)
[ "$(cat "$directory/made-by" 2>/dev/null || true)" != "$wanted" ] || exit 0

say() { echo "guest: $*"; }
give_up() { echo "guest: $*" >&2; exit 2; }
[ "$(id -u)" = 0 ] || give_up "root makes the image, for it is to have files of all users"
command -v mmdebstrap >/dev/null || give_up "mmdebstrap is missing; run scripts/setup.sh soak"

packages=linux-image-amd64,python3,python3-pytest,python3-pytest-xdist,fuse3,git,sqlite3,attr,strace,iproute2,kmod,procps,postgresql-15,etcd-server
root=$directory/root
mkdir -p "$directory"
rm -rf "$root" "$directory/made-by"
trap 'rm -rf "$root"' EXIT
say "fetching and unpacking Debian 12 with its kernel into $directory (minutes)"
# No database cluster of its own: the tests make theirs. The files need not be safe from a power cut. The initrd has what
# mounts the disk and no more, for without hardware it takes a minute to unpack all that Debian puts there.
# shellcheck disable=SC2016
mmdebstrap --quiet --variant=minbase --mode=root --include="$packages" \
  --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --essential-hook='mkdir -p "$1/etc/postgresql-common/createcluster.d"' \
  --essential-hook='echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.d/tests.conf"' \
  --essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d"; echo MODULES=list >"$1/etc/initramfs-tools/conf.d/tests"' \
  --essential-hook='mkdir -p "$1/usr/share/initramfs-tools/modules.d"; printf "virtio_pci\nvirtio_blk\next4\n" >"$1/usr/share/initramfs-tools/modules.d/tests"' \
  bookworm "$root" >"$directory/image.log" 2>&1 || give_up "that failed: $(tail -n 3 "$directory/image.log")"
install -m 755 "$init" "$root/tests-init"
cp "$root"/boot/vmlinuz-* "$directory/kernel"
cp "$root"/boot/initrd.img-* "$directory/initrd"
say "making the disk"
rm -f "$directory/disk"
truncate -s 16G "$directory/disk"
mke2fs -q -t ext4 -d "$root" "$directory/disk"
echo "$wanted" >"$directory/made-by"
