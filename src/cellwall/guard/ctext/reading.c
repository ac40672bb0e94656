/* Reads the passages of a text: the classes of their words and phrases, what they begin with, which
 * acts have which objects, and of those that may instruct a model what they point at and their form.
 */
#include <string.h>

#include "passages.h"

#define MAX_WORDS 1200 /* of one passage; one of 600 characters has at most half of it */
#define MAX_ACTS 64
#define REACH 5 /* so many words behind an act its object may stand */
#define MIN_MISSPELT 8
#define MAX_OPENING 20
#define MIN_OPENING 2
#define MAX_OPENING_BLANKS 3
#define SHORT_WORDS 5
#define LONG_WORDS 25
#define CASE_CHARACTERS 80
#define MIN_CASE_LETTERS 12

struct reader {
    const struct lexicon *lexicon;
    struct letters low;
    const struct known_word *words[MAX_WORDS]; /* NULL for one that is not known */
    size_t count;
    uint64_t classes[CLASS_WORDS];
    int is_misspelt;  /* instructions, whatever stands around its middle */
    int overrides;    /* by a word that is not to forget */
};

static int has_class(const uint64_t *classes, size_t number) {
    return number < CW_CLASSES && classes[number / 64] >> number % 64 & 1;
}

static int share(const uint64_t *left, const uint64_t *right) {
    return ((left[0] & right[0]) | (left[1] & right[1])) != 0;
}

static int begins_a_path(uint32_t code) {
    return code == '/' || code == '\'' || code == '"' || code == '`' || code == 0x2018 ||
           code == 0x201c;
}

/* A hidden file or folder of a program: whoever names `.claude` or .claude/settings.json does not
 * speak to that model. A dot alone says too little: " .claude, delete it" may be a slip of a hand.
 */
static int is_hidden(const struct letters *low, size_t start) {
    if (start == 0 || low->codes[start - 1] != '.')
        return 0;
    size_t dot = start - 1;
    if (dot > 0 && begins_a_path(low->codes[dot - 1]))
        return 1;
    return has(low, past_letters(low, start), "/") &&
           !(follows_word(low, dot) || (dot > 0 && low->codes[dot - 1] == '.'));
}

static int is_misspelt(const struct letters *word) {
    for (size_t at = 0; at + 7 <= word->size; at++)
        if (has(word, at, "nstruct"))
            return 1;
    return 0;
}

static void add_word(struct reader *reader, size_t start, size_t end) {
    const struct lexicon *lexicon = reader->lexicon;
    const struct known_word *word = find_word(lexicon, reader->low.codes + start, end - start);
    int is_name = word && share(word->classes, lexicon->table.spoken_to) &&
                  is_hidden(&reader->low, start);
    if (is_name)
        word = NULL;
    if (word) {
        reader->classes[0] |= word->classes[0];
        reader->classes[1] |= word->classes[1];
        reader->overrides |= has_class(word->classes, lexicon->table.override) &&
                             !has_class(word->classes, lexicon->table.forget);
    }
    if (end - start + (size_t)is_name > MIN_MISSPELT && !reader->is_misspelt) {
        struct letters letters = part_of(&reader->low, start, end);
        reader->is_misspelt = is_misspelt(&letters);
    }
    if (reader->count < MAX_WORDS)
        reader->words[reader->count] = word;
    reader->count++;
}

/* Leaves the words of the passage before, which are not looked at. */
static void begin(struct reader *reader, struct letters low) {
    reader->low = low;
    reader->count = 0;
    reader->classes[0] = reader->classes[1] = 0;
    reader->is_misspelt = reader->overrides = 0;
}

static int joins_words(uint32_t code) {
    return code == '\'' || code == 0x2019 || code == '.' || code == '-';
}

static void read_words(struct reader *reader) {
    const struct letters *low = &reader->low;
    for (size_t at = 0; at < low->size;) {
        if (!(low->kinds[at] & LETTER)) {
            at++;
            continue;
        }
        size_t start = at;
        at = past_letters(low, at);
        while (at < low->size && joins_words(low->codes[at]) && is_kind(low, at + 1, LETTER))
            at = past_letters(low, at + 1);
        add_word(reader, start, at);
    }
}

static void set(uint64_t *traits, size_t number) {
    if (number < CW_TRAITS)
        traits[number / 64] |= BIT(number % 64);
}

static uint64_t verbs_of(const struct lexicon *lexicon, const struct known_word *word) {
    return word ? word->classes[0] & (BIT(lexicon->table.verbs) - 1) : 0;
}

/* What a passage begins with, of some classes. */
static void set_opens(const struct reader *reader, uint64_t *traits, const struct known_word *word,
                      const uint64_t *classes) {
    if (!word || !share(classes, word->classes))
        return;
    for (size_t number = 0; number < CW_CLASSES; number++)
        if (has_class(classes, number) && has_class(word->classes, number))
            set(traits, reader->lexicon->table.opens[number]);
}

/* The word behind blanks; 0 if there is none. Only its first letters count. */
static size_t opening_end(const struct letters *low, size_t at, size_t *start) {
    for (int blanks = 0; blanks < MAX_OPENING_BLANKS && is_kind(low, at, SPACE); blanks++)
        at++;
    *start = at;
    while (at - *start < MAX_OPENING && is_kind(low, at, LETTER))
        at++;
    return at - *start >= MIN_OPENING ? at : 0;
}

static int may_open(uint32_t code) {
    return code == ':' || code == '>' || code == ']' || code == ')' || code == '\'' ||
           code == '"' || code == '#' || code == '*' || code == '.' || code == '!' || code == '-';
}

/* Whether a verb stands at the beginning or behind a mark. */
static int orders_inside(const struct reader *reader) {
    const struct letters *low = &reader->low;
    size_t start;
    for (size_t at = 0; at < low->size;) {
        size_t end = at == 0 ? opening_end(low, 0, &start) : 0;
        if (!end && may_open(low->codes[at]))
            end = opening_end(low, at + 1, &start);
        if (end && verbs_of(reader->lexicon,
                            find_word(reader->lexicon, low->codes + start, end - start)))
            return 1;
        at = end ? end : at + 1;
    }
    return 0;
}

static void read_opening(const struct reader *reader, uint64_t *traits) {
    size_t first = 0, count = reader->count < MAX_WORDS ? reader->count : MAX_WORDS;
    while (first < count && reader->words[first] && reader->words[first]->is_skipped)
        first++;
    const struct known_word *opening = first < count ? reader->words[first] : NULL;
    const uint64_t verbs[CLASS_WORDS] = {verbs_of(reader->lexicon, opening), 0};
    if (verbs[0]) {
        traits[FORM_WORD] |= BIT(ORDER);
        set_opens(reader, traits, opening, verbs);
    } else if (orders_inside(reader)) {
        traits[FORM_WORD] |= BIT(ORDER_INSIDE);
    }
}

/* Takes off what a reminder seems to say: "do not forget to ..." overrides nothing. */
static void calm(const struct reader *reader, uint64_t *traits) {
    const struct class_table *table = &reader->lexicon->table;
    if (!has_class(traits, table->reminder) || reader->overrides || table->override >= CW_CLASSES)
        return;
    traits[table->override / 64] &= ~BIT(table->override % 64);
    uint16_t opens = table->opens[table->override];
    if (opens < CW_TRAITS)
        traits[opens / 64] &= ~BIT(opens % 64);
}

/* Which acts have which objects a few words behind them. In a long sentence both often stand
 * somewhere; side by side they are an order. */
static void read_acts(const struct reader *reader, uint64_t *traits) {
    const struct class_table *table = &reader->lexicon->table;
    uint64_t verbs = BIT(table->verbs) - 1, objects = (BIT(table->objects) - 1) << table->verbs;
    if (!(traits[0] & verbs) || !(traits[0] & objects))
        return;
    size_t last[MAX_ACTS] = {0}; /* the word behind the act, counted from 1 */
    size_t count = reader->count < MAX_WORDS ? reader->count : MAX_WORDS;
    for (size_t at = 0; at < count; at++) {
        if (!reader->words[at])
            continue;
        uint64_t classes = reader->words[at]->classes[0];
        for (size_t object = 0; classes & objects && object < table->objects; object++) {
            if (!(classes >> (table->verbs + object) & 1))
                continue;
            for (size_t act = 0; act < table->verbs; act++)
                if (last[act] && at + 1 - last[act] <= REACH)
                    set(traits, table->first_act + act * table->objects + object);
        }
        for (size_t act = 0; classes & verbs & traits[0] && act < table->verbs; act++)
            if (classes & traits[0] & BIT(act))
                last[act] = at + 1;
    }
}

/* The script of most letters; of two with as many that which comes first. */
static enum script script_of(const struct letters *text) {
    size_t counts[SCRIPTS] = {0};
    enum script order[SCRIPTS];
    int known = 0;
    for (size_t at = 0; at < text->size; at++) {
        if (!(text->kinds[at] & ALPHA))
            continue;
        uint32_t code = text->codes[at];
        enum script script = code < 0x250 ? LATIN
                             : code >= 0x400 && code < 0x530 ? CYRILLIC
                             : (code >= 0x3040 && code < 0x9fff) ||
                                     (code >= 0xac00 && code < 0xd7b0)
                                 ? CJK
                                 : OTHER_LETTERS;
        if (!counts[script]++)
            order[known++] = script;
    }
    enum script most = LATIN;
    for (int n = 0; n < known; n++)
        if (n == 0 || counts[order[n]] > counts[most])
            most = order[n];
    return most;
}

static int is_in_capitals(const struct letters *text) {
    size_t letters = 0, large = 0;
    for (size_t at = 0; at < text->size; at++) {
        letters += (text->kinds[at] & ALPHA) != 0;
        large += (text->kinds[at] & (ALPHA | UPPER)) == (ALPHA | UPPER);
    }
    return letters > MIN_CASE_LETTERS && (double)large > 0.6 * (double)letters;
}

static void read_candidate(const struct reader *reader, const struct letters *plain,
                           struct passage *passage) {
    uint64_t *traits = passage->traits;
    struct letters head = part_of(plain, 0, plain->size < CASE_CHARACTERS ? plain->size
                                                                           : CASE_CHARACTERS);
    if (reader->count)
        set_opens(reader, traits, reader->words[0], reader->lexicon->table.openers);
    read_acts(reader, traits);
    traits[FORM_WORD] |= targets_of(plain) | forms_of(plain) |
                         (opens_key(plain) ? BIT(OPENS_KEY) : 0) |
                         (is_in_capitals(&head) ? BIT(CAPITALS) : 0) |
                         BIT(reader->count < SHORT_WORDS ? SHORT
                             : reader->count < LONG_WORDS ? MEDIUM
                                                          : LONG);
    passage->script = script_of(&head);
    passage->is_candidate = 1;
    size_t start = 0, end = without_blanks(plain);
    while (start < end && plain->kinds[start] & SPACE)
        start++;
    if (end) {
        size_t offset = passage->start;
        passage->start = (uint32_t)(offset + start);
        passage->end = (uint32_t)(offset + end);
    }
}

static int may_instruct(const struct lexicon *lexicon, const uint64_t *traits) {
    uint64_t both = 0;
    for (int word = 0; word < CW_TRAIT_WORDS; word++)
        both |= traits[word] & lexicon->table.gate[word];
    return both != 0;
}

static void read_passage(struct reader *reader, const struct letters *plain,
                         struct passage *passage) {
    uint64_t *traits = passage->traits;
    read_words(reader);
    traits[0] |= reader->classes[0];
    traits[1] |= reader->classes[1];
    if (reader->is_misspelt)
        set(traits, reader->lexicon->table.instructions);
    read_opening(reader, traits);
    calm(reader, traits);
    if (may_instruct(reader->lexicon, traits)) {
        read_candidate(reader, plain, passage);
        return;
    }
    /* It only counts for others, by these. */
    if (is_code(plain))
        traits[FORM_WORD] |= BIT(CODE);
    if (ends_colon(plain))
        traits[FORM_WORD] |= BIT(ENDS_COLON);
    passage->script = script_of(plain);
}

static size_t bytes_of(const struct letters *text, size_t at, size_t end) {
    size_t bytes = 0;
    for (; at < end; at++)
        bytes += 1 + (text->codes[at] >= 0x80) + (text->codes[at] >= 0x800) +
                 (text->codes[at] >= 0x10000);
    return bytes;
}

/* Blanks are cut off where the passage is one to look at, in both forms alike. */
static void cut_blanks(struct passage *passage, const struct letters *low) {
    size_t start = 0, end = without_blanks(low);
    while (start < end && low->kinds[start] & SPACE)
        start++;
    if (!end)
        return;
    passage->byte_end -= bytes_of(low, end, low->size);
    passage->byte_start += bytes_of(low, 0, start);
}

struct phrases {
    const struct phrase_hit *hits;
    size_t count, next;
};

/* The classes of the phrases that stand in so many bytes; hits come in the order of their ends. */
static void read_phrases(const struct lexicon *lexicon, struct phrases *found,
                         const struct passage *passage, uint64_t *classes) {
    for (; found->next < found->count; found->next++) {
        struct phrase_hit hit = found->hits[found->next];
        if (hit.end > passage->byte_end)
            return;
        if (hit.number >= lexicon->phrase_count)
            continue;
        struct phrase_entry phrase = lexicon->phrases[hit.number];
        if (phrase.bytes <= hit.end && hit.end - phrase.bytes >= passage->byte_start &&
            phrase.class_number < CW_CLASSES)
            set(classes, phrase.class_number);
    }
}

/* The passages of a text, and the numbers of those that may instruct a model; returns how many these
 * are. `lows` is the text in lower case, whose spans may have other sizes: one letter becomes two.
 * What a span has that is not there is left out. */
size_t cw_passages_read(const struct lexicon *lexicon, const struct letters *text,
                        const struct spans *spans, const struct letters *lows,
                        const struct spans *low_spans, const struct phrase_hit *hits,
                        size_t hit_count, struct passage *passages, uint64_t *candidates) {
    struct phrases found = {hits, hit_count, 0};
    size_t chosen = 0, at = 0, byte = 0;
    struct reader reader = {.lexicon = lexicon};
    memset(passages, 0, spans->count * sizeof *passages);
    for (size_t n = 0; n < spans->count; n++) {
        struct passage *passage = passages + n;
        size_t start = spans->starts[n], end = spans->ends[n];
        if (n >= low_spans->count || start > end || end > text->size)
            continue;
        size_t low_start = low_spans->starts[n], low_end = low_spans->ends[n];
        if (low_start < at || low_start > low_end || low_end > lows->size)
            continue;
        struct letters plain = part_of(text, start, end);
        begin(&reader, part_of(lows, low_start, low_end));
        passage->start = (uint32_t)start;
        passage->end = (uint32_t)end;
        passage->byte_start = byte += bytes_of(lows, at, low_start);
        passage->byte_end = byte += bytes_of(lows, low_start, at = low_end);
        read_phrases(lexicon, &found, passage, passage->traits);
        read_passage(&reader, &plain, passage);
        if (passage->is_candidate) {
            cut_blanks(passage, &reader.low);
            candidates[chosen++] = n;
        }
    }
    return chosen;
}
