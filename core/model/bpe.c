/* Byte-level byte-pair encoding.
 *
 * A piece starts as one symbol a byte, the last one marked as the end of a word; then the adjacent pair with
 * the best rank is merged, the leftmost first, until no pair has a rank. A heap holds the pairs that could be
 * merged, so a piece of n bytes takes n log n steps; scanning for the best pair after every merge would take
 * n^2, and a caption may be one piece of a megabyte. Entries of the heap that a merge has made stale are
 * recognised when they come up, and skipped. */
#include "core/model/bpe.h"
#include "core/model/json_file.h"
#include "core/model/safetensors.h"
#include <string.h>

enum { BYTES = 256 };

typedef struct {
    guint64 pair; /* left << 32 | right, NO_PAIR = free */
    guint32 rank;
    gint32 id;
} Merge;

struct Bpe {
    GHashTable *vocabulary; /* token -> id + 1 */
    gint32 size;
    gint32 inner[BYTES], last[BYTES]; /* id of a byte, and of a byte that ends a word */
    Merge *merges;                    /* open addressing, mask + 1 slots */
    gsize mask;
};

#define NO_PAIR G_MAXUINT64

/* -- the table of merges --------------------------------------------------------------- */

static guint64 pair_of(gint32 left, gint32 right)
{
    return (guint64)(guint32)left << 32 | (guint32)right;
}

static Merge *slot_of(const Bpe *bpe, guint64 pair)
{
    gsize i = (gsize)((pair * 0x9E3779B97F4A7C15ull) >> 32) & bpe->mask;
    while (bpe->merges[i].pair != pair && bpe->merges[i].pair != NO_PAIR)
        i = (i + 1) & bpe->mask;
    return &bpe->merges[i];
}

static const Merge *merge_of(const Bpe *bpe, gint32 left, gint32 right)
{
    const Merge *merge = slot_of(bpe, pair_of(left, right));
    return merge->pair == NO_PAIR ? NULL : merge;
}

/* -- opening ------------------------------------------------------------------------------ */

static gboolean read_vocabulary(Bpe *bpe, const char *path, GError **error)
{
    const char *token;
    json_t *id, *root = json_file_read(path, error);
    if (!root)
        return FALSE;
    gboolean ok = TRUE;
    json_object_foreach(root, token, id)
    {
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        ok = value >= 0 && value < G_MAXINT32 - 1;
        if (!ok) {
            g_set_error(error, MODEL_ERROR, MODEL_ERROR_FORMAT, "%s: token '%.100s' has no id of 0 or more",
                        path, token);
            break;
        }
        bpe->size = MAX(bpe->size, (gint32)value + 1);
        g_hash_table_insert(bpe->vocabulary, g_strdup(token), GINT_TO_POINTER((gint32)value + 1));
    }
    json_decref(root);
    return ok;
}

/* Printable bytes stand for themselves, the others for characters from U+0100 on. */
static gboolean find_bytes(Bpe *bpe, const char *path, GError **error)
{
    gunichar other = 0x100;
    for (guint b = 0; b < BYTES; b++) {
        gboolean printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        char token[16];
        token[g_unichar_to_utf8(printable ? b : other++, token)] = 0;
        bpe->inner[b] = bpe_id(bpe, token);
        strcat(token, "</w>");
        bpe->last[b] = bpe_id(bpe, token);
        if (bpe->inner[b] < 0 || bpe->last[b] < 0) {
            g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING,
                        "%s: no token for byte 0x%02x, or none that ends a word: not a CLIP vocabulary", path,
                        b);
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean add_merge(Bpe *bpe, char *line, guint32 rank, GError **error)
{
    char *blank = strchr(line, ' ');
    gint32 left, right, id;
    if (!blank || blank == line || !blank[1] || strchr(blank + 1, ' ')) {
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_FORMAT, "expected two tokens, found '%.100s'", line);
        return FALSE;
    }
    *blank = 0;
    g_autofree char *joined = g_strconcat(line, blank + 1, NULL);
    left = bpe_id(bpe, line);
    right = bpe_id(bpe, blank + 1);
    id = bpe_id(bpe, joined);
    if (left < 0 || right < 0 || id < 0) {
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING, "'%.100s' is not in the vocabulary",
                    left < 0    ? line
                    : right < 0 ? blank + 1
                                : joined);
        return FALSE;
    }
    Merge *slot = slot_of(bpe, pair_of(left, right));
    *slot = (Merge){pair_of(left, right), rank, id};
    return TRUE;
}

static gboolean read_merges(Bpe *bpe, const char *path, GError **error)
{
    g_autofree char *text = NULL;
    gsize length;
    if (!g_file_get_contents(path, &text, &length, error))
        return FALSE;
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    gsize slots = 16;
    while (slots < 2 * (gsize)g_strv_length(lines))
        slots *= 2;
    bpe->mask = slots - 1;
    bpe->merges = g_new(Merge, slots);
    for (gsize i = 0; i < slots; i++)
        bpe->merges[i].pair = NO_PAIR;
    guint32 rank = 0;
    for (guint i = 0; lines[i]; i++) {
        g_strchomp(lines[i]);
        if (!*lines[i] || (!i && g_str_has_prefix(lines[i], "#version")))
            continue;
        if (!add_merge(bpe, lines[i], rank++, error)) {
            g_prefix_error(error, "%s:%u: ", path, i + 1);
            return FALSE;
        }
    }
    return TRUE;
}

Bpe *bpe_open(const char *vocab_path, const char *merges_path, GError **error)
{
    Bpe *bpe = g_new0(Bpe, 1);
    bpe->vocabulary = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    if (read_vocabulary(bpe, vocab_path, error) && find_bytes(bpe, vocab_path, error) &&
        read_merges(bpe, merges_path, error))
        return bpe;
    bpe_free(bpe);
    return NULL;
}

void bpe_free(Bpe *bpe)
{
    if (!bpe)
        return;
    g_hash_table_unref(bpe->vocabulary);
    g_free(bpe->merges);
    g_free(bpe);
}

gint32 bpe_size(const Bpe *bpe)
{
    return bpe->size;
}

gint32 bpe_id(const Bpe *bpe, const char *token)
{
    return GPOINTER_TO_INT(g_hash_table_lookup(bpe->vocabulary, token)) - 1;
}

/* -- encoding --------------------------------------------------------------------------------- */

void bpe_put(BpeOut *out, gint32 id)
{
    if (out->count < out->room)
        out->ids[out->count] = id;
    out->count++;
}

typedef struct {
    gint32 id;             /* -1 once merged into its left neighbour */
    gint32 previous, next; /* -1 at the ends */
} Symbol;

typedef struct {
    guint32 rank;
    gint32 at, id; /* left symbol; token that the merge makes */
} Candidate;

typedef struct {
    Candidate *v;
    gsize n;
} Heap;

static gboolean before(Candidate a, Candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void push(Heap *heap, Candidate c)
{
    gsize i = heap->n++;
    for (; i && before(c, heap->v[(i - 1) / 2]); i = (i - 1) / 2)
        heap->v[i] = heap->v[(i - 1) / 2];
    heap->v[i] = c;
}

static Candidate pop(Heap *heap)
{
    Candidate top = heap->v[0], c = heap->v[--heap->n];
    gsize i = 0;
    for (gsize child; (child = 2 * i + 1) < heap->n; i = child) {
        if (child + 1 < heap->n && before(heap->v[child + 1], heap->v[child]))
            child++;
        if (!before(heap->v[child], c))
            break;
        heap->v[i] = heap->v[child];
    }
    heap->v[i] = c;
    return top;
}

static void consider(const Bpe *bpe, const Symbol *s, gint32 left, Heap *heap)
{
    if (left < 0 || s[left].next < 0)
        return;
    const Merge *merge = merge_of(bpe, s[left].id, s[s[left].next].id);
    if (merge)
        push(heap, (Candidate){merge->rank, left, merge->id});
}

static void merge_all(const Bpe *bpe, Symbol *s, Heap *heap)
{
    while (heap->n) {
        Candidate c = pop(heap);
        gint32 right = s[c.at].id < 0 ? -1 : s[c.at].next;
        const Merge *merge = right < 0 ? NULL : merge_of(bpe, s[c.at].id, s[right].id);
        if (!merge || merge->id != c.id)
            continue; /* stale: one of the two has been merged with another */
        s[c.at].id = c.id;
        s[c.at].next = s[right].next;
        s[right].id = -1;
        if (s[c.at].next >= 0)
            s[s[c.at].next].previous = c.at;
        consider(bpe, s, s[c.at].previous, heap);
        consider(bpe, s, c.at, heap);
    }
}

void bpe_piece(const Bpe *bpe, const char *piece, gsize n, BpeOut *out)
{
    Symbol few[32];
    Candidate room[96];
    const gboolean small = n <= G_N_ELEMENTS(few);
    /* A merge removes a symbol and adds two candidates at most. */
    Symbol *s = small ? few : g_new(Symbol, n);
    Heap heap = {small ? room : g_new(Candidate, 3 * n), 0};
    for (gsize i = 0; i < n; i++) {
        guint8 byte = (guint8)piece[i];
        s[i] = (Symbol){i + 1 < n ? bpe->inner[byte] : bpe->last[byte], (gint32)i - 1,
                        i + 1 < n ? (gint32)i + 1 : -1};
    }
    for (gsize i = 0; i < n; i++)
        consider(bpe, s, (gint32)i, &heap);
    merge_all(bpe, s, &heap);
    for (gint32 i = 0; i >= 0; i = s[i].next)
        bpe_put(out, s[i].id);
    if (!small) {
        g_free(s);
        g_free(heap.v);
    }
}
