/* The kinds of things that `inspect` describes; each prints, or prints JSON. Return an exit code. */
#ifndef CLI_INSPECT_H
#define CLI_INSPECT_H
#include "core/cli/cli.h"

/* inspect_stage.c */
int cli_inspect_list(gboolean json);
int cli_inspect_markdown(void);
int cli_inspect_stage(const FlowPlugin *plugin, gboolean json);
/* inspect_file.c */
int cli_inspect_safetensors(const char *path, gboolean json);
int cli_inspect_model(const char *path, gboolean json);

#endif
