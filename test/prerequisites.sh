#!/usr/bin/env bash
# Installs what the tests need: as root on Debian and its kin, with apt; elsewhere it says what is missing.
set -euo pipefail
# command, Debian package
needs="python3:python3 node:nodejs php:php-cli ruby:ruby perl:perl-base patch:patch gcc:gcc setpriv:util-linux tmux:tmux curl:curl npm:npm"
missing=""
for need in $needs; do
	command -v "${need%%:*}" >/dev/null || missing+=" ${need##*:}"
done
[ -e /usr/bin/python3 ] || missing+=" python3"
[ -e /usr/include/stdlib.h ] || missing+=" libc6-dev"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "installing for the tests:$missing"
	export DEBIAN_FRONTEND=noninteractive
	apt-get -qq -o DPkg::Lock::Timeout=300 update
	# shellcheck disable=SC2086 # a list of names
	apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $missing >/dev/null
	exit 0
fi
echo "missing for the tests:$missing" >&2
if [ "${CAY_TEST_REQUIRE_ALL:-}" = 1 ]; then exit 1; fi
