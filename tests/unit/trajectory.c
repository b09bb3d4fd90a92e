/* Twelve optimizer steps against PyTorch and peft: loss, gradient norm, gradients of single modules, and
 * where A and B end up; plain, all linears, min-SNR weights, accumulation, clipping. bf16 against the same
 * numbers.
 *
 * @label unit short
 * @link jansson
 * @timeout 60
 */
#include "core/model/trainer.h"
#include "kernels/optimizer.h"
#include "tests/golden_train.h"

enum { N = GOLDEN_N, STEPS = 12, RANK = 4 };

/* f32 gates of fixtures/README, where the errors of the libraries' own fp32 stand beside them. */
static const double LOSS = 2e-6, NORM = 1e-5, GRADIENT = 2e-5, CHANGE = 1e-3;

typedef struct {
    const char *model, *variant;
    NetType compute;
    SafeFile *golden;
    json_t *root, *want; /* settings and results of the variant */
    Trainer *t;
} Run;

static double setting(const Run *r, const char *name)
{
    json_t *v = json_object_get(r->want, name);
    return json_is_number(v) ? json_number_value(v) : 0;
}

static double result(const Run *r, const char *name, guint step)
{
    return json_number_value(json_array_get(json_object_get(r->want, name), step));
}

/* -- adapters ------------------------------------------------------------------------ */

typedef enum { PART_A, PART_B } Part;

static gsize rows(const NetAdapter *a, Part part)
{
    return part == PART_A ? RANK : (gsize)a->out;
}

static gsize columns(const NetAdapter *a, Part part)
{
    return part == PART_A ? (gsize)a->in : RANK;
}

/* Element [row][column] of A or B in a flat buffer. */
static float *element(const NetAdapter *a, float *flat, Part part, gsize row, gsize column)
{
    return part == PART_A ? flat + a->a + row * (gsize)a->in + column
                          : flat + a->b + row * (gsize)a->rank_pad + column;
}

static float *golden_part(const Run *r, const char *prefix, const NetAdapter *a, Part part)
{
    g_autofree char *name =
        g_strdup_printf("%s/%s.lora_%c.weight", prefix, a->name, part == PART_A ? 'A' : 'B');
    g_assert_cmpint(golden_tensor(r->golden, name)->count, ==, (gint64)(rows(a, part) * columns(a, part)));
    return golden_f32(r->golden, name);
}

static void set_start(const Run *r)
{
    NetAdapters *all = r->t->adapters;
    memset(all->master, 0, all->n * sizeof(float));
    for (guint i = 0; i < all->list->len; i++) {
        const NetAdapter *a = all->list->pdata[i];
        g_autofree float *start = golden_part(r, "init/r4", a, PART_A);
        for (gsize row = 0; row < RANK; row++)
            memcpy(element(a, all->master, PART_A, row, 0), start + row * (gsize)a->in,
                   (gsize)a->in * sizeof(float));
    }
    net_adapters_refresh(all);
}

/* Square sums of difference, of ours and of theirs, and their product. */
typedef struct {
    double diff, ours, theirs, dot;
} Compare;

static Compare compare(const NetAdapter *a, float *flat, const float *base, const float *want, Part part)
{
    Compare c = {0};
    for (gsize row = 0; row < rows(a, part); row++) {
        for (gsize col = 0; col < columns(a, part); col++) {
            gsize i = row * columns(a, part) + col;
            double x = *element(a, flat, part, row, col) - (base ? base[i] : 0);
            double y = want[i] - (base ? base[i] : 0);
            c.diff += (x - y) * (x - y);
            c.ours += x * x;
            c.theirs += y * y;
            c.dot += x * y;
        }
    }
    return c;
}

static Run run_open(const char *model, const char *variant, NetType compute)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *base = g_build_filename("tests/fixtures", model, NULL);
    char *targets[] = {strcmp(variant, "all") == 0 ? "linear" : "attention", NULL};
    Run r = {.model = model, .variant = variant, .compute = compute, .golden = golden_open(model, "train")};
    r.root = json_load_file("tests/fixtures/golden.json", 0, NULL);
    json_t *all = json_object_get(json_object_get(json_object_get(r.root, "models"), model), "train");
    r.want = json_object_get(all, variant);
    g_assert_nonnull(r.want);
    TrainerOptions options = {.targets = targets, .rank = RANK, .alpha = 2, .compute = compute};
    r.t = trainer_new(base, &options, &error);
    g_assert_no_error(error);
    trainer_load(r.t, TRUE, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(r.t->adapters->list->len, ==, (guint)setting(&r, "modules"));
    set_start(&r);
    return r;
}

static void run_close(Run *r)
{
    g_autoptr(GError) error = NULL;
    trainer_check_base(r->t, &error);
    g_assert_no_error(error);
    trainer_free(r->t);
    safe_close(r->golden);
    json_decref(r->root);
}

/* -- steps ------------------------------------------------------------------------------- */

/* Gradients of one step; returns the loss. */
static double gradients(const Run *r, guint step)
{
    gint64 accumulate = (gint64)setting(r, "accumulation");
    double loss = 0;
    trainer_clear_gradient(r->t);
    for (gint64 k = 0; k < accumulate; k++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(FlowItem) item =
            golden_batch(r->t->model, r->golden, (gint64)step * accumulate + k, setting(r, "min_snr_gamma"));
        TrainerBatch batch;
        float part;
        trainer_batch_read(r->t, item, TRUE, &batch, &error);
        g_assert_no_error(error);
        batch.samples = (double)(N * accumulate);
        trainer_gradient(r->t, &batch, 1, &part, &error);
        g_assert_no_error(error);
        loss += part;
    }
    return loss;
}

static void update(const Run *r, guint step, double norm, float *m, float *v)
{
    NetAdapters *all = r->t->adapters;
    KernelAdamw p = {.lr = setting(r, "lr"),
                     .beta1 = 0.9,
                     .beta2 = 0.999,
                     .eps = setting(r, "eps"),
                     .weight_decay = setting(r, "weight_decay"),
                     .step = step + 1,
                     .factor = MIN(1, setting(r, "max_grad_norm") / (norm + 1e-6))};
    kernel_adamw(&p, all->master, m, v, all->gradient, all->n);
    net_adapters_refresh(all);
}

static void relative(const Run *r, const char *what, guint step, double ours, double theirs, double gate)
{
    double error = fabs(ours / theirs - 1);
    if (!(error <= gate))
        g_error("%s %s step %u: %s %.9g, not %.9g (relative %.3g, gate %.3g)", r->model, r->variant, step + 1,
                what, ours, theirs, error, gate);
}

/* Gradients of the first two steps are recorded for the variant attn. */
static void check_gradients(const Run *r, guint step, double gate, double least_cosine)
{
    NetAdapters *all = r->t->adapters;
    double worst = 0, cosine = 1;
    g_autofree char *prefix = g_strdup_printf("grad/attn/step%u", step + 1);
    for (guint i = 0; i < all->list->len; i++) {
        const NetAdapter *a = all->list->pdata[i];
        for (Part part = step == 0 ? PART_B : PART_A; part <= PART_B; part++) {
            g_autofree float *want = golden_part(r, prefix, a, part);
            Compare c = compare(a, all->gradient, NULL, want, part);
            worst = MAX(worst, sqrt(c.diff / c.theirs));
            cosine = MIN(cosine, c.dot / sqrt(c.ours * c.theirs));
        }
    }
    g_test_message("%s %s: worst gradient %.3g, least cosine %.6f", r->model, prefix, worst, cosine);
    g_assert_cmpfloat(worst, <=, gate);
    g_assert_cmpfloat(cosine, >=, least_cosine);
}

static void check_change(const Run *r, double gate)
{
    NetAdapters *all = r->t->adapters;
    double diff = 0, theirs = 0;
    g_autofree char *prefix = g_strdup_printf("final/%s", r->variant);
    for (guint i = 0; i < all->list->len; i++) {
        const NetAdapter *a = all->list->pdata[i];
        g_autofree float *start = golden_part(r, "init/r4", a, PART_A);
        for (Part part = PART_A; part <= PART_B; part++) {
            g_autofree float *want = golden_part(r, prefix, a, part);
            Compare c = compare(a, all->master, part == PART_A ? start : NULL, want, part);
            diff += c.diff;
            theirs += c.theirs;
        }
    }
    g_test_message("%s %s: change %.3g", r->model, r->variant, sqrt(diff / theirs));
    g_assert_cmpfloat(sqrt(diff / theirs), <=, gate);
}

/* What pads the rank stays exactly zero. */
static void check_padding(const Run *r)
{
    const NetAdapters *all = r->t->adapters;
    for (guint i = 0; i < all->list->len; i++) {
        const NetAdapter *a = all->list->pdata[i];
        for (gint64 row = RANK; row < a->rank_pad; row++) {
            for (gint64 col = 0; col < a->in; col++)
                g_assert_cmpfloat(all->master[a->a + (gsize)(row * a->in + col)], ==, 0);
            for (gint64 out = 0; out < a->out; out++)
                g_assert_cmpfloat(all->master[a->b + (gsize)(out * a->rank_pad + row)], ==, 0);
        }
    }
}

static void check_f32(const char *model, const char *variant)
{
    g_autoptr(GError) error = NULL;
    Run r = run_open(model, variant, NET_F32);
    gsize n = r.t->adapters->n;
    g_autofree float *m = g_new0(float, n), *v = g_new0(float, n);
    for (guint step = 0; step < STEPS; step++) {
        double loss = gradients(&r, step), norm = sqrt(kernel_sum_squares(r.t->adapters->gradient, n));
        relative(&r, "loss", step, loss, result(&r, "loss", step), LOSS);
        relative(&r, "gradient norm", step, norm, result(&r, "grad_norm", step), NORM);
        if (step == 0)
            trainer_check_first(r.t, &error);
        g_assert_no_error(error);
        /* In step 2 the gradient of A is B' times something, and B is lr times the sign of a gradient: where
         * that was nearly zero, rounding decides the sign. */
        if (step < 2 && strcmp(variant, "attn") == 0)
            check_gradients(&r, step, step == 0 ? GRADIENT : 1e-3, 0.999999);
        update(&r, step, norm, m, v);
    }
    g_assert_cmpuint(trainer_unmoved(r.t, NULL), ==, 0);
    check_change(&r, CHANGE);
    check_padding(&r);
    run_close(&r);
}

static void test_sd(void)
{
    static const char *const variants[] = {"attn", "all", "attn_minsnr", "attn_accum2", "attn_clip"};
    for (guint i = 0; i < G_N_ELEMENTS(variants); i++)
        check_f32("tiny-sd", variants[i]);
}

static void test_sdxl(void)
{
    check_f32("tiny-sdxl", "attn");
    check_f32("tiny-sdxl", "all");
}

/* bf16: each gradient points where the f32 one does, and the run stays on course. */
static void test_bf16(void)
{
    Run r = run_open("tiny-sd", "attn", NET_BF16);
    gsize n = r.t->adapters->n;
    g_autofree float *m = g_new0(float, n), *v = g_new0(float, n);
    for (guint step = 0; step < STEPS; step++) {
        double loss = gradients(&r, step), norm = sqrt(kernel_sum_squares(r.t->adapters->gradient, n));
        relative(&r, "loss", step, loss, result(&r, "loss", step), 0.01);
        if (step == 0)
            check_gradients(&r, step, 1, 0.99);
        update(&r, step, norm, m, v);
    }
    check_padding(&r);
    run_close(&r);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/trajectory/sd", test_sd);
    g_test_add_func("/trajectory/sdxl", test_sdxl);
    g_test_add_func("/trajectory/bf16", test_bf16);
    return g_test_run();
}
