#!/bin/bash
# In a Debian 12 that systemd has booted: the unit through the life of a package, and over a second boot.
set -eu
boot=$1
cd /
failed() {
  echo "package: boot $boot: $*" >&2
  systemctl status --no-pager hekate.service mnt-photos.mount >&2 || true
  exit 1
}
step() { echo "package: boot $boot: $*"; }
shown() { systemctl show --property "$1" --value hekate.service; }
is() { [ "$2" = "$3" ] || failed "$1 is $2, not $3"; }
journal() { journalctl --no-pager --unit hekate.service --output "$@"; }

if [ "$boot" = 2 ]; then
  step "the server was started and the volume mounted at boot"
  is "hekate.service" "$(systemctl is-active hekate.service)" active
  # With nofail nothing else of the boot waits for it.
  for _ in $(seq 100); do
    [ "$(systemctl is-active mnt-photos.mount || true)" = active ] && break
    sleep 0.1
  done
  is "the file system" "$(findmnt --noheadings --output FSTYPE /mnt/photos)" fuse.hekate
  cmp /bytes /mnt/photos/bytes || failed "bytes are lost"
  step "and at the end of the first boot it was unmounted before the server stopped"
  said=$(journalctl --no-pager --output cat)
  unmounted=$(grep -n '^Unmounted .*/mnt/photos\|^mnt-photos.mount: Deactivated' <<<"$said" | head -n 1 | cut -d: -f1)
  stopping=$(grep -n '^Stopping hekate.service' <<<"$said" | tail -n 1 | cut -d: -f1)
  [ -n "$unmounted" ] && [ -n "$stopping" ] && [ "$unmounted" -lt "$stopping" ] ||
    failed "unmounted at line $unmounted, stopping at line $stopping of: $(tail -n 40 <<<"$said")"

  step "remove stops the server, once nothing is mounted"
  if dpkg -r hekate >/dev/null 2>&1; then failed "removed while a volume is mounted"; fi
  is "after a refused removal hekate.service" "$(systemctl is-active hekate.service)" active
  umount /mnt/photos
  dpkg -r hekate >/dev/null
  is "after the removal hekate.service" "$(systemctl is-active hekate.service || true)" inactive
  dpkg -P hekate >/dev/null 2>&1
  left=$(find /etc/systemd -name '*hekate*')
  is "what purge leaves in /etc/systemd" "$left" ""
  step "passed"
  exit 0
fi

step "without a cluster the unit is skipped, not failed"
dpkg -i /package.deb >/dev/null
is "the unit" "$(systemctl is-enabled hekate.service || true)" disabled
systemctl start hekate.service
is "hekate.service" "$(systemctl is-active hekate.service || true)" inactive
is "its condition" "$(shown ConditionResult)" no

step "started once it serves, in the mount namespace of the machine"
mkdir -p /srv/disk1 /srv/disk2 /mnt/photos
said=$(hekate init --brick /srv/disk1 --brick /srv/disk2 --journal 32 --volume photos --copies 2 2>/dev/null)
case $said in *"next: systemctl enable --now hekate"*) ;; *) failed "init says: $said" ;; esac
systemctl --quiet enable --now hekate.service
hekate status >/dev/null || failed "it does not answer when systemd says that it is started"
is "what it is at" "$(shown StatusText)" "serving at /run/hekate/server.sock"
pid=$(shown MainPID)
is "its mount namespace" "$(readlink "/proc/$pid/ns/mnt")" "$(readlink /proc/1/ns/mnt)"
# systemd gives no more than it may have itself.
most=$(awk '/^Max open files/ { print $5 < 1048576 ? $5 : 1048576 }' /proc/1/limits)
is "its limit of open files" "$(awk '/^Max open files/ { print $4 }' "/proc/$pid/limits")" "$most"
is "/var/lib/hekate" "$(stat -c %a /var/lib/hekate)" 700
is "/run/hekate" "$(stat -c %a /run/hekate)" 755

step "journal lines have priorities and no marks"
is "the line" "$(journal cat | grep -c '^serving at /run/hekate/server.sock$')" 1
journal export | grep -B 30 '^MESSAGE=serving at' | grep -q '^PRIORITY=6$' || failed "no priority: $(journal export)"
is "lines with marks" "$(journal cat | grep -c '^<[0-9]>' || true)" 0

step "a line of /etc/fstab"
echo 'photos /mnt/photos hekate _netdev,nofail,x-systemd.after=hekate.service 0 0' >>/etc/fstab
systemctl daemon-reload
systemctl start mnt-photos.mount
head -c 5000000 /dev/urandom >/bytes
cp /bytes /mnt/photos/bytes

step "an upgrade restarts the server under a mount that is written to"
epochs=$(hekate --json volume show photos | grep '"epoch"')
(n=0; while [ ! -e /enough ]; do echo "$n" >>/mnt/photos/log || { echo "write $n" >/lost; break; }; n=$((n + 1)); done; echo "$n" >/written) &
sleep 1
dpkg -i /package.deb >/dev/null
[ "$(shown MainPID)" != "$pid" ] || failed "the server was not restarted"
is "the mount" "$(systemctl is-active mnt-photos.mount)" active

step "a killed server is started again"
pid=$(shown MainPID)
kill -KILL "$pid"
for _ in $(seq 100); do
  [ "$(systemctl is-active hekate.service || true)" = active ] && [ "$(shown MainPID)" != "$pid" ] && break
  sleep 0.2
done
is "hekate.service" "$(systemctl is-active hekate.service || true)" active
touch /enough
wait
[ ! -e /lost ] || failed "a program in the mount was told of it: $(cat /lost)"
is "lines that were written" "$(wc -l </mnt/photos/log)" "$(cat /written)"
is "the views, which change when a brick's disk seems to be mounted anew," \
  "$(hekate --json volume show photos | grep '"epoch"')" "$epochs"

step "hekate stop is no failure, and leaves nothing in /run"
umount /mnt/photos
hekate stop >/dev/null
sleep 3
is "hekate.service" "$(systemctl is-active hekate.service || true)" inactive
[ ! -e /run/hekate ] || failed "/run/hekate is still there"
journal cat | grep -q '^stopping$' || failed "nothing says that it stopped"
is "its result" "$(shown Result)" success
systemctl start hekate.service mnt-photos.mount
cmp /bytes /mnt/photos/bytes || failed "bytes are lost"
