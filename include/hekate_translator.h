/* Translators in C: the interface between a Hekate program and a shared library. docs/translators.md is the guide.
 *
 * A library has one symbol, `hekate_translator`, a table of this header's type. The program checks `abi` before it
 * calls anything. Ops and results are bytes in the encoding of docs/format/wire.md; hekate_ops.h decodes and encodes them.
 */
#ifndef HEKATE_TRANSLATOR_H
#define HEKATE_TRANSLATOR_H

#include <stddef.h>
#include <stdint.h>

#define HEKATE_ABI 1u

/* Flags of a translator. */
#define HEKATE_TRANSPARENT 1u /* it changes neither ops nor replies */
#define HEKATE_BLOCKS 2u      /* handle may block: a pool of threads calls it, not the caller's thread */
#define HEKATE_REPEATABLE 4u  /* a graph may have several of it */

/* Events of an instance. */
#define HEKATE_START 1       /* every op of the volume passes from now on */
#define HEKATE_STOP 2        /* no op passes any more */
#define HEKATE_RECONFIGURE 3 /* option() has other values */
#define HEKATE_TIMER 4       /* about a second has gone */
#define HEKATE_RECALL 5      /* what is remembered may be out of date */

/* Levels of log(). */
#define HEKATE_ERROR 1
#define HEKATE_WARNING 2
#define HEKATE_INFO 3
#define HEKATE_DEBUG 4

typedef struct hekate_request hekate_request; /* one op under way; answered exactly once */
typedef struct hekate_layer hekate_layer;     /* one instance, as the program knows it */

/* Receives the result of an op that was sent to the layer below: valid during the call. */
typedef void (*hekate_done)(void *user, const uint8_t *result, size_t length);

typedef struct {
    const char *name;
    const char *kind; /* flag, number, bytes, time, percent, text, or words with | between them */
    const char *default_value;
    const char *help;
} hekate_option;

/* What the program does for libraries. All functions may be called by any thread. */
typedef struct {
    uint32_t abi;
    uint32_t size; /* bytes of this table: a later program has more functions behind these */
    void (*log)(const hekate_layer *layer, int level, const char *text, size_t length);
    /* Adds to a counter that `hekate graph` shows. */
    void (*count)(const hekate_layer *layer, const char *name, uint64_t add);
    /* Copies the value of an option with a zero byte, at most `room` bytes. Returns the length of the whole value, or
     * -1 if there is no such option. */
    ptrdiff_t (*option)(const hekate_layer *layer, const char *name, char *out, size_t room);
    /* The answers. Each ends the life of the request. */
    void (*pass)(hekate_request *request);                                        /* the op as it came */
    void (*pass_op)(hekate_request *request, const uint8_t *op, size_t length);   /* another op */
    void (*reply)(hekate_request *request, const uint8_t *result, size_t length); /* a result */
    void (*fail)(hekate_request *request, int error, const char *text);           /* errno(3); text may be NULL */
    /* Sends an op to the layer below. `done` is called once: before this returns if the caller's thread called it (that
     * is, within handle without HEKATE_BLOCKS), else later, by the caller's thread. */
    void (*call)(hekate_request *request, const uint8_t *op, size_t length, hekate_done done, void *user);
    /* Narrows the ops that `handle` gets of this instance to those with these labels, with spaces between them. */
    void (*want)(const hekate_layer *layer, const char *ops);
    int (*is_durable)(const hekate_request *request);   /* 1: the change has to be on stable storage */
    int (*is_cancelled)(const hekate_request *request); /* 1: the caller has given up */
} hekate_host;

typedef struct {
    uint32_t abi;  /* HEKATE_ABI */
    uint32_t size; /* sizeof(hekate_translator_table) */
    const char *summary;
    uint32_t flags;
    uint32_t option_count;
    const hekate_option *options;
    const char *ops; /* labels of the ops that handle gets, with spaces between them; NULL for all */
    /* Once for each library, before its first instance; 0 if it can be used. May be NULL. */
    int (*init)(const hekate_host *host);
    /* Makes an instance; NULL if it cannot, after a line in the log that says why. */
    void *(*create)(const hekate_host *host, const hekate_layer *layer);
    /* Answers the request, now or later. `op` is valid until this returns. */
    void (*handle)(void *instance, hekate_request *request, const uint8_t *op, size_t length);
    /* 0. For HEKATE_RECONFIGURE also 1, if the instance refuses the options and keeps its old ones, and 2, if another
     * instance has to be made for them. May be NULL. */
    int (*event)(void *instance, int event);
    /* Ends an instance. No op of it is under way. */
    void (*destroy)(void *instance);
} hekate_translator_table;

#endif
