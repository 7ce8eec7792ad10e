#!/usr/bin/env bash
# Makes sure that this machine has what a task needs: setup.sh demo|test|bench|soak
#
# As root it installs missing Debian packages; otherwise it prints the line that does and exits with 2.
set -eu
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }
give_up() { echo "setup: $*" >&2; exit 2; }

# Program and the Debian 12 package that brings it, with its installed size without what it depends on.
demo_programs=(
  fusermount3:fuse3     # 0.1 MB   mounts without being root
  gcc:gcc               # 130 MB   with cpp and binutils: the linker for Rust
  git:git               #  45 MB   works in the mount; lists the files for tidy
  make:make             # 1.6 MB
  sqlite3:sqlite3       # 0.5 MB   works in the mount
  python3:python3       #  20 MB   with its standard library: compares what was acknowledged with what is there
)
test_programs=(
  strace:strace         # 2.8 MB   shows that each disk is synced before the reply
  getfattr:attr         # 0.2 MB   extended attributes
)
# PostgreSQL 15 is 65 MB to fetch, with LLVM, ICU and Perl that it depends on; its programs are in no PATH.
postgres=/usr/lib/postgresql/15/bin/postgres
bench_programs=(
  fio:fio               # 2.1 MB   the load
  mkfs.xfs:xfsprogs     # 3.4 MB   bricks of the same kind for everybody
  getfattr:attr         # 0.2 MB
  pkg-config:pkg-config # 0.1 MB   builds passthrough_ll, with libfuse3-dev (0.7 MB)
  glusterd:glusterfs-server   # 3 MB and about 40 MB of libraries: the peer, and its
  glusterfs:glusterfs-client  # client
)
# Beyond the above the soak compiles pjdfstest: about 30 MB. The guest's own packages go into its image under target/.
soak_programs=(
  autoreconf:autoconf
  automake:automake
  prove:perl
  qemu-system-x86_64:qemu-system-x86  # 43 MB and about 40 MB of libraries: a guest with another kernel
  mmdebstrap:mmdebstrap               # 1 MB    makes its disk
  mke2fs:e2fsprogs                    # 1.5 MB
)

packages=()
need() { local pair; for pair; do command -v "${pair%%:*}" >/dev/null 2>&1 || packages+=("${pair##*:}"); done; }

task=${1:-}
need "${demo_programs[@]}"
[ -e "$(gcc -print-file-name=crt1.o 2>/dev/null || true)" ] || packages+=(libc6-dev) # 12 MB: what gcc links against
case $task in
  demo) ;;
  test)
    need "${test_programs[@]}"
    [ -x "$postgres" ] || packages+=(postgresql-15) ;;
  bench)
    need "${test_programs[@]}" "${bench_programs[@]}"
    [ -e /usr/include/fuse3/fuse_lowlevel.h ] || packages+=(libfuse3-dev) ;;
  soak)
    need "${test_programs[@]}" "${soak_programs[@]}"
    [ -x "$postgres" ] || packages+=(postgresql-15) ;;
  *) give_up "usage: scripts/setup.sh demo|test|bench|soak" ;;
esac

if [ ${#packages[@]} -gt 0 ]; then
  mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
  line="apt-get install -y --no-install-recommends ${packages[*]}"
  command -v apt-get >/dev/null || give_up "missing: ${packages[*]} (names of Debian packages); install them your system's way"
  [ "$(id -u)" = 0 ] || give_up "missing: ${packages[*]}; as root, run: apt-get update && $line"
  say "installing ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # Debian's PostgreSQL makes and starts a cluster when it is installed; the tests make their own.
  if [[ " ${packages[*]} " = *" postgresql-15 "* ]]; then
    no_cluster=/etc/postgresql-common/createcluster.d/hekate-setup.conf
    mkdir -p "${no_cluster%/*}"
    echo 'create_main_cluster = false' >"$no_cluster"
    trap 'rm -f "$no_cluster"' EXIT
  fi
  apt-get update -qq && $line -qq >/dev/null || give_up "that failed; run it by hand to see why: $line"
fi

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
