/* The file of a checkpoint: named parts of bytes behind one checksum.
 *
 *   "LORACKPT"  u32 version  u32 parts  u64 length of what follows the header  16 bytes XXH3-128 of it
 *   per part:   u32 length of the name  u64 length of the data  name  zeros  data
 *
 * Little endian; data begins at a multiple of 64, so that it can be used where it is mapped. A file is
 * written beside its name, synced, and renamed; older ones are moved to PATH.1, PATH.2, ... first, so that at
 * every moment a whole checkpoint lies under one of the names. */
#ifndef FLOW_CHECKPOINT_H
#define FLOW_CHECKPOINT_H
#include <glib.h>

G_BEGIN_DECLS

typedef struct FlowCheckpointWriter FlowCheckpointWriter;
typedef struct FlowCheckpointFile FlowCheckpointFile;

/* NULL with error. */
FlowCheckpointWriter *flow_checkpoint_writer_new(const char *path, GError **error);
gboolean flow_checkpoint_writer_add(FlowCheckpointWriter *writer, const char *name, gconstpointer data,
                                    gsize n, GError **error);
/* Frees the writer. `keep` older files stay. Nothing is left of the new one if it fails. */
gboolean flow_checkpoint_writer_close(FlowCheckpointWriter *writer, guint keep, GError **error);
/* Frees the writer and what it wrote. */
void flow_checkpoint_writer_drop(FlowCheckpointWriter *writer);

/* Maps and verifies one file. */
FlowCheckpointFile *flow_checkpoint_file_open(const char *path, GError **error);
void flow_checkpoint_file_free(FlowCheckpointFile *file);
/* Data of a part, without a copy; NULL if there is none. Returns new. */
GBytes *flow_checkpoint_file_part(FlowCheckpointFile *file, const char *name);
guint flow_checkpoint_file_parts(const FlowCheckpointFile *file);
const char *flow_checkpoint_file_name(const FlowCheckpointFile *file, guint i);

G_END_DECLS
#endif
