# Everything runs in .venv, made on first use. Only Python 3.11+ and the package indexes are needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
STACK  := $(VENV)/.stack
FETCHED := $(VENV)/.fetched
COMPILED := $(VENV)/.compiled
OLDEST := .venv-oldest
PYTEST := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/.pytest_cache/bytecode $(BIN)/python -m pytest
JOBS   ?= 10
# The slow tests start more servers each.
SLOW_JOBS ?= 6
# Both distributions of this repository: neither is taken from a package index.
TREE   := -e ./distributions/outbox -e '.[dev]'

.DEFAULT_GOAL := help
.PHONY: help demo examples test test-slow test-oldest test-all faults chaos soak mutants simulate fuzz check format docs manifests \
	tutorial compose-test bench race wheels test-compiled clean

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "; print "Tailrace: outbox tables to Kafka, exactly once and in order.\n"} \
	     /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml distributions/outbox/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"Tailrace needs Python 3.11 or newer, this is {v[0]}.{v[1]}: make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing Tailrace and its tools into $(VENV) (about a minute the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(TREE)
	@touch $@

$(STACK): $(READY)
	@echo "fetching Kafka (43 MB, once) and preparing it for quick starts"
	@$(BIN)/tailrace stack fetch
	@touch $@

demo: $(STACK) ## See it work: real Postgres, MongoDB and Kafka, connectors and a projection killed, a verdict
	@$(BIN)/tailrace demo

examples: $(STACK) ## Projections and consumers on real servers, disturbed, and compared with the outbox
	@$(BIN)/python -m examples.run order_summary
	@$(BIN)/python -m examples.run user_cards
	@$(BIN)/python -m examples.run streams_outbox
	@$(BIN)/python -m examples.run storage_outbox
	@$(BIN)/python -m examples.run user_outbox
	@$(BIN)/python -m examples.run chain_indexer
	@$(BIN)/python -m examples.run transaction_mirror
	@$(BIN)/python -m examples.run inbox_kafka
	@$(BIN)/python -m examples.run inbox_faststream

$(FETCHED): $(STACK) tests/helpers/fetched.py tests/helpers/deploy_tools.py
	@echo "fetching what only the tests need: a schema registry (159 MB), test suites, programs that check deploy/ (once)"
	@$(BIN)/tailrace stack fetch --registry
	@$(BIN)/python tests/helpers/fetched.py
	@$(BIN)/python tests/helpers/deploy_tools.py
	@touch $@

# Once, before the workers start: otherwise each of them would compile all tests. The run itself reports errors.
$(COMPILED): $(FETCHED)
	@echo "compiling the tests (once)"
	@$(PYTEST) --collect-only -q > /dev/null || true
	@touch $@

test: $(COMPILED) ## Run the tests on real servers; JOBS at a time, ARGS="tests/unit -x" for a part
	@$(PYTEST) -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow and not chaos" $(ARGS)

test-slow: $(COMPILED) ## Run the tests that take long, such as the demo from a built wheel
	@$(PYTEST) -q -n $(SLOW_JOBS) --dist loadfile --no-loadscope-reorder -m slow $(ARGS)

$(OLDEST)/.ready: $(READY)
	@echo "installing Tailrace and its tools into $(OLDEST), for the oldest supported Python"
	@python=$$($(BIN)/python tests/helpers/oldest_python.py) && $$python -m venv --clear --without-pip $(OLDEST)
	@$(BIN)/python -m pip --python $(OLDEST)/bin/python install --quiet --disable-pip-version-check -c constraints.txt $(TREE)
	@touch $@

test-oldest: $(OLDEST)/.ready $(FETCHED) ## Run the unit tests on the oldest supported Python (3.11.2, as in Debian 12)
	@$(OLDEST)/bin/python -m pytest -q -n auto -p no:cacheprovider --hypothesis-profile=thorough tests/unit $(ARGS)

# Both at once: a compiled module of one distribution must not meet older sources of the other.
wheels: $(READY) ## Build both wheels with the modules that run for each event compiled (needs a C compiler), into build/wheels
	@rm -rf build/wheels build/compiled
	@TAILRACE_COMPILE=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -c constraints.txt \
		--wheel-dir build/wheels ./distributions/outbox .
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/compiled build/wheels/*.whl

# What exercises the compiled modules: unit tests, and kills and faults of pipelines of both databases. Not what looks at
# the tree, or replaces functions of these modules: compiled calls do not see that.
COMPILED_TESTS := tests/unit tests/simulation $(addprefix tests/faults/,test_failpoints.py test_kill_loop.py \
	test_large_transactions.py test_payload_faults.py test_undecodable.py test_row_movement.py test_mongo_kills.py \
	test_mongo_faults.py) $(addprefix --ignore=tests/,unit/test_distributions.py unit/testkit/demo/test_assets.py \
	simulation/test_mutations.py)

test-compiled: $(COMPILED) wheels ## Run tests with the compiled modules; ARGS="tests/faults" for others
	@PYTHONPATH=build/compiled $(BIN)/python -c 'from tailrace.pipeline import processor as p; assert p.__file__.endswith(".so"), p.__file__'
	@PYTHONPATH=$(CURDIR)/build/compiled $(PYTEST) -q -n $(JOBS) --dist loadfile --no-loadscope-reorder \
		-m "not slow and not chaos" $(or $(ARGS),$(COMPILED_TESTS))

test-all: test test-slow test-oldest test-compiled ## Run all of these tests

faults: $(COMPILED) ## Run the fault matrix and print a verdict for each fault; ROWS=44,45 for a part
	@$(BIN)/python -m tools.faults --jobs $(JOBS) --rows "$(ROWS)"

MINUTES ?= 2
HOURS   ?= 2

chaos: $(COMPILED) ## Random faults over both databases and projections, and the verdict; MINUTES=30 SEED=7 repeats a schedule
	@PYTHONPATH=tests $(BIN)/python -m helpers.chaos --minutes $(MINUTES) --seed $(or $(SEED),0)

soak: $(FETCHED) ## 2,000 events/s on both databases for HOURS: memory, files, lag and log must stay flat
	@$(BIN)/python -m benchmarks.soak --hours $(HOURS)

mutants: $(COMPILED) ## Break a rule of the connector or of projections on purpose: the tests must notice each of them
	@$(PYTEST) -v -n $(JOBS) --dist load tests/faults/test_mutations.py tests/faults/test_mongo_mutations.py \
		tests/faults/test_projection_mutations.py tests/faults/test_agent_mutations.py \
		tests/faults/test_projection_rebalances.py tests/simulation/test_mutations.py tests/simulation/test_projection.py

simulate: $(READY) ## Run seeds of the simulation: SEEDS=5000, RUN=postgres; SEED=17 repeats one
	@cd tests && SEEDS="$(SEEDS)" SEED="$(SEED)" RUN="$(RUN)" ../$(BIN)/python -m simulation

fuzz: $(READY) ## Mutate inputs of all parsers of outside bytes: SECONDS=600, TARGET=change, SEED=4
	@cd tests && SECONDS="$(SECONDS)" TARGET="$(TARGET)" SEED="$(SEED)" ../$(BIN)/python -m fuzz

check: $(READY) ## Lint, check types and import rules; CI runs it before the tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy benchmarks tools
	@$(BIN)/lint-imports

format: $(READY) ## Format the code, fix what ruff can fix, wrap the pages
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .
	@$(BIN)/python -m tools.wrap

docs: $(READY) ## Write the generated pages of docs/: settings, commands, errors, figures
	@$(BIN)/python -m tools.docs

manifests: $(FETCHED) ## Render deploy/kubernetes/ from the Helm chart
	@$(BIN)/python -m tools.manifests "$$($(BIN)/python tests/helpers/deploy_tools.py helm)"

compose-test: $(READY) ## Start compose/ in Docker, run the demo's verdict against it, and remove it
	@$(BIN)/python -m tools.compose_test

tutorial: $(STACK) ## Run the commands of docs/tutorial.md and write their output into it
	@$(BIN)/python -m tools.tutorial

bench: $(FETCHED) ## Measure drain rate, CPU, memory and latency next to bare readers, what schemas cost, and projections
	@$(BIN)/python -m benchmarks.drain
	@$(BIN)/python -m benchmarks.schemas
	@$(BIN)/python -m benchmarks.dead_letters
	@$(BIN)/python -m benchmarks.marks
	@$(BIN)/python -m benchmarks.mongo
	@$(BIN)/python -m benchmarks.projections
	@$(BIN)/python -m benchmarks.rocksdb
	@$(BIN)/python -m benchmarks.verify
	@$(BIN)/python -m benchmarks.outbox_writer
	@$(BIN)/python -m benchmarks.metrics
	@$(BIN)/python -m benchmarks.worker

EVENTS ?= 200000
PHASES ?= drain,start,latency,growth

race: $(FETCHED) ## Measure beside Debezium on Kafka Connect and bare readers, on the same servers; PHASES=drain,start for a part
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.race --events $(EVENTS) --phases $(PHASES)

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) $(OLDEST) build dist distributions/*/build distributions/*/dist *.egg-info connector/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
