#!/bin/sh
# Builds runsc from the pinned gVisor module with the patches beside this script: build.sh OUT
#
# The module cache is read-only and go's -overlay refuses files in it, so the patches go onto a copy. The copy is kept under build/
# and made anew only when the version or a patch changes: its path is part of what keeps the build cache warm.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 OUT" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
case $1 in /*) out=$1 ;; *) out=$PWD/$1 ;; esac
version=v0.0.0-20260905035102-160fafc42237
copy=$root/build/gvisor-$version

cd "$here"
export CGO_ENABLED=0 GOFLAGS= GOWORK=off
stamp=$(cat patches/*.patch | sha256sum | cut -c1-64)
if [ "$(cat "$copy/.cay-patched" 2>/dev/null || true)" != "$stamp" ]; then
	module=$(go mod download -json "gvisor.dev/gvisor@$version" | sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p')
	[ -d "$module" ] || { echo "$0: gvisor.dev/gvisor@$version cannot be downloaded" >&2; exit 1; }
	mkdir -p "$root/build"
	rm -rf "$copy" "$copy.new"
	cp -R "$module" "$copy.new"
	chmod -R u+w "$copy.new"
	for p in patches/*.patch; do
		patch -d "$copy.new" -p1 -s --no-backup-if-mismatch -F0 <"$p"
	done
	echo "$stamp" >"$copy.new/.cay-patched"
	mv "$copy.new" "$copy"
fi

cp go.mod "$root/build/cay-runsc.mod"
cp go.sum "$root/build/cay-runsc.sum"
go mod edit -replace "gvisor.dev/gvisor=$copy" "$root/build/cay-runsc.mod"
mkdir -p "$(dirname "$out")"
exec go build -modfile "$root/build/cay-runsc.mod" -buildvcs=false -trimpath -ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$version" -o "$out" .
