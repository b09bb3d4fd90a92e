#!/usr/bin/env bash
# @timeout 300
# Each memory-saving node can be left out of the graph, alone and together, and the rest still trains.
. tests/lib.sh
graph=tests/graphs/train.ini
export OUT=$scratch/out
off() { for node in "$@"; do printf -- '--set %s.enabled=no ' "$node"; done; }
try() { # nodes to leave out
    rm -rf "$OUT"
    mkdir -p "$OUT"
    "$bin" check "$graph" $(off "$@") || fail "check without: $*"
    run_ok "$graph" $(off "$@") --var steps=2
    [ "$(json "$scratch/out.json" steps)" = 2 ] || fail "steps without: $*"
    [ -s "$OUT/lora.safetensors" ] || fail "no LoRA without: $*"
    echo "without $*: trains"
}
try assemble
try score assemble
try lookup store
try precision
try copy
try scale
try measure
try keep watch
try score assemble lookup store precision copy
