#!/usr/bin/env bash
# inspect: stages, plugins, LoRA files, checkpoints, models; docs/stages.md says what the program says.
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
json() { python3 -c "import json; d=json.load(open('$dir/out')); assert $1, d" || fail "$1"; }
command -v python3 >/dev/null || { echo "no python3 to read JSON with"; exit 77; }

# stages
expect 0 "$LORAFLOW" inspect
says out "delay"
says out "Let each item take time."
expect 0 "$LORAFLOW" inspect --json
json "{'delay', 'limit', 'null', 'generate'} <= {s['name'] for s in d['stages']}"
json "all(p['doc'].endswith('.') and p['type'] for s in d['stages'] for p in s['params'])"
expect 0 "$LORAFLOW" inspect delay
says out "0..3600000 ms"
says out "Time for one item."
expect 0 "$LORAFLOW" inspect delay --json
json "d['name'] == 'delay' and 'parallel' in d['flags'] and d['inputs'][0]['kind'] == 'any'"
json "d['params'][0] == {'name': 'ms', 'type': 'number', 'default': '10', 'required': False, 'min': 0, 'max': 3600000, 'unit': 'ms', 'doc': 'Time for one item.'}"
expect 0 "$LORAFLOW" inspect "$FLOW_STAGES/limit.so" --json
json "d['name'] == 'limit' and d['params'][0]['required'] and d['params'][0]['default'] is None"
expect 2 "$LORAFLOW" inspect dealy
says err "did you mean 'delay'?"
echo "not a library" >"$dir/odd.so"
expect 2 "$LORAFLOW" inspect "$dir/odd.so"
says err "odd.so"
mkdir "$dir/stages"
cp "$dir/odd.so" "$dir/stages"
FLOW_STAGES="$FLOW_STAGES:$dir/stages" expect 1 "$LORAFLOW" inspect
says out "delay"
says err "odd.so"

# files
lora=tests/fixtures/lora
expect 0 "$LORAFLOW" inspect $lora/tiny-sd.attn.kohya.safetensors
says out "LoRA in kohya format, 48 modules, rank 4, alpha 2, 144 tensors"
expect 0 "$LORAFLOW" inspect $lora/tiny-sd.attn.diffusers.safetensors
says out "LoRA in diffusers format, 48 modules, rank 4, alpha 2, 96 tensors"
expect 0 "$LORAFLOW" inspect $lora/tiny-sd.attn.plain.safetensors
says out "LoRA in diffusers format, 48 modules, rank 4, 96 tensors"
expect 0 "$LORAFLOW" inspect --json $lora/tiny-sd.all.kohya.safetensors
json "d['format'] == 'kohya' and d['rank'] == 4 and d['alpha'] == 2 and d['modules'] == 72 and len(d['tensors']) == 216"
json "all(set(t) == {'name', 'dtype', 'shape', 'bytes'} for t in d['tensors']) and isinstance(d['metadata'], dict)"
json "d['bytes'] == sum(t['bytes'] for t in d['tensors'])"
expect 0 "$LORAFLOW" inspect --json tests/fixtures/tiny-sd.safetensors
json "d['format'] == 'safetensors' and d['rank'] is None and d['alpha'] is None and d['modules'] == 0"
head -c 100 $lora/tiny-sd.all.kohya.safetensors >"$dir/cut.safetensors"
expect 1 "$LORAFLOW" inspect "$dir/cut.safetensors"
says err "cut.safetensors"
expect 2 "$LORAFLOW" inspect "$dir/none.safetensors"
says err "no such file"

# models
expect 0 "$LORAFLOW" inspect demo/base
says out "SD1.x, predicts epsilon"
expect 0 "$LORAFLOW" inspect --json demo/base
json "d['kind'] == 'SD1.x' and d['vae_factor'] == 4 and d['bytes_f32']['unet'] > 1 << 20"
expect 1 "$LORAFLOW" inspect "$dir"

# the page of stages
expect 0 "$LORAFLOW" inspect --markdown
cmp -s "$dir/out" docs/stages.md || {
    diff "$dir/out" docs/stages.md | head -20
    fail "docs/stages.md is not what 'loraflow inspect --markdown' prints; write it anew"
}
expect 2 "$LORAFLOW" inspect --markdown delay
echo ok
