#!/usr/bin/env bash
# What ./dev bench prints: a training step, rings, kernels. Arguments go to the step ("--ops").
set -euo pipefail
cd "$(dirname "$0")/.."
build=${LORAFLOW_BUILD:-build/release}
echo "== a training step of the tiny model"
"$build/bench/step" tiny 50 "$@"
echo "== a training step of Stable Diffusion 1.5 size"
if [ "$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)" -ge 6 ]; then
    "$build/bench/step" sd15 3 "$@"
else
    echo "left out: it needs 6 GiB of free memory"
fi
echo "== rings"
"$build/loraflow" bench ring
echo "== kernels"
"$build/loraflow" bench kernel
