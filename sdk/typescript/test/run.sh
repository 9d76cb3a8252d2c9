#!/usr/bin/env bash
# Everything about the SDK: a clean install, types, build, and the tests against the fake and against a real server (CAY_URL and
# CAY_API_KEY, or the binary at CAY_TEST_BIN). A skipped test fails with CAY_TEST_REQUIRE_ALL=1.
set -euo pipefail
cd "$(dirname "$0")/.."
npm ci --prefer-offline --no-audit --no-fund --loglevel=error
npm run --silent typecheck
npm test --silent
