#!/usr/bin/env bash
# Runs a program in a new copy of a Debian system that is thrown away afterwards: inside.sh ROOT.tar PACKAGE.deb PROGRAM
#
# The program finds the package at /package.deb. All processes and mounts are in namespaces of their own, which end with it.
set -eu
tar=$1 package=$2 program=$3
root=$(mktemp -d "${E2E_DIR:-/var/tmp}/hekate-package.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
tar -xf "$tar" -C "$root"
install -m 644 "$package" "$root/package.deb"
install -m 755 "$program" "$root/program"
unshare --mount --pid --fork --kill-child=KILL bash -eu -c '
  mount --make-rprivate /
  mount -t proc proc "$1/proc"
  mount --rbind /dev "$1/dev"
  mount -t tmpfs -o mode=755 tmpfs "$1/run"
  # As udev makes it, for every user.
  mknod -m 666 "$1/fuse" c 10 229
  mount --bind "$1/fuse" "$1/dev/fuse"
  exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive /program
' inside "$root"
