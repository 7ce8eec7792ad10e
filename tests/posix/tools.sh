#!/usr/bin/env bash
# Builds what test_posix.py and test_fsx.py run, unless it is there, and prints the directory that it is in: tools.sh
#
# pjdfstest and fsx come from crates.io at one version each; passthrough_ll is the example of the libfuse that is installed.
set -eu
cd "$(dirname "$0")/../.."
say() { echo "posix: $*" >&2; }
mkdir -p "${CARGO_TARGET_DIR:-target}/posix/bin"
tools=$(readlink -f "${CARGO_TARGET_DIR:-target}")/posix
bin=$tools/bin

crate() { # NAME VERSION
  [ "$("$bin/$1" --version 2>/dev/null)" = "$1 $2" ] && return
  say "building $1 $2 (some 40 s)"
  # They wait for the file system that they test: the compiler need not try hard.
  CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_TARGET_DIR=$tools/build \
    cargo install --quiet --locked --force --root "$tools" "$1@$2" >&2
}

# Unpacked from the package where the documentation of packages is not installed, as in small containers.
example() {
  local shipped=/usr/share/doc/libfuse3-dev/examples
  [ -e $shipped/passthrough_ll.c ] || {
    (cd "$tools" && apt-get download -qq libfuse3-dev && dpkg-deb -x libfuse3-dev_*.deb package && rm libfuse3-dev_*.deb) >&2
    shipped=$tools/package$shipped
  }
  cp $shipped/passthrough_ll.c $shipped/passthrough_helpers.h "$tools/"
  printf '#define HAVE_UTIMENSAT 1\n#define HAVE_POSIX_FALLOCATE 1\n#define HAVE_FSTATAT 1\n' > "$tools/config.h"
}

passthrough_ll() {
  [ -x "$bin/passthrough_ll" ] && return
  example
  # shellcheck disable=SC2046 # several words
  gcc -O2 -w -I"$tools" -o "$bin/passthrough_ll" "$tools/passthrough_ll.c" $(pkg-config --cflags --libs fuse3)
}

preload() {
  [ "$bin/fsx_preload.so" -nt tests/posix/fsx_preload.c ] && return
  gcc -O2 -Wall -Wextra -Werror -shared -fPIC -o "$bin/fsx_preload.so" tests/posix/fsx_preload.c -ldl
}

crate pjdfstest 0.2.2
crate fsx 0.3.2
rm -rf "$tools/build"
passthrough_ll
preload
echo "$bin"
