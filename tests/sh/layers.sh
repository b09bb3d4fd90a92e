#!/usr/bin/env bash
# Includes point one way: kernels know nothing of core; flow knows element types, Philox, and the machine (threads,
# instruction set: a checkpoint says where it was made); net uses
# kernels; image and cache use flow and kernels; model uses net and flow; stages and cli use all.
set -euo pipefail
cd "${LORAFLOW_SOURCE:-.}"
fail=0
check() { # FOLDER, pattern of what its files may include
    local found
    [ -d "$1" ] || return 0
    found=$(grep -nE '^#include "' -r "$1" --include='*.c' --include='*.h' | grep -vE "#include \"($2)" || true)
    if [ -n "$found" ]; then
        echo "$1 may include only $2:"
        echo "$found"
        fail=1
    fi
}
check kernels 'kernels/'
check core/flow 'core/flow/|kernels/(type|philox|kernel|parallel)\.h"'
check core/net 'core/net/|kernels/|core/flow/random\.h"'
check core/image 'core/image/|core/flow/|kernels/'
check core/cache 'core/cache/|core/flow/|kernels/'
check core/model 'core/model/|core/net/|core/flow/|kernels/'
check stages 'core/(flow|net|model|image|cache)/|kernels/|stages/'
for folder in stages/*/; do # a stage that is a folder includes its own headers and shared ones, no other stage's
    check "${folder%/}" "core/(flow|net|model|image|cache)/|kernels/|$folder|stages/[a-z_]+\.h"
done
exit $fail
