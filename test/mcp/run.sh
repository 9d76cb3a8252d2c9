#!/usr/bin/env bash
# Drives the MCP server with the real clients, the inspector's command line and the public conformance suite: against the server at CAY_URL
# (with CAY_API_KEY), else one that is started from CAY_TEST_BIN, which serves `cay mcp` either way. Arguments choose files by part of
# their name. A skipped test fails with CAY_TEST_REQUIRE_ALL=1. Only npm's registry is reached; what the inspector's web and terminal
# faces need is left out (overrides in package.json).
set -euo pipefail
cd "$(dirname "$0")"
export CAY_TEST_BIN=${CAY_TEST_BIN:-$(cd ../.. && pwd)/bin/cay}
install=(npm ci --prefer-offline --no-audit --no-fund --ignore-scripts --loglevel=error)
node=node
if [ "$(node -p 'parseInt(process.versions.node)')" -ge 20 ]; then
	"${install[@]}" --omit=optional
else # too old for the clients: npm has newer ones
	"${install[@]}" --include=optional
	node=$(echo node_modules/node-linux-*/bin/node)
fi
exec "$node" run.mjs "$@"
