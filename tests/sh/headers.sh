#!/usr/bin/env bash
# @timeout 120
# Every public header compiles alone, as C11; those without C11 atomics also as C++.
set -euo pipefail
cd "${LORAFLOW_SOURCE:-.}"
flags=$(pkg-config --cflags glib-2.0 gmodule-no-export-2.0)
fail=0
for h in core/*/*.h kernels/*.h; do
    # bodies that a file includes once per instruction set are not headers of their own
    case $h in *_private.h | core/cli/* | kernels/simd_*.h | kernels/*_tile.h | kernels/rows.h | kernels/each.h) continue ;; esac
    echo "#include \"$h\"" | gcc -std=gnu11 -Wall -Wextra -Werror -I. $flags -fsyntax-only -xc - || fail=1
done
for h in core/flow/field.h core/flow/random.h core/flow/status.h kernels/type.h; do
    echo "#include \"$h\"" | g++ -std=c++17 -Wall -Wextra -Werror -I. $flags -fsyntax-only -xc++ - || fail=1
done
exit $fail
