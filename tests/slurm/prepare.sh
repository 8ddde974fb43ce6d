#!/bin/sh
# Gets the two Slurms of tests/slurm: Debian's packages for this machine, and Debian trixie's into the directory $1.
# It says why where that is not possible, and never fails: the tests are skipped then.
root=$1
export DEBIAN_FRONTEND=noninteractive

cannot() { echo "no real Slurm to test with: $1" >&2; exit 0; }

[ "$(id -u)" = 0 ] || cannot "packages are installed as root (make slurm)"
command -v apt-get >/dev/null || cannot "this is no Debian"
if ! command -v slurmctld >/dev/null || ! command -v slurmd >/dev/null || ! command -v munged >/dev/null; then
  timeout 300 apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null 2>&1 \
    || cannot "apt-get install slurmctld slurmd slurm-client munge failed"
fi
[ -x "$root/usr/sbin/slurmctld" ] && exit 0
command -v mmdebstrap >/dev/null || timeout 300 apt-get install -qq -y --no-install-recommends mmdebstrap >/dev/null 2>&1 \
  || cannot "24.11: mmdebstrap is not there"
mkdir -p "$(dirname "$root")"
rm -rf "$root.new"
if timeout 300 mmdebstrap --quiet --variant=minbase --include=slurmctld,slurmd,slurm-client trixie "$root.new" 2>/dev/null
then mv "$root.new" "$root"
else rm -rf "$root.new"; cannot "24.11: mmdebstrap trixie failed"
fi
