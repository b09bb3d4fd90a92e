/* The text encoders of a model together: see texts.h. */
#include "core/model/texts.h"
#include <string.h>

struct Texts {
    const Model *model;
    NetType compute;
    guint n, most;
    Tokenizer *tokenizer[TEXTS_MOST];
    Encoder *encoder[TEXTS_MOST];
    float *states[TEXTS_MOST], *pooled; /* of one run */
};

/* -- networks ------------------------------------------------------------------------- */

static NetWeights *load_0(const Model *model, NetType type, GError **error)
{
    return model_load_text(model, 0, type, error);
}

static NetWeights *load_1(const Model *model, NetType type, GError **error)
{
    return model_load_text(model, 1, type, error);
}

static void build(const Model *model, guint which, Net *net, const NetWeights *weights, gint64 n)
{
    gboolean sdxl = model->texts == 2;
    NetVal *ids = net_input(net, "ids", NET_I32, n, 1, TOKENIZER_LENGTH, 1), *pooled = NULL;
    NetVal *eos = sdxl && which == 1 ? net_input(net, "eos", NET_I32, n, 1, 1, 1) : NULL;
    NetVal *states = text_build(net, &model->text[which], weights, ids, eos, sdxl, eos ? &pooled : NULL);
    net_output(net, "states", states);
    if (pooled)
        net_output(net, "pooled", pooled);
}

static void build_0(const Model *model, Net *net, const NetWeights *weights, const gint64 *shape)
{
    build(model, 0, net, weights, shape[0]);
}

static void build_1(const Model *model, Net *net, const NetWeights *weights, const gint64 *shape)
{
    build(model, 1, net, weights, shape[0]);
}

static const EncoderKind kinds[TEXTS_MOST] = {{"text.0", load_0, build_0}, {"text.1", load_1, build_1}};

/* -- making ----------------------------------------------------------------------------- */

Texts *texts_new(const Model *model, NetType compute, guint most, GError **error)
{
    Texts *t = g_new0(Texts, 1);
    t->model = model;
    t->compute = compute;
    t->n = model->texts;
    t->most = most;
    for (guint i = 0; i < t->n; i++) {
        if (!(t->tokenizer[i] = tokenizer_open(model->tokenizer[i], error))) {
            texts_free(t);
            return NULL;
        }
        t->encoder[i] = encoder_new(&kinds[i], model, compute);
        t->states[i] = g_new(float, (gint64)most *TOKENIZER_LENGTH * model->text[i].width);
    }
    t->pooled = g_new(float, (gint64)most *MAX(model->text[t->n - 1].projection, 1));
    return t;
}

void texts_unload(Texts *t)
{
    for (guint i = 0; i < t->n; i++)
        encoder_unload(t->encoder[i]);
}

void texts_free(Texts *t)
{
    if (!t)
        return;
    for (guint i = 0; i < t->n; i++) {
        encoder_free(t->encoder[i]);
        tokenizer_free(t->tokenizer[i]);
        g_free(t->states[i]);
    }
    g_free(t->pooled);
    g_free(t);
}

gboolean texts_has_pooled(const Texts *t)
{
    return t->n == 2;
}

gint texts_tokens(const Texts *t, const char *caption, TextTokens *tokens)
{
    gint longest = 0;
    memset(tokens, 0, sizeof *tokens);
    for (guint e = 0; e < t->n; e++)
        longest = MAX(longest, tokenizer_encode(t->tokenizer[e], caption, tokens->ids[e]));
    return longest;
}

/* -- running ------------------------------------------------------------------------------ */

/* Result `i` of the run: states of all encoders side by side. */
static FlowValue *context_of(const Texts *t, guint i)
{
    gint64 width = 0, at = 0;
    for (guint e = 0; e < t->n; e++)
        width += t->model->text[e].width;
    FlowValue *value = flow_value_new(NET_F32, 2, (gint64[]){TOKENIZER_LENGTH, width});
    float *out = value->data;
    for (guint e = 0; e < t->n; e++) {
        gint64 w = t->model->text[e].width;
        const float *from = t->states[e] + (gint64)i * TOKENIZER_LENGTH * w;
        for (gint64 row = 0; row < TOKENIZER_LENGTH; row++)
            memcpy(out + row * width + at, from + row * w, (gsize)w * sizeof(float));
        at += w;
    }
    return value;
}

static FlowValue *pooled_of(const Texts *t, guint i)
{
    gint64 width = t->model->text[1].projection;
    if (!texts_has_pooled(t))
        return NULL;
    FlowValue *value = flow_value_new(NET_F32, 1, &width);
    memcpy(value->data, t->pooled + (gint64)i * width, (gsize)width * sizeof(float));
    return value;
}

/* Place of the end-of-text token. */
static gint32 eos_of(const Texts *t, guint e, const gint32 *ids)
{
    gint32 at = 0;
    while (at < TOKENIZER_LENGTH - 1 && ids[at] != tokenizer_eos(t->tokenizer[e]))
        at++;
    return at;
}

gboolean texts_run(Texts *t, guint n, const TextTokens *const *tokens, FlowValue **context,
                   FlowValue **pooled, gboolean (*stop)(gpointer), gpointer stop_data, GError **error)
{
    g_assert(n <= t->most);
    g_autofree gint32 *ids = g_new(gint32, n * TOKENIZER_LENGTH), *eos = g_new(gint32, n);
    for (guint e = 0; e < t->n; e++) {
        gboolean both = texts_has_pooled(t) && e == 1;
        for (guint i = 0; i < n; i++) {
            memcpy(ids + i * TOKENIZER_LENGTH, tokens[i]->ids[e], sizeof tokens[i]->ids[e]);
            eos[i] = eos_of(t, e, tokens[i]->ids[e]);
        }
        const NetBinding in[] = {{"ids", ids}, {both ? "eos" : NULL, eos}, {0}};
        const NetBinding out[] = {{"states", t->states[e]}, {both ? "pooled" : NULL, t->pooled}, {0}};
        if (!encoder_run(t->encoder[e], (gint64[ENCODER_DIMS]){n}, in, out, stop, stop_data, error))
            return FALSE;
    }
    for (guint i = 0; i < n; i++) {
        context[i] = context_of(t, i);
        pooled[i] = pooled_of(t, i);
    }
    return TRUE;
}

/* -- plan ----------------------------------------------------------------------------------- */

gsize texts_result_bytes(const Texts *t)
{
    gint64 n = texts_has_pooled(t) ? t->model->text[1].projection : 0;
    for (guint e = 0; e < t->n; e++)
        n += TOKENIZER_LENGTH * t->model->text[e].width;
    return (gsize)n * sizeof(float);
}

gboolean texts_plan(const Texts *t, FlowNode *node, FlowPlan *plan, FlowPhase end, GError **error)
{
    for (guint e = 0; e < t->n; e++) {
        NetPlanInfo info;
        gsize weights = model_part_bytes(t->model, kinds[e].part, t->compute, error);
        if (weights == 0 || !encoder_plan(t->encoder[e], (gint64[ENCODER_DIMS]){t->most}, &info, error))
            return FALSE;
        for (FlowPhase phase = 0; phase < end; phase++) {
            flow_plan_add(plan, node, phase, FLOW_HOST, "weights", weights + info.packed);
            flow_plan_add(plan, node, phase, FLOW_HOST, "arena", info.arena);
            flow_plan_add(plan, node, phase, FLOW_HOST, "primitives", info.primitives);
        }
    }
    flow_plan_add_always(plan, node, FLOW_HOST, "scratch", t->most * texts_result_bytes(t));
    return TRUE;
}
