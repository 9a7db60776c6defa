# What a person or CI runs. Each target does its own set-up and is quick when run again.

MACHINE  ?= machines/opteron8385.toml
CPUS     ?= 8
POLICIES ?= first-touch,interleave,kernel,auto@pmu
# Rounds of the demonstration's programs: 0.6 to 1.5 s of guest time each by first touch.
SHARED      ?= 7
PARTITIONED ?= 52
LOCAL       ?= 60
REPEAT   ?= 3

# Who builds once has no use for what makes the next build quicker.
ifdef CI
export CARGO_INCREMENTAL := 0
endif

HITHER := target/release/hither
STEP   := scripts/step.sh
ifndef HITHER_START
export HITHER_START := $(shell date +%s)
endif

# Where `make install` puts everything; LIBDIR, INCLUDEDIR, MANDIR and SYSCONFDIR follow PREFIX.
PREFIX   ?= /usr/local
DESTDIR  ?=
export PREFIX DESTDIR LIBDIR INCLUDEDIR MANDIR SYSCONFDIR

# Of one workspace always: another choice of packages has other features, and builds all anew.
RELEASE := --workspace --exclude hither-python --exclude xtask

.PHONY: help setup build lab demo test meanwhile unit python model boot check bench drawings evidence install \
	uninstall deb clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo      three programs on an emulated four-node machine, under every policy'
	@echo 'make test      every test: unit, models, short boots, style'
	@echo 'make evidence  the long comparisons, into docs/evidence/ (hours); see below for parts'
	@echo
	@echo 'make setup     get what is missing (Debian packages, QEMU, Rust toolchain)'
	@echo 'make build     build everything, in release'
	@echo 'make unit      tests that need no root, network or QEMU'
	@echo 'make python    the Python wheel in a fresh environment: tests and examples (PyPI)'
	@echo 'make model     mover queues, replicated arrays, visits under model checkers: loom, shuttle'
	@echo 'make boot      tests that boot the emulated machine'
	@echo 'make check     formatting, clippy, the rules of this repository'
	@echo 'make bench     speed of the laboratory and of the mover queues'
	@echo 'make drawings  charts and pages in a browser without network (Chromium)'
	@echo 'make install   command, libraries, manual, completions into PREFIX=$(PREFIX); after make build'
	@echo 'make uninstall remove what `make install` put there; configuration that was changed stays'
	@echo 'make deb       a Debian package, into target/deb/'
	@echo 'make clean     remove what was built; downloads stay'
	@echo
	@echo 'Variables: MACHINE=$(MACHINE) CPUS=$(CPUS)'
	@echo '           POLICIES=$(POLICIES) REPEAT=$(REPEAT)'
	@echo
	@scripts/evidence.sh --list

setup:
	@$(STEP) 'set-up: packages, QEMU, Rust' scripts/setup.sh

# The Python wheel is built where it is tested (make python).
TARGETS := --lib --bins --examples
build: setup
	@$(STEP) 'build, release' cargo build --release $(RELEASE) $(TARGETS)

lab: build
	@$(STEP) 'laboratory: guest kernel' $(HITHER) lab setup

demo: lab
	@$(STEP) 'compare: $(POLICIES)' $(HITHER) lab compare --machine $(MACHINE) --cpus $(CPUS) \
		--policies $(POLICIES) -- target/release/cluster shared --rounds $(SHARED) \
		--- target/release/cluster partitioned --rounds $(PARTITIONED) \
		--- target/release/cluster local --rounds $(LOCAL)

# What boots leave idle of two cores is for the checks, the models, and for building the unit tests; these leave time,
# as many of them wait, for the Python package, which is made of the same parts. Three jobs: of two, boots would wait
# where the checks take longer than the build, as the models come before them. Who wants to know of a slip within a
# minute runs `make check`.
test: setup
	@$(MAKE) --no-print-directory --jobs=3 boot meanwhile
	@$(MAKE) --no-print-directory --jobs=2 unit python IDLE='$(BEHIND)'

BEHIND := chrt --idle 0
meanwhile: IDLE := $(BEHIND)
meanwhile: check model
	@$(STEP) 'unit tests: build' $(IDLE) cargo test --quiet --workspace --no-run

check: setup
	@$(STEP) 'check: formatting, clippy, tidy' $(IDLE) cargo xtask check

# Most wait for programs, for the kernel or for a while: more of them at a time than there are CPUs.
unit: setup
	@$(STEP) 'unit tests' env RUST_TEST_THREADS=$${RUST_TEST_THREADS:-4} \
		cargo test --quiet --workspace

# After the unit tests are built, whose parts the wheel is made of.
python: setup
	@$(STEP) 'Python: wheel, tests, examples' $(IDLE) scripts/python.sh

# Each has a target folder of its own, so that neither rebuilds what the other has built. Models run nothing of
# core and linux that takes time, and optimising them takes two minutes.
model: MODEL := --config profile.release.package.hither-core.opt-level=0 \
	--config profile.release.package.hither-linux.opt-level=0 --config profile.release.debug=false
model: setup
	@$(STEP) 'model: loom' $(IDLE) env RUSTFLAGS='--cfg loom' \
		cargo test --quiet --release $(MODEL) --package hither-mover --package hither-regions \
		--package hither-replica --lib --target-dir target/loom
	@$(STEP) 'model: shuttle' $(IDLE) env RUSTFLAGS='--cfg shuttle' \
		cargo test --quiet --release $(MODEL) --package hither-mover --lib --target-dir target/shuttle

# One at a time: two emulated machines on two cores wait for each other, 1919 s in all instead of 1390.
# The tests are built while the last of the commands, which is one long unit, leaves a CPU idle.
boot: TARGETS += --test boot
boot: lab
	@$(STEP) 'numactl of Debian 13' scripts/fetch-numactl.sh
	@$(STEP) 'boot tests' cargo test --quiet --release $(RELEASE) --test boot \
		-- --ignored --test-threads=1 --skip ::long_

bench: lab
	@$(STEP) 'speed of the laboratory' cargo bench --package hither-lab
	@$(STEP) 'speed of the mover queues' cargo bench --package hither-mover

drawings: setup
	@$(STEP) 'set-up: browser' scripts/setup.sh --drawings
	@$(STEP) 'drawings in a browser' scripts/check-drawings.sh

evidence: lab
	@$(STEP) 'set-up: measured programs' scripts/setup.sh --evidence
	@$(STEP) 'evidence' env MACHINE=$(MACHINE) CPUS=$(CPUS) POLICIES=$(POLICIES),auto@software \
		REPEAT=$(REPEAT) scripts/evidence.sh $(TABLES)

# Builds nothing, so that it may run as another user than the one who built.
install:
	scripts/install.sh target/release
	crates/capi/install.sh target/release/libhither.a

# Takes the same variables as `make install`.
uninstall:
	scripts/uninstall.sh target/release

deb: build
	@$(STEP) 'Debian package' scripts/deb.sh target/release target/deb

clean:
	cargo clean
