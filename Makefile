# Cay's build. `make help` lists the targets. One set of build flags everywhere keeps gVisor's build in the cache.
SHELL        := /bin/bash
.SHELLFLAGS  := -eu -o pipefail -c
export GOFLAGS     := -trimpath
export CGO_ENABLED ?= 0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
TOOLS   := build/tools

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(TOOLS)/%: tools/go.mod
	@mkdir -p $(TOOLS)
	cd tools && go build -o ../$(TOOLS)/ $$(go list -f '{{if eq .Name "main"}}{{.ImportPath}}{{end}}' tool | grep '/$*$$')

.PHONY: proto
proto: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-connect-go ## regenerate the protocol code
	$(TOOLS)/buf generate
