#!/usr/bin/env bash
# Data sets through the cache: each setting that changes a latent misses and hits again when it is changed back,
# pictures are seen both ways round though they are kept, captions that are too long are told.
# @timeout 120
set -euo pipefail
. "${LORAFLOW_SOURCE:-.}/tests/sh/cache.bash"
sed '/^; -- from latents to training/,$d' "$tmp/graph.ini" >"$tmp/data.ini"
printf '[end]\nstage = dump\nin = store\nfields = geometry, latent_mean\n' >>"$tmp/data.ini"
data() { # NAME [options]: everything before training, what it makes is in $tmp/NAME.dump
    local name=$1
    shift
    "$LORAFLOW" run "$tmp/data.ini" --var base="$(realpath "$source")/demo/base" --set pictures.path="$tmp/pictures" \
        --set pictures.epochs=1 --set lookup.disk="$tmp/cache" --set latents.compute=f32 --set text.compute=f32 \
        --set end.path="$tmp/$name.dump" --json "$@" >"$tmp/$name.json" 2>"$tmp/$name.err" ||
        fail "$name ended with $?"
}

# C-02, C-05: size, colour below transparency, damage policy, kind of filter, arithmetic of the encoder, how it is kept
data first
all=$(count first latents encoded) # six pictures and the smaller ones of sparse_batch
n=0
for change in shape.resolution=48 decode.background=black decode.truncated=allow fit.filter=area latents.compute=bf16 \
    lookup.precision=full; do
    n=$((n + 1))
    want=$all
    [ $change != shape.resolution=48 ] || want=6 # the smaller ones are as small as they may be already
    data change$n --set $change
    [ "$(count change$n latents encoded)" = "$want" ] || fail "$change: $(count change$n latents encoded) of $want were encoded again"
    data again$n --set $change
    counts again$n lookup misses 0
done
data back
counts back lookup misses 0
counts back latents encoded 0

# C-04: one picture, 100 epochs, half of them mirrored: two latents are made, and each is used about half of the time
mkdir "$tmp/one"
cp "$tmp"/pictures/00-* "$tmp/one/"
data flip --set pictures.path="$tmp/one" --set lookup.disk= --set pictures.epochs=100 --set shape.flip=0.5
counts flip latents encoded 2
uses=$(sha256sum "$tmp"/flip.dump/*.latent_mean.safetensors | cut -c1-64 | sort | uniq -c | awk '{ print $1 }')
echo "uses of the two sides:" $uses
[ "$(wc -l <<<"$uses")" = 2 ] || fail "not two different latents"
for n in $uses; do # 50 are due, 4 standard deviations are 20
    [ "$n" -ge 30 ] && [ "$n" -le 70 ] || fail "one side was used $n times of 100"
done

# B-06: beyond the encoder's 75 tokens nothing is read: that is said once with a name, and counted
for f in "$tmp"/pictures/0[03]-*.txt; do perl -e 'print join ", ", map { "cat$_" } 1..200' >"$f"; done
data long
[ "$(grep -c 'tokens; what is beyond 75 is not read (said once)' "$tmp/long.err")" = 1 ] || fail "not one message about long captions"
grep 'is not read' "$tmp/long.err" | grep -q '0[03]-' || fail "no name in the message about long captions"
[ "$(count long text cut)" -ge 2 ] || fail "long captions are not counted"
