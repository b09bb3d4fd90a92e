#!/usr/bin/env bash
# tests/cases.tsv maps every known public failure (an id, a short name) to the tests that prove it cannot happen
# here: "unit.NAME", "stages.NAME", "kernels.NAME" or "sh.NAME", several with blanks between. "later: REASON" is for
# what concerns nothing that exists yet. The source of a named test must mention the id, so that a mapping cannot
# outlive what it points to.
set -euo pipefail
cd "${LORAFLOW_SOURCE:-.}"
ids="$(cat tests/cases.ids)"
fail=0
for id in $ids; do
    row=$(grep -P "^$id\t" tests/cases.tsv || true)
    if [ -z "$row" ]; then
        echo "$id is not mapped in tests/cases.tsv"
        fail=1
        continue
    fi
    proof=$(cut -f3 <<<"$row")
    case $proof in
    "later: "?*) continue ;;
    "" | later:*)
        echo "$id: no test and no reason"
        fail=1
        continue
        ;;
    esac
    for test in $proof; do
        source=tests/${test%%.*}/${test#*.}
        if [ -f "$source.c" ]; then source=$source.c; else source=$source.sh; fi
        if ! grep -q "$id" "$source" 2>/dev/null; then
            echo "$id: $source does not exist or does not mention it"
            fail=1
        fi
    done
done
unknown=$(cut -f1 tests/cases.tsv | grep -v '^#' | grep -vxF "$(tr ' ' '\n' <<<"$ids")" || true)
[ -z "$unknown" ] || { echo "unknown ids: $unknown"; fail=1; }
echo "$(grep -cP '^[A-H]-\d\d\t' tests/cases.tsv) cases, $(grep -c 'later: ' tests/cases.tsv) later"
exit $fail
