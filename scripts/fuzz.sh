#!/usr/bin/env bash
# libFuzzer over all targets: fuzz.sh [MINUTES] [TARGET...]; the minutes are those of all targets together.
#
# What it finds new goes to fuzz/found/TARGET (not committed), a crash to fuzz/artifacts/TARGET. Exit 1: a target crashed.
set -eu
cd "$(dirname "$0")/.."

minutes=${1:-60}
shift || true
give_up() { echo "fuzz: $*" >&2; exit 2; }

cargo fuzz --version >/dev/null 2>&1 ||
  give_up "cargo-fuzz is missing; run: cargo install cargo-fuzz --locked"
command -v g++ >/dev/null || command -v c++ >/dev/null ||
  give_up "libFuzzer is C++, and there is no compiler; as root, run: apt-get install -y --no-install-recommends g++"

# Coverage and sanitizers are unstable flags: a nightly has them, and a stable toolchain that is told so.
if cargo +nightly --version >/dev/null 2>&1; then
  export RUSTUP_TOOLCHAIN=nightly
else
  echo "fuzz: no nightly toolchain (rustup toolchain install nightly); the stable one is told to take its flags"
  export RUSTC_BOOTSTRAP=1
fi
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/fuzz/target}

sanitizer=address
if ! cargo fuzz build -s "$sanitizer"; then
  sanitizer=none
  echo "fuzz: AddressSanitizer does not link here; going on without it"
  cargo fuzz build -s "$sanitizer"
fi

targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  mapfile -t targets < <(cargo fuzz list)
fi
seconds=$((minutes * 60 / ${#targets[@]}))
[ "$seconds" -gt 0 ] || seconds=1

host=$(rustc -vV | sed -n 's/^host: //p')
crashed=()
for target in "${targets[@]}"; do
  mkdir -p "fuzz/found/$target" "fuzz/artifacts/$target" "fuzz/regressions/$target"
  log=$(mktemp)
  "$CARGO_TARGET_DIR/$host/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -max_len=8192 \
    -detect_leaks=0 -print_final_stats=1 -artifact_prefix="fuzz/artifacts/$target/" \
    "fuzz/found/$target" "fuzz/corpus/$target" "fuzz/regressions/$target" >"$log" 2>&1 || crashed+=("$target")
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
  printf 'fuzz: %-22s %10s runs %8s a second\n' "$target" "${runs:-?}" "${rate:-?}"
  if [[ " ${crashed[*]:-} " = *" $target "* ]]; then
    grep -E "panicked at|ERROR|SUMMARY|Test unit written|deadly signal" -A 1 "$log" | head -n 12 >&2
  fi
  rm -f "$log"
done
find fuzz/regressions -type d -empty -delete
[ ${#crashed[@]} = 0 ] || { echo "fuzz: crashed: ${crashed[*]}; the inputs are in fuzz/artifacts" >&2; exit 1; }
echo "fuzz: ${#targets[@]} targets, $seconds s each, sanitizer $sanitizer, no crash"
