/* Percent signs, and escapes of strings. */
#include "inline.h"

#define REPLACEMENT 0xfffd
#define MAX_CODE 0x10ffff

/* Each run of percent signs, and each plus sign. */
void add_percents(struct edits *edits, const uint8_t *image, const struct token *token) {
    for (size_t at = token->start, end = token->end; at < end && edits->count < edits->room;) {
        struct token run = {(uint32_t)at, (uint32_t)at, token->kind};
        size_t from = edits->text_size;
        int is_put = 1;
        if (image[at] == '+') {
            run.end++;
            is_put = put_byte(edits, ' ');
        }
        while (image[at] == '%' && end - run.end >= 3 && image[run.end] == '%' &&
               is_hex(image[run.end + 1]) && is_hex(image[run.end + 2]))
            run.end += 3;
        if (run.end == at) {
            at++;
            continue;
        }
        if (image[at] == '%')
            is_put = put_pairs(edits, image, at, run.end, 1);
        if (!is_put)
            add_unknown(edits, &run, from);
        else
            add_bytes(edits, &run, from);
        at = run.end;
    }
}

/* Halves of a character in UTF-16 that were written one by one belong together; a half alone is the
 * sign for what is none. */
struct halves {
    uint32_t first;
    int has_any;
};

static int put_unit(struct edits *edits, struct halves *halves, uint32_t code) {
    int is_second = code >= 0xdc00 && code < 0xe000, is_first = code >= 0xd800 && code < 0xdc00;
    if (halves->first) {
        uint32_t first = halves->first;
        halves->first = 0;
        if (is_second)
            return put_code(edits, 0x10000 + ((first - 0xd800) << 10) + (code - 0xdc00));
        if (!put_code(edits, REPLACEMENT))
            return 0;
    }
    if (is_first) {
        halves->first = code;
        return 1;
    }
    return put_code(edits, is_second ? REPLACEMENT : code);
}

/* Returns -1 where a number is that of no character. */
static int put_points(struct edits *edits, const uint8_t *image, const struct token *token) {
    struct halves halves = {0, 0};
    for (size_t at = token->start; at < token->end;) {
        /* A backslash and a letter, or a letter and a sign; a brace may follow. */
        at += 2;
        int is_braced = at < token->end && image[at] == '{';
        at += (size_t)is_braced;
        uint32_t code = 0;
        for (; at < token->end && is_hex(image[at]); at++) {
            code = code * 16 + (uint32_t)hex_value(image[at]);
            if (code > MAX_CODE)
                return -1;
        }
        if (!put_unit(edits, &halves, code))
            return 0;
        while (at < token->end && image[at] != '\\' && (image[at] | 32) != 'u')
            at++; /* a brace or a blank */
    }
    return !halves.first || put_code(edits, REPLACEMENT);
}

void add_escapes(struct edits *edits, const uint8_t *image, const struct token *token) {
    size_t from = edits->text_size;
    uint8_t second = token->end - token->start > 1 ? image[token->start + 1] : 0;
    int is_put = 1;
    if ((second | 32) == 'x') {
        is_put = put_pairs(edits, image, token->start, token->end, 2);
    } else if (is_digit(second)) {
        for (size_t at = token->start; is_put && at + 4 <= token->end; at += 4)
            is_put = put_byte(edits, (uint8_t)((image[at + 1] - '0') << 6 |
                                               (image[at + 2] - '0') << 3 | (image[at + 3] - '0')));
    } else {
        is_put = put_points(edits, image, token);
        if (is_put > 0)
            add_edit(edits, token, from);
    }
    if (!is_put)
        add_unknown(edits, token, from);
    else if (is_put < 0)
        edits->text_size = from;
    else if ((second | 32) == 'x' || is_digit(second))
        add_bytes(edits, token, from);
}
