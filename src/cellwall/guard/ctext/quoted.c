/* Quoted-printable: signs of it, and whether a line is written in it. */
#include "inline.h"

#define MIN_BROKEN 60
#define MIN_RUN 12

/* In code an equals sign stands for itself; in quoted-printable it hardly ever does. */
static int is_quoted(const uint8_t *line, size_t size) {
    size_t signs = 0, quoted = 0, end = size;
    int has_space = 0, has_usual = 0;
    for (size_t at = 0; at < size; at++) {
        has_space |= line[at] == ' ';
        if (line[at] != '=')
            continue;
        signs++;
        if (size - at < 3 || hex_value(line[at + 1]) < 0 || hex_value(line[at + 2]) < 0 ||
            line[at + 1] >= 'a' || line[at + 2] >= 'a')
            continue;
        quoted++;
        has_usual |= (line[at + 1] == '2' && line[at + 2] == '0') ||
                     (line[at + 1] == '3' && line[at + 2] == 'D');
    }
    while (end && line[end - 1] == '\r')
        end--;
    int ends = end && line[end - 1] == '=';
    quoted += (size_t)ends;
    /* Where base64 ends a line, there is no space in it or there are two signs. */
    int is_broken = ends && !(end > 1 && line[end - 2] == '=') && (has_space || quoted > 1);
    if (quoted < signs)
        return quoted > 3 * (signs - quoted) || (is_broken && size >= MIN_BROKEN);
    return quoted > 2 || is_broken || has_usual;
}

/* Whether nothing of it is beyond ASCII; -1 where something of it is not seen. */
static int seen_in_ascii(const uint8_t *text, size_t size) {
    int is_seen = 1;
    for (size_t n = 0; n < size; n++) {
        if (text[n] >= 0x80)
            return 0;
        if (!((text[n] >= 0x20 && text[n] < 0x7f) || (text[n] >= '\t' && text[n] <= '\r') ||
              (text[n] >= 0x1c && text[n] < 0x20)))
            is_seen = -1;
    }
    return is_seen;
}

void add_quoted(struct edits *edits, const uint8_t *image, size_t size, const struct token *token) {
    if (token->start >= edits->line_end) {
        size_t first = line_start(image, token->start, 0), last = line_end(image, size, token->start);
        edits->line_end = last > token->start ? last : token->start + 1;
        edits->is_quoted = (uint32_t)is_quoted(image + first, edits->line_end - first);
    }
    if (!edits->is_quoted && token->end - token->start < MIN_RUN)
        return;
    size_t from = edits->text_size;
    if (image[token->start + 1] == '\r' || image[token->start + 1] == '\n') {
        add_edit(edits, token, from);
        return;
    }
    int is_seen = put_pairs(edits, image, token->start, token->end, 1)
                      ? seen_in_ascii(edits->text + from, edits->text_size - from)
                      : 0;
    if (is_seen > 0)
        add_edit(edits, token, from);
    else if (is_seen < 0)
        edits->text_size = from;
    else
        add_unknown(edits, token, from);
}
