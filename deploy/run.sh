#!/usr/bin/env bash
# Starts Cay in the foreground, proves it with a first sandbox and prints URL and key: what `make run` does. run.sh CAY
set -euo pipefail
cay=$(realpath "$1")
fifo=$(mktemp -u)
mkfifo -m 600 "$fifo"
CAY_LOG_LEVEL=${CAY_LOG_LEVEL:-warn} "$cay" up >"$fifo" &
up=$!
exec 3<"$fifo"
rm -f "$fifo"
trap 'kill -TERM "$up" 2>/dev/null || true; wait "$up" || true' EXIT
trap 'exit 130' INT TERM
if ! read -r word url <&3 || [ "$word" != ready ]; then
	wait "$up"
	exit 1
fi
export CAY_URL=$url
echo "first sandbox:"
"$cay" run -- sh -c 'echo "  hello from $(id -un)@$(hostname), kernel $(uname -sr)"'
data=$("$cay" config -o json | sed -n 's/.*"data_dir".*"value": *"\([^"]*\)".*/\1/p')
echo
echo "Cay is ready"
echo "  URL  $url"
echo "  key  $(cat "${data:-${CAY_DATA_DIR:-/var/lib/cay}}/key")"
echo "  try  $(basename "$cay") run -i -t bash      (from $(dirname "$cay"))"
echo "Ctrl-C stops the server; sandboxes that still run are found again by the next start."
wait "$up"
