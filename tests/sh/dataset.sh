#!/usr/bin/env bash
# Data sets as they come: odd names, links, pipes, captions of all kinds, files that change during the run. And no
# byte of them is ever changed.
# @label short
# @timeout 120
set -euo pipefail
command -v perl >/dev/null || { echo "perl is missing"; exit 77; }
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*"; exit 1; }

png() { # OUT W H: red
    perl -MCompress::Zlib -e '
        my($out,$w,$h)=@ARGV;
        sub chunk { my($t,$b)=@_; pack("N",length $b).$t.$b.pack("N",crc32($t.$b)) }
        open my $f,">:raw",$out or die;
        print $f "\x89PNG\r\n\x1a\n", chunk("IHDR",pack("NNCCCCC",$w,$h,8,2,0,0,0)),
            chunk("IDAT",compress(("\0".("\xff\0\0" x $w)) x $h)), chunk("IEND","");' "$@"
}
png "$dir/red.png" 40 30
picture() { cp "$dir/red.png" "$1"; }

graph() { # FOLDER [extra lines for image_folder]
    cat >"$dir/g.ini" <<INI
[pictures]
stage   = image_folder
path    = $1
epochs  = 1
$(printf '%b' "${2:-}")
[shape]
stage      = bucket
in         = pictures
resolution = 64
min        = 32
step       = 32
[slow]
stage = delay
in    = shape
ms    = ${delay:-0}
[read]
stage    = disk_reader
in       = slow
ring     = 1
on_error = ${read_errors:-stop}
[decode]
stage   = decode_image
in      = read
[fit]
stage   = resize_crop
in      = decode
[end]
stage = null
in    = fit
INI
}
run() { # wanted exit code
    local rc=0
    timeout 60 "$LORAFLOW" run --json "$dir/g.ini" >"$dir/out" 2>"$dir/err" || rc=$?
    [ "$rc" = "$1" ] || { cat "$dir/err"; fail "exit $rc, not $1"; }
}
says() { grep -aqF -- "$1" "$dir/err" || { cat "$dir/err"; fail "no '$1'"; }; }
came_out() {
    awk '/"end": \{/ { inside = 1 } inside && /"in":/ { gsub(/[^0-9]/, ""); print; exit }' "$dir/out"
}
expect_out() { [ "$(came_out)" = "$1" ] || { cat "$dir/err"; fail "$(came_out) came out, not $1"; }; }

# -- names ---------------------------------------------------------------------------------
names=$dir/names
mkdir -p "$names/tränade"
for n in IMG_1.JPG b.Jpeg c.JPEG d.PNG 'my cat.jpg' tränade/ü.jpg 日本.png -rf.jpg '100%s%n.jpg' 'a;b #c.jpg' \
    $'new\nline.jpg' $'x\377.jpg' "$(printf 'n%.0s' $(seq 251)).jpg"; do
    picture "$names/$n"
done
printf one >"$names/IMG_1.TXT"
graph "$names" 'missing = empty\n'
run 0
# B-11, B-12
expect_out 13
says "13 pictures in $names"
graph "$names" 'missing = error\n'
run 2
# B-04
says "12 of 13 pictures have no caption (.txt, .caption): -rf.jpg, 100%s%n.jpg, a;b #c.jpg, b.Jpeg, c.JPEG and 7 more"
[ "$(grep -ac $'x\377' "$dir/err")" = 0 ] || fail "bytes that are no text in a message"
: >"$names/"$'x\376\nbad.jpg'
graph "$names" 'missing = empty\n'
run 1
says 'x\xfe\x0abad.jpg is an empty file'

# -- what is no picture ------------------------------------------------------------------------
odd=$dir/odd
mkdir -p "$odd/d/__MACOSX" "$odd/d/.hidden"
picture "$odd/d/a.png"
printf '\0\5\26\7\0\2\0\0Mac OS X' >"$odd/d/._a.jpg"
cp "$odd/d/._a.jpg" "$odd/d/__MACOSX/"
: >"$odd/d/.DS_Store"
: >"$odd/d/Thumbs.db"
echo '{}' >"$odd/d/metadata.json"
ln -s . "$odd/d/self"
ln -s ../d "$odd/d/up"
ln -s /nonexistent "$odd/d/x.png"
graph "$odd" 'missing = empty\n'
run 0
# B-08, B-09
expect_out 1
says "x.png: a link to nowhere"
mkfifo "$odd/d/p.jpg"
ln -s /dev/zero "$odd/d/z.jpg"
ln -s /proc/self/mem "$odd/d/m.png"
graph "$odd" 'missing = empty\non_error = skip:3\n'
run 0
expect_out 1
# B-22
says "p.jpg is not a regular file"
says "z.jpg is not a regular file"
says "m.png is an empty file"

# -- captions -------------------------------------------------------------------------------------
text=$dir/text
mkdir "$text"
for i in 1 2 3 4; do picture "$text/$i.png"; done
printf '\357\273\277a cat' >"$text/1.txt"
: >"$text/2.txt"
printf ' \n' >"$text/3.txt"
printf 'line1\r\nline2\r\n' >"$text/4.caption"
graph "$text"
run 0
says '4 pictures in'
# B-02, B-03
says '2 with an empty caption'
says '"a cat", "line1 line2"'
printf 'caf\351' >"$text/2.txt"
run 1
# B-05
says "2.txt is not UTF-8: byte 3 is 0xe9"
printf 'a\0b' >"$text/2.txt"
run 1
says "2.txt has a NUL at byte 1"
printf '\377\376a\0' >"$text/2.txt"
run 1
says "2.txt is UTF-16; save it as UTF-8"

# -- repeats, and one bad in many -------------------------------------------------------------------
repeats=$dir/repeats
mkdir -p "$repeats/5_thing" "$repeats/other"
for i in 1 2 3; do picture "$repeats/5_thing/$i.png"; done
picture "$repeats/other/4.png"
graph "$repeats" 'missing = folder\n'
run 0
# B-18
expect_out 16
says "16 uses an epoch"
many=$dir/many
mkdir "$many"
for i in $(seq -w 1 500); do ln "$dir/red.png" "$many/$i.png"; done
rm "$many/250.png"
echo 'no picture' >"$many/250.png"
graph "$many" 'missing = empty\n'
run 1
# B-21
grep -a error "$dir/err" | head -1 | grep -aq '250\.png' || fail "the first error line does not name the file"
graph "$many" 'missing = empty\non_error = skip\n'
run 0
# B-20
expect_out 499

# -- files that change while the run goes on ----------------------------------------------------------
moving=$dir/moving
mkdir "$moving"
for i in $(seq -w 1 200); do cp "$dir/red.png" "$moving/$i.png"; done
delay=10 read_errors=skip graph "$moving" 'missing = empty\nshuffle = no\n'
timeout 60 "$LORAFLOW" run --json "$dir/g.ini" >"$dir/out" 2>"$dir/err" &
pid=$!
for _ in $(seq 100); do # once the list has been made
    grep -aq '200 pictures in' "$dir/err" && break
    sleep 0.05
done
rm "$moving/150.png"
: >"$moving/160.png"
mv "$moving/170.png" "$moving/171b.png"
png "$moving/180.png" 30 40
wait $pid || { cat "$dir/err"; fail "the run failed"; }
# B-13
expect_out 196
says "150.png cannot be opened: No such file or directory"
says "160.png has changed since the pictures were listed"
says "170.png cannot be opened"
says "180.png has changed since the pictures were listed"

# -- the same files made in another order: the same order, the same bytes ------------------------------
for turn in 1 2; do
    mkdir -p "$dir/turn$turn/set"
    order=$(seq -w 1 30)
    [ $turn = 1 ] || order=$(seq -w 30 -1 1)
    for i in $order; do
        png "$dir/turn$turn/set/$i.png" $((10#$i + 20)) 40
        echo "picture $i" >"$dir/turn$turn/set/$i.txt"
    done
    cat >"$dir/turn$turn/g.ini" <<INI
[graph]
seed = 7
[pictures]
stage  = image_folder
path   = set
epochs = 2
[shape]
stage      = bucket
in         = pictures
resolution = 64
min        = 32
step       = 32
crop       = random
flip       = 0.5
[read]
stage   = disk_reader
in      = shape
workers = $((turn * 2 - 1))
[decode]
stage   = decode_image
in      = read
workers = $((turn * 2 - 1))
[fit]
stage = resize_crop
in    = decode
[keep]
stage  = dump
in     = fit
path   = out
fields = caption, geometry, pixels
INI
    "$LORAFLOW" run "$dir/turn$turn/g.ini" 2>"$dir/err" || { cat "$dir/err"; fail "turn $turn"; }
done
[ "$(find "$dir/turn1/out" -type f | wc -l)" -gt 60 ] || fail "too little was written"
# B-23, D-16
diff -r "$dir/turn1/out" "$dir/turn2/out" >/dev/null || fail "the order of the folder shows in the result"

# -- nothing is written beside the pictures ---------------------------------------------------------------
sums() { (cd "$dir" && find names text odd/d/a.png -type f -print0 | sort -z | xargs -0 sha256sum; ls -la names text); }
png "$dir/text/tiny.png" 4 4
echo broken >"$dir/text/broken.jpg"
printf 'a cat' >"$dir/text/2.txt"
chmod -R a-w "$dir/text"
sums >"$dir/before"
graph "$text" 'missing = empty\non_error = skip\n'
run 0
graph "$names" 'missing = empty\non_error = skip\n'
run 0
sums >"$dir/after"
# B-14
cmp "$dir/before" "$dir/after" || fail "the data set was changed"

# -- nothing there ----------------------------------------------------------------------------------------
mkdir "$dir/none"
graph "$dir/none"
run 2
says "no JPEG or PNG pictures in $dir/none"
graph "$dir/nowhere"
run 2
says "folder $dir/nowhere cannot be read: No such file or directory"
