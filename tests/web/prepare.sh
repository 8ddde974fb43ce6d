#!/bin/sh
# Gets the browser of tests/web: Debian's Chromium and its driver.
# It says why where that is not possible, and never fails: the tests are skipped then.
export DEBIAN_FRONTEND=noninteractive
cannot() { echo "no browser to test with: $1" >&2; exit 0; }

command -v chromium >/dev/null && command -v chromedriver >/dev/null && exit 0
[ "$(id -u)" = 0 ] || cannot "packages are installed as root (apt-get install chromium chromium-driver)"
command -v apt-get >/dev/null || cannot "this is no Debian"
timeout 400 apt-get install -qq -y --no-install-recommends chromium chromium-driver >/dev/null 2>&1 \
  || { apt-get update -qq >/dev/null 2>&1; timeout 400 apt-get install -qq -y --no-install-recommends chromium chromium-driver >/dev/null 2>&1; } \
  || cannot "apt-get install chromium chromium-driver failed"
