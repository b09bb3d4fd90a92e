#!/usr/bin/env bash
# Ctrl-C and SIGTERM end a run within a step, with a checkpoint from which it goes on to the same bytes; before
# the first step there is nothing to save, and it says so.
# @label short
# @timeout 180
set -euo pipefail
. tests/sh/loop.bash

graph "$dir/ref.ini" "$dir/ref" pictures:epochs=0 adam:steps=30 measure:every=3 keep:every=0
graph "$dir/cut.ini" "$dir/cut" pictures:epochs=0 adam:steps=30 measure:every=3 keep:every=0
run "$dir/ref" "$dir/ref.ini"

# interrupt SIGNAL CODE LINES: sends it when the log has so many lines
interrupt() {
    local resume=() start took rc=0
    [ -e "$dir/cut/run.ckpt" ] && resume=(--resume "$dir/cut/run.ckpt")
    "$LORAFLOW" run "$dir/cut.ini" "${resume[@]}" > "$dir/said" 2>&1 &
    local pid=$!
    for i in $(seq 1 1200); do
        [ "$(wc -l < "$dir/cut/log.jsonl" 2>/dev/null || echo 0)" -ge "$3" ] && break
        kill -0 $pid 2>/dev/null || break
        sleep 0.05
    done
    start=$(now_ms)
    kill -"$1" $pid
    wait $pid || rc=$?
    took=$(($(now_ms) - start))
    if [ $rc != "$2" ]; then
        echo "exit $rc after SIG$1, not $2"
        tail -20 "$dir/said"
        exit 1
    fi
    echo "SIG$1: exit $rc after $took ms"
    # F-21
    [ "$took" -lt $((5000 * ${slow:-1})) ]
}
[ -z "${LORAFLOW_SANITIZE:-}" ] || slow=8

interrupt INT 130 4
grep -q 'go on with: loraflow run --resume' "$dir/said"
[ -e "$dir/cut/lora.safetensors" ]
interrupt TERM 143 12
run "$dir/cut" "$dir/cut.ini"
same "$dir/cut" "$dir/ref"

# before the first step: while the caches are filled
rm -rf "$dir/cut" "$dir/cache"
"$LORAFLOW" run "$dir/cut.ini" > "$dir/said" 2>&1 &
pid=$!
for i in $(seq 1 200); do
    grep -q captions "$dir/said" && break
    sleep 0.01
done
kill -INT $pid
rc=0
wait $pid || rc=$?
[ $rc = 130 ] || { echo "exit $rc"; cat "$dir/said"; exit 1; }
if [ ! -e "$dir/cut/log.jsonl" ] || [ ! -s "$dir/cut/log.jsonl" ]; then
    grep -q 'nothing to save' "$dir/said"
    [ ! -e "$dir/cut/lora.safetensors" ]
fi
