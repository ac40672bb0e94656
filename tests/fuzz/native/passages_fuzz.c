/* Passages in C: any code points with any kinds, any words, phrases, spans and weights. Nothing outside of
 * what is given is read or written; passages are in order, apart and short; a weight does not depend on which
 * others are asked for.
 *
 * Input: how the tables are made, then text, of which each two bytes are a character. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "passages.h"

#define MAX_TEXT 2048
#define MAX_CHARACTERS 600
#define WORDS 24

static void check(int holds) {
  if (!holds) abort();
}

/* Of exactly this size, so that a read behind the end is seen. */
static void *room(size_t size) {
  void *made = malloc(size ? size : 1);
  check(made != NULL);
  return made;
}

static uint8_t next(const uint8_t **data, size_t *size) {
  if (*size == 0) return 0;
  (*size)--;
  return *(*data)++;
}

/* Mostly as the interpreter has it, so that the passes get far; `wild` gives any kind to any character. */
static uint8_t kind_of(uint32_t code, int wild) {
  if (wild) return (uint8_t)(code * 37 >> 1) | KNOWN;
  int small = code >= 'a' && code <= 'z', large = code >= 'A' && code <= 'Z', digit = code >= '0' && code <= '9';
  int letter = small || large || (code >= 0xc0 && code != 0x2019 && code < 0x2000) || code >= 0x3040;
  int kinds = KNOWN | (letter ? WORD | LETTER | ALPHA : 0) | (large ? UPPER : 0) | (digit ? WORD | DIGIT : 0);
  if (code == '_') kinds |= WORD;
  if (code == ' ' || (code >= '\t' && code <= '\r') || code == 0x2028) kinds |= SPACE;
  return (uint8_t)(code >= 0x300 && code < 0x340 ? KNOWN | MARK : kinds);
}

static const uint32_t signs[] = {0x3002, 0xff01, 0x964, 0x61f, 0x2019, 0x201c, 0x201d, 0xab, 0xbb, 0x300c, 0x300d,
                                 0x20ac, 0xa3, 0x2022, 0x301, 0x430, 0x9762, 0xe9, 0x1f600, 0x110000, 0xffffffff};

static struct letters text_of(const uint8_t *data, size_t size, int wild) {
  size_t count = size < MAX_TEXT ? size : MAX_TEXT;
  uint32_t *codes = room(count * sizeof *codes);
  static uint8_t *table;
  if (table == NULL) table = calloc(0x110000, 1);
  uint8_t *kinds = room(count);
  check(table != NULL);
  for (size_t n = 0; n < count; n++)
    codes[n] = data[n] < 0x80 ? data[n] : signs[data[n] % (sizeof signs / sizeof *signs)];
  int is_known = 1;
  for (size_t n = 0; n < count; n++) is_known &= codes[n] >= 0x110000;
  check(cw_kinds(codes, count, table, kinds) == is_known);
  for (size_t n = 0; n < count; n++)
    if (codes[n] < 0x110000) table[codes[n]] = kind_of(codes[n], wild);
  check(cw_kinds(codes, count, table, kinds));
  for (size_t n = 0; n < count; n++)
    if (codes[n] < 0x110000) table[codes[n]] = 0;
  return (struct letters){codes, kinds, count};
}

static void free_text(struct letters text) {
  free((void *)text.codes);
  free((void *)text.kinds);
}

/* Words are cut out of the text, so that they stand in it; their classes are any. */
static struct lexicon *lexicon_of(const struct letters *text, uint8_t how) {
  struct word_entry *words = room(WORDS * sizeof *words);
  struct phrase_entry phrases[4] = {{1, 3}, {2, 127}, {0, 5}, {7, 40000}};
  struct class_table table = {.verbs = how % 12, .objects = how % 11, .override = 1, .forget = how % 140,
                              .reminder = 3, .instructions = 20, .first_act = 192};
  uint32_t *letters = room(WORDS * 8 * sizeof *letters);
  uint32_t count = 0, at = 0;
  for (size_t start = 0; start + 8 < text->size && count < WORDS; start += 1 + text->codes[start] % 9) {
    uint32_t size = 1 + text->codes[start + 1] % 7;
    memcpy(letters + at, text->codes + start, size * sizeof *letters);
    uint64_t classes = (uint64_t)text->codes[start] * 0x9e3779b97f4a7c15u;
    words[count++] = (struct word_entry){{classes, classes >> 7}, size, text->codes[start] & 1};
    at += size;
  }
  for (int n = 0; n < CW_CLASSES; n++) table.opens[n] = n % 3 ? (uint16_t)(150 + n) : (uint16_t)(n * 521);
  for (int n = 0; n < CW_TRAIT_WORDS; n++) table.gate[n] = (uint64_t)how << 8 * n | 3;
  table.spoken_to[0] = 0x8000, table.openers[0] = 0xff00ff, table.openers[1] = how;
  struct lexicon *made = cw_lexicon_new(letters, words, count, phrases, 4, &table);
  check(made != NULL);
  free(words);
  free(letters);
  return made;
}

static void check_spans(const struct letters *text, const uint32_t *starts, const uint32_t *ends, size_t count) {
  uint32_t last = 0;
  for (size_t n = 0; n < count; n++) {
    check(starts[n] >= last && starts[n] < ends[n] && ends[n] <= text->size);
    check(ends[n] - starts[n] <= MAX_CHARACTERS);
    last = ends[n];
  }
}

static int32_t *weights_of(size_t count, uint8_t how) {
  int32_t *made = room(count * sizeof *made);
  for (size_t n = 0; n < count; n++) made[n] = (int32_t)((n * 31 + how) % 2000) - 1000;
  return made;
}

static void fuzz_placing(const struct passage *passages, size_t count, const uint64_t *chosen, size_t chosen_count,
                         uint8_t how) {
  struct common_traits common = {5, how, 7, 8, 400};
  struct surroundings around;
  cw_surroundings(&common, passages, count, (uint64_t)how << 12, &around);
  check(around.count == count && around.script < SCRIPTS);
  struct placing *placing = room(sizeof *placing);
  memset(placing, 0xff, sizeof *placing); /* nothing has a number */
  uint32_t pairs = 1 + how % 100;
  int32_t *both = weights_of(pairs * pairs, how), *within = weights_of(pairs * CW_TEXT_TRAITS, how);
  int32_t *by = weights_of(pairs * CW_CARRIED, how);
  placing->both = both, placing->within = within, placing->by = by, placing->pair_count = pairs;
  for (int n = 0; n < CW_TRAITS; n++) {
    placing->own[n] = n, placing->own_numbers[n] = (uint16_t)(n * how);
    placing->pairs[n] = (uint8_t)(n % 3 ? n % (pairs + 1) : CW_NO_PAIR);
  }
  for (int n = 0; n < CW_CARRIED; n++)
    placing->beside[n] = -n, placing->beside_numbers[n] = (uint16_t)(n * 40), placing->carried[n] = (uint16_t)(n * 25);
  for (int n = 0; n < CW_TEXT_TRAITS; n++) placing->text[n] = n, placing->text_numbers[n] = (uint16_t)(511 - n);
  int32_t *weights = room(chosen_count * sizeof *weights), weight;
  uint32_t *numbers = room(chosen_count * CW_MAX_NUMBERS * sizeof *numbers), *again = room(CW_MAX_NUMBERS * sizeof *again);
  uint64_t *ends = room(chosen_count * sizeof *ends), end;
  size_t found = cw_passages_place(placing, passages, &around, chosen, chosen_count, weights, numbers, ends);
  check(found <= chosen_count * CW_MAX_NUMBERS && (!chosen_count || ends[chosen_count - 1] == found));
  for (size_t n = 0; n < chosen_count; n++) {
    uint64_t begin = n ? ends[n - 1] : 0;
    check(cw_passages_place(placing, passages, &around, chosen + n, 1, &weight, again, &end) == ends[n] - begin);
    check(weight == weights[n] && memcmp(again, numbers + begin, end * sizeof *again) == 0);
    for (uint64_t at = begin + 1; at < ends[n]; at++) check(numbers[at - 1] < numbers[at]);
  }
  free(placing), free(both), free(within), free(by), free(weights), free(numbers), free(again), free(ends);
}

static void fuzz_reading(const struct letters *text, const struct letters *lows, const struct spans *spans,
                         const struct spans *low_spans, const uint8_t *data, size_t size, uint8_t how) {
  struct lexicon *lexicon = lexicon_of(lows, how);
  size_t hit_count = size / 16;
  struct phrase_hit *hits = room(hit_count * sizeof *hits);
  for (size_t n = 0; n < hit_count; n++) hits[n] = (struct phrase_hit){data[n] % 6, (uint32_t)(n * 16 + data[n] % 16)};
  size_t count = spans->count;
  struct passage *passages = room(count * sizeof *passages);
  uint64_t *chosen = room((count + 1) * sizeof *chosen);
  size_t found = cw_passages_read(lexicon, text, spans, lows, low_spans, hits, hit_count, passages, chosen);
  check(found <= count);
  for (size_t n = 0; n < found; n++) {
    check(chosen[n] < count && passages[chosen[n]].is_candidate);
    check(passages[chosen[n]].start <= passages[chosen[n]].end && passages[chosen[n]].end <= text->size);
    check(passages[chosen[n]].byte_start <= passages[chosen[n]].byte_end);
    check(passages[chosen[n]].byte_end <= 4 * lows->size);
  }
  chosen[found] = count; /* one that is not there */
  fuzz_placing(passages, count, chosen, found + 1, how);
  free(hits), free(passages), free(chosen);
  cw_lexicon_free(lexicon);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t how = next(&data, &size), wild = next(&data, &size) & 1, cut = next(&data, &size);
  struct letters text = text_of(data, size, wild), lows = text_of(data + size / 3, size - size / 3, wild);
  uint32_t *starts = room(text.size * sizeof *starts), *ends = room(text.size * sizeof *ends), few[2];
  size_t count = cw_passages_split(&text, starts, ends, text.size);
  check(count <= text.size);
  check_spans(&text, starts, ends, count);
  check(cw_passages_split(&text, few, few + 1, 1) == count); /* no more room, and no fewer passages */
  struct spans spans = {starts, ends, count};
  fuzz_reading(&text, &text, &spans, &spans, data, size, how);
  /* Spans of another text, some of which are not there. */
  if (count && cut & 1) ends[count - 1] = (uint32_t)text.size + cut;
  struct spans fewer = {starts, ends, cut & 2 && count ? count - 1 : count};
  fuzz_reading(&text, &lows, &spans, &fewer, data, size, how);
  free_text(text), free_text(lows);
  free(starts), free(ends);
  return 0;
}
