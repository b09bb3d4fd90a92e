/* disk_reader: the bytes of a picture's file.
 *
 * The file must still be the one that was listed (same inode, size and times): one that was replaced while
 * the run goes on is a bad item by name, not a surprise for a later node. Nothing is mapped: a mapped file
 * that is cut kills the process.
 *
 * pread asks for the whole file in one call, which the kernel reads ahead by itself; auto takes that. uring
 * keeps several pieces of one file in flight, which pays for large files on fast disks.
 *
 * @optional liburing
 */
#include "core/flow/plan.h"
#include "core/image/file.h"
#include "core/image/picture.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

#ifdef HAVE_LIBURING
#include <liburing.h>
#endif

enum { AUTO, PREAD, URING };

typedef struct {
    int method;
    guint64 max_bytes;
} Reader;

#ifdef HAVE_LIBURING

enum { DEPTH = 8, PIECE = 1 << 20 };

typedef struct {
    struct io_uring ring;
    gboolean ready;
} Worker;

static gboolean reader_worker_start(FlowCtx *ctx, GError **error)
{
    const Reader *reader = flow_ctx_state(ctx);
    Worker *worker = flow_ctx_worker(ctx);

    if (reader->method != URING)
        return TRUE;
    int rc = io_uring_queue_init(DEPTH, &worker->ring, 0);
    if (rc < 0) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_DEVICE,
                    "method = uring: this system gives no io_uring (%s); use pread", g_strerror(-rc));
        return FALSE;
    }
    worker->ready = TRUE;
    return TRUE;
}

static void reader_worker_stop(FlowCtx *ctx)
{
    Worker *worker = flow_ctx_worker(ctx);
    if (worker->ready)
        io_uring_queue_exit(&worker->ring);
}

/* Pieces end at multiples of PIECE, so a piece that came back short is asked for again from where it ended.
 */
static void ask(struct io_uring *ring, int fd, guint8 *buffer, gsize start, gsize n)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    gsize end = MIN(n, (start / PIECE + 1) * PIECE);
    io_uring_prep_read(sqe, fd, buffer + start, (unsigned)(end - start), start);
    sqe->user_data = start;
}

/* All n bytes. FALSE with errno, 0 where the file ended. Returns only when nothing is in flight. */
static gboolean read_ring(struct io_uring *ring, int fd, guint8 *buffer, gsize n)
{
    gsize next = 0;
    guint flying = 0;
    int failed = -1;

    while (flying > 0 || (next < n && failed < 0)) {
        for (; next < n && flying < DEPTH && failed < 0; next = MIN(n, next + PIECE), flying++)
            ask(ring, fd, buffer, next, n);
        struct io_uring_cqe *cqe;
        int rc = io_uring_submit_and_wait(ring, 1);
        if (rc < 0 || io_uring_peek_cqe(ring, &cqe) < 0) {
            g_assert(rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
            continue;
        }
        gsize start = (gsize)cqe->user_data, end = MIN(n, (start / PIECE + 1) * PIECE);
        int got = cqe->res;
        io_uring_cqe_seen(ring, cqe);
        flying--;
        if (got == -EINTR || got == -EAGAIN)
            got = 0;
        else if (got <= 0)
            failed = -got;
        if (failed < 0 && start + (gsize)got < end) {
            ask(ring, fd, buffer, start + (gsize)got, n);
            flying++;
        }
    }
    errno = MAX(failed, 0);
    return failed < 0;
}
#endif

static gboolean reader_open(FlowNode *node, GError **error)
{
#ifdef HAVE_LIBURING
    (void)node, (void)error;
#else
    const Reader *reader = flow_node_state(node);
    if (reader->method == URING) {
        g_set_error_literal(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                            "method = uring: built without liburing; use pread");
        return FALSE;
    }
#endif
    return TRUE;
}

static gboolean read_all(FlowCtx *ctx, int fd, const char *path, guint8 *buffer, gsize n, GError **error)
{
#ifdef HAVE_LIBURING
    Worker *worker = flow_ctx_worker(ctx);
    if (worker->ready) {
        if (read_ring(&worker->ring, fd, buffer, n))
            return TRUE;
        g_autofree char *name = image_printable(path);
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "%s cannot be read: %s", name,
                    errno ? g_strerror(errno) : "it became shorter");
        return FALSE;
    }
#else
    (void)ctx;
#endif
    return image_file_read(fd, path, buffer, n, error);
}

static FlowStatus reader_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    const Reader *reader = flow_ctx_state(ctx);
    const char *path = flow_item_string(in[0], FLOW_F_PATH);
    struct stat st;

    int fd =
        image_file_open_listed(path, flow_item_i64(in[0], FLOW_F_FILE_ID), reader->max_bytes, &st, error);
    if (fd < 0)
        return FLOW_SKIP;
    gint64 n = (gint64)st.st_size;
    g_autoptr(FlowValue) bytes = flow_value_new(NET_U8, 1, &n);
    gboolean ok = read_all(ctx, fd, path, bytes->data, (gsize)n, error);
    close(fd);
    if (!ok)
        return FLOW_SKIP;
    flow_node_count(flow_ctx_node(ctx), "reads", 1);
    flow_node_count(flow_ctx_node(ctx), "bytes", (double)n);
    flow_item_set(flow_item_writable(&in[0]), FLOW_F_BYTES, g_steal_pointer(&bytes));
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static gboolean reader_plan(FlowNode *node, FlowPlan *plan, GError **error G_GNUC_UNUSED)
{
    const Reader *reader = flow_node_state(node);
    plan->item_bytes = (gsize)MIN((guint64)plan->source_bytes, reader->max_bytes);
    return TRUE;
}

static const FlowParam params[] = {
    FLOW_ENUM(Reader, method, "auto", "auto|pread|uring", "How files are read; auto is pread.",
              | FLOW_P_NORESULT),
    FLOW_SIZE(Reader, max_bytes, "256MiB", 1, 1e12, "Files above this are bad items.", | FLOW_P_NORESULT),
    FLOW_END,
};
static const FlowPort ins[] = {{.name = "in", .doc = "References to files.", .needs = "path file_id?"},
                               FLOW_END};
static const FlowPort outs[] = {{.name = "out", .doc = "With the contents.", .gives = "bytes"}, FLOW_END};

FLOW_STAGE(.name = "disk_reader", .summary = "Read the file of each picture.", .flags = FLOW_PARALLEL,
           .version = 1, .state_size = sizeof(Reader),
#ifdef HAVE_LIBURING
           .worker_size = sizeof(Worker), .worker_start = reader_worker_start,
           .worker_stop = reader_worker_stop,
#endif
           .params = params, .inputs = ins, .outputs = outs, .open = reader_open, .process = reader_process,
           .plan = reader_plan);
