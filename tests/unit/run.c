/* A graph runs: order for every number of workers, ends from both sides, marks, tees, joins, errors.
 *
 * @label short
 * @timeout 60
 */
#include "tests/graph_lab.h"

static void test_linear(void)
{
    lab_run("[a]\nstage=t_count\nitems=5\n[b]\nstage=t_work\nin=a\n[c]\nstage=t_sink\nin=b\n", NULL, NULL);
    g_assert_cmpstr(lab_seen->str, ==, "0=1 1=4 2=7 3=10 4=13 <epoch> <end>");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    lab_add_stages();
    g_test_add_func("/run/linear", test_linear);
    return g_test_run();
}
