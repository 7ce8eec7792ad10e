#!/usr/bin/env bash
# The end-to-end tests in a Debian 12 guest with its own kernel (6.1) under qemu: run.sh [NAME...], all without a name.
#
# Environment: HEKATE=PROGRAM and CHECK_HISTORY=PROGRAM (else they are built in release), GUEST_DIR=DIR for its disks
# [target/guest], E2E_SETTINGS="A=B C=D" for the tests, GUEST_LIMIT_S=N for all of it [21600], GUEST_PATIENCE=N: how many
# times the tests' own limits [20; with hardware 3]. Nothing that the guest writes is kept.
# GUEST_STEADY=1: an emulated guest has one processor, whose clock counts instructions (4 ns each) while it is at work, so a
# busy machine does not make it late: for tests that need leases to last.
# tests/guest/pause.py stop|cont makes the guest's clock and work stand still while something else is measured.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/guest
target=${CARGO_TARGET_DIR:-target}
directory=${GUEST_DIR:-$target/guest}
mkdir -p "$directory"
directory=$(readlink -f "$directory")
give_up() { echo "guest: $*" >&2; exit 2; }
command -v qemu-system-x86_64 >/dev/null || give_up "qemu-system-x86_64 is missing; run scripts/setup.sh soak"
if [ -z "${HEKATE:-}" ]; then
  cargo build --release -p hekate
  HEKATE=$target/release/hekate
fi
if [ -z "${CHECK_HISTORY:-}" ]; then
  cargo build --release -p hekate-sim --bin check-history
  CHECK_HISTORY=$target/release/check-history
fi
[ -x "$HEKATE" ] || give_up "HEKATE=$HEKATE is no program"
"$here/image.sh" "$directory"

# The second disk: program, tests, what they run of others, and this repository for git to work with. What is built here
# runs there if the C library here is not newer.
run=$(mktemp -d "$directory/run.XXXXXX")
trap 'rm -rf "$run"' EXIT
mkdir -p "$run/tests/tests"
cp "$HEKATE" "$run/tests/hekate"
cp -r tests/e2e tests/posix tests/chaos "$run/tests/tests/"
mkdir "$run/tests/docs"
cp docs/semantics.md "$run/tests/docs/"
cp "$CHECK_HISTORY" "$run/tests/check-history"
cp -r "$(tests/posix/tools.sh)" "$run/tests/posix-tools"
git clone --quiet --bare --no-local . "$run/tests/source.git"
echo "$*" >"$run/tests/names"

# With hardware it is as fast as this machine; without, many times slower, and the tests' limits are longer. A /dev/kvm of
# neither Intel nor AMD (kvm_pvm, say) runs only kernels made for it.
accelerator=(-accel tcg,thread=multi -cpu max -smp 2) patience=${GUEST_PATIENCE:-20}
[ -z "${GUEST_STEADY:-}" ] || accelerator=(-accel tcg -cpu max -icount shift=2 -smp 1)
if [ -w /dev/kvm ] && { [ -d /sys/module/kvm_intel ] || [ -d /sys/module/kvm_amd ]; }; then
  accelerator=(-accel kvm -cpu host -smp 2) patience=${GUEST_PATIENCE:-3}
fi
# One test at a time, since the guest has little to spare, and nothing is written beside the tests.
{
  echo "E2E_PATIENCE=$patience E2E_WORKERS=0 E2E_AGAIN=0 PYTEST_ADDOPTS='-p no:cacheprovider'"
  for setting in ${E2E_SETTINGS:-}; do echo "$setting"; done
} >"$run/tests/settings"
truncate -s 2G "$run/disk"
mke2fs -q -t ext4 -d "$run/tests" "$run/disk"
rm -rf "$run/tests"

# no_timer_check: an emulated timer on a busy machine is too late for the kernel's own test of it.
echo "guest: booting (${accelerator[*]})"
status=0
TMPDIR=$run timeout "${GUEST_LIMIT_S:-21600}" qemu-system-x86_64 -machine pc "${accelerator[@]}" -m 3072 \
  -display none -no-reboot -nic none -monitor none -serial stdio -qmp unix:"$directory/qmp",server=on,wait=off \
  -drive file="$directory/disk",format=raw,if=virtio,snapshot=on -drive file="$run/disk",format=raw,if=virtio,readonly=on \
  -kernel "$directory/kernel" -initrd "$directory/initrd" \
  -append "root=/dev/vda rw console=ttyS0 panic=-1 edd=off no_timer_check init=/tests-init" </dev/null |
  sed -u 's/\r//g' | tee "$directory/console.log" || status=$?
[ "$status" != 124 ] || give_up "not done after ${GUEST_LIMIT_S:-21600} s"
grep -q '^guest: Linux 6\.1\.' "$directory/console.log" || give_up "no guest with Linux 6.1 came up; see $directory/console.log"
grep -q '^guest: the tests ended with 0$' "$directory/console.log" || give_up "tests failed; see $directory/console.log"
