#!/usr/bin/env bash
# The saved LoRA does not depend on workers, rings, threads' timing or what the cache holds.
# @label short
# @timeout 180
set -euo pipefail
. tests/sh/loop.bash
common=(pictures:epochs=2 keep:every=0)
n=0
# variant NAME [arguments of run]: runs and compares with the first one
variant() {
    local name=$1 out="$dir/$1"
    shift
    graph "$dir/$name.ini" "$out" "${common[@]}"
    run "$out" "$dir/$name.ini" "$@"
    if [ $n -gt 0 ]; then
        same "$out" "$dir/first" || { echo "variant $name ($*) differs"; exit 1; }
    fi
    n=$((n + 1))
}
variant first # cold cache
hits=$(grep -o 'hits [0-9]*' "$dir/said" | head -1 || true)
variant warm
grep -q 'cache: [1-9][0-9]* of' "$dir/said"
rm -rf "$dir/cache"
# D-16
variant workers --set decode.workers=8 --set fit.workers=4
variant small_rings --set graph.ring=1
variant large_rings --set graph.ring=64
variant batches --set latents.batch=3 --set text.batch=4
# nothing is kept: every picture is encoded again in every epoch, with the encoders beside the U-Net
rm -rf "$dir/cache"
variant holds_nothing --set lookup.ram=1KiB --set lookup.disk=
FLOW_STALL=3 variant stalled --set decode.workers=4
echo "$n runs, $hits"
