#!/usr/bin/env bash
# bench measures every stage there is, alone; also a sweep, a recording, a folder, rings and kernels.
# @timeout 180
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir/tmp
mkdir "$TMPDIR"
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

expect 0 "$LORAFLOW" inspect --json
stages=$(python3 -c "import json; print(*[s['name'] for s in json.load(open('$dir/out'))['stages']])")
base_of() { # stages that need a model
    python3 - "$dir" "$1" <<'PY'
import json, subprocess, sys, os
s = json.loads(subprocess.check_output([os.environ["LORAFLOW"], "inspect", sys.argv[2], "--json"]))
ports = s["inputs"]
loop = any("feedback" in p["flags"] for p in ports) or (ports and s["outputs"] and ports[0]["kind"] == "step")
print("base=demo/base" if loop or any(p["name"] == "base" and p["required"] for p in s["params"])
      or s["name"].endswith("_store") else "")
PY
}
for stage in $stages; do
    extra=$(base_of "$stage")
    case $stage in
    image_folder) extra="--input demo/pictures" ;;
    replay) extra="--input $dir/recording" ;;
    esac
    if [ "$stage" = replay ]; then
        printf '[a]\nstage=generate\nwidth=32\nheight=32\nitems=5\n[b]\nstage=dump\nin=a\npath=recording\n' >"$dir/record.ini"
        expect 0 "$LORAFLOW" run "$dir/record.ini"
    fi
    # shellcheck disable=SC2086
    expect 0 "$LORAFLOW" bench stage "$stage" $extra --items 2 --repeats 1 --json
    json "d['stage'] == '$stage' and d['items_per_s'] > 0 and d['bytes_per_s'] >= 0 and d['peak_rss'] > 1 << 20"
    json "0 <= d['ns_per_item']['min'] <= d['ns_per_item']['median'] <= d['ns_per_item']['max']"
    if [ -z "${LORAFLOW_SANITIZE:-}" ]; then
        json "d['allocations_per_item'] > 0"
    fi
    [ -z "$(ls -A "$TMPDIR")" ] || fail "$stage leaves files: $(ls -R "$TMPDIR")"
done

expect 0 "$LORAFLOW" bench stage delay ms=2 --items 100 --workers 1,2 --json
json "[s['workers'] for s in d['sweep']] == [1, 2] and d['workers'] == 1"
# two workers sleep at once: nearly twice as fast, also on a busy machine more than 1.3 times
json "2e6 <= d['ns_per_item']['min'] < 1e7 and d['sweep'][1]['items_per_s'] > 1.3 * d['sweep'][0]['items_per_s']"
expect 0 "$LORAFLOW" bench decode_image in=demo/pictures --items 8 --repeats 1 --json
json "d['items_per_s'] > 0 and d['bytes_per_s'] > 0"
expect 0 "$LORAFLOW" bench stage resize_crop --input demo/pictures --items 4 --repeats 1
says out "ITEMS/s"

expect 2 "$LORAFLOW" bench stage decode_imag
says err "did you mean 'decode_image'?"
expect 2 "$LORAFLOW" bench stage delay mss=2
says err "no parameter 'mss'; did you mean 'ms'?"
expect 2 "$LORAFLOW" bench stage delay 2
says err "parameter=value"
expect 2 "$LORAFLOW" bench stage delay --workers 0
expect 2 "$LORAFLOW" bench

expect 0 "$LORAFLOW" bench ring --json
json "all(r['ns_per_item'] > 0 for r in d['rings']) and len(d['rings']) >= 8"
expect 0 "$LORAFLOW" bench kernel 'scale_f32' --json
json "d['bandwidth'] > 1e8 and {k['variant'] for k in d['kernels']} >= {'c'} and sum(k['used'] for k in d['kernels']) == 1"
expect 2 "$LORAFLOW" bench kernel nosuch
echo ok
