/* JSON objects from files. */
#ifndef MODEL_JSON_FILE_H
#define MODEL_JSON_FILE_H
#include <glib.h>
#include <jansson.h>

G_BEGIN_DECLS

/* An object, duplicates refused; errors (MODEL_ERROR) tell file and line. Returns new. */
json_t *json_file_read(const char *path, GError **error);
/* What jansson says, as valid UTF-8: it quotes the text around a fault as it is. Returns new. */
char *json_file_problem(const json_error_t *problem);

G_END_DECLS
#endif
