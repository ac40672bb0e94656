/* The form of a passage: how it begins and ends, and what marks it has.
 *
 * Each trait is what one regular expression would say; tests/plain_passages has them. */
#include "passages.h"

#define INDENT 4
#define MAX_KEY_MARKS 3
#define MAX_KEY 30

static int is_quote(uint32_t code) { return code == '"' || code == '\''; }

static int is_in_key(const struct letters *text, size_t at) {
    uint32_t code = text->codes[at];
    return text->kinds[at] & WORD || code == ' ' || code == '.' || code == '-';
}

static int is_list(const struct letters *text, size_t at) {
    uint32_t code = text->codes[at];
    if (code == '-' || code == '*' || code == '+' || code == 0x2022)
        return is_kind(text, at + 1, SPACE);
    return text->kinds[at] & DIGIT && (has(text, at + 1, ".") || has(text, at + 1, ")")) &&
           is_kind(text, at + 2, SPACE);
}

/* Whether a colon or an equals sign stands behind a key, a closing quote and blanks. */
static int follows_key(const struct letters *text, size_t at) {
    while (at && text->kinds[at - 1] & SPACE)
        if (text->codes[--at] == ' ')
            return 1; /* belongs to a key itself */
    if (!at)
        return 0;
    return is_in_key(text, at - 1) ||
           (is_quote(text->codes[at - 1]) && at > 1 && is_in_key(text, at - 2));
}

static int is_markup(const struct letters *text, size_t at) {
    size_t end = at + 1 + has(text, at + 1, "/"), start = end;
    if (text->codes[at] == '<') {
        if (end >= text->size || !is_small(text->codes[end]))
            return 0;
        while (is_kind(text, end, WORD) || has(text, end, "-"))
            end++;
        return has(text, end, ">");
    }
    while (end < text->size && is_large(text->codes[end]))
        end++;
    return end - start >= 3 && has(text, end, "]");
}

static int is_tag(const struct letters *text, size_t at) {
    switch (text->codes[at]) {
    case '<':
    case '[':
        return is_markup(text, at);
    case '*':
        return has(text, at, "***");
    case '=':
        return has(text, at, "===");
    case '#':
        return has(text, at, "###");
    case '-':
        return has(text, at, "---");
    default:
        return 0;
    }
}

static uint64_t of_end(const struct letters *text, size_t end) {
    while (end && (is_quote(text->codes[end - 1]) || text->codes[end - 1] == ')' ||
                   text->codes[end - 1] == ']'))
        end--;
    switch (end ? text->codes[end - 1] : 0) {
    case '?':
    case 0xff1f:
    case 0x061f:
        return BIT(ENDS_QUESTION);
    case '!':
    case 0xff01:
        return BIT(ENDS_LOUD);
    case '.':
    case 0x3002:
    case 0x0964:
        return BIT(ENDS_STOP);
    default:
        return 0;
    }
}

/* Whether something is announced. */
int ends_colon(const struct letters *passage) {
    size_t end = without_blanks(passage);
    return end && passage->codes[end - 1] == ':';
}

/* A call, a definition or a return. */
static int is_statement(const struct letters *text, size_t at) {
    switch (text->codes[at]) {
    case '(':
        if (!follows_word(text, at))
            return 0;
        for (at++; is_kind(text, at, WORD); at++)
            ;
        return has(text, at, ")");
    case 'd':
        return has(text, at, "def ") && !follows_word(text, at) && is_kind(text, at + 4, WORD);
    case 'r':
        return has(text, at, "return") && !follows_word(text, at) && !is_kind(text, at + 6, WORD);
    case '=':
        return has(text, at, "=>") || has(text, at, "==");
    case ':':
        return has(text, at, "::");
    default:
        return 0;
    }
}

/* Whether a programmer wrote it for a machine. */
int is_code(const struct letters *passage) {
    size_t end = without_blanks(passage), indent = 0;
    if (end) {
        uint32_t last = passage->codes[end - 1];
        if (last == '{' || last == '}' || last == ';')
            return 1;
        while (passage->kinds[indent] & SPACE)
            indent++;
        if (indent >= INDENT)
            return 1;
    }
    for (size_t at = 0; at < passage->size; at++)
        if (is_statement(passage, at))
            return 1;
    return 0;
}

static int is_quoted(uint32_t code) {
    return code == '>' || code == '"' || code == 0x201c || code == '`' || code == '\'' ||
           code == '|';
}

uint64_t forms_of(const struct letters *passage) {
    size_t end = without_blanks(passage);
    uint64_t found = of_end(passage, end);
    for (size_t at = 0; at < passage->size; at++) {
        uint32_t code = passage->codes[at];
        if (passage->kinds[at] & LETTER)
            continue;
        if (is_list(passage, at))
            found |= BIT(LIST);
        if (code == '#' && is_kind(passage, at + 1, SPACE))
            found |= BIT(HEADING);
        if (is_quoted(code))
            found |= BIT(QUOTED);
        if ((code == ':' || code == '=') && at + 1 < end && follows_key(passage, at))
            found |= BIT(KEY);
        if (is_tag(passage, at))
            found |= BIT(TAG);
    }
    if (ends_colon(passage))
        found |= BIT(ENDS_COLON);
    return found | (is_code(passage) ? BIT(CODE) : 0);
}

static int is_key_mark(uint32_t code) {
    return code == '-' || code == '*' || code == '>' || code == '|' || code == ',' ||
           code == '{' || code == '[';
}

/* How far blanks, up to three marks and blanks again go. */
static size_t past_marks(const struct letters *text) {
    size_t at = 0, start;
    while (is_kind(text, at, SPACE))
        at++;
    start = at;
    while (at < text->size && at - start < MAX_KEY_MARKS && is_key_mark(text->codes[at]))
        at++;
    while (is_kind(text, at, SPACE))
        at++;
    return at;
}

/* Whether a key ends here that begins no later than where the marks before it may end. */
static int ends_key(const struct letters *text, size_t end, size_t marks) {
    size_t size = 0;
    while (size < end && size < MAX_KEY && is_in_key(text, end - size - 1))
        size++;
    return size && end - size <= marks;
}

/* Whether there are blanks alone from `at` on. */
static int is_blank_from(const struct letters *text, size_t at) {
    while (is_kind(text, at, SPACE))
        at++;
    return at == text->size;
}

/* A key that fills what stands from `at` on but for blanks at its end. */
static int fills_rest(const struct letters *text, size_t at) {
    size_t end = without_blanks(text);
    if (end <= at)
        return at < text->size && text->codes[at] == ' ';
    if (end - at > MAX_KEY)
        return 0;
    for (; at < end; at++)
        if (!is_in_key(text, at))
            return 0;
    return 1;
}

/* Whether a space among the blanks at the end, which marks alone stand before, can be the key. */
static int has_space(const struct letters *text, size_t marks) {
    size_t at = without_blanks(text);
    while (at < text->size && text->codes[at] != ' ')
        at++;
    return at < text->size && at <= marks;
}

/* What stands before the sign: marks, a quote, a key of 1 to 30 characters, a quote, blanks. A blank
 * may belong to the marks, to the key, or stand behind it. */
static int is_key(const struct letters *head) {
    size_t marks = past_marks(head), quotes[2], count = 0;
    for (size_t at = 0; at < head->size; at++)
        if (is_quote(head->codes[at])) {
            if (count == 2)
                return 0;
            quotes[count++] = at;
        }
    if (count == 0)
        return ends_key(head, without_blanks(head), marks) || has_space(head, marks);
    if (count == 1)
        return (quotes[0] <= marks && fills_rest(head, quotes[0] + 1)) ||
               (is_blank_from(head, quotes[0] + 1) && ends_key(head, quotes[0], marks));
    struct letters inner = part_of(head, quotes[0] + 1, quotes[1]);
    return quotes[0] <= marks && inner.size <= MAX_KEY && ends_key(&inner, inner.size, 0) &&
           is_blank_from(head, quotes[1] + 1);
}

/* Whether it begins with a key, a colon or an equals sign, and a value. */
int opens_key(const struct letters *passage) {
    size_t at = 0, end = without_blanks(passage);
    while (at < end && passage->codes[at] != ':' && passage->codes[at] != '=')
        at++;
    struct letters head = part_of(passage, 0, at);
    return at + 1 < end && is_key(&head);
}
