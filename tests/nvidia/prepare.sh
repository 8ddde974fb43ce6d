#!/bin/sh
# prepare.sh FOLDER: NVIDIA's user space of driver branches 535, 550 and 555 into FOLDER/535 ..., for the tests with the real
# programs: libnvidia-ml.so.1, nvidia-smi, the control program and server of MPS. They are Debian's packages of the component
# non-free, unpacked and not installed; they may not be redistributed, so nothing of FOLDER is ever committed or put into an image.
# It says why where that is not possible, and never fails: the tests are skipped then. Needs no root.
set -u
folder=$1
cannot() { echo "no programs of NVIDIA to test with: $1" >&2; exit 0; }
for branch in 535 550 555; do [ -e "$folder/$branch/.ready" ] || missing=yes; done
[ "${missing:-}" ] || exit 0
command -v apt-get >/dev/null && command -v dpkg >/dev/null || cannot "this is no Debian"
[ "$(dpkg --print-architecture)" = amd64 ] || cannot "only the packages for amd64 are known"

# The mirror of this machine's own sources.
mirror=$(sed -n 's/^URIs: *\([^ ]*\/debian\)\/* *$/\1/p; s/^deb *\(\[[^]]*\] *\)*\([^ ]*\/debian\)\/* .*/\2/p' \
  /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
[ "$mirror" ] || cannot "no mirror of Debian in /etc/apt"
keys=/usr/share/keyrings/debian-archive-keyring.gpg

fetch() { # fetch BRANCH SUITE: the packages of that suite, unpacked into FOLDER/BRANCH
  branch=$1 suite=$2 work=$folder/$1.part
  [ -e "$folder/$branch/.ready" ] && return
  rm -rf "$work"; mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/packages"
  echo "deb [signed-by=$keys] $mirror $suite non-free contrib" > "$work/sources.list"
  apt() {
    timeout 300 apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
      -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root \
      -o APT::Get::List-Cleanup=0 "$@"
  }
  apt update >"$work/log" 2>&1 || { echo "branch $branch: apt-get update of $suite failed: $(tail -n 1 "$work/log")" >&2; return; }
  (cd "$work/packages" && apt download nvidia-cuda-mps nvidia-smi libnvidia-ml1 libcuda1) >>"$work/log" 2>&1 \
    || { echo "branch $branch: apt-get download failed: $(tail -n 1 "$work/log")" >&2; return; }
  for package in "$work"/packages/*.deb; do dpkg -x "$package" "$work/root" || return; done
  touch "$work/root/.ready"
  rm -rf "${folder:?}/$branch"; mv "$work/root" "$folder/$branch"; rm -rf "$work"
  echo "branch $branch: $(ls "$folder/$branch"/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.*.* | sed 's/.*\.so\.//')"
}

mkdir -p "$folder" && folder=$(cd "$folder" && pwd)
fetch 535 bookworm
fetch 550 trixie
fetch 555 experimental
