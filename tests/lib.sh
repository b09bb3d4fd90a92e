# Shared by tests/sh/*.sh: a scratch folder, the program, small assertions. Source it.
set -euo pipefail
root=${LORAFLOW_SOURCE:-$PWD}
bin=${LORAFLOW:-$root/build/release/loraflow}
if [ ! -x "$bin" ]; then
    echo "program not built: $bin"
    exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() {
    echo "FAIL: $*" >&2
    exit 1
}
json() { # FILE, path such as nodes.lookup.hits: prints the number or text
    perl -MJSON::PP -e '
        local $/; open my $f, "<", $ARGV[0] or die; my $v = JSON::PP->new->decode(<$f>);
        for (split /\./, $ARGV[1]) { $v = ref $v eq "ARRAY" ? $v->[$_] : $v->{$_} }
        print defined $v ? $v : "null"' "$1" "$2"
}
# Runs with the arguments; standard output goes to $scratch/out.json, messages to $scratch/err. Prints the messages on failure.
run_ok() {
    "$bin" run "$@" --json >"$scratch/out.json" 2>"$scratch/err" || {
        cat "$scratch/err" "$scratch/out.json" >&2
        fail "exit status $? of: run $*"
    }
}
