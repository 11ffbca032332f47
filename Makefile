# The one entry point, for people and for CI. `make help` lists the targets; .dev/ does the work.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# PROFILE=dev builds the control plane faster; the filter is always optimised.
PROFILE ?= release
BIN := target/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/proxium
BARE_WASM := target/wasm32-wasip1/wasm/proxium_filter.wasm
WASM := $(if $(filter dev,$(PROFILE)),$(BARE_WASM),$(BARE_WASM:.wasm=.opt.wasm))
export PROXIUM_BIN ?= $(CURDIR)/$(BIN)
export PROXIUM_WASM ?= $(CURDIR)/$(WASM)

redis = redis=$$(.dev/tools redis); export PROXIUM_REDIS_SERVER=$$redis
envoy = envoy=$$(.dev/tools envoy); export PROXIUM_ENVOY=$$envoy
# Not to be had everywhere: what needs it then says that it is left out.
prometheus = if prometheus=$$(.dev/tools prometheus); then export PROXIUM_PROMETHEUS=$$prometheus/prometheus PROXIUM_PROMTOOL=$$prometheus/promtool; fi
charts = if helm=$$(.dev/tools helm); then export PROXIUM_HELM=$$helm; fi; if buildah=$$(.dev/tools buildah); then export PROXIUM_BUILDAH=$$buildah; fi; \
	if schemas=$$(.dev/tools schemas) && node=$$(.dev/tools node); then export PROXIUM_SCHEMAS=$$schemas PROXIUM_NODE=$$node; fi
clients = python=$$(.dev/tools python-clients); node=$$(.dev/tools node); node_clients=$$(.dev/tools node-clients); agent=$$(.dev/tools agent); \
	minilm=$$(.dev/tools minilm); chromium=$$(.dev/tools chromium); browser=$$(.dev/tools browser); \
	export PROXIUM_PYTHON_CLIENTS=$$python PROXIUM_NODE=$$node PROXIUM_NODE_CLIENTS=$$node_clients PROXIUM_AGENT=$$agent \
	PROXIUM_CHROMIUM=$$chromium PROXIUM_BROWSER=$$browser PROXIUM_MINILM=$$minilm

.PHONY: help build run up down env test test-unit test-wasm test-e2e test-chaos bench check

help: ## This list
	@awk -F ': .*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo "  PORT=10000 ADMIN_PORT=10001 CATALOG=file.yaml REDIS_URL=redis://… PROXIUM_ADMIN_TOKEN=… change run, up, down and env."

build: ## Build the control plane and the filter
	@.dev/tools wasm >/dev/null
	cargo build --profile $(PROFILE) -p proxium
	cargo build --profile wasm --target wasm32-wasip1 -p proxium-filter
	@$(MAKE) $(WASM)

wasm_features := --enable-bulk-memory --enable-sign-ext --enable-mutable-globals --enable-nontrapping-float-to-int --enable-multivalue --enable-reference-types --enable-simd

# A tenth smaller, where binaryen can be had: the SDK exports callbacks that Envoy never makes here (TCP, gRPC). A callback that
# the filter comes to implement must be named in that file, or it is cut.
# Nothing is at the lowest addresses but the stack's far end.
$(BARE_WASM:.wasm=.opt.wasm): $(BARE_WASM) .dev/wasm-exports.json
	{ opt=$$(.dev/tools wasm-opt) && $${opt%opt}metadce $(wasm_features) --graph-file .dev/wasm-exports.json $< -o $@ >/dev/null && \
	$$opt -Oz --const-hoisting --reorder-locals --low-memory-unused $(wasm_features) --strip-producers $@ -o $@; } || cp $< $@

run: build ## Start Redis, the control plane and Envoy here; ctrl-C stops all
	@$(envoy); $(redis); exec .dev/stack run

up: build ## The same in the background
	@$(envoy); $(redis); .dev/stack up

down: ## Stop what `make up` started
	@.dev/stack down

env: ## Names what runs, for the shell that evaluates it
	@.dev/stack env

test: test-unit test-wasm test-e2e ## All tests

test-unit: ## Tests of the flow core, the messages and the control plane (on a real Redis and Envoy)
	$(envoy); $(redis); $(prometheus); $(charts); cargo test -p proxium-flow -p proxium-wire -p proxium

test-wasm: ## The tests of the flow core and the messages, run as wasm
	@.dev/tools wasm >/dev/null
	runner=$$(.dev/tools wasm-bindgen); node=$$(.dev/tools node); PATH="$$(dirname "$$node"):$$PATH" \
	CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER=$$runner cargo test --target wasm32-unknown-unknown -p proxium-flow -p proxium-wire

test-e2e: build ## End to end: real Envoy, real Redis, mock providers, the official SDKs
	$(envoy); $(redis); $(clients); $(prometheus); cargo test -p proxium-e2e --no-fail-fast

test-chaos: build ## The money while everything is killed and started again, with a report; PROXIUM_CHAOS_SEED and _SECONDS change it
	$(envoy); $(redis); cargo test -p proxium-e2e --test chaos -- --nocapture

bench: build ## What proxium costs beside a plain Envoy, on two quiet cores; ARGS=--quick tries it
	$(envoy); $(redis); TMPDIR=$${TMPDIR:-/dev/shm} cargo run --release -p proxium-e2e --bin bench -- $(ARGS)

check: ## Formatting, lints, docs
	@.dev/tools lints wasm >/dev/null
	cargo fmt --all --check
	cargo clippy --workspace --exclude proxium-filter --all-targets -- -D warnings
	cargo clippy --target wasm32-wasip1 -p proxium-filter -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --exclude proxium-filter --no-deps
	# Advisories are in a database elsewhere: `cargo deny check` where it can be reached.
	if deny=$$(.dev/tools deny); then $$deny --locked check licenses bans sources; fi
