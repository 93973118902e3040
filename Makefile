# One target for each everyday task. Each installs the packages that it needs into .venv.
VENV   ?= .venv
PYTHON ?= python3
# In `make test-python PYTHON=3.13`, PYTHON is a version and does not choose the interpreter of .venv.
ifneq ($(filter test-python,$(MAKECMDGOALS)),)
OTHER_PYTHON := $(filter-out python3,$(PYTHON))
override PYTHON := python3
endif
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
PYTEST := $(PY) -m pytest
# Tests spend half of their time waiting, so four workers keep two cores busy. The tests of a file run one after
# the other. Workers of `make interop` have an Apache Pulsar each: two are enough.
JOBS   ?= 4
interop long: JOBS = 2
PARALLEL = -n $(JOBS) --dist loadfile --no-loadscope-reorder
BESIDE = $(MAKE) --no-print-directory --jobs=2 --output-sync=target

# Without cached byte code, each start compiles all modules: a second for the broker, more for Spark's workers.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test check check-tests lint lint-code lint-docs fetch pulsar promtool chromium kafka interop long seeds mutants suite test-python lowest bench bench-client bench-tuning publish-proof docs pictures proto lock clean
help:
	@echo "make demo     send flights through the embedded broker and Spark into a lake (a few minutes)"
	@echo "make test     run the tests, also those with official clients"
	@echo "make check    run after every change: lint, and the tests without Spark and processes (a minute)"
	@echo "make lint     run ruff, mypy --strict, import contracts and the tests of the docs"
	@echo "make interop  test against a real Apache Pulsar and its Java tools (downloaded with Maven); VERSION=2.11.0"
	@echo "              names another one"
	@echo "make fetch    download the programs that tests use: Apache Pulsar, promtool, Chromium, Kafka"
	@echo "make long     run the tests that take minutes each, and all cases of those that other runs shorten"
	@echo "make seeds    run the simulation for 20 seconds, with seeds derived from the commit"
	@echo "make suite    run the Go client's own tests of transactions on both brokers; with SUITE=DIR also the tests"
	@echo "              of pulsar-client, from a checkout of it, with both libraries on both brokers"
	@echo "make spark-4.2  test with PySpark 4.2 (also spark-4.1, spark-4.0), in a separate environment"
	@echo "make test-python PYTHON=3.13  run the core tests on another Python, in a separate environment"
	@echo "make lowest   run the core tests with the lowest versions that pyproject.toml allows"
	@echo "make bench    measure Geminga and its peers in turn; writes build/bench.md"
	@echo "make bench-client  measure everyday programs, latencies and idle clients of Geminga and others, on an idle"
	@echo "              machine (an hour); then run: make docs"
	@echo "make bench-tuning  measure stock settings and the formula's on a real Apache Pulsar; writes build/tuning"
	@echo "make publish-proof  run bench-tuning, and write its figures to README.md and docs/tuning.md"
	@echo "make pictures draw the pictures of the console in docs/console with Chromium"
	@echo "make docs     generate the reference pages and the synchronous client from the code, and build the site"

$(STAMP): requirements/all.lock requirements/java.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 ...")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --disable-pip-version-check --require-hashes -r requirements/all.lock
	$(PY) tools/ensure_java.py
	$(PY) -m pip install --disable-pip-version-check --no-deps --no-build-isolation -q -e .
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	$(VENV)/bin/geminga demo

test: $(STAMP) chromium
	$(PYTEST) -m "not interop and not long" --ignore=tests/docs --ignore=tests/interop $(PARALLEL)

# Takes about a minute on two cores: types are checked on one while tests run on the other.
check: $(STAMP)
	$(BESIDE) lint-code check-tests

check-tests: $(STAMP)
	$(PYTEST) -q -m "not interop and not spark and not witness and not slow" tests/docs tests/wire tests/connection \
		tests/producer tests/consumer tests/broker tests/ledger --ignore=tests/broker/serving

lint: $(STAMP)
	$(BESIDE) lint-docs lint-code

lint-code: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) tools/generate_proto.py --check
	$(PY) tools/generate_sync.py --check

lint-docs: $(STAMP)
	$(PYTEST) -q tests/docs $(PARALLEL)

# Downloads for tests that no Python package index has; each is downloaded once.
fetch: pulsar promtool chromium kafka

pulsar promtool chromium kafka: $(STAMP)
	$(PY) tools/fetch_$@.py

# Tests that measure loads and latencies run alone. Spark's modules need a Java with their jars.
ALONE := tests/interop/test_tuning_against_apache_pulsar.py tests/interop/test_beside_kafkas_source.py \
	tests/interop/test_beside_from_avro.py
ifdef VERSION
interop: $(STAMP)
	$(PY) tools/versions.py $(VERSION)
else
interop: $(STAMP) pulsar promtool kafka
	$(PYTEST) -m "interop and not long" tests/interop $(addprefix --ignore=,$(ALONE)) $(PARALLEL)
	$(PYTEST) -m "interop and not long" $(ALONE)
	$(PY) tools/versions.py next
endif

# Tests that take minutes each: whole pipelines that run twice or more, and the demo.
long: $(STAMP) pulsar
	$(PYTEST) -m "long or rotating" --every
	$(PYTEST) -m "hypothesis and not interop" --every $(PARALLEL)
	GEMINGA_CRASH_IMAGES=2500 GEMINGA_BIT_FLIPS=10000 GEMINGA_KILL_ROUNDS=24 $(PYTEST) --every \
		tests/ledger tests/broker/serving/test_kill.py tests/broker/topics/test_compaction.py \
		tests/broker/topics/test_transactions_crash.py $(PARALLEL)
	$(PYTEST) -m "simulation and not interop and not long" --seeds 1000 $(PARALLEL)
	$(MAKE) --no-print-directory seeds

# New seeds of the simulation, derived from the commit, for 20 seconds of CPU.
FIRST_SEED = $$((0x$$(git rev-parse HEAD | cut -c1-7)))
seeds: $(STAMP)
	$(PY) -m tests.simulation --seeds $(FIRST_SEED)-$$(($(FIRST_SEED) + 999)) --first 20

# Puts bugs into a copy of the sources, which the simulation of client, broker and store must find; half an hour.
mutants: $(STAMP)
	$(PY) -m tests.simulation.mutants

# SUITE is the folder `tests` in a checkout of pulsar-client's repository: its wheels do not contain it.
suite: $(STAMP)
	$(PY) tools/fetch_pulsar.py
	$(PY) tools/go_suite.py
	$(if $(SUITE),$(PY) tools/official_suite.py $(SUITE),@echo "for pulsar-client's own tests: make suite SUITE=DIR")

# An environment that takes PySpark from its own lock file, and all other packages from .venv.
SPARKS := spark-4.0 spark-4.1 spark-4.2
.PHONY: $(SPARKS) spark-next
.venv-spark-%/.installed: $(STAMP) requirements/spark-%.lock
	test -x $(@D)/bin/python || $(PY) -m venv --without-pip $(@D)
	$(PY) tools/borrow_packages.py $(@D)
	$(PY) -m pip --python $(@D)/bin/python install --disable-pip-version-check --require-hashes --no-deps \
		--ignore-installed -r requirements/spark-$*.lock
	@touch $@

# Before 4.2: everyday jobs in a session, and the tests that need neither a session nor newer APIs.
spark-4.0 spark-4.1: SPARK_TESTS := -m "not interop and not long and (not spark or every_release)" \
	tests/spark/payloads $(addprefix tests/spark/test_,every_release.py limits_below_4_2.py releases.py schema.py \
	tables.py reading.py planning.py)
# Delta Lake's connector works with this release only.
spark-4.2: SPARK_TESTS := -m "not interop and not long or delta" tests/spark tests/interop/test_pipelines.py
$(SPARKS): %: .venv-%/.installed
	.venv-$*/bin/python -m pytest --every $(SPARK_TESTS)

# The everyday jobs on one of these releases; ROTATION of tests/conftest.py chooses it.
spark-next: $(STAMP)
	$(MAKE) --no-print-directory SPARK_TESTS=tests/spark/test_every_release.py \
		spark-4.$$(PYTHONPATH=tools $(PY) -c 'import other_python; print(other_python.rotation() % 3)')

# The core tests on another Python of PATH or pyenv; without PYTHON=VERSION a part of them in one environment.
test-python: $(STAMP)
	$(PY) tools/other_python.py $(or $(OTHER_PYTHON),any)

# The core tests with the lowest allowed version of each direct dependency.
LOWEST_EXTRAS := --extra broker --extra columnar --extra encryption --extra security --extra avro --extra telemetry --extra oauth2 --extra cli
lowest: $(STAMP)
	$(PY) tools/other_python.py lowest

bench: $(STAMP) pulsar
	$(PY) -m benchmarks --output build/bench.md

bench-client: $(STAMP) pulsar
	$(PY) -m benchmarks.everyday --java --publish
	$(PY) -m benchmarks.everyday --java --publish --broker apache
	$(PY) -m benchmarks.latency --publish
	$(PY) -m benchmarks.idle --publish

bench-tuning: $(STAMP) pulsar
	$(PY) -m benchmarks.tuning --output build/tuning

# Continues where bench-tuning stopped, and writes the figures to README.md and docs/tuning.md.
publish-proof: $(STAMP) pulsar
	$(PY) -m benchmarks.tuning --output build/tuning --publish

# The reference, the console's pictures and the site. `make lint` checks the reference and builds the site.
docs: $(STAMP) pictures
	$(PY) tools/generate_sync.py
	$(PY) tools/generate_docs.py
	$(PY) -m sphinx -b html -W --keep-going -q docs build/site
	@echo "build/site/index.html"

# The console's pictures, in virtual time: they change only when the console changes.
pictures: $(STAMP)
	$(PY) tools/draw_console.py

proto: $(STAMP)
	$(PY) tools/generate_proto.py

# The lock files have hashes and no URLs: the installing machine chooses the package index.
UV_COMPILE := $(VENV)/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -q
lock:
	$(UV_COMPILE) --extra all --group dev --group docs --group interop --group bench -o requirements/all.lock
	$(UV_COMPILE) --extra java -c requirements/all.lock -o requirements/java.lock
	$(foreach spark,$(SPARKS),$(subst pyproject.toml,requirements/$(spark).in,$(UV_COMPILE)) -o requirements/$(spark).lock &&) true
	$(UV_COMPILE) $(LOWEST_EXTRAS) --group lowest --resolution lowest-direct -o requirements/lowest.lock

clean:
	rm -rf $(SPARKS:%=.venv-%) .venv-lowest .venv-python* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-output
