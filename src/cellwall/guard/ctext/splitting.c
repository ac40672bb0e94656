/* Splits a text into passages: sentences and lines, and short lines that are parts of one sentence.
 * tests/plain_passages has the same as regular expressions. */
#include "passages.h"

#define MAX_PASSAGE 600
#define MIN_UNREAD 40 /* a longer piece is a passage also without letters */
#define MAX_PART 60
#define MAX_PARTS 16
#define MAX_JOINED_WORDS 6
#define MAX_CLOSERS 3
#define MAX_TAG 80
#define MAX_LABEL 12

#define CODES 0x110000u

/* Copies the kind of each character out of a table with one for each code point. Returns 0 if one
 * is not in the table yet. */
int cw_kinds(const uint32_t *codes, size_t size, const uint8_t *table, uint8_t *kinds) {
    uint8_t all = KNOWN;
    for (size_t at = 0; at < size; at++)
        all &= kinds[at] = codes[at] < CODES ? table[codes[at]] : KNOWN;
    return all != 0;
}

static int is_stop(uint32_t code) { return code == '.' || code == '!' || code == '?'; }

/* A stop of a script that writes no blank behind it. */
static int is_full_stop(uint32_t code) {
    return code == 0x3002 || code == 0xff01 || code == 0xff1f || code == 0x0964 || code == 0x061f;
}

static int is_closer(uint32_t code) {
    return code == '"' || code == '\'' || code == ')' || code == ']' || code == '*' || code == '_';
}

/* Whether the next line goes on in lower case, as wrapped prose does. */
static int goes_on(const struct letters *text, size_t at) {
    while (at < text->size && (text->codes[at] == ' ' || text->codes[at] == '\t' ||
                               text->codes[at] == '>' || text->codes[at] == '|' ||
                               text->codes[at] == '*' || text->codes[at] == '#'))
        at++;
    return at < text->size && is_small(text->codes[at]);
}

/* Blanks behind a stop and what closes it, unless small letters go on behind one blank. */
static size_t blanks_end(const struct letters *text, size_t at) {
    size_t closers = at, end;
    while (closers < text->size && closers - at < MAX_CLOSERS && is_closer(text->codes[closers]))
        closers++;
    for (end = closers; is_kind(text, end, SPACE); end++)
        ;
    if (end == closers)
        return 0;
    if (end == text->size || !is_small(text->codes[end]))
        return end;
    return end - closers > 1 ? end - 1 : 0;
}

/* A capital letter with a small one, or a label in capitals: a sentence without a blank before. */
static int begins_sentence(const struct letters *text, size_t at) {
    if (at >= text->size || !is_large(text->codes[at]))
        return 0;
    size_t end = ++at;
    if (at < text->size && is_small(text->codes[at]))
        return 1;
    while (end < text->size && end - at <= MAX_LABEL && is_large(text->codes[end]))
        end++;
    return end > at && end - at <= MAX_LABEL && end < text->size && text->codes[end] == ':';
}

/* The end of what separates two sentences from `at` on; 0 if nothing does. */
static size_t break_end(const struct letters *text, size_t at) {
    if (at >= text->size)
        return 0;
    uint32_t code = text->codes[at], last = at ? text->codes[at - 1] : 0;
    if (code == '\n' && !goes_on(text, at + 1))
        return at + 1;
    if (at && is_stop(last)) {
        size_t end = blanks_end(text, at);
        if (end)
            return end;
    }
    if (is_stop(code) && (is_small(last) || is_ascii_digit(last) || last == '%') &&
        begins_sentence(text, at + 1))
        return at + 1;
    return code == '\\' && has(text, at + 1, "n") ? at + 2 : 0;
}

static size_t past_name(const struct letters *text, size_t at) {
    static const char *const names[] = {"p",  "div", "td", "tr", "li", "br", "h1", "h2", "h3", "h4",
                                        "h5", "h6",  "span", "caption", "a", "b", "title"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t end = at;
        for (const char *name = names[i]; *name; name++)
            end++;
        if (has(text, at, names[i]) && !is_kind(text, end, WORD))
            return end;
    }
    return 0;
}

/* The end of a comment's mark or of a tag that begins here. */
static size_t tag_end(const struct letters *text, size_t at) {
    if (has(text, at, "<!--"))
        return at + 4;
    if (has(text, at, "-->"))
        return at + 3;
    if (!has(text, at, "<"))
        return 0;
    size_t name = past_name(text, at + 1 + has(text, at + 1, "/"));
    for (size_t end = name; name && end < text->size && end - name <= MAX_TAG; end++) {
        if (text->codes[end] == '>')
            return end + 1;
        if (text->codes[end] == '<')
            break;
    }
    return 0;
}

size_t past_letters(const struct letters *text, size_t at) {
    if (is_kind(text, at, LETTER))
        for (at++; is_kind(text, at, LETTER | MARK); at++)
            ;
    return at;
}

static int is_joint(uint32_t code) {
    return code == ' ' || code == ',' || code == '\'' || code == 0x2019 || code == '-';
}

/* A line of some words, with neither a stop nor a mark of data. */
static int is_part_of_sentence(const struct letters *line) {
    size_t at = 0, start;
    const uint32_t *codes = line->codes;
    while (at < line->size && (codes[at] == ' ' || codes[at] == '\t'))
        at++;
    if (at < line->size && (codes[at] == '>' || codes[at] == '|'))
        at += 1 + has(line, at + 1, " ");
    at = past_letters(line, start = at);
    if (at == start)
        return 0;
    for (int words = 0;; words++) {
        size_t next = at;
        while (next < line->size && is_joint(codes[next]))
            next++;
        if (next == at || !is_kind(line, next, LETTER))
            break;
        if (next - at > 2 || words == MAX_JOINED_WORDS)
            return 0;
        at = past_letters(line, next);
    }
    at += has(line, at, ",");
    while (at < line->size && (codes[at] == ' ' || codes[at] == '\t' || codes[at] == '\r'))
        at++;
    return at + has(line, at, "\n") == line->size;
}

struct splitter {
    const struct letters *text;
    uint32_t *starts, *ends;
    size_t count, room;
    size_t held_start, held_end; /* short lines that wait for the end of their sentence */
    int parts;
};

static void note(struct splitter *made) {
    if (made->count < made->room) {
        made->starts[made->count] = (uint32_t)made->held_start;
        made->ends[made->count] = (uint32_t)made->held_end;
    }
    made->count++;
}

/* Attack: a sentence broken into short lines that begin with capitals, so that no line says much. */
static void add_piece(struct splitter *made, size_t start, size_t end) {
    struct letters piece = part_of(made->text, start, end);
    int is_short = piece.size <= MAX_PART;
    int is_part = is_short && is_part_of_sentence(&piece);
    if (made->parts && start == made->held_end && is_short &&
        end - made->held_start <= MAX_PASSAGE) {
        made->held_end = end;
        made->parts++;
        if (is_part && made->parts < MAX_PARTS)
            return;
        is_part = 0;
    } else {
        if (made->parts)
            note(made);
        made->held_start = start;
        made->held_end = end;
    }
    made->parts = is_part;
    if (!is_part)
        note(made);
}

static int has_letters(const struct letters *text, size_t at, size_t end) {
    while (at < end && !(text->kinds[at] & ALPHA))
        at++;
    return at < end;
}

static size_t add_pieces(struct splitter *made, size_t at, size_t end) {
    while (at < end) {
        size_t stop = end - at < MAX_PASSAGE ? end : at + MAX_PASSAGE;
        if (stop - at > MIN_UNREAD || has_letters(made->text, at, stop))
            add_piece(made, at, stop);
        at = stop;
    }
    return at;
}

/* Start and end of each passage that has letters, in order and apart. Returns how many there are, of
 * which no more than `room` are told; never more than characters. */
size_t cw_passages_split(const struct letters *text, uint32_t *starts, uint32_t *ends,
                         size_t room) {
    struct splitter made = {.text = text, .starts = starts, .ends = ends, .room = room};
    size_t begin = 0;
    for (size_t at = 0; at <= text->size;) {
        size_t end = break_end(text, at);
        if (!end && at && is_full_stop(text->codes[at - 1]))
            begin = add_pieces(&made, begin, at);
        if (!end)
            end = tag_end(text, at);
        if (end)
            begin = add_pieces(&made, begin, end);
        at = end ? end : at + 1;
    }
    add_pieces(&made, begin, text->size);
    if (made.parts)
        note(&made);
    return made.count;
}
