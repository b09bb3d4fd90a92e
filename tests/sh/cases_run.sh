#!/usr/bin/env bash
# A run under limits: memory stays that of the rings, few files may be open, nobody reads the output, weights that are
# not numbers.
# @label short
# @timeout 120
. tests/lib.sh
command -v perl >/dev/null || { echo "perl is missing"; exit 77; }

# F-19: many pictures of 3 MiB wait for a slow node: what is in memory is what the rings hold, not the data set
mkdir "$scratch/many"
perl -MCompress::Zlib -e '
    sub chunk { my($t,$b)=@_; pack("N",length $b).$t.$b.pack("N",crc32($t.$b)) }
    print "\x89PNG\r\n\x1a\n", chunk("IHDR",pack("NNCCCCC",1024,1024,8,2,0,0,0)),
        chunk("IDAT",compress(("\0".("\xff\0\0" x 1024)) x 1024)), chunk("IEND","");' >"$scratch/large.png"
count=150
[ -z "${LORAFLOW_SANITIZE:-}" ] || count=20 # only for what a sanitizer sees
for i in $(seq $count); do ln "$scratch/large.png" "$scratch/many/$i.png"; done
cat >"$scratch/slow.ini" <<INI
[graph]
ring = 2
[pictures]
stage   = image_folder
path    = many
missing = empty
epochs  = 1
[read]
stage = disk_reader
in    = pictures
[decode]
stage   = decode_image
in      = read
workers = 4
[slow]
stage = delay
in    = decode
ms    = 20
[end]
stage = null
in    = slow
INI
run_ok "$scratch/slow.ini"
[ "$(json "$scratch/out.json" nodes.end.in)" = $count ] || fail "not all pictures came out"
rss=$(json "$scratch/out.json" peak_rss)
echo "$((count * 3)) MiB of pictures passed in $rss bytes"
# rings and workers hold at most 2 + 2 + 4 + 2 pictures = 30 MiB; the program itself has below 30
[ -n "${LORAFLOW_SANITIZE:-}" ] || [ "$rss" -lt 60000000 ] || fail "$rss bytes in use"

# F-24: with 24 files it works or says what is missing; it does not hang and does not crash
rc=0
(ulimit -n 24 && exec timeout 60 "$bin" run "$scratch/slow.ini" --limit 20 >"$scratch/out" 2>"$scratch/err") || rc=$?
[ "$rc" = 0 ] || { [ "$rc" -le 3 ] && grep -qi 'open files' "$scratch/err"; } || { cat "$scratch/err"; fail "exit $rc with 24 files"; }

# F-21: nobody reads what it prints: an error and no signal, and the run itself was whole
{
    rc=0
    "$bin" run "$scratch/slow.ini" --limit 3 --json 2>"$scratch/err" || rc=$?
    echo $rc >"$scratch/rc"
} | true
[ "$(cat "$scratch/rc")" = 1 ] || fail "exit $(cat "$scratch/rc") with a closed pipe"
grep -q 'could not be written' "$scratch/err" || fail "nothing is said about a closed pipe"

# D-04: one weight of the last module is not a number: the run ends with an error and leaves no LoRA
mkdir "$scratch/base"
cp -r tests/fixtures/tiny-sd/. "$scratch/base/"
chmod -R u+w "$scratch/base"
perl -MJSON::PP -e '
    my $path = shift; open my $f, "+<:raw", $path or die; read $f, my $n, 8; $n = unpack "Q<", $n;
    read $f, my $head, $n; my $t = JSON::PP->new->decode($head)->{"conv_out.weight"};
    my ($begin, $end) = @{ $t->{data_offsets} }; my %nan = (F32 => [4, "\0\0\xc0\x7f"], F16 => [2, "\0\x7e"]);
    my ($size, $bytes) = @{ $nan{$t->{dtype}} }; seek $f, 8 + $n + $end - $size, 0; print $f $bytes' \
    "$scratch/base/unet/diffusion_pytorch_model.safetensors"
export OUT=$scratch/out.nan
mkdir "$OUT"
rc=0
"$bin" run tests/graphs/train.ini --var base="$scratch/base" --var steps=3 >"$scratch/out" 2>"$scratch/err" || rc=$?
[ "$rc" = 1 ] || { cat "$scratch/err"; fail "exit $rc with a weight that is no number"; }
grep -q 'not finite' "$scratch/err" || { cat "$scratch/err"; fail "nothing is said about a weight that is no number"; }
[ -z "$(find "$OUT" -name '*.safetensors*')" ] || fail "a LoRA was saved after nothing but errors"
