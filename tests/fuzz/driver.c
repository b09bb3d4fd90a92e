/* Stands in for libFuzzer: runs every file of the corpus, then small mutations of it that are the same on
 * every machine. So each fuzz target is also an ordinary test, which the sanitizer builds run.
 *
 * usage: fuzz_NAME FOLDER */
#include <glib.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MUTATIONS = 300, GROWTH = 64 };

static guint64 state;

/* xorshift64*: one stream for a file, from its name. */
static guint64 draw(guint64 n)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (state * 2685821657736338717u >> 33) % n;
}

/* One change: a bit, a byte, a cut, a repeat of a piece somewhere else. */
static gsize mutate(guint8 *data, gsize len, gsize room)
{
    gsize at = len ? draw(len) : 0, n = 1 + draw(16);
    switch (len ? draw(5) : 4) {
    case 0:
        data[at] ^= (guint8)(1u << draw(8));
        return len;
    case 1:
        data[at] = (guint8)draw(256);
        return len;
    case 2:
        n = MIN(n, len - at);
        memmove(data + at, data + at + n, len - at - n);
        return len - n;
    case 3:
        return draw(8) == 0 ? at : len;
    default:
        n = MIN(n, room - len);
        memmove(data + at + n, data + at, len - at);
        if (len >= n && draw(2))
            memmove(data + at, data + draw(len - n + 1), n);
        else
            for (gsize i = 0; i < n; i++)
                data[at + i] = "\n[]=;#${}:-.,0Z \xff"[draw(17)];
        return len + n;
    }
}

/* A copy of exact size, so that a read past the end is seen. */
static void run(const guint8 *data, gsize len)
{
    guint8 *exact = malloc(len ? len : 1);
    memcpy(exact, data, len);
    LLVMFuzzerTestOneInput(exact, len);
    free(exact);
}

static void run_file(const char *path)
{
    g_autofree char *text = NULL;
    gsize len;
    if (!g_file_get_contents(path, &text, &len, NULL))
        g_error("%s cannot be read", path);
    run((const guint8 *)text, len);
    gsize room = len + GROWTH;
    g_autofree guint8 *changed = g_malloc(room);
    g_autofree char *name = g_path_get_basename(path);
    state = g_str_hash(name) | 1;
    for (int i = 0; i < MUTATIONS; i++) {
        gsize n = len;
        memcpy(changed, text, len);
        for (guint64 k = 1 + draw(8); k > 0; k--)
            n = mutate(changed, n, room);
        run(changed, n);
    }
}

int main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GDir) folder = argc == 2 ? g_dir_open(argv[1], 0, &error) : NULL;
    int files = 0;
    if (!folder) {
        fprintf(stderr, "usage: %s FOLDER%s%s\n", argv[0], error ? ": " : "", error ? error->message : "");
        return 2;
    }
    for (const char *name; (name = g_dir_read_name(folder)); files++) {
        g_autofree char *path = g_build_filename(argv[1], name, NULL);
        run_file(path);
    }
    printf("%d files, %d mutations each\n", files, MUTATIONS);
    return files == 0;
}
