/* Noise schedule against torch's own (alpha_bar: 2.15, all bits), weights of diffusers (f32), and the
 * zero-terminal formula.
 *
 * @label unit short
 */
#include "core/model/model.h"
#include <math.h>

static const struct {
    gint t;
    double alpha_bar, snr, eps5, v5;
} golden[] = {
    {0, 0.9991499781608582, 1175.4403076171875, 0.004253725055605173, 0.0042501091957092285},
    {1, 0.9982960224151611, 585.8621826171875, 0.008534430526196957, 0.008519887924194336},
    {10, 0.9904313087463379, 103.50749969482422, 0.048305679112672806, 0.04784345626831055},
    {100, 0.894223153591156, 8.453865051269531, 0.5914454460144043, 0.52888423204422},
    {250, 0.67379230260849, 2.0655314922332764, 1.0, 0.67379230260849},
    {500, 0.27633246779441833, 0.38185009360313416, 1.0, 0.2763324975967407},
    {750, 0.05616980418562889, 0.05951262265443802, 1.0, 0.05616981163620949},
    {900, 0.01415113266557455, 0.014354264363646507, 1.0, 0.014151135459542274},
    {998, 0.004716695751994848, 0.004739048890769482, 1.0, 0.0047166962176561356},
    {999, 0.00466009508818388, 0.004681914113461971, 1.0, 0.0046600960195064545},
};

static void test_alpha_bar(void)
{
    double a[1000];
    schedule_alpha_bar(0.00085, 0.012, a);
    for (guint i = 0; i < G_N_ELEMENTS(golden); i++)
        g_assert_true(a[golden[i].t] == golden[i].alpha_bar); /* the same f32 operations: equal bits */
    for (int t = 1; t < 1000; t++)
        g_assert_cmpfloat(a[t], <, a[t - 1]);
}

/* The reference divides in f32, so it differs by f32 rounding: 1 - alpha_bar loses up to 10 bits. */
static void test_weights(void)
{
    double a[1000];
    schedule_alpha_bar(0.00085, 0.012, a);
    for (guint i = 0; i < G_N_ELEMENTS(golden); i++) {
        gint t = golden[i].t;
        g_assert_cmpfloat_with_epsilon(schedule_snr(a, t) / golden[i].snr, 1, 1e-4);
        g_assert_cmpfloat_with_epsilon(schedule_min_snr(a, t, 5, FALSE) / golden[i].eps5, 1, 1e-4);
        g_assert_cmpfloat_with_epsilon(schedule_min_snr(a, t, 5, TRUE) / golden[i].v5, 1, 1e-4);
        g_assert_true(schedule_min_snr(a, t, 0, FALSE) == 1);
        g_assert_true(schedule_min_snr(a, t, -1, TRUE) == 1);
    }
}

static void test_zero_terminal(void)
{
    double a[1000], b[1000];
    schedule_alpha_bar(0.00085, 0.012, a);
    schedule_alpha_bar(0.00085, 0.012, b);
    schedule_zero_terminal(b);
    g_assert_cmpfloat_with_epsilon(b[0], a[0], 1e-15); /* the first stays */
    g_assert_true(b[999] == 0);
    const double s0 = sqrt(a[0]), last = sqrt(a[999]);
    for (int t = 1; t < 1000; t++) {
        g_assert_cmpfloat(b[t], <, b[t - 1]);
        g_assert_cmpfloat_with_epsilon(sqrt(b[t]) / s0, (sqrt(a[t]) - last) / (s0 - last), 1e-14);
    }
    g_assert_true(schedule_snr(b, 999) == 0);
    g_assert_true(schedule_min_snr(b, 999, 5, FALSE) == 1); /* and not 0 / 0 */
    g_assert_true(schedule_min_snr(b, 999, 5, TRUE) == 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/alpha-bar", test_alpha_bar);
    g_test_add_func("/schedule/weights", test_weights);
    g_test_add_func("/schedule/zero-terminal", test_zero_terminal);
    return g_test_run();
}
