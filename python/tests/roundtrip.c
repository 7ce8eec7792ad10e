/* Reads records from standard input: u8 'o' (op) or 'r' (result), u32 length, bytes. Decodes each one in a buffer of
 * exactly its length, encodes it again, and writes u32 length and bytes; the length is 0 if it was malformed. */
#include "hekate_ops.h"
#include <stdio.h>
#include <stdlib.h>

static size_t again(int kind, const uint8_t *data, size_t length, uint8_t *out, size_t room)
{
    static uint8_t memory[1 << 20];
    struct hekate_arena arena = { memory + 1, sizeof memory - 1 };
    if (kind == 'o') {
        struct hekate_op op;
        if (hekate_decode_op(data, length, &arena, &op) != HEKATE_OK || hekate_op_label(&op) == NULL) {
            return 0;
        }
        return hekate_encode_op(&op, out, room);
    } else {
        struct hekate_result result;
        if (hekate_decode_result(data, length, &arena, &result) != HEKATE_OK) {
            return 0;
        }
        if (!result.is_ok && (hekate_error_name(&result.u.error) == NULL || hekate_error_errno(&result.u.error) < 1)) {
            return 0;
        }
        return hekate_encode_result(&result, out, room);
    }
}

int main(void)
{
    int kind;
    while ((kind = getchar()) != EOF) {
        uint32_t length;
        uint8_t *data, *out;
        size_t written;
        if (fread(&length, 4, 1, stdin) != 1) {
            return 2;
        }
        data = malloc(length ? length : 1);
        out = malloc(length ? length : 1);
        if (data == NULL || out == NULL || fread(data, 1, length, stdin) != length) {
            return 2;
        }
        written = again(kind, data, length, out, length);
        if (written != 0 && written != length) {
            return 3;
        }
        length = (uint32_t)written;
        fwrite(&length, 4, 1, stdout);
        fwrite(out, 1, length, stdout);
        free(data);
        free(out);
    }
    return 0;
}
