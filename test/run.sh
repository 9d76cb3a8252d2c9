#!/usr/bin/env bash
# Every test, one after another where they would fight for the cores: what `make test` runs once all is built.
set -euo pipefail
cd "$(dirname "$0")/.."
export CAY_TEST_RUNSC=$PWD/build/runsc CAY_TEST_BIN=$PWD/bin/cay

step() { echo "== $*"; }

# tests runs go test and shows what failed, in full, and one line for each package. With CAY_TEST_REQUIRE_ALL=1 a skipped test fails.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
tests() {
	local failed=0
	go test -v "$@" >"$log" 2>&1 || failed=1
	if [ "$failed" = 1 ]; then
		# All but what passed: the output of failed tests, build errors, panics.
		grep -avE '^\s*(=== |--- PASS|PASS$)' "$log" || true
	else
		grep -aE '^(ok|FAIL|---)' "$log" | grep -av -- '--- PASS' || true
	fi
	if grep -aE '^\s*--- SKIP' -A 3 "$log" && [ "${CAY_TEST_REQUIRE_ALL:-}" = 1 ]; then
		echo "CAY_TEST_REQUIRE_ALL=1: the tests above were skipped"
		failed=1
	fi
	return "$failed"
}

step lint
make -s lint
step generated files
make -s verify
step "packages, with the race detector"
CGO_ENABLED=1 tests -race -timeout 15m $(go list ./... | grep -v '/test/')
step "the product, with real gVisor"
tests -count=1 -p 1 -timeout 30m ./test/...
step "the TypeScript SDK, against its fake and the product"
if command -v npm >/dev/null; then
	sdk/typescript/test/run.sh
else
	echo "npm is missing: the tests of the TypeScript SDK were skipped"
	[ "${CAY_TEST_REQUIRE_ALL:-}" != 1 ]
fi
step "MCP, driven by the real clients, the inspector and the conformance suite"
if command -v npm >/dev/null; then
	test/mcp/run.sh
else
	echo "npm is missing: the tests of MCP were skipped"
	[ "${CAY_TEST_REQUIRE_ALL:-}" != 1 ]
fi
