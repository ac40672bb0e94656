/* Vectors of word pieces and the networks over them: any table, any weights, any text. All stay inside
 * what they are given. Sums are those of a plain search through the table, the score of a passage does not
 * depend on which others are scored with it, and that of the attention network not on the width of registers.
 *
 * Input: sizes of the table and of the network, a byte for the size of each piece, the pieces, then text
 * that also serves as weights. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "passes.h"

#define MAX_PIECES 64
#define MAX_TEXT 4096
#define LONGEST 24

static void check(int holds) {
  if (!holds) abort();
}

/* Of exactly this size, so that a read behind the end is seen. */
static void *room(size_t size) {
  void *made = malloc(size ? size : 1);
  check(made != NULL);
  return made;
}

struct table {
  const uint8_t *sizes, *pieces;
  const int8_t *rows;
  uint32_t count, dims;
};

static uint8_t next(const uint8_t **data, size_t *size) {
  if (*size == 0) return 0;
  (*size)--;
  return *(*data)++;
}

/* The first piece that is a blank (where `marked`) and then these bytes; -1 if there is none. */
static int plain_find(const struct table *table, int marked, const uint8_t *data, size_t size) {
  size_t at = 0;
  for (uint32_t n = 0; n < table->count; at += table->sizes[n], n++) {
    const uint8_t *piece = table->pieces + at;
    if (table->sizes[n] != size + (size_t)marked || (marked && piece[0] != ' ')) continue;
    if (memcmp(piece + marked, data, size) == 0) return (int)n;
  }
  return -1;
}

static size_t plain_longest(const struct table *table, const uint8_t *data, size_t size, int marked, float *sums,
                            uint32_t *pieces) {
  for (size_t n = size < LONGEST ? size : LONGEST; n > 0; n--) {
    if (n < size && (data[n] & 0xC0) == 0x80) continue;
    int found = plain_find(table, marked, data, n);
    if (found < 0) continue;
    for (uint32_t d = 0; d < table->dims; d++) sums[d] += (float)table->rows[(size_t)found * table->dims + d];
    (*pieces)++;
    return n;
  }
  return 0;
}

static size_t plain_character(const uint8_t *data, size_t left, int *is_letter) {
  uint8_t first = data[0];
  size_t size = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (size > left) size = left;
  uint8_t second = size > 1 ? data[1] : 0;
  int is_mark = first < 0xC3 || ((first == 0xE2 || first == 0xE3) && second == 0x80) || (first == 0xEF && second == 0xBC);
  *is_letter = first < 0x80 ? (first | 32) >= 'a' && (first | 32) <= 'z' : !is_mark;
  return size;
}

static void plain_word(const struct table *table, const uint8_t *data, size_t size, float *sums, uint32_t *pieces) {
  int is_letter;
  size_t at = plain_longest(table, data, size, 1, sums, pieces);
  while (at < size) {
    size_t taken = plain_longest(table, data + at, size - at, 0, sums, pieces);
    at += taken ? taken : plain_character(data + at, size - at, &is_letter);
  }
}

static void plain_sum(const struct table *table, const uint8_t *data, size_t at, size_t end, float *sums,
                      uint32_t *pieces) {
  while (at < end) {
    int is_letter, more = 1;
    size_t start = at;
    at += plain_character(data + at, end - at, &is_letter);
    if (is_letter) {
      while (at < end && more) {
        size_t size = plain_character(data + at, end - at, &more);
        at += more ? size : 0;
      }
      plain_word(table, data + start, at - start, sums, pieces);
    } else if (data[start] >= '0' && data[start] <= '9') {
      while (at < end && data[at] >= '0' && data[at] <= '9') at++;
      plain_word(table, data + start, 1, sums, pieces);
    } else if (data[start] > ' ') {
      plain_longest(table, data + start, at - start, 0, sums, pieces);
    }
  }
}

/* Weights from the bits of the text, or small ones: not every float is a number. */
static float *weights(size_t count, const uint8_t *text, size_t size, int is_small) {
  float *made = room(count * sizeof *made);
  for (size_t n = 0; n < count; n++) {
    uint32_t bits = (uint32_t)n * 2654435761u;
    for (size_t byte = 0; byte < sizeof bits && size; byte++) bits ^= (uint32_t)text[(4 * n + byte) % size] << 8 * byte;
    if (is_small) made[n] = (float)(int8_t)bits / 64;
    else memcpy(made + n, &bits, sizeof bits);
  }
  return made;
}

static void fuzz_network(uint32_t dims, uint32_t hidden, int is_small, const uint8_t *text, size_t size, float *sums,
                         uint32_t *pieces, size_t count) {
  const uint32_t known = 3;
  float *first = weights(((size_t)3 * dims + 2) * hidden, text, size, is_small);
  float *of_traits = weights((size_t)known * hidden, text, size, is_small);
  float *bias = weights(hidden, text, size, is_small), *last = weights(hidden, text, size, is_small);
  struct network net = {
      .first = first, .of_traits = of_traits, .bias = bias, .last = last, .base = 0.5f, .scale = 0.25f, .length = 2.0f,
      .dims = dims, .hidden = hidden, .traits = known};
  size_t chosen_count = count + 1;
  uint64_t *chosen = room(chosen_count * sizeof *chosen), *ends = room(chosen_count * sizeof *ends), end = 0;
  for (size_t n = 0; n < chosen_count; n++) { /* the last one is not there */
    chosen[n] = n;
    ends[n] = end += n % 3;
  }
  uint32_t *traits = room(end * sizeof *traits);
  for (size_t n = 0; n < end; n++) traits[n] = size ? text[n % size] % (known + 2) : 0; /* nor are two of these */
  float *scores = room(chosen_count * sizeof *scores), *again = room(chosen_count * sizeof *again);
  int is_done = cw_network_scores(&net, sums, pieces, count, chosen, chosen_count, traits, ends, scores);
  check(is_done == (dims <= CW_MAX_DIMS && hidden <= CW_MAX_HIDDEN));
  if (is_done) {
    check(scores[count] == net.base);
    for (size_t n = 0; n < count; n++) {
      uint64_t begin = n ? ends[n - 1] : 0, own = ends[n] - begin;
      check(cw_network_scores(&net, sums, pieces, count, chosen + n, 1, traits + begin, &own, again) == 1);
      check(memcmp(again, scores + n, sizeof *again) == 0 || (again[0] != again[0] && scores[n] != scores[n]));
    }
  }
  free(first), free(of_traits), free(bias), free(last), free(chosen), free(ends), free(traits), free(scores), free(again);
}

static struct attention_shape shape_for(uint32_t dims, const uint8_t *text, size_t size) {
  uint8_t how = size ? text[0] : 0, sizes = size ? text[size - 1] : 0;
  return (struct attention_shape){.dims = dims, .width = how & 1 ? 64 : 32, .layers = how & 2 ? 2 : 1,
                                  .inner = how & 4 ? 48 : 16, .hidden = how & 8 ? 32 : 16, .before = sizes % 8,
                                  .own = 1 + sizes / 8 % 8, .after = sizes / 64, .most = 8 + how / 16, .scale = 0.25f};
}

static void check_same(const float *one, const float *other, size_t count) {
  for (size_t n = 0; n < count; n++)
    check(memcmp(one + n, other + n, sizeof *one) == 0 || (one[n] != one[n] && other[n] != other[n]));
}

static void fuzz_attention(const struct vectors *vectors, uint32_t dims, int is_small, const uint8_t *text, size_t size,
                           const uint64_t *starts, const uint64_t *ends, size_t parts) {
  const float none = -7.0f;
  struct attention_shape shape = shape_for(dims, text, size);
  size_t width = shape.width, of_first = width * dims, in_layer = 4 * width * width + 2 * width * shape.inner;
  size_t outputs = width + shape.layers * (5 * width + shape.inner) + shape.hidden;
  size_t floats = (shape.before + shape.own + shape.after + 6) * width + shape.hidden + 1 + 2 * outputs;
  size_t bytes = 2 * of_first + shape.layers * in_layer + 2 * width * shape.hidden;
  float *made = weights(floats, text, size, is_small);
  uint8_t *whole = room(bytes);
  for (size_t n = 0; n < bytes; n++) whole[n] = (uint8_t)(n * 97 + (size ? text[n % size] : 0));
  struct attention *plain = cw_attention_new(&shape, made, floats, whole, bytes, 0);
  struct attention *wide = cw_attention_new(&shape, made, floats, whole, bytes, UINT32_MAX);
  check(!plain == !wide && !plain == (dims < 2 || dims > CW_MAX_DIMS || dims % 2));
  check(!cw_attention_new(&shape, made, floats - 1, whole, bytes, 0));
  struct passage *passages = room(parts * sizeof *passages);
  memset(passages, 0, parts * sizeof *passages);
  for (size_t n = 0; n < parts; n++) passages[n].byte_start = starts[n], passages[n].byte_end = ends[n];
  uint64_t *chosen = room((parts + 1) * sizeof *chosen); /* the last one is not there */
  for (size_t n = 0; n <= parts; n++) chosen[n] = n;
  float *scores = room((parts + 1) * sizeof *scores), *again = room((parts + 1) * sizeof *again);
  if (plain) {
    check(cw_attention_scores(plain, vectors, text, size, passages, parts, chosen, parts + 1, none, scores));
    check(cw_attention_scores(wide, vectors, text, size, passages, parts, chosen, parts + 1, none, again));
    check(scores[parts] == none);
    check_same(scores, again, parts);
    for (size_t n = 0; n < parts; n++) {
      check(cw_attention_scores(wide, vectors, text, size, passages, parts, chosen + n, 1, none, again));
      check_same(scores + n, again, 1);
      check(!is_small || scores[n] - scores[n] == 0);
    }
  }
  cw_attention_free(plain), cw_attention_free(wide);
  free(made), free(whole), free(passages), free(chosen), free(scores), free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint32_t count = next(&data, &size) % MAX_PIECES, dims = next(&data, &size) % 16, hidden = next(&data, &size) % 16;
  uint8_t how = next(&data, &size);
  size_t parts = how % 8, total = 0;
  int is_small = how & 8;
  if (how & 16) dims += CW_MAX_DIMS - 8; /* also more than there is room for */
  if (how & 32) hidden += CW_MAX_HIDDEN - 8;
  uint8_t *sizes = room(count);
  for (uint32_t n = 0; n < count; n++) total += sizes[n] = next(&data, &size) % 32;
  uint8_t *pieces = room(total);
  for (size_t n = 0; n < total; n++) pieces[n] = next(&data, &size);
  if (size > MAX_TEXT) size = MAX_TEXT;
  uint8_t *text = room(size);
  memcpy(text, data, size);
  int8_t *rows = room((size_t)count * dims);
  for (size_t n = 0; n < (size_t)count * dims; n++) rows[n] = (int8_t)(n * 37 + 11);
  struct table table = {sizes, pieces, rows, count, dims};
  struct vectors *made = cw_vectors_new(pieces, sizes, rows, count, dims);
  check(made != NULL);
  uint64_t *starts = room(parts * sizeof *starts), *ends = room(parts * sizeof *ends);
  for (size_t n = 0; n < parts; n++) {
    starts[n] = size * n / parts;
    ends[n] = size * (n + 1) / parts;
  }
  if (how & 64 && parts) ends[parts - 1] = size + 1; /* not in the text: no pieces */
  if (how & 128 && parts) starts[0] = ends[0] + 1;
  float *sums = room(parts * dims * sizeof *sums), *plain = room(dims * sizeof *plain);
  uint32_t *found = room(parts * sizeof *found);
  cw_vectors_sum(made, text, size, starts, ends, parts, sums, found);
  for (size_t n = 0; n < parts; n++) {
    uint32_t number = 0;
    memset(plain, 0, dims * sizeof *plain);
    if (starts[n] <= ends[n] && ends[n] <= size) plain_sum(&table, text, starts[n], ends[n], plain, &number);
    check(number == found[n] && memcmp(plain, sums + n * dims, dims * sizeof *plain) == 0);
  }
  fuzz_network(dims, hidden, is_small, text, size, sums, found, parts);
  fuzz_attention(made, dims, is_small, text, size, starts, ends, parts);
  cw_vectors_free(made);
  free(sizes), free(pieces), free(text), free(rows), free(starts), free(ends), free(sums), free(plain), free(found);
  return 0;
}
