#!/usr/bin/env bash
# Cheap greps for habits that a compiler does not check, and clang-format where it is installed.
set -euo pipefail
cd "${LORAFLOW_SOURCE:-.}"
fail=0
report() { # TEXT, lines
    [ -z "$2" ] && return
    echo "$1:"
    echo "$2" | head -20
    fail=1
}
sources=$(find . \( -name build -o -name .git -o -path ./tests/fixtures \) -prune -o \( -name '*.c' -o -name '*.h' \) -print | sed 's,^./,,' | sort)
library=$(echo "$sources" | grep -E '^(core/(flow|net|model|image|cache)|kernels|stages)/')
report "tab" "$(grep -nP '\t' $sources || true)"
report "trailing blank" "$(grep -nE ' +$' $sources || true)"
report "exit() in the library" "$(grep -nE '(^|[^_a-z])exit\(' $library || true)"
report "GLib lock or atomic (ThreadSanitizer does not see them)" \
    "$(grep -nE 'GMutex|GCond|GRWLock|g_mutex_|g_cond_|g_atomic_|g_once|GAsyncQueue|GThreadPool' $sources || true)"
report "mark of unfinished work" "$(grep -nE '\b(TODO|FIXME|XXX|HACK)\b' $sources || true)"
report "absolute path" "$(grep -rnE '/(work|root)/' core kernels stages graphs docs README.md CONTRIBUTING.md dev 2>/dev/null || true)"
for f in $sources; do
    [ -z "$(tail -c 1 "$f")" ] || report "no newline at the end" "$f"
done
if command -v clang-format >/dev/null; then
    clang-format --dry-run -Werror $sources || fail=1
fi
exit $fail
