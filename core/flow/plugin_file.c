/* Is a plugin file whole?
 *
 * dlopen() maps the segments that a file's header announces without looking at the file's size, and the
 * process dies of SIGBUS when it touches what is not there (an interrupted copy, a full disk). So the
 * header is read first. Anything else that is wrong with a file is for dlopen() to say. */
#include "core/flow/graph_private.h"
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static gboolean fault(GError **error, const char *text)
{
    g_set_error_literal(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, text);
    return FALSE;
}

static gboolean segments_whole(FILE *file, const ElfW(Ehdr) * header, guint64 size, GError **error)
{
    for (guint i = 0; i < header->e_phnum; i++) {
        ElfW(Phdr) segment;
        if (fseeko(file, (off_t)(header->e_phoff + i * sizeof segment), SEEK_SET) ||
            fread(&segment, sizeof segment, 1, file) != 1)
            return fault(error, "the file is cut short");
        if (segment.p_type == PT_LOAD &&
            (segment.p_offset > size || segment.p_filesz > size - segment.p_offset))
            return fault(error, "the file is cut short");
    }
    return TRUE;
}

gboolean flow__plugin_file_whole(const char *path, GError **error)
{
    ElfW(Ehdr) header;
    FILE *file = fopen(path, "rbe");
    if (!file)
        return fault(error, g_strerror(errno));
    gboolean ok = TRUE;
    guint64 size = fseeko(file, 0, SEEK_END) ? 0 : (guint64)ftello(file);
    rewind(file);
    if (fread(&header, sizeof header, 1, file) != 1 || memcmp(header.e_ident, ELFMAG, SELFMAG))
        ok = fault(error, "it is not a shared object");
    else if (header.e_ident[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) &&
             header.e_phentsize == sizeof(ElfW(Phdr)))
        ok = segments_whole(file, &header, size, error);
    fclose(file);
    return ok;
}
