/* The shared state of a training loop: making, loading, saving, checking it. Batches are in
 * trainer_batch.c, plans and their runs in trainer_run.c. */
#include "core/model/trainer.h"
#include "core/model/encoder.h"
#include "core/model/trainer_run.h"
#include <string.h>

G_DEFINE_QUARK(trainer - error - quark, trainer_error)

Trainer *trainer_new(const char *base, const TrainerOptions *options, GError **error)
{
    Trainer *t = g_new0(Trainer, 1);
    t->options = *options;
    t->compute = options->compute;
    t->fresh = options->from == NULL;
    t->factor = 1;
    t->check_finite = model_check_finite();
    t->held = g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
    t->arena = net_arena_new();
    t->plans = trainer_plans_new();
    if (!(t->model = model_open(base, error)))
        goto fail;
    double alpha = options->alpha > 0 ? options->alpha : (double)options->rank;
    t->adapters = lora_new(t->model, options->targets, options->rank, alpha, options->compute, error);
    if (!t->adapters)
        goto fail;
    if (options->from && !lora_load(t->adapters, t->model, options->from, error))
        goto fail;
    return t;
fail:
    trainer_free(t);
    return NULL;
}

void trainer_free(Trainer *t)
{
    if (!t)
        return;
    trainer_plans_free(t->plans);
    net_arena_free(t->arena);
    net_weights_free(t->unet);
    if (t->adapters)
        net_adapters_free(t->adapters);
    if (t->model)
        model_free(t->model);
    g_ptr_array_unref(t->held);
    g_free(t->failure);
    g_free(t);
}

Trainer *trainer_of(const FlowItem *item, GError **error)
{
    const FlowValue *v = flow_item_get(item, FLOW_F_MODEL);
    if (v && v->object_type && strcmp(v->object_type, TRAINER_TYPE) == 0)
        return v->data;
    g_set_error(error, TRAINER_ERROR, TRAINER_ERROR_BATCH,
                "the item carries no model: this node belongs between lora_step and its feedback edge");
    return NULL;
}

void trainer_fail(Trainer *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!t->failure)
        t->failure = g_strdup_vprintf(format, args);
    va_end(args);
}

gboolean trainer_load(Trainer *t, gboolean watch_base, GError **error)
{
    if (!(t->unet = model_load_unet(t->model, t->compute, error)))
        return FALSE;
    if (watch_base)
        t->base_hash = net_weights_hash(t->unet);
    if (!t->restored && !t->options.from)
        lora_init(t->adapters, t->options.init, t->options.seed);
    net_adapters_refresh(t->adapters);
    return TRUE;
}

gsize trainer_adapter_bytes(const Trainer *t)
{
    gsize copy = t->compute == NET_F32 ? 0 : net_type_bytes(t->compute, t->adapters->n);
    return 2 * t->adapters->n * sizeof(float) + copy;
}

/* -- checkpoint ------------------------------------------------------------------- */

/* (modules as text, updates, B started at zero, masters) */
#define STATE "(sxbay)"

/* Names, ranks and scales of all modules: what the masters mean. */
static char *describe(const Trainer *t)
{
    GString *text = g_string_new(NULL);
    for (guint i = 0; i < t->adapters->list->len; i++) {
        const NetAdapter *a = t->adapters->list->pdata[i];
        g_string_append_printf(text, "%s %" G_GINT64_FORMAT " %g\n", a->name, a->rank, a->alpha);
    }
    return g_string_free(text, FALSE);
}

GBytes *trainer_save_state(Trainer *t)
{
    g_autofree char *modules = describe(t);
    GVariant *masters = g_variant_new_fixed_array(G_VARIANT_TYPE_BYTE, t->adapters->master,
                                                  t->adapters->n * sizeof(float), 1);
    g_autoptr(GVariant) state =
        g_variant_ref_sink(g_variant_new("(sxb@ay)", modules, t->updates, t->fresh, masters));
    return g_variant_get_data_as_bytes(state);
}

static guint lines(const char *text)
{
    guint n = 0;
    for (; (text = strchr(text, '\n')); text++)
        n++;
    return n;
}

gboolean trainer_load_state(Trainer *t, GBytes *bytes, GError **error)
{
    g_autoptr(GVariant) state =
        g_variant_ref_sink(g_variant_new_from_bytes(G_VARIANT_TYPE(STATE), bytes, FALSE));
    g_autoptr(GVariant) masters = g_variant_get_child_value(state, 3);
    g_autofree char *mine = describe(t);
    const char *modules;
    gsize size;
    gconstpointer data = g_variant_get_fixed_array(masters, &size, 1);
    g_variant_get_child(state, 0, "&s", &modules);
    if (strcmp(modules, mine) != 0) {
        g_set_error(error, TRAINER_ERROR, TRAINER_ERROR_STATE,
                    "the checkpoint has %u modules of other names, ranks or alphas than the %u of this graph "
                    "(set rank, alpha and targets as they were)",
                    lines(modules), lines(mine));
        return FALSE;
    }
    if (size != t->adapters->n * sizeof(float)) {
        g_set_error(error, TRAINER_ERROR, TRAINER_ERROR_STATE,
                    "the checkpoint has %zu bytes of parameters, the graph asks for %zu", size,
                    t->adapters->n * sizeof(float));
        return FALSE;
    }
    memcpy(t->adapters->master, data, size);
    g_variant_get_child(state, 1, "x", &t->updates);
    g_variant_get_child(state, 2, "b", &t->fresh);
    t->restored = TRUE;
    return TRUE;
}

/* -- checks ------------------------------------------------------------------------- */

static gsize a_size(const NetAdapter *a)
{
    return (gsize)(a->rank_pad * a->in * a->kh * a->kw);
}

static gsize b_size(const NetAdapter *a)
{
    return (gsize)(a->out * a->rank_pad);
}

static gboolean all_zero(const float *x, gsize n)
{
    for (gsize i = 0; i < n; i++)
        if (x[i] != 0)
            return FALSE;
    return TRUE;
}

gboolean trainer_check_first(const Trainer *t, GError **error)
{
    guint zero = 0;
    for (guint i = 0; i < t->adapters->list->len; i++) {
        const NetAdapter *a = t->adapters->list->pdata[i];
        if (!all_zero(t->adapters->gradient + a->a, a_size(a))) {
            g_set_error(
                error, TRAINER_ERROR, TRAINER_ERROR_CHECK,
                "'%s' has a gradient of A in the first step although its B is zero: a fault in the engine",
                a->name);
            return FALSE;
        }
        zero += all_zero(t->adapters->gradient + a->b, b_size(a));
    }
    if (zero == t->adapters->list->len) {
        g_set_error(error, TRAINER_ERROR, TRAINER_ERROR_CHECK,
                    "no module of %u has a gradient of B in the first step: nothing can be learned "
                    "(are all loss weights zero?)",
                    zero);
        return FALSE;
    }
    return TRUE;
}

guint trainer_unmoved(const Trainer *t, const char **first)
{
    guint unmoved = 0;
    for (guint i = 0; i < t->adapters->list->len; i++) {
        const NetAdapter *a = t->adapters->list->pdata[i];
        if (!all_zero(t->adapters->master + a->b, b_size(a)))
            continue;
        if (unmoved++ == 0 && first)
            *first = a->name;
    }
    return unmoved;
}

gboolean trainer_check_base(const Trainer *t, GError **error)
{
    if (!t->base_hash || net_weights_hash(t->unet) == t->base_hash)
        return TRUE;
    g_set_error(error, TRAINER_ERROR, TRAINER_ERROR_CHECK,
                "the frozen weights of the U-Net have changed during the run: a fault in the engine");
    return FALSE;
}

char *trainer_element(const Trainer *t, gsize index)
{
    for (guint i = 0; i < t->adapters->list->len; i++) {
        const NetAdapter *a = t->adapters->list->pdata[i];
        if (index - a->a < a_size(a))
            return g_strconcat(a->name, ".lora_A", NULL);
        if (index - a->b < b_size(a))
            return g_strconcat(a->name, ".lora_B", NULL);
    }
    return g_strdup("padding");
}
