# Every target first sets the checkout up (scripts/setup: quick if there is nothing to do).

PY := .venv/bin/python
# More workers than CI's two cores, since tests wait for processes, leases and JVMs more than they compute. worksteal, because tests differ much in
# length.
WORKERS ?= 4
# What to test, as in `make test TESTS=tests/store`: in all tiers, unless TIER names one.
TESTS ?=
# quick: tests that need only .venv, Java and system packages. operator: the gate's tests of the operator, on a real API server.
# full: all others, whose parts must be built or which take minutes. all: quick, then full (tests/harness/tiers.py).
TIER ?= $(if $(TESTS),all,quick)
# How large campaigns are (tests/harness/effort.py).
EFFORT ?= $(if $(TESTS),gate,$(if $(filter full all,$(TIER)),all,gate))
MINUTES ?= 60
# File in which the gate lists flaky tests; with it, failed tests are run once more (scripts/second_look.py). Only .ci/run sets it.
SECOND_LOOK ?=
# Not empty: lint, types and layers are checked already. Only .ci/run sets it, for its second tier.
CHECKED ?=
# Bytecode is written, also where the environment forbids it: or else each of hundreds of interpreters compiles the same modules.
PYTEST = PYTHONDONTWRITEBYTECODE= $(PY) $(if $(SECOND_LOOK),scripts/second_look.py $(SECOND_LOOK),-m pytest) --dist worksteal --durations=20 -n

.DEFAULT_GOAL := help
.NOTPARALLEL: # the steps of a target have an order
.PHONY: help setup ready parts images demo cluster-demo chaos test soak check format crd lock check-lock bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## the set-up alone: .venv, and Java 17 if there is none
	@sh scripts/setup

ready:
	@sh scripts/setup --quiet

parts: ready ## what the tests on Kubernetes start, built once from Go modules and kept outside the checkout
	@sh scripts/cluster-parts

images: ready ## OCI archives of the images in dist/, without a container engine (as root)
	@for image in operator spark etcd; do $(PY) scripts/images build $$image dist/$$image.tar || exit 1; done
	@$(PY) scripts/images dockerfiles

demo: ready ## one flights job, run once and answered from the record the second time
	@sh examples/flights/demo.sh

cluster-demo: ready ## Kubernetes, the chart, the flights pipeline, its tables (Linux, root); MONTHS=12, STORE=s3, KEEP=1
	@PYTHONPATH=tests:scripts $(PY) -m harness.node.demo

chaos: ready ## faults on a real cluster, ours beside plain SparkApplications (hours): docs/chaos.md; RUNS=5 ONLY= ARMS= MINUTES= SEED= TABLE=; WRITES=1: docs/writes.md
ifdef WRITES
	@PYTHONPATH=tests:scripts $(PY) benchmarks/chaos/chaos_writes.py $(if $(ONLY),--only "$(ONLY)")
else
	@PYTHONPATH=tests:scripts $(PY) benchmarks/chaos/chaos_session.py $(if $(RUNS),--runs $(RUNS)) $(if $(ONLY),--only "$(ONLY)") \
	  $(if $(ARMS),--arms "$(ARMS)") $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(TABLE),--table)
endif

test: ready ## lint, types, layers, then the quick tests; TIER=operator, TIER=all (CI=true: none may be skipped), TESTS=tests/store
ifeq (,$(CHECKED)) # beside it, since a type check keeps one core busy, the tests' modules are compiled: or else each worker would, at the same time
	@PYTHONDONTWRITEBYTECODE= $(PY) -m pytest --collect-only -qq --tier=$(TIER) $(TESTS) >/dev/null 2>&1 & $(MAKE) --no-print-directory check; red=$$?; wait; exit $$red
endif
	@sh scripts/setup --quiet --tests
ifeq (,$(TESTS)$(filter quick operator,$(TIER))) # runs that start few Sparks save less than making the archive costs
	@$(PY) tests/harness/spark_archive.py
endif
ifeq ($(TIER)$(TESTS),all)
	@red=0; SPARKONCE_FAILPOINTS_TALLY=$$(mktemp -d); export SPARKONCE_FAILPOINTS_TALLY; trap 'rm -r "$$SPARKONCE_FAILPOINTS_TALLY"' EXIT; EFFORT=$(EFFORT) $(PYTEST) $(WORKERS) --tier=quick || red=1; \
	sh scripts/cluster-parts || [ "$$CI" != true ] || exit 1; \
	EFFORT=$(EFFORT) $(PYTEST) $(WORKERS) --tier=full || red=1; exit $$red # both tiers, so that one run shows all failures; a laptop skips what it cannot build
else
ifeq ($(TIER),operator)
	@sh scripts/cluster-parts --operator || [ "$$CI" != true ]
endif
	@EFFORT=$(EFFORT) $(PYTEST) $(WORKERS) --tier=$(TIER) $(TESTS)
endif

soak: ready ## campaigns at full size with new seeds, for MINUTES=60: docs/soak.md
	@sh scripts/setup --quiet --tests
	@$(PY) tests/harness/spark_archive.py
	@$(PY) scripts/soak.py --minutes $(MINUTES) --workers $(WORKERS)

check: ready check-lock ## lint, format, types, layers, lock
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet . || { echo "run 'make format'" >&2; exit 1; }
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-logo

format: ready ## let ruff rewrite what it can
	@$(PY) -m ruff check --fix --quiet . || true
	@$(PY) -m ruff format .

crd: ready ## crds/ and the chart's copy from the model, which is their only source
	@mkdir -p crds
	@$(PY) -m sparkonce.model.crd > .venv/crd.yaml && mv .venv/crd.yaml crds/idempotentjobs.yaml
	@cp crds/idempotentjobs.yaml charts/sparkonce/files/crds/

lock: ready ## requirements.lock from pyproject.toml; UPGRADE=1 for the newest that fit
	@$(PY) scripts/lock.py $(if $(UPGRADE),--upgrade)

check-lock: ready
	@$(PY) scripts/lock.py --check

bench: ready ## what exactly-once costs, as medians of interleaved pairs
	@$(PY) benchmarks/run.py

clean: ## remove the environment and what the tools left
	@rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist spark-warehouse
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
