#!/usr/bin/env bash
# plan of the demo: sums that agree, operations, live intervals that a script of its own checks.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
json() { python3 -c "import json; d=json.load(open('$dir/out')); assert $1, d" || fail "$1"; }
command -v python3 >/dev/null || { echo "no python3 to read JSON with"; exit 77; }
cat >"$dir/demo.ini" <<INI
[graph]
include = $LORAFLOW_SOURCE/graphs/demo.ini
INI
plan() { "$LORAFLOW" plan "$dir/demo.ini" --var out="$dir/out.d" "$@" 2>"$dir/err" || { cat "$dir/err"; fail "plan $*"; }; }

plan --json --dump "$dir/intervals" >"$dir/out"
json "d['host']['peak'] == max(d['host']['phases'].values()) and d['device']['peak'] == 0"
json "d['host']['phases']['train'] <= sum(n['host'] for n in d['nodes'].values()) + d['rings']"
json "d['step']['weights'] > 40 << 20 and d['step']['adapters'] > 0 and d['step']['optimizer'] > 0"
json "d['step']['bound'] <= d['step']['arena'] <= 1.02 * d['step']['bound'] and d['step']['flops'] > 1e9"
json "len(d['nodes']) == 22 and d['nodes']['step']['host'] > d['step']['arena']"
if command -v perl >/dev/null; then
    perl tests/arena_bound.pl "$dir/intervals" >"$dir/bound"
    python3 - "$dir" <<'PY' || fail "the dump and the plan do not agree"
import json, re, sys
plan = json.load(open(sys.argv[1] + "/out"))["step"]
arena, bound = map(int, re.search(r"arena (\d+), bound (\d+)", open(sys.argv[1] + "/bound").read()).groups())
assert (arena, bound) == (plan["arena"], plan["bound"])
PY
fi
plan --ops >"$dir/out"
[ "$(wc -l <"$dir/out")" -gt 500 ] || fail "too few operations"
grep -q "matmul" "$dir/out" || fail "no product among the operations"
plan --no-data --json >"$dir/out"
json "d['host']['peak'] > 0"
plan >"$dir/out"
grep -q "peak on the host" "$dir/out" || fail "no peak"
rc=0
"$LORAFLOW" plan "$dir/demo.ini" --var out="$dir/out.d" --set graph.memory=64MiB >"$dir/out" 2>"$dir/err" || rc=$?
[ $rc != 0 ] || fail "64 MiB are enough"
grep -q "memory = " "$dir/err" || fail "the limit is not named"
echo ok
