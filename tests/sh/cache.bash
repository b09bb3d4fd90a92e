# Common to the cache tests: the demo graph on six pictures, two steps, without validation, in f32.
# Sets up $tmp; `go NAME [options]` runs it into $tmp/NAME.{json,err} and keeps the LoRA as $tmp/NAME.safetensors.
[ -n "${LORAFLOW:-}" ] && [ -x "$LORAFLOW" ] || { echo "the program is not built"; exit 77; }
export SOURCE_DATE_EPOCH=1 OMP_NUM_THREADS=1
source=${LORAFLOW_SOURCE:-.}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/pictures"
for n in 00 03 07 11 13 20; do cp "$source"/demo/pictures/$n-* "$tmp/pictures/"; done
sed -e '/^validation/d' -e '/^disk /d' "$source/graphs/demo.ini" >"$tmp/graph.ini"

fail() {
    echo "FAILED: $*"
    tail -n 20 "$tmp"/*.err
    exit 1
}

as= # "exec" where the shell itself is to become the program, so that a signal meets it
train() { # NAME [options]: runs the graph, its output folder is $tmp/NAME.out
    local name=$1
    shift
    $as "$LORAFLOW" run "$tmp/graph.ini" --var base="$(realpath "$source")/demo/base" --var out="$tmp/$name.out" --var steps=2 \
        --set pictures.path="$tmp/pictures" --set measure.enabled=no --set step.compute=f32 \
        --set latents.compute=f32 --set text.compute=f32 --json "$@" >"$tmp/$name.json" 2>"$tmp/$name.err"
}

go() { # NAME [options]
    train "$@" || fail "$1 ended with $?"
    mv "$tmp/$1.out/line-icons.safetensors" "$tmp/$1.safetensors"
    rm -rf "$tmp/$1.out"
}

count() { # NAME NODE COUNTER
    perl -MJSON::PP -0777 -e 'my ($node, $counter) = @ARGV; @ARGV = ();
        print decode_json(<STDIN>)->{nodes}{$node}{$counter} // 0' "$2" "$3" <"$tmp/$1.json"
}

counts() { # NAME NODE COUNTER VALUE
    local found
    found=$(count "$1" "$2" "$3")
    [ "$found" = "$4" ] || fail "$1: $2.$3 is $found, not $4"
}

says() { # NAME TEXT
    grep -qF -- "$2" "$tmp/$1.err" || fail "$1 does not say '$2'"
}

same() { # NAME NAME
    cmp "$tmp/$1.safetensors" "$tmp/$2.safetensors" || fail "$1 and $2 differ"
}
