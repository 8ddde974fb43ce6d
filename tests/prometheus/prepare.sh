#!/bin/sh
# Gets the Prometheus of tests/prometheus: Debian's package, which has promtool too.
# It says why where that is not possible, and never fails: the tests are skipped then.
export DEBIAN_FRONTEND=noninteractive
cannot() { echo "no Prometheus to test with: $1" >&2; exit 0; }
get() { timeout 300 apt-get install -qq -y --no-install-recommends prometheus >/dev/null 2>&1; }

command -v prometheus >/dev/null && command -v promtool >/dev/null && exit 0
[ "$(id -u)" = 0 ] || cannot "packages are installed as root (apt-get install prometheus)"
command -v apt-get >/dev/null || cannot "this is no Debian"
get || { apt-get update -qq >/dev/null 2>&1; get; } || cannot "apt-get install prometheus failed"
