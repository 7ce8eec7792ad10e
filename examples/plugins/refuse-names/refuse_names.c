/* A translator in C: refuses to make names that end in a suffix, and counts what it refused.
 *
 *     cc -std=c99 -fPIC -shared -pthread -I include -o librefuse_names.so examples/plugins/refuse-names/refuse_names.c
 *     hekate plugin install librefuse_names.so --name refuse-names
 *     hekate volume set photos translators refuse-names:suffix=.exe
 */
#define _POSIX_C_SOURCE 200809L
#include "hekate_translator.h"
#include "hekate_ops.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SUFFIX_BYTES_MAX 256
/* Bytes of lists for which no memory is allocated. */
#define LIST_BYTES_MIN 4096
/* A list takes at most so many times the bytes of its encoding: a pair has 32, and 8 without its bytes. */
#define LIST_GROWTH 4

struct instance {
    const hekate_host *host;
    const hekate_layer *layer;
    pthread_rwlock_t lock; /* of the suffix: options change while ops pass, on any thread */
    char suffix[SUFFIX_BYTES_MAX];
    size_t suffix_length;
};

static int read_options(struct instance *instance)
{
    char suffix[SUFFIX_BYTES_MAX];
    ptrdiff_t length = instance->host->option(instance->layer, "suffix", suffix, sizeof suffix);
    if (length <= 0 || (size_t)length >= sizeof suffix) {
        static const char text[] = "suffix takes 1 to 255 bytes";
        instance->host->log(instance->layer, HEKATE_ERROR, text, sizeof text - 1);
        return 1;
    }
    pthread_rwlock_wrlock(&instance->lock);
    memcpy(instance->suffix, suffix, (size_t)length);
    instance->suffix_length = (size_t)length;
    pthread_rwlock_unlock(&instance->lock);
    return 0;
}

static void *create(const hekate_host *host, const hekate_layer *layer)
{
    struct instance *instance = calloc(1, sizeof *instance);
    if (!instance)
        return NULL;
    instance->host = host;
    instance->layer = layer;
    if (pthread_rwlock_init(&instance->lock, NULL) != 0) {
        free(instance);
        return NULL;
    }
    if (read_options(instance) != 0) {
        pthread_rwlock_destroy(&instance->lock);
        free(instance);
        return NULL;
    }
    return instance;
}

static bool is_refused(struct instance *instance, struct hekate_bytes name)
{
    bool refused;
    size_t length;
    pthread_rwlock_rdlock(&instance->lock);
    length = instance->suffix_length;
    refused = name.length >= length && memcmp(name.data + name.length - length, instance->suffix, length) == 0;
    pthread_rwlock_unlock(&instance->lock);
    return refused;
}

/* Whether the op makes a name that is refused. An op on an object may make its alternate name instead. */
static bool makes_refused(struct instance *instance, const struct hekate_op *op)
{
    switch (op->kind) {
    case HEKATE_OP_CREATE:
        return is_refused(instance, op->u.create.name);
    case HEKATE_OP_RENAME:
        return is_refused(instance, op->u.rename.to_name);
    case HEKATE_OP_LINK:
        return is_refused(instance, op->u.link.name);
    case HEKATE_OP_PUT:
        return is_refused(instance, op->u.put.name)
            || (op->u.put.has_alternate && is_refused(instance, op->u.put.alternate));
    case HEKATE_OP_MAKE_PREFIX:
        return is_refused(instance, op->u.make_prefix.name) || is_refused(instance, op->u.make_prefix.alternate);
    case HEKATE_OP_JOIN:
        return is_refused(instance, op->u.join.to);
    default:
        return false;
    }
}

static void handle(void *pointer, hekate_request *request, const uint8_t *bytes, size_t length)
{
    struct instance *instance = pointer;
    unsigned char memory[LIST_BYTES_MIN];
    void *more = NULL;
    struct hekate_arena arena = {memory, sizeof memory};
    struct hekate_op op;
    int status = hekate_decode_op(bytes, length, &arena, &op);
    /* Lists of a join or a put may be long. */
    if (status == HEKATE_NO_ROOM && (more = malloc(LIST_GROWTH * length + LIST_BYTES_MIN)) != NULL) {
        arena.memory = more;
        arena.left = LIST_GROWTH * length + LIST_BYTES_MIN;
        status = hekate_decode_op(bytes, length, &arena, &op);
    }
    /* What is not understood is not passed on: it might make such a name. */
    if (status != HEKATE_OK) {
        instance->host->fail(request, status == HEKATE_NO_ROOM ? ENOMEM : EIO, "the op cannot be decoded");
    } else if (makes_refused(instance, &op)) {
        instance->host->count(instance->layer, "refused", 1);
        instance->host->fail(request, EACCES, "names with this suffix are not made in this volume");
    } else {
        instance->host->pass(request);
    }
    free(more);
}

static int event(void *pointer, int event)
{
    return event == HEKATE_RECONFIGURE ? read_options(pointer) : 0;
}

static void destroy(void *pointer)
{
    struct instance *instance = pointer;
    pthread_rwlock_destroy(&instance->lock);
    free(instance);
}

static const hekate_option options[] = {
    {"suffix", "text", ".tmp", "names that end so are refused"},
};

const hekate_translator_table hekate_translator = {
    .abi = HEKATE_ABI,
    .size = sizeof(hekate_translator_table),
    .summary = "refuses to make names that end in a suffix",
    .flags = 0,
    .option_count = 1,
    .options = options,
    .ops = "create rename link put make-prefix join",
    .init = NULL,
    .create = create,
    .handle = handle,
    .event = event,
    .destroy = destroy,
};
