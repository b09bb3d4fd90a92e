/* Cached values as bytes on disk: a versioned header with type, shape and checksum, then the data. */
#ifndef CACHE_ENTRY_H
#define CACHE_ENTRY_H
#include "core/flow/item.h"

G_BEGIN_DECLS

/* Bytes that cache_entry_pack() writes. */
gsize cache_entry_size(const FlowValue *value);
/* `out` needs no alignment. */
void cache_entry_pack(const FlowValue *value, void *out);
/* Returns a new value, or NULL with the reason (static text) when the bytes are damaged, cut short or of
 * another version. */
FlowValue *cache_entry_unpack(const void *bytes, gsize nbytes, const char **reason);
/* NULL if the bytes are a whole entry, else the reason. */
const char *cache_entry_fault(const void *bytes, gsize nbytes);

G_END_DECLS
#endif
