#!/usr/bin/env bash
# A killed and resumed run ends with the bytes of an undisturbed one: accumulation, an epoch's tail, a loss
# scale that skips steps, longer runs, damaged checkpoints, other settings.
# @label short
# @timeout 180
set -euo pipefail
. tests/sh/loop.bash

# -- plain: 3 epochs of 4 groups, checkpoint every 2 updates, killed at random moments --------
plain=(pictures:epochs=3 adam:schedule=cosine adam:warmup=3 keep:every=2 measure:every=4 save:every=5)
graph "$dir/ref.ini" "$dir/ref" "${plain[@]}"
start=$(now_ms)
run "$dir/ref" "$dir/ref.ini"
whole=$(($(now_ms) - start))
[ "$(wc -l < "$dir/ref/log.jsonl")" = 12 ]
grep -q '"step": 12' "$dir/ref/log.jsonl"
grep -q '"samples": 3' "$dir/ref/log.jsonl" # the tail

graph "$dir/killed.ini" "$dir/killed" "${plain[@]}"
for i in 1 2 3; do
    kill_one "$dir/killed" "$dir/killed.ini" $((RANDOM % (whole + whole / 5))) || true
done
run "$dir/killed" "$dir/killed.ini"
# D-07, D-17
same "$dir/killed" "$dir/ref"
cmp "$dir/killed/lora-step00000005.safetensors" "$dir/ref/lora-step00000005.safetensors"

# -- a scale that overflows now and then: skipped steps are part of the course -----------------
skips=(pictures:epochs=4 step:alpha=65536 adam:lr=1e-7 keep:every=1 scale:mode=dynamic scale:init=3e38 scale:max=3e38
    scale:growth_interval=2 scale:backoff=0.25)
graph "$dir/skips.ini" "$dir/skips" "${skips[@]}"
run "$dir/skips" "$dir/skips.ini"
[ "$(grep -c skipped "$dir/skips/log.jsonl")" -ge 3 ]
graph "$dir/cut.ini" "$dir/cut" "${skips[@]}"
for i in 1 2; do
    kill_one "$dir/cut" "$dir/cut.ini" $((whole / 3 + RANDOM % whole)) || true
done
run "$dir/cut" "$dir/cut.ini"
same "$dir/cut" "$dir/skips"

# -- 6 updates, then on to 12: the same as 12 in one go; the new length is told ------------------
graph "$dir/long.ini" "$dir/long" pictures:epochs=0 adam:steps=12
graph "$dir/more.ini" "$dir/more" pictures:epochs=0 adam:steps=12
run "$dir/long" "$dir/long.ini"
run "$dir/more" "$dir/more.ini" --set adam.steps=6
[ "$(wc -l < "$dir/more/log.jsonl")" = 6 ]
run "$dir/more" "$dir/more.ini"
# D-07, D-18
grep -q 'now 12 updates long (was 6)' "$dir/said"
same "$dir/more" "$dir/long"

# -- without a graph: the checkpoint's own one -----------------------------------------------------
graph "$dir/own.ini" "$dir/own" pictures:epochs=0 adam:steps=12
run "$dir/own" "$dir/own.ini" --set adam.steps=6
rm "$dir/own.ini"
"$LORAFLOW" run --resume "$dir/own/run.ckpt" --set adam.steps=12 > "$dir/said" 2>&1 || { cat "$dir/said"; exit 1; }
same "$dir/own" "$dir/long"

# -- a damaged newest checkpoint: the one before it is taken, with a warning ----------------------
truncate -s -100 "$dir/more/run.ckpt"
if [ -e "$dir/more/run.ckpt.1" ]; then
    run "$dir/more" "$dir/more.ini"
    # E-16
    grep -qi 'warning' "$dir/said"
    same "$dir/more" "$dir/long"
fi

# -- other settings: rank is refused, and nothing is overwritten ------------------------------------
before=$(sha256sum < "$dir/long/lora.safetensors")
if "$LORAFLOW" run "$dir/long.ini" --resume "$dir/long/run.ckpt" --set step.rank=8 > "$dir/said" 2>&1; then
    echo "another rank was accepted"
    exit 1
fi
# D-18
grep -q 'rank' "$dir/said"
[ "$before" = "$(sha256sum < "$dir/long/lora.safetensors")" ]
