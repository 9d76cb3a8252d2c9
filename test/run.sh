#!/usr/bin/env bash
# Every test, one after another where they would fight for the cores: what `make test` runs once all is built.
set -euo pipefail
cd "$(dirname "$0")/.."
export CAY_TEST_RUNSC=$PWD/build/runsc CAY_TEST_AGENT=$PWD/build/cay-agent CAY_TEST_BIN=$PWD/bin/cay

step() { echo "== $*"; }

step lint
make -s lint
step generated files
make -s verify
step "packages, with the race detector"
packages=$(go list ./... | grep -v '/test/')
CGO_ENABLED=1 go test -race -timeout 15m $packages
step "the product, with real gVisor"
go test -count=1 -p 1 -timeout 30m ./test/...
