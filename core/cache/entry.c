/* The header says what the bytes are, so a reader needs to believe nothing: length, type and shape
 * must agree with each other, and the checksum covers header and data. Numbers are in the machine's
 * own order; a file from a machine of the other order has another magic number and is a miss.
 *
 * A checksum of 64 bits runs at memory speed; an entry is read once per run and then lives in RAM. */
#include "core/cache/entry.h"
#include <stddef.h>
#include <string.h>
#include <xxhash.h>

enum { ENTRY_VERSION = 1, ENTRY_MAGIC = 0x4543464c /* "LFCE" */ };

typedef struct {
    guint32 magic, version;
    guint32 type, ndim;
    gint64 shape[FLOW_MAX_DIMS];
    guint64 nbytes;   /* of the data */
    guint64 checksum; /* of the header before this field and the data */
} EntryHeader;

static guint64 entry_checksum(const EntryHeader *header, const void *data)
{
    return XXH3_64bits_withSeed(data, header->nbytes, XXH3_64bits(header, offsetof(EntryHeader, checksum)));
}

gsize cache_entry_size(const FlowValue *value)
{
    return sizeof(EntryHeader) + value->nbytes;
}

void cache_entry_pack(const FlowValue *value, void *out)
{
    EntryHeader header = {
        .magic = ENTRY_MAGIC,
        .version = ENTRY_VERSION,
        .type = value->type,
        .ndim = value->ndim,
        .nbytes = value->nbytes,
    };
    memcpy(header.shape, value->shape, value->ndim * sizeof *header.shape);
    header.checksum = entry_checksum(&header, value->data);
    memcpy(out, &header, sizeof header);
    memcpy((char *)out + sizeof header, value->data, value->nbytes);
}

/* Do type, shape and length agree? Guards the multiplication, too. */
static gboolean entry_shape_fits(const EntryHeader *header)
{
    if (header->type >= NET_TYPE_COUNT || header->ndim > FLOW_MAX_DIMS)
        return FALSE;
    guint64 n = 1;
    for (guint i = 0; i < header->ndim; i++) {
        if (header->shape[i] < 0 || __builtin_mul_overflow(n, (guint64)header->shape[i], &n))
            return FALSE;
    }
    return n <= G_MAXINT64 / 8 && net_type_bytes((NetType)header->type, n) == header->nbytes;
}

static const char *entry_read_header(const void *bytes, gsize nbytes, EntryHeader *header)
{
    if (nbytes < sizeof *header)
        return "it is shorter than a header";
    memcpy(header, bytes, sizeof *header);
    if (header->magic != ENTRY_MAGIC)
        return "it does not start with an entry's magic number";
    if (header->version != ENTRY_VERSION)
        return "it was written by another version";
    if (header->nbytes != nbytes - sizeof *header)
        return "its length is not what its header says";
    if (!entry_shape_fits(header))
        return "its shape does not fit its length";
    return NULL;
}

const char *cache_entry_fault(const void *bytes, gsize nbytes)
{
    EntryHeader header;
    const char *fault = entry_read_header(bytes, nbytes, &header);
    if (!fault && entry_checksum(&header, (const char *)bytes + sizeof header) != header.checksum)
        fault = "its checksum is wrong";
    return fault;
}

FlowValue *cache_entry_unpack(const void *bytes, gsize nbytes, const char **reason)
{
    EntryHeader header;
    *reason = entry_read_header(bytes, nbytes, &header);
    if (*reason)
        return NULL;
    FlowValue *value = flow_value_new((NetType)header.type, header.ndim, header.shape);
    memcpy(value->data, (const char *)bytes + sizeof header, header.nbytes);
    /* the copy is checked, not the source: another process may write to the file meanwhile */
    if (entry_checksum(&header, value->data) != header.checksum) {
        *reason = "its checksum is wrong";
        flow_value_unref(value);
        return NULL;
    }
    return value;
}
