/* A translator for tests, in variants: -DVARIANT=N. */
#define _POSIX_C_SOURCE 200809L
#include "hekate_translator.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PASSES, WRONG_ABI, INIT_FAILS, CREATE_FAILS, OTHER_THREAD, NEVER, GARBAGE, BLOCKS, SHORT_TABLE, TWICE_BELOW };

struct instance {
    const hekate_host *host;
    const hekate_layer *layer;
};

struct job {
    struct instance *instance;
    hekate_request *request;
    uint8_t *op;
    size_t length;
};

/* Instances are made, and ops handled, on any thread. */
static int inits;
static int inside;

static int init(const hekate_host *host)
{
    (void)host;
    __atomic_add_fetch(&inits, 1, __ATOMIC_SEQ_CST);
    return VARIANT == INIT_FAILS ? 7 : 0;
}

static void *create(const hekate_host *host, const hekate_layer *layer)
{
    struct instance *instance = calloc(1, sizeof *instance);
    if (VARIANT == CREATE_FAILS) {
        host->log(layer, HEKATE_ERROR, "no luck", 7);
        free(instance);
        return NULL;
    }
    instance->host = host;
    instance->layer = layer;
    host->count(layer, "inits", (uint64_t)__atomic_load_n(&inits, __ATOMIC_SEQ_CST));
    return instance;
}

static void done(void *user, const uint8_t *result, size_t length)
{
    struct job *job = user;
    job->instance->host->reply(job->request, result, length);
    free(job->op);
    free(job);
}

static void ignored(void *user, const uint8_t *result, size_t length)
{
    (void)user, (void)result, (void)length;
}

static void *later(void *user)
{
    struct job *job = user;
    struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
    job->instance->host->call(job->request, job->op, job->length, done, job);
    return NULL;
}

static void handle(void *pointer, hekate_request *request, const uint8_t *op, size_t length)
{
    struct instance *instance = pointer;
    if (VARIANT == OTHER_THREAD) {
        struct job *job = malloc(sizeof *job);
        pthread_t thread;
        job->instance = instance;
        job->request = request;
        job->op = malloc(length);
        memcpy(job->op, op, length);
        job->length = length;
        pthread_create(&thread, NULL, later, job);
        pthread_detach(thread);
    } else if (VARIANT == GARBAGE) {
        instance->host->reply(request, (const uint8_t *)"\x01\xff\xff", 3);
    } else if (VARIANT == TWICE_BELOW) {
        instance->host->call(request, op, length, ignored, NULL);
        instance->host->pass_op(request, op, length);
    } else if (VARIANT == BLOCKS) {
        /* EIO if 4 ops are not inside at once. */
        struct timespec pause = {0, 1000000};
        __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
        for (int i = 0; i < 20000 && __atomic_load_n(&inside, __ATOMIC_SEQ_CST) < 4; i++)
            nanosleep(&pause, NULL);
        instance->host->fail(request, __atomic_load_n(&inside, __ATOMIC_SEQ_CST) < 4 ? EIO : EDQUOT, NULL);
    } else if (VARIANT != NEVER) {
        instance->host->pass(request);
    }
}

static int event(void *pointer, int event)
{
    struct instance *instance = pointer;
    char word[8] = "";
    instance->host->option(instance->layer, "word", word, sizeof word);
    return event == HEKATE_RECONFIGURE && strcmp(word, "no") == 0;
}

static void destroy(void *pointer)
{
    free(pointer);
}

static const hekate_option options[] = {{"word", "yes|no|perhaps", "yes", "a word"}};

const hekate_translator_table hekate_translator = {
    .abi = VARIANT == WRONG_ABI ? HEKATE_ABI + 1 : HEKATE_ABI,
    .size = VARIANT == SHORT_TABLE ? 8 : sizeof(hekate_translator_table),
    .summary = "for tests",
    .flags = VARIANT == BLOCKS ? HEKATE_BLOCKS : HEKATE_TRANSPARENT,
    .option_count = 1,
    .options = options,
    .ops = NULL,
    .init = init,
    .create = create,
    .handle = handle,
    .event = event,
    .destroy = destroy,
};
