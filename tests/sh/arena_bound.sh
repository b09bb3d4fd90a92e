#!/usr/bin/env bash
# Plans of a training net, checked by a script that shares no code with the engine; and that script must see
# a plan that was tampered with.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
command -v perl >/dev/null || { echo "no perl here"; exit 77; }
"$LORAFLOW_BUILD/tests/test_unit_net_plan" --dump "$dir/unet.plan"
perl tests/arena_bound.pl "$dir/unet.plan"
# two pieces that live at one time, moved to one place
awk '!/^#/ { if (!have && $3 - $2 > 50) { have = 1; place = $4; last = $3 }
             else if (have && !done && $2 <= last) { $4 = place; done = 1 } } { print }' \
    "$dir/unet.plan" > "$dir/shared.plan"
if perl tests/arena_bound.pl "$dir/shared.plan" > "$dir/out"; then
    echo "an overlap was not seen"
    exit 1
fi
grep -q "share memory" "$dir/out"
