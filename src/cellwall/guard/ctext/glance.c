/* The most that a sentence can weigh, told by its words and signs; see detect/tasks/prospects.py,
 * which says what each of the worths is, and why it is a bound. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes.h"

#define MAX_BYTES 512 /* of a sentence; Python cuts them far shorter */
#define MAX_WORDS (MAX_BYTES / 2 + 1)
#define FEW 4
#define SOME 7
#define MANY 24
#define TELLING_WORDS 11
#define NOBODY UINT32_MAX

struct glance {
    struct worths worths;
    uint32_t count;
    uint32_t slots; /* a power of two */
    uint32_t *table; /* the number of a word, or NOBODY */
    uint32_t *sizes;
    size_t *starts;
    uint8_t *blob;
    struct word_worth *words;
};

struct read_word {
    const uint8_t *start;
    size_t size;
    uint32_t number; /* NOBODY if it is not a known one */
};

static uint32_t hash_of(const uint8_t *word, size_t size)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ word[i]) * 16777619u;
    return hash ^ hash >> 15;
}

static uint32_t number_of(const struct glance *glance, const uint8_t *word, size_t size)
{
    uint32_t slot = hash_of(word, size) & (glance->slots - 1);
    for (; glance->table[slot] != NOBODY; slot = (slot + 1) & (glance->slots - 1)) {
        uint32_t number = glance->table[slot];
        if (glance->sizes[number] == size &&
            memcmp(glance->blob + glance->starts[number], word, size) == 0)
            return number;
    }
    return NOBODY;
}

struct glance *cw_glance_new(const uint8_t *blob, const uint32_t *sizes,
                             const struct word_worth *words, uint32_t count,
                             const struct worths *worths)
{
    struct glance *glance = calloc(1, sizeof *glance);
    if (!glance)
        return NULL;
    glance->worths = *worths;
    glance->count = count;
    for (glance->slots = 16; glance->slots < 2 * count; glance->slots *= 2)
        ;
    glance->table = malloc(glance->slots * sizeof *glance->table);
    glance->sizes = calloc((size_t)count + 1, sizeof *glance->sizes);
    glance->starts = calloc((size_t)count + 1, sizeof *glance->starts);
    glance->words = calloc((size_t)count + 1, sizeof *glance->words);
    size_t total = 0;
    for (uint32_t number = 0; number < count; number++)
        total += sizes[number];
    glance->blob = malloc(total + 1);
    if (!glance->table || !glance->sizes || !glance->starts || !glance->words || !glance->blob) {
        cw_glance_free(glance);
        return NULL;
    }
    memset(glance->table, 0xff, glance->slots * sizeof *glance->table);
    memcpy(glance->blob, blob, total);
    memcpy(glance->words, words, count * sizeof *words);
    size_t start = 0;
    for (uint32_t number = 0; number < count; number++) {
        glance->sizes[number] = sizes[number];
        glance->starts[number] = start;
        uint32_t slot = hash_of(blob + start, sizes[number]) & (glance->slots - 1);
        while (glance->table[slot] != NOBODY)
            slot = (slot + 1) & (glance->slots - 1);
        glance->table[slot] = number;
        start += sizes[number];
    }
    return glance;
}

void cw_glance_free(struct glance *glance)
{
    if (!glance)
        return;
    free(glance->table);
    free(glance->sizes);
    free(glance->starts);
    free(glance->words);
    free(glance->blob);
    free(glance);
}

static int is_letter(uint8_t byte)
{
    return byte >= 'a' && byte <= 'z';
}

static int is_digit(uint8_t byte)
{
    return byte >= '0' && byte <= '9';
}

static int is_in_words(uint8_t byte)
{
    return is_letter(byte) || is_digit(byte) || byte == '\'' || byte == '-';
}

static int is_blank(uint8_t byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

/* Words begin with a letter, and go on with digits, apostrophes and hyphens. */
static size_t read_words(const struct glance *glance, const uint8_t *lower, size_t size,
                         struct read_word *words)
{
    size_t count = 0, at = 0;
    while (at < size) {
        if (!is_letter(lower[at])) {
            at++;
            continue;
        }
        size_t start = at;
        while (at < size && is_in_words(lower[at]))
            at++;
        words[count].start = lower + start;
        words[count].size = at - start;
        words[count++].number = number_of(glance, lower + start, at - start);
    }
    return count;
}

static int is_word(const struct read_word *word, const char *text)
{
    return word->size == strlen(text) && memcmp(word->start, text, word->size) == 0;
}

/* Whether the first place where this word's letters stand, the first byte of all left aside, has a
 * capital letter. */
static int is_name(const uint8_t *sentence, const uint8_t *lower, size_t size,
                   const struct read_word *word)
{
    for (size_t at = 1; at + word->size <= size; at++)
        if (memcmp(lower + at, word->start, word->size) == 0)
            return sentence[at] != lower[at];
    return sentence[size - 1] != lower[size - 1];
}

static double of_followers(const struct glance *glance, const uint8_t *sentence,
                           const uint8_t *lower, size_t size, const struct read_word *words,
                           size_t count)
{
    double most = words[0].number == NOBODY ? 0 : glance->words[words[0].number].next;
    if (is_name(sentence, lower, size, words))
        most += glance->worths.then_a_name;
    for (size_t i = 0; i < count && i < TELLING_WORDS; i++)
        if (words[i].number != NOBODY && glance->words[words[i].number].is_telling)
            return most + glance->worths.tells;
    return most;
}

/* Where it is certain which word asks, or that none does, no other is thought of. */
static double of_verb(const struct glance *glance, const uint8_t *sentence, const uint8_t *lower,
                      size_t size, const struct read_word *words, size_t count, int is_question)
{
    const struct worths *worths = &glance->worths;
    if (count > 1 && !is_word(words + 1, "want") && !is_word(words + 1, "need")) {
        uint32_t first = words[0].number;
        if (first != NOBODY && glance->words[first].is_question_word && !is_word(words + 1, "you"))
            return worths->tells_or_asks + (is_question ? glance->words[first].opening : 0);
        size_t at = 0;
        while (at < count - 1 && words[at].number != NOBODY &&
               glance->words[words[at].number].is_leading)
            at++;
        uint32_t verb = words[at].number;
        if (at < count - 1 && verb != NOBODY && glance->words[verb].is_first_verb)
            return glance->words[verb].asking_first +
                   of_followers(glance, sentence, lower, size, words + at + 1, count - at - 1);
    }
    double asking = 0, behind = 0;
    for (size_t i = 0; i < count; i++)
        if (words[i].number != NOBODY) {
            const struct word_worth *word = glance->words + words[i].number;
            asking = word->asking > asking ? word->asking : asking;
            behind = word->behind > behind ? word->behind : behind;
        }
    return worths->begin + asking + behind + (is_question ? worths->asks_openly : 0);
}

static double of_size(const struct worths *worths, size_t count)
{
    if (count < FEW)
        return worths->few_words;
    if (count < SOME)
        return worths->some_words;
    return count > MANY ? worths->many_words : 0;
}

struct signs {
    int digit, technical, quote, address, line_end, question;
};

static struct signs signs_of(const uint8_t *sentence, size_t size)
{
    struct signs signs = {0};
    for (size_t at = 0; at < size; at++) {
        uint8_t byte = sentence[at];
        if (is_letter(byte) || byte == ' ')
            continue;
        signs.digit |= is_digit(byte);
        signs.technical |= byte == '`' || byte == '{' || byte == '}' || byte == '=' || byte == '[';
        signs.quote |= byte == '"' || byte == '\'';
        signs.address |= byte == ':' || byte == '@' || (byte == '.' && at + 1 < size);
        signs.line_end |= byte == '\n';
        signs.question |= byte == '?';
    }
    /* What may be an address with a stop as its last byte. */
    if (size > 1 && sentence[size - 1] == '.')
        signs.address |= (sentence[size - 2] | 0x20) == 'w';
    return signs;
}

static double of_signs(const struct worths *worths, struct signs signs)
{
    return (signs.digit ? worths->has_digits : 0) +
           (signs.technical ? worths->looks_technical : 0) + (signs.quote ? worths->quotes : 0) +
           (signs.line_end ? worths->is_wrapped : 0) +
           (signs.question && worths->is_question > 0 ? worths->is_question : 0) +
           (signs.address ? worths->names_address : 0);
}

static double of_end(const struct worths *worths, const uint8_t *sentence, size_t size)
{
    while (size && is_blank(sentence[size - 1]))
        size--;
    return worths->ends[size ? sentence[size - 1] & 0x7f : '.'];
}

static double max_of(const struct glance *glance, const uint8_t *sentence, size_t size)
{
    const struct worths *worths = &glance->worths;
    uint8_t lower[MAX_BYTES];
    struct read_word words[MAX_WORDS];
    if (size == 0 || size > MAX_BYTES)
        return INFINITY;
    for (size_t at = 0; at < size; at++) {
        if (sentence[at] >= 0x80)
            return INFINITY;
        lower[at] = sentence[at] >= 'A' && sentence[at] <= 'Z' ? sentence[at] | 0x20 : sentence[at];
    }
    size_t count = read_words(glance, lower, size, words);
    struct signs signs = signs_of(sentence, size);
    double most = worths->base + of_end(worths, sentence, size) + of_size(worths, count) +
                  of_signs(worths, signs);
    for (size_t i = 0; i < count; i++) {
        size_t before = 0; /* each word counts once */
        while (before < i && words[before].number != words[i].number)
            before++;
        if (before == i && words[i].number != NOBODY)
            most += glance->words[words[i].number].anywhere;
    }
    return most + of_verb(glance, sentence, lower, size, words, count, signs.question);
}

/* Of each sentence data[starts[i]..ends[i]) the most that it can weigh; infinite for what is not
 * ASCII, too long, or not there. */
void cw_glance(const struct glance *glance, const uint8_t *data, size_t size,
               const uint64_t *starts, const uint64_t *ends, double *most, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int is_there = starts[i] < ends[i] && ends[i] <= size;
        most[i] = is_there ? max_of(glance, data + starts[i], ends[i] - starts[i]) : INFINITY;
    }
}
