#!/bin/sh
# Gets the Slurms of tests/slurm: Debian's packages for this machine, and those of newer Debians, each in a directory of its own:
# $1/trixie (24.11) and $1/forky (26.05). It says why where that is not possible, and never fails: the tests are skipped then.
folder=$1
export DEBIAN_FRONTEND=noninteractive

cannot() { echo "no real Slurm to test with: $1" >&2; exit 0; }

[ "$(id -u)" = 0 ] || cannot "packages are installed as root (make slurm)"
command -v apt-get >/dev/null || cannot "this is no Debian"
if ! command -v slurmctld >/dev/null || ! command -v slurmd >/dev/null || ! command -v munged >/dev/null; then
  timeout 300 apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null 2>&1 \
    || cannot "apt-get install slurmctld slurmd slurm-client munge failed"
fi

[ -e /usr/include/slurm/spank.h ] || timeout 300 apt-get install -qq -y --no-install-recommends libslurm-dev slurm-wlm-basic-plugins-dev >/dev/null 2>&1 \
  || echo "the plugin of memory limits is not tried: apt-get install libslurm-dev slurm-wlm-basic-plugins-dev failed" >&2

fetch() { # fetch SUITE [OPTION...]: Slurm of that suite, in $folder/SUITE
  suite=$1 root=$folder/$1
  shift
  [ -x "$root/usr/sbin/slurmctld" ] && return
  command -v mmdebstrap >/dev/null || timeout 300 apt-get install -qq -y --no-install-recommends mmdebstrap >/dev/null 2>&1 \
    || cannot "$suite: mmdebstrap is not there"
  rm -rf "$root.new"
  if timeout 300 mmdebstrap --quiet --variant=minbase --include=slurmctld,slurmd,slurm-client,libslurm-dev,slurm-wlm-basic-plugins-dev "$@" "$suite" "$root.new" 2>"$root.log"
  then mv "$root.new" "$root"
  else rm -rf "$root.new"; echo "no Slurm of $suite to test with: mmdebstrap failed: $(tail -n 1 "$root.log")" >&2
  fi
}

mkdir -p "$folder"
fetch trixie
# A mirror may keep a Release file of Debian testing for longer than it is valid. Its signature is verified all the same.
fetch forky --aptopt='Acquire::Check-Valid-Until "false"'
