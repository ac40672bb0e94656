/* Single passes over text, called from Python through ctypes; see __init__.py.
 *
 * What goes through here is chosen by attackers, so each function keeps to three rules: it reads
 * data[0..size) and nothing else, it writes no more entries than it was given room for, and its
 * time is a straight line over the data. Whatever it finds is a place to look at: what a place
 * means is decided in Python. */
#ifndef CELLWALL_PASSES_H
#define CELLWALL_PASSES_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* A set of bytes: one entry for each, which is not 0 if it belongs to it. */
typedef uint8_t byte_set[256];

/* characters.c */
EXPORT size_t cw_letters(const uint8_t *data, size_t size, const byte_set common, uint32_t *codes,
                         size_t room);
size_t cw_decoded(const uint8_t *data, size_t size, size_t at, uint32_t *code);
EXPORT size_t cw_blocks(const uint8_t *data, size_t size, const byte_set common, size_t block,
                        uint64_t *parts, size_t room);

/* lines.c */
EXPORT size_t cw_line_heads(const uint8_t *data, size_t size, const byte_set ornaments, size_t most,
                            const char *words, const byte_set follow, uint64_t *places,
                            size_t room);

/* runs.c */
#define CHAINS 3

struct survey_tables {
    uint64_t moves[256], keeps[256]; /* of each lane, by byte */
    uint64_t firsts, lasts;          /* bits of the first bytes, and of the last ones */
    uint64_t loose; /* last bits of lanes whose chains may have passed over what belongs to them */
};

/* `count` goes on where there is no more room. */
struct places {
    uint64_t *found;
    uint64_t count, room;
};

struct survey {
    struct places chains[CHAINS];
};

EXPORT void cw_survey(const uint8_t *data, size_t size, const struct survey_tables *tables,
                      struct survey *survey);
EXPORT void cw_runs(const uint8_t *data, size_t size, const byte_set set, size_t least,
                    struct places *places);

/* tokens.c */
struct token {
    uint32_t start, end, kind;
};

EXPORT size_t cw_tokens(const uint8_t *image, size_t size, struct token *tokens, size_t room);
EXPORT size_t cw_equals(const uint8_t *image, size_t size, const struct token *tokens, size_t count,
                        size_t few, struct token *equals, size_t room);

/* edits.c */
#define CW_UNKNOWN UINT32_MAX

/* A part of a text, and the place of what replaces it in the text of all edits. */
struct edit {
    uint32_t start, end, text, size;
};

struct edits {
    struct edit *found;
    uint8_t *text;
    uint64_t count, room, text_size, text_room;
    uint64_t next, line_end; /* where to go on, and to where a line is known */
    uint64_t unknown; /* how many edits are of which C does not know */
    uint32_t is_quoted, padding;
};

/* Sorted by name; what stands at `ends[n]` and `text_ends[n]` is the begin of name `n`. */
struct entity_names {
    const uint8_t *names, *texts;
    const uint32_t *ends, *text_ends;
    uint32_t count, padding;
};

EXPORT void cw_edits(const uint8_t *image, size_t size, const struct token *tokens, size_t count,
                     uint32_t kind, const struct entity_names *names, struct edits *edits);
EXPORT void cw_string_edits(const uint8_t *image, size_t size, struct edits *edits);

/* patches.c */
struct patch {
    uint32_t at, start, end; /* where it begins in the result, and what it stands for */
};

struct patches {
    struct patch *found;
    uint8_t *text;
    uint64_t count, room, text_size, text_room;
    uint64_t characters, most; /* without what separates patches */
    uint32_t is_cut, padding;
};

EXPORT void cw_patches(const uint8_t *image, size_t size, const uint8_t *data, size_t data_size,
                       const struct edit *edits, size_t count, const uint8_t *text,
                       size_t text_size, struct patches *patches);

/* base64.c */
EXPORT int cw_base64_may_be_text(const uint8_t *run, size_t size);

/* cues.c */
EXPORT size_t cw_marked(const uint8_t *data, size_t size, uint8_t *marked);
EXPORT void cw_cues_sort(uint64_t *cues, size_t count);
EXPORT size_t cw_candidates(const uint8_t *text, size_t size, const uint64_t *cues, size_t count,
                            const uint8_t *kinds, const uint8_t *lengths, size_t *next,
                            size_t *done, uint64_t *starts, uint64_t *ends);
EXPORT void cw_rivals(const uint64_t *starts, const uint64_t *ends, size_t count, uint64_t near,
                      uint32_t *rivals);

/* glance.c */
struct worths {
    double base;
    double names_address, quotes;
    double has_digits, looks_technical, is_wrapped, is_question;
    double few_words, some_words, many_words;
    double begin, asks_openly, tells_or_asks;
    double then_a_name, tells;
    double ends[128];
};

/* What a word is worth; what it is not worth anything for is 0, and its flag is not set. */
struct word_worth {
    double anywhere, asking, asking_first, opening, behind, next;
    uint8_t is_first_verb, is_leading, is_question_word, is_telling;
    uint8_t padding[4];
};

struct glance;
EXPORT struct glance *cw_glance_new(const uint8_t *blob, const uint32_t *sizes,
                                    const struct word_worth *words, uint32_t count,
                                    const struct worths *worths);
EXPORT void cw_glance_free(struct glance *glance);
EXPORT void cw_glance(const struct glance *glance, const uint8_t *data, size_t size,
                      const uint64_t *starts, const uint64_t *ends, double *most, size_t count);

/* vectors.c */
struct vectors;
EXPORT struct vectors *cw_vectors_new(const uint8_t *pieces, const uint8_t *sizes,
                                      const int8_t *rows, uint32_t count, uint32_t dims);
EXPORT void cw_vectors_free(struct vectors *made);
EXPORT void cw_vectors_sum(const struct vectors *made, const uint8_t *data, size_t size,
                           const uint64_t *starts, const uint64_t *ends, size_t count, float *sums,
                           uint32_t *pieces);
struct passage;
EXPORT void cw_passages_sum(const struct vectors *made, const uint8_t *data, size_t size,
                            const struct passage *passages, size_t count, float *sums,
                            uint32_t *pieces);
EXPORT size_t cw_vectors_pieces(const struct vectors *made, const uint8_t *data, size_t size,
                                uint64_t start, uint64_t end, uint32_t *found, uint32_t most);
uint32_t cw_vectors_dims(const struct vectors *made);
const int8_t *cw_vectors_row(const struct vectors *made, uint32_t number);

/* network.c */
#define CW_MAX_DIMS 256
#define CW_MAX_HIDDEN 256

struct network {
    const float *first;     /* rows of `hidden` weights: three vectors, two cosines */
    const float *of_traits; /* a row for each trait */
    const float *bias, *last;
    float base, scale, length; /* to which each vector is scaled */
    uint32_t dims, hidden, traits;
};

EXPORT int cw_network_scores(const struct network *net, const float *sums, const uint32_t *pieces,
                             size_t count, const uint64_t *chosen, size_t chosen_count,
                             const uint32_t *traits, const uint64_t *ends, float *scores);

/* products.c */
EXPORT uint32_t cw_products_widest(void);

/* attention_weights.c */
struct attention_shape {
    uint32_t dims, width, layers, inner, hidden;
    uint32_t before, own, after; /* pieces of a window */
    uint32_t most;               /* pieces of a passage */
    float scale;                 /* of the vectors of pieces */
};

struct attention;
EXPORT struct attention *cw_attention_new(const struct attention_shape *shape, const float *floats,
                                          size_t float_count, const uint8_t *weights,
                                          size_t weight_bytes, uint32_t registers);
EXPORT void cw_attention_free(struct attention *net);

/* attention.c */
EXPORT int cw_attention_scores(const struct attention *net, const struct vectors *vectors,
                               const uint8_t *data, size_t size, const struct passage *passages,
                               size_t count, const uint64_t *chosen, size_t chosen_count,
                               float none, float *scores);

/* A text as code points, and the kind of each character. */
struct letters {
    const uint32_t *codes;
    const uint8_t *kinds;
    size_t size;
};

/* splitting.c */
EXPORT int cw_kinds(const uint32_t *codes, size_t size, const uint8_t *table, uint8_t *kinds);
EXPORT size_t cw_passages_split(const struct letters *text, uint32_t *starts, uint32_t *ends,
                                size_t room);

/* lexicon.c */
#define CW_CLASSES 128
#define CW_TRAIT_WORDS 5
#define CW_TRAITS (64 * CW_TRAIT_WORDS)
#define CW_NO_TRAIT 0xffff

struct word_entry {
    uint64_t classes[2];
    uint32_t size, is_skipped; /* in code points; whether a passage begins behind it */
};

struct phrase_entry {
    uint32_t bytes, class_number;
};

/* The first classes are those of verbs, and then those of objects. */
struct class_table {
    uint64_t gate[CW_TRAIT_WORDS];
    uint64_t spoken_to[2], openers[2];
    uint16_t opens[CW_CLASSES]; /* the trait of a passage that begins with a word of the class */
    uint16_t verbs, objects, override, forget, reminder, instructions, first_act, padding;
};

struct lexicon;
EXPORT struct lexicon *cw_lexicon_new(const uint32_t *letters, const struct word_entry *words,
                                      uint32_t count, const struct phrase_entry *phrases,
                                      uint32_t phrase_count, const struct class_table *table);
EXPORT void cw_lexicon_free(struct lexicon *lexicon);

/* reading.c */
struct passage {
    uint64_t traits[CW_TRAIT_WORDS];
    uint64_t byte_start, byte_end; /* in lower case and UTF-8 */
    uint32_t start, end, script, is_candidate;
};

/* Spans of passages in a text, in order and apart. */
struct spans {
    const uint32_t *starts, *ends;
    size_t count;
};

struct phrase_hit {
    uint32_t number, end; /* in bytes of the text in lower case */
};

EXPORT size_t cw_passages_read(const struct lexicon *lexicon, const struct letters *text,
                               const struct spans *spans, const struct letters *lows,
                               const struct spans *low_spans, const struct phrase_hit *hits,
                               size_t hit_count, struct passage *passages, uint64_t *candidates);

/* placing.c */
#define CW_TEXT_TRAITS 64
#define CW_CARRIED 16
#define CW_MAX_NUMBERS 512
#define CW_NO_PAIR 0xff

struct surroundings {
    uint64_t traits;
    uint64_t count;
    uint32_t script, padding;
};

struct placing {
    int32_t own[CW_TRAITS], beside[CW_CARRIED], text[CW_TEXT_TRAITS];
    const int32_t *both, *within, *by;
    uint16_t own_numbers[CW_TRAITS], beside_numbers[CW_CARRIED], text_numbers[CW_TEXT_TRAITS];
    uint16_t carried[CW_CARRIED];
    uint8_t pairs[CW_TRAITS];
    uint32_t pair_count, padding;
};

struct common_traits {
    uint16_t attack_talk, about, you, modal, letter;
};

EXPORT void cw_surroundings(const struct common_traits *common, const struct passage *passages,
                            size_t count, uint64_t shape, struct surroundings *found);
EXPORT size_t cw_passages_place(const struct placing *placing, const struct passage *passages,
                                const struct surroundings *text, const uint64_t *chosen,
                                size_t chosen_count, int32_t *weights, uint32_t *numbers,
                                uint64_t *ends);

#endif
