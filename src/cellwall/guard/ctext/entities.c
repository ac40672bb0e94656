/* Entities of HTML, those whose meaning is beyond doubt. */
#include "inline.h"

#define MAX_CODE 0x10ffff

/* The text of an entity with this name; -1 if there is none. */
static int64_t find_name(const struct entity_names *names, const uint8_t *name, size_t size) {
    uint32_t low = 0, high = names->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint32_t begin = names->ends[middle], length = names->ends[middle + 1] - begin;
        int order = memcmp(names->names + begin, name, length < size ? length : size);
        if (!order && length == size)
            return middle;
        if (order < 0 || (!order && length < size))
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

static int put_name(struct edits *edits, const struct entity_names *names, const uint8_t *name,
                    size_t size) {
    int64_t number = find_name(names, name, size);
    if (number < 0)
        return 0;
    const uint8_t *text = names->texts + names->text_ends[number];
    for (size_t n = names->text_ends[number + 1] - names->text_ends[number]; n; n--)
        if (!put_byte(edits, *text++))
            return 0;
    return 1;
}

/* A letter that the number of an entity stands for without any doubt. */
static int is_plain_code(uint32_t code) {
    return (code >= 0x20 && code < 0x7f) || (code >= 0xa0 && code < 0xd800) ||
           (code >= 0xe000 && code < 0xfdd0);
}

static int put_number(struct edits *edits, const uint8_t *image, size_t at, size_t end) {
    int is_hexadecimal = (image[at] | 32) == 'x';
    uint32_t code = 0;
    for (at += (size_t)is_hexadecimal; at < end && is_hex(image[at]) && code <= MAX_CODE; at++)
        code = code * (is_hexadecimal ? 16 : 10) + (uint32_t)hex_value(image[at]);
    return (at == end || (at + 1 == end && image[at] == ';')) && is_plain_code(code) &&
           put_code(edits, code);
}

void add_entity(struct edits *edits, const uint8_t *image, const struct token *token,
                       const struct entity_names *names) {
    size_t from = edits->text_size, start = token->start + 1, end = token->end;
    int is_put = end - token->start > 2 &&
                 (image[start] == '#' ? put_number(edits, image, start + 1, end)
                                      : put_name(edits, names, image + start, end - start));
    if (is_put)
        add_edit(edits, token, from);
    else
        add_unknown(edits, token, from);
}
