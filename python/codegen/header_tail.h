
/* What an op came to: a reply, or an error. */
struct hekate_result {
    bool is_ok;
    union {
        struct hekate_reply reply;
        struct hekate_error error;
    } u;
};

static inline void hekate_take_result(struct hekate_in *in, struct hekate_result *value)
{
    value->is_ok = hekate_take_bool(in);
    if (value->is_ok) {
        hekate_take_reply(in, &value->u.reply);
    } else {
        hekate_take_error(in, &value->u.error);
    }
}

static inline void hekate_put_result(struct hekate_out *out, const struct hekate_result *value)
{
    hekate_put_bool(out, value->is_ok);
    if (value->is_ok) {
        hekate_put_reply(out, &value->u.reply);
    } else {
        hekate_put_error(out, &value->u.error);
    }
}

/* Decodes a value that fills `data` exactly. Returns an enum hekate_status. */
#define HEKATE_DECODE(name)                                                                                       \
    static inline int hekate_decode_##name(                                                                       \
        const uint8_t *data, size_t length, struct hekate_arena *arena, struct hekate_##name *value)              \
    {                                                                                                             \
        struct hekate_in in;                                                                                      \
        in.at = data;                                                                                             \
        in.left = length;                                                                                         \
        in.arena = arena;                                                                                         \
        in.status = HEKATE_OK;                                                                                    \
        memset(value, 0, sizeof *value);                                                                          \
        hekate_take_##name(&in, value);                                                                           \
        return in.status != HEKATE_OK ? in.status : in.left == 0 ? HEKATE_OK : HEKATE_MALFORMED;                  \
    }

/* Returns the length of the encoding; 0 if the value has none (a kind that does not exist, a name that is none). It is
 * written whole if it is at most `room`; otherwise what `data` holds means nothing. */
#define HEKATE_ENCODE(name)                                                                                       \
    static inline size_t hekate_encode_##name(const struct hekate_##name *value, uint8_t *data, size_t room)      \
    {                                                                                                             \
        struct hekate_out out;                                                                                    \
        out.data = data;                                                                                          \
        out.room = room;                                                                                          \
        out.length = 0;                                                                                           \
        out.invalid = false;                                                                                      \
        hekate_put_##name(&out, value);                                                                           \
        return out.invalid ? 0 : out.length;                                                                      \
    }

HEKATE_DECODE(op)
HEKATE_DECODE(reply)
HEKATE_DECODE(error)
HEKATE_DECODE(result)
HEKATE_ENCODE(op)
HEKATE_ENCODE(reply)
HEKATE_ENCODE(error)
HEKATE_ENCODE(result)

#endif
