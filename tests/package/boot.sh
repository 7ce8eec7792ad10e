#!/usr/bin/env bash
# Boots a new copy of a Debian system twice and throws it away: boot.sh ROOT.tar PACKAGE.deb PROGRAM
#
# systemd is process 1 of namespaces of its own: not the kernel is new, but units are started, ordered and stopped as at any
# boot. The program is told which boot it is, finds the package at /package.deb, and its end shuts the system down.
set -eu
tar=$1 package=$2 program=$3
directory=$(mktemp -d "${E2E_DIR:-/var/tmp}/hekate-package.XXXXXX")
root=$directory/root groups=$directory/groups
mkdir "$root" "$groups"
group=hekate-boot.$$
clean_up() {
  for _ in $(seq 50); do # the kernel lets go of the group a moment after its last process
    [ -d "$groups/$group" ] || break
    find "$groups/$group" -depth -type d -exec rmdir {} + 2>/dev/null && break
    sleep 0.1
  done
  umount "$groups" 2>/dev/null || true
  rm -rf --one-file-system "$directory"
}
trap clean_up EXIT
tar -xf "$tar" -C "$root"
install -m 644 "$package" "$root/package.deb"
install -m 755 "$program" "$root/program"
mkdir -p "$root/var/log/journal"
cat >"$root/etc/systemd/system/program.service" <<'END'
[Unit]
Description=The test
After=remote-fs.target hekate.service
[Service]
Type=oneshot
Environment=LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive HOME=/root
ExecStart=/bin/sh -c '/program "$(cat /boot-number)"; echo $? >/exit'
StandardOutput=append:/said
StandardError=append:/said
ExecStopPost=/bin/systemctl --no-block exit
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
END
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../program.service "$root/etc/systemd/system/multi-user.target.wants/program.service"

mount -t cgroup2 none "$groups" # the tree may be mounted nowhere else; what is in it is one
mkdir "$groups/$group"

boot() {
  echo "$1" >"$root/boot-number"
  rm -f "$root/exit" "$root/said"
  # In a subshell, for the group is left only by ending.
  timeout --signal=KILL "${BOOT_LIMIT_S:-300}" bash -eu -c '
    echo $$ >"$2/cgroup.procs"
    exec unshare --mount --pid --cgroup --uts --ipc --fork --kill-child=KILL bash -eu -c "
      mount --make-rprivate /
      cd \"\$1\"
      mount --bind . .
      cd \"\$1\"
      mount -t proc proc proc
      mount -t sysfs -o ro sysfs sys
      mount -t cgroup2 none sys/fs/cgroup
      mount -t tmpfs -o mode=755 tmpfs run
      mount -t tmpfs -o mode=755 tmpfs dev
      for device in null zero full random urandom tty fuse; do touch dev/\$device; mount --bind /dev/\$device dev/\$device; done
      mkdir dev/shm
      ln -s /proc/self/fd dev/fd
      mkdir -p old
      pivot_root . old
      umount -l /old
      exec env -i container=hekate-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --show-status=no --log-target=journal
    " boot "$1"
  ' boot "$root" "$groups/$group" </dev/null >"$directory/console" 2>&1 || true
  cat "$root/said" 2>/dev/null || true
  [ "$(cat "$root/exit" 2>/dev/null || true)" = 0 ] && return
  echo "package: boot $1 failed" >&2
  tail -n 20 "$directory/console" >&2
  exit 1
}
boot 1
boot 2
