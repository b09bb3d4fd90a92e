/* Adapters of a model: modules, targets, limits, initial values, names in other layouts.
 *
 * @label unit short
 */
#include "core/model/model.h"
#include "core/model/names.h"
#include <math.h>
#include <string.h>

static const UnetConfig sd15 = {
    .in_channels = 4,
    .out_channels = 4,
    .layers = 2,
    .context = 768,
    .groups = 32,
    .levels = 4,
    .width = {320, 640, 1280, 1280},
    .heads = {8, 8, 8, 8},
    .depth = {1, 1, 1, 1},
    .down_attention = {TRUE, TRUE, TRUE, FALSE},
    .up_attention = {FALSE, TRUE, TRUE, TRUE},
    .eps = 1e-5f,
};
static const UnetConfig sdxl = {
    .in_channels = 4,
    .out_channels = 4,
    .layers = 2,
    .context = 2048,
    .groups = 32,
    .levels = 3,
    .width = {320, 640, 1280},
    .heads = {5, 10, 20},
    .depth = {1, 2, 10},
    .down_attention = {FALSE, TRUE, TRUE},
    .up_attention = {TRUE, TRUE, FALSE},
    .eps = 1e-5f,
    .linear_projection = TRUE,
    .text_time = TRUE,
    .time_dim = 256,
    .class_dim = 2816,
};

static Model *model_of(UnetConfig config, ModelKind kind)
{
    Model *m = g_new0(Model, 1);
    m->path = g_strdup("base");
    m->unet = config;
    m->kind = kind;
    return m;
}

static Model *tiny(void)
{
    g_autoptr(GError) error = NULL;
    Model *m = model_open("tests/fixtures/tiny-sd", &error);
    g_assert_no_error(error);
    return m;
}

static NetAdapters *make(const Model *m, const char *targets, gint64 rank, GError **error)
{
    g_auto(GStrv) list = g_strsplit(targets, " ", -1);
    return lora_new(m, list, rank, 2, NET_F32, error);
}

static guint count(const Model *m, const char *targets)
{
    g_autoptr(GError) error = NULL;
    NetAdapters *a = make(m, targets, 4, &error);
    g_assert_no_error(error);
    guint n = a->list->len;
    net_adapters_free(a);
    return n;
}

static void refuse(const Model *m, const char *targets, gint64 rank, const char *text)
{
    g_autoptr(GError) error = NULL;
    g_assert_null(make(m, targets, rank, &error));
    g_assert_nonnull(error);
    if (!strstr(error->message, text))
        g_error("'%s' does not say '%s'", error->message, text);
}

/* -- modules ---------------------------------------------------------------------------------------- */

static void test_counts(void)
{
    static const struct {
        const UnetConfig *config;
        guint attention, linear, all;
        gint64 per_rank; /* parameters per unit of rank of `linear` */
    } cases[] = {{&sd15, 128, 192, 192 + 50 + 36, 423936}, {&sdxl, 560, 722, 722 + 38 + 28, 2659840}};
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GPtrArray) modules = model_modules(cases[i].config);
        guint attention = 0, linear = 0;
        gint64 per_rank = 0;
        for (guint k = 0; k < modules->len; k++) {
            const ModelModule *m = modules->pdata[k];
            attention += strstr(m->path, ".attn") != NULL;
            if (!strstr(m->path, ".attentions."))
                continue;
            linear++;
            per_rank += m->in + m->out;
        }
        g_assert_cmpuint(modules->len, ==, cases[i].all);
        g_assert_cmpuint(linear, ==, cases[i].linear);
        g_assert_cmpuint(attention, ==, cases[i].attention);
        g_assert_cmpint(per_rank, ==, cases[i].per_rank);
    }
    Model *m = model_of(sd15, MODEL_SD1);
    g_assert_cmpuint(count(m, "attention"), ==, 128);
    g_assert_cmpuint(count(m, "linear"), ==, 192);
    g_assert_cmpuint(count(m, "all"), ==, 278);
    model_free(m);
}

/* Keys and shapes of kohya's files, from its own source. */
static void compare_kohya(const UnetConfig *config, const char *file, gboolean original)
{
    g_autoptr(GPtrArray) modules = model_modules(config);
    g_autoptr(GHashTable) keys = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autofree char *path = g_build_filename("tests/fixtures/keys", file, NULL), *text = NULL;
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    for (guint i = 0; i < modules->len; i++) {
        const ModelModule *m = modules->pdata[i];
        if (!strstr(m->path, ".attentions."))
            continue;
        const char *ones = m->conv ? ",1,1" : "";
        g_autofree char *name = original ? names_original_unet(config, m->path) : g_strdup(m->path);
        g_autofree char *key = names_kohya(name);
        g_hash_table_add(keys, g_strdup_printf("%s.lora_down.weight [r,%d%s]", key, (int)m->in, ones));
        g_hash_table_add(keys, g_strdup_printf("%s.lora_up.weight [%d,r%s]", key, (int)m->out, ones));
        g_hash_table_add(keys, g_strdup_printf("%s.alpha []", key));
    }
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    guint n = 0;
    for (guint i = 0; lines[i]; i++) {
        if (!g_str_has_prefix(lines[i], "lora_unet_"))
            continue;
        n++;
        if (!g_hash_table_contains(keys, lines[i]))
            g_error("%s has '%s', we do not", file, lines[i]);
    }
    g_assert_cmpuint(n, ==, g_hash_table_size(keys));
}

static void test_kohya_keys(void)
{
    /* E-03 */
    compare_kohya(&sd15, "kohya_sd15.txt", FALSE);
    compare_kohya(&sdxl, "kohya_sdxl.txt", TRUE);
}

/* Every tensor's name in the original layout, as diffusers' conversion scripts have it. */
static void compare_original(const UnetConfig *config, const char *file)
{
    g_autofree char *path = g_build_filename("tests/fixtures/keys", file, NULL), *text = NULL;
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (guint i = 1; lines[i] && *lines[i]; i++) {
        g_auto(GStrv) field = g_strsplit(lines[i], "\t", -1);
        g_autofree char *name = names_original_unet(config, field[0]);
        g_autofree char *key = g_strconcat("model.diffusion_model.", name, NULL);
        g_assert_cmpstr(key, ==, field[2]);
    }
}

static void test_original_names(void)
{
    compare_original(&sd15, "unet_sd15.tsv");
    compare_original(&sd15, "unet_sd21.tsv");
    compare_original(&sdxl, "unet_sdxl.tsv");
}

/* VAE and OpenCLIP. Their lists say "NAME rows [a:b]" for a third of a tensor, "NAME (TRANSPOSED)". */
static void test_other_original_names(void)
{
    static const char *const files[][2] = {{"vae.tsv", "first_stage_model."},
                                           {"openclip_bigg.tsv", "conditioner.embedders.1.model."},
                                           {"openclip_h_sd21.tsv", "cond_stage_model.model."}};
    static const gint64 width[] = {0, 1280, 1024};
    const VaeConfig vae = {.levels = 4};
    for (guint f = 0; f < G_N_ELEMENTS(files); f++) {
        g_autofree char *path = g_build_filename("tests/fixtures/keys", files[f][0], NULL), *text = NULL;
        g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
        g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
        for (guint i = 1; lines[i] && *lines[i]; i++) {
            g_auto(GStrv) field = g_strsplit(lines[i], "\t", -1);
            OpenClipName place = f ? names_openclip(field[0]) : (OpenClipName){0};
            g_autofree char *name = f ? place.name : names_original_vae(&vae, field[0]);
            g_autofree char *key = g_strconcat(files[f][1], name, NULL);
            char *more = strchr(field[2], ' ');
            g_assert_cmpint(place.fused, ==, more && strstr(more, "rows"));
            g_assert_cmpint(place.transposed, ==, more && strstr(more, "TRANSPOSED"));
            if (place.fused)
                g_assert_cmpint(place.third * width[f], ==, g_ascii_strtoll(strchr(more, '[') + 1, NULL, 10));
            if (more)
                *more = 0;
            g_assert_cmpstr(key, ==, field[2]);
        }
    }
}

/* -- targets ------------------------------------------------------------------------------------------ */

static void test_targets(void)
{
    Model *m = tiny();
    g_assert_cmpuint(count(m, "attention"), ==, 48);
    g_assert_cmpuint(count(m, "linear"), ==, 72);
    g_assert_cmpuint(count(m, "attention !*.attn2.*"), ==, 24);
    g_assert_cmpuint(count(m, "*.attn1.to_q"), ==, 6);
    g_assert_cmpuint(count(m, "to_q"), ==, 12); /* the end of a path */
    g_assert_cmpuint(count(m, "to_out.0"), ==, 12);
    g_assert_cmpuint(count(m, "attn1.to_q attn1.to_k"), ==, 12);
    g_assert_cmpuint(count(m, "all !linear mid_block*"), ==,
                     count(m, "all") - 72 + count(m, "linear") - count(m, "linear !mid_block*"));
    g_assert_cmpuint(count(m, "down_blocks.1.attentions.0.proj_in"), ==, 1);
    /* E-12 */
    refuse(m, "linaer", 4, "target 'linaer' matches no module");
    refuse(m, "linaer", 4, "nearest name is linear");
    refuse(m, "attention !atn2.to_k", 4, "nearest name is attn2.to_k");
    refuse(m, "", 4, "no targets");
    refuse(m, "to_q  to_k", 4, "target '' matches no module");
    refuse(m, "!attention", 4, "exclude every module");
    refuse(m, "to_q !attention", 4, "exclude every module");
    g_autoptr(GError) error = NULL;
    char *none[] = {NULL};
    g_assert_null(lora_new(m, none, 4, 2, NET_F32, &error));
    g_assert_nonnull(strstr(error->message, "no targets"));
    model_free(m);
}

static void test_limits(void)
{
    Model *m = tiny();
    NetAdapters *a = make(m, "attention", 32, NULL); /* to_k of cross-attention has 32 in */
    g_assert_nonnull(a);
    net_adapters_free(a);
    refuse(m, "attention", 33, "rank 33 is above the limit 32 of module down_blocks.1.attentions.0");
    refuse(m, "attention", 1000000, "rank 1000000 is above the limit");
    refuse(m, "attention", 0, "rank 0");
    refuse(m, "attention", -1, "rank -1");
    char *targets[] = {"attention", NULL};
    const double alphas[] = {0, -1, (double)NAN, (double)INFINITY, 1e300};
    for (guint i = 0; i < G_N_ELEMENTS(alphas); i++)
        g_assert_null(lora_new(m, targets, 4, alphas[i], NET_F32, NULL));
    model_free(m);
}

/* -- initial values ----------------------------------------------------------------------------------------
 */

static void test_init(void)
{
    Model *m = tiny();
    NetAdapters *a = make(m, "all", 5, NULL), *b = make(m, "to_q", 5, NULL);
    lora_init(a, LORA_KAIMING, 7);
    lora_init(b, LORA_KAIMING, 7);
    for (guint i = 0; i < a->list->len; i++) {
        const NetAdapter *x = a->list->pdata[i];
        const gsize n = (gsize)(x->in * x->kh * x->kw), used = n * 5;
        const float bound = 1 / sqrtf((float)n);
        double sum = 0, square = 0;
        g_assert_cmpint(x->rank_pad, ==, 8);
        g_assert_true(x->scale == 0.4f);
        for (gsize k = 0; k < used; k++) {
            float v = a->master[x->a + k];
            g_assert_true(fabsf(v) <= bound && v != 0);
            sum += (double)v;
            square += (double)v * (double)v;
        }
        /* mean 0 and variance bound^2 / 3 within five standard errors (of 160 values or more) */
        double error = (double)bound / sqrt(3.0 * (double)used);
        g_assert_cmpfloat(fabs(sum / (double)used), <, 5 * error);
        g_assert_cmpfloat(fabs(square / (double)used * 3 / (double)(bound * bound) - 1), <,
                          5 * sqrt(0.8 / (double)used));
        for (gsize k = used; k < 8 * n; k++)
            g_assert_true(a->master[x->a + k] == 0);
        for (gsize k = 0; k < (gsize)(8 * x->out); k++)
            g_assert_true(a->master[x->b + k] == 0);
    }
    /* keyed by the module's name: which others there are makes no difference */
    for (guint i = 0; i < b->list->len; i++) {
        const NetAdapter *y = b->list->pdata[i], *x = net_adapters_find(a, y->name);
        g_assert_cmpmem(a->master + x->a, 8 * (gsize)x->in * 4, b->master + y->a, 8 * (gsize)y->in * 4);
    }
    g_assert_true(memcmp(b->master, b->master + ((NetAdapter *)b->list->pdata[1])->a, 64) != 0);
    NetAdapters *c = make(m, "to_q", 5, NULL);
    lora_init(c, LORA_KAIMING, 8);
    g_assert_true(memcmp(b->master, c->master, 64) != 0);
    net_adapters_free(a);
    net_adapters_free(b);
    net_adapters_free(c);
    model_free(m);
}

static double deviation(const Model *m, NetType compute, gint64 rank, LoraInit init)
{
    char *targets[] = {"ff.net.2", NULL}; /* 6 modules of 256 in */
    NetAdapters *a = lora_new(m, targets, rank, 1, compute, NULL);
    double square = 0, n = 0;
    lora_init(a, init, 1);
    for (guint i = 0; i < a->list->len; i++) {
        const NetAdapter *x = a->list->pdata[i];
        for (gint64 k = 0; k < x->in * rank; k++, n++)
            square += pow((double)a->master[x->a + (gsize)k], 2);
    }
    net_adapters_free(a);
    return sqrt(square / n);
}

static void test_normal_init(void)
{
    Model *m = tiny();
    /* 12288 values: the deviation of the estimate is 0.7 % of it; five of them */
    g_assert_cmpfloat_with_epsilon(deviation(m, NET_F32, 8, LORA_GAUSSIAN) * 8, 1, 0.035);
    g_assert_cmpfloat_with_epsilon(deviation(m, NET_F32, 8, LORA_SCALED) / (0.01 * sqrt(2 / 8.0)), 1, 0.035);
    g_assert_cmpfloat_with_epsilon(deviation(m, NET_F16, 8, LORA_SCALED) / (0.02 * sqrt(2 / 8.0)), 1, 0.035);
    model_free(m);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/lora/counts", test_counts);
    g_test_add_func("/lora/kohya-keys", test_kohya_keys);
    g_test_add_func("/lora/original-names", test_original_names);
    g_test_add_func("/lora/other-original-names", test_other_original_names);
    g_test_add_func("/lora/targets", test_targets);
    g_test_add_func("/lora/limits", test_limits);
    g_test_add_func("/lora/init", test_init);
    g_test_add_func("/lora/normal-init", test_normal_init);
    return g_test_run();
}
