/* Sentences that could be a request, around the words that begin one; see detect/tasks/candidates.py,
 * which has the same in Python, for cues of other kinds and where letters beyond ASCII matter. */
#include <string.h>

#include "passes.h"

/* What stands in a marked text for a character beyond ASCII. */
#define OTHER 0x80
#define CLOSING 0x81 /* a quote */
#define BULLET 0x82
#define BLANK 0x83

#define MAX_CHARACTERS 360 /* of one sentence */
#define LEAD_CHARACTERS 60
#define UNTOLD SIZE_MAX       /* Python has to look */
#define NONE (SIZE_MAX - 1) /* no sentence begins here */

enum kind { NAMED, NAMED_QUESTION, AFTER, AFTER_QUESTION, BY_PYTHON };

static uint8_t mark_of(uint32_t code)
{
    if (code == 0x2019 || code == 0x201d)
        return CLOSING;
    if (code == 0x2022)
        return BULLET;
    if (code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
        code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000)
        return BLANK;
    return OTHER;
}

/* One byte for each character of a text in UTF-8: itself if it is ASCII, else a mark. `marked` has
 * room for `size` bytes; returns how many were written. */
size_t cw_marked(const uint8_t *data, size_t size, uint8_t *marked)
{
    size_t count = 0, at = 0;
    while (at < size) {
        uint64_t word;
        if (size - at >= sizeof word) {
            memcpy(&word, data + at, sizeof word);
            if (!(word & 0x8080808080808080u)) {
                memcpy(marked + count, &word, sizeof word);
                at += sizeof word;
                count += sizeof word;
                continue;
            }
        }
        uint32_t code = 0;
        size_t length = cw_decoded(data, size, at, &code);
        marked[count++] = length && code < 0x80 ? (uint8_t)code : length ? mark_of(code) : OTHER;
        at += length ? length : 1;
    }
    return count;
}

static int is_small(uint8_t byte)
{
    return byte >= 'a' && byte <= 'z';
}

static int is_tab_or_space(uint8_t byte)
{
    return byte == ' ' || byte == '\t';
}

static int is_blank(uint8_t byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r') || (byte >= 0x1c && byte <= 0x1f) ||
           byte == BLANK;
}

static int is_letter_or_digit(uint8_t byte)
{
    return is_small(byte | 0x20) || (byte >= '0' && byte <= '9');
}

static int is_one_of(uint8_t byte, const char *bytes)
{
    return byte && byte < 0x80 && strchr(bytes, byte);
}

static int is_closing(uint8_t byte)
{
    return byte == CLOSING || is_one_of(byte, "\"')]");
}

static size_t past_blanks(const uint8_t *text, size_t at, size_t limit)
{
    while (at < limit && is_blank(text[at]))
        at++;
    return at;
}

static size_t past_tabs_and_spaces(const uint8_t *text, size_t at, size_t limit)
{
    while (at < limit && is_tab_or_space(text[at]))
        at++;
    return at;
}

/* Whether a stop before `at` ends a sentence, by what follows it. */
static int ends_before(const uint8_t *text, size_t at, size_t limit)
{
    size_t next = past_blanks(text, at, limit);
    if (next == limit || (next > at && !is_small(text[next])))
        return 1;
    size_t line = past_tabs_and_spaces(text, at, limit);
    return (line < limit && text[line] == '\n') || is_one_of(text[at], "|<\\,}");
}

/* Where the sentence ends that is read up to `past`. */
static size_t end_of(const uint8_t *text, size_t size, size_t start, size_t past)
{
    size_t limit = size - start < MAX_CHARACTERS ? size : start + MAX_CHARACTERS;
    for (size_t at = past < limit ? past : limit; at < limit; at++) {
        uint8_t byte = text[at];
        if (byte == '|')
            return at;
        if (byte == '\n') {
            size_t next = past_tabs_and_spaces(text, at + 1, limit);
            if (next == limit || !(is_small(text[next]) || is_one_of(text[next], "(\"'")))
                return at;
        }
        if (byte == '.' || byte == '!' || byte == '?') {
            size_t last = at + 1;
            while (last < limit && is_closing(text[last]))
                last++;
            for (; last > at; last--)
                if (ends_before(text, last, limit))
                    return last;
        }
    }
    return limit;
}

/* Where the sentence of a word with a capital letter begins. */
static size_t named_start(const uint8_t *text, size_t at)
{
    if (at == 0)
        return at;
    uint8_t last = text[at - 1];
    if (last == OTHER)
        return UNTOLD;
    if (!is_tab_or_space(last)) {
        int is_escape = at >= 2 && text[at - 2] == '\\' && (last == 'n' || last == 't');
        return is_letter_or_digit(last) && !is_escape ? NONE : at;
    }
    if (at == 1)
        return at;
    last = text[at - 2];
    if (last == OTHER)
        return UNTOLD;
    if (is_letter_or_digit(last))
        return NONE;
    if (is_one_of(last, ".!?:|"))
        return at;
    /* Nothing but marks since the line's begin, or what ends a sentence. */
    size_t low = at < LEAD_CHARACTERS ? 0 : at - LEAD_CHARACTERS, end = at;
    for (size_t i = at; i > low; i--)
        if (text[i - 1] == '\n') {
            low = i;
            break;
        }
    while (end > low && is_tab_or_space(text[end - 1]))
        end--;
    while (end > low && is_closing(text[end - 1]))
        end--;
    while (end > low && (text[end - 1] == BULLET || is_one_of(text[end - 1], "#*/>-;%")))
        end--;
    return end == low || is_one_of(text[end - 1], ".!?:|") ? at : NONE;
}

static size_t start_of(const uint8_t *text, size_t at, enum kind kind)
{
    if (kind == BY_PYTHON)
        return UNTOLD;
    if (kind == NAMED || kind == NAMED_QUESTION)
        return named_start(text, at);
    /* In lower case after an open line: prose that was wrapped there. */
    return at == 0 || is_one_of(text[at - 1], ".!?:|>`\n") ? at + 1 : NONE;
}

static int is_candidate(const uint8_t *text, size_t at, size_t start, size_t end, enum kind kind)
{
    if ((kind == NAMED_QUESTION || kind == AFTER_QUESTION) &&
        (at >= end || !memchr(text + at, '?', end - at)))
        return 0;
    size_t spaces = 0;
    for (size_t i = start; i < end && spaces < 2; i++)
        spaces += text[i] == ' ';
    return spaces == 2;
}

/* Puts cues in the order of their begins. They come in that of their ends, so none is far from its
 * place. Each is made one number: its begin, and its own number in the lower 20 bits. */
void cw_cues_sort(uint64_t *cues, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        uint64_t cue = cues[i];
        size_t at = i;
        for (; at > 0 && cues[at - 1] > cue; at--)
            cues[at] = cues[at - 1];
        cues[at] = cue;
    }
}

/* The sentences of cues from `*next` on, in order, each once and none of them before `*done`. Both
 * are moved on; where Python has to look, it ends with that cue as the next. Returns how many were
 * found, at most one for each cue. */
size_t cw_candidates(const uint8_t *text, size_t size, const uint64_t *cues, size_t count,
                     const uint8_t *kinds, const uint8_t *lengths, size_t *next, size_t *done,
                     uint64_t *starts, uint64_t *ends)
{
    size_t found = 0;
    for (; *next < count; ++*next) {
        size_t at = cues[*next] >> 20, number = cues[*next] & 0xfffff;
        if (at < *done || at >= size || lengths[number] > size - at)
            continue;
        size_t start = start_of(text, at, kinds[number]);
        if (start == UNTOLD)
            break;
        if (start == NONE || start < *done)
            continue;
        size_t end = end_of(text, size, start, at + lengths[number]);
        if (!is_candidate(text, at, start, end, kinds[number]))
            continue;
        starts[found] = start;
        ends[found++] = end;
        *done = end;
    }
    return found;
}

/* How many other sentences are near, for each of them; they stand in order, and apart. */
void cw_rivals(const uint64_t *starts, const uint64_t *ends, size_t count, uint64_t near,
               uint32_t *rivals)
{
    size_t low = 0, high = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t first = starts[i] < near ? 0 : starts[i] - near, last = ends[i] + near;
        while (low < i && starts[low] < first)
            low++;
        while (high < count && starts[high] <= last)
            high++;
        rivals[i] = (uint32_t)(high - low - 1);
    }
}
