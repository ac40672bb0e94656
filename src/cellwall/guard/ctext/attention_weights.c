/* The weights of the encoder: checked for their number, and put into tables. */
#include <stdlib.h>
#include <string.h>

#include "encoder.h"


static int is_between(uint32_t least, uint32_t value, uint32_t most) {
    return least <= value && value <= most;
}

static int fits(const struct attention_shape *shape) {
    uint64_t tokens = (uint64_t)shape->before + shape->own + shape->after;
    return is_between(2, shape->dims, CW_MAX_DIMS) && shape->dims % 2 == 0 &&
           is_between(HEAD, shape->width, MAX_WIDTH) && shape->width % HEAD == 0 &&
           is_between(CW_OUTPUTS, shape->inner, MAX_INPUTS) && shape->inner % CW_OUTPUTS == 0 &&
           is_between(CW_OUTPUTS, shape->hidden, MAX_HIDDEN) && shape->hidden % CW_OUTPUTS == 0 &&
           is_between(1, shape->layers, MAX_LAYERS) && is_between(1, shape->own, MAX_TOKENS) &&
           is_between(shape->own, shape->most, MAX_TOKENS) && tokens <= MAX_TOKENS;
}

/* All matrices in the order of the file. */
struct listed {
    struct matrix *matrices[2 + MATRICES * MAX_LAYERS];
    size_t count;
};

static void list_one(struct listed *listed, struct matrix *matrix, uint32_t inputs,
                     uint32_t outputs) {
    matrix->inputs = inputs;
    matrix->outputs = outputs;
    listed->matrices[listed->count++] = matrix;
}

static void list_matrices(struct attention *net, struct listed *listed) {
    uint32_t width = net->shape.width, inner = net->shape.inner;
    listed->count = 0;
    list_one(listed, &net->first, net->shape.dims, width);
    for (uint32_t n = 0; n < net->shape.layers; n++) {
        struct layer *layer = net->layers + n;
        list_one(listed, &layer->joined, width, 3 * width);
        list_one(listed, &layer->out, width, width);
        list_one(listed, &layer->wider, width, inner);
        list_one(listed, &layer->narrower, inner, width);
    }
    list_one(listed, &net->hidden, 2 * width, net->shape.hidden);
}

static const float *take_floats(const float **left, size_t count) {
    const float *taken = *left;
    *left += count;
    return taken;
}

/* A weight of the first matrix, whose inputs have 8 bits, has 16, and one of the others 8. */
static int16_t weight_at(const uint8_t **left, int is_first) {
    int16_t weight;
    if (!is_first)
        return (int8_t)*(*left)++;
    memcpy(&weight, *left, sizeof weight);
    *left += sizeof weight;
    return weight;
}

static void take_all(struct attention *net, const struct listed *listed, const uint8_t *weights) {
    const float *left = net->floats;
    size_t width = net->shape.width;
    int16_t *table = net->tables;
    size_t tokens = (size_t)net->shape.before + net->shape.own + net->shape.after;
    net->places = take_floats(&left, tokens * width);
    net->sides = take_floats(&left, 2 * width);
    net->first_gain = take_floats(&left, width);
    net->first_shift = take_floats(&left, width);
    net->gain = take_floats(&left, width);
    net->shift = take_floats(&left, width);
    net->last = take_floats(&left, net->shape.hidden + (size_t)1);
    for (size_t n = 0; n < listed->count; n++) {
        struct matrix *matrix = listed->matrices[n];
        matrix->scales = take_floats(&left, matrix->outputs);
        matrix->bias = take_floats(&left, matrix->outputs);
        matrix->table = table;
        for (size_t output = 0; output < matrix->outputs; output++)
            for (size_t input = 0; input < matrix->inputs; input++)
                table[cw_weight_place(matrix->inputs, output, input)] =
                    weight_at(&weights, n == 0);
        table += (size_t)matrix->inputs * matrix->outputs;
    }
}

static size_t floats_in(const struct attention_shape *shape, const struct listed *listed) {
    size_t tokens = (size_t)shape->before + shape->own + shape->after;
    size_t count = (tokens + 6) * shape->width + shape->hidden + 1;
    for (size_t n = 0; n < listed->count; n++)
        count += 2 * (size_t)listed->matrices[n]->outputs;
    return count;
}

static size_t weights_in(const struct listed *listed) {
    size_t count = 0;
    for (size_t n = 0; n < listed->count; n++)
        count += (size_t)listed->matrices[n]->inputs * listed->matrices[n]->outputs;
    return count;
}

void cw_attention_free(struct attention *net) {
    if (!net)
        return;
    free(net->floats);
    free(net->tables);
    free(net);
}

/* `registers`: the widest that are used. NULL if the shape is too large or not that of so many floats
 * and weights, or if there is no room. */
struct attention *cw_attention_new(const struct attention_shape *shape, const float *floats,
                                   size_t float_count, const uint8_t *weights, size_t weight_bytes,
                                   uint32_t registers) {
    struct listed listed;
    struct attention *net = fits(shape) ? calloc(1, sizeof *net) : NULL;
    if (!net)
        return NULL;
    net->shape = *shape;
    net->multiply = cw_products(registers);
    list_matrices(net, &listed);
    size_t weight_count = weights_in(&listed), of_first = (size_t)shape->dims * shape->width;
    if (float_count == floats_in(shape, &listed) && weight_bytes == weight_count + of_first) {
        net->floats = malloc(float_count * sizeof *floats);
        net->tables = malloc(weight_count * sizeof *net->tables);
    }
    if (!net->floats || !net->tables) {
        cw_attention_free(net);
        return NULL;
    }
    memcpy(net->floats, floats, float_count * sizeof *floats);
    take_all(net, &listed, weights);
    return net;
}
