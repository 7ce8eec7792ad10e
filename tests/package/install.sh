#!/bin/bash
# In a fresh Debian 12: the package is installed, used, installed over itself, removed and purged.
set -eu
cd /
failed() { echo "package: install: $*" >&2; exit 1; }
step() { echo "package: install: $*"; }
refused() { # WORDS COMMAND...: it must fail and say so
  local words=$1 said
  shift
  if said=$("$@" 2>&1); then failed "$* succeeds; it should say: $words"; fi
  case $said in *"$words"*) ;; *) failed "$* says: $said; not: $words" ;; esac
}

step "dpkg -i"
dpkg -i /package.deb >/dev/null
[ "$(stat -c '%a %U' /var/lib/hekate)" = "700 root" ] || failed "/var/lib/hekate is $(stat -c '%a %U' /var/lib/hekate)"
[ "$(readlink -f /sbin/mount.hekate)" = /usr/bin/hekate ] || failed "no /sbin/mount.hekate"
[ -z "$(find /etc/systemd/system -name 'hekate*')" ] || failed "the unit is enabled before there is a cluster"
for page in hekate hekate-volume-create mount.hekate mount.fuse.hekate; do
  man -w $page >/dev/null || failed "man finds no $page"
done
[ "$(man -f hekate-volume-create)" = "hekate-volume-create (1) - Make a volume" ] || failed "whatis: $(man -f hekate-volume-create)"

step "units"
systemd-analyze verify /lib/systemd/system/hekate.service
said=$(hekate doctor) || failed "doctor: $said"
case $said in *bad*) failed "doctor: $said" ;; esac

step "a cluster, a server, a mount"
mkdir -p /srv/disk1 /srv/disk2 /mnt/photos
hekate init --brick /srv/disk1 --brick /srv/disk2 --journal 32 --volume photos --copies 2 >/dev/null 2>&1
umask 077 # it must not keep other users from the socket
hekate serve --detach >/dev/null
umask 022
[ "$(stat -c '%a' /run/hekate)" = 755 ] || failed "/run/hekate has mode $(stat -c '%a' /run/hekate)"
mount -t hekate photos /mnt/photos
head -c 5000000 /dev/urandom >/tmp/bytes
cp /tmp/bytes /mnt/photos/bytes
mount -o remount,ro /mnt/photos
refused "Read-only" touch /mnt/photos/new
mount -o remount,rw /mnt/photos
[ "$(stat -f -c %T /mnt/photos)" = fuseblk ] || [ "$(findmnt -no FSTYPE /mnt/photos)" = fuse.hekate ] || failed "no mount"

step "a user who is not root"
# Who the owner of a volume is decides, and nobody has no state directory.
hekate volume create theirs --owner 65534 >/dev/null
install -d -o nobody -g nogroup /mnt/theirs
as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/nonexistent "$@"; }
as_nobody hekate --server unix:/run/hekate/server.sock mount theirs /mnt/theirs >/dev/null
as_nobody sh -c 'echo theirs > /mnt/theirs/f && cat /mnt/theirs/f' >/dev/null
as_nobody fusermount3 -u /mnt/theirs

step "the same package again, over a server that runs"
dpkg -i /package.deb >/dev/null
cmp /tmp/bytes /mnt/photos/bytes || failed "the mount lost its bytes"

step "remove"
refused "volumes are mounted, unmount them first: /mnt/photos" dpkg -r hekate
hekate status >/dev/null || failed "a removal that is refused stops the server"
umount /mnt/photos
hekate status >/dev/null || failed "the server is gone"
dpkg -r hekate >/dev/null
[ -e /var/lib/hekate/coordinator.redb ] || failed "remove took the cluster's record"
[ ! -e /run/hekate/server.sock ] || failed "remove leaves the server running"
[ -e /etc/default/hekate ] || failed "remove took the settings"

step "purge keeps what bricks cannot be served without"
said=$(dpkg -P hekate 2>&1)
case $said in *"/var/lib/hekate stays"*) ;; *) failed "purge does not say what stays: $said" ;; esac
[ -e /var/lib/hekate/coordinator.redb ] && [ -e /srv/disk1/brick.toml ] || failed "purge took state"
[ ! -e /etc/default/hekate ] || failed "purge leaves the settings"

step "back again"
dpkg -i /package.deb >/dev/null
hekate serve --detach >/dev/null
mount -t hekate photos /mnt/photos
cmp /tmp/bytes /mnt/photos/bytes || failed "bytes are lost"
umount /mnt/photos
hekate stop >/dev/null
dpkg -r hekate >/dev/null
rm -r /var/lib/hekate
mkdir /var/lib/hekate
dpkg -P hekate >/dev/null 2>&1
[ ! -e /var/lib/hekate ] || failed "purge leaves an empty /var/lib/hekate"
left=$(find / -xdev -name '*hekate*' ! -path '/tmp/*' ! -path '/proc/*' ! -path '/var/cache/man/*' ! -path /package.deb)
[ -z "$left" ] || failed "left behind: $left"
step "passed"
