/* A step gives the same bits with one thread, two and three, and again when repeated.
 * @timeout 120
 *
 * The number of threads is fixed before the first use, so every count is a process of its own: the test calls
 * itself. */
#include "core/net/net.h"
#include "kernels/parallel.h"
#include "net_unet.h"
#include <stdlib.h>

static const gint32 rows[] = {1, 3, 0, 2};

static NetVal *body_unet(Net *net, Lab *lab, NetVal *x)
{
    return unet(net, lab, x, 32, TRUE);
}

/* More than 1024 rows, so that the library would divide the sums over them. */
static NetVal *body_long(Net *net, Lab *lab, NetVal *x)
{
    Unet u = {.net = net, .lab = lab, .groups = 4, .all = TRUE};
    NetVal *h = unet_linear(&u, x, "a", 64, TRUE);
    h = unet_conv(&u, unet_group_norm(&u, h, NULL, "norm", TRUE), "b", 32, 1, TRUE);
    return unet_linear(&u, unet_layer_norm(&u, h, "norm2"), "c", 64, TRUE);
}

static void print_step(NetType type, LabBody body, gint64 n, gint64 h, gint64 w, const gint32 *row)
{
    Lab lab = lab_new(type);
    LabRun run = lab_train(&lab, body, n, h, w, 4);
    run.rows = row;
    float loss = lab_step(&run);
    guint32 hash = 0;
    for (gsize i = 0; i < lab.adapters->n; i++) {
        guint32 bits;
        memcpy(&bits, &lab.adapters->gradient[i], sizeof bits);
        hash = lab_mix(hash + bits);
    }
    printf("%.9g %08x ", (double)loss, hash);
    lab_end(&run);
    lab_free(&lab);
}

/* Prints losses and a hash of all gradient bits. */
static int step(guint threads, NetType type)
{
    net_set_threads(threads);
    print_step(type, body_unet, 2, 8, 8, rows);
    print_step(type, body_long, 1, 40, 55, NULL);
    return 0;
}

static char *run(const char *self, const char *threads, const char *type)
{
    const char *argv[] = {self, threads, type, NULL};
    char *out = NULL;
    int status = 0;
    GError *error = NULL;
    LAB_CHECK(g_spawn_sync(NULL, (char **)argv, NULL, 0, NULL, NULL, &out, NULL, &status, &error), "%s",
              error->message);
    LAB_CHECK(status == 0, "%s threads: status %d", threads, status);
    return out;
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return step((guint)atoi(argv[1]), g_str_equal(argv[2], "bf16") ? NET_BF16 : NET_F32);
    guint types = net_best_compute() == NET_BF16 ? 2 : 1;
    for (guint t = 0; t < types; t++) {
        const char *type = t ? "bf16" : "f32";
        g_autofree char *two = run(argv[0], "2", type), *again = run(argv[0], "2", type);
        printf("%s: %s\n", type, two);
        LAB_CHECK(g_str_equal(two, again), "%s: two runs differ: %s and %s", type, two, again);
        for (const char *const *n = (const char *const[]){"1", "3", NULL}; *n; n++) {
            g_autofree char *other = run(argv[0], *n, type);
            LAB_CHECK(g_str_equal(other, two), "%s: %s threads give %s, two give %s", type, *n, other, two);
        }
    }
    return 0;
}
