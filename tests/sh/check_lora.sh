#!/usr/bin/env bash
# LoRA files that we write are loaded by diffusers, every tensor of them used. PYTHON names an interpreter that has
# torch, diffusers and peft; a minute with it, skipped without.
# @label slow
# @timeout 600
set -euo pipefail
python=${PYTHON:-python3}
if ! "$python" -c 'import torch, diffusers, peft, safetensors' 2>/dev/null; then
    echo "skipped: $python has no torch, diffusers and peft (PYTHON=... chooses another)"
    exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$LORAFLOW_BUILD/tests/test_unit_lora_file" --write "$dir"
check() { # MODEL FILE OPTIONS
    echo "== $2"
    "$python" tests/fixtures/check_lora.py "$dir/$2" "tests/fixtures/$1" --rank 5 "${@:3}"
}
check tiny-sd tiny-sd.attention.kohya.f16.safetensors --format kohya --targets attn \
    --same-as "$dir/tiny-sd.attention.diffusers.f16.safetensors"
check tiny-sd tiny-sd.attention.diffusers.f16.safetensors --format diffusers --targets attn
check tiny-sd tiny-sd.all.kohya.f32.safetensors --format kohya --same-as "$dir/tiny-sd.all.diffusers.f32.safetensors"
check tiny-sdxl tiny-sdxl.linear.kohya.bf16.safetensors --format kohya --targets all \
    --same-as "$dir/tiny-sdxl.linear.diffusers.bf16.safetensors"
check tiny-sdxl tiny-sdxl.linear.diffusers.bf16.safetensors --format diffusers --targets all
check tiny-sdxl tiny-sdxl.all.kohya.f32.safetensors --format kohya
