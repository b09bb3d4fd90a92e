#!/usr/bin/env bash
# @timeout 200
# The plan holds: peak RSS of the demo run is within 3 % + 50 MB of what `plan` said, the arena within 2 % of its bound.
. tests/lib.sh
if [ -n "${LORAFLOW_SANITIZE:-}" ]; then
    echo "a sanitizer's own memory is not in the plan"
    exit 77
fi
graph=graphs/demo.ini
"$bin" plan "$graph" --var out="$scratch/out" --json >"$scratch/plan.json"
arena=$(json "$scratch/plan.json" step.arena)
bound=$(json "$scratch/plan.json" step.bound)
host=$(json "$scratch/plan.json" host.peak)
perl -e 'exit !($ARGV[0] >= $ARGV[1] && $ARGV[0] <= 1.02 * $ARGV[1])' "$arena" "$bound" || fail "arena $arena, bound $bound"
run_ok "$graph" --var out="$scratch/out" --var steps=12
rss=$(json "$scratch/out.json" peak_rss)
echo "plan $host, peak RSS $rss, arena $arena, bound $bound"
perl -e '($p, $r) = @ARGV; exit !(abs($r - $p) <= 0.03 * $p + 50e6)' "$host" "$rss" || fail "RSS $rss is not within 3 % + 50 MB of the plan $host"
