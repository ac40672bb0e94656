/* The lines around edits, as they read after them; what lies between is left out. */
#include "inline.h"

#define GAP "\n\n\n" /* between what was not side by side */
#define GAP_SIZE 3

size_t line_start(const uint8_t *image, size_t at, size_t least) {
    if (at > INLINE_AROUND && least < at - INLINE_AROUND)
        least = at - INLINE_AROUND;
    while (at > least && image[at - 1] != '\n')
        at--;
    return at;
}

size_t line_end(const uint8_t *image, size_t size, size_t at) {
    size_t most = size - at < INLINE_AROUND ? size : at + INLINE_AROUND;
    const uint8_t *found = memchr(image + at, '\n', most - at);
    return found ? (size_t)(found - image) : most;
}

/* A sentence may go on behind the line. */
static size_t next_line_end(const uint8_t *image, size_t size, size_t at) {
    size_t end = line_end(image, size, at);
    return line_end(image, size, end < size ? end + 1 : size);
}

struct source {
    const uint8_t *data; /* UTF-8 */
    size_t size, characters, at, byte;
};

static size_t characters_in(const uint8_t *text, size_t size) {
    size_t count = 0;
    for (size_t n = 0; n < size; n++)
        count += (text[n] & 0xc0) != 0x80;
    return count;
}

#define BLOCK 256

/* The byte at which a character begins; each is asked for behind the last. */
static size_t byte_of(struct source *source, size_t character) {
    if (source->size == source->characters)
        return character;
    while (source->at < character && source->byte < source->size) {
        size_t step = source->size - source->byte < BLOCK ? 1 : BLOCK;
        size_t count = characters_in(source->data + source->byte, step);
        if (source->at + count > character) {
            step = 1;
            count = 1;
        }
        source->at += count;
        source->byte += step;
        while (source->byte < source->size && (source->data[source->byte] & 0xc0) == 0x80)
            source->byte++;
    }
    return source->byte;
}

struct output {
    struct patches *to;
    size_t characters; /* of all of it */
    struct patch last;
};

static int put(struct output *output, size_t start, size_t end, const uint8_t *text, size_t size,
               size_t characters) {
    struct patches *to = output->to;
    if (to->count >= to->room || to->text_room - to->text_size < size) {
        to->is_cut = 1;
        return 0;
    }
    if (size)
        memcpy(to->text + to->text_size, text, size);
    to->text_size += size;
    to->found[to->count++] = output->last = (struct patch){
        (uint32_t)output->characters, (uint32_t)start, (uint32_t)end};
    output->characters += characters;
    return 1;
}

/* One more part, unless there are as many characters as there may be. */
static int add(struct output *output, size_t start, size_t end, const uint8_t *text, size_t size,
               size_t characters) {
    struct patches *to = output->to;
    if (to->characters >= to->most) {
        to->is_cut = 1;
        return 0;
    }
    struct patch last = output->last;
    if (to->count && last.end != start) {
        /* It stands for what was left out; where that is nothing, for the part before. */
        int is_left_out = start > last.end;
        if (!put(output, is_left_out ? last.end : last.start, is_left_out ? start : last.end,
                 (const uint8_t *)GAP, GAP_SIZE, GAP_SIZE))
            return 0;
    }
    to->characters += characters;
    return put(output, start, end, text, size, characters);
}

static int add_source(struct output *output, struct source *source, size_t start, size_t end) {
    if (end <= start)
        return 1;
    size_t first = byte_of(source, start), last = byte_of(source, end);
    return add(output, start, end, source->data + first, last - first, end - start);
}

/* Edits in order and apart; one that is not is left out. */
void cw_patches(const uint8_t *image, size_t size, const uint8_t *data, size_t data_size,
                const struct edit *edits, size_t count, const uint8_t *text, size_t text_size,
                struct patches *patches) {
    struct source source = {data, data_size, size, 0, 0};
    struct output output = {.to = patches};
    size_t done = 0, reach = 0;
    for (size_t n = 0; n < count; n++) {
        struct edit edit = edits[n];
        if (edit.start < done || edit.end < edit.start || edit.end > size ||
            edit.text > text_size || edit.size > text_size - edit.text)
            continue;
        if (edit.start > reach) {
            if (!add_source(&output, &source, done, reach))
                return;
            done = line_start(image, edit.start, reach);
        }
        const uint8_t *told = text + edit.text;
        if (!add_source(&output, &source, done, edit.start) ||
            !add(&output, edit.start, edit.end, told, edit.size,
                 characters_in(told, edit.size)))
            return;
        done = edit.end;
        reach = next_line_end(image, size, done);
    }
    add_source(&output, &source, done, reach);
}
