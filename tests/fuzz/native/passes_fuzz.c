/* The guard's passes over text: they stay inside the text and the room that they are given, and find
 * what a plain loop finds. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "passes.h"

#define ROOM 8

static void check(int holds) {
  if (!holds) abort();
}

/* Of exactly this size, so that a read behind the end is seen. */
static void *copy_of(const void *data, size_t size) {
  void *copy = malloc(size ? size : 1);
  check(copy != NULL);
  memcpy(copy, data, size);
  return copy;
}

static void fuzz_characters(const uint8_t *data, size_t size, const uint8_t *common) {
  uint32_t *codes = malloc(ROOM * sizeof *codes);
  uint64_t *parts = malloc(4 * ROOM * sizeof *parts);
  check(codes != NULL && parts != NULL);
  size_t found = cw_letters(data, size, common, codes, ROOM);
  check(found <= size);
  size_t blocks = cw_blocks(data, size, common, 16, parts, ROOM);
  check(blocks <= ROOM);
  for (size_t i = 0; i < blocks; i++) {
    check(parts[4 * i + 2] < parts[4 * i + 3] && parts[4 * i + 3] <= size);
    check(parts[4 * i] <= parts[4 * i + 1] && parts[4 * i + 1] <= size);
  }
  free(codes);
  free(parts);
}

static void fuzz_lines(const uint8_t *data, size_t size) {
  static const byte_set ornaments = {['#'] = 1, [' '] = 1, ['>'] = 1}, follow = {[':'] = 1, [' '] = 1};
  uint64_t *places = malloc(ROOM * sizeof *places);
  check(places != NULL);
  size_t found = cw_line_heads(data, size, ornaments, 4, "system\0user\0\0", follow, places, ROOM);
  for (size_t i = 0; i < found && i < ROOM; i++)
    check(places[i] < size && (places[i] == 0 || data[places[i] - 1] == '\n'));
  free(places);
}

static void fuzz_runs(const uint8_t *data, size_t size, const uint8_t *set, size_t least) {
  uint64_t *found = malloc(ROOM * sizeof *found);
  check(found != NULL);
  struct places places = {found, 0, ROOM};
  cw_runs(data, size, set, least, &places);
  size_t count = 0, length = 0;
  for (size_t i = 0; i <= size; i++) {
    if (i < size && set[data[i]]) {
      length++;
      continue;
    }
    if (least && length >= least) {
      check(count >= ROOM || found[count] == i - length);
      count++;
    }
    length = 0;
  }
  check(places.count == count);
  free(found);
}

/* Tables as library.py makes them: three chains of sixteen bytes. */
static void fuzz_survey(const uint8_t *data, size_t size) {
  static struct survey_tables tables;
  if (tables.firsts == 0) {
    for (int chain = 0; chain < CHAINS; chain++) {
      tables.firsts |= (uint64_t)1 << 16 * chain;
      tables.lasts |= (uint64_t)0x8000 << 16 * chain;
      for (int byte = 0; byte < 256; byte++) {
        int is_member = chain == 0 ? byte >= 'a' && byte <= 'z' : chain == 1 ? byte >= '0' && byte <= '9'
                                                                             : byte > ' ' && byte < 0x7f;
        if (is_member) tables.moves[byte] |= (uint64_t)0xffff << 16 * chain;
        if (byte == ' ' || (chain == 2 && byte == '.')) tables.keeps[byte] |= (uint64_t)0xffff << 16 * chain;
      }
    }
    tables.loose = (uint64_t)0x8000 << 32;
  }
  struct survey survey;
  for (int i = 0; i < CHAINS; i++) {
    uint64_t *found = malloc(ROOM * sizeof *found);
    check(found != NULL);
    survey.chains[i] = (struct places){found, 0, ROOM};
  }
  cw_survey(data, size, &tables, &survey);
  for (int i = 0; i < CHAINS; i++) {
    struct places *places = &survey.chains[i];
    if (places->count <= places->room)
      for (uint64_t n = 0; n < places->count; n++) check(places->found[n] < size);
    free(places->found);
  }
}

static const struct entity_names *entity_names(void) {
  static const uint32_t ends[] = {0, 4, 7}, text_ends[] = {0, 1, 7};
  static const struct entity_names names = {
      (const uint8_t *)"amp;gg;", (const uint8_t *)"&\xe2\x89\xab\xe2\x89\xab", ends, text_ends, 2, 0};
  return &names;
}

/* The lines around edits: each part stands for a part of the text, and has the place of its own. */
static void fuzz_patches(const uint8_t *image, size_t size, const uint8_t *data, size_t data_size,
                         const struct edits *edits, size_t most) {
  size_t room = 4 * edits->count + 1, text_room = data_size + edits->text_size + 3 * edits->count + 3;
  struct patch *found = malloc(room * sizeof *found);
  uint8_t *text = malloc(text_room);
  check(found != NULL && text != NULL);
  struct patches patches = {.found = found, .text = text, .room = room, .text_room = text_room, .most = most};
  cw_patches(image, size, data, data_size, edits->found, edits->count, edits->text, edits->text_size, &patches);
  check(patches.count <= room && patches.text_size <= text_room);
  check(most > data_size + edits->text_size ? !patches.is_cut : 1);
  for (size_t n = 0; n < patches.count; n++) {
    check(found[n].start <= found[n].end && found[n].end <= size);
    check(n == 0 ? found[n].at == 0 : found[n - 1].at <= found[n].at);
  }
  free(found);
  free(text);
}

/* The first byte chooses how little room there is. `data` has two bytes for some characters. */
static void fuzz_inline(const uint8_t *data, size_t size) {
  size_t room = size && *data % 4 == 0 ? ROOM : size + 1, data_size = 0;
  uint8_t *wide = malloc(2 * size + 1);
  struct token *tokens = malloc(room * sizeof *tokens), *equals = malloc(room * sizeof *equals);
  check(wide != NULL && tokens != NULL && equals != NULL);
  for (size_t at = 0; at < size; at++) {
    if (data[at] >= 0x80) wide[data_size++] = 0xc3;
    wide[data_size++] = data[at] < 0x80 ? data[at] : 0x80 | (data[at] & 0x3f);
  }
  size_t count = cw_tokens(data, size, tokens, room), signs;
  count = count < room ? count : room;
  for (size_t n = 0; n < count; n++)
    check(tokens[n].start < tokens[n].end && tokens[n].end <= size && (n == 0 || tokens[n - 1].end <= tokens[n].start));
  signs = cw_equals(data, size, tokens, count, size % 3, equals, room);
  signs = signs < room ? signs : room;
  for (uint32_t kind = 0; kind <= 4; kind++) {
    struct edit *found = malloc(room * sizeof *found);
    size_t text_room = size % 5 == 0 ? 3 : 2 * size;
    uint8_t *text = malloc(text_room ? text_room : 1);
    check(found != NULL && text != NULL);
    struct edits edits = {.found = found, .text = text, .room = room, .text_room = text_room};
    if (kind == 4)
      cw_string_edits(data, size, &edits);
    else
      cw_edits(data, size, kind == 3 ? equals : tokens, kind == 3 ? signs : count, kind, entity_names(), &edits);
    check(edits.count <= room && edits.text_size <= text_room && (text_room == 3 || kind == 0 || kind == 3 || !edits.unknown));
    for (size_t n = 0; n < edits.count; n++) {
      check(found[n].start < found[n].end && found[n].end <= size && (n == 0 || found[n - 1].end <= found[n].start));
      check(found[n].size == CW_UNKNOWN || found[n].text + (size_t)found[n].size <= edits.text_size);
      if (found[n].size == CW_UNKNOWN) found[n].size = 0; /* Python would ask for it */
    }
    fuzz_patches(data, size, wide, data_size, &edits, size % 2 ? ~(size_t)0 : size / 2);
    free(found);
    free(text);
  }
  free(wide);
  free(tokens);
  free(equals);
}

static struct glance *make_glance(void) {
  static const uint32_t sizes[] = {4, 6, 3};
  static struct word_worth words[3] = {{.anywhere = 1, .is_first_verb = 1}, {.asking = 2, .is_leading = 1},
                                       {.next = 1, .is_question_word = 1, .is_telling = 1}};
  static struct worths worths = {.base = 1, .quotes = 1};
  return cw_glance_new((const uint8_t *)"sendpleasewhy", sizes, words, 3, &worths);
}

static void fuzz_sentences(const uint8_t *data, size_t size) {
  uint8_t *marked = malloc(size ? size : 1);
  check(marked != NULL);
  size_t length = cw_marked(data, size, marked);
  check(length <= size);
  uint8_t *text = copy_of(marked, length);
  /* A cue at each letter that begins a word; their numbers choose kinds and lengths. */
  static const uint8_t kinds[] = {0, 1, 2, 3, 4}, lengths[] = {1, 4, 2, 6, 3};
  size_t count = 0;
  uint64_t *cues = malloc((length + 1) * sizeof *cues);
  check(cues != NULL);
  for (size_t at = 0; at < length; at++)
    if ((text[at] | 0x20) >= 'a' && (text[at] | 0x20) <= 'z' && (at == 0 || text[at - 1] <= ' '))
      cues[count++] = (uint64_t)(length - 1 - at) << 20 | at % 5;
  cw_cues_sort(cues, count);
  for (size_t i = 1; i < count; i++) check(cues[i - 1] <= cues[i]);
  uint64_t *starts = malloc((count + 1) * sizeof *starts), *ends = malloc((count + 1) * sizeof *ends);
  double *most = malloc((count + 1) * sizeof *most);
  uint32_t *rivals = malloc((count + 1) * sizeof *rivals);
  check(starts != NULL && ends != NULL && most != NULL && rivals != NULL);
  size_t next = 0, done = 0, found = 0;
  while (next < count) {
    found += cw_candidates(text, length, cues, count, kinds, lengths, &next, &done, starts + found,
                           ends + found);
    next += next < count; /* Python would look at this one */
  }
  check(found <= count);
  for (size_t i = 0; i < found; i++)
    check(starts[i] <= ends[i] && ends[i] <= length && (i == 0 || ends[i - 1] <= starts[i]));
  cw_rivals(starts, ends, found, 40, rivals);
  for (size_t i = 0; i < found; i++) check(rivals[i] < found);
  struct glance *glance = make_glance();
  check(glance != NULL);
  cw_glance(glance, text, length, starts, ends, most, found);
  cw_glance_free(glance);
  free(marked);
  free(text);
  free(cues);
  free(starts);
  free(ends);
  free(most);
  free(rivals);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *text = copy_of(data, size);
  byte_set common = {['\n'] = 1, ['\t'] = 1}, letters = {0};
  for (int byte = 0x20; byte < 0x7f; byte++) common[byte] = 1;
  for (int byte = 'a'; byte <= 'z'; byte++) letters[byte] = 1;
  fuzz_characters(text, size, common);
  fuzz_lines(text, size);
  fuzz_runs(text, size, letters, size % 7);
  fuzz_survey(text, size);
  fuzz_inline(text, size);
  fuzz_sentences(text, size);
  (void)cw_base64_may_be_text(text, size);
  free(text);
  return 0;
}
