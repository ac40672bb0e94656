/* Single characters that are encoded inside of ordinary text: where they stand, what they mean, and
 * the lines around them as they read then. */
#ifndef CELLWALL_INLINE_H
#define CELLWALL_INLINE_H

#include <string.h>

#include "passes.h"

#define INLINE_AROUND 240 /* of a line that does not end before */

enum token_kind { HTML, URL, ESCAPES, QUOTED };

static inline int is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

static inline int is_letter(uint8_t byte) { return (byte | 32) >= 'a' && (byte | 32) <= 'z'; }

/* The value of a hexadecimal digit; -1 if it is none. */
static inline int hex_value(uint8_t byte) {
    return is_digit(byte) ? byte - '0'
           : (byte | 32) >= 'a' && (byte | 32) <= 'f' ? (byte | 32) - 'a' + 10
                                                       : -1;
}

static inline int is_hex(uint8_t byte) { return hex_value(byte) >= 0; }

/* edits.c: these return 0 where there is no room. */
int put_byte(struct edits *edits, uint8_t byte);
int put_code(struct edits *edits, uint32_t code);
int put_pairs(struct edits *edits, const uint8_t *image, size_t at, size_t end, size_t mark);
void add_edit(struct edits *edits, const struct token *token, size_t from);
void add_unknown(struct edits *edits, const struct token *token, size_t from);
void add_bytes(struct edits *edits, const struct token *token, size_t from);

/* escapes.c, entities.c, quoted.c */
void add_percents(struct edits *edits, const uint8_t *image, const struct token *token);
void add_escapes(struct edits *edits, const uint8_t *image, const struct token *token);
void add_entity(struct edits *edits, const uint8_t *image, const struct token *token,
                const struct entity_names *names);
void add_quoted(struct edits *edits, const uint8_t *image, size_t size, const struct token *token);

/* patches.c */
size_t line_start(const uint8_t *image, size_t at, size_t least);
size_t line_end(const uint8_t *image, size_t size, size_t at);

#endif
