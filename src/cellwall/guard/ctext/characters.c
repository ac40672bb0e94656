/* Which letters beyond ASCII a text in UTF-8 has, and where. Most texts have few, so what is plain is
 * passed over eight bytes at a time. */
#include <stdlib.h>
#include <string.h>

#include "passes.h"

#define CODES 0x110000u

#define ALL(byte) (0x0101010101010101u * (byte))

/* The highest bit of each byte of eight that is this one, where none has its highest bit set. */
static uint64_t those(uint64_t word, uint8_t byte)
{
    return ~((word ^ ALL(byte)) + ALL(0x7f)) & ALL(0x80);
}

/* Whether eight bytes are all common: quickly told if they are printable or ends of lines. */
static int is_plain_word(const uint8_t *bytes, const byte_set common)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    if (word & ALL(0x80))
        return 0;
    uint64_t low = (word - ALL(0x20)) & ~word & ALL(0x80);
    if (!((low & ~those(word, '\n')) | those(word, 0x7f)))
        return 1;
    for (int i = 0; i < 8; i++)
        if (!common[bytes[i]])
            return 0;
    return 1;
}

static int is_continuation(uint8_t byte)
{
    return (byte & 0xc0) == 0x80;
}

/* The character that begins at `at`, and how many bytes it has; 0 for what is none. */
size_t cw_decoded(const uint8_t *data, size_t size, size_t at, uint32_t *code)
{
    uint8_t lead = data[at];
    size_t length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0;
    if (length == 0 || length > size - at)
        return 0;
    *code = length == 1 ? lead : lead & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if (!is_continuation(data[at + i]))
            return 0;
        *code = *code << 6 | (data[at + i] & 0x3f);
    }
    return *code < CODES ? length : 0;
}

/* Each character once that is not of the common ASCII ones, in the order of their first places. Those
 * that are printable are always common; the set says which others are.
 * Returns how many there are, of which no more than `room` are told; SIZE_MAX if memory is out. What
 * is no UTF-8 is passed over. */
size_t cw_letters(const uint8_t *data, size_t size, const byte_set common, uint32_t *codes,
                  size_t room)
{
    uint8_t *seen = calloc(CODES / 8, 1);
    if (!seen)
        return SIZE_MAX;
    size_t found = 0, at = 0;
    while (at < size) {
        if (size - at >= 8 && is_plain_word(data + at, common)) {
            at += 8;
            continue;
        }
        uint32_t code = 0;
        size_t length = cw_decoded(data, size, at, &code);
        at += length ? length : 1;
        if (!length || (code < 0x80 && common[code]) || seen[code / 8] >> code % 8 & 1)
            continue;
        seen[code / 8] |= (uint8_t)(1 << code % 8);
        if (found < room)
            codes[found] = code;
        found++;
    }
    free(seen);
    return found;
}

/* Blocks of so many bytes that are not all common ones, as four numbers each: first and last in
 * characters, first and last in bytes. Returns how many were written; `room` is in blocks. */
size_t cw_blocks(const uint8_t *data, size_t size, const byte_set common, size_t block,
                 uint64_t *parts, size_t room)
{
    size_t found = 0, characters = 0;
    for (size_t start = 0; start < size && found < room; start += block) {
        size_t end = size - start < block ? size : start + block, at = start;
        while (end - at >= 8 && is_plain_word(data + at, common))
            at += 8;
        while (at < end && common[data[at]])
            at++;
        size_t inside = at - start;
        if (at < end) {
            for (; at < end; at++)
                inside += !is_continuation(data[at]);
            uint64_t *part = parts + 4 * found++;
            part[0] = characters;
            part[1] = characters + inside;
            part[2] = start;
            part[3] = end;
        }
        characters += inside;
    }
    return found;
}
