# One command each. `make test` is what CI runs; `make check` never writes, `make fix` does.

BENCH_SYS ?= hekate:r2,gluster:r2,ptll
BENCH_W   ?= abcdefgh
REPS      ?= 3
ONCE      ?=
QUICK     ?=
SERVERS   ?= 1
MINUTES   ?= 60
# The crates with code for the modes that only measurements use, and the feature that they are built with.
MEASURING  = -p hekate -p hekate-replica -p hekate-server -p hekate-translators --features hekate/measuring

# Built as cargo test has built its parts: a build in release would take as long as many tests.
TESTED     = $(abspath $(or $(CARGO_TARGET_DIR),target))/debug/hekate

.DEFAULT_GOAL := help
.PHONY: help demo demo-stop test check fix fuzz bench bench-setup mutants soak soak-setup deny deb

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## a volume with two copies, a mount and real work in it; SERVERS=3 for three servers; ONCE=1 tears it down again; QUICK=1 for less work
	scripts/setup.sh demo
	ONCE=$(ONCE) SERVERS=$(SERVERS) QUICK=$(QUICK) scripts/demo.sh

demo-stop: ## stop what make demo left running
	scripts/demo.sh stop

test: ## everything that CI runs
	scripts/setup.sh test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy -p hekate --no-default-features --all-targets -- -D warnings
	cargo clippy $(MEASURING) --all-targets -- -D warnings
	PROPTEST_RNG_SEED=1 cargo test --workspace
	cargo test -p hekate-replica -p hekate-server --features hekate-server/measuring --lib raw
	/usr/bin/python3 -m pytest -q -n 2 -c python/pytest.ini python/tests python/examples
	cargo build -p hekate
	HEKATE=$(TESTED) tests/e2e/run.sh
	HEKATE=$(TESTED) $(MAKE) demo ONCE=1 QUICK=1
	HEKATE=$(TESTED) $(MAKE) demo ONCE=1 QUICK=1 SERVERS=3

check: ## format, lints, tidy, and that the fuzzing corpus is the encoders'; writes nothing
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy $(MEASURING) --all-targets -- -D warnings
	cargo xtask tidy
	cargo test -q -p hekate-fuzz-targets --test stable the_corpus

fix: ## format, apply what clippy suggests, write the fuzzing corpus, bless the hashes of the format documents
	cargo fmt --all
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged -- -D warnings
	cargo run -q -p hekate-fuzz-targets --bin write-corpus
	cargo xtask tidy --bless

fuzz: ## libFuzzer over every decoder, MINUTES=60 for all of them together; needs cargo-fuzz and a C++ compiler
	scripts/fuzz.sh $(MINUTES)

bench: ## measure side by side: BENCH_SYS=hekate:r2,gluster:r2,ptll BENCH_W=abcdefgh REPS=3 (as root)
	cargo build --release -p hekate --features measuring
	bench/run.py --sys $(BENCH_SYS) --w $(BENCH_W) --reps $(REPS)

bench-setup: ## install what bench needs: fio, xfsprogs, libfuse3-dev, GlusterFS (about 50 MB)
	scripts/setup.sh bench

soak: ## the long tests
	@[ -x tests/soak/run.sh ] || { echo "make soak: there is no tests/soak/run.sh in this version" >&2; exit 2; }
	tests/soak/run.sh

mutants: ## mutation tests of a brick's journal and recovery with cargo-mutants, if it is installed (about two hours)
	scripts/mutants.sh

soak-setup: ## install what soak needs beyond test: Samba (60 MB), qemu and mmdebstrap (85 MB), clients of S3 (180 MB)
	scripts/setup.sh soak

deb: ## the Debian package, in target/debian (docs/installing.md)
	scripts/deb.sh

deny: ## licences, bans, sources and advisories with cargo-deny, if it is installed
	@cargo deny --version >/dev/null 2>&1 || { \
	  echo "make deny: cargo-deny is not installed; run: cargo install cargo-deny --locked (some 10 minutes)." >&2; \
	  echo "make check has already looked at licences, bans and sources; advisories need cargo-deny." >&2; exit 2; }
	cargo deny check
