#!/bin/sh
# prepare-toolkit.sh FOLDER: nvidia-ctk and nvidia-cdi-hook of NVIDIA's container toolkit into FOLDER, from their Go module.
# One minute. It says why where that is not possible, and never fails: the tests are skipped then.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cannot() { echo "no container toolkit to test with: $1" >&2; exit 0; }
[ -x "$1/nvidia-ctk" ] && [ -x "$1/nvidia-cdi-hook" ] && exit 0
command -v go >/dev/null || cannot "Go is needed (1.26 or newer)"
command -v cc >/dev/null || cannot "a C compiler is needed"
mkdir -p "$1" && bin=$(cd "$1" && pwd) || cannot "$1 cannot be made"
module=github.com/NVIDIA/nvidia-container-toolkit
# It looks for NVML when it runs, not when it starts.
(cd "$here/toolkit" && CGO_ENABLED=1 timeout 600 go build -trimpath -ldflags "-s -w -extldflags=-Wl,-z,lazy" \
  -o "$bin/" $module/cmd/nvidia-ctk $module/cmd/nvidia-cdi-hook) >"$bin/build.log" 2>&1 \
  || cannot "go build failed: $(tail -n 1 "$bin/build.log")"
