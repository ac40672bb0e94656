/* The layers of a transformer encoder: matrices in whole numbers, everything else in floats, each sum
 * in one order.
 *
 * A row of inputs is scaled so that its largest has 15 bits; the products with the weights, of 8 bits
 * each, are then added up without an error. The first matrix has inputs of 8 bits, the vectors of
 * pieces, and weights of 16. */
#include "encoder.h"

#include <string.h>

#include "numbers.h"

#define EPSILON 1e-5

#define SIDE_BY_SIDE 4

/* Rounds values to whole numbers of at most `limit`, and returns what one of them stands for. */
float cw_round_row(const float *values, size_t count, float limit, int16_t *whole) {
    uint32_t bits, most = 0;
    float largest;
    for (size_t n = 0; n < count; n++) { /* as whole numbers, magnitudes have the same order */
        memcpy(&bits, values + n, sizeof bits);
        bits &= MAGNITUDE;
        most = bits > most ? bits : most;
    }
    memcpy(&largest, &most, sizeof largest);
    if (most >= INFINITE || largest < SMALLEST) {
        memset(whole, 0, count * sizeof *whole);
        return 0;
    }
    float factor = limit / largest;
    for (size_t n = 0; n < count; n++) {
        float moved = values[n] * factor + TO_WHOLE;
        memcpy(&bits, &moved, sizeof bits);
        whole[n] = (int16_t)(uint16_t)bits;
    }
    return largest / limit;
}

/* Of the values, or of their squares. */
static inline float sum_of(const float *values, size_t count, int is_squared) {
    lanes sums[SIDE_BY_SIDE] = {{0}}, part;
    for (size_t n = 0; n + LANES * SIDE_BY_SIDE <= count; n += LANES * SIDE_BY_SIDE)
        for (size_t k = 0; k < SIDE_BY_SIDE; k++) {
            memcpy(&part, values + n + k * LANES, sizeof part);
            sums[k] += is_squared ? part * part : part;
        }
    lanes all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    return (all[0] + all[1]) + (all[2] + all[3]);
}

/* To a mean of 0 and a variance of 1. */
void cw_normalise(const float *values, size_t width, float *into) {
    float mean = sum_of(values, width, 0) / (float)width;
    for (size_t n = 0; n < width; n++)
        into[n] = values[n] - mean;
    double variance = (double)sum_of(into, width, 1) / (double)width;
    float factor = (float)(1 / root_of(variance + EPSILON));
    for (size_t n = 0; n < width; n++)
        into[n] *= factor;
}

/* Of CW_OUTPUTS outputs what their sums stand for. */
static void to_floats(const int32_t *sums, float scale, const float *scales, const float *bias,
                      float *into) {
    for (size_t n = 0; n < CW_OUTPUTS; n += LANES) {
        whole_lanes whole;
        lanes own, more, made;
        memcpy(&whole, sums + n, sizeof whole);
        memcpy(&own, scales + n, sizeof own);
        memcpy(&more, bias + n, sizeof more);
        made = __builtin_convertvector(whole, lanes) * (own * scale) + more;
        memcpy(into + n, &made, sizeof made);
    }
}

/* The outputs for `count` rows of `run->rows`; behind these there is room for CW_ROWS more. */
void cw_multiply(struct run *run, const struct matrix *by, size_t count, float *into) {
    int32_t sums[CW_ROWS][CW_OUTPUTS];
    size_t inputs = by->inputs, outputs = by->outputs;
    memset(run->rows + count * inputs, 0, CW_ROWS * inputs * sizeof *run->rows);
    for (size_t at = 0; at < outputs; at += CW_OUTPUTS)
        for (size_t first = 0; first < count; first += CW_ROWS) {
            size_t last = first + CW_ROWS < count ? first + CW_ROWS : count;
            run->net->multiply(run->rows + first * inputs, by->table + at * inputs, inputs / 2,
                               sums);
            for (size_t row = first; row < last; row++)
                to_floats(sums[row - first], run->scales[row], by->scales + at, by->bias + at,
                          into + row * outputs + at);
        }
}

static void round_rows(struct run *run, const float *values, size_t count, size_t width) {
    for (size_t n = 0; n < count; n++)
        run->scales[n] =
            cw_round_row(values + n * width, width, INPUT_LIMIT, run->rows + n * width);
}

static void round_normalised(struct run *run, const float *values, size_t count, size_t width) {
    float row[MAX_WIDTH];
    for (size_t n = 0; n < count; n++) {
        cw_normalise(values + n * width, width, row);
        run->scales[n] = cw_round_row(row, width, INPUT_LIMIT, run->rows + n * width);
    }
}

static void add_rows(float *values, const float *more, size_t count) {
    for (size_t n = 0; n < count; n++)
        values[n] += more[n];
}

/* One layer for the tokens from `from` to `end`, which see all. */
static void encode_layer(struct run *run, const struct layer *layer, size_t tokens, size_t from,
                         size_t end) {
    size_t width = run->net->shape.width, inner = run->net->shape.inner, count = end - from;
    float *values = run->values + from * width;
    round_normalised(run, run->values, tokens, width);
    cw_multiply(run, &layer->joined, tokens, run->wide);
    cw_attend(run, tokens, from, end);
    round_rows(run, run->mixed, count, width);
    cw_multiply(run, &layer->out, count, run->wide);
    add_rows(values, run->wide, count * width);
    round_normalised(run, values, count, width);
    cw_multiply(run, &layer->wider, count, run->wide);
    for (size_t n = 0; n < count * inner; n++)
        run->wide[n] = run->wide[n] > 0 ? run->wide[n] : 0;
    round_rows(run, run->wide, count, inner);
    cw_multiply(run, &layer->narrower, count, run->mixed);
    add_rows(values, run->mixed, count * width);
}

/* `run->values` of some tokens through all layers; of the last one only the own tokens are used. */
void cw_encode(struct run *run, size_t tokens, size_t own, size_t own_end) {
    uint32_t layers = run->net->shape.layers;
    for (uint32_t n = 0; n < layers; n++) {
        int is_last = n + 1 == layers;
        encode_layer(run, run->net->layers + n, tokens, is_last ? own : 0,
                     is_last ? own_end : tokens);
    }
}
