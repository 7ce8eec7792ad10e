/* A translator in C: refuses to make names that end in a suffix, and counts what it refused.
 *
 *     cc -std=c99 -fPIC -shared -I include -o librefuse_names.so examples/plugins/refuse-names/refuse_names.c
 *     hekate plugin install librefuse_names.so --name refuse-names
 *     hekate volume set photos translators refuse-names:suffix=.exe
 */
#include "hekate_translator.h"
#include "hekate_ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SUFFIX_BYTES_MAX 256

struct instance {
    const hekate_host *host;
    const hekate_layer *layer;
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
    /* A change of options comes while ops pass: they see the old suffix or the new one, which this keeps simple by
     * copying the bytes before the length. A translator with more to change takes a lock. */
    memcpy(instance->suffix, suffix, (size_t)length);
    instance->suffix_length = (size_t)length;
    return 0;
}

static void *create(const hekate_host *host, const hekate_layer *layer)
{
    struct instance *instance = calloc(1, sizeof *instance);
    if (!instance)
        return NULL;
    instance->host = host;
    instance->layer = layer;
    if (read_options(instance) != 0) {
        free(instance);
        return NULL;
    }
    return instance;
}

static int is_refused(const struct instance *instance, struct hekate_bytes name)
{
    size_t length = instance->suffix_length;
    return name.length >= length && memcmp(name.data + name.length - length, instance->suffix, length) == 0;
}

static void handle(void *pointer, hekate_request *request, const uint8_t *bytes, size_t length)
{
    struct instance *instance = pointer;
    unsigned char memory[4096];
    struct hekate_arena arena = {memory, sizeof memory};
    struct hekate_op op;
    struct hekate_bytes name = {NULL, 0};
    /* An op that does not fit into the arena has lists, which names of these kinds have not. */
    if (hekate_decode_op(bytes, length, &arena, &op) == HEKATE_OK) {
        if (op.kind == HEKATE_OP_CREATE)
            name = op.u.create.name;
        else if (op.kind == HEKATE_OP_RENAME)
            name = op.u.rename.to_name;
        else if (op.kind == HEKATE_OP_LINK)
            name = op.u.link.name;
    }
    if (name.data && is_refused(instance, name)) {
        instance->host->count(instance->layer, "refused", 1);
        instance->host->fail(request, EACCES, "names with this suffix are not made in this volume");
        return;
    }
    instance->host->pass(request);
}

static int event(void *pointer, int event)
{
    return event == HEKATE_RECONFIGURE ? read_options(pointer) : 0;
}

static void destroy(void *pointer)
{
    free(pointer);
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
    .ops = "create rename link",
    .init = NULL,
    .create = create,
    .handle = handle,
    .event = event,
    .destroy = destroy,
};
