#!/usr/bin/env bash
# @timeout 180
# Whole runs give the same LoRA, byte for byte: cache cold, warm and holding nothing, any ring, any workers; and
# what changes in the data set misses, nothing else.
set -euo pipefail
. "${LORAFLOW_SOURCE:-.}/tests/sh/cache.bash"
disk=(--set lookup.disk="$tmp/cache")

go cold "${disk[@]}"
says cold "cache: 0 of 8 found, 8 to encode"
go warm "${disk[@]}"
says warm "cache: 8 of 8 found, 0 to encode"
counts warm lookup misses 0
counts warm latents encoded 0
counts warm text encoded 0
same cold warm
go nothing --set lookup.ram=0
# C-09
counts nothing lookup bytes_peak 0
same cold nothing
go narrow "${disk[@]}" --set graph.ring=1 --set decode.workers=1 --set fit.workers=1
same cold narrow
go wide --set lookup.ram=20KiB --set lookup.policy=lru --set graph.ring=64 --set decode.workers=8 --set fit.workers=8
same cold wide
# C-09
[ "$(count wide lookup bytes_peak)" -le 20480 ] || fail "wide: more than 20 KiB in memory"
[ "$(count wide lookup evictions)" -gt 0 ] || fail "wide: nothing was evicted"

# without h2d, and without dynamic precision, the graph works
go bare --set copy.enabled=no --set precision.enabled=no
same cold bare # the cache has rounded already: half precision on the way loses nothing more

# one edited caption: its text is encoded again, no picture is
echo "line icon of something else" >"$tmp/pictures/07-closed-umbrella.txt"
go edited "${disk[@]}"
# C-06
counts edited latents encoded 0
counts edited text encoded 1
cmp -s "$tmp/cold.safetensors" "$tmp/edited.safetensors" && fail "the new caption was not used"

# a renamed picture is made again once, under whatever extension
mv "$tmp/pictures/11-womans-clothes.jpg" "$tmp/pictures/11-womans-clothes.png"
go renamed "${disk[@]}"
same renamed edited
go again "${disk[@]}"
# C-03
counts again lookup misses 0
same again edited

# other parameters miss, the old ones hit
go resized "${disk[@]}" --set fit.filter=area
# C-02
[ "$(count resized latents encoded)" -gt 0 ] || fail "another filter was found in the cache"
counts resized text encoded 0
go back "${disk[@]}"
counts back lookup misses 0
same back edited

# a cache in the folder of the pictures is not data
for name in inside inside_again; do
    go $name --set lookup.disk="$tmp/pictures"
    # C-13
    counts $name pictures pictures 6
    same $name edited
done
says inside_again "cache: 8 of 8 found"

# memory does not grow with the epochs: 400 need what 5 need, within 2 % and what threads happen to touch
sed '/^; -- from latents to training/,$d' "$tmp/graph.ini" >"$tmp/data.ini"
printf '[end]\nstage = null\nin = store\n' >>"$tmp/data.ini"
for epochs in 5 400; do
    "$LORAFLOW" run "$tmp/data.ini" --var base="$(realpath "$source")/demo/base" --set pictures.path="$tmp/pictures" \
        --set pictures.epochs=$epochs --set lookup.disk="$tmp/cache" --json >"$tmp/epochs$epochs.json" 2>"$tmp/epochs.err" ||
        fail "$epochs epochs ended with $?"
done
rss() { perl -MJSON::PP -0777 -e 'print decode_json(<STDIN>)->{peak_rss}' <"$tmp/epochs$1.json"; }
[ "$(count epochs400 end in)" = 2400 ] || fail "400 epochs of 6 pictures are $(count epochs400 end in) samples"
# C-10
[ "$(rss 400)" -lt $(($(rss 5) * 102 / 100 + 2000000)) ] || fail "memory grew from $(rss 5) to $(rss 400) bytes"
