#!/usr/bin/env bash
# run and plan: outcome as text and JSON, exit codes, signals, limits, a graph that cannot go on.
# @label short
# @timeout 60
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
expect() { # CODE COMMAND...: stdout in $dir/out, stderr in $dir/err
    local want=$1 rc=0
    shift
    "$@" >"$dir/out" 2>"$dir/err" || rc=$?
    [ "$rc" = "$want" ] || { cat "$dir/out" "$dir/err"; fail "exit $rc, not $want: $*"; }
}
says() { grep -qF -- "$2" "$dir/$1" || { cat "$dir/$1"; fail "no '$2' on $1"; }; }
json() { python3 -c "import json; d=json.load(open('$dir/out')); assert $1, d" || fail "$1"; }
command -v python3 >/dev/null || { echo "no python3 to read JSON with"; exit 77; }

cat >"$dir/g.ini" <<'INI'
[input]
stage  = generate
fields = image, caption
width  = 64
height = 48
items  = 200
[slow]
stage   = delay
in      = input
ms      = 1
workers = 2
[end]
stage = null
in    = slow
INI

expect 0 "$LORAFLOW" run "$dir/g.ini"
[ ! -s "$dir/out" ] || fail "run prints on stdout"
says err "NODE"
says err "done in"
expect 0 "$LORAFLOW" run --json "$dir/g.ini"
json "d['status'] == 'done' and d['error'] is None and d['seconds'] > 0 and d['peak_rss'] > 1 << 20"
json "d['steps'] == 0 and d['loss'] is None and d['device_peak'] == 0"
json "list(d['nodes']) == ['input', 'slow', 'end'] and d['nodes']['slow']['stage'] == 'delay'"
json "d['nodes']['slow']['in'] == 200 and d['nodes']['slow']['out'] == 200 and d['nodes']['end']['in'] == 200"
json "d['nodes']['slow']['busy_s'] >= 0.2 and d['nodes']['end']['wait_in_s'] > 0 and d['nodes']['slow']['skipped'] == 0"
json "d['nodes']['end']['bytes'] >= 200 * 64 * 48 * 3"
expect 0 "$LORAFLOW" run --json "$dir/g.ini" --limit 7 --set slow.workers=1
json "d['nodes']['end']['in'] == 7"

# faults before the run are the graph's; the object is there all the same
expect 2 "$LORAFLOW" run --json "$dir/g.ini" --set slow.ms=fast
json "d['status'] == 'failed' and 'slow' in d['error'] and d['nodes'] == {}"
expect 2 "$LORAFLOW" run "$dir/g.ini" --limit=-1
expect 2 "$LORAFLOW" run "$dir/g.ini" --stall soon
says err "250ms"
expect 2 "$LORAFLOW" run "$dir/g.ini" "$dir/g.ini"
expect 2 "$LORAFLOW" run
# F-20
expect 1 bash -c '"$LORAFLOW" run --json "$1" --limit 1 >/dev/full' - "$dir/g.ini"
says err "could not be written"

# an item that fails
cat >"$dir/fault.ini" <<'INI'
[input]
stage = generate
[end]
stage = null
in    = input
INI
# F-20
FLOW_FAULT=emit:3 expect 1 "$LORAFLOW" run --json "$dir/fault.ini"
json "d['status'] == 'failed' and 'input' in d['error']"
says err "error:"

# rings too small for what a node holds back: exit 3, with the names of those who wait
mkdir "$dir/stages"
cat >"$dir/zip2.c" <<'C'
#include "core/flow/stage.h"
static FlowStatus zip2_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    (void)error;
    return flow_emit(ctx, 0, flow_take(&in[0]));
}
static const FlowPort ins[] = {{.name = "a", .doc = "One."}, {.name = "b", .doc = "Other."}, FLOW_END};
static const FlowPort outs[] = {{.name = "out", .doc = "The first."}, FLOW_END};
FLOW_STAGE(.name = "zip2", .summary = "Join.", .version = 1, .inputs = ins, .outputs = outs, .process = zip2_process);
C
# shellcheck disable=SC2046
${CC:-cc} -D_GNU_SOURCE -shared -fPIC -I"$LORAFLOW_SOURCE" $(pkg-config --cflags glib-2.0 gmodule-2.0) \
    -o "$dir/stages/zip2.so" "$dir/zip2.c"
cat >"$dir/stall.ini" <<'INI'
[graph]
stages = stages
[input]
stage = generate
items = 100
width = 8
height = 8
[held]
stage   = gate
in      = input
items   = 8
declare = no
[both]
stage  = zip2
in.a   = held
in.b   = input
ring.b = 4
[end]
stage = null
in    = both
INI
# F-17
expect 3 "$LORAFLOW" run --json "$dir/stall.ini"
json "d['status'] == 'failed' and 'held' in d['error'] and 'both' in d['error']"
expect 0 "$LORAFLOW" run --json "$dir/stall.ini" --set graph.on_stall=grow
json "d['nodes']['end']['in'] == 100"

# F-16: what happens to lie in the folder that one is in is not searched for stages
sed '/^stages = /d' "$dir/stall.ini" >"$dir/stages/none.ini"
expect 2 bash -c 'cd "$1" && exec "$LORAFLOW" check none.ini' - "$dir/stages"
says err "no stage 'zip2'"

# signals: the first asks, the second tears down
for pair in INT:130 TERM:143 HUP:129; do
    "$LORAFLOW" run --json "$dir/g.ini" --set input.items=0 >"$dir/out" 2>"$dir/err" &
    pid=$!
    sleep 0.5
    kill -"${pair%:*}" $pid
    rc=0
    wait $pid || rc=$?
    # F-21
    [ "$rc" = "${pair#*:}" ] || { cat "$dir/err"; fail "exit $rc after ${pair%:*}"; }
    json "d['status'] == 'stopped' and d['nodes']['end']['in'] > 0"
    says err "stopped in"
done
"$LORAFLOW" run "$dir/g.ini" --set input.items=0 --set slow.ms=60000 >"$dir/out" 2>"$dir/err" &
pid=$!
sleep 0.5
kill -INT $pid
sleep 0.2
kill -INT $pid
rc=0
wait $pid || rc=$?
# F-21
[ "$rc" = 130 ] || { cat "$dir/err"; fail "exit $rc after two interrupts"; }

# plan
expect 0 "$LORAFLOW" plan "$dir/g.ini"
says out "peak on the host"
expect 0 "$LORAFLOW" plan --json "$dir/g.ini"
json "set(d) >= {'device', 'host', 'step', 'nodes'} and d['host']['peak'] >= d['host']['phases']['train'] > 0"
json "set(d['host']['phases']) >= {'prefill', 'train'} and set(d['nodes']['input']) == {'host', 'device'}"
json "set(d['step']) >= {'weights', 'adapters', 'optimizer', 'activations', 'arena', 'bound', 'recompute'}"
json "d['nodes']['input']['host'] >= 4 * 64 * 48 * 3"
expect 0 "$LORAFLOW" run --dry "$dir/g.ini"
says out "peak on the host"
printf '[graph]\nmemory = 1KiB\ninclude = g.ini\n' >"$dir/small.ini"
for command in "plan" "run"; do
    rc=0
    "$LORAFLOW" $command "$dir/small.ini" >"$dir/out" 2>"$dir/err" || rc=$?
    [ "$rc" != 0 ] || fail "$command takes a graph that cannot fit"
    says err "memory"
done
echo ok
