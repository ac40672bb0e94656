/* The words of the lexicon by what they do. */
#include <stdlib.h>
#include <string.h>

#include "passages.h"

#define FIRST_HASH 14695981039346656037u
#define HASH_FACTOR 1099511628211u

static uint32_t hash_of(const uint32_t *codes, size_t size) {
    uint64_t hash = FIRST_HASH;
    for (size_t at = 0; at < size; at++)
        hash = (hash ^ codes[at]) * HASH_FACTOR;
    return (uint32_t)(hash >> 32 ^ hash);
}

const struct known_word *find_word(const struct lexicon *lexicon, const uint32_t *codes,
                                   size_t size) {
    if (size > lexicon->longest)
        return NULL;
    uint32_t slot = hash_of(codes, size) & lexicon->mask;
    for (; lexicon->slots[slot]; slot = (slot + 1) & lexicon->mask) {
        const struct known_word *word = lexicon->words + lexicon->slots[slot] - 1;
        if (word->size == size &&
            memcmp(lexicon->letters + word->start, codes, size * sizeof *codes) == 0)
            return word;
    }
    return NULL;
}

void cw_lexicon_free(struct lexicon *lexicon) {
    if (!lexicon)
        return;
    free(lexicon->slots);
    free(lexicon->letters);
    free(lexicon->words);
    free(lexicon->phrases);
    free(lexicon);
}

static void add_words(struct lexicon *made, const struct word_entry *words) {
    uint32_t start = 0;
    for (uint32_t number = 0; number < made->count; start += words[number].size, number++) {
        const struct word_entry *word = words + number;
        made->words[number] = (struct known_word){{word->classes[0], word->classes[1]}, start,
                                                  word->size, word->is_skipped != 0};
        if (word->size > made->longest)
            made->longest = word->size;
        uint32_t slot = hash_of(made->letters + start, word->size) & made->mask;
        while (made->slots[slot])
            slot = (slot + 1) & made->mask;
        made->slots[slot] = number + 1;
    }
}

struct lexicon *cw_lexicon_new(const uint32_t *letters, const struct word_entry *words,
                               uint32_t count, const struct phrase_entry *phrases,
                               uint32_t phrase_count, const struct class_table *table) {
    if (table->verbs + table->objects >= 64)
        return NULL;
    struct lexicon *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    uint32_t room = 16;
    while (room < 4 * (uint64_t)count && room < 1u << 30)
        room *= 2;
    size_t total = 0;
    for (uint32_t number = 0; number < count; number++)
        total += words[number].size;
    *made = (struct lexicon){
        .table = *table, .count = count, .mask = room - 1, .phrase_count = phrase_count};
    made->slots = calloc(room, sizeof *made->slots);
    made->letters = malloc((total + 1) * sizeof *letters);
    made->words = malloc((count + (size_t)1) * sizeof *made->words);
    made->phrases = malloc((phrase_count + (size_t)1) * sizeof *phrases);
    if (!made->slots || !made->letters || !made->words || !made->phrases) {
        cw_lexicon_free(made);
        return NULL;
    }
    memcpy(made->letters, letters, total * sizeof *letters);
    memcpy(made->phrases, phrases, phrase_count * sizeof *phrases);
    add_words(made, words);
    return made;
}
