/* Plans: no two live values share a byte, the arena is near its bound, and a run gives the same bits on any
 * arena, whatever is left in it.
 * @label short
 *
 * `net_plan --dump FILE` writes the plan of a U-Net for tests/arena_bound.pl and ends. */
#include "core/net/passes_private.h"
#include "net_unet.h"
#include <stdlib.h>

static const gint32 rows[] = {1, 3, 0, 2};

static NetVal *body_attention(Net *net, Lab *lab, NetVal *x)
{
    return unet(net, lab, x, 16, FALSE);
}

static NetVal *body_all(Net *net, Lab *lab, NetVal *x)
{
    return unet(net, lab, x, 16, TRUE);
}

/* A random pile of operations on values of few shapes, so that sharing and meeting happen often. */
static guint32 random_state;

static guint32 next(guint32 n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

static NetVal *body_random(Net *net, Lab *lab, NetVal *x)
{
    enum { VALUES = 40, C = 8 };
    guint32 state = random_state;
    NetVal *v[VALUES];
    v[0] = net_linear(net, x, lab_matrix(lab, "first", C, net_dim(x, 3)), NULL,
                      lab_adapter(lab, "first", net_dim(x, 3), C, 1, 2));
    for (guint i = 1; i < VALUES; i++) {
        NetVal *a = v[i - 1 - next(MIN(i, 4))], *b = v[next(i)];
        g_autofree char *key = g_strdup_printf("w%u", i);
        switch (next(8)) {
        case 0:
            v[i] = net_linear(net, a, lab_matrix(lab, key, C, C), NULL, lab_adapter(lab, key, C, C, 1, 2));
            break;
        case 1:
            v[i] = net_layer_norm(net, a, lab_vector(lab, "gamma", C), lab_vector(lab, "beta", C), 1e-3f);
            break;
        case 2:
            v[i] = net_silu(net, a);
            break;
        case 3:
            v[i] = net_conv(net, a, lab_weight(lab, key, C, 3, 3, C), NULL, (NetConv){1, 1, 1, 1, 1}, NULL);
            break;
        case 4:
            v[i] = net_attention(net, a, b, b, 2, FALSE);
            break;
        default:
            v[i] = net_scale(net, net_add(net, a, b), 0.7f);
        }
    }
    NetVal *y = v[VALUES - 1];
    for (guint i = 0; i < 4; i++)
        y = net_add(net, y, v[VALUES - 2 - next(VALUES / 2)]);
    random_state = state; /* the second build makes the same net */
    return y;
}

typedef struct {
    gint first, last;
    gsize place, bytes;
} Piece;

/* Reads the dump and looks at every pair. */
static void check_dump(const NetPlan *plan, const char *what)
{
    g_autofree char *path = g_build_filename(g_get_tmp_dir(), "net_plan.XXXXXX", NULL);
    int fd = g_mkstemp(path);
    LAB_CHECK(fd >= 0, "no temporary file");
    close(fd);
    GError *error = NULL;
    LAB_CHECK(net_plan_dump(plan, path, &error), "%s", error->message);
    g_autofree char *text = NULL;
    LAB_CHECK(g_file_get_contents(path, &text, NULL, NULL), "cannot read the dump");
    remove(path);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    g_autofree Piece *piece = g_new(Piece, g_strv_length(lines) + 1);
    guint n = 0;
    for (guint i = 0; lines[i]; i++) {
        Piece *p = &piece[n];
        guint id;
        if (lines[i][0] == '#' || !lines[i][0])
            continue;
        LAB_CHECK(sscanf(lines[i], "%u %d %d %" G_GSIZE_FORMAT " %" G_GSIZE_FORMAT, &id, &p->first, &p->last,
                         &p->place, &p->bytes) == 5,
                  "line '%s'", lines[i]);
        LAB_CHECK(p->first <= p->last && p->place % 64 == 0 &&
                      p->place + p->bytes <= net_plan_info(plan)->arena,
                  "%s: '%s' does not fit the arena", what, lines[i]);
        n++;
    }
    for (guint i = 0; i < n; i++)
        for (guint j = 0; j < i; j++) {
            const Piece *p = &piece[i], *q = &piece[j];
            gboolean time = p->first <= q->last && q->first <= p->last;
            gboolean space = p->place < q->place + q->bytes && q->place < p->place + p->bytes;
            LAB_CHECK(!time || !space, "%s: pieces %u and %u share memory", what, i, j);
        }
}

static void test_random_pieces(void)
{
    NetPiece piece[300];
    for (guint t = 0; t < 20; t++) {
        guint n = 1 + next(300);
        for (guint i = 0; i < n; i++) {
            gint first = (gint)next(200);
            piece[i] = (NetPiece){1 + next(1 << (4 + next(16))), first, first + (gint)next(1 + next(60)), 0};
        }
        gsize bound = net_place_bound(piece, n), arena = net_place(piece, n);
        LAB_CHECK(arena >= bound, "an arena below its bound");
        for (guint i = 0; i < n; i++) {
            LAB_CHECK(piece[i].place + piece[i].bytes <= arena, "a piece beyond the arena");
            for (guint j = 0; j < i; j++)
                LAB_CHECK(piece[i].first > piece[j].last || piece[j].first > piece[i].last ||
                              piece[i].place >= piece[j].place + piece[j].bytes ||
                              piece[j].place >= piece[i].place + piece[i].bytes,
                          "pieces share memory");
        }
    }
    LAB_CHECK(net_place(piece, 0) == 0, "nothing takes no room");
}

static void test_random_nets(void)
{
    for (guint t = 0; t < 12; t++) {
        random_state = 77 * t + 5;
        Lab lab = lab_new(NET_F32);
        LabRun run = lab_train(&lab, body_random, 2, 3, 5, 6);
        check_dump(run.plan, "random net");
        lab_end(&run);
        lab_free(&lab);
    }
}

static void check_unet(LabBody body, NetType type, gint64 n, gint64 side)
{
    Lab lab = lab_new(type);
    LabRun run = lab_train(&lab, body, n, side, side + 2, 4);
    run.rows = rows;
    const NetPlanInfo *info = net_plan_info(run.plan);
    check_dump(run.plan, "unet");
    LAB_CHECK((double)info->arena <= 1.02 * (double)info->bound,
              "arena %" G_GSIZE_FORMAT " is more than 2 %% above its bound %" G_GSIZE_FORMAT, info->arena,
              info->bound);
    LAB_CHECK(info->saved > 0 && info->saved < info->bound, "saved %" G_GSIZE_FORMAT, info->saved);
    /* H-03 */
    LAB_CHECK(info->gradients_of_weights == 0, "gradient of a frozen weight");
    g_autofree char *ops = net_plan_ops(run.plan);
    LAB_CHECK(strstr(ops, "layer_norm_again") && !strstr(ops, "\n    0 b"), "operations:\n%s", ops);
    guint64 before = net_weights_hash(lab.weights);
    float loss = lab_step(&run);
    g_autofree float *gradient = g_memdup2(lab.adapters->gradient, lab.adapters->n * sizeof(float));
    /* another plan leaves its own numbers in the arena */
    LabRun other = lab_train(&lab, body, 1, side, side, 4);
    other.rows = rows;
    net_arena_free(other.arena);
    other.arena = run.arena;
    lab_step(&other);
    other.arena = NULL;
    float again = lab_step(&run);
    LAB_CHECK(loss == again, "loss %.9g, then %.9g", (double)loss, (double)again);
    LAB_CHECK(!memcmp(gradient, lab.adapters->gradient, lab.adapters->n * sizeof(float)),
              "a second run gives another gradient");
    LAB_CHECK(net_weights_hash(lab.weights) == before, "the frozen weights changed");
    /* nothing kept beside the weights: the same numbers */
    lab.packing = NET_PACK_NEVER;
    LabRun bare = lab_train(&lab, body, n, side, side + 2, 4);
    bare.rows = rows;
    LAB_CHECK(info->packed > 0 && net_plan_info(bare.plan)->packed == 0, "packed weights");
    LAB_CHECK(lab_step(&bare) == loss, "packing at each use changes the loss");
    LAB_CHECK(!memcmp(gradient, lab.adapters->gradient, lab.adapters->n * sizeof(float)),
              "packing at each use changes the gradient");
    lab_end(&bare);
    /* gradients are added, not written */
    NetBinding inputs[] = {{"x", run.x},          {"target", run.target}, {"weight", run.weight},
                           {"scale", &run.scale}, {"row", rows},          {NULL, NULL}};
    NetRunArgs args = {.inputs = inputs};
    LAB_CHECK(net_run(run.plan, run.arena, &args, NULL), "run without outputs");
    double off = 0, size = 0;
    for (gsize i = 0; i < lab.adapters->n; i++) {
        off += pow((double)lab.adapters->gradient[i] - 2 * (double)gradient[i], 2);
        size += pow(gradient[i], 2);
    }
    LAB_CHECK(size > 0 && off < 1e-12 * size, "a second run does not double the gradient");
    printf("%s batch %d: arena %.3f MB, %.2f %% above the bound, %u operations, %u values\n",
           net_type_name(type), (int)n, 1e-6 * (double)info->arena,
           100.0 * ((double)info->arena / (double)info->bound - 1), info->ops, info->values);
    lab_end(&other);
    lab_end(&run);
    lab_free(&lab);
}

static int dump(const char *path)
{
    Lab lab = lab_new(NET_F32);
    LabRun run = lab_train(&lab, body_attention, 2, 16, 16, 4);
    GError *error = NULL;
    LAB_CHECK(net_plan_dump(run.plan, path, &error), "%s", error->message);
    lab_end(&run);
    lab_free(&lab);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && g_str_equal(argv[1], "--dump"))
        return dump(argv[2]);
    random_state = 1;
    test_random_pieces();
    test_random_nets();
    check_unet(body_attention, NET_F32, 1, 8);
    check_unet(body_attention, NET_F32, 3, 10);
    check_unet(body_all, NET_F32, 2, 8);
    if (net_best_compute() == NET_BF16) {
        check_unet(body_attention, NET_BF16, 2, 10);
        check_unet(body_all, NET_BF16, 2, 8);
    }
    return 0;
}
