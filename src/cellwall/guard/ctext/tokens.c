/* Finds what may be an encoded character inside of ordinary text: entities, percent signs, escapes
 * and signs of quoted-printable. Each function returns where the token ends, or 0 if there is none.
 */
#include "inline.h"

#define MAX_NAME 40
#define MAX_ENTITY 31
#define MAX_DECIMALS 7
#define MAX_HEX 6

struct view {
    const uint8_t *data;
    size_t size;
};

/* The byte at a place; 0 behind the end, which is in no token. */
static uint8_t at_of(const struct view *text, size_t at) {
    return at < text->size ? text->data[at] : 0;
}

static size_t past_hex(const struct view *text, size_t at, size_t most) {
    for (; most && is_hex(at_of(text, at)); most--)
        at++;
    return at;
}

/* Two hexadecimal digits; of quoted-printable in capitals. */
static int has_pair(const struct view *text, size_t at) {
    return is_hex(at_of(text, at)) && is_hex(at_of(text, at + 1));
}

static int is_capital_hex(uint8_t byte) { return is_digit(byte) || (byte >= 'A' && byte <= 'F'); }

/* Zeros, then at most so many digits of which one at least is there: of zeros alone the last. */
static size_t past_number(const struct view *text, size_t at, int is_hexadecimal, size_t most) {
    size_t zeros = at;
    while (at_of(text, zeros) == '0')
        zeros++;
    size_t end = zeros;
    for (; most; most--, end++)
        if (!(is_hexadecimal ? is_hex(at_of(text, end)) : is_digit(at_of(text, end))))
            break;
    return end > at ? end : 0;
}

static size_t past_semicolon(const struct view *text, size_t at) {
    return at && at_of(text, at) == ';' ? at + 1 : at;
}

static size_t entity_end(const struct view *text, size_t at) {
    uint8_t first = at_of(text, at + 1), second = at_of(text, at + 2);
    if (first == '#' && (second | 32) == 'x')
        return past_semicolon(text, past_number(text, at + 3, 1, MAX_HEX));
    if (first == '#')
        return past_semicolon(text, past_number(text, at + 2, 0, MAX_DECIMALS));
    if (!is_letter(first))
        return 0;
    size_t end = at + 2, most = at + 1 + MAX_ENTITY;
    while (end < most && (is_letter(at_of(text, end)) || is_digit(at_of(text, end))))
        end++;
    return end > at + 2 && at_of(text, end) == ';' ? end + 1 : 0;
}

/* What belongs to a URL behind an encoded character. */
static size_t url_end(const struct view *text, size_t at) {
    static const byte_set outside = {[' '] = 1,  ['\t'] = 1, ['\r'] = 1, ['\n'] = 1,
                                     ['"'] = 1, ['\''] = 1, ['<'] = 1,  ['>'] = 1};
    while (at < text->size && !outside[text->data[at]])
        at++;
    return at;
}

static int is_name(uint8_t byte) {
    return is_letter(byte) || is_digit(byte) || byte == '_' || byte == '.' || byte == '-';
}

static int is_plain_value(uint8_t byte) {
    return is_letter(byte) || is_digit(byte) || byte == '.' || byte == ',';
}

/* A name in a query, and its value with at least one encoded character. */
static size_t query_end(const struct view *text, size_t at) {
    size_t end = at + 1;
    while (end <= at + MAX_NAME && is_name(at_of(text, end)))
        end++;
    if (end == at + 1 || at_of(text, end) != '=')
        return 0;
    end++;
    while (is_plain_value(at_of(text, end)))
        end++;
    uint8_t sign = at_of(text, end), next = at_of(text, end + 1);
    if (sign != '+' && sign != '%')
        return 0;
    return is_letter(next) || is_digit(next) || next == '%' ? url_end(text, end + 2) : 0;
}

/* `\u{41}`, `\u0041` or `\U00000041`. */
static size_t point_end(const struct view *text, size_t at) {
    if (at_of(text, at) != '\\' || (at_of(text, at + 1) | 32) != 'u')
        return 0;
    if (at_of(text, at + 2) == '{') {
        size_t end = past_number(text, at + 3, 1, MAX_HEX);
        return end && at_of(text, end) == '}' ? end + 1 : 0;
    }
    size_t end = past_hex(text, at + 2, 8) - at - 2;
    return end == 8 ? at + 10 : end >= 4 ? at + 6 : 0;
}

static size_t byte_end(const struct view *text, size_t at) {
    return at_of(text, at) == '\\' && (at_of(text, at + 1) | 32) == 'x' && has_pair(text, at + 2)
               ? at + 4
               : 0;
}

static int is_octal(uint8_t byte, uint8_t most) { return byte >= '0' && byte <= most; }

static size_t octal_end(const struct view *text, size_t at) {
    return at_of(text, at) == '\\' && is_octal(at_of(text, at + 1), '3') &&
                   is_octal(at_of(text, at + 2), '7') && is_octal(at_of(text, at + 3), '7')
               ? at + 4
               : 0;
}

static int is_blank(uint8_t byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r' && byte != '\v'); }

/* `U+0041`, and a blank behind it. */
static size_t named_end(const struct view *text, size_t at) {
    if ((at_of(text, at) | 32) != 'u' || at_of(text, at + 1) != '+')
        return 0;
    size_t end = past_hex(text, at + 2, MAX_HEX);
    if (end < at + 6)
        return 0;
    return is_blank(at_of(text, end)) ? end + 1 : end;
}

static size_t quoted_end(const struct view *text, size_t at) {
    return at_of(text, at) == '=' && is_capital_hex(at_of(text, at + 1)) &&
                   is_capital_hex(at_of(text, at + 2))
               ? at + 3
               : 0;
}

static size_t broken_end(const struct view *text, size_t at) {
    size_t end = at_of(text, at + 1) == '\r' ? at + 2 : at + 1;
    return at_of(text, end) == '\n' ? end + 1 : 0;
}

/* As many as follow each other. */
static size_t many(const struct view *text, size_t at,
                   size_t (*next)(const struct view *text, size_t at)) {
    size_t end = 0, last = next(text, at);
    while (last) {
        end = last;
        last = next(text, end);
    }
    return end;
}

static size_t equals_end(const struct view *text, size_t at) {
    size_t end = many(text, at, quoted_end);
    return end ? end : broken_end(text, at);
}

static size_t escape_end(const struct view *text, size_t at) {
    size_t end = many(text, at, byte_end);
    end = end ? end : many(text, at, octal_end);
    return end ? end : many(text, at, point_end);
}

static size_t token_end(const struct view *text, size_t at, uint8_t *kind) {
    size_t end;
    switch (text->data[at]) {
    case '&':
        end = entity_end(text, at);
        end = end ? end : query_end(text, at);
        *kind = end && text->data[end - 1] != ';' && at_of(text, at + 1) != '#' ? URL : HTML;
        return end;
    case '?':
        *kind = URL;
        return query_end(text, at);
    case '%':
        *kind = URL;
        return has_pair(text, at + 1) ? url_end(text, at + 3) : 0;
    case '\\':
        *kind = ESCAPES;
        return escape_end(text, at);
    case '=':
        *kind = QUOTED;
        return equals_end(text, at);
    default: /* most of these letters are in words */
        *kind = ESCAPES;
        return at_of(text, at + 1) == '+' ? many(text, at, named_end) : 0;
    }
}

struct found {
    struct token *tokens;
    size_t count, room;
};

static int add(struct found *found, size_t start, size_t end, uint8_t kind) {
    if (found->count < found->room)
        found->tokens[found->count] = (struct token){(uint32_t)start, (uint32_t)end, kind};
    return found->count++ < found->room;
}

/* The tokens of a text, in order and apart; returns one more than `room` where there are more. */
size_t cw_tokens(const uint8_t *image, size_t size, struct token *tokens, size_t room) {
    static const byte_set signs = {['&'] = 1, ['?'] = 1, ['%'] = 1, ['\\'] = 1,
                                   ['='] = 1, ['U'] = 1, ['u'] = 1};
    struct view text = {image, size};
    struct found found = {tokens, 0, room};
    for (size_t at = 0; at < size;) {
        uint8_t kind;
        size_t end = signs[image[at]] ? token_end(&text, at, &kind) : 0;
        if (end && !add(&found, at, end, kind))
            break;
        at = end ? end : at + 1;
    }
    return found.count;
}

static int add_equals(const uint8_t *image, size_t start, size_t end, struct found *found) {
    struct view text = {image, end};
    for (size_t at = start; at < end;) {
        size_t past = image[at] == '=' ? equals_end(&text, at) : 0;
        if (past && !add(found, at, past, QUOTED))
            return 0;
        at = past ? past : at + 1;
    }
    return 1;
}

/* The signs of quoted-printable, also those that were taken for a part of a URL. Where there are more
 * URLs than `few`, they are looked for in all of the text. Returns as `cw_tokens`. */
size_t cw_equals(const uint8_t *image, size_t size, const struct token *tokens, size_t count,
                 size_t few, struct token *equals, size_t room) {
    struct found found = {equals, 0, room};
    size_t urls = 0;
    for (size_t n = 0; n < count; n++)
        urls += tokens[n].kind == URL;
    if (urls > few) {
        add_equals(image, 0, size, &found);
        return found.count;
    }
    for (size_t n = 0; n < count && found.count <= room; n++) {
        struct token token = tokens[n];
        if (token.start > token.end || token.end > size)
            continue;
        /* A line's end behind it may belong to its last sign. */
        if (token.kind == URL)
            add_equals(image, token.start, size - token.end < 2 ? size : (size_t)token.end + 2, &found);
        else if (token.kind == QUOTED)
            add(&found, token.start, token.end, QUOTED);
    }
    return found.count;
}
