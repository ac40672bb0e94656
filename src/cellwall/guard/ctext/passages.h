/* What the sources about passages share: a text as code points, the words that are known, and the
 * traits of a passage. ctext/passages.py has the same tables and says what each trait is. */
#ifndef CELLWALL_PASSAGES_H
#define CELLWALL_PASSAGES_H

#include "passes.h"

#define CLASS_WORDS 2 /* of 64 bits: the classes of words are the first traits */
#define FORM_WORD 2   /* the traits below are the bits of this one */

/* Of a character, as Python's `str` and `re` have it. */
enum character_kind {
    WORD = 1,   /* \w */
    LETTER = 2, /* \w that is neither \d nor _ */
    DIGIT = 4,  /* \d */
    SPACE = 8,  /* \s */
    ALPHA = 16, /* str.isalpha */
    UPPER = 32, /* str.isupper */
    MARK = 64,  /* a vowel sign or another mark that belongs to a letter */
    KNOWN = 128,
};

/* In the order of `FORMS` in ctext/passages.py. */
enum form {
    ORDER, ORDER_INSIDE, CODE, ENDS_COLON, OPENS_KEY,
    TO_MAIL, TO_ADDRESS, TO_PATH, TO_CODE, TO_TOOL, TO_QUOTE,
    AMOUNT, TO_ACCOUNT, AT_TIME, NUMBER, TO_PERSON,
    LIST, HEADING, QUOTED, KEY, TAG, ENDS_QUESTION, ENDS_LOUD, ENDS_STOP,
    CAPITALS, SHORT, MEDIUM, LONG,
    OTHER_SCRIPT, LAST, BEGINS, NEAR_END,
};

enum script { LATIN, CYRILLIC, CJK, OTHER_LETTERS, SCRIPTS };

#define BIT(number) ((uint64_t)1 << (number))

struct known_word {
    uint64_t classes[CLASS_WORDS];
    uint32_t start, size;
    int is_skipped;
};

struct lexicon {
    struct class_table table;
    uint32_t count, mask, longest, phrase_count;
    uint32_t *slots; /* number of the word + 1; 0 is free */
    uint32_t *letters;
    struct known_word *words;
    struct phrase_entry *phrases;
};

/* lexicon.c */
const struct known_word *find_word(const struct lexicon *lexicon, const uint32_t *codes,
                                   size_t size);

/* splitting.c */
size_t past_letters(const struct letters *text, size_t at);

/* targets.c and forms.c: bits of FORM_WORD */
uint64_t targets_of(const struct letters *passage);
uint64_t forms_of(const struct letters *passage);
int is_code(const struct letters *passage);
int ends_colon(const struct letters *passage);
int opens_key(const struct letters *passage);

static inline int is_small(uint32_t code) { return code >= 'a' && code <= 'z'; }

static inline int is_large(uint32_t code) { return code >= 'A' && code <= 'Z'; }

static inline int is_ascii_digit(uint32_t code) { return code >= '0' && code <= '9'; }

/* Whether the character at `at` is there and of one of these kinds. */
static inline int is_kind(const struct letters *text, size_t at, int kinds) {
    return at < text->size && text->kinds[at] & kinds;
}

/* Whether a word of `\w` may begin or end before `at`. */
static inline int follows_word(const struct letters *text, size_t at) {
    return at > 0 && is_kind(text, at - 1, WORD);
}

/* Whether these ASCII characters stand at `at`. */
static inline int has(const struct letters *text, size_t at, const char *these) {
    for (; *these; these++, at++)
        if (at >= text->size || text->codes[at] != (uint8_t)*these)
            return 0;
    return 1;
}

static inline struct letters part_of(const struct letters *text, size_t start, size_t end) {
    return (struct letters){text->codes + start, text->kinds + start, end - start};
}

/* How far it goes without the blanks at its end. */
static inline size_t without_blanks(const struct letters *text) {
    size_t end = text->size;
    while (end && text->kinds[end - 1] & SPACE)
        end--;
    return end;
}

#endif
