#!/usr/bin/env bash
# One run killed at 50 random moments, also while it saves, and resumed each time: the same bytes as an
# undisturbed run.
# @label slow
# @timeout 1200
set -euo pipefail
. tests/sh/loop.bash
settings=(pictures:epochs=4 keep:every=1 save:every=1)
graph "$dir/ref.ini" "$dir/ref" "${settings[@]}"
start=$(now_ms)
run "$dir/ref" "$dir/ref.ini"
whole=$(($(now_ms) - start))
graph "$dir/killed.ini" "$dir/killed" "${settings[@]}"
kills=0 rounds=0
while [ $kills -lt 50 ]; do
    if kill_one "$dir/killed" "$dir/killed.ini" $((RANDOM % (whole + 1))); then
        kills=$((kills + 1))
    else
        same "$dir/killed" "$dir/ref"
        rm -r "$dir/killed"
        rounds=$((rounds + 1))
    fi
done
run "$dir/killed" "$dir/killed.ini"
# F-21
same "$dir/killed" "$dir/ref"
[ -z "$(ls "$dir/killed" | grep -v -e '^lora.*safetensors$' -e '^run.ckpt' -e '^log.jsonl$')" ] || ls "$dir/killed"
echo "$kills kills, $((rounds + 1)) runs"
