/* The 24 recorded micro-batches of golden/MODEL.train.safetensors as items, as collate and diffuse would make
 * them (with the noise and the latents of the recording instead of draws). */
#ifndef TESTS_GOLDEN_TRAIN_H
#define TESTS_GOLDEN_TRAIN_H
#include "core/flow/item.h"
#include "tests/golden.h"

enum { GOLDEN_N = 2, GOLDEN_SIDE = 16, GOLDEN_ROWS = 24 };

/* Row `row` of an array [rows, ...]. */
static inline void golden_set_row(FlowItem *item, FlowField field, SafeFile *golden, const char *name,
                                  gint64 row, guint ndim, const gint64 *shape)
{
    g_autofree float *all = golden_f32(golden, name);
    FlowValue *v = flow_value_new(NET_F32, ndim, shape);
    memcpy(v->data, all + (gsize)row * flow_value_count(v), flow_value_count(v) * sizeof(float));
    flow_item_set(item, field, v);
}

static inline void golden_set_image(FlowItem *item, FlowField field, SafeFile *golden, const char *name,
                                    gint64 row)
{
    g_autofree float *all = golden_f32(golden, name);
    FlowValue *v = flow_value_new(NET_F32, 4, (gint64[]){GOLDEN_N, GOLDEN_SIDE, GOLDEN_SIDE, 4});
    kernel_to_channels_last(v->data, all + (gsize)row * flow_value_count(v), sizeof(float), GOLDEN_N, 4,
                            GOLDEN_SIDE * GOLDEN_SIDE);
    flow_item_set(item, field, v);
}

/* The captions' rows of a table [4, ...]. */
static inline void golden_set_captions(FlowItem *item, FlowField field, SafeFile *golden, const char *name,
                                       const gint64 *caption, guint ndim, const gint64 *shape)
{
    g_autofree float *all = golden_f32(golden, name);
    FlowValue *v = flow_value_new(NET_F32, ndim, shape);
    gsize per = flow_value_count(v) / GOLDEN_N;
    for (guint i = 0; i < GOLDEN_N; i++)
        memcpy((float *)v->data + i * per, all + (gsize)caption[i] * per, per * sizeof(float));
    flow_item_set(item, field, v);
}

/* gamma: of min-SNR weights, 0 = none. Returns new. */
static inline FlowItem *golden_batch(const Model *model, SafeFile *golden, gint64 row, double gamma)
{
    const UnetConfig *u = &model->unet;
    FlowItem *item = flow_item_new(FLOW_BATCH);
    g_autofree gint64 *steps = golden_i64(golden, "data/timesteps");
    g_autofree gint64 *captions = golden_i64(golden, "data/caption");
    const gint64 *caption = captions + row * GOLDEN_N;
    gint32 t[GOLDEN_N];
    gint64 key[GOLDEN_N];
    float weight[GOLDEN_N];
    for (gint64 i = 0; i < GOLDEN_N; i++) {
        t[i] = (gint32)steps[row * GOLDEN_N + i];
        key[i] = row * GOLDEN_N + i;
        weight[i] = (float)schedule_min_snr(model->alpha_bar, t[i], gamma, FALSE);
    }
    flow_item_set_i32(item, FLOW_F_TIMESTEP, t, GOLDEN_N);
    flow_item_set_i64(item, FLOW_F_NOISE_KEY, key, GOLDEN_N);
    flow_item_set_f32(item, FLOW_F_WEIGHT, weight, GOLDEN_N);
    golden_set_image(item, FLOW_F_LATENT, golden, "data/latents", row);
    golden_set_image(item, FLOW_F_NOISE, golden, "data/noise", row);
    golden_set_captions(item, FLOW_F_CONTEXT, golden, "data/context", caption, 3,
                        (gint64[]){GOLDEN_N, 77, u->context});
    if (u->text_time) {
        golden_set_captions(item, FLOW_F_POOLED, golden, "data/pooled", caption, 2, (gint64[]){GOLDEN_N, 32});
        golden_set_row(item, FLOW_F_TIME_IDS, golden, "data/time_ids", row, 2, (gint64[]){GOLDEN_N, 6});
    }
    return item;
}

#endif
