#!/usr/bin/env bash
# Pictures as they come: every one either decodes or is named with its reason; nothing crashes, hangs, or costs memory
# that the header only promises.
# @label short
# @timeout 120
set -euo pipefail
command -v cjpeg >/dev/null && command -v perl >/dev/null || { echo "cjpeg or perl is missing"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
sanitized=${LORAFLOW_SANITIZE:-}

# -- builders -----------------------------------------------------------------------------
ppm() { # W H R G B
    perl -e 'my($w,$h,@c)=@ARGV; print "P6\n$w $h\n255\n", pack("C3",@c) x ($w*$h)' "$@"
}
noise() { # W H
    perl -e 'srand 1; my($w,$h)=@ARGV; print "P6\n$w $h\n255\n", map{chr int rand 256} 1..$w*$h*3' "$@"
}
png() { # OUT W H DEPTH TYPE SCANLINES-HEX [TYPE:HEX chunk ...]; the scanlines with their filter bytes
    perl -MCompress::Zlib -e '
        my($out,$w,$h,$d,$c,$raw,@more)=@ARGV;
        sub chunk { my($t,$b)=@_; pack("N",length $b).$t.$b.pack("N",crc32($t.$b)) }
        open my $f,">:raw",$out or die;
        print $f "\x89PNG\r\n\x1a\n", chunk("IHDR",pack("NNCCCCC",$w,$h,$d,$c,0,0,0)),
            (map { my($n,$x)=split /:/; chunk($n,pack("H*",$x)) } @more),
            chunk("IDAT",compress(pack("H*",$raw))), chunk("IEND","");' "$@"
}
graph() { # FOLDER ON_ERROR [extra lines for decode]
    cat >"$dir/g.ini" <<INI
[pictures]
stage    = image_folder
path     = $1
missing  = empty
epochs   = 1
on_error = $2
[shape]
stage      = bucket
in         = pictures
resolution = 64
min        = 32
step       = 32
max_aspect = 1000
on_error   = $2
[read]
stage    = disk_reader
in       = shape
on_error = $2
[decode]
stage    = decode_image
in       = read
workers  = ${workers:-2}
on_error = $2
${3:-}
[fit]
stage   = resize_crop
in      = decode
[end]
stage = null
in    = fit
INI
}
run() { # wanted exit code; the graph is $dir/g.ini
    local rc=0
    timeout 60 "$LORAFLOW" run --json "$dir/g.ini" >"$dir/out" 2>"$dir/err" || rc=$?
    [ "$rc" = "$1" ] || { cat "$dir/err"; fail "exit $rc, not $1"; }
}
says() { grep -aqF -- "$1" "$dir/err" || { cat "$dir/err"; fail "no '$1'"; }; }
came_out() { # how many pictures reached the end
    awk '/"end": \{/ { inside = 1 } inside && /"in":/ { gsub(/[^0-9]/, ""); print; exit }' "$dir/out"
}
number() { awk -v key="\"$1\":" '$1 == key { gsub(/[^0-9.]/, "", $2); print $2; exit }' "$dir/out"; }

# -- good ones, however odd -----------------------------------------------------------------
good=$dir/good
mkdir "$good"
ppm 64 64 10 200 30 | cjpeg -quality 95 -progressive >"$good/progressive.jpg"
ppm 64 64 10 200 30 | cjpeg -quality 95 -arithmetic >"$good/arithmetic.jpg"
ppm 64 64 10 200 30 | cjpeg -quality 95 -restart 1B >"$good/restart.jpg"
ppm 17 33 10 200 30 | cjpeg -grayscale >"$good/grey.JPEG"
ppm 16 16 255 0 0 | cjpeg -rgb >"$good/rgb.jpg"
noise 64 64 | cjpeg -quality 90 >"$good/noise.jpg"
head -c -2 "$good/noise.jpg" >"$good/no-end.jpg"
{ cat "$good/noise.jpg"; printf junk; } >"$good/tail.jpg"
{ head -c -2 "$good/noise.jpg"; printf '\0\0\0\0\377\331'; } >"$good/zeros.jpg"
png "$good/rgb.png" 1 1 8 2 00ff0000
png "$good/grey16.png" 2 1 16 0 0013f0feff
png "$good/one-pixel.png" 1 1 1 0 0080
cp "$good/rgb.png" "$good/really-png.jpg"
cp "$good/noise.jpg" "$good/really-jpeg.png"
{ cat "$good/rgb.png"; echo tail; } >"$good/tail.png"
head -c -12 "$good/rgb.png" >"$good/no-iend.png"
png "$good/animated.png" 4 1 8 2 0000ff0000ff0000ff0000ff00 acTL:0000000200000000
png "$good/gamma.png" 1 1 8 2 00808080 gAMA:000186a0
graph "$good" stop
run 0
# A-09, A-10, A-23
[ "$(came_out)" = "$(ls "$good" | wc -l)" ] || fail "$(came_out) of $(ls "$good" | wc -l) good pictures came out"
# A-25
says "no-iend.png: the file has no end marker"
[ "$(grep -ac 'no-iend' "$dir/err")" = 1 ] || fail "more than one warning about one file"

# -- bad ones, each by name -------------------------------------------------------------------
bad=$dir/bad
mkdir "$bad"
: >"$bad/empty.jpg"
printf '\377' >"$bad/one-byte.jpg"
printf '\377\330\377' >"$bad/three-bytes.jpg"
printf '\211PNG\r\n\032\n' >"$bad/eight-bytes.png"
printf 'RIFF\034\0\0\0WEBPVP8L' >"$bad/webp.jpg"
printf 'GIF89a......' >"$bad/gif.png"
printf '\0\0\0\030ftypheic' >"$bad/heic.jpg"
echo '<!DOCTYPE html><title>404</title>' >"$bad/page.jpg"
red=$dir/red.jpg
ppm 16 16 255 0 0 | cjpeg -quality 95 -sample 1x1 >"$red"
perl -0777 -pe 's/(\xff\xc0..)\x08/$1\x0c/s' "$red" >"$bad/twelve-bit.jpg"
perl -0777 -pe 's/\xff\xc0/\xff\xc3/' "$red" >"$bad/lossless.jpg"
perl -0777 -pe 's/(\xff\xc0..\x08)..../$1\xff\xdc\xff\xdc/s' "$red" >"$bad/huge.jpg"
perl -0777 -pe 's/(\xff\xc0..\x08)..../$1\xff\xff\xff\xff/s' "$red" >"$bad/above-limit.jpg"
perl -0777 -pe 's/(\xff\xc0..\x08)../$1\0\0/s' "$red" >"$bad/no-height.jpg"
head -c 2000 "$good/noise.jpg" >"$bad/cut.jpg"
perl -0777 -pe 'substr($_,-16,1)^="\1"' "$good/rgb.png" >"$bad/crc.png"
head -c 50 "$good/rgb.png" >"$bad/cut.png"
png "$bad/no-width.png" 0 1 8 2 00ff0000
perl -MCompress::Zlib -e '
    sub chunk { my($t,$b)=@_; pack("N",length $b).$t.$b.pack("N",crc32($t.$b)) }
    my($w,$h)=(20000,20000); my $d=deflateInit(-Level=>1); my $o=""; my $r="\0" x (1+3*$w);
    for (1..500) { my($x)=$d->deflate($r); $o.=$x } my($x)=$d->flush; $o.=$x;
    print "\x89PNG\r\n\x1a\n",chunk("IHDR",pack("NNCCCCC",$w,$h,8,2,0,0,0)),chunk("IDAT",$o),chunk("IEND","")' >"$bad/bomb.png"
perl -e 'print "P5\n600 600\n255\n","\x80" x 360000' | cjpeg -progressive -grayscale |
    perl -0777 -ne '$i=rindex($_,"\xff\xda"); $s=substr($_,$i,length($_)-$i-2);
        print substr($_,0,length($_)-2), $s x 20000, "\xff\xd9"' >"$bad/scans.jpg"
graph "$bad" skip
# A-12, A-26
[ -n "$sanitized" ] || ulimit -S -v 4000000 # what a header promises is never asked for
run 0
ulimit -S -v unlimited
[ "$(came_out)" = 0 ] || fail "$(came_out) bad pictures came out"
for f in "$bad"/*; do
    says "${f##*/}"
done
# A-14, A-15
says "empty.jpg is an empty file"
says "webp.jpg is WebP, not JPEG or PNG"
says "page.jpg is HTML, not JPEG or PNG"
# A-11, A-12
says "twelve-bit.jpg: Unsupported JPEG data precision 12"
says "huge.jpg is 65500x65500 = 4290250000 pixels, more than max_pixels = 128000000"
says "above-limit.jpg: Maximum supported image dimension is 65500"
# A-13, A-24, A-25, A-26
says "bomb.png is 20000x20000"
says "scans.jpg: more than 500 scans"
says "cut.jpg: the file is cut short"
says "crc.png: "
graph "$bad" skip:3
run 1
says "more than 3 items are bad"
graph "$bad" stop
run 1
says ".jpg"

# -- one bad among many: it alone is named, whatever the threads ---------------------------------
many=$dir/many
mkdir "$many"
for i in $(seq -w 0 199); do ln "$good/noise.jpg" "$many/$i.jpg"; done
rm "$many/117.jpg"
cp "$bad/cut.jpg" "$many/117.jpg"
for workers in 1 16 16 16; do
    graph "$many" skip:1
    run 0
    [ "$(came_out)" = 199 ] || fail "$(came_out) of 199 came out"
    # A-30
    [ "$(grep -a 'cut short' "$dir/err" | grep -aoE '[0-9]+\.jpg' | sort -u)" = 117.jpg ] || fail "the wrong file is named"
done
unset workers

# -- leaving a decoder early leaves nothing behind -------------------------------------------------
if [ -z "$sanitized" ]; then
    peak=()
    ulimit -S -n 256 # a file that stays open is noticed
    for n in 20 2000; do
        links=$dir/links$n
        mkdir "$links"
        for i in $(seq "$n"); do
            ln "$bad/cut.jpg" "$links/$i-a.jpg"
            ln "$bad/crc.png" "$links/$i-b.png"
        done
        graph "$links" skip
        run 0
        ! grep -aq 'open files' "$dir/err" || fail "files stay open"
        peak+=("$(number peak_rss)")
    done
    # A-29
    [ $((peak[1] - peak[0])) -lt 8000000 ] || fail "4000 bad pictures cost $((peak[1] - peak[0])) bytes more than 40"
fi

# -- Ctrl-C while one picture takes long ---------------------------------------------------------
slow=$dir/slow
mkdir "$slow"
perl -e 'print "P5\n6000 6000\n255\n","\x80" x 36000000' | cjpeg -progressive -grayscale |
    perl -0777 -ne '$i=rindex($_,"\xff\xda"); $s=substr($_,$i,length($_)-$i-2);
        print substr($_,0,length($_)-2), $s x 480, "\xff\xd9"' >"$slow/slow.jpg"
graph "$slow" stop
"$LORAFLOW" run "$dir/g.ini" >"$dir/out" 2>"$dir/err" &
pid=$!
sleep 0.7
start=$SECONDS
kill -INT $pid
rc=0
wait $pid || rc=$?
# A-13
[ $((SECONDS - start)) -le 5 ] || fail "Ctrl-C waited for a long decode"
[ "$rc" = 130 ] || { cat "$dir/err"; fail "exit $rc after Ctrl-C"; }
