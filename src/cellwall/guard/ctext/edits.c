/* The edits that read encoded characters: what stands in their place. What C cannot tell for certain
 * is left to Python, as `CW_UNKNOWN`: rare entities, and letters beyond ASCII of which only Python
 * knows whether they are seen. */
#include "inline.h"

/* Bytes for `size` more; NULL where there is no room. */
static uint8_t *room_for(const struct edits *edits, size_t size) {
    return edits->text_room - edits->text_size >= size ? edits->text + edits->text_size : NULL;
}

int put_code(struct edits *edits, uint32_t code) {
    size_t size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    uint8_t *to = room_for(edits, size);
    if (!to)
        return 0;
    if (size == 1) {
        *to = (uint8_t)code;
    } else {
        for (size_t n = size; --n; code >>= 6)
            to[n] = (uint8_t)(0x80 | (code & 0x3f));
        *to = (uint8_t)((0xf00 >> size & 0xff) | code);
    }
    edits->text_size += size;
    return 1;
}

int put_byte(struct edits *edits, uint8_t byte) {
    uint8_t *to = room_for(edits, 1);
    if (!to)
        return 0;
    *to = byte;
    edits->text_size++;
    return 1;
}

/* Adds what was put since `from`; nothing where the room for edits is full. */
void add_edit(struct edits *edits, const struct token *token, size_t from) {
    if (edits->count < edits->room)
        edits->found[edits->count] =
            (struct edit){token->start, token->end, (uint32_t)from,
                          (uint32_t)(edits->text_size - from)};
    edits->count++;
}

/* Also where there was no room for its text: it is not left out. */
void add_unknown(struct edits *edits, const struct token *token, size_t from) {
    edits->text_size = from;
    if (edits->count < edits->room)
        edits->found[edits->count] =
            (struct edit){token->start, token->end, (uint32_t)from, CW_UNKNOWN};
    edits->count++;
    edits->unknown++;
}

/* Whether all of it is UTF-8, as Python takes it. */
static int is_utf8(const uint8_t *data, size_t size) {
    for (size_t at = 0; at < size;) {
        uint8_t first = data[at];
        if (first < 0x80) {
            at++;
            continue;
        }
        size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
        if (first < 0xc2 || first > 0xf4 || size - at < length)
            return 0;
        uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
        uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
        if (data[at + 1] < low || data[at + 1] > high)
            return 0;
        for (size_t n = 2; n < length; n++)
            if ((data[at + n] & 0xc0) != 0x80)
                return 0;
        at += length;
    }
    return 1;
}

/* The bytes put since `from`, as text: a single one that is none alone is a letter of Latin-1, of
 * others nothing is said. */
void add_bytes(struct edits *edits, const struct token *token, size_t from) {
    const uint8_t *data = edits->text + from;
    size_t size = edits->text_size - from;
    if (is_utf8(data, size)) {
        add_edit(edits, token, from);
    } else if (size == 1) {
        uint8_t byte = *data;
        edits->text_size = from;
        if (put_code(edits, byte))
            add_edit(edits, token, from);
        else
            add_unknown(edits, token, from);
    } else {
        edits->text_size = from;
    }
}

/* Pairs of digits behind marks of so many bytes. */
int put_pairs(struct edits *edits, const uint8_t *image, size_t at, size_t end, size_t mark) {
    for (; at + mark + 2 <= end; at += mark + 2) {
        int high = hex_value(image[at + mark]), low = hex_value(image[at + mark + 1]);
        if (high < 0 || low < 0 || !put_byte(edits, (uint8_t)(high * 16 + low)))
            return 0;
    }
    return 1;
}

/* The edits of the tokens of one kind from `edits->next` on, while there is room for them. */
void cw_edits(const uint8_t *image, size_t size, const struct token *tokens, size_t count,
              uint32_t kind, const struct entity_names *names, struct edits *edits) {
    for (; edits->next < count && edits->count < edits->room; edits->next++) {
        const struct token *token = tokens + edits->next;
        if (token->kind != kind || token->end > size || token->start > token->end ||
            token->end - token->start < 2)
            continue;
        if (kind == HTML)
            add_entity(edits, image, token, names);
        else if (kind == URL)
            add_percents(edits, image, token);
        else if (kind == ESCAPES)
            add_escapes(edits, image, token);
        else
            add_quoted(edits, image, size, token);
    }
}

/* Lines inside of JSON: a backslash and a letter, from `edits->next` on. */
void cw_string_edits(const uint8_t *image, size_t size, struct edits *edits) {
    static const uint8_t meant[256] = {['n'] = '\n', ['r'] = '\r', ['t'] = '\t',
                                       ['"'] = '"', ['/'] = '/', ['\\'] = '\\'};
    size_t at = edits->next;
    while (size - at >= 2 && at < size && edits->count < edits->room) {
        uint8_t byte = image[at] == '\\' ? meant[image[at + 1]] : 0;
        if (byte) {
            struct token token = {(uint32_t)at, (uint32_t)at + 2, 0};
            size_t from = edits->text_size;
            if (put_byte(edits, byte))
                add_edit(edits, &token, from);
            else
                add_unknown(edits, &token, from);
        }
        at += byte ? 2 : 1;
    }
    edits->next = at;
}
