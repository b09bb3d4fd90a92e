/* LoRA files: the fixtures of every layout loaded and written again, files that do not fit, scales, metadata.
 * With --write FOLDER it writes the files that tests/sh/check_lora.sh gives to diffusers, and does nothing
 * else.
 *
 * @label unit short
 */
#include "core/model/model.h"
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

static char *folder;

static Model *open_model(const char *name)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = g_build_filename("tests/fixtures", name, NULL);
    Model *m = model_open(path, &error);
    g_assert_no_error(error);
    return m;
}

static NetAdapters *make(const Model *m, const char *targets, gint64 rank, double alpha)
{
    g_autoptr(GError) error = NULL;
    g_auto(GStrv) list = g_strsplit(targets, " ", -1);
    NetAdapters *a = lora_new(m, list, rank, alpha, NET_F32, &error);
    g_assert_no_error(error);
    return a;
}

static char *path_of(const char *name)
{
    return g_build_filename(folder, name, NULL);
}

static void load(NetAdapters *a, const Model *m, const char *path)
{
    g_autoptr(GError) error = NULL;
    lora_load(a, m, path, &error);
    g_assert_no_error(error);
}

static void refuse(NetAdapters *a, const Model *m, const char *path, const char *text)
{
    g_autoptr(GError) error = NULL;
    g_assert_false(lora_load(a, m, path, &error));
    g_assert_nonnull(error);
    if (!strstr(error->message, text))
        g_error("'%s' does not say '%s'", error->message, text);
}

/* Random A and B, padding left at zero. */
static void fill(NetAdapters *a)
{
    lora_init(a, LORA_KAIMING, 3);
    for (guint i = 0; i < a->list->len; i++) {
        const NetAdapter *x = a->list->pdata[i];
        for (gint64 o = 0; o < x->out; o++)
            for (gint64 r = 0; r < x->rank; r++)
                a->master[x->b + (gsize)(o * x->rank_pad + r)] =
                    0.01f * (float)((o * 7 + r * 3 + i) % 11 - 5);
    }
}

static void same_masters(const NetAdapters *a, const NetAdapters *b)
{
    g_assert_cmpmem(a->master, a->n * sizeof(float), b->master, b->n * sizeof(float));
}

/* -- fixtures ------------------------------------------------------------------------------------------- */

/* The same keys, shapes and values. */
static void same_tensors(const char *one, const char *two)
{
    SafeFile *a = safe_open(one, NULL), *b = safe_open(two, NULL);
    guint na, nb;
    const SafeTensor *t = safe_tensors(a, &na);
    safe_tensors(b, &nb);
    g_assert_cmpuint(na, ==, nb);
    for (guint i = 0; i < na; i++) {
        const SafeTensor *u = safe_find(b, t[i].name);
        if (!u)
            g_error("%s has %s, %s has not", one, t[i].name, two);
        g_assert_cmpuint(t[i].ndim, ==, u->ndim);
        g_assert_cmpmem(t[i].shape, sizeof u->shape, u->shape, sizeof u->shape);
        g_assert_cmpstr(t[i].dtype, ==, u->dtype);
        g_assert_cmpmem(safe_data(a, &t[i]), t[i].nbytes, safe_data(b, u), u->nbytes);
    }
    safe_close(a);
    safe_close(b);
}

/* All of the fixture's metadata that is not PEFT's configuration. */
static void same_metadata(const char *fixture, const char *ours)
{
    SafeFile *a = safe_open(fixture, NULL), *b = safe_open(ours, NULL);
    GHashTableIter iter;
    gpointer key, value;
    g_hash_table_iter_init(&iter, safe_metadata(a));
    while (g_hash_table_iter_next(&iter, &key, &value))
        if (strcmp(key, "lora_adapter_metadata") && strcmp(key, "ss_output_name"))
            g_assert_cmpstr(g_hash_table_lookup(safe_metadata(b), key), ==, value);
    safe_close(a);
    safe_close(b);
}

static void test_fixtures(void)
{
    static const char *const models[] = {"tiny-sd", "tiny-sdxl"};
    static const char *const sets[][2] = {{"attn", "attention"}, {"all", "linear"}};
    for (guint i = 0; i < 4; i++) {
        const char *model = models[i / 2], *set = sets[i % 2][0], *targets = sets[i % 2][1];
        g_autofree char *kohya = g_strdup_printf("tests/fixtures/lora/%s.%s.kohya.safetensors", model, set);
        g_autofree char *diffusers =
            g_strdup_printf("tests/fixtures/lora/%s.%s.diffusers.safetensors", model, set);
        g_autofree char *plain = g_strdup_printf("tests/fixtures/lora/%s.%s.plain.safetensors", model, set);
        g_autofree char *out = path_of("out.safetensors");
        Model *m = open_model(model);
        NetAdapters *a = make(m, targets, 4, 2), *b = make(m, targets, 4, 2);
        load(a, m, kohya);
        load(b, m, diffusers);
        same_masters(a, b);
        g_assert_true(lora_save(a, m, out, LORA_KOHYA, NET_F32, NULL, NULL, NULL));
        same_tensors(kohya, out);
        same_metadata(kohya, out);
        load(b, m, out);
        same_masters(a, b);
        g_assert_true(lora_save(a, m, out, LORA_DIFFUSERS, NET_F32, NULL, NULL, NULL));
        same_tensors(diffusers, out);
        same_metadata(diffusers, out);
        load(b, m, out);
        same_masters(a, b);
        if (g_file_test(plain, G_FILE_TEST_EXISTS)) { /* B times 0.5, and no word about a scale */
            g_test_expect_message("loraflow", G_LOG_LEVEL_MESSAGE, "*no alpha*");
            load(b, m, plain);
            g_test_assert_expected_messages();
            same_masters(a, b);
        }
        net_adapters_free(a);
        net_adapters_free(b);
        model_free(m);
    }
}

/* Kernels larger than one, a rank that is not a multiple of 8, an alpha that is neither 1 nor the rank. */
static void test_convolutions(void)
{
    Model *m = open_model("tiny-sd");
    /* H-02 */
    NetAdapters *a = make(m, "all", 5, 3), *b = make(m, "all", 5, 3);
    g_autofree char *out = path_of("conv.safetensors");
    fill(a);
    for (LoraFormat format = LORA_KOHYA; format <= LORA_DIFFUSERS; format++) {
        g_assert_true(lora_save(a, m, out, format, NET_F32, NULL, NULL, NULL));
        lora_init(b, LORA_GAUSSIAN, 1);
        load(b, m, out);
        same_masters(a, b);
    }
    g_assert_true(lora_save(a, m, out, LORA_KOHYA, NET_F32, NULL, NULL, NULL));
    SafeFile *file = safe_open(out, NULL);
    const char *name = "lora_unet_down_blocks_1_resnets_0_conv1";
    g_autofree char *down = g_strconcat(name, ".lora_down.weight", NULL),
                    *up = g_strconcat(name, ".lora_up.weight", NULL);
    const SafeTensor *d = safe_find(file, down), *u = safe_find(file, up);
    g_assert_true(d && d->ndim == 4 && d->shape[0] == 5 && d->shape[1] == 32 && d->shape[2] == 3 &&
                  d->shape[3] == 3);
    g_assert_true(u && u->ndim == 4 && u->shape[0] == 64 && u->shape[1] == 5 && u->shape[2] == 1);
    /* [r][in][kh][kw] in the file, [r][kh][kw][in] in memory */
    const NetAdapter *x = net_adapters_find(a, "down_blocks.1.resnets.0.conv1");
    const float *v = safe_data(file, d);
    float element;
    memcpy(&element, v + ((2 * 32 + 7) * 3 + 1) * 3 + 2, sizeof element);
    g_assert_true(element == a->master[x->a + ((2 * 3 + 1) * 3 + 2) * 32 + 7]);
    g_assert_cmpstr(g_hash_table_lookup(safe_metadata(file), "ss_network_args"), ==,
                    "{\"conv_alpha\": \"3.0\", \"conv_dim\": \"5\"}");
    g_assert_nonnull(safe_find(file, "lora_unet_down_blocks_0_downsamplers_0_conv.alpha"));
    g_assert_nonnull(safe_find(file, "lora_unet_down_blocks_1_resnets_0_time_emb_proj.alpha"));
    safe_close(file);
    net_adapters_free(a);
    net_adapters_free(b);
    model_free(m);

    m = open_model("tiny-sdxl");
    a = make(m, "all", 5, 3);
    b = make(m, "all", 5, 3);
    fill(a);
    g_assert_true(lora_save(a, m, out, LORA_KOHYA, NET_F32, NULL, NULL, NULL));
    file = safe_open(out, NULL);
    g_assert_nonnull(safe_find(file, "lora_unet_input_blocks_4_0_in_layers_2.lora_up.weight"));
    g_assert_nonnull(safe_find(file, "lora_unet_input_blocks_3_0_op.lora_down.weight"));
    g_assert_nonnull(safe_find(file, "lora_unet_output_blocks_2_2_conv.alpha"));
    safe_close(file);
    load(b, m, out);
    same_masters(a, b);
    net_adapters_free(a);
    net_adapters_free(b);
    model_free(m);
}

/* -- made from a good file
 * ------------------------------------------------------------------------------------ */

typedef struct {
    SafeFile *file;
    GArray *entries; /* SafeEntry */
} Parts;

static Parts parts_of(const char *path)
{
    guint n;
    Parts p = {safe_open(path, NULL), g_array_new(FALSE, FALSE, sizeof(SafeEntry))};
    const SafeTensor *t = safe_tensors(p.file, &n);
    for (guint i = 0; i < n; i++) {
        SafeEntry e = {.name = t[i].name,
                       .type = (NetType)t[i].type,
                       .ndim = t[i].ndim,
                       .data = safe_data(p.file, &t[i]),
                       .source = (NetType)t[i].type};
        memcpy(e.shape, t[i].shape, sizeof e.shape);
        g_array_append_val(p.entries, e);
    }
    return p;
}

static SafeEntry *at(Parts *p, const char *ending, guint nth)
{
    for (guint i = 0; i < p->entries->len; i++) {
        SafeEntry *e = &g_array_index(p->entries, SafeEntry, i);
        if (g_str_has_suffix(e->name, ending) && !nth--)
            return e;
    }
    g_error("no %s", ending);
}

static void drop(Parts *p, const char *ending)
{
    for (guint i = p->entries->len; i-- > 0;)
        if (g_str_has_suffix(g_array_index(p->entries, SafeEntry, i).name, ending))
            g_array_remove_index(p->entries, i);
}

/* Writes and frees. Returns new. */
static char *finish(Parts *p, const char *key, const char *value)
{
    char *path = path_of("made.safetensors");
    g_autoptr(GHashTable) metadata = g_hash_table_new(g_str_hash, g_str_equal);
    g_autoptr(GError) error = NULL;
    if (key)
        g_hash_table_insert(metadata, (gpointer)key, (gpointer)value);
    safe_write(path, (const SafeEntry *)p->entries->data, p->entries->len, metadata, NULL, &error);
    g_assert_no_error(error);
    g_array_unref(p->entries);
    safe_close(p->file);
    return path;
}

#define KOHYA "tests/fixtures/lora/tiny-sd.attn.kohya.safetensors"
#define DIFFUSERS "tests/fixtures/lora/tiny-sd.attn.diffusers.safetensors"

static void expect_factor(const NetAdapters *a, const NetAdapters *b, float factor)
{
    for (guint i = 0; i < a->list->len; i++) {
        const NetAdapter *x = a->list->pdata[i];
        g_assert_cmpmem(a->master + x->a, (gsize)(x->rank * x->in) * 4, b->master + x->a,
                        (gsize)(x->rank * x->in) * 4);
        for (gint64 k = 0; k < x->out * x->rank_pad; k++)
            g_assert_true(a->master[x->b + (gsize)k] == factor * b->master[x->b + (gsize)k]);
    }
}

static void test_alpha(void)
{
    Model *m = open_model("tiny-sd");
    NetAdapters *a = make(m, "attention", 4, 2), *good = make(m, "attention", 4, 2);
    load(good, m, KOHYA); /* scale 2 / 4 in the file and here */
    Parts p = parts_of(KOHYA);
    drop(&p, ".alpha");
    g_autofree char *none = finish(&p, NULL, NULL);
    g_test_expect_message("loraflow", G_LOG_LEVEL_MESSAGE, "*no alpha for 48 of 48 modules*");
    load(a, m, none);
    g_test_assert_expected_messages();
    /* E-01 */
    expect_factor(a, good, 2); /* scale 1 in the file: B has to be twice as large under ours */

    static const guint16 half[1] = {0x4400}, brain[1] = {0x4080}; /* 4 */
    static const float zero = 0, minus = -1, nan = NAN;
    p = parts_of(KOHYA);
    for (guint i = 0; i < 48; i++) {
        SafeEntry *e = at(&p, ".alpha", i);
        *e = (SafeEntry){.name = e->name,
                         .type = i % 2 ? NET_F16 : NET_BF16,
                         .ndim = i % 3 == 0,
                         .shape = {1},
                         .data = i % 2 ? half : brain,
                         .source = i % 2 ? NET_F16 : NET_BF16};
    }
    at(&p, ".alpha", 5)->data = &zero;
    at(&p, ".alpha", 5)->type = at(&p, ".alpha", 5)->source = NET_F32; /* 0 stands for the rank, too */
    /* E-02 */
    g_autofree char *types = finish(&p, NULL, NULL);
    load(a, m, types);
    expect_factor(a, good, 2);

    static const float two[2] = {2, 2};
    p = parts_of(KOHYA);
    at(&p, ".alpha", 3)->data = &minus;
    g_autofree char *negative = finish(&p, NULL, NULL);
    refuse(a, m, negative, "expected a number above 0");
    p = parts_of(KOHYA);
    at(&p, ".alpha", 3)->data = &nan;
    g_autofree char *not = finish(&p, NULL, NULL);
    refuse(a, m, not, "expected a number above 0");
    p = parts_of(KOHYA);
    SafeEntry *e = at(&p, ".alpha", 3);
    e->data = two;
    e->ndim = 1;
    e->shape[0] = 2;
    g_autofree char *pair = finish(&p, NULL, NULL);
    refuse(a, m, pair, "has 2 elements, expected 1");

    NetAdapters *other = make(m, "attention", 4, 8); /* a file of scale 0.5 into adapters of scale 2 */
    load(other, m, KOHYA);
    /* D-12, H-02 */
    expect_factor(other, good, 0.25f);
    net_adapters_free(other);
    net_adapters_free(a);
    net_adapters_free(good);
    model_free(m);
}

static void test_peft_config(void)
{
    static const struct {
        const char *config;
        float factor; /* 0: refused */
        const char *text;
    } cases[] = {
        {"{\"unet.r\":4,\"unet.lora_alpha\":8}", 4, NULL},
        {"{\"unet.r\":4,\"unet.lora_alpha\":2,\"unet.alpha_pattern\":{\"to_q\":4,\"to_k\":4,\"to_v\":4,\"to_"
         "out.0\":4}}",
         2, NULL},
        {"{\"unet.r\":4,\"unet.lora_alpha\":2,\"unet.use_rslora\":true}", 2, NULL}, /* 2 / sqrt 4 */
        {"{}", 2, NULL},
        {"{\"unet.use_dora\":true}", 0, "DoRA"},
        {"{\"unet.r\":4,\"unet.lora_alpha\":-2}", 0, "above 0"},
        {"[", 0, "not a JSON object"},
    };
    Model *m = open_model("tiny-sd");
    NetAdapters *a = make(m, "attention", 4, 2), *good = make(m, "attention", 4, 2);
    load(good, m, DIFFUSERS);
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        Parts p = parts_of(DIFFUSERS);
        g_autofree char *path = finish(&p, "lora_adapter_metadata", cases[i].config);
        if (cases[i].factor == 0) {
            refuse(a, m, path, cases[i].text);
            continue;
        }
        load(a, m, path);
        expect_factor(a, good, cases[i].factor);
    }
    net_adapters_free(a);
    net_adapters_free(good);
    model_free(m);
}

static void test_misfits(void)
{
    Model *m = open_model("tiny-sd"), *xl = open_model("tiny-sdxl");
    NetAdapters *a = make(m, "attention", 4, 2), *linear = make(m, "linear", 4, 2),
                *rank8 = make(m, "attention", 8, 2);
    /* E-03, H-08 */
    refuse(linear, m, KOHYA, "24 of 72 modules are not in the file");
    refuse(linear, m, KOHYA, "attentions.0.proj_in");
    refuse(a, m, "tests/fixtures/lora/tiny-sd.all.kohya.safetensors",
           "72 of 216 tensors have no module here");
    refuse(rank8, m, KOHYA, "expected [8,64,1,1] for rank 8");
    refuse(a, m, "tests/fixtures/lora/tiny-sdxl.attn.kohya.safetensors", "does not fit the adapters");
    refuse(a, m, "tests/fixtures/tiny-sd/unet/diffusion_pytorch_model.safetensors",
           "contains no LoRA tensors");
    refuse(a, m, "tests/fixtures/golden.json", "JSON file");
    refuse(a, m, "no-such-file.safetensors", "No such file");

    Parts p = parts_of(KOHYA);
    g_array_set_size(p.entries, 0);
    g_autofree char *empty = finish(&p, "k", "v");
    /* E-12 */
    refuse(a, m, empty, "contains no LoRA tensors");
    p = parts_of(KOHYA);
    drop(&p, "attn1_to_k.lora_up.weight");
    g_autofree char *half = finish(&p, NULL, NULL);
    refuse(a, m, half, "attn1.to_k (B only is missing)");
    p = parts_of(KOHYA);
    at(&p, ".alpha", 0)->name = "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_k_.alpha";
    g_autofree char *stray = finish(&p, NULL, NULL);
    /* E-03 */
    refuse(a, m, stray, "1 of 144 tensors have no module here");
    p = parts_of(KOHYA);
    at(&p, ".alpha", 0)->name = "lora_te_text_model_encoder_layers_0_mlp_fc1.alpha";
    g_autofree char *text = finish(&p, NULL, NULL);
    refuse(a, m, text, "lora_te_text_model_encoder_layers_0_mlp_fc1.alpha");
    p = parts_of(KOHYA); /* one module under two of its names */
    SafeEntry twice = *at(&p, "down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_k.lora_up.weight", 0);
    twice.name = "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_k.lora_B.weight";
    g_array_append_val(p.entries, twice);
    g_autofree char *doubled = finish(&p, NULL, NULL);
    refuse(a, m, doubled, "is in the file twice");
    p = parts_of(KOHYA);
    static float values[4 * 64];
    values[100] = INFINITY;
    at(&p, "attn1_to_q.lora_down.weight", 0)->data = values;
    g_autofree char *infinite = finish(&p, NULL, NULL);
    refuse(a, m, infinite, "not finite");

    static const char *const foreign[][2] = {
        {"hada_w1_a", "LoHa"}, {"lokr_w1", "LoKr"}, {"dora_scale", "DoRA"}, {"oft_blocks", "OFT"}};
    for (guint i = 0; i < G_N_ELEMENTS(foreign); i++) {
        p = parts_of(KOHYA);
        SafeEntry *e = at(&p, "attn1_to_q.alpha", 0);
        g_autofree char *name = g_strdup_printf("lora_unet_x.%s", foreign[i][0]);
        e->name = name;
        g_autofree char *path = finish(&p, NULL, NULL);
        refuse(a, m, path, foreign[i][1]);
        refuse(a, m, path, "only LoRA can be read");
    }
    net_adapters_free(a);
    net_adapters_free(linear);
    net_adapters_free(rank8);
    model_free(m);
    model_free(xl);
}

/* -- what is written
 * --------------------------------------------------------------------------------------------- */

/* SDXL files are read with either spelling of the U-Net's names. */
static void test_diffusers_names_of_sdxl(void)
{
    Model *m = open_model("tiny-sdxl");
    NetAdapters *a = make(m, "attention", 4, 2), *b = make(m, "attention", 4, 2);
    g_autofree char *path = path_of("spelling.safetensors");
    fill(a);
    m->kind = MODEL_SD1;
    g_assert_true(lora_save(a, m, path, LORA_KOHYA, NET_F32, NULL, NULL, NULL));
    m->kind = MODEL_SDXL;
    load(b, m, path);
    same_masters(a, b);
    net_adapters_free(a);
    net_adapters_free(b);
    model_free(m);
}

static void test_mixed_ranks(void)
{
    Model *m = open_model("tiny-sd");
    NetAdapters *a = net_adapters_new(NET_F32);
    g_autofree char *path = path_of("mixed.safetensors");
    net_adapters_add(a, "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q", 64, 64, 1, 1, 4, 1);
    net_adapters_add(a, "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_k", 64, 64, 1, 1, 8, 3.5f);
    net_adapters_allocate(a);
    fill(a);
    g_autofree float *before = g_memdup2(a->master, a->n * sizeof(float));
    for (LoraFormat format = LORA_KOHYA; format <= LORA_DIFFUSERS; format++) {
        g_assert_true(lora_save(a, m, path, format, NET_F32, NULL, NULL, NULL));
        memset(a->master, 0, a->n * sizeof(float));
        load(a, m, path);
        g_assert_cmpmem(a->master, a->n * sizeof(float), before, a->n * sizeof(float));
    }
    g_assert_true(lora_save(a, m, path, LORA_KOHYA, NET_F32, NULL, NULL, NULL));
    SafeFile *file = safe_open(path, NULL);
    float alpha[2];
    const char *block = "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_";
    for (guint i = 0; i < 2; i++) {
        g_autofree char *name = g_strdup_printf("%s%c.alpha", block, "qk"[i]);
        g_assert_true(safe_read(file, safe_find(file, name), &alpha[i], NET_F32, NULL));
    }
    /* D-13 */
    g_assert_true(alpha[0] == 1 && alpha[1] == 3.5f);
    g_assert_cmpstr(g_hash_table_lookup(safe_metadata(file), "ss_network_dim"), ==, "Dynamic");
    safe_close(file);
    net_adapters_free(a);
    model_free(m);
}

static void test_types(void)
{
    Model *m = open_model("tiny-sd");
    NetAdapters *a = make(m, "attention", 4, 2.5), *b = make(m, "attention", 4, 2.5);
    g_autofree char *path = path_of("types.safetensors");
    fill(a);
    const NetAdapter *x = a->list->pdata[0];
    a->master[x->b] = 1e6f; /* beyond f16 */
    a->master[x->b + 1] = 1e-9f;
    for (NetType type = NET_F32; type <= NET_F16; type++) {
        SafeStats stats;
        g_assert_true(lora_save(a, m, path, LORA_KOHYA, type, NULL, &stats, NULL));
        g_assert_cmpuint(stats.overflowed, ==, type == NET_F16);
        g_assert_cmpuint(stats.flushed, ==, type == NET_F16);
        SafeFile *file = safe_open(path, NULL);
        const SafeTensor *alpha =
            safe_find(file, "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_q.alpha");
        /* E-02 */
        g_assert_cmpuint(alpha->ndim, ==, 0);
        g_assert_cmpstr(alpha->dtype, ==, type == NET_F16 ? "F16" : "F32"); /* never bf16 */
        safe_close(file);
        load(b, m, path);
        for (gsize i = 0; i < a->n; i++) {
            float want = type == NET_F32    ? a->master[i]
                         : type == NET_BF16 ? net_bf16_to_f32(net_f32_to_bf16(a->master[i]))
                                            : net_f16_to_f32(net_f32_to_f16(a->master[i]));
            g_assert_true(b->master[i] == (isinf(want) ? 65504 : want));
        }
    }
    net_adapters_free(a);
    net_adapters_free(b);
    model_free(m);
}

static char *contents(const char *path, gsize *n)
{
    char *text;
    g_assert_true(g_file_get_contents(path, &text, n, NULL));
    return text;
}

static void test_metadata(void)
{
    Model *m = open_model("tiny-sd"), *xl = open_model("tiny-sdxl");
    NetAdapters *a = make(m, "attention", 4, 2), *b = make(xl, "attention", 4, 0.1);
    g_autofree char *path = path_of("meta.safetensors"), *again = path_of("meta2.safetensors");
    g_autoptr(GHashTable) more = g_hash_table_new(g_str_hash, g_str_equal);
    fill(a);
    fill(b);
    g_unsetenv("SOURCE_DATE_EPOCH");
    g_assert_true(lora_save(a, m, path, LORA_KOHYA, NET_F16, NULL, NULL, NULL));
    g_assert_true(lora_save(a, m, again, LORA_KOHYA, NET_F16, NULL, NULL, NULL));
    gsize n1, n2;
    g_autofree char *one = contents(path, &n1), *two = contents(again, &n2);
    g_assert_cmpmem(one, n1, two, n2); /* no clock, no path, no random id */

    SafeFile *file = safe_open(path, NULL);
    guint64 head;
    memcpy(&head, one, 8);
    g_autofree char *sha =
        g_compute_checksum_for_data(G_CHECKSUM_SHA256, (guchar *)one + 8 + head, n1 - 8 - head);
    g_assert_cmpstr(g_hash_table_lookup(safe_metadata(file), "sshs_model_hash"), ==, sha);
    g_assert_cmpuint(strlen(g_hash_table_lookup(safe_metadata(file), "sshs_legacy_hash")), ==, 8);
    g_assert_null(g_hash_table_lookup(safe_metadata(file), "modelspec.date"));
    g_assert_cmpstr(g_hash_table_lookup(safe_metadata(file), "modelspec.architecture"), ==,
                    "stable-diffusion-v1/lora");
    safe_close(file);

    g_setenv("SOURCE_DATE_EPOCH", "86400", TRUE);
    g_hash_table_insert(more, (gpointer) "ss_output_name", (gpointer) "my \"style\"");
    g_hash_table_insert(more, (gpointer) "ss_steps", (gpointer) "12");
    xl->v_prediction = TRUE;
    g_assert_true(lora_save(b, xl, path, LORA_KOHYA, NET_F16, more, NULL, NULL));
    g_unsetenv("SOURCE_DATE_EPOCH");
    file = safe_open(path, NULL);
    GHashTable *map = safe_metadata(file);
    g_assert_cmpstr(g_hash_table_lookup(map, "modelspec.date"), ==, "1970-01-02T00:00:00");
    g_assert_cmpstr(g_hash_table_lookup(map, "modelspec.title"), ==, "my \"style\"");
    g_assert_cmpstr(g_hash_table_lookup(map, "modelspec.prediction_type"), ==, "v");
    g_assert_cmpstr(g_hash_table_lookup(map, "ss_output_name"), ==, "my \"style\"");
    g_assert_cmpstr(g_hash_table_lookup(map, "ss_base_model_version"), ==, "sdxl_base_v1-0");
    g_assert_cmpstr(g_hash_table_lookup(map, "ss_network_alpha"), ==, "0.1");
    g_assert_cmpstr(g_hash_table_lookup(map, "ss_steps"), ==, "12");
    safe_close(file);
    net_adapters_free(a);
    net_adapters_free(b);
    model_free(m);
    model_free(xl);
}

/* Going on from a file and saving over it. */
static void test_same_path(void)
{
    Model *m = open_model("tiny-sd");
    NetAdapters *a = make(m, "attention", 4, 2), *b = make(m, "attention", 4, 2);
    Parts p = parts_of(KOHYA);
    g_autofree char *path = finish(&p, NULL, NULL);
    load(a, m, path);
    g_assert_true(lora_save(a, m, path, LORA_KOHYA, NET_F32, NULL, NULL, NULL));
    /* E-14 */
    load(b, m, path);
    same_masters(a, b);
    net_adapters_free(a);
    net_adapters_free(b);
    model_free(m);
}

/* FOLDER/MODEL.TARGETS.FORMAT.TYPE.safetensors */
static void write_files(void)
{
    static const struct {
        const char *model, *targets;
        LoraFormat format;
        NetType type;
    } files[] = {
        {"tiny-sd", "attention", LORA_KOHYA, NET_F16}, {"tiny-sd", "attention", LORA_DIFFUSERS, NET_F16},
        {"tiny-sd", "all", LORA_KOHYA, NET_F32},       {"tiny-sd", "all", LORA_DIFFUSERS, NET_F32},
        {"tiny-sdxl", "linear", LORA_KOHYA, NET_BF16}, {"tiny-sdxl", "linear", LORA_DIFFUSERS, NET_BF16},
        {"tiny-sdxl", "all", LORA_KOHYA, NET_F32},
    };
    for (guint i = 0; i < G_N_ELEMENTS(files); i++) {
        g_autofree char *name = g_strdup_printf("%s.%s.%s.%s.safetensors", files[i].model, files[i].targets,
                                                files[i].format == LORA_KOHYA ? "kohya" : "diffusers",
                                                net_type_name(files[i].type));
        g_autofree char *path = path_of(name);
        g_autoptr(GError) error = NULL;
        Model *m = open_model(files[i].model);
        NetAdapters *a = make(m, files[i].targets, 5, 3);
        fill(a);
        lora_save(a, m, path, files[i].format, files[i].type, NULL, NULL, &error);
        g_assert_no_error(error);
        net_adapters_free(a);
        model_free(m);
    }
}

static void remove_folder(void)
{
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    for (const char *name; (name = g_dir_read_name(dir));) {
        g_autofree char *path = path_of(name);
        g_unlink(path);
    }
    g_rmdir(folder);
    g_free(folder);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--write")) {
        folder = argv[2];
        write_files();
        return 0;
    }
    g_test_init(&argc, &argv, NULL);
    folder = g_dir_make_tmp("loraflow-XXXXXX", NULL);
    g_test_add_func("/lora-file/fixtures", test_fixtures);
    g_test_add_func("/lora-file/convolutions", test_convolutions);
    g_test_add_func("/lora-file/alpha", test_alpha);
    g_test_add_func("/lora-file/peft-config", test_peft_config);
    g_test_add_func("/lora-file/misfits", test_misfits);
    g_test_add_func("/lora-file/diffusers-names-of-sdxl", test_diffusers_names_of_sdxl);
    g_test_add_func("/lora-file/mixed-ranks", test_mixed_ranks);
    g_test_add_func("/lora-file/types", test_types);
    g_test_add_func("/lora-file/metadata", test_metadata);
    g_test_add_func("/lora-file/same-path", test_same_path);
    int status = g_test_run();
    remove_folder();
    return status;
}
