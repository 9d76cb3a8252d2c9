# Cay's build. `make help` lists the targets. One set of build flags everywhere keeps gVisor's build in Go's cache.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
export GOFLAGS     := -trimpath
export CGO_ENABLED ?= 0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
TOOLS   := build/tools
BUNDLE  := internal/bundle/files
GO_SRC  := $(shell git ls-files '*.go' 'go.mod' 'go.sum' 2>/dev/null)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

##### build #####

.PHONY: build
build: bin/cay ## build bin/cay, with gVisor and the agent inside (the first time takes some minutes: it compiles gVisor)

bin/cay: $(BUNDLE)/runsc.zst $(BUNDLE)/cay-agent.zst $(GO_SRC)
	@mkdir -p bin
	go build -ldflags "-s -w -X github.com/cayhq/cay/internal/app.Version=$(VERSION)" -o $@ ./cmd/cay

build/runsc: cmd/cay-runsc/main.go cmd/cay-runsc/go.mod cmd/cay-runsc/build.sh $(wildcard cmd/cay-runsc/patches/*)
	@echo "building gVisor's runsc: some minutes the first time, seconds afterwards"
	cmd/cay-runsc/build.sh $@

build/cay-agent: $(GO_SRC)
	@mkdir -p build
	go build -ldflags "-s -w" -o $@ ./cmd/cay-agent

$(BUNDLE)/%.zst: build/%
	go run ./internal/bundle/pack $< $@

##### run #####

.PHONY: run
run: build ## build what is missing, start Cay, prove it with a first sandbox, print URL and key
	@deploy/run.sh bin/cay

##### check #####

.PHONY: test
test: prerequisites build ## run every test; installs what they need as root on Debian, else says what is missing
	test/run.sh

.PHONY: prerequisites
prerequisites:
	@test/prerequisites.sh

.PHONY: lint
lint: ## gofmt and go vet
	@unformatted=$$(git ls-files '*.go' | grep -v '\.pb\.go$$' | xargs gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "gofmt differs:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	cd cmd/cay-runsc && go vet .

.PHONY: verify
verify: generate ## fail when generated files are stale
	@git diff --exit-code --stat -- internal openapi.json docs/reference sdk/typescript/src/generated || { echo "generated files are stale: run make generate and commit"; exit 1; }

.PHONY: bench
bench: build ## measure Cay beside its peers in one run; prints a table, writes build/bench.json
	go run ./test/bench -out build/bench.json

.PHONY: soak
soak: build ## the long versions of the life-cycle tests: 500 sandboxes, 20 rounds of kill -9
	CAY_TEST_SOAK=1 go test -tags soak -count=1 -p 1 -timeout 90m ./test/...

##### generate #####

$(TOOLS)/%: tools/go.mod
	@mkdir -p $(TOOLS)
	cd tools && go build -o ../$(TOOLS)/ $$(go list -f '{{if eq .Name "main"}}{{.ImportPath}}{{end}}' tool | grep '/$*$$')

.PHONY: generate
generate: proto sql openapi.json sdk-types ## regenerate protocol code, queries, the OpenAPI document and the SDK's types

.PHONY: proto
proto: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-connect-go
	$(TOOLS)/buf generate

.PHONY: sql
sql: $(TOOLS)/sqlc
	$(TOOLS)/sqlc generate -f internal/control/store/sqlc.yaml

.PHONY: openapi.json
openapi.json:
	go run ./cmd/cay openapi > $@.new
	mv $@.new $@

.PHONY: sdk-types
sdk-types: openapi.json
	@if command -v node >/dev/null; then node sdk/typescript/scripts/generate.mjs; \
	else echo "node is missing: the types of the TypeScript SDK were not regenerated"; [ "$${CAY_TEST_REQUIRE_ALL:-}" != 1 ]; fi

.PHONY: clean
clean: ## remove what was built; Go's cache keeps gVisor
	rm -rf bin build
	find $(BUNDLE) -name '*.zst' -delete
