/* Offsets in one arena for pieces with known lives.
 *
 * Every piece goes to the lowest gap among those it meets in time. The order decides the result; no order is
 * best for all graphs, so three are tried (by size, by size x length, by start), and if the best is still
 * above the bound, the piece that reaches highest goes first and the order is tried again, a few times. An
 * exact solver would gain a fraction of a percent and take minutes. */
#include "core/net/passes_private.h"
#include <string.h>

enum { PLACE_ALIGN = 64, PLACE_REPAIRS = 24 };

static gsize aligned(gsize n)
{
    return (n + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
}

gsize net_place_bound(const NetPiece *piece, guint n)
{
    gint end = 0;
    for (guint i = 0; i < n; i++)
        end = MAX(end, piece[i].last);
    g_autofree gssize *change = g_new0(gssize, (gsize)end + 2);
    for (guint i = 0; i < n; i++) {
        change[MAX(piece[i].first, 0)] += (gssize)aligned(piece[i].bytes);
        change[piece[i].last + 1] -= (gssize)aligned(piece[i].bytes);
    }
    gssize now = 0, most = 0;
    for (gint t = 0; t <= end; t++) {
        now += change[t];
        most = MAX(most, now);
    }
    return (gsize)most;
}

static double weight_of(const NetPiece *p, guint rule)
{
    switch (rule) {
    case 0:
        return (double)p->bytes;
    case 1:
        return (double)p->bytes * (p->last - p->first + 1);
    default:
        return -(double)p->first;
    }
}

typedef struct {
    const NetPiece *piece;
    guint rule;
} Order;

static gint by_rule(gconstpointer a, gconstpointer b, gpointer data)
{
    const Order *order = data;
    guint i = *(const guint *)a, j = *(const guint *)b;
    const NetPiece *p = &order->piece[i], *q = &order->piece[j];
    double wp = weight_of(p, order->rule), wq = weight_of(q, order->rule);
    if (wp != wq)
        return wp > wq ? -1 : 1;
    if (p->bytes != q->bytes)
        return p->bytes > q->bytes ? -1 : 1;
    return i < j ? -1 : i > j;
}

/* Places in this order; `sorted` holds those placed by rising offset. */
static gsize place_in_order(NetPiece *piece, const guint *order, guint n, guint *sorted)
{
    gsize arena = 0;
    for (guint k = 0; k < n; k++) {
        NetPiece *p = &piece[order[k]];
        gsize bytes = aligned(p->bytes), top = 0;
        for (guint i = 0; i < k; i++) {
            const NetPiece *q = &piece[sorted[i]];
            if (q->last < p->first || q->first > p->last)
                continue;
            if (q->place >= top + bytes)
                break;
            top = MAX(top, q->place + aligned(q->bytes));
        }
        p->place = top;
        arena = MAX(arena, top + bytes);
        guint at = k;
        while (at > 0 && piece[sorted[at - 1]].place > top)
            at--;
        memmove(sorted + at + 1, sorted + at, (k - at) * sizeof *sorted);
        sorted[at] = order[k];
    }
    return arena;
}

/* The piece that ends highest comes first in the next try. */
static void lift(const NetPiece *piece, guint *order, guint n)
{
    guint high = 0;
    for (guint k = 0; k < n; k++)
        if (piece[order[k]].place + aligned(piece[order[k]].bytes) >
            piece[order[high]].place + aligned(piece[order[high]].bytes))
            high = k;
    guint id = order[high];
    memmove(order + 1, order, high * sizeof *order);
    order[0] = id;
}

gsize net_place(NetPiece *piece, guint n)
{
    g_autofree guint *order = g_new(guint, MAX(n, 1)), *sorted = g_new(guint, MAX(n, 1));
    g_autofree gsize *best = g_new0(gsize, MAX(n, 1));
    gsize bound = net_place_bound(piece, n), arena = G_MAXSIZE;
    for (guint rule = 0; rule < 3 && arena > bound; rule++) {
        for (guint i = 0; i < n; i++)
            order[i] = i;
        g_qsort_with_data(order, (gint)n, sizeof *order, by_rule, &(Order){piece, rule});
        for (guint t = 0; t <= PLACE_REPAIRS && arena > bound; t++) {
            gsize got = place_in_order(piece, order, n, sorted);
            if (got < arena) {
                arena = got;
                for (guint i = 0; i < n; i++)
                    best[i] = piece[i].place;
            }
            if (n)
                lift(piece, order, n);
        }
    }
    for (guint i = 0; i < n; i++)
        piece[i].place = best[i];
    return n ? arena : 0;
}
