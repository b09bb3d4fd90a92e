#!/usr/bin/env bash
# check, graph, plan --resolved, help: texts, exit codes, JSON, a full stdout.
# @label short
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
json() { python3 -c "import json,sys; d=json.load(open('$dir/out')); assert $1, d" || fail "$1"; }
command -v python3 >/dev/null || { echo "no python3 to read JSON with"; exit 77; }

cat >"$dir/good.ini" <<'INI'
[graph]
name = good
[input]
stage = generate
items = 20
[end]
stage = null
in    = input
INI
cat >"$dir/bad.ini" <<'INI'
[input]
stage = generatr
[middle]
stage = limit
in    = inptu
itmes = 4
[end]
stage = null
in    = middle
INI

expect 0 "$LORAFLOW" check "$dir/good.ini"
says out "good.ini: ok, 2 nodes, 1 edges"
[ ! -s "$dir/err" ] || fail "a good graph has messages"
expect 2 "$LORAFLOW" check "$dir/good.ini" "$dir/bad.ini"
says out "good.ini: ok"
# F-13
says err "bad.ini:2: error:"
says err "did you mean 'generate'?"
says err "bad.ini:5: error:"
says err "did you mean 'input'?"
says err "bad.ini:6: error:"
says err "did you mean 'items'?"

expect 2 "$LORAFLOW" check --json "$dir/bad.ini"
json "len(d['errors']) >= 3 and d['errors'][0]['line'] == 2 and d['errors'][0]['file'].endswith('bad.ini')"
json "all(set(e) >= {'file', 'line', 'message'} for e in d['errors']) and d['warnings'] == []"
expect 0 "$LORAFLOW" check --json "$dir/good.ini" --var unused=1
json "d['errors'] == [] and len(d['warnings']) == 1 and d['warnings'][0]['line'] is None"
expect 2 "$LORAFLOW" check "$dir/good.ini" --set input.items=-1
says err "items = -1"
expect 2 "$LORAFLOW" check "$dir/none.ini"
says err "No such file"

expect 0 "$LORAFLOW" graph "$dir/good.ini"
says out "digraph"
says out "input"
expect 0 "$LORAFLOW" plan --resolved "$dir/good.ini" --set input.items=7
says out "items = 7"
says out "; --set"
says out "good.ini:7"

expect 2 "$LORAFLOW"
says err "usage: loraflow VERB"
expect 2 "$LORAFLOW" chekc
says err "did you mean 'check'?"
expect 2 "$LORAFLOW" check
says err "no graph is named"
expect 2 "$LORAFLOW" check --jsno "$dir/good.ini"
says err "--jsno"
for verb in run check plan graph inspect bench; do
    expect 0 "$LORAFLOW" help $verb
    says out "usage: loraflow $verb"
    expect 0 "$LORAFLOW" $verb --help
    says out "usage: loraflow $verb"
    expect 1 bash -c '"$LORAFLOW" help '$verb' >/dev/full'
    says err "could not be written"
done
expect 0 "$LORAFLOW" --version
says out "loraflow "
expect 1 bash -c '"$LORAFLOW" check "$1" >/dev/full' - "$dir/good.ini"
echo ok
