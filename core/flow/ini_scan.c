/* One graph file: bytes to headers and assignments, each with its line.
 *
 * The parser is the distribution's inih, whose defaults are traps for files that people edit: it cuts
 * lines at 200 bytes and section names at 50, ends values at " ;", splits keys at ':', takes indented
 * lines for continuations, merges sections that are opened twice, and ignores text after ']'. Its
 * options are globals of a shared library that others in the process may use, so instead of setting
 * them we feed it, through ini_parse_stream(), lines on which none of that can happen:
 *
 *      [decode]                     the header, checked
 *      @ = 1                        made up, so that empty and repeated sections are seen
 *      in.batch = 7                 key checked; the value stays here, 7 is its number in a table
 *
 * One line is handed out a call, so the line that the handler is called for is the reader's. What the
 * grammar forbids is refused in the reader and never reaches the parser. */
#include "core/flow/ini_private.h"
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_LIMIT = 16 << 20, LINE_LIMIT = 65536, NAME_LIMIT = 31 };

typedef struct {
    FlowIniFile *file;
    FlowMessages *messages;
    const char *next, *end;
    int line;
    char *section;     /* current, NULL before the first */
    gboolean skipping; /* inside a section whose header was refused */
    gboolean opened;   /* the made-up line is due */
    GPtrArray *values;
} Scan;

/* -- the file ---------------------------------------------------------------------- */

static gboolean load_failed(const char *why, GError **error)
{
    g_set_error_literal(error, G_FILE_ERROR, G_FILE_ERROR_FAILED, why);
    return FALSE;
}

gboolean flow__ini_load(const char *path, char **text, gsize *len, GError **error)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return load_failed(g_strerror(errno), error);
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        close(fd);
        return load_failed("it is a folder", error);
    }
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    guint8 block[65536];
    gssize n;
    while ((n = read(fd, block, sizeof block)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 || bytes->len + n > FILE_LIMIT)
            break;
        g_byte_array_append(bytes, block, (guint)n);
    }
    int failed = errno;
    close(fd);
    if (n < 0)
        return load_failed(g_strerror(failed), error);
    if (n > 0)
        return load_failed("it is larger than 16 MiB, which no graph file is", error);
    *len = bytes->len;
    g_byte_array_append(bytes, (const guint8 *)"", 1);
    *text = (char *)g_byte_array_free(g_steal_pointer(&bytes), FALSE);
    return TRUE;
}

static void line_free(gpointer p)
{
    FlowIniLine *line = p;
    g_free(line->section);
    g_free(line->key);
    g_free(line->value);
    g_free(line);
}

void flow__ini_file_free(FlowIniFile *file)
{
    if (!file)
        return;
    g_ptr_array_unref(file->lines);
    g_free(file->base);
    g_free(file);
}

/* -- the encoding -------------------------------------------------------------------- */

static FlowWhere at(const Scan *s)
{
    return (FlowWhere){s->file->shown, s->line};
}

/* Faults that make the whole text something else than lines of UTF-8. */
static gboolean encoding_valid(Scan *s)
{
    const char *text = s->next;
    gsize len = (gsize)(s->end - text);
    const char *bad = NULL, *why = NULL;
    if (len >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0)) {
        bad = text;
        why = "the file is UTF-16; save it as UTF-8";
    } else if ((bad = memchr(text, 0, len))) {
        why = "there is a NUL byte: not a text file, or UTF-16; save it as UTF-8";
    } else if (!g_utf8_validate_len(text, len, &bad)) {
        why = "there are bytes that are not UTF-8; save the file as UTF-8";
    } else if (len > 0 && !memchr(text, '\n', len) && (bad = memchr(text, '\r', len)) && bad + 1 < s->end) {
        bad = text;
        why = "lines end with CR alone; save the file with LF (Unix) line ends";
    } else {
        return TRUE;
    }
    s->line = 1;
    for (const char *p = text; p < bad; p++)
        s->line += *p == '\n';
    flow_error(s->messages, at(s), "%s", why);
    return FALSE;
}

/* -- names --------------------------------------------------------------------------- */

gboolean flow__ini_good_name(const char *name, gsize len)
{
    if (len == 0 || len > NAME_LIMIT || !g_ascii_islower(name[0]))
        return FALSE;
    for (gsize i = 1; i < len; i++)
        if (!g_ascii_islower(name[i]) && !g_ascii_isdigit(name[i]) && name[i] != '_')
            return FALSE;
    return TRUE;
}

static const char *name_hint(const char *name)
{
    if (strlen(name) > NAME_LIMIT)
        return "it is too long";
    if (strchr(name, ':'))
        return "the separator of ports is '.', as in in.image";
    for (const char *p = name; *p; p++)
        if (g_ascii_isupper(*p))
            return "write it in lower case";
    return strchr(name, '-') ? "write '_' for '-'" : NULL;
}

static void bad_name(Scan *s, const char *what, const char *name, const char *form)
{
    const char *hint = name_hint(name);
    flow_error(s->messages, at(s), "%s '%.80s' is not a name (%s, at most 31 characters)%s%s", what, name,
               form, hint ? ": " : "", hint ? hint : "");
}

static gboolean good_key(const char *key)
{
    const char *dot = strchr(key, '.');
    if (!dot)
        return flow__ini_good_name(key, strlen(key));
    return flow__ini_good_name(key, (gsize)(dot - key)) && flow__ini_good_name(dot + 1, strlen(dot + 1));
}

/* -- lines --------------------------------------------------------------------------- */

static gboolean is_comment(const char *text)
{
    return *text == ';' || *text == '#';
}

static gboolean open_section(Scan *s, char *line)
{
    char *end = strchr(line, ']');
    s->skipping = TRUE;
    if (!end) {
        flow_error(s->messages, at(s), "expected ']' at the end of '%.80s'", line);
        return FALSE;
    }
    if (end[1]) {
        const char *rest = g_strchug(end + 1);
        flow_error(s->messages, at(s), "unexpected '%.80s' after ']'%s", rest,
                   is_comment(rest) ? " (comments go on their own line)" : "");
        return FALSE;
    }
    *end = 0;
    const char *name = g_strstrip(line + 1);
    if (!flow__ini_good_name(name, strlen(name))) {
        bad_name(s, "section", name, "[a-z][a-z0-9_]*");
        return FALSE;
    }
    g_free(s->section);
    s->section = g_strdup(name);
    s->skipping = FALSE;
    s->opened = TRUE;
    return TRUE;
}

static void not_an_assignment(Scan *s, const char *line)
{
    const char *hint = strchr(line, ':') ? ": ':' does not separate key and value" : "";
    flow_error(s->messages, at(s), "expected 'key = value' or '[section]', found '%.80s'%s", line, hint);
}

/* A value in quotes is what shells want, not this file. */
static void lint_value(Scan *s, const char *key, const char *value)
{
    gsize n = strlen(value);
    if (n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n - 1] == value[0])
        flow_warning(s->messages, at(s), "the quotes around the value of '%s' are part of it; leave them out",
                     key);
}

static gboolean assignment(Scan *s, char *line, char **key)
{
    char *equals = strchr(line, '=');
    if (!equals) {
        not_an_assignment(s, line);
        return FALSE;
    }
    *equals = 0;
    *key = g_strstrip(line);
    char *value = g_strstrip(equals + 1);
    if (!**key) {
        flow_error(s->messages, at(s), "there is no key before '= %.80s'", value);
        return FALSE;
    }
    if (!good_key(*key)) {
        bad_name(s, "key", *key, "[a-z][a-z0-9_]*, also two with a '.' between");
        return FALSE;
    }
    if (!s->section && !s->skipping) {
        flow_error(s->messages, at(s), "key '%s' stands before the first section", *key);
        return FALSE;
    }
    if (s->skipping)
        return FALSE;
    lint_value(s, *key, value);
    g_ptr_array_add(s->values, g_strdup(value));
    return TRUE;
}

/* The next line without blanks around it, in new memory; NULL at the end. */
static char *next_line(Scan *s)
{
    if (s->next == s->end)
        return NULL;
    const char *begin = s->next;
    const char *stop = memchr(begin, '\n', (gsize)(s->end - begin));
    s->next = stop ? stop + 1 : s->end;
    s->line++;
    gsize len = (gsize)((stop ? stop : s->end) - begin);
    if (len > 0 && begin[len - 1] == '\r')
        len--;
    if (len > LINE_LIMIT) {
        flow_error(s->messages, at(s), "the line is %" G_GSIZE_FORMAT " bytes long, the limit is %d", len,
                   LINE_LIMIT);
        len = 0;
    }
    for (gsize i = 0; i < len; i++)
        if ((guchar)begin[i] < 32 && begin[i] != '\t') {
            flow_error(s->messages, at(s), "there is a control character (0x%02x) in the line", begin[i]);
            len = 0;
        }
    return g_strstrip(g_strndup(begin, len));
}

/* ini_reader: one harmless line a call. */
static char *reader(char *str, int num, void *stream)
{
    Scan *s = stream;
    if (s->opened) {
        s->opened = FALSE;
        g_snprintf(str, (gulong)num, "@=1\n");
        return str;
    }
    for (;;) {
        g_autofree char *line = next_line(s);
        char *key = NULL;
        if (!line)
            return NULL;
        if (!*line || is_comment(line))
            continue;
        if (*line == '[' && open_section(s, line))
            g_snprintf(str, (gulong)num, "[%s]\n", s->section);
        else if (*line != '[' && assignment(s, line, &key))
            g_snprintf(str, (gulong)num, "%s=%u\n", key, s->values->len - 1);
        else
            continue;
        return str;
    }
}

/* ini_handler */
static int handler(void *user, const char *section, const char *name, const char *value)
{
    Scan *s = user;
    FlowIniLine *line = g_new0(FlowIniLine, 1);
    line->section = g_strdup(section);
    line->line = s->line;
    if (*name != '@') {
        line->key = g_strdup(name);
        line->value = g_strdup(g_ptr_array_index(s->values, (guint)strtoul(value, NULL, 10)));
    }
    g_ptr_array_add(s->file->lines, line);
    return 1;
}

FlowIniFile *flow__ini_scan(const char *shown, const char *base, const char *text, gsize len,
                            FlowMessages *messages)
{
    FlowIniFile *file = g_new0(FlowIniFile, 1);
    file->shown = g_intern_string(shown);
    file->base = g_strdup(base);
    file->lines = g_ptr_array_new_with_free_func(line_free);
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
        len -= 3;
    }
    Scan s = {.file = file, .messages = messages, .next = text, .end = text + len};
    s.values = g_ptr_array_new_with_free_func(g_free);
    if (encoding_valid(&s)) {
        int fault = ini_parse_stream(reader, &s, handler, &s);
        if (fault)
            flow_error(messages, (FlowWhere){file->shown, 0}, "the parser gave up (%d)", fault);
    }
    g_ptr_array_unref(s.values);
    g_free(s.section);
    return file;
}
