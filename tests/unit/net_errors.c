/* What a user of the engine can get wrong, and what it says then: while building (all at once), while
 * differentiating, and at a run.
 * @label short
 */
#include "net_lab.h"
#include <stdlib.h>

static void expect(const GError *error, gint code, const char *part)
{
    LAB_CHECK(error && error->domain == NET_ERROR, "no error, expected '%s'", part);
    LAB_CHECK(error->code == code, "code %d, expected %d: %s", error->code, code, error->message);
    LAB_CHECK(strstr(error->message, part), "'%s' does not say '%s'", error->message, part);
}

/* Every mistake is noted, building goes on, and all come back together. */
static void test_build(void)
{
    Lab lab = lab_new(NET_F32);
    Net *net = net_new(NET_F32, NULL);
    NetVal *x = net_input(net, "x", NET_F32, 2, 4, 4, 6);
    NetVal *ids = net_input(net, "x", NET_I32, 2, 1, 4, 1);
    net_linear(net, x, lab_matrix(&lab, "narrow", 8, 5), lab_vector(&lab, "short", 7), NULL);
    net_conv(net, x, lab_weight(&lab, "kernel", 8, 3, 3, 4), NULL, (NetConv){1, 1, 1, 1, 1}, NULL);
    net_group_norm(net, x, NULL, lab_vector(&lab, "six", 6), lab_vector(&lab, "six", 6), 4, 1e-5f, FALSE);
    net_layer_norm(net, x, lab_vector(&lab, "six", 6), NULL, 1e-5f);
    net_attention(net, x, x, x, 4, FALSE);
    net_add(net, x, net_upsample(net, x));
    net_geglu(net, net_linear(net, x, lab_matrix(&lab, "odd", 5, 6), NULL, NULL));
    net_silu(net, ids);
    net_cast(net, ids, NET_F32);
    net_input(net, "huge", NET_F32, (gint64)1 << 30, 1 << 20, 1, 1);
    net_fail(net, "weight '%s' is missing", "mid.norm");
    NetVal *y = net_conv(net, x, lab_weight(&lab, "big", 8, 7, 7, 6), NULL, (NetConv){1, 0, 0, 0, 0}, NULL);
    LAB_CHECK(net_dim(y, 0) == 2 && net_dim(y, 3) == 8, "a placeholder has the right channels");
    static const char *const said[] = {
        "two inputs are called 'x'",
        "'narrow' is 8x5, its input has 6 channels",
        "'short' has to be f32 with 8 elements",
        "'kernel' is 8x3x3x4 (out, height, width, in), its input has 6 channels",
        "6 channels cannot form 4 groups",
        "attention: 6 channels cannot form 4 heads",
        "add: f32 2x4x4x6 and f32 2x8x8x6 do not go together",
        "geglu: 2x4x4x5 cannot be halved",
        "silu wants f32, got i32",
        "cast: i32 does not become f32",
        "1073741824x1048576x1x1 elements is not possible",
        "'mid.norm' is missing",
        "'big': an input of 2x4x4x6 is smaller than the kernel"};
    for (guint i = 0; i < G_N_ELEMENTS(said); i++) {
        g_autoptr(GError) error = NULL;
        LAB_CHECK(!net_finish_errors(net, &error), "no errors");
        expect(error, NET_ERROR_SHAPE, said[i]);
    }
    g_autoptr(GError) error = NULL;
    LAB_CHECK(!net_plan_build(net, &error), "a plan of a broken net");
    lab_free(&lab);
}

static void test_many(void)
{
    Net *net = net_new(NET_I8, NULL);
    for (guint i = 0; i < 30; i++)
        net_fail(net, "mistake %u", i);
    g_autoptr(GError) error = NULL;
    LAB_CHECK(!net_finish_errors(net, &error), "no errors");
    expect(error, NET_ERROR_SHAPE, "cannot compute in i8");
    expect(error, NET_ERROR_SHAPE, "mistake 18\nand 11 more");
    net_free(net);
}

static void test_differentiate(void)
{
    Lab lab = lab_new(NET_F32);
    net_adapters_allocate(lab.adapters);
    Net *net = net_new(NET_F32, lab.adapters);
    NetVal *x = net_input(net, "x", NET_F32, 2, 1, 1, 6), *w = net_input(net, "w", NET_F32, 2, 1, 1, 1);
    NetVal *loss = net_mse(net, net_silu(net, x), x, w, net_input(net, "s", NET_F32, 1, 1, 1, 1));
    g_autoptr(GError) error = NULL;
    LAB_CHECK(!net_differentiate(net, loss, &error), "differentiated without adapters");
    expect(error, NET_ERROR_FAILED, "no adapter lies on the way to the loss");
    g_clear_error(&error);
    LAB_CHECK(!net_differentiate(net, x, &error), "differentiated an input");
    expect(error, NET_ERROR_FAILED, "from the value that net_mse gave");
    net_free(net);
    lab_free(&lab);
}

static gboolean stop_at(gpointer data)
{
    return --*(gint *)data < 0;
}

static NetVal *body(Net *net, Lab *lab, NetVal *x)
{
    NetVal *h = net_linear(net, x, lab_matrix(lab, "m", 6, net_dim(x, 3)), NULL,
                           lab_adapter(lab, "m", net_dim(x, 3), 6, 1, 2));
    return net_name(net_silu(net, h), "middle");
}

static void run_fails(LabRun *run, const NetRunArgs *args, gint code, const char *part)
{
    g_autoptr(GError) error = NULL;
    LAB_CHECK(!net_run(run->plan, run->arena, args, &error), "ran, expected '%s'", part);
    expect(error, code, part);
}

static void test_run(void)
{
    Lab lab = lab_new(NET_F32);
    LabRun run = lab_train(&lab, body, 2, 1, 3, 4);
    float out;
    NetBinding inputs[] = {
        {"x", run.x}, {"target", run.target}, {"weight", run.weight}, {"scale", &run.scale}, {NULL, NULL}};
    NetBinding outputs[] = {{"loss", &out}, {NULL, NULL}};
    NetRunArgs args = {.inputs = inputs, .outputs = outputs};
    LAB_CHECK(net_run(run.plan, run.arena, &args, NULL), "a good run");
    inputs[1].name = "traget";
    run_fails(&run, &args, NET_ERROR_FAILED, "the net has no input 'traget'");
    inputs[1].name = NULL;
    run_fails(&run, &args, NET_ERROR_FAILED, "input 'target' (f32 2x1x3x6) is not bound");
    inputs[1].name = "target";
    outputs[0].name = "lost";
    run_fails(&run, &args, NET_ERROR_FAILED, "the net has no output 'lost'");
    outputs[0].name = "loss";
    gint left = 3;
    args.stop = stop_at;
    args.stop_data = &left;
    run_fails(&run, &args, NET_ERROR_STOPPED, "stopped");
    args.stop = NULL;
    args.check_finite = TRUE;
    float good = run.x[7];
    run.x[7] = NAN;
    run_fails(&run, &args, NET_ERROR_NOT_FINITE, "are not finite");
    run.x[7] = good;
    LAB_CHECK(net_run(run.plan, run.arena, &args, NULL), "a good run after bad ones");
    NetArena *empty = net_arena_new(), *full = run.arena;
    run.arena = empty;
    run_fails(&run, &args, NET_ERROR_FAILED, "the arena holds 0 bytes");
    run.arena = full;
    net_arena_free(empty);
    lab_end(&run);
    lab_free(&lab);
}

/* Token ids come from outside and are checked; a plan of shapes alone is not run. */
static void test_data(void)
{
    NetWeights *dry = net_weights_new_dry(), *wet = net_weights_new();
    const NetWeight *table = net_weights_add(wet, "table", NET_F32, 2, (gint64[]){10, 4});
    memset((gpointer)table->data, 0, table->nbytes);
    net_weights_add(dry, "table", NET_F32, 2, (gint64[]){10, 4});
    for (guint i = 0; i < 2; i++) {
        Net *net = net_new(NET_F32, NULL);
        NetVal *ids = net_input(net, "ids", NET_I32, 1, 1, 3, 1);
        net_output(net, "y", net_embed(net, ids, net_weights_find(i ? dry : wet, "table"), NULL));
        g_autoptr(GError) error = NULL;
        NetPlan *plan = net_plan_build(net, &error);
        LAB_CHECK(plan, "%s", error->message);
        LabRun run = {.plan = plan, .arena = net_arena_new()};
        net_arena_fit(run.arena, plan);
        gint32 id[3] = {0, 9, 10};
        NetBinding inputs[] = {{"ids", id}, {NULL, NULL}};
        NetRunArgs args = {.inputs = inputs};
        run_fails(&run, &args, NET_ERROR_FAILED,
                  i ? "weights of this plan are not loaded" : "token id 10 at position 2 is outside 0..9");
        id[2] = -1;
        run_fails(&run, &args, NET_ERROR_FAILED, i ? "not loaded" : "token id -1");
        id[2] = 5;
        LAB_CHECK(i || net_run(plan, run.arena, &args, NULL), "good ids");
        lab_end(&run);
    }
    net_weights_free(wet);
    net_weights_free(dry);
}

int main(void)
{
    test_build();
    test_many();
    test_differentiate();
    test_run();
    test_data();
    return 0;
}
