/* Adds up the vectors of the word pieces of passages: a table of pieces, each with a row of int8.
 *
 * A word is cut from its start into the longest pieces that the table has. A piece has at most
 * MAX_PIECE bytes, so each byte of the data is hashed at most MAX_PIECE times. */
#include "passes.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PIECE 24
#define FIRST_HASH 14695981039346656037u
#define HASH_FACTOR 1099511628211u

struct vectors {
    uint32_t count, dims, mask;
    uint32_t *slots; /* number of the piece + 1; 0 is free */
    uint8_t *tags;   /* a byte of the hash of each slot's piece, so that most others are not read */
    uint32_t *offsets;
    uint8_t *pieces;
    int8_t *rows;
};

static uint64_t add_byte(uint64_t hash, uint8_t byte) { return (hash ^ byte) * HASH_FACTOR; }

static uint32_t slot_of(const struct vectors *made, uint64_t hash) {
    return (uint32_t)(hash >> 20) & made->mask;
}

/* Never 0, which is the tag of a free slot. */
static uint8_t tag_of(uint64_t hash) { return (uint8_t)(hash >> 56) | 1; }

static void *copy(const void *from, size_t size) {
    void *made = malloc(size ? size : 1);
    if (made && size)
        memcpy(made, from, size);
    return made;
}

void cw_vectors_free(struct vectors *made) {
    if (!made)
        return;
    free(made->slots);
    free(made->tags);
    free(made->offsets);
    free(made->pieces);
    free(made->rows);
    free(made);
}

struct vectors *cw_vectors_new(const uint8_t *pieces, const uint8_t *sizes, const int8_t *rows,
                               uint32_t count, uint32_t dims) {
    struct vectors *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    uint32_t room = 16;
    while (room < 2 * (uint64_t)count && room < 1u << 30)
        room *= 2;
    size_t bytes = 0;
    for (uint32_t n = 0; n < count; n++)
        bytes += sizes[n];
    *made = (struct vectors){.count = count, .dims = dims, .mask = room - 1};
    made->slots = calloc(room, sizeof *made->slots);
    made->tags = calloc(room, sizeof *made->tags);
    made->offsets = malloc((count + (size_t)1) * sizeof *made->offsets);
    made->pieces = copy(pieces, bytes);
    made->rows = copy(rows, (size_t)count * dims);
    if (!made->slots || !made->tags || !made->offsets || !made->pieces || !made->rows) {
        cw_vectors_free(made);
        return NULL;
    }
    uint32_t at = 0;
    for (uint32_t n = 0; n < count; n++) {
        uint64_t hash = FIRST_HASH;
        made->offsets[n] = at;
        for (uint32_t end = at + sizes[n]; at < end; at++)
            hash = add_byte(hash, pieces[at]);
        uint32_t slot = slot_of(made, hash);
        while (made->slots[slot])
            slot = (slot + 1) & made->mask;
        made->slots[slot] = n + 1;
        made->tags[slot] = tag_of(hash);
    }
    made->offsets[count] = at;
    return made;
}

/* Whether the piece is a blank (where `marked`) and then these bytes. */
static int is_piece(const struct vectors *made, uint32_t n, int marked, const uint8_t *data,
                    size_t size) {
    const uint8_t *piece = made->pieces + made->offsets[n];
    size_t length = made->offsets[n + 1] - made->offsets[n];
    if (marked && (!length || *piece != ' '))
        return 0;
    return length == size + (size_t)marked && memcmp(piece + marked, data, size) == 0;
}

static uint32_t find(const struct vectors *made, uint64_t hash, int marked, const uint8_t *data,
                     size_t size) {
    for (uint32_t slot = slot_of(made, hash); made->tags[slot]; slot = (slot + 1) & made->mask)
        if (made->tags[slot] == tag_of(hash) &&
            is_piece(made, made->slots[slot] - 1, marked, data, size))
            return made->slots[slot];
    return 0;
}

/* The number + 1 of the longest piece that these bytes begin with, and its size without the blank
 * that marks the start of a word. */
static uint32_t longest(const struct vectors *made, const uint8_t *data, size_t size, int marked,
                        size_t *taken) {
    uint64_t hashes[MAX_PIECE];
    uint64_t hash = marked ? add_byte(FIRST_HASH, ' ') : FIRST_HASH;
    size_t most = size < MAX_PIECE ? size : MAX_PIECE;
    for (size_t n = 0; n < most; n++)
        hashes[n] = hash = add_byte(hash, data[n]);
    for (size_t n = most; n > 0; n--) {
        if (n < size && (data[n] & 0xC0) == 0x80)
            continue; /* within a character */
        uint32_t found = find(made, hashes[n - 1], marked, data, n);
        if (found) {
            *taken = n;
            return found;
        }
    }
    return 0;
}

static int is_ascii_letter(uint8_t byte) { return (byte | 32) >= 'a' && (byte | 32) <= 'z'; }

static int is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

/* Size of the character at `at`; `is_letter` is 0 for punctuation outside of ASCII too. */
static size_t character(const uint8_t *data, size_t at, size_t end, int *is_letter) {
    uint8_t first = data[at];
    if (first < 0x80) {
        *is_letter = is_ascii_letter(first);
        return 1;
    }
    size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
    if (size > end - at)
        size = end - at;
    uint8_t second = size > 1 ? data[at + 1] : 0;
    *is_letter = !(first < 0xC3 || (first == 0xE2 && second == 0x80) ||
                   (first == 0xE3 && second == 0x80) || (first == 0xEF && second == 0xBC));
    return size;
}

/* The rows are whole numbers, so their sum is exact, however it is added up. Sums of the first
 * numbers wait in 16 bits, and are emptied before a row can be too much for them. */
#define ROWS_IN_16_BITS 255

struct sum {
    const struct vectors *vectors;
    float *values;
    uint32_t *list; /* if it is there, pieces are listed and not added up */
    uint32_t pieces, most, waiting, narrow;
    int16_t few[CW_MAX_DIMS];
};

static void begin_sum(struct sum *sum, const struct vectors *vectors) {
    sum->vectors = vectors;
    sum->list = NULL;
    sum->most = UINT32_MAX;
    sum->narrow = vectors->dims < CW_MAX_DIMS ? vectors->dims : CW_MAX_DIMS;
    memset(sum->few, 0, sizeof sum->few);
}

static void empty(struct sum *sum) {
    for (uint32_t n = 0; n < sum->narrow; n++)
        sum->values[n] += (float)sum->few[n];
    memset(sum->few, 0, sum->narrow * sizeof *sum->few);
    sum->waiting = 0;
}

static void add_row(struct sum *sum, uint32_t found) {
    if (sum->list) {
        sum->list[sum->pieces++] = found - 1;
        return;
    }
    uint32_t dims = sum->vectors->dims, narrow = sum->narrow;
    const int8_t *row = sum->vectors->rows + (size_t)(found - 1) * dims;
    int16_t *few = sum->few;
    for (uint32_t n = 0; n < narrow; n++)
        few[n] = (int16_t)(few[n] + row[n]);
    for (uint32_t n = narrow; n < dims; n++)
        sum->values[n] += (float)row[n];
    sum->pieces++;
    if (++sum->waiting == ROWS_IN_16_BITS)
        empty(sum);
}

static void add_word(struct sum *sum, const uint8_t *data, size_t size) {
    int marked = 1;
    for (size_t at = 0; at < size && sum->pieces < sum->most;) {
        size_t taken = 0;
        uint32_t found = longest(sum->vectors, data + at, size - at, marked, &taken);
        if (found) {
            add_row(sum, found);
            at += taken;
        } else if (!marked) {
            int is_letter;
            at += character(data, at, size, &is_letter);
        }
        marked = 0;
    }
}

static void add_mark(struct sum *sum, const uint8_t *data, size_t size) {
    size_t taken = 0;
    uint32_t found = longest(sum->vectors, data, size, 0, &taken);
    if (found)
        add_row(sum, found);
}

static void add_passage(struct sum *sum, const uint8_t *data, size_t at, size_t end) {
    while (at < end && sum->pieces < sum->most) {
        int is_letter;
        size_t start = at, size = character(data, at, end, &is_letter);
        at += size;
        if (is_letter) {
            while (at < end) {
                size = character(data, at, end, &is_letter);
                if (!is_letter)
                    break;
                at += size;
            }
            add_word(sum, data + start, at - start);
        } else if (is_digit(data[start])) {
            while (at < end && is_digit(data[at]))
                at++;
            add_word(sum, data + start, 1); /* numbers differ; that there is one counts */
        } else if (data[start] > ' ') {
            add_mark(sum, data + start, size);
        }
    }
}

static uint32_t sum_passage(struct sum *sum, const uint8_t *data, size_t start, size_t end,
                            float *values) {
    sum->values = values;
    sum->pieces = sum->waiting = 0;
    add_passage(sum, data, start, end);
    empty(sum);
    return sum->pieces;
}

/* Of each span the sum of the rows of its pieces, and how many these are. */
void cw_vectors_sum(const struct vectors *made, const uint8_t *data, size_t size,
                    const uint64_t *starts, const uint64_t *ends, size_t count, float *sums,
                    uint32_t *pieces) {
    struct sum sum;
    begin_sum(&sum, made);
    memset(sums, 0, count * made->dims * sizeof *sums);
    for (size_t n = 0; n < count; n++)
        pieces[n] = starts[n] <= ends[n] && ends[n] <= size
                        ? sum_passage(&sum, data, starts[n], ends[n], sums + n * made->dims)
                        : 0;
}

/* The same of passages; `data` is their text in lower case. */
void cw_passages_sum(const struct vectors *made, const uint8_t *data, size_t size,
                     const struct passage *passages, size_t count, float *sums, uint32_t *pieces) {
    for (size_t n = 0; n < count; n++)
        cw_vectors_sum(made, data, size, &passages[n].byte_start, &passages[n].byte_end, 1,
                       sums + n * made->dims, pieces + n);
}

/* The numbers of the first pieces of a span, at most `most`; returns how many these are. */
size_t cw_vectors_pieces(const struct vectors *made, const uint8_t *data, size_t size,
                         uint64_t start, uint64_t end, uint32_t *found, uint32_t most) {
    struct sum sum = {.vectors = made, .list = found, .most = most};
    if (start <= end && end <= size)
        add_passage(&sum, data, start, end);
    return sum.pieces;
}

uint32_t cw_vectors_dims(const struct vectors *made) { return made->dims; }

/* `number`: of a piece of the table. */
const int8_t *cw_vectors_row(const struct vectors *made, uint32_t number) {
    return made->rows + (size_t)number * made->dims;
}
