/* A small transformer encoder that reads a passage with what stands before and behind it: which pieces it
 * reads, and the score that it gives.
 *
 * Of each passage only the first pieces count, and all passages of a text make one list of them. A window
 * of this list is read: some pieces before the passage, its own, and where these are all of it, some behind
 * it. The score is that of a small network over the mean and the maximum of what the own pieces have become. */
#include <stdlib.h>
#include <string.h>

#include "encoder.h"

#define LEAST (-5.0f) /* of a maximum */

struct window {
    uint32_t pieces[MAX_TOKENS];
    size_t count, own, own_end;
};

static void put(struct window *window, const uint32_t *pieces, size_t count) {
    memcpy(window->pieces + window->count, pieces, count * sizeof *pieces);
    window->count += count;
}

struct text {
    const struct vectors *vectors;
    const uint8_t *data;
    size_t size;
    const struct passage *passages;
    size_t count;
};

static size_t pieces_of(const struct text *text, size_t passage, uint32_t *pieces, size_t most) {
    const struct passage *found = text->passages + passage;
    return cw_vectors_pieces(text->vectors, text->data, text->size, found->byte_start,
                             found->byte_end, pieces, (uint32_t)most);
}

static void find_window(const struct attention_shape *shape, const struct text *text,
                        size_t passage, struct window *window) {
    uint32_t found[MAX_TOKENS], before[MAX_TOKENS];
    size_t left = shape->before, count;
    for (size_t other = passage; left && other-- > 0;) {
        count = pieces_of(text, other, found, shape->most);
        size_t taken = count < left ? count : left;
        left -= taken;
        memcpy(before + left, found + count - taken, taken * sizeof *found);
    }
    window->count = 0;
    put(window, before + left, shape->before - left);
    count = pieces_of(text, passage, found, shape->most);
    window->own = window->count;
    put(window, found, count < shape->own ? count : shape->own);
    window->own_end = window->count;
    left = count > shape->own ? 0 : shape->after;
    for (size_t other = passage + 1; left && other < text->count; other++) {
        count = pieces_of(text, other, found, left < shape->most ? left : shape->most);
        put(window, found, count);
        left -= count;
    }
}

/* What the layers begin with: the vector of each piece, its place, and whether it is an own one. */
static void embed(struct run *run, const struct vectors *vectors, const struct window *window) {
    const struct attention *net = run->net;
    size_t width = net->shape.width, dims = net->shape.dims;
    for (size_t n = 0; n < window->count; n++) {
        const int8_t *row = cw_vectors_row(vectors, window->pieces[n]);
        for (size_t input = 0; input < dims; input++)
            run->rows[n * dims + input] = row[input];
        run->scales[n] = net->shape.scale;
    }
    cw_multiply(run, &net->first, window->count, run->wide);
    for (size_t n = 0; n < window->count; n++) {
        int is_own = n >= window->own && n < window->own_end;
        const float *place = net->places + (n + net->shape.before - window->own) * width;
        const float *side = net->sides + (is_own ? width : 0);
        float *row = run->wide + n * width, *value = run->values + n * width;
        for (size_t k = 0; k < width; k++)
            row[k] += place[k] + side[k];
        cw_normalise(row, width, value);
        for (size_t k = 0; k < width; k++)
            value[k] = value[k] * net->first_gain[k] + net->first_shift[k];
    }
}

/* The mean and the maximum of the own tokens, and the network over them. */
static float score(struct run *run, const struct window *window) {
    const struct attention *net = run->net;
    size_t width = net->shape.width;
    float pooled[2 * MAX_WIDTH] = {0}, row[MAX_WIDTH], units[MAX_HIDDEN], *most = pooled + width;
    for (size_t k = 0; k < width; k++)
        most[k] = LEAST;
    for (size_t n = window->own; n < window->own_end; n++) {
        cw_normalise(run->values + n * width, width, row);
        for (size_t k = 0; k < width; k++) {
            float value = row[k] * net->gain[k] + net->shift[k];
            pooled[k] += value;
            most[k] = value > most[k] ? value : most[k];
        }
    }
    float share = 1 / (float)(window->own_end - window->own);
    for (size_t k = 0; k < width; k++)
        pooled[k] *= share;
    run->scales[0] = cw_round_row(pooled, 2 * width, INPUT_LIMIT, run->rows);
    cw_multiply(run, &net->hidden, 1, units);
    float total = net->last[net->shape.hidden];
    for (size_t n = 0; n < net->shape.hidden; n++)
        total += units[n] > 0 ? units[n] * net->last[n] : 0;
    return total;
}

static size_t larger(size_t left, size_t right) { return left > right ? left : right; }

/* Room for any window, in one piece. */
static void *make_room(const struct attention *net, struct run *run) {
    const struct attention_shape *shape = &net->shape;
    size_t tokens = (size_t)shape->before + shape->own + shape->after, width = shape->width;
    size_t widest = larger(3 * width, shape->inner);
    size_t inputs = larger(larger(shape->dims, 2 * width), shape->inner);
    size_t floats = tokens * (width + widest + width);
    size_t whole = (tokens + CW_ROWS) * inputs + 2 * HEAD * (MAX_TOKENS + CW_OUTPUTS);
    float *room = malloc(floats * sizeof *room + whole * sizeof *run->rows);
    if (!room)
        return NULL;
    run->net = net;
    run->values = room;
    run->wide = run->values + tokens * width;
    run->mixed = run->wide + tokens * widest;
    run->keys = (int16_t *)(room + floats);
    run->weighed = run->keys + HEAD * (MAX_TOKENS + CW_OUTPUTS);
    run->rows = run->weighed + HEAD * (MAX_TOKENS + CW_OUTPUTS);
    return room;
}

/* The scores of some passages of a text, whose lower case is `data`; `none` is that of one without pieces.
 * Returns 0 if the network is not one over these vectors, or there is no room. */
int cw_attention_scores(const struct attention *net, const struct vectors *vectors,
                        const uint8_t *data, size_t size, const struct passage *passages,
                        size_t count, const uint64_t *chosen, size_t chosen_count, float none,
                        float *scores) {
    struct text text = {vectors, data, size, passages, count};
    struct run run;
    void *room;
    if (cw_vectors_dims(vectors) != net->shape.dims || !(room = make_room(net, &run)))
        return 0;
    for (size_t n = 0; n < chosen_count; n++) {
        struct window window = {.count = 0};
        scores[n] = none;
        if (chosen[n] >= count)
            continue;
        find_window(&net->shape, &text, chosen[n], &window);
        if (window.own == window.own_end)
            continue;
        embed(&run, vectors, &window);
        cw_encode(&run, window.count, window.own, window.own_end);
        scores[n] = score(&run, &window);
    }
    free(room);
    return 1;
}
