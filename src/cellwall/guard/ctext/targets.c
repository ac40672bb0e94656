/* What a passage points at: addresses, paths, code, amounts, times, persons.
 *
 * Each target is what one regular expression would say; tests/plain_passages has them. All are looked
 * for in one pass, at the characters that they need. */
#include "passages.h"

#define MAX_HOST 64
#define MIN_ACCOUNT_DIGITS 9

static int all_kinds(const struct letters *text, size_t at, size_t count, int kind) {
    for (size_t end = at + count; at < end; at++)
        if (!is_kind(text, at, kind))
            return 0;
    return 1;
}

static int is_large_or_digit(uint32_t code) { return is_large(code) || is_ascii_digit(code); }

/* Whether these ASCII letters stand at `at`, large or small. */
static int has_in_any_case(const struct letters *text, size_t at, const char *these) {
    for (; *these; these++, at++)
        if (at >= text->size || text->codes[at] >= 0x80 ||
            (text->codes[at] | 0x20) != (uint8_t)*these)
            return 0;
    return 1;
}

static int is_mail(const struct letters *text, size_t at) {
    if (has_in_any_case(text, at + 1, "example"))
        return 1;
    if (at >= 8 && has_in_any_case(text, at - 8, "redacted"))
        return 1;
    if (at == 0 || !(follows_word(text, at) || text->codes[at - 1] == '.' ||
                     text->codes[at - 1] == '+' || text->codes[at - 1] == '-'))
        return 0;
    size_t end = at + 1;
    while (end - at <= MAX_HOST && (is_kind(text, end, WORD) || has(text, end, "-")))
        end++;
    return end > at + 1 && has(text, end, ".") && is_kind(text, end + 1, WORD);
}

static int is_domain(const struct letters *text, size_t dot) {
    static const char *const names[] = {"com", "net", "org", "io", "dev", "ru", "xyz"};
    static const uint8_t sizes[] = {3, 3, 3, 2, 3, 2, 3};
    if (!follows_word(text, dot))
        return 0;
    for (size_t i = 0; i < sizeof sizes; i++)
        if (has(text, dot + 1, names[i]) && !is_kind(text, dot + 1 + sizes[i], WORD))
            return 1;
    return 0;
}

static int is_quote_or_blank(const struct letters *text, size_t at) {
    uint32_t code = text->codes[at];
    return text->kinds[at] & SPACE || code == '\'' || code == '"' || code == '`' || code == '(';
}

/* A slash with a name, at the start or behind a blank, a quote, a tilde or dots. */
static int is_path(const struct letters *text, size_t slash) {
    size_t start = slash;
    if (!is_kind(text, slash + 1, WORD) && !has(text, slash + 1, ".") && !has(text, slash + 1, "-"))
        return 0;
    if (start == 0 || is_quote_or_blank(text, start - 1))
        return 1;
    uint32_t last = text->codes[--start];
    if (last != '~' && last != '.')
        return 0;
    if (start == 0 || is_quote_or_blank(text, start - 1))
        return 1;
    if (last != '.' || text->codes[--start] != '.')
        return 0;
    return start == 0 || is_quote_or_blank(text, start - 1);
}

static int is_hidden_file(const struct letters *text, size_t dot) {
    return (has(text, dot, ".env") || has(text, dot, ".ssh")) && !is_kind(text, dot + 4, WORD);
}

static int is_command(const struct letters *text, size_t at) {
    static const char *const names[] = {"curl ", "wget ", "rm - ", "sudo ",
                                        "bash ", "pip ",  "npm ",  "git "};
    static const uint8_t sizes[] = {5, 5, 5, 5, 5, 4, 4, 4};
    for (size_t i = 0; i < sizeof sizes; i++)
        if (has(text, at, names[i]))
            return at + sizes[i] < text->size && !(text->kinds[at + sizes[i]] & SPACE);
    return 0;
}

static int is_code_mark(const struct letters *text, size_t at) {
    if (text->codes[at] == '$')
        return has(text, at + 1, "(");
    return at + 2 < text->size && text->codes[at + 1] != '`' && text->codes[at + 2] != '`';
}

static int is_tool_name(const struct letters *text, size_t underscore) {
    const uint32_t *codes = text->codes + underscore;
    return underscore >= 2 && underscore + 2 < text->size && is_small(codes[-2]) &&
           is_small(codes[-1]) && is_small(codes[1]) && is_small(codes[2]);
}

/* A sign of money, and a digit directly or one blank behind it. */
static int is_priced(const struct letters *text, size_t sign) {
    return is_kind(text, sign + 1, DIGIT) ||
           (is_kind(text, sign + 1, SPACE) && is_kind(text, sign + 2, DIGIT));
}

static int is_currency(const struct letters *text, size_t at) {
    static const char *const names[] = {"USD", "EUR", "BTC", "dollars", "euros"};
    static const uint8_t sizes[] = {3, 3, 3, 7, 5};
    for (size_t i = 0; i < sizeof sizes; i++)
        if (has(text, at, names[i]) && !is_kind(text, at + sizes[i], WORD))
            return 1;
    return 0;
}

static size_t past_digits(const struct letters *text, size_t at) {
    while (is_kind(text, at, DIGIT))
        at++;
    return at;
}

/* A run of digits that begins a word. */
static uint64_t of_digits(const struct letters *text, size_t at) {
    size_t end = past_digits(text, at), size = end - at;
    if (size >= MIN_ACCOUNT_DIGITS && !is_kind(text, end, WORD))
        return BIT(TO_ACCOUNT);
    if (size == 4)
        return has(text, end, "-") && all_kinds(text, end + 1, 2, DIGIT) &&
                       has(text, end + 3, "-") && all_kinds(text, end + 4, 2, DIGIT) &&
                       !is_kind(text, end + 6, WORD)
                   ? BIT(AT_TIME)
                   : 0;
    if (size > 2)
        return 0;
    if (has(text, end, ":") && all_kinds(text, end + 1, 2, DIGIT) && !is_kind(text, end + 3, WORD))
        return BIT(AT_TIME);
    end += has(text, end, " ");
    return (has(text, end, "am") || has(text, end, "pm")) && !is_kind(text, end + 2, WORD)
               ? BIT(AT_TIME)
               : 0;
}

/* What begins a word: the number of an account, or a command. */
static uint64_t of_word(const struct letters *text, size_t at) {
    uint32_t code = text->codes[at];
    if (is_large(code)) {
        if (at + 12 > text->size || !is_large(text->codes[at + 1]) ||
            !all_kinds(text, at + 2, 2, DIGIT))
            return 0;
        for (size_t place = at + 4; place < at + 12; place++)
            if (!is_large_or_digit(text->codes[place]))
                return 0;
        return BIT(TO_ACCOUNT);
    }
    if (code == '0' && has(text, at + 1, "x") && at + 8 <= text->size) {
        size_t place = at + 2;
        while (place < at + 8 && (is_ascii_digit(text->codes[place]) ||
                                  (text->codes[place] >= 'a' && text->codes[place] <= 'f')))
            place++;
        if (place == at + 8)
            return BIT(TO_ACCOUNT);
    }
    if (has(text, at, "bc1") && all_kinds(text, at + 3, 5, WORD))
        return BIT(TO_ACCOUNT);
    return is_command(text, at) ? BIT(TO_CODE) : 0;
}

static int is_person(const struct letters *text, size_t blank) {
    const uint32_t *codes = text->codes + blank;
    return blank > 0 && blank + 3 < text->size && (is_small(codes[-1]) || codes[-1] == ',') &&
           is_large(codes[1]) && is_small(codes[2]) && is_small(codes[3]);
}

static int opens_quote(uint32_t code) {
    return code == '"' || code == '\'' || code == 0x201c || code == 0x2018 || code == 0xab ||
           code == 0x300c;
}

static int closes_quote(uint32_t code) {
    return code == '"' || code == '\'' || code == 0x201d || code == 0x2019 || code == 0xbb ||
           code == 0x300d;
}

static uint64_t of_sign(const struct letters *text, size_t at) {
    switch (text->codes[at]) {
    case '@':
        return is_mail(text, at) ? BIT(TO_MAIL) : 0;
    case ':':
        return (at >= 4 && has(text, at - 4, "http")) || (at >= 5 && has(text, at - 5, "https"))
                   ? BIT(TO_ADDRESS)
                   : 0;
    case '.':
        return ((at >= 3 && has(text, at - 3, "www")) || is_domain(text, at) ? BIT(TO_ADDRESS) : 0) |
               (is_hidden_file(text, at) ? BIT(TO_PATH) : 0);
    case '/':
        return is_path(text, at) ? BIT(TO_PATH) : 0;
    case '`':
        return is_code_mark(text, at) ? BIT(TO_CODE) : 0;
    case '$':
        return (is_code_mark(text, at) ? BIT(TO_CODE) : 0) |
               (is_priced(text, at) ? BIT(AMOUNT) : 0);
    case 0x20ac:
    case 0xa3:
        return is_priced(text, at) ? BIT(AMOUNT) : 0;
    case '_':
        return is_tool_name(text, at) ? BIT(TO_TOOL) : 0;
    case ' ':
        return is_person(text, at) ? BIT(TO_PERSON) : 0;
    default:
        return 0;
    }
}

/* Whether a quotation of two characters or more ends. `opened` is the place behind the first quote
 * since the last one that closes, and 0 if there is none. */
static int ends_quote(uint32_t code, size_t at, size_t *opened) {
    if (!closes_quote(code)) {
        if (!*opened && opens_quote(code))
            *opened = at + 1;
        return 0;
    }
    int is_long = *opened && at - *opened >= 2;
    *opened = opens_quote(code) ? at + 1 : 0;
    return is_long;
}

uint64_t targets_of(const struct letters *passage) {
    uint64_t found = 0;
    size_t opened = 0;
    int has_money = 0;
    for (size_t at = 0; at < passage->size; at++) {
        uint32_t code = passage->codes[at];
        uint8_t kind = passage->kinds[at];
        if (kind & WORD && !follows_word(passage, at))
            found |= of_word(passage, at) | (kind & DIGIT ? of_digits(passage, at) : 0);
        if (kind & DIGIT) {
            size_t next = at + 1;
            if (is_currency(passage, next) ||
                (is_kind(passage, next, SPACE) && is_currency(passage, next + 1)))
                found |= BIT(AMOUNT);
            if (is_ascii_digit(code))
                found |= BIT(NUMBER);
        }
        if (!(kind & LETTER))
            found |= of_sign(passage, at);
        if (ends_quote(code, at, &opened))
            found |= BIT(TO_QUOTE);
        has_money |= code == '$' || code == 0x20ac || code == 0xa3;
    }
    /* Digits of other scripts alone are none of these. */
    if (!(found & BIT(NUMBER)))
        found &= ~(BIT(TO_ACCOUNT) | BIT(AT_TIME) | (has_money ? 0 : BIT(AMOUNT)));
    return found;
}
