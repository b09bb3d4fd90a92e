/* The passes between a finished graph and a plan, and the placement they feed. */
#ifndef NET_PASSES_PRIVATE_H
#define NET_PASSES_PRIVATE_H
#include "core/net/graph_private.h"

G_BEGIN_DECLS

/* Moves additions into the operations that make an operand. */
void net_fuse(Net *net);
/* Removes operations whose results nobody reads. Producers of removed values are gone. */
void net_drop_unused(Net *net);
/* Sets first, last and storage of every temporary: when it lives and whose memory it uses. */
void net_live(Net *net);

/* Something that takes `bytes` of the arena during operations first..last. */
typedef struct {
    gsize bytes;
    gint first, last;
    gsize place; /* result */
} NetPiece;

/* Largest sum of bytes over all operations: no placement can be smaller. */
gsize net_place_bound(const NetPiece *piece, guint n);
/* Gives every piece its place, such that no two share a byte at one time. Returns the size of the arena. */
gsize net_place(NetPiece *piece, guint n);

G_END_DECLS
#endif
