#!/usr/bin/env bash
# A stage built outside the tree, against the installed files alone, is found, documented, checked and run.
# Also: the tutorial shows that file, and it has at most 70 lines.
# @timeout 180
set -euo pipefail
src=examples/stage/brighten.c
fail() { echo "FAIL: $*"; exit 1; }
[ -n "${LORAFLOW:-}" ] || { echo "no program was built"; exit 77; }
[ -z "${LORAFLOW_SANITIZE:-}" ] || { echo "installed files are tested without sanitizers"; exit 77; }

lines=$(wc -l <$src)
[ "$lines" -le 70 ] || fail "$src has $lines lines"
diff <(awk '/^```c$/ && !n { n = 1; next } /^```$/ && n == 1 { n = 2 } n == 1' docs/writing-a-stage.md) $src ||
    fail "docs/writing-a-stage.md does not show $src"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cmake --install "$LORAFLOW_BUILD" --prefix "$dir/usr" >"$dir/log" 2>&1 || { cat "$dir/log"; fail "install"; }
cp -r examples/stage "$dir/own"
cmake -G Ninja -S "$dir/own" -B "$dir/own/build" -DCMAKE_PREFIX_PATH="$dir/usr" >"$dir/log" 2>&1 || { cat "$dir/log"; fail "configure"; }
cmake --build "$dir/own/build" >"$dir/log" 2>&1 || { cat "$dir/log"; fail "build"; }
! grep -q warning "$dir/log" || { cat "$dir/log"; fail "warnings"; }

# the installed program, its own stages, and the new one; nothing of this tree
cd "$dir/own"
unset LORAFLOW_SOURCE LORAFLOW_BUILD
export FLOW_STAGES=$dir/own/build
loraflow=$dir/usr/bin/loraflow
"$loraflow" inspect brighten >"$dir/out" || fail "inspect"
grep -q "Added to every colour of every pixel" "$dir/out" || { cat "$dir/out"; fail "inspect says nothing of amount"; }
"$loraflow" inspect | grep -q brighten || fail "not in the list"
"$loraflow" check brighten.ini || fail "check"
"$loraflow" run brighten.ini >/dev/null 2>"$dir/err" || { cat "$dir/err"; fail "run"; }
[ "$(grep -c image brighter/items.jsonl)" = 4 ] || fail "four pictures were expected"
[ -s brighter/000003.image.png ] || fail "no picture was written"
cp -r brighter first
"$loraflow" run brighten.ini --set brighter.workers=1 >/dev/null 2>&1 || fail "second run"
diff -r brighter first || fail "one worker and two give different pictures"

rc=0
"$loraflow" run brighten.ini --set brighter.amount=0 --set brighter.spread=0 2>"$dir/err" || rc=$?
[ $rc = 2 ] || [ $rc = 1 ] || fail "exit $rc"
grep -q "brighten.ini:7: \[brighter\] amount and spread are both 0" "$dir/err" || { cat "$dir/err"; fail "message"; }
rc=0
"$loraflow" check brighten.ini --set brighter.amount=999 2>"$dir/err" || rc=$?
[ $rc = 2 ] || fail "exit $rc"
grep -q "amount = 999 is outside -255..255" "$dir/err" || { cat "$dir/err"; fail "message"; }
echo ok
