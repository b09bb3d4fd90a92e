# For tests of a whole training run: a graph like graphs/demo.ini, small, in a folder of its own.
# Sourced by resume.sh, kill.sh, interrupt.sh. Sets $dir; `graph FILE OUT [line...]` writes a graph.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export SOURCE_DATE_EPOCH=1700000000
export FLOW_DEBUG=base # the frozen weights must not change
source_dir=$PWD
seed=${LOOP_SEED:-$RANDOM}
RANDOM=$seed
echo "random seed $seed (LOOP_SEED sets it)"

# 15 pictures: an epoch of 4 groups of 2 x 2, the last one with 3
mkdir "$dir/pictures" "$dir/held"
for f in $(ls demo/pictures/*.png demo/pictures/*.jpg | head -15); do
    cp "$f" "${f%.*}.txt" "$dir/pictures/"
done
for f in $(ls demo/validation/*.png | head -3); do
    cp "$f" "${f%.*}.txt" "$dir/held/"
done

# graph FILE OUT EXTRA: EXTRA are more lines, each for the section that is named in front of a colon
graph() {
    local file=$1 out=$2
    shift 2
    more() { # SECTION
        local line
        for line in "${extra[@]}"; do
            [ "${line%%:*}" = "$1" ] && echo "${line#*:}"
        done
        return 0
    }
    local extra=("$@" "")
    cat > "$file" <<GRAPH
[graph]
name = loop
seed = 7
[pictures]
stage = image_folder
path = $dir/pictures
validation = $dir/held
$(more pictures)
[shape]
stage = bucket
in = pictures
resolution = 32
min = 16
max = 64
step = 8
[score]
stage = score
in = shape
[assemble]
stage = sparse_batch
in = score
batch = 2
[lookup]
stage = fp16_cache
in = assemble
ram = 16MiB
disk = $dir/cache
[read]
stage = disk_reader
in = lookup
[decode]
stage = decode_image
in = read
workers = 2
[fit]
stage = resize_crop
in = decode
[latents]
stage = vae_encode
in = fit
base = $source_dir/tests/fixtures/tiny-sd
compute = f32
[text]
stage = text_encode
in = latents
base = $source_dir/tests/fixtures/tiny-sd
compute = f32
[store]
stage = fp16_cache_store
in = text
cache = lookup
[batch]
stage = collate
in = store
batch = 2
accumulate = 2
[noise]
stage = diffuse
in = batch
[precision]
stage = precision_encode
in = noise
[copy]
stage = h2d
in = precision
[step]
stage = lora_step
in.batch = copy
in.params = keep
base = $source_dir/tests/fixtures/tiny-sd
rank = 4
compute = f32
$(more step)
[scale]
stage = scaler
in = step
$(more scale)
[adam]
stage = adamw
in = scale
$(more adam)
[measure]
stage = validate
in = adam
of = step
timesteps = 100, 700
$(more measure)
[save]
stage = save_lora
in = measure
path = $out/lora.safetensors
dtype = f32
$(more save)
[keep]
stage = checkpoint
in = save
path = $out/run.ckpt
$(more keep)
[watch]
stage = monitor
in = keep
log = $out/log.jsonl
GRAPH
}

now_ms() {
    date +%s%3N
}

# run OUT GRAPH [arguments]: to the end, resuming where there is a checkpoint
run() {
    local out=$1 file=$2
    shift 2
    local resume=()
    [ -e "$out/run.ckpt" ] && resume=(--resume "$out/run.ckpt")
    "$LORAFLOW" run "$file" "${resume[@]}" "$@" > "$dir/said" 2>&1 || {
        local rc=$?
        echo "exit $rc of a run of $file ${resume[*]}:"
        tail -20 "$dir/said"
        return $rc
    }
}

same() { # OUT REFERENCE
    cmp "$1/lora.safetensors" "$2/lora.safetensors" && cmp "$1/log.jsonl" "$2/log.jsonl"
}

# kill_one OUT GRAPH MS: starts (or resumes) and kills it after so long. Fails if it had ended before.
kill_one() {
    local resume=()
    [ -e "$1/run.ckpt" ] && resume=(--resume "$1/run.ckpt")
    "$LORAFLOW" run "$2" "${resume[@]}" > "$dir/said" 2>&1 &
    local pid=$!
    sleep "$(printf '%d.%03d' $(($3 / 1000)) $(($3 % 1000)))"
    if kill -KILL $pid 2>/dev/null; then
        wait $pid 2>/dev/null || true
        return 0
    fi
    wait $pid || {
        tail -20 "$dir/said"
        exit 1
    }
    return 1
}
